"""Where the processor time of a message goes, over the whole way of a workload, in one process.

    python -m benchmarks.workloads.profile FOLDER [--messages 20000] [--batch 100] > profile.json

Messages come all at once in batches of one size; the first do not count. Each part has a clock of the thread's
processor time, which stops while another part runs inside it: so all parts add up, and a busy machine shows little.
What no clock has is the framework's, and what other threads do is apart. Updates of a sample, over the first messages
that count, are compared with the oracle. `digest` is that of all updates: two checkouts that are compared must have the
same.
"""

import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

from benchmarks import command
from benchmarks.command import Tell, verdict
from benchmarks.headline import memory_of
from benchmarks.workloads.folder import LoadedSubscriptions, PacedFile, Workload
from benchmarks.workloads.trial import resident_bytes
from bolts.aggregation import AggregationBolt
from bolts.delivery import DeliveryBolt
from bolts.distribution import DistributionBolt
from bolts.names import Digest
from bolts.query import QueryBolt
from bolts.retained import RetainedMessages
from bolts.sinks import PartSink
from bolts.tuples import TupleBolt
from gateway.load.check import check
from gateway.load.pace import Pace
from matching.kinds import KINDS
from matching.storage.message_log import WindowLog
from topology.core.executors.local import run_local
from topology.settings import LIVE_CREDITS

#: Messages before those that count.
_WARMING = 4_000
_ALL_AT_ONCE = 1e9
#: Part, class and methods, beside those of kinds.
_PARTS: tuple[tuple[str, type, tuple[str, ...]], ...] = (
    ("spouts", PacedFile, ("next_batch",)),
    ("spouts", LoadedSubscriptions, ("next_batch",)),
    ("distribution", DistributionBolt, ("execute",)),
    ("query bolt", QueryBolt, ("execute",)),
    ("tuple bolt", TupleBolt, ("execute",)),
    ("message log", WindowLog, ("store",)),
    ("aggregation", AggregationBolt, ("execute",)),
    ("delivery bolt", DeliveryBolt, ("execute",)),
    ("delivery digest", Digest, ("add",)),
    ("delivery names in results", RetainedMessages, ("note",)),
    ("delivery sink", PartSink, ("write",)),
)


class Clocks:
    """Exclusive processor time by part, from the first message that counts on."""

    def __init__(self, first: int):
        self.seconds: dict[str, float] = defaultdict(float)
        self.updates: Counter[str] = Counter()
        self.began_s: tuple[float, float] | None = None
        self._first, self._running, self._since = first, "", 0.0

    def install(self) -> Callable[[], None]:
        """Clock all parts; returns what undoes it."""
        before: list[tuple[type, str, Any]] = []

        def clock(part: str, owner: type, name: str, note: Callable[[Any, Any], None] | None = None) -> None:
            before.append((owner, name, owner.__dict__.get(name)))
            setattr(owner, name, self._clocked(part, getattr(owner, name), note))

        for part, owner, names in _PARTS:
            for name in names:
                clock(part, owner, name, self._note_batch if owner is PacedFile else None)
        for kind in KINDS.run:
            assert kind.operator is not None
            for name, part in (("match", "match"), ("close", "close"), ("answer", "refill")):
                if hasattr(kind.operator, name):
                    note = None if name == "match" else self._count(kind.name)
                    clock(f"{kind.name} {part}", kind.operator, name, note)
            if kind.windowed:
                clock(f"{kind.name} window", kind.window(), "store")
                clock(f"{kind.name} refill", kind.window(), "answer")

        def undo() -> None:
            for owner, name, own in before:
                if own is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, own)

        return undo

    def _clocked(self, part: str, function: Callable[..., Any], note: Callable[[Any, Any], None] | None) -> Any:
        @wraps(function)
        def run(this: Any, *args: Any, **named: Any) -> Any:
            around = self._running
            self._switch(part)
            try:
                answer = function(this, *args, **named)
            finally:
                self._switch(around)
            if note is not None:
                note(this, answer)
            return answer

        return run

    def _switch(self, part: str) -> None:
        now = time.thread_time()
        if self._running:
            self.seconds[self._running] += now - self._since
        self._running, self._since = part, now

    def _note_batch(self, spout: Any, answer: Any) -> None:
        """Begin anew with the first batch that counts."""
        if self.began_s is None and spout.cutter.next_seq >= self._first:
            self.seconds.clear()
            self.updates.clear()
            self.began_s = time.thread_time(), time.process_time()

    def _count(self, kind: str) -> Callable[[Any, Any], None]:
        def note(operator: Any, output: Any) -> None:
            self.updates[kind] += len(output.updates)

        return note


def profile(
    folder: Annotated[str, "of the workload"],
    messages: Annotated[int, "that count"] = 20_000,
    batch: Annotated[int, "messages of a batch"] = 100,
    tell: Tell = command.say,
) -> dict[str, Any]:
    """Microseconds of a message by part, and updates of a message by kind."""
    workload = Workload(folder)
    workload.fill(tell)
    first = workload.history + _WARMING
    clocks = Clocks(first)
    with tempfile.TemporaryDirectory(prefix="skyray-profile-") as out:
        store, manifest = workload.resume(out)
        pace = Pace(_ALL_AT_ONCE, first + messages, batch, warming=first)
        plan = workload.plan(pace, credits=LIVE_CREDITS, out=out)
        ended: list[tuple[float, float]] = []
        finish = DeliveryBolt.finish
        resident: list[int] = []

        def finished(bolt: DeliveryBolt) -> None:
            ended.append((time.thread_time(), time.process_time()))
            resident.append(resident_bytes())
            finish(bolt)

        undo = clocks.install()
        DeliveryBolt.finish = finished  # type: ignore[method-assign]
        try:
            report = run_local(plan, resume=store.load(manifest))
        finally:
            DeliveryBolt.finish = finish  # type: ignore[method-assign]
            undo()
        ends = report.components["messages"].tasks[0].figures["ends"]
        tell("compares with the oracle")
        judged = check(*workload.parts(pace), ends, Path(out))
    assert clocks.began_s is not None
    own_s, all_s = (end - begin for end, begin in zip(ended[0], clocks.began_s, strict=True))
    parts = dict(clocks.seconds) | {"framework": own_s - sum(clocks.seconds.values()), "other threads": all_s - own_s}
    delivery = report.components["delivery"].tasks[0].figures
    return {
        **verdict(judged["exact"], judged["compared"], judged["compared_subscriptions"]),
        "workload": Path(folder).name,
        "subscriptions": workload.counts,
        "window": workload.window,
        "messages": messages,
        "batch": batch,
        "us_per_message": 1e6 * all_s / messages,
        "updates_per_message": {kind: count / messages for kind, count in sorted(clocks.updates.items())},
        "parts_us": {part: 1e6 * seconds / messages for part, seconds in sorted(parts.items())},
        "memory_bytes": resident[0],
        "memory": memory_of(report.as_dict()),
        "digest": delivery["digest"],
    }


if __name__ == "__main__":
    sys.exit(command.main(profile))
