"""The reserved term: what every visible message carries, and a subscription that requires no word stands under.

Indexes, routers and signatures know subscriptions by their words. One without a word has this term in its row, and so
needs no way of its own through any of them. The id is `Vocabulary.reserved`, one above those of all words, so that it
comes last in each row. Its weight is minus zero: it adds nothing to a score, a norm or a count of words, and nothing
else has a negative weight, so that a column says by itself where it is. A message without it meets no subscription
without words: marks of a clock, deletions, and messages that are ahead, outside the world or quarantined have none.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from matching.model import NO_COUNTS, Float32, Int32, Int64, MessageBatch

#: The idf of the reserved term, and its weight in any row.
RESERVED_IDF = -0.0


def is_reserved(weights: Float32) -> NDArray[np.bool_]:
    """bool[n]: which of these weights are of the reserved term. O(n)."""
    return np.signbit(weights)


def with_reserved(
    term: int, visible: NDArray[np.bool_], offsets: Int64, terms: Int32, weights: Float32, counts: Int32 | None
) -> tuple[Int64, Int32, Float32, Int32]:
    """Ragged columns of messages with the reserved term at the end of each row that is visible. O(rows + terms).

    Parameters
    ----------
    term : int                 `Vocabulary.reserved`
    visible : bool[n]
    offsets, terms, weights    as in `MessageBatch`
    counts : int32[nnz], or None where messages have none; of the reserved term it is 0
    """
    new_offsets = offsets.copy()
    new_offsets[1:] += visible.cumsum()
    is_word = np.ones(new_offsets[-1], np.bool_)
    is_word[new_offsets[1:][visible] - 1] = False

    def beside(words: np.ndarray, reserved: float) -> np.ndarray:
        column = np.full(is_word.shape[0], reserved, words.dtype)
        column[is_word] = words
        return column

    counts = NO_COUNTS if counts is None else beside(counts, 0)
    return new_offsets, beside(terms, term), beside(weights, RESERVED_IDF), counts


def is_visible(offsets: Int64, weights: Float32) -> np.ndarray:
    """bool[n]: whether the last term of a row is the reserved one. O(n)."""
    ends = offsets[1:]
    some = ends > offsets[:-1]
    found = np.zeros(ends.shape[0], np.bool_)
    found[some] = is_reserved(weights[ends[some] - 1])
    return found


def without_reserved(messages: MessageBatch, beginnings: bool = False) -> MessageBatch:
    """The messages with their words alone, for scores that go by how many there are. O(n + terms), or no copy.

    `beginnings`: they keep those of their words (`matching.words.beginnings`).
    """
    reserved = is_reserved(messages.weights)
    if beginnings:
        ends = messages.term_offsets[1:][np.diff(messages.term_offsets) > 0] - 1
        last = reserved[ends]
        reserved = np.zeros_like(reserved)
        reserved[ends] = last
    if not reserved.any():
        return messages
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(reserved)])
    changed: Any = messages._asdict() | {
        "term_offsets": messages.term_offsets - before[messages.term_offsets],
        "terms": messages.terms[~reserved],
        "weights": messages.weights[~reserved],
        "counts": messages.counts[~reserved] if messages.counts.shape[0] else messages.counts,
    }
    return MessageBatch(**changed)
