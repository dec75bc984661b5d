"""What 1, 2 and 4 delivery tasks publish is released as one sequence, whatever is read when, and whatever dies.

Tasks publish the updates of the subscriptions that they own, each at its own pace, to one releaser. A topology that
goes back to a checkpoint publishes what is behind it again, while frames of the tasks before are still unread.
"""

from array import array
from collections import deque
from functools import lru_cache

import msgspec
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from bolts.names import hash_names
from bolts.publishing import PublishedUpdates, decode, encode
from bolts.shares import owner_of
from gateway.live.in_flight import InFlight
from gateway.live.update_listener import MessageText
from gateway.serve.releasing import Releaser, boundaries_of
from matching.model import CHANGES, Names
from tests.support.releasing import updates_of

BOUNDARIES, BATCH = 12, 5
ENDS = list(range(BATCH - 1, BOUNDARIES * BATCH, BATCH))
IDS = [f"s{number}" for number in range(9)]


@lru_cache
def stream() -> list[tuple[int, str, int, str, float]]:
    """All updates: as_of, subscription, seq, change, score; none twice."""
    rng = np.random.default_rng(7)
    rows = set()
    for number, end in enumerate(ENDS):
        for _ in range(10):
            kind = rng.choice(["match", "enter", "leave"])
            seq = int(rng.integers(number * BATCH, end + 1)) if kind == "match" else int(rng.integers(0, end + 1))
            rows.add((seq if kind == "match" else end, str(rng.choice(IDS)), seq, str(kind)))
    return [(*row, 0.5) for row in sorted(rows)]


def text_of(seqs):
    return {seq: MessageText(f"m{seq}", "text", 1.0, 2.0) for seq in seqs}


def wanted() -> list[tuple[str, str, str, int]]:
    """Position, subscription, change and seq of every update in the order of the stream."""
    order, found = ("leave", "match", "enter"), []
    for first, end in enumerate(ENDS):
        mine = [row for row in stream() if first * BATCH <= row[0] <= end]
        mine.sort(key=lambda row: (row[1], order.index(row[3]), row[2]))
        found += [(f"{end}-{place}", name, change, seq) for place, (_, name, seq, change, _) in enumerate(mine)]
    return found


class _Task:
    """A delivery task of one incarnation: what it has to publish, and frames that are sent and not read."""

    def __init__(self, incarnation: int, task: int, tasks: int, since: int):
        self.where = {"incarnation": incarnation, "task": task, "tasks": tasks, "since": since}
        owner = dict(zip(IDS, owner_of(hash_names(Names.of(IDS)), tasks).tolist(), strict=True))
        self.rows = deque(row for row in stream() if row[0] > since and owner[row[1]] == task)
        self.late: list[tuple] = []
        self.closed = int(np.searchsorted(ENDS, since, "right"))  # boundaries
        self.through = since  # the last seq up to which all is sent
        self.frames: deque[PublishedUpdates] = deque()

    def send(self, late_share: float, rng: np.random.Generator) -> None:
        """Publish the next boundary; updates that are late keep the watermark where it is."""
        end = ENDS[self.closed]
        self.closed += 1
        mine, held = self.late, []
        while self.rows and self.rows[0][0] <= end:
            (held if rng.random() < late_share else mine).append(self.rows.popleft())
        self.late = held
        self._publish(mine, self.through if held else end)

    def send_late(self) -> None:
        late, self.late = self.late, []
        self._publish(late, ENDS[self.closed - 1] if self.closed else -1)

    def _publish(self, rows: list[tuple], through: int) -> None:
        self.through = through
        names = sorted({row[1] for row in rows})
        as_of, who, seq, change, score = zip(*rows, strict=True) if rows else [[]] * 5
        frame = PublishedUpdates(
            through=through,
            as_of=np.array(as_of, np.int64),
            seq=np.array(seq, np.int64),
            change=np.array([CHANGES.index(each) for each in change], np.int8),
            score=np.array(score, np.float64),
            who=np.array([names.index(each) for each in who], np.int32),
            names=Names.of(names),
            **self.where,
        )
        self.frames.append(decode(encode(frame)))


