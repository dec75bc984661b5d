"""Figure `routing` of `skyline`: which messages reach a query bolt at all, by location, by its signature, at best.

Nothing runs on Ray: the parts of the world, the signatures and the copies that distribution bolts have of them are
driven directly (`benchmarks.signatures`), for 4 to 32 query bolts and for growing numbers of subscriptions. By location
alone a message goes to the owner of its place; with signatures only if a rectangle there covers its cell (`+spatial`),
and if one there has a keyword of it (`+spatial+text`; `fine`: in a quadtree of 10 levels, not 6). The optimum is a
message sent only if it is a candidate of some subscription; one that is kept back makes the figure not exact. Messages
that were ended go the same ways as those that come.

Subscriptions take after messages, with 1 to 5 of their words. Their rectangles are the paper's (area 0.01 % to 1 % of
the world's) or a city's (0.1 to 0.5 degrees a side). The commonest words are left out, as stop words are.
"""

from typing import Any

import numpy as np

from benchmarks import signatures
from benchmarks.figures.sweeps import Asked, Report, all_exact, column
from benchmarks.resampled import resample_messages
from benchmarks.signatures import SPATIAL, TEXT
from benchmarks.workload import (
    WORLD,
    BooleanRecipe,
    Messages,
    boolean_subscriptions,
    changed,
    make_messages,
    sized_regions,
)
from distribution.signatures.warmup import warmup
from matching.model import SKYLINE, MessageBatch, SubscriptionTable

BOLTS = (4, 8, 16, 32)
#: With which the number of subscriptions varies.
_BOLTS = 16
_SHARES = (0.1, 0.2, 0.5, 1.0)
_MESSAGES = 20_000
_SOURCE = 100_000
REGIONS = ("paper", "city")
#: Quadtree levels of finer nodes: on the usual 6 they are ten times as wide as a city, on these as a cell.
_SPECS = {"+spatial": SPATIAL, "+spatial+text": TEXT, "+spatial+text, fine": TEXT._replace(levels=10)}


def figure(asked: Asked) -> Report:
    """Measure; fewer subscriptions are a tenth, a fifth and a half of those asked for."""
    warmup()
    count = asked.messages or _MESSAGES
    sizes = [max(1, round(asked.subscriptions * share)) for share in _SHARES]
    cells = dict.fromkeys([(size, _BOLTS) for size in sizes] + [(sizes[-1], bolts) for bolts in BOLTS])
    rows = {cell: {"subscriptions": cell[0], "query_bolts": cell[1], "copies": {}, "engines": {}} for cell in cells}
    for regions in REGIONS:
        messages, everybody = _workload(asked, count, regions)
        for size in sizes:
            table = everybody.take(np.arange(size))
            best = signatures.optimum(table, messages)
            for cell in (cell for cell in cells if cell[0] == size):
                measured = signatures.beside(table, messages, cell[1], _SPECS, best, asked.tell)
                rows[cell]["copies"][regions] = measured["held"] / size
                optimum = measured["optimum_per_message"]
                rows[cell]["engines"] |= {
                    f"{regions}, location": {"exact": True, "false_positive_share": 1.0 - optimum},
                    f"{regions}, at best": {"exact": True, "let_through_per_message": optimum},
                    **{f"{regions}, {name}": {**row, "mb": 1e-6 * row["bytes"]}
                       for name, row in measured["results"].items()},
                }  # fmt: skip
    every = list(rows.values())
    source = "synthetic" if asked.messages_from is None else "resampled"
    return {
        "messages": count, "subscriptions": asked.subscriptions, "source": source, "seed": asked.seed,
        "exact": all_exact(every), "x_label": "subscriptions", "x": sizes, "rows": every,
        "panels": _panels([rows[size, _BOLTS] for size in sizes], [rows[sizes[-1], bolts] for bolts in BOLTS]),
    }  # fmt: skip


def _workload(asked: Asked, messages: int, regions: str) -> tuple[MessageBatch, SubscriptionTable]:
    """Messages to route, and subscriptions that take after others of the same kind. O(all)."""
    cut = max(_SOURCE, messages)
    total = cut + messages
    recipe = BooleanRecipe(stop_words=False, regions="city" if regions == "city" else "mixed")
    if asked.messages_from is None:
        drawn = make_messages(total, asked.seed, recipe=recipe)
    else:
        drawn = resample_messages(asked.messages_from, total, asked.seed, WORLD)
    source = Messages(drawn.batch.take(np.arange(cut)), drawn.idf)
    table = boolean_subscriptions(source, asked.subscriptions, asked.seed, recipe=recipe)
    if regions == "paper":
        table = sized_regions(table, asked.seed)
    return drawn.batch.take(np.arange(cut, total)), changed(table, kind=np.full(len(table), SKYLINE, np.int8))


def _panels(by_size: list[Report], by_bolts: list[Report]) -> list[Report]:
    """What is sent, by number of subscriptions and of query bolts; what of it is useless; and what that takes."""
    few, all_of_them = f"{_BOLTS} query bolts", f"{by_size[-1]['subscriptions']:,} subscriptions"
    of_bolts: dict[str, Any] = {"x": list(BOLTS), "x_label": "query bolts"}
    sent, names = "let_through_per_message", list(by_size[0]["engines"])
    return [
        {"title": title, "y_label": label, "log": log, "series": column(rows, names, key)} | more
        for title, label, log, rows, key, more in (
            (few, "sent a message; by location 1", (True, False), by_size, sent, {}),
            (all_of_them, "sent a message; by location 1", (False, False), by_bolts, sent, of_bolts),
            (few, "false positives, share of what is sent", (True, False), by_size, "false_positive_share", {}),
            (few, "MB of signatures, all bolts", (True, True), by_size, "mb", {}),
        )
    ]
