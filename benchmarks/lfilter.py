"""Each way through LFilter on four groups of messages: points and rectangles, short texts and long ones.

`python -m benchmarks.lfilter --subscriptions 200000` prints, for each group, messages a second of the trie alone, of
the quadtree alone, of LFilter with each filter and verification forced, and of LFilter as it chooses. The constants in
`matching.boolean.lfilter_cost` are right when the last is about the best of the others in every row.

Subscriptions are those of `benchmarks.workload`. Short texts are its messages; a long text is the words of 15 to 120
messages together. A rectangle has a side of 0.01 % to 10 % of the world's width, log-uniform. As in the paper (section
6), which has 6 to 20 and 100 to 1,000 tokens; how large its rectangles are it does not say.
"""

import argparse
import sys
from time import thread_time as now

import numpy as np

from benchmarks.workload import WORLD, Messages, boolean_subscriptions, make_messages
from matching.boolean.engine import BooleanEngine
from matching.boolean.lfilter import FILTERS, VERIFICATIONS, LFilter
from matching.boolean.mbr_trie import STRATEGIES, MbrTrie
from matching.boolean.pt_quadtree import PtQuadtree
from matching.model import MessageBatch

GROUPS = ("point_short", "point_long", "range_short", "range_long")
#: Name of a way to filter and verify of LFilter.
WAYS = (("cheapest", "cheapest"), ("trie", "cheapest"), ("quadtree", "direct"), ("quadtree", "prune"))
_PARTS_OF_LONG = (15, 120)
#: Messages that subscriptions take after, and others that long texts are made of.
_HISTORY, _FRESH = 200_000, 20_000


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


def messages_per_s(engine: BooleanEngine, batch: MessageBatch, rounds: int) -> tuple[float, int]:
    """Fastest of the rounds, in processor time; and how many pairs matched."""
    engine.match(batch)
    best, matched = np.inf, 0
    for _ in range(rounds):
        begun = now()
        matched = engine.match(batch).matched
        best = min(best, now() - begun)
    return len(batch) / best, matched


def run(subscriptions: int, messages: int, rounds: int, seed: int) -> dict[str, dict[str, float]]:
    """Messages a second by group and way; every way must find the same number of pairs."""
    made = make_messages(_HISTORY + max(_FRESH, messages), seed)
    history = Messages(made.batch.take(np.arange(_HISTORY)), made.idf)
    table = boolean_subscriptions(history, subscriptions, seed)
    groups = message_groups(made.batch.take(np.arange(_HISTORY, len(made.batch))), messages, seed)
    engines = MbrTrie(WORLD), PtQuadtree(WORLD), LFilter(WORLD)
    for engine in engines:
        engine.insert(table)
    trie, quadtree, both = engines
    figures: dict[str, dict[str, float]] = {}
    for name, batch in groups.items():
        row: dict[str, float] = {}
        for strategy in STRATEGIES:
            trie.strategy = STRATEGIES.index(strategy)
            row[f"mbr_trie {strategy}"], matched = messages_per_s(trie, batch, rounds)
        row["pt_quadtree"], of_quadtree = messages_per_s(quadtree, batch, rounds)
        counts = {matched, of_quadtree}
        for filter_by, verify_by in WAYS:
            both.filter_by, both.verify_by = FILTERS.index(filter_by), VERIFICATIONS.index(verify_by)
            both.choices[:] = 0
            row[f"lfilter {filter_by}/{verify_by}"], count = messages_per_s(both, batch, rounds)
            counts.add(count)
            if filter_by == "cheapest":
                row["by quadtree"] = float(both.choices[1] / max(1, both.choices[:2].sum()))
        if len(counts) != 1:
            raise AssertionError(f"{name}: ways found different numbers of pairs: {sorted(counts)}")
        row["matched per message"] = matched / len(batch)
        figures[name] = row
    return figures


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--subscriptions", type=int, default=200_000)
    parser.add_argument("--messages", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    figures = run(options.subscriptions, options.messages, options.rounds, options.seed)
    ways = list(figures[GROUPS[0]])
    sys.stdout.write(f"{'':28}" + "".join(f"{group:>14}" for group in GROUPS) + "\n")
    for way in ways:
        sys.stdout.write(f"{way:28}" + "".join(f"{figures[group][way]:14,.2f}" for group in GROUPS) + "\n")


if __name__ == "__main__":
    main()
