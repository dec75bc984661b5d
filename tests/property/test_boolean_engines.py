"""Boolean engines against the oracle on worlds that hypothesis picks, and through any order of changes."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from benchmarks.driving import Tasks, kind_of
from matching.kinds import KINDS
from matching.model import UNKNOWN_TERM, SubscriptionTable, empty
from matching.naive import Oracle
from matching.naive_rows import tally
from matching.space import Space
from matching.window import NO_FLOOR, Boundary, Window
from tests.support.boolean_tables import RESERVED, SPACE, batch, engine_pairs, oracle_pairs, removals, table
from tests.support.examples import examples

# Few values, so that borders coincide; a lattice step apart and less, so that the lattice cannot decide.
_STEP = 360.0 / 2**15
KIND = KINDS.named("boolean")
LONGITUDES = st.sampled_from(
    [-180.0, -90.0, -_STEP, -5e-324, 0.0, 1e-9, _STEP, 1.5 * _STEP, 45.0, 90.0, 179.999, 180.0]
)
LATITUDES = st.sampled_from([-90.0, -45.0, -_STEP / 2, 0.0, 5e-324, _STEP, 30.0, 89.999, 90.0])
TERMS = st.integers(0, 5)
SPACES = (SPACE, Space(-10.0, -10.0, 50.0, 20.0), Space(0.0, 0.0, _STEP, 0.0))


@st.composite
def regions(draw):
    """Closed rectangles, points and lines among them, some across the antimeridian."""
    low, high = sorted(draw(st.tuples(LATITUDES, LATITUDES)))
    return draw(LONGITUDES), low, draw(LONGITUDES), high


@st.composite
def places(draw):
    """Points and, one time in three, rectangles."""
    west, south = draw(LONGITUDES), draw(LATITUDES)
    if draw(st.integers(0, 2)):
        return west, south
    east, north = draw(LONGITUDES), draw(LATITUDES)
    return min(west, east), min(south, north), max(west, east), max(south, north)


KEYWORDS = st.one_of(st.sets(st.one_of(TERMS, st.just(UNKNOWN_TERM)), max_size=4), st.just({RESERVED}))
SUBSCRIPTIONS = st.lists(st.tuples(regions(), KEYWORDS), max_size=12)
MESSAGES = st.lists(st.tuples(places(), st.sets(st.one_of(TERMS, st.just(RESERVED)), max_size=6)), max_size=8)


@pytest.mark.parametrize("name", KIND.engines)
@pytest.mark.parametrize("space", SPACES)
@given(subscriptions=SUBSCRIPTIONS, messages=MESSAGES, copies=st.sampled_from([1, 1, 9]), data=st.data())
@settings(max_examples=60, deadline=None)
def test_engine_on_any_world_agrees_with_the_oracle(name, space, subscriptions, messages, copies, data):
    loose = [bool(data.draw(st.booleans())) for _ in subscriptions] if data.draw(st.booleans()) else None
    rows = table(
        subscriptions * copies, loose=None if loose is None else loose * copies
    )  # enough copies of a few make blocks that are sorted into cells
    columns = batch(messages)
    engine = KIND.engine(name)(space)
    engine.insert(rows)
    wanted = oracle_pairs(rows, columns)
    assert engine_pairs(engine, columns) == wanted
    restored = type(engine)(space)
    restored.insert(engine.table())
    assert engine_pairs(restored, columns) == wanted


class BooleanMachine(RuleBasedStateMachine):
    """A stream of changes and batches, snapshots and restores; every batch is held against the oracle."""

    name: str

    @initialize(space=st.sampled_from(SPACES[:2]))
    def begin(self, space):
        self.tasks = Tasks(kind_of("boolean", self.name), space, Window("count", 1))
        self.oracle = Oracle(None, space.max_distance)
        self.live: list[int] = []
        self.following, self.number, self.seq = 0, 0, 0

    def _advance(self, messages, added, gone):
        first, last = self.seq, self.seq + len(messages) - 1
        boundary = Boundary(self.number, first, last, NO_FLOOR)
        columns = self._columns(messages, first)
        changes = columns, added, removals([number for number, _ in gone], [at for _, at in gone])
        wanted = tally(self.oracle.advance(boundary, *changes))
        assert tally(self.tasks.process(boundary, *changes).updates) == wanted
        self.seq, self.number = last + 1, self.number + 1

    def _columns(self, messages, first):
        return batch(messages, first)

    def _added(self, rows, at):
        added = table(rows, self.following, at)
        self.live += added.number.tolist()
        self.following += len(added)
        return added

    @rule(messages=MESSAGES)
    def publish(self, messages):
        self._advance(messages, empty(SubscriptionTable), [])

    @rule(rows=SUBSCRIPTIONS, messages=MESSAGES, at=st.integers(0, 8), copies=st.sampled_from([1, 1, 1, 30]))
    def subscribe(self, rows, messages, at, copies):
        self._advance(messages, self._added(rows * copies, self.seq + min(at, len(messages))), [])

    @precondition(lambda self: self.live)
    @rule(data=st.data(), messages=MESSAGES, share=st.sampled_from([0.1, 0.5, 0.9, 1.0]))
    def unsubscribe(self, data, messages, share):
        picked = data.draw(st.randoms(use_true_random=False)).sample(self.live, max(1, int(share * len(self.live))))
        at = self.seq + data.draw(st.integers(0, len(messages)))
        self.live = sorted(set(self.live) - set(picked))
        self._advance(messages, empty(SubscriptionTable), [(number, at) for number in picked])

    @precondition(lambda self: self.live)
    @rule(data=st.data(), messages=MESSAGES, row=st.tuples(regions(), KEYWORDS))
    def replace(self, data, messages, row):
        old = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        at = self.seq + data.draw(st.integers(0, len(messages)))
        self._advance(messages, self._added([row], at), [(old, at)])

    @rule(rows=SUBSCRIPTIONS, messages=MESSAGES)
    def come_and_go(self, rows, messages):
        added = self._added(rows, self.seq)
        self.live = self.live[: len(self.live) - len(added)]
        at = self.seq + len(messages) // 2
        self._advance(messages, added, [(number, at) for number in added.number.tolist()])

    @precondition(lambda self: self.number)
    @rule(tasks=st.integers(1, 3))
    def save_and_restore(self, tasks):
        self.tasks.go_on(tasks)

    @invariant()
    def holds_who_is_live(self):
        if hasattr(self, "live"):
            operators = [task.operator for task in self.tasks.tasks]
            assert sum(len(operator) for operator in operators) == len(self.live)
            assert np.sum(
                [operator.contains(np.array(self.live, np.int64)) for operator in operators], axis=0
            ).tolist() == [1] * len(self.live)


def machine(name: str):
    """The test case of the state machine for one engine."""
    case = type(f"Machine_{name}", (BooleanMachine,), {"name": name}).TestCase
    case.settings = settings(
        max_examples=25 if name == KIND.chosen(None) else examples(10, 25),
        stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    return case


TestCellTermMachine = machine("cell_term")
TestInvertedListMachine = machine("inverted_list")
TestMbrTrieMachine = machine("mbr_trie")
TestPtQuadtreeMachine = machine("pt_quadtree")
TestLFilterMachine = machine("lfilter")
TestLFilterPaperMachine = machine("lfilter_paper")
TestRtTreeMachine = machine("rt_tree")
TestRtppTreeMachine = machine("rtpp_tree")
TestIrTreeMachine = machine("ir_tree")


def test_machines_cover_every_engine():
    with_machine = {
        "cell_term",
        "inverted_list",
        "mbr_trie",
        "pt_quadtree",
        "lfilter",
        "lfilter_paper",
        "rt_tree",
        "rtpp_tree",
        "ir_tree",
    }
    assert set(KIND.engines) == with_machine
