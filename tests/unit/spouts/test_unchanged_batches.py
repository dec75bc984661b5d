"""A live batch says whether it has changes of subscriptions; where it has none, none are sent."""

import random
import shutil
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from bolts.payloads import NO_NAMES, StreamBatch, emit_batch
from matching.errors import TopologyError
from matching.model import NO_MESSAGES
from matching.window import Boundary
from spouts.handover import handover_of
from spouts.live import LoggedMessages, LoggedSubscriptions
from spouts.log import read_records
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream
from tests.support.message_files import RecordingContext
from tests.support.snapshots import saved_by
from tests.support.topologies import differences, plan_of
from tests.support.worlds import Recipe, has_changes, make_world
from topology.core.api.component import Saved, Tick
from topology.core.executors.local import run_local

SUBSCRIPTION = {"kind": "boolean", "keywords": "w1", "region": [-9, -9, 9, 9]}


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("unchanged") / "words", random_rows(200))


@pytest.fixture(params=[1, 2, 7, 1_000])
def stream(request, words, tmp_path):
    """Messages, changes and marks of the clock in any order, closed to records of up to this many lines."""
    rng = random.Random(request.param)
    stream = Stream(words, tmp_path / "out", window="time:100", most_terms=1_000)
    live: list[str] = []
    for number in range(120):
        draw = rng.random()
        if draw < 0.72 or number > 110:
            stream.take({"id": f"m{number}", "text": "w1 w2", "lon": 1, "lat": 2, "time": 100 + number})
        elif draw < 0.9 or not live:
            live.append(f"s{number}")
            stream.take({"subscribe": {"subscription_id": live[-1], **SUBSCRIPTION}})
        else:
            stream.take({"unsubscribe": live.pop(rng.randrange(len(live)))})
        if rng.random() < 2 / request.param:
            stream.pipe.close_batch()
            if rng.random() < 0.05:
                stream.journal.mark((100 + number) * 1_000_000, 0.0)
    stream.pipe.close_batch()
    yield stream
    stream.journal.close()


class Pair:
    """The spouts of a live stream, with all that they emitted."""

    def __init__(self, stream, log, words, saved=None):
        space = stream.gate.space
        self.messages = LoggedMessages(log, words, 1_000, stream.gate.window, space)
        self.messages.poll_s = 0.0
        self.subscriptions = LoggedSubscriptions(log, words, 1_000, space)
        self.clock, self.followed = RecordingContext(tasks=1), RecordingContext()
        self.followed.component = "subscriptions"
        self.messages.open(self.clock)
        self.subscriptions.open(self.followed)
        self.number = 0
        if saved is not None:
            self.number = saved.number + 1
            self.messages.restore(saved)
            self.subscriptions.restore(saved)

    def advance(self):
        """The next batch: its tick, and its changes as lists; None where none were sent."""
        tick = self.messages.next_batch(self.number, None)
        batch = self.clock.emitted[-1][1]
        assert batch.has_changes == tick.has_changes
        sent = len(self.followed.emitted)
        self.subscriptions.next_batch(self.number, tick)
        self.number += 1
        lists = [payload for _, payload, _ in self.followed.emitted[sent:]]
        assert len(lists) == tick.has_changes
        return tick, as_lists(lists[0]) if lists else None

    def saved(self):
        parts = {"messages": [saved_by(self.messages)], "subscriptions": [saved_by(self.subscriptions)]}
        return Saved(self.number - 1, parts)

    def close(self):
        self.messages.close()
        self.subscriptions.close()


def as_lists(changes):
    added, removed = changes.added, changes.removed
    return added.number.tolist(), added.at.tolist(), changes.names.strings(), removed.number.tolist()


def wanted(log):
    """The last seq of each batch, and how many changes take effect in it, by the records."""
    ends, ats, seq = [-1], [], 0
    for record, _, _ in read_records(log):
        ats += [at for at, _ in record.changes_from(seq)]
        seq += record.messages
        if record.last_seq >= 0:
            ends.append(record.last_seq)
    at = np.array(ats)
    return ends[1:], [int(np.count_nonzero((at > before) & (at <= last))) for before, last in pairwise(ends)]


