"""Each way through LFilter on four groups of messages: points and rectangles, short texts and long ones.

`python -m benchmarks.lfilter --subscriptions 200000` prints, for each group, messages a second of the trie alone, of
the quadtree alone, of LFilter with each filter and verification forced, and of LFilter as it chooses. The constants in
`matching.boolean.engines.lfilter_cost` are right when the last is about the best of the others in every row.

Subscriptions are those of `benchmarks.workload`. Short texts are its messages; a long text is the words of 15 to 120
messages together. A rectangle has a side of 0.01 % to 10 % of the world's width, log-uniform. As in the paper (section
6), which has 6 to 20 and 100 to 1,000 tokens; how large its rectangles are it does not say.
"""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from time import thread_time as now

import numpy as np

from benchmarks.workload import WORLD, Messages, boolean_subscriptions, make_messages
from matching.boolean.engine import BooleanEngine
from matching.boolean.engines.lfilter import FILTERS, VERIFICATIONS, LFilter
from matching.boolean.engines.mbr_trie import STRATEGIES, MbrTrie
from matching.boolean.engines.pt_quadtree import PtQuadtree
from matching.model import MessageBatch

GROUPS = ("point_short", "point_long", "range_short", "range_long")
#: Name of a way to filter and verify of LFilter.
WAYS = (("cheapest", "cheapest"), ("trie", "cheapest"), ("quadtree", "direct"), ("quadtree", "prune"))
_PARTS, _CHOOSING = ("mbr_trie cheapest", "pt_quadtree"), "lfilter cheapest/cheapest"
_PARTS_OF_LONG = (15, 120)
#: Messages that subscriptions take after, and others that long texts are made of.
_HISTORY, _FRESH = 200_000, 20_000
#: Long messages take so many times as long; so many times fewer are matched.
_LONGER = 8


def message_groups(made: MessageBatch, count: int, seed: int) -> dict[str, MessageBatch]:
    """`count` messages of each group."""
    rng = np.random.default_rng([seed, 7])
    short = made.take(np.arange(count))
    points = {"short": short, "long": _with_long_texts(made, short, rng)}
    side = (WORLD.east - WORLD.west) * 10.0 ** rng.uniform(-4.0, -1.0, count)
    groups = {}
    for length, batch in points.items():
        groups[f"point_{length}"] = batch
        box = {
            "west": np.maximum(batch.west - side / 2, WORLD.west),
            "south": np.maximum(batch.south - side / 2, WORLD.south),
            "east": np.minimum(batch.west + side / 2, WORLD.east),
            "north": np.minimum(batch.south + side / 2, WORLD.north),
        }
        groups[f"range_{length}"] = _changed(batch, **box)
    return {name: groups[name] for name in GROUPS}


def _with_long_texts(made: MessageBatch, batch: MessageBatch, rng: np.random.Generator) -> MessageBatch:
    """The same places, each with the terms of many messages."""
    texts = []
    for pieces in rng.integers(*_PARTS_OF_LONG, len(batch)):
        rows = rng.integers(0, len(made), pieces)
        texts.append(np.unique(np.concatenate([_terms(made, row) for row in rows])))
    offsets = np.cumsum([0, *(text.shape[0] for text in texts)])
    terms = np.concatenate(texts).astype(np.int32)
    return _changed(batch, term_offsets=offsets, terms=terms, weights=np.ones(terms.shape[0], np.float32))


def _changed(batch: MessageBatch, **columns: np.ndarray) -> MessageBatch:
    return MessageBatch(**{**batch._asdict(), **columns})  # _replace counts messages, not columns


def _terms(made: MessageBatch, row: int) -> np.ndarray:
    return made.terms[made.term_offsets[row] : made.term_offsets[row + 1]]


def messages_per_s(
    ways: dict[str, Callable[[], BooleanEngine]], batch: MessageBatch, rounds: int
) -> tuple[dict[str, float], dict[str, int]]:
    """Median of the rounds, in processor time, and how many pairs matched, by way; the ways take turns. And how fast
    LFilter is against the better of its parts, round by round.

    Each way goes over the batch once before it is timed, so that all find the caches as full of their own arrays.
    """
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    matched = {}
    for _ in range(rounds):
        for way, chosen in ways.items():
            engine = chosen()
            engine.match(batch)
            begun = now()
            matched[way] = engine.match(batch).matched
            seconds[way].append(now() - begun)
    rates = {way: len(batch) / median(times) for way, times in seconds.items()}
    better = max(_PARTS, key=lambda way: rates[way])
    # of one round each, so that both had the same machine
    pairs = zip(seconds[better], seconds[_CHOOSING], strict=True)
    rates["lfilter against the better part"] = median(part / whole for part, whole in pairs)
    return rates, matched


def run(subscriptions: int, messages: int, rounds: int, seed: int) -> dict[str, dict[str, float]]:
    """Messages a second by group and way; every way must find the same number of pairs."""
    made = make_messages(_HISTORY + max(_FRESH, messages), seed)
    history = Messages(made.batch.take(np.arange(_HISTORY)), made.idf)
    table = boolean_subscriptions(history, subscriptions, seed)
    groups = message_groups(made.batch.take(np.arange(_HISTORY, len(made.batch))), messages, seed)
    trie, quadtree, both = MbrTrie(WORLD), PtQuadtree(WORLD), LFilter(WORLD)
    for engine in (trie, quadtree, both):
        engine.insert(table)

    def probing(strategy: str) -> BooleanEngine:
        trie.strategy = STRATEGIES.index(strategy)
        return trie

    def choosing(filter_by: str, verify_by: str) -> BooleanEngine:
        both.filter_by, both.verify_by = FILTERS.index(filter_by), VERIFICATIONS.index(verify_by)
        return both

    ways: dict[str, Callable[[], BooleanEngine]] = {f"mbr_trie {name}": partial(probing, name) for name in STRATEGIES}
    ways["pt_quadtree"] = lambda: quadtree
    ways |= {f"lfilter {by}/{verify}": partial(choosing, by, verify) for by, verify in WAYS}
    figures: dict[str, dict[str, float]] = {}
    for name, batch in groups.items():
        short = name.endswith("short")
        row, matched = messages_per_s(ways, batch if short else batch.take(np.arange(len(batch) // _LONGER)), rounds)
        if len(set(matched.values())) != 1:
            raise AssertionError(f"{name}: ways found different numbers of pairs: {matched}")
        both.choices[:] = 0
        choosing("cheapest", "cheapest").match(batch)
        row["share of messages by quadtree"] = float(both.choices[1] / max(1, both.choices[:2].sum()))
        row["matched per message"] = matched["pt_quadtree"] / (len(batch) if short else len(batch) // _LONGER)
        figures[name] = row
    return figures


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--subscriptions", type=int, default=200_000)
    parser.add_argument("--messages", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    figures = run(options.subscriptions, options.messages, options.rounds, options.seed)
    if options.json:
        sys.stdout.write(json.dumps({"asked": vars(options), "messages_per_s": figures}, indent=1) + "\n")
        return
    ways = list(figures[GROUPS[0]])
    sys.stdout.write(f"{'':34}" + "".join(f"{group:>14}" for group in GROUPS) + "\n")
    for way in ways:
        sys.stdout.write(f"{way:34}" + "".join(f"{figures[group][way]:14,.2f}" for group in GROUPS) + "\n")


if __name__ == "__main__":
    main()
