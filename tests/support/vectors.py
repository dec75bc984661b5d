"""The vector of one message, term by term: the reference for kernels that weigh many at once."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from matching.model import TERM, Float32, Int32
from matching.vocabulary import Vocabulary, unit_weights


class TermVector(NamedTuple):
    """Terms of one message.

    terms : int32[n]        ascending, without repeats
    counts : int32[n]
    weights : float32[n]    unit L2 norm
    unknown, stopped : int
        Distinct terms that are left out: the vocabulary lacks them, or they are removed stop terms.
    """

    terms: Int32
    counts: Int32
    weights: Float32
    unknown: int
    stopped: int


def unit_vector(vocabulary: Vocabulary, counts: Mapping[str, int], first_id: int = 0) -> TermVector:
    """A message's vector: each term weighs count * idf, scaled to unit norm over the terms that are known.

    Terms whose ids are below `first_id` count as unknown: they were admitted later than the message.
    """
    ids = ((vocabulary.id_of(term), count) for term, count in counts.items())
    known = sorted((term_id, count) for term_id, count in ids if term_id is not None and term_id >= first_id)
    terms = np.array([term_id for term_id, _ in known], TERM)
    repeats = np.array([count for _, count in known], np.int32)
    weights = unit_weights(vocabulary.idf[terms] * repeats, np.array([0, terms.shape[0]], np.int64))
    stopped = sum(term in vocabulary.stop_terms for term in counts)
    return TermVector(terms, repeats, weights, len(counts) - terms.shape[0] - stopped, stopped)