@pytest.mark.parametrize("is_handed", [True, False], ids=["handed", "read"])
def test_batch_has_changes_where_some_take_effect_in_it_and_only_there_are_they_sent(
    stream, words, tmp_path, is_handed
):
    log = stream.journal.log if is_handed else shutil.copy(stream.journal.log, tmp_path / "copy")
    ends, counts = wanted(log)
    pair = Pair(stream, log, words)
    found = [pair.advance() for _ in ends]
    assert [tick.last_seq for tick, _ in found] == ends
    assert [tick.has_changes for tick, _ in found] == [count > 0 for count in counts]
    assert sum(len(changes[0]) + len(changes[3]) for _, changes in found if changes) > 10
    if len(ends) > 10:
        assert 0 in counts
    tick, changes = pair.advance()
    assert tick.first_seq > tick.last_seq and not tick.has_changes and changes is None, "an idle stream"
    handover = handover_of(log)
    assert (handover is not None) == is_handed and (handover is None or handover.batches.taken > 0)
    pair.close()


def test_resumed_pair_sends_the_same_changes(stream, words):
    pair = Pair(stream, stream.journal.log, words)
    states, found = [], []
    for _ in wanted(stream.journal.log)[0]:
        found.append(pair.advance())
        states.append(pair.saved())
    pair.close()
    for number in range(0, len(states), max(1, len(states) // 8)):
        resumed = Pair(stream, stream.journal.log, words, states[number])
        again = [resumed.advance() for _ in found[number + 1 :]]
        assert [changes or as_nothing() for _, changes in again] == [
            changes or as_nothing() for _, changes in found[number + 1 :]
        ]
        flags, before = ([tick.has_changes for tick, _ in some] for some in (again, found[number + 1 :]))
        assert flags[1:] == before[1:]
        assert flags[:1] >= before[:1], "what was logged before the place where it began to read is not known to it"
        resumed.close()


def as_nothing():
    return [], [], [], []


def test_changes_of_a_batch_that_was_published_without_them_are_an_error(stream, words):
    ends, counts = wanted(stream.journal.log)
    first = next(place for place, count in enumerate(counts) if count)
    pair = Pair(stream, stream.journal.log, words)
    with pytest.raises(TopologyError, match=f"batch 0 up to message {ends[first]:,} has changes"):
        pair.subscriptions.next_batch(0, Tick(0, 0, ends[first], False))
    pair.close()


def test_each_batch_has_a_list_where_several_tasks_distribute():
    batch = StreamBatch(Boundary(5, 50, 59, 40), NO_MESSAGES, NO_NAMES, has_changes=False)
    for tasks in (1, 3):
        context = RecordingContext(tasks)
        tick = emit_batch(context, batch)
        assert tick == Tick(5, 50, 59, tasks > 1)
        assert context.emitted == [("batches", batch._replace(has_changes=tasks > 1), 5 % tasks)]


@pytest.mark.parametrize(("router", "distribution"), [("hashing", 1), ("location", 1), ("hashing", 2)])
def test_topology_is_exact_and_no_list_is_sent_for_a_batch_without_changes(router, distribution):
    world = make_world(Recipe(messages=160, subscriptions=20, churn=0.3, largest_k=2), 3)
    changed = [boundary.number for boundary, _, changes in world.batches if has_changes(changes)]
    assert 0 < len(changed) < len(world.batches)
    plan = plan_of(world, router, 3, distribution=distribution)
    sent: Counter[int] = Counter()

    def watch(parcels):
        sent.update(one.payload.batch for one in parcels if one.edge >= 0 and plan.edges[one.edge].stream == "changes")

    report = run_local(plan, seed=3, watch=watch)
    assert not differences(world, report.components["delivery"].tasks[0].figures)
    receivers = distribution + 2 + 1  # of two query tasks and one of delivery
    listed = changed if distribution == 1 else range(len(world.batches))
    assert sent == dict.fromkeys(listed, receivers)
