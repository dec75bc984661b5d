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
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Annotated, Any

import psutil
import ray
from ray.util import list_named_actors

from benchmarks import command
from benchmarks.cases import Case, make_case
from benchmarks.command import Tell
from benchmarks.whole_way import (
    Stream,
    compare,
    digest_of,
    message_names,
    on_ray,
    seconds_of,
    stream_of,
    subscription_names,
)
from benchmarks.workload import NO_REMOVALS, WORLD, BooleanRecipe
from bolts.names import Digest, hash_names
from matching.alone import Alone
from matching.kinds import KINDS
from matching.model import MessageBatch, Names, SubscriptionTable, concatenate, empty
from matching.warmup import warmup
from matching.window import Boundary, Window
from topology.core.metrics import RunReport, Snapshot
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


def bare(stream: Stream) -> dict[str, Any]:
    """The room alone: the batches that are timed, and the digest of all it tells."""
    alone, table = Alone([stream.case.kind], WORLD, stream.case.window), stream.case.table
    begun, told, nobody = perf_counter(), [], empty(SubscriptionTable)
    for boundary in stream.boundaries:
        batch, ended = stream.case.batch_of(boundary)
        if boundary.number == stream.loaded:
            begun = perf_counter()
        added = table if boundary.number == stream.joined else nobody
        told.append(alone.process(boundary, batch, added, NO_REMOVALS, ended).updates)
    seconds, digest = perf_counter() - begun, Digest()
    names, everybody = hash_names(message_names(stream.case.messages)), hash_names(subscription_names(table))
    for updates in told:
        digest.add(updates, everybody[updates.number], names[updates.seq])
    return {"us_per_message": 1e6 * seconds / stream.left, "digest": digest.hex(), "updates": sum(map(len, told))}


def run_over(
    batches: Sequence[tuple[Boundary, MessageBatch, Names]], table: SubscriptionTable, window: Window, sink: str
) -> RunReport:
    """Run the topology on Ray over batches that lie in memory, for `benchmarks.against`."""
    boundaries, parts, _ = zip(*batches, strict=True)
    messages, kind = concatenate(list(parts)), KINDS[int(table.kind[0])]
    case = Case(kind, messages, table, window, 0, len(messages), len(parts[0]), {})
    return on_ray(Stream(case, list(boundaries), 0), sink=sink, asking=None)


def watched(stream: Stream, way: str) -> dict[str, Any]:
    """A run on Ray in one of the ways, with what each of its actors had of the processors."""
    sink, together, bolts = _WAYS[way]
    watch = ActorWatch()
    report = on_ray(stream, "hashing", bolts, sink, together, watch)
    updates = sum(report.components["delivery"].tasks[0].figures["updates"].values())
    row = {"us_per_message": 1e6 * seconds_of(report) / stream.left, "digest": digest_of(report)}
    return row | {"updates": updates, "cpu_us": watch.cpu_us(stream.loaded, stream.case.batch)}


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
        `ways`: of `bare` and the others what `benchmarks.whole_way.compare` says, with `updates`, and `cpu_us` a
        message by actor; `share` = rate of the first way / that of bare; `shares` of the turns; what was checked.
    """
    warmup()
    tell("making the workload, and checking what is told")
    stream = stream_over(kind, subscriptions, messages, batch, seed)
    runs = {"bare": partial(bare, stream)} | {name: partial(watched, stream, name) for name in ways}
    judged, rows = compare(stream, runs, rounds, tell)
    alone, first = rows["bare"], rows[ways[0]]
    return {
        "workload": stream.case.facts | {"kind": kind, "timed": stream.left, "rounds": rounds},
        "ways": rows,
        "share": first["messages_per_s"] / alone["messages_per_s"],
        "shares": [bare_us / ray_us for bare_us, ray_us in zip(alone["turns_us"], first["turns_us"], strict=True)],
        **judged,
    }


if __name__ == "__main__":
    from benchmarks import topology_cost  # actors cannot import classes of the main script

    sys.exit(command.main(topology_cost.bench))
