"""A wrong topology fails when it is built, and the message names component, fault and remedy."""

import json
import pickle
import threading

import pytest

from matching.errors import TopologyError
from tests.support.example_topologies import AckBolt, MarkerSpout, NumberSpout, PassBolt, word_count
from topology.core.api.builder import TopologyBuilder


def sound() -> TopologyBuilder:
    """A builder with nothing wrong yet: numbers -> pass -> ack."""
    return (
        TopologyBuilder("t")
        .spout("numbers", NumberSpout(3), clock=True)
        .bolt("pass", PassBolt())
        .bolt("ack", AckBolt())
        .edge("numbers", "words", "pass", "shuffle")
        .edge("pass", "words", "ack", "shuffle")
        .acknowledged_by("ack")
    )


class Locked(PassBolt):
    def __init__(self):
        super().__init__()
        self.tools = [1]
        self.helper = PassBolt()
        self.helper.guard = threading.Lock()  # type: ignore[attr-defined]


def local_class():
    class Hidden(PassBolt):
        pass

    return Hidden()


FAULTS = {
    "duplicate name": (lambda b: b.bolt("pass", PassBolt()), ["'pass' is declared twice"]),
    "unknown target": (lambda b: b.edge("pass", "x", "akc", "all"), ["'akc'", "to a bolt", "'ack'"]),
    "unknown source": (lambda b: b.edge("nombers", "x", "ack", "all"), ["'nombers'", "from a component", "'numbers'"]),
    "unknown grouping": (lambda b: b.edge("pass", "x", "ack", "shufle"), ["'shufle'", "there is shuffle"]),
    "two clocks": (
        lambda b: b.spout("more", NumberSpout(3), clock=True).edge("more", "x", "ack", "all"),
        ["2 spouts are the clock", "one spout"],
    ),
    "spout as target": (
        lambda b: b.spout("more", MarkerSpout()).edge("more", "x", "ack", "all").edge("pass", "x", "more", "all"),
        ["'more'", "to a bolt"],
    ),
    "two groupings": (lambda b: b.edge("pass", "words", "ack", "all"), ["'pass' -words-> 'ack' is declared twice"]),
    "cycle": (
        lambda b: (
            b.bolt("mid", PassBolt())
            .edge("pass", "x", "mid", "all")
            .edge("mid", "x", "ack", "all")
            .edge("ack", "back", "pass", "all")
        ),
        ["cycle", "ack -> pass", "feedback=True"],
    ),
    "self loop": (lambda b: b.edge("ack", "again", "ack", "all"), ["ack -> ack", "feedback=True"]),
    "never fed": (
        lambda b: b.bolt("a", PassBolt()).bolt("b", PassBolt()).edge("a", "x", "b", "all"),
        ["bolt 'a' has feedback inputs only"],
    ),
    "zero tasks": (lambda b: b.bolt("none", PassBolt(), tasks=0).edge("pass", "x", "none", "all"), ["tasks=0"]),
    "half a task": (
        lambda b: b.bolt("none", PassBolt(), tasks=1.5).edge("pass", "x", "none", "all"),
        ["tasks=1.5"],
    ),
    "class, not instance": (
        lambda b: b.bolt("cls", PassBolt).edge("pass", "x", "cls", "all"),
        ["'cls' is <class", "PassBolt", "instance of a Bolt"],
    ),
    "spout as bolt": (
        lambda b: b.bolt("s", MarkerSpout()).edge("pass", "x", "s", "all"),
        ["'s' is <", "MarkerSpout", "instance of a Bolt"],
    ),
    "unpicklable field": (
        lambda b: b.bolt("locked", Locked()).edge("pass", "x", "locked", "all"),
        ["bolt 'locked'", "cannot be pickled", "lock", "prepare()"],
    ),
    "class inside a function": (
        lambda b: b.bolt("hidden", local_class()).edge("pass", "x", "hidden", "all"),
        ["bolt 'hidden'", "cannot be pickled", "Hidden"],
    ),
    "feedback-only with forward output": (
        lambda b: (
            b.bolt("late", PassBolt()).edge("pass", "x", "late", "all", feedback=True).edge("late", "y", "ack", "all")
        ),
        ["bolt 'late' has feedback inputs only"],
    ),
    "acknowledged by a spout": (lambda b: b.acknowledged_by("numbers"), ["no bolt acknowledges", "something else"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_build_wrong_topology_raises_naming_the_fault(fault):
    spoil, wanted = FAULTS[fault]
    sound().build()  # or the fault below would not be the one tested
    with pytest.raises(TopologyError) as raised:
        spoil(sound()).build()
    for words in wanted:
        assert words in str(raised.value)


def test_build_without_clock_raises():
    builder = TopologyBuilder().spout("numbers", NumberSpout(3)).bolt("ack", AckBolt()).acknowledged_by("ack")
    with pytest.raises(TopologyError, match="0 spouts are the clock: declare one"):
        builder.edge("numbers", "words", "ack", "all").build()


def test_build_without_acknowledging_component_raises():
    builder = TopologyBuilder().spout("numbers", NumberSpout(3), clock=True).bolt("ack", AckBolt())
    with pytest.raises(TopologyError, match="no bolt acknowledges"):
        builder.edge("numbers", "words", "ack", "all").build()


@pytest.mark.parametrize("credits", [0, -1, 2.5])
def test_build_without_credits_raises(credits):
    with pytest.raises(TopologyError, match="credits="):
        sound().build(credits=credits)


def test_build_several_faults_tells_all_of_them():
    with pytest.raises(TopologyError) as raised:
        sound().bolt("pass", PassBolt()).bolt("x", PassBolt(), tasks=-1).build(credits=0)
    for words in ("'pass' is declared twice", "tasks=-1", "credits=0"):
        assert words in str(raised.value)


def test_build_feedback_cycle_is_accepted():
    plan = sound().edge("ack", "back", "pass", "all", feedback=True).build()
    assert [edge.feedback for edge in plan.edges] == [False, False, True]


def test_plan_addresses_count_spouts_first_then_bolts():
    plan = word_count(splits=2, counts=3)
    assert [str(task) for task in plan.tasks] == [
        "numbers:0", "marker:0", "split:0", "split:1", "count:0", "count:1", "count:2", "sum:0",
    ]  # fmt: skip
    assert (plan.addresses_of("count"), plan.clock_address, plan.followers) == ((4, 5, 6), 0, (1,))
    assert plan.end_targets("numbers") == (1, 2, 3)  # the following spout and the splitters
    assert plan.end_sources("split") == (0, 1)  # not the counting tasks: they answer over feedback
    assert plan.end_sources("numbers") == ()
    assert plan.end_targets("count") == (7,) and plan.end_targets("sum") == ()


def test_plan_describe_is_json_and_complete():
    told = json.loads(json.dumps(word_count().describe()))
    assert told["credits"] == 4 and told["acknowledged_by"] == ["sum"]
    assert {part["name"]: part["tasks"] for part in told["components"]}["count"] == 3
    assert {"source": "count", "stream": "answers", "target": "split", "grouping": "direct", "feedback": True} in told[
        "edges"
    ]


def test_plan_render_marks_feedback_and_names_everything():
    lines = word_count().render().splitlines()
    assert any("questions ~~> count" in line and "feedback" in line for line in lines)
    assert any("counts" in line and "--> sum" in line for line in lines)
    assert any(line.startswith("numbers") and "spout, clock x 1" in line for line in lines)
    assert max(map(len, lines)) <= 120


def test_build_template_is_a_copy_of_the_component():
    bolt = PassBolt(at=3)
    plan = sound().bolt("extra", bolt).edge("numbers", "words", "extra", "all").build()
    bolt.at = 99
    assert pickle.loads(plan.component("extra").template).at == 3  # noqa: S301 - made two lines above
