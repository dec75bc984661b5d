"""Scaling of the whole topology: busiest task, all work and bytes at several numbers of query bolts.

    python -m benchmarks.scaling --kinds boolean,topk --subscriptions 1000000 --bolts 1,20 --messages 10000 --rounds 3
    python -m benchmarks.scaling --kinds boolean --subscriptions 1000000 --bolts 1,4,16 --weak 1
    python -m benchmarks.scaling --kinds skyline --picture benchmarks/results/scaling-skyline.png ...

Processor time is booked to the task that spends it, in one process (`benchmarks.routers`), so that a busy machine
changes figures little; the busiest task of the whole topology sets the pace. There are as many tasks beside the query
bolts as `skyray run` chooses. All must tell what one query bolt tells, which is checked.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from benchmarks import command, routers
from benchmarks.command import Tell
from benchmarks.figures import drawing

_KEPT = ("router", "query_bolts", "beside", "us_per_message", "slowest", "busiest_us", "busiest_parts_us", "query_us",
         "all_us", "work_us", "bytes_per_message", "sent_per_message", "turns_us", "same_updates")  # fmt: skip


def bench(
    kinds: Annotated[tuple[str, ...], "one after the other"] = ("topk", "skyline", "boolean"),
    subscriptions: Annotated[int, "of each kind, with --weak 1 for each query bolt"] = 200_000,
    bolts: Annotated[tuple[int, ...], "query bolts; the first are what the others are set beside"] = (1, 4, 20),
    messages: Annotated[int, "that are timed"] = 10_000,
    window: Annotated[int | None, "as of `benchmarks.routers`"] = None,
    batch: Annotated[int, "messages between two boundaries"] = 1_000,
    by: Annotated[tuple[str, ...], "routers"] = ("hashing",),
    weak: Annotated[int, "1: as many subscriptions a query bolt, whatever their number"] = 0,
    rounds: Annotated[int, "turns of each"] = 3,
    seed: Annotated[int, "of the workload"] = 0,
    picture: Annotated[str, "PNG to draw, too"] = "",
    tell: Tell = print,
) -> dict[str, Any]:
    """A row for each kind, router and number of query bolts.

    `times` is how much faster the busiest task is than with the first number, `linear` that by how many more query
    bolts there are, `all_work` how much more work there is in all; `linear` of weak scaling is that of the rate.
    """
    sizes = [(subscriptions * number, (number,)) for number in bolts] if weak else [(subscriptions, bolts)]
    rows, judged = [], []
    for size, numbers in sizes:
        report = routers.bench(
            kinds, size, window, messages, batch, numbers, (), by, rounds=rounds, seed=seed, tell=tell
        )
        for one in report["measured"]:
            judged.append({name: one[name] for name in ("kind", "exact", "compared", "compared_subscriptions")})
            rows += [
                {"kind": one["kind"], "subscriptions": size, **{name: row[name] for name in _KEPT}}
                for row in one["rows"]
            ]
    for row in rows:
        base = next(one for one in rows if (one["kind"], one["router"]) == (row["kind"], row["router"]))
        row["times"], more = base["us_per_message"] / row["us_per_message"], row["query_bolts"] / base["query_bolts"]
        row["linear"] = row["times"] / (1 if weak else more)
        row["all_work"] = row["all_us"] / base["all_us"]
    report = {"weak": bool(weak), "rows": rows, "judged": judged, "exact": all(one["exact"] for one in judged)}
    report |= {"x_label": "query bolts", "x": list(bolts), "panels": _panels(rows, bolts, bool(weak))}
    if picture:
        drawing.draw(report, Path(picture))
    return report


def _panels(rows: Sequence[Mapping[str, Any]], bolts: Sequence[int], weak: bool) -> list[dict[str, Any]]:
    """Panels of `benchmarks.figures.drawing`: rate and work by query bolts, a line for each kind and router."""
    found = {(f"{row['kind']}, {row['router']}", row["query_bolts"]): row for row in rows}
    names = list(dict.fromkeys(name for name, _ in found))

    def lines(figure: str) -> dict[str, list[float]]:
        return {name: [found[name, number][figure] for number in bolts] for name in names}

    rate = {"linear": [1.0 if weak else number / bolts[0] for number in bolts]} | lines("times")
    return [
        {"title": "rate of the busiest task", "y_label": f"times that of {bolts[0]}", "series": rate},
        {"title": "work of all tasks", "y_label": f"times that of {bolts[0]}", "series": lines("all_work")},
    ]


if __name__ == "__main__":
    sys.exit(command.main(bench))
