"""Statistics of engine `ciq` for messages to come: frequency of cells and keywords, distribution of text relevances.

Past messages are counted by cell and by term; the last texts are kept, and compared with subscriptions (Chen et al.,
CIQ, definition 7). Before any message has come, synthetic ones are made from the subscriptions: the place of one, the
keywords of several, since a message has more keywords than a subscription.
"""

import math
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner_no_refcount, njit_no_refcount
from matching.model import Float32, Float64, Int32
from matching.storage.point_subscriptions import Subscriptions
from matching.storage.slots import resized
from matching.storage.sorting import ascending
from papers.ciq.cell_costs import (
    BINS,
    KEYWORDS,
    MESSAGES,
    PLACES,
    bin_of,
    count_message,
    fraction_above,
    largest_term,
    some_of,
)
from papers.ciq.quadtree import cells_down_to, path_to

#: Synthetic messages at most; subscriptions that each is made from.
_PRIOR, _TOGETHER = 4096, 4
_MOST_GATHERED = 64
#: Texts that the history stores; most terms of each.
_TEXTS, _WIDEST = 512, 16
#: Subscriptions of one call that are compared with the texts at most; of single subscriptions every `_ONE_IN`-th.
_TRIED, _ONE_IN = 256, 64


class TopkHistoryArrays(NamedTuple):
    """Kernel view.

    cells : float64[cells]     messages in each cell
    having : float64[terms]    messages that have each term
    terms : int32[texts, widest], weights : float32[texts, widest]
    size : int32[texts]        how many terms
    relevance : float64[keywords, bins]   pairs that share a keyword, by number of keywords and text relevance
    above : float64[keywords, bins]       fraction of them that are in this bin or a better one
    facts : float64[3]         see `papers.ciq.cell_costs`; the first of them does not count synthetic messages
    """

    cells: Float64
    having: Float64
    terms: Int32
    weights: Float32
    size: Int32
    relevance: Float64
    above: Float64
    facts: Float64


class TopkMessageHistory:
    """The history of the messages of an engine, down to cells of a depth."""

    def __init__(self, depth: int):
        self.depth = depth
        self.view = TopkHistoryArrays(
            cells=np.zeros(cells_down_to(depth)),
            having=np.zeros(0),
            terms=np.zeros((_TEXTS, _WIDEST), np.int32),
            weights=np.zeros((_TEXTS, _WIDEST), np.float32),
            size=np.zeros(_TEXTS, np.int32),
            relevance=np.zeros((KEYWORDS, BINS)),
            above=np.full((KEYWORDS, BINS), 0.5),
            facts=np.zeros(3),
        )
        self._tried = 0

    def meet(self, c: Subscriptions, slots: Int32) -> None:
        """Take new subscriptions into account. O(n)."""
        most = int(largest_term(c, slots)) + 1
        if self.view.having.shape[0] < most:
            self.view = self.view._replace(having=resized(self.view.having, most + most // 4))

    def expect(self, c: Subscriptions, slots: Int32) -> None:
        """Take subscriptions into account before their association by cost. O(n)."""
        v = self.view
        missing = min(_PRIOR - int(v.facts[PLACES]), slots.shape[0])
        if v.facts[MESSAGES] == 0 and missing > 0:
            _make_up(c, slots, v, self.depth, missing)
        # subscriptions that come one by one are not all tried: a trial costs more than to associate one
        self._tried += slots.shape[0]
        if self._tried >= _ONE_IN:
            self._tried = 0
            _try(c, some_of(slots, _TRIED), v)
            v.above[:] = fraction_above(v.relevance)

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, by name, to measure memory."""
        return self.view._asdict()


@njit(cache=True, nogil=True)
def _make_up(c, slots, h, depth, wanted):
    """Make `wanted` synthetic messages from subscriptions."""
    path = np.empty(depth + 1, np.int64)
    all_terms, all_weights = np.empty(_MOST_GATHERED, np.int32), np.empty(_MOST_GATHERED, np.float32)
    terms, weights = np.empty(_MOST_GATHERED, np.int32), np.empty(_MOST_GATHERED, np.float32)
    n = slots.shape[0]
    for nth in range(wanted):
        first = nth * n // wanted
        path_to(c.x[slots[first]], c.y[slots[first]], depth, path)
        gathered = 0
        for other in range(_TOGETHER):
            # from all over, for neighbours may have been registered together
            slot = slots[(first + other * (n // _TOGETHER + 1)) % n]
            for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
                if gathered < _MOST_GATHERED:
                    all_terms[gathered], all_weights[gathered] = c.terms[at], c.weights[at]
                    gathered += 1
        size, square = 0, 0.0
        for at in ascending(all_terms[:gathered]):
            if size and terms[size - 1] == all_terms[at]:
                continue
            terms[size], weights[size] = all_terms[at], all_weights[at]
            square += np.float64(weights[size]) * np.float64(weights[size])
            size += 1
        weights[:size] /= np.float32(math.sqrt(max(square, 1e-30)))
        _keep(h, int(h.facts[PLACES]), terms[:size], weights[:size])
        count_message(h, path, terms[:size])
        # none of those that came
        h.facts[MESSAGES] -= 1.0


@njit_no_refcount
def _keep(h, nth, terms, weights):
    """Replace the oldest stored text."""
    text = nth % h.size.shape[0]
    size = min(terms.shape[0], h.terms.shape[1])
    h.size[text] = size
    for i in range(size):
        h.terms[text, i], h.weights[text, i] = terms[i], weights[i]


@njit_inner_no_refcount
def remember(h, path, terms, weights):
    """Take a message into the history. O(depth + terms)."""
    _keep(h, int(h.facts[PLACES]), terms, weights)
    count_message(h, path, terms)


@njit(cache=True, nogil=True)
def _try(c, slots, h):
    """Count text relevances of subscriptions and kept texts that share a keyword. O(n * texts)."""
    for slot in slots:
        row = min(c.term_count[slot], KEYWORDS) - 1
        for text in range(h.size.shape[0]):
            relevance = 0.0
            i, size = 0, h.size[text]
            for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
                while i < size and h.terms[text, i] < c.terms[at]:
                    i += 1
                if i < size and h.terms[text, i] == c.terms[at]:
                    relevance += np.float64(c.weights[at]) * np.float64(h.weights[text, i])
            if relevance > 0.0:
                h.relevance[row, bin_of(relevance)] += 1.0