class ReleasedOrder(RuleBasedStateMachine):
    """Delivery tasks, a releaser, and what dies between them."""

    counts = (1,)
    released_in_all = 0
    incarnations = 0

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(1)
        self.found: list[tuple[str, str, str, int]] = []
        self.through = -1
        self.durable = -1
        self.releaser = Releaser(InFlight(3), ENDS, lambda: self.durable, self._deliver)
        self.saved = -1  # the last seq of the newest checkpoint
        self.incarnation = 0
        self.older: list[_Task] = []
        self.tasks = self._begin()

    def _begin(self) -> list[_Task]:
        count = self.counts[self.incarnation % len(self.counts)]
        return [_Task(self.incarnation, task, count, self.saved) for task in range(count)]

    def _deliver(self, boundaries, through) -> None:
        assert through > self.through
        self.through = through
        for one in (one for released in boundaries for one in updates_of(released, None, text_of)):
            row = msgspec.json.decode(one.data)
            self.found.append((row["id"], row["subscription_id"], row["change"], row["seq"]))

    @rule(number=st.integers(0, 3), late=st.sampled_from([0.0, 0.5]))
    def send(self, number, late):
        task = self.tasks[number % len(self.tasks)]
        if task.closed < BOUNDARIES:
            task.send(late, self.rng)

    @rule(number=st.integers(0, 3))
    def send_late(self, number):
        task = self.tasks[number % len(self.tasks)]
        if task.late:
            task.send_late()

    @rule(number=st.integers(0, 7))
    def read(self, number):
        """Read the next frame of a connection; one of a new incarnation waits for those that a checkpoint covers."""
        waiting = [task for task in (*self.older, *self.tasks) if task.frames]
        if waiting:
            task = waiting[number % len(waiting)]
            older = task.where["incarnation"] < self.releaser._incarnation
            if older or task.frames[0].since <= self.releaser._collected:
                self.releaser.take(task.frames.popleft())

    @rule(boundaries=st.integers(1, 4))
    def write(self, boundaries):
        """More messages are on disk."""
        self.durable = min(self.durable + boundaries * BATCH, ENDS[-1])
        self.releaser.settle()

    @rule()
    def save(self):
        """A checkpoint: all is sent up to it by every task, not all is read."""
        if all(not task.late for task in self.tasks) and len({task.closed for task in self.tasks}) == 1:
            self.saved = max(self.saved, min(task.through for task in self.tasks))

    @precondition(lambda self: self.incarnation < 6)
    @rule()
    def die(self):
        """The tasks end where they are, and others begin from the checkpoint; what was sent can still be read."""
        self.incarnation += 1
        self.older += self.tasks
        self.tasks = self._begin()
        type(self).incarnations += 1

    @invariant()
    def released_is_how_the_stream_begins(self):
        assert self.releaser.failure is None
        assert self.found == wanted()[: len(self.found)]
        complete = [row for row in wanted() if int(row[0].partition("-")[0]) <= self.through]
        assert len(self.found) == len(complete), "whole boundaries"

    def teardown(self):
        for task in self.tasks:
            while task.closed < BOUNDARIES:
                task.send(0.0, self.rng)
            task.send_late()
        while any(task.frames for task in (*self.older, *self.tasks)):
            before = sum(len(task.frames) for task in (*self.older, *self.tasks))
            for number in range(8):
                self.read(number)
            assert sum(len(task.frames) for task in (*self.older, *self.tasks)) < before, "all wait for each other"
        self.durable = ENDS[-1]
        self.releaser.settle()
        assert self.found == wanted()
        type(self).released_in_all += len(self.found)


@pytest.mark.parametrize("counts", [(1,), (2,), (4,), (4, 1, 2)], ids=str)
def test_updates_of_several_delivery_tasks_are_released_in_one_sequence(counts):
    machine = type("Machine", (ReleasedOrder,), {"counts": counts, "released_in_all": 0, "incarnations": 0})
    phases = [Phase.reuse, Phase.generate]  # a failure with 4 tasks takes minutes to shrink
    few = settings(max_examples=20, stateful_step_count=40, deadline=None, phases=phases)
    run_state_machine_as_test(machine, settings=few)
    assert machine.released_in_all > 1_000 and machine.incarnations > 10


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=20), st.data())
def test_boundaries_of_seqs_are_the_first_ends_at_or_behind_them(sizes, data):
    ends = array("q", np.cumsum(sizes) - 1)
    as_of = data.draw(st.lists(st.integers(0, ends[-1]), min_size=1, max_size=30))
    wanted = [next(end for end in ends if end >= each) for each in as_of]
    assert boundaries_of(ends, np.array(as_of)).tolist() == wanted
