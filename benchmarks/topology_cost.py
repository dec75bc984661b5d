"""What the topology costs: the bare engine against the whole topology on Ray, over the same messages.

    python -m benchmarks.topology_cost [--kind boolean] [--subscriptions N] [--messages N] [--ways ray_count,ray_two]

`bare` is `matching.alone` in this process, fed batches that lie in memory: the same room over the same window. The
others are the topology on Ray (`benchmarks.whole_way`) with a sink that only counts, its light components in one
actor, as `skyray run` has them on a small machine, with one query bolt (`ray_count`) or two (`ray_two`). All are timed
from when the subscriptions are in to the last update. Boolean subscriptions are picky, so that matching is work and
matches are few.
"""

import sys
from functools import partial
from time import perf_counter
from typing import Annotated, Any

from benchmarks import command
from benchmarks.cases import make_case
from benchmarks.command import Tell
from benchmarks.whole_way import Stream, compare, filled, named, on_ray, stream_of
from benchmarks.workload import NO_REMOVALS, WORLD, BooleanRecipe
from bolts.names import Digest, hash_names
from matching.alone import Alone
from matching.kinds import KINDS
from matching.model import SubscriptionTable, empty
from matching.warmup import warmup

_PICKY = BooleanRecipe(keywords=(2, 5), regions="small")
#: Query bolts of the ways on Ray.
_WAYS = {"ray_count": 1, "ray_two": 2}


def bare(stream: Stream) -> dict[str, Any]:
    """The room alone: the batches that are timed, and the digest of all it tells."""
    case, told, digest, begun = stream.case, [], Digest(), perf_counter()
    alone, nobody = Alone([case.kind], WORLD, case.window), empty(SubscriptionTable)
    for boundary in stream.boundaries:
        batch, ended = case.batch_of(boundary)
        if boundary.number == stream.loaded:
            begun = perf_counter()
        added = case.table if boundary.number == stream.joined else nobody
        told.append(alone.process(boundary, batch, added, NO_REMOVALS, ended).updates)
    us = 1e6 * (perf_counter() - begun) / stream.left
    messages = hash_names(named("m", case.messages.seq))
    everybody = hash_names(named(f"{case.kind.name}-", case.table.number))
    for updates in told:
        digest.add(updates, everybody[updates.number], messages[updates.seq])
    return {"us_per_message": us, "digest": digest.hex()}


def bench(
    subscriptions: Annotated[int, "how many"] = 1_000_000,
    messages: Annotated[int, "how many"] = 500_000,
    batch: Annotated[int, "messages between two boundaries"] = 5_000,
    kind: Annotated[str, "of the subscriptions: boolean, topk or skyline"] = "boolean",
    rounds: Annotated[int, "turns of each way"] = 3,
    seed: Annotated[int, "of the workload"] = 0,
    ways: Annotated[tuple[str, ...], "on Ray, the first of which is set beside the bare engine"] = tuple(_WAYS),
    window: Annotated[int | None, "messages in it; four batches, and 20,000 at least, by default"] = None,
    tell: Tell = print,
) -> dict[str, Any]:
    """`ways`: a row each as of `compare`; `share`: rate of the first on Ray by that of `bare`, `shares`: of turns."""
    warmup()
    tell("making the workload")
    row = KINDS.named(kind)
    recipe, window = _PICKY if row.stands == "box" else None, window or max(4 * batch, 20_000)
    stream = stream_of(make_case(row, subscriptions, messages, window, 1, seed, recipe=recipe, batch=batch), batch)
    facts = stream.case.facts | {"kind": kind, "timed": stream.left, "rounds": rounds}
    runs = {"bare": partial(bare, stream)}
    runs |= {name: partial(on_ray, stream, "hashing", _WAYS[name]) for name in ways}
    tell(f"loading {subscriptions:,} subscriptions into one bolt")
    judged, rows = compare(stream, filled(stream), runs, rounds, tell)
    turns = zip(rows["bare"]["turns_us"], rows[ways[0]]["turns_us"], strict=True)
    share = rows[ways[0]]["messages_per_s"] / rows["bare"]["messages_per_s"]
    return {"workload": facts, "ways": rows, "share": share, "shares": [a / b for a, b in turns], **judged}


if __name__ == "__main__":
    from benchmarks import topology_cost  # actors cannot import classes of the main script

    sys.exit(command.main(topology_cost.bench))
