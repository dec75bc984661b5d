"""Statistics of engine `ciq` for messages to come: frequency of cells and keywords, distribution of text relevances.

The cost of an association is the expected number of evaluations (Chen et al., CIQ, definition 7). Every factor of it is
estimated from past messages: the history counts them by cell and by term, and stores some texts, with which it compares
subscriptions. A stream that has just begun has no history; its prior is made of the words of the collection and the
places of the subscriptions, with the weight of `PRIOR` messages.
"""

import math
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_no_refcount
from matching.decay.scores import length_of, text_relevance
from matching.half_life import DecayParameters
from matching.model import Float64, Int32, MessageBatch
from matching.storage.point_subscriptions import Subscriptions
from matching.storage.slots import resized
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

#: Weight of the prior in messages, by cell and by term.
PRIOR = 4096.0
#: Texts that the history stores; most terms of each; words of a synthetic one.
_TEXTS, _WIDEST, _WORDS = 512, 16, 10
#: Subscriptions of one insertion that are compared with the texts at most; of single ones every `_ONE_IN`-th.
_TRIED, _ONE_IN = 256, 16
#: Golden ratio: the fractional parts of its multiples are spread evenly over 0..1.
_GOLDEN = 0.6180339887498949
#: Index in `HistoryArrays.facts`, after those of `papers.ciq.cell_costs`.
NOW = 3


class HistoryArrays(NamedTuple):
    """Kernel view.

    cells : float64[cells]     messages in each cell, or subscriptions
    having : float64[terms]    messages that have each term
    terms, counts : int32[texts, widest]
    size, length : int32[texts]   how many terms, how many words
    relevance : float64[keywords, bins]   pairs that share a keyword, by number of keywords and text relevance
    above : float64[keywords, bins]       share of them that are in this bin or a better one
    facts : float64[4]         messages; places counted in `cells`; texts in `having`; stream time, as the lift of the
                               latest message, minus infinity without
    """

    cells: Float64
    having: Float64
    terms: Int32
    counts: Int32
    size: Int32
    length: Int32
    relevance: Float64
    above: Float64
    facts: Float64


class MessageHistory:
    """The history of the messages of an engine, down to cells of a depth."""

    def __init__(self, depth: int, fading: DecayParameters):
        self.depth, self.fading = depth, fading
        background = fading.collection_share
        self.view = HistoryArrays(
            cells=np.zeros(cells_down_to(depth)),
            # at least once among the words of a message
            having=PRIOR * -np.expm1(_WORDS * np.log1p(-np.minimum(background, 0.999))),
            terms=np.zeros((_TEXTS, _WIDEST), np.int32),
            counts=np.zeros((_TEXTS, _WIDEST), np.int32),
            size=np.zeros(_TEXTS, np.int32),
            length=np.ones(_TEXTS, np.int32),
            relevance=np.zeros((KEYWORDS, BINS)),
            above=np.full((KEYWORDS, BINS), 0.5),
            facts=np.array([0.0, 0.0, PRIOR, -math.inf]),
        )
        self._tried = 0
        if background.shape[0] and background.sum() > 0.0:
            self._make_up(background)

    def expect(self, c: Subscriptions, slots: Int32) -> None:
        """Take subscriptions into account before their association. O(n)."""
        v = self.view
        most = int(largest_term(c, slots)) + 1
        if v.having.shape[0] < most:
            self.view = v = v._replace(having=resized(v.having, most + most // 4))
        # they live where messages come from
        missing = int(PRIOR - v.facts[PLACES])
        if missing > 0:
            _count_places(c, some_of(slots, missing), v, self.depth)
        # not every single subscription is compared: a comparison costs more than an association
        self._tried += slots.shape[0]
        if self._tried >= _ONE_IN:
            self._tried = 0
            _try(c, some_of(slots, _TRIED), v, self.fading)
            v.above[:] = fraction_above(v.relevance)

    def learn(self, messages: MessageBatch) -> None:
        """Take messages of the past into account, before those that the engine matches. O(messages)."""
        _learn(messages, self.view, self.depth)
        # nobody has lived through them
        self.view.facts[MESSAGES] = 0.0

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, for the report of memory."""
        return self.view._asdict()

    def _make_up(self, background: Float64) -> None:
        """Texts of words drawn by their share in the collection, always the same ones."""
        upto = np.cumsum(background)
        drawn = (np.arange(_TEXTS * _WORDS) + 0.5) * _GOLDEN % 1.0
        words = np.searchsorted(upto, drawn * upto[-1], side="right").reshape(_TEXTS, _WORDS)
        for text, row in enumerate(words.astype(np.int32)):
            terms, counts = np.unique(row, return_counts=True)
            size = terms.shape[0]
            self.view.terms[text, :size], self.view.counts[text, :size] = terms, counts
            self.view.size[text], self.view.length[text] = size, _WORDS


@njit(cache=True, nogil=True)
def _count_places(c, slots, h, depth):
    path = np.empty(depth + 1, np.int64)
    for slot in slots:
        path_to(c.x[slot], c.y[slot], depth, path)
        for cell in path:
            h.cells[cell] += 1.0
        h.facts[PLACES] += 1.0


@njit_inner
def remember(h, path, terms, counts, length, lifted):
    """Take a message into the history. O(depth + terms)."""
    text = int(h.facts[MESSAGES]) % h.size.shape[0]
    h.facts[NOW] = max(h.facts[NOW], lifted)
    size = min(terms.shape[0], h.terms.shape[1])
    h.size[text], h.length[text] = size, max(1, length)
    h.terms[text, :size], h.counts[text, :size] = terms[:size], counts[:size]
    count_message(h, path, terms)


@njit(cache=True, nogil=True)
def _learn(batch, h, depth):
    path = np.empty(depth + 1, np.int64)
    for row in range(batch.seq.shape[0]):
        first, last = batch.term_offsets[row], batch.term_offsets[row + 1]
        path_to(batch.x[row], batch.y[row], depth, path)
        # without their time: what thresholds are worth is known with the first message that is matched
        length = length_of(batch.counts, first, last)
        remember(h, path, batch.terms[first:last], batch.counts[first:last], length, -math.inf)


@njit_no_refcount
def _try(c, slots, h, fading):
    """Count text relevances of subscriptions and kept texts that share a keyword. O(n * texts)."""
    for slot in slots:
        row = min(c.term_count[slot], KEYWORDS) - 1
        for text in range(h.size.shape[0]):
            terms, counts = h.terms[text][: h.size[text]], h.counts[text][: h.size[text]]
            shared = False
            i = 0
            for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
                while i < terms.shape[0] and terms[i] < c.terms[at]:
                    i += 1
                shared = shared or (i < terms.shape[0] and terms[i] == c.terms[at])
            if shared:
                h.relevance[row, bin_of(text_relevance(c, slot, terms, counts, h.length[text], fading))] += 1.0
