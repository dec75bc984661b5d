"""Messages of four sorts, points and rectangles, with short texts and long ones, for the engines of kind `boolean`."""

import numpy as np

from benchmarks.workload import WORLD
from matching.model import MessageBatch

GROUPS = ("point_short", "point_long", "range_short", "range_long")
_PARTS_OF_LONG = (15, 120)


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
