"""What the topology costs: the bare engine against the whole topology on Ray, over the same messages.

    python -m benchmarks.topology_cost [--kind boolean] [--subscriptions N] [--messages N] [--batch N] [--rounds 3]
                                       [--ways ray_count,ray_two,ray_spread,ray_parquet]

A is `matching.alone` in this process, fed batches that lie in memory: the same room over the same window. B is the
topology on Ray (`benchmarks.whole_way`) with one query bolt and a sink that only counts, its light components in one
actor (`ray_count`) as `skyray run` has them on a small machine or each in its own (`ray_spread`), or with two query
bolts (`ray_two`). All are timed from when the subscriptions are in to the last update, in turns, and must tell the same
as what was checked. C is B with the Parquet sink. Boolean subscriptions are picky, so that matching is work and matches
are few. What each actor had of the processors is reported beside the rates.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import psutil
import ray
from ray.util import list_named_actors

from benchmarks import command
from benchmarks.cases import Case, make_case
from benchmarks.command import Tell
from benchmarks.whole_way import Stream, checked, message_names, plan_of, stream_of, subscription_names
from benchmarks.workload import NO_REMOVALS, WORLD, BooleanRecipe
from bolts.names import Digest, hash_names
from matching.alone import Alone
from matching.kinds import KINDS
from matching.model import MessageBatch, Names, SubscriptionTable, concatenate, empty
from matching.warmup import warmup
from matching.window import Boundary, Window
from topology.core.metrics import RunReport, Snapshot
from topology.core.runner import run_ray
from topology.running import LIGHT

_PICKY = BooleanRecipe(keywords=(2, 5), regions="small")
#: Ways on Ray: sink, which components share an actor, query bolts.
_WAYS: dict[str, tuple[str, tuple[tuple[str, ...], ...], int]] = {
    "ray_count": ("count", (LIGHT,), 1),
    "ray_two": ("count", (LIGHT,), 2),
    "ray_spread": ("count", (), 1),
    "ray_parquet": ("parquet", (LIGHT,), 1),
}


class ActorWatch:
    """Processor time of every actor's process, by its name such as `query:0`, and of this one as `driver`.

    Called at every snapshot of a run; asks each actor once for its process id, by Ray's names, and the operating system
    for the rest.
    """

    def __init__(self):
        #: Of each process, batches acknowledged and seconds on a processor.
        self.samples: dict[str, list[tuple[int, float]]] = {}
        self._asked: dict[str, Any] | None = None
        self._processes = {"driver": psutil.Process()}

    def __call__(self, snapshot: Snapshot) -> None:
        self._find()
        for name, process in self._processes.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                self.samples.setdefault(name, []).append((snapshot.acknowledged, times.user + times.system))

    def cpu_us(self, first_batch: int, batch: int) -> dict[str, float]:
        """Microseconds a message that each process was on a processor since batch `first_batch` was acknowledged."""
        used = {}
        for name, samples in self.samples.items():
            since = [sample for sample in samples if sample[0] >= first_batch]
            messages = (since[-1][0] - since[0][0]) * batch if since else 0
            if messages:
                used[name] = 1e6 * (since[-1][1] - since[0][1]) / messages
        return used

    def _find(self) -> None:
        if self._asked is None:
            self._asked = {}
            actors: list[Any] = list_named_actors(all_namespaces=True)
            for actor in actors:
                if actor["namespace"].startswith("skyray-"):
                    with contextlib.suppress(ValueError):  # it has gone since it was listed
                        handle = ray.get_actor(actor["name"], namespace=actor["namespace"])
                        self._asked[actor["name"]] = handle.__ray_call__.remote(lambda _actor: os.getpid())
        for name, question in list(self._asked.items()):
            if ray.wait([question], timeout=0)[0]:
                self._processes[name] = psutil.Process(ray.get(question))
                del self._asked[name]


def stream_over(kind: str, subscriptions: int, messages: int, batch: int, seed: int) -> Stream:
    """So many messages behind a window of four batches and 20,000 messages at least, if the kind has one."""
    row, window = KINDS.named(kind), max(4 * batch, 20_000)
    recipe = _PICKY if row.stands == "box" else None
    return stream_of(make_case(row, subscriptions, messages, window, 1, seed, recipe=recipe, batch=batch), batch)


def bare(stream: Stream) -> tuple[float, int, str]:
    """The room alone: seconds for the batches that are timed, and how many updates in all, and their digest."""
    alone = Alone([stream.case.kind], WORLD, stream.case.window)
    begun, told, nobody = perf_counter(), [], empty(SubscriptionTable)
    for boundary in stream.boundaries:
        batch, ended = stream.batch(boundary.number), stream.ended(boundary.number)
        if boundary.number == stream.loaded:
            begun = perf_counter()
        added = stream.case.table if boundary.number == stream.joined else nobody
        told.append(alone.process(boundary, batch, added, NO_REMOVALS, ended).updates)
    seconds, digest = perf_counter() - begun, Digest()
    names, everybody = hash_names(message_names(stream.messages)), hash_names(subscription_names(stream.case.table))
    for updates in told:
        digest.add(updates, everybody[updates.number], names[updates.seq])
    return seconds, sum(map(len, told)), digest.hex()


def run_over(
    batches: Sequence[tuple[Boundary, MessageBatch, Names]], table: SubscriptionTable, window: Window, sink: str
) -> RunReport:
    """Run the topology on Ray over batches that lie in memory, for `benchmarks.against`."""
    boundaries, parts, _ = zip(*batches, strict=True)
    messages, kind = concatenate(list(parts)), KINDS[int(table.kind[0])]
    case = Case(kind, messages, table, window, 0, len(messages), len(parts[0]), {})
    return _on_ray(Stream(case, messages, list(boundaries), 0), sink, (LIGHT,), asking=None)


def _on_ray(
    stream: Stream, sink: str, together: tuple[tuple[str, ...], ...], bolts: int = 1, watch: Callable | None = None,
    **how: Any,
) -> RunReport:  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="skyray-cost-") as folder:
        plan = plan_of(stream, "hashing", bolts, folder, sink, **how)
        return run_ray(plan, on_progress=watch, together=together)


def seconds_of(report: RunReport) -> float:
    """From when the subscriptions are in to the end."""
    return report.elapsed_s - report.components["messages"].tasks[0].figures["loaded_s"]


def bench(
    subscriptions: Annotated[int, "how many"] = 1_000_000,
    messages: Annotated[int, "how many"] = 500_000,
    batch: Annotated[int, "messages between two boundaries"] = 5_000,
    kind: Annotated[str, "of the subscriptions: boolean, topk or skyline"] = "boolean",
    rounds: Annotated[int, "turns of each way"] = 3,
    seed: Annotated[int, "of the workload"] = 0,
    ways: Annotated[tuple[str, ...], "on Ray, the first of which is set beside the bare engine"] = tuple(_WAYS),
    tell: Tell = print,
) -> dict[str, Any]:
    """Measure bare engine, topology and topology with files, in turns.

    Returns
    -------
    dict
        Medians in messages/s for `bare` and each way; `share` = the first way / bare; `shares` of the turns; `cpu_us` a
        message by way and actor; what was checked, and `same_updates`.
    """
    warmup()
    tell("making the workload, and checking what is told")
    stream = stream_over(kind, subscriptions, messages, batch, seed)
    judged, digest = checked(stream)
    timed = len(stream.messages) - stream.boundaries[stream.loaded].first_seq
    seconds: dict[str, list[float]] = {name: [] for name in ("bare", *ways)}
    cpu_us: dict[str, dict[str, list[float]]] = {name: {} for name in ways}
    counts, digests = set(), {digest}
    for turn in range(rounds):
        for name, mine in seconds.items():
            if name == "bare":
                taken, updates, digest = bare(stream)
            else:
                sink, together, bolts = _WAYS[name]
                watch = ActorWatch()
                report = _on_ray(stream, sink, together, bolts, watch)
                told = report.components["delivery"].tasks[0].figures
                taken, updates, digest = seconds_of(report), sum(told["updates"].values()), told["digest"]
                for actor, spent in watch.cpu_us(stream.loaded, batch).items():
                    cpu_us[name].setdefault(actor, []).append(spent)
            mine.append(taken)
            counts.add(updates)
            digests.add(digest)
            tell(f"turn {turn + 1} of {rounds}: {name} {timed / taken:,.0f} messages/s, {updates:,} updates")
    rates = {name: timed / median(values) for name, values in seconds.items()}
    same = len(counts) == len(digests) == 1
    return {
        "workload": stream.case.facts | {"kind": kind, "timed": timed, "rounds": rounds, "updates": max(counts)},
        "messages_per_s": rates,
        "share": rates[ways[0]] / rates["bare"],
        "shares": [bare_s / ray_s for bare_s, ray_s in zip(seconds["bare"], seconds[ways[0]], strict=True)],
        "cpu_us": {name: {actor: median(spent) for actor, spent in used.items()} for name, used in cpu_us.items()},
        "same_updates": same,
        **(judged | {"exact": judged["exact"] and same}),
    }


if __name__ == "__main__":
    from benchmarks import topology_cost  # actors cannot import classes of the main script

    sys.exit(command.main(topology_cost.bench))
