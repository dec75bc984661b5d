"""Leaves the keywords out of made-up subscriptions, and lets made-up messages be seen by them."""

from typing import Any

import numpy as np

from matching.model import KEYWORDS_BY_KIND, MessageBatch, SubscriptionTable, take_ragged
from matching.reserved import RESERVED_IDF, with_reserved


def seen(messages: MessageBatch, term: int, visible: np.ndarray | None = None) -> MessageBatch:
    """The messages with the reserved term, `term`, in all rows or in the `visible` ones; the others have no words."""
    visible = np.ones(len(messages), np.bool_) if visible is None else visible
    lengths = np.diff(messages.term_offsets)
    kept = np.repeat(visible, lengths)
    offsets = np.concatenate([[0], np.cumsum(np.where(visible, lengths, 0))]).astype(np.int64)
    counts = messages.counts[kept] if messages.counts.shape == messages.terms.shape else None
    columns = with_reserved(term, visible, offsets, messages.terms[kept], messages.weights[kept], counts)
    named = dict(zip(("term_offsets", "terms", "weights", "counts"), columns, strict=True))
    changed: Any = messages._asdict() | named
    return MessageBatch(**changed)


def without_words(table: SubscriptionTable, term: int, rows: np.ndarray) -> SubscriptionTable:
    """The subscriptions, those at `rows` (bool[n]) without keywords, as `matching.validate` lays them out."""
    lengths = np.where(rows, 1, np.diff(table.term_offsets))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    terms = np.full(offsets[-1], term, np.int32)
    weights = np.full(offsets[-1], RESERVED_IDF, np.float32)
    others = np.repeat(~rows, lengths)
    _, picked = take_ragged(table.term_offsets, np.flatnonzero(~rows))
    terms[others], weights[others] = table.terms[picked], table.weights[picked]
    changed: Any = table._asdict() | {
        "match": np.where(rows, KEYWORDS_BY_KIND, table.match).astype(np.int8),
        "alpha": np.where(rows & ~np.isnan(table.alpha), 1.0, table.alpha),
        "term_offsets": offsets,
        "terms": terms,
        "weights": weights,
    }
    return SubscriptionTable(**changed)


def leave_out(world: Any, share: float, seed: int) -> Any:
    """A world with this share of its subscriptions without keywords, and a tenth of its messages not visible.

    Changed in place and returned.
    """
    rng, term = np.random.default_rng([seed, 7]), world.recipe.terms
    for place, (boundary, messages, changes) in enumerate(world.batches):
        messages = seen(messages, term, rng.random(len(messages)) < 0.9)
        added = without_words(changes.added, term, rng.random(len(changes.added)) < share)
        world.batches[place] = (boundary, messages, changes._replace(added=added))
    return world
