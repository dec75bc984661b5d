"""Figure `routing` of `skyline`: which messages reach a query bolt at all, by location, by its signature, at best.

Nothing runs on Ray: the parts of the world, the signatures and the copies that distribution bolts have of them are
driven directly, for 4 to 32 query bolts and for growing numbers of subscriptions. By location alone a message goes to
the owner of its place; with signatures only if a rectangle there covers its cell (`+spatial`), and if one there has a
keyword of it (`+spatial+text`; `fine`: in a quadtree of 10 levels, not 6). The optimum is a message sent only if it is
a candidate of some subscription, by the index of `matching.skyline`, which is held against plain Python first; a
candidate that is kept back makes the figure not exact. Messages that were ended go the same ways as those that come.

Subscriptions take after messages, with 1 to 5 of their words. Their rectangles are the paper's (area 0.01 % to 1 % of
the world's) or a city's (0.1 to 0.5 degrees a side). The commonest words are left out, as stop words are. Read on in
`distribution.signatures.signature`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks.figures.drawing import pyplot, write
from benchmarks.resampled import resample_messages
from benchmarks.workload import WORLD, BooleanRecipe, Messages, boolean_subscriptions, make_messages
from distribution.location import LocationRouter
from distribution.signatures.claims import claims_of
from distribution.signatures.signature import QuerySignature, SignatureBoard, SignatureSpec
from distribution.signatures.warmup import warmup
from matching.errors import ConfigError
from matching.model import SKYLINE, MessageBatch, SubscriptionTable
from matching.naive import common_terms, messages_of, skyline_scores, subscriptions_of
from matching.skyline.subscriptions import SkylineSubscriptions

Tell = Callable[[str], None]

BOLTS = (4, 8, 16, 32)
#: With which the number of subscriptions varies.
_BOLTS = 16
_SHARES = (0.1, 0.2, 0.5, 1.0)
_MESSAGES = 20_000
_SOURCE = 100_000
_BATCH = 2_000
#: How many messages and subscriptions plain Python looks at.
_CHECKED = (200, 500)
#: Smallest and largest share of the world's area, and degrees a side.
_AREA, _CITY = (0.0001, 0.01), (0.1, 0.5)
REGIONS = ("paper", "city")
#: Quadtree levels of finer nodes: on the usual 6 they are ten times as wide as a city, on these as a cell.
_FINE_LEVELS = 10
_SIGNED = ("+spatial", "+spatial+text", "+spatial+text, fine")
_WITHOUT_STOP_WORDS = BooleanRecipe(stop_words=False)


class Workload(NamedTuple):
    """Messages to route and the subscriptions, of which smaller workloads take the first."""

    messages: MessageBatch
    table: SubscriptionTable


class Routed(NamedTuple):
    """With one kind of signature: `sent` bool[messages], bytes of the filters, copies of a subscription, and time."""

    sent: np.ndarray
    signature_bytes: int
    copies: float
    build_s: float
    us_per_message: float


def figure(
    out: Path,
    subscriptions: int = 1_000_000,
    messages: int | None = None,
    seed: int = 0,
    messages_from: str | None = None,
    on_progress: Tell | None = None,
) -> dict[str, Any]:
    """Measure and draw; writes `skyline-routing.json` and `skyline-routing.png` into `out`.

    Parameters
    ----------
    subscriptions : int     the most; fewer are a tenth, a fifth and a half of it
    messages : int          messages that are routed (20,000)
    messages_from : str     ETL output directory whose messages are resampled; synthetic ones without

    Raises
    ------
    ConfigError
        If no message is a candidate of any subscription, or matplotlib is not installed.
    """
    draw_with = pyplot()
    tell = on_progress or (lambda _: None)
    warmup()
    count = messages or _MESSAGES
    sizes = [max(1, round(subscriptions * share)) for share in _SHARES]
    rows, exact = [], True
    for regions in REGIONS:
        work = make_workload(subscriptions, count, seed, regions, messages_from)
        exact = checked(work) and exact
        for queries in sizes:
            some = Workload(work.messages, work.table.take(np.arange(queries)))
            tell(f"{regions}: candidates of {queries:,} subscriptions")
            useful = candidates(some)
            if queries == sizes[-1] and not useful.any():
                raise ConfigError("no message is a candidate of any subscription: take more of both, or another seed")
            for bolts in BOLTS if queries == sizes[-1] else (_BOLTS,):
                row = _row(regions, queries, bolts, route(some, bolts), useful)
                tell(_told(row))
                rows.append(row)
                exact = row["lost"] == 0 and exact
    report = {
        "figure": "routing",
        "messages": count,
        "subscriptions": subscriptions,
        "source": "synthetic" if messages_from is None else "resampled",
        "seed": seed,
        "exact": exact,
        "x_label": "subscriptions",
        "x": sizes,
        "panels": _panels(rows, sizes),
        "rows": rows,
    }
    write(draw_with, report, out / "skyline-routing")
    tell(f"written: {out}/skyline-routing.json and .png")
    return report


def make_workload(count: int, messages: int, seed: int, regions: str, messages_from: str | None = None) -> Workload:
    """Draw messages to route, and subscriptions that take after others of the same kind. O(count)."""
    total = max(_SOURCE, messages) + messages
    if messages_from is None:
        drawn = make_messages(total, seed, recipe=_WITHOUT_STOP_WORDS)
    else:
        drawn = resample_messages(messages_from, total, seed, WORLD)
    cut = total - messages
    source = Messages(drawn.batch.take(np.arange(cut)), drawn.idf)
    like = boolean_subscriptions(source, count, seed, recipe=_WITHOUT_STOP_WORDS)
    rng = np.random.default_rng([seed, 8])
    if regions == "paper":
        side = np.sqrt(rng.uniform(*_AREA, count))
        width, height = side * (WORLD.east - WORLD.west), side * (WORLD.north - WORLD.south)
    else:
        width, height = rng.uniform(*_CITY, (2, count))
    lon, lat = (like.region[:, 0] + like.region[:, 2]) / 2, (like.region[:, 1] + like.region[:, 3]) / 2
    west, east = np.maximum(lon - width / 2, WORLD.west), np.minimum(lon + width / 2, WORLD.east)
    south, north = np.maximum(lat - height / 2, WORLD.south), np.minimum(lat + height / 2, WORLD.north)
    columns: Any = like._asdict() | {"region": np.stack([west, south, east, north], axis=1)}
    columns |= {"kind": np.full(count, SKYLINE, np.int8)}
    return Workload(drawn.batch.take(np.arange(cut, total)), SubscriptionTable(**columns))


def candidates(work: Workload) -> np.ndarray:
    """bool[messages]: whether a message is a candidate of any subscription. O(pairs)."""
    index = SkylineSubscriptions(WORLD)
    index.insert(work.table)
    found = np.zeros(len(work.messages), np.bool_)
    for rows in _batches(len(work.messages)):
        found[rows[0] + np.unique(index.match(work.messages.take(rows)).row)] = True
    return found


def checked(work: Workload) -> bool:
    """Whether the index finds the candidate pairs that plain Python finds, for a few subscriptions and messages."""
    few = Workload(
        work.messages.take(np.arange(min(_CHECKED[0], len(work.messages)))),
        work.table.take(np.arange(min(_CHECKED[1], len(work.table)))),
    )
    index = SkylineSubscriptions(WORLD)
    slots = index.insert(few.table)
    hits = index.match(few.messages)
    number = dict(zip(slots.tolist(), few.table.number.tolist(), strict=True))
    found = {(number[slot], row) for slot, row in zip(hits.slot.tolist(), hits.row.tolist(), strict=True)}
    messages = list(messages_of(few.messages))
    wanted = {
        (one.number, row)
        for one in subscriptions_of(few.table)
        for row, message in enumerate(messages)
        if common_terms(one, message) and skyline_scores(one, message) is not None
    }
    return found == wanted


def route(work: Workload, bolts: int) -> dict[str, Routed]:
    """Send every message its ways, by each kind of signature; empty for the kind `location`, which sends all."""
    batch = work.messages
    router = LocationRouter(bolts, WORLD, batch.x, batch.y)
    domains = [router.domain_of(task) for task in range(bolts)]
    held = [work.table.take(np.flatnonzero(router.held_by(work.table, task))) for task in range(bolts)]
    cut = _batches(len(batch))
    owned = [[router.rows_for(SKYLINE, batch.take(rows), task) for task in range(bolts)] for rows in cut]
    routed = {}
    for name, spec in _specs().items():
        board, build_s = SignatureBoard(spec, domains), 0.0
        for task, table in enumerate(held):
            claims, signature = claims_of(table), QuerySignature(spec, domains[task], task)
            begun = perf_counter()
            signature.change(claims, claims.take(np.zeros(0, np.int64)))
            patch = signature.patch(0, noted=True)
            build_s += perf_counter() - begun
            assert patch is not None, "a patch is due where something was noted"
            board.apply(patch)
        sent = np.zeros(len(batch), np.bool_)
        begun = perf_counter()
        for rows, mine in zip(cut, owned, strict=True):
            part = batch.take(rows)
            for task in range(bolts):
                own = mine[task]
                assert own is not None
                sent[rows[0] + board.wanted(part, own, task)] = True
        us = 1e6 * (perf_counter() - begun) / len(batch)
        size = sum(replica.nbytes for replica in board.replicas)
        routed[name] = Routed(sent, size, sum(map(len, held)) / len(work.table), build_s, us)
    return routed


def _specs() -> dict[str, SignatureSpec]:
    kinds = SignatureSpec(WORLD, text=False), SignatureSpec(WORLD), SignatureSpec(WORLD, levels=_FINE_LEVELS)
    return dict(zip(_SIGNED, kinds, strict=True))


def _batches(count: int) -> list[np.ndarray]:
    return [np.arange(first, min(first + _BATCH, count)) for first in range(0, count, _BATCH)]


def _row(regions: str, queries: int, bolts: int, routed: dict[str, Routed], useful: np.ndarray) -> dict[str, Any]:
    everything = Routed(np.ones(useful.shape[0], np.bool_), 0, routed[_SIGNED[0]].copies, 0.0, 0.0)
    best = int(useful.sum())
    modes = {}
    for name, (sent, size, _, build_s, us) in ({"location": everything} | routed).items():
        modes[name] = {
            "sent_per_message": float(sent.mean()),
            "false_positive_share": float((sent & ~useful).sum() / max(1, sent.sum())),
            "kept_back_of_useless": float((~sent & ~useful).sum() / max(1, useful.shape[0] - best)),
            "lost": int((useful & ~sent).sum()),
            "signature_bytes": size,
            "build_s": build_s,
            "us_per_message": us,
        }
    return {
        "regions": regions,
        "subscriptions": queries,
        "query_bolts": bolts,
        "optimum_per_message": float(useful.mean()),
        "lost": sum(mode["lost"] for mode in modes.values()),
        "copies_per_subscription": everything.copies,
        "modes": modes,
    }


def _told(row: dict[str, Any]) -> str:
    sent = ", ".join(f"{name} {mode['sent_per_message']:.3f}" for name, mode in row["modes"].items())
    return (
        f"{row['regions']}, {row['subscriptions']:,} subscriptions, {row['query_bolts']} bolts: sent a message {sent}, "
        f"at best {row['optimum_per_message']:.3f}; {row['modes'][_SIGNED[1]]['signature_bytes'] / 1e6:.1f} MB"
    )


def _panels(rows: Sequence[dict[str, Any]], sizes: list[int]) -> list[dict[str, Any]]:
    by_size = [row for row in rows if row["query_bolts"] == _BOLTS]
    by_bolts = [row for row in rows if row["subscriptions"] == sizes[-1]]

    def series(some: Sequence[dict[str, Any]], key: str, modes: Sequence[str], scale: float = 1.0):
        lines = {}
        for regions in REGIONS:
            mine = [row for row in some if row["regions"] == regions]
            for mode in modes:
                lines[f"{regions}, {mode}"] = [row["modes"][mode][key] * scale for row in mine]
        return lines

    def sent(some: Sequence[dict[str, Any]]):
        lines = series(some, "sent_per_message", _SIGNED)
        for regions in REGIONS:
            lines[f"{regions}, at best"] = [row["optimum_per_message"] for row in some if row["regions"] == regions]
        return {
            "location": [row["modes"]["location"]["sent_per_message"] for row in some][: len(lines["city, at best"])]
        } | lines

    at_bolts = {"x": list(BOLTS), "x_label": "query bolts", "log": (False, False)}
    at_sizes = {"log": (True, False)}
    return [
        {"title": f"{_BOLTS} query bolts", "y_label": "sent a message", "series": sent(by_size)} | at_sizes,
        {"title": f"{sizes[-1]:,} subscriptions", "y_label": "sent a message", "series": sent(by_bolts)} | at_bolts,
        {
            "title": f"{_BOLTS} query bolts",
            "y_label": "false positives, share of what is sent",
            "series": series(by_size, "false_positive_share", ("location", *_SIGNED)),
        }
        | at_sizes,
        {
            "title": f"{_BOLTS} query bolts",
            "y_label": "MB of signatures, all bolts",
            "series": series(by_size, "signature_bytes", _SIGNED, 1e-6),
            "log": (True, True),
        },
    ]
