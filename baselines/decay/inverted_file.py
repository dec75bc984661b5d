"""Engine `inverted_file` (IFL): the plain inverted file with a list of subscriptions; no bounds.

Every subscription that shares a keyword with a message is scored (Chen et al., CIQ, section VII-A). The paper walks the
lists side by side to meet each of them once; here the lists are read one after another, and a column by subscription
has the last message that met it. Subscriptions are scored some hundreds at a time, with their rows prefetched. A column
by term has the term's factor in a text score: that of messages without the term and, while a message is matched, that
of this message for the terms it has. A text score is a product of looked up factors.
"""

import numpy as np

from compiling.njit import njit, njit_inner, njit_no_refcount
from matching.cumulative.engine import CumulativeEngine
from matching.cumulative.results import A_RESULT, POOL_FULL, RESULT_WORDS, offer
from matching.decay.scores import background_of, key_of, length_of, lift, probability, relevance
from matching.filters import message_passes
from matching.geo.sphere import point_of
from matching.half_life import DecayParameters
from matching.model import Int32, MessageBatch
from matching.space import Space
from matching.storage.point_subscriptions import ROW_WORDS, TERM_HALVES
from matching.storage.prefetch import prefetch
from matching.storage.slots import grown
from papers.skype.postings import PointPostings

#: Postings whose subscriptions are scored together: prefetched rows must stay in the nearest caches.
_BLOCK = 256
#: Postings that are prefetched ahead.
_AHEAD = 24


class DecayInvertedFile(CumulativeEngine):
    """Lists by keyword. A message costs O(postings of its terms)."""

    name = "inverted_file"
    serves_sphere = True

    def __init__(self, space: Space, fading: DecayParameters):
        super().__init__(space)
        self.fading = fading
        self.postings = PointPostings(bounded=False)
        self._met = np.zeros(0, np.int64)  # by slot: `_messages` as of the last message that met it
        self._messages = np.zeros(1, np.int64)
        self._factor = np.zeros(0)  # by term: probability in a message that does not have it

    def _post(self, slots: Int32) -> None:
        self.postings.insert(self.subscriptions, slots, self.max_distance)
        if self._factor.shape[0] < self.postings.view.start.shape[0]:
            self._factor = np.zeros(self.postings.view.start.shape[0])
            background = self.fading.collection_share[: self._factor.shape[0]]
            self._factor[: background.shape[0]] = self.fading.smoothing * background
        self._met = grown(self._met, self.subscriptions.capacity)

    def _unpost(self, slots: Int32) -> None:
        self.postings.remove(self.subscriptions, slots)

    def _scan(self, batch: MessageBatch, first_row: int) -> int:
        return _scan(
            self.subscriptions.columns, self.best.view, self.filters, self.postings.view, self._met, self._messages,
            batch, first_row, self._factor, self.fading, self.counters,
        )  # fmt: skip

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = {f"postings_{name}": value for name, value in self.postings.arrays().items()}
        return super().arrays() | arrays | {"met": self._met, "factor": self._factor}


@njit(cache=True, nogil=True)
def _scan(c, best, filters, v, met, messages, batch, first_row, factor, fading, counters):
    """Offer messages from `first_row` on to subscriptions that share a keyword; returns as `CumulativeEngine._scan`.

    `messages[0]` counts messages, repeated ones again; `met` (int64[slots]) has the count as of the last message that a
    slot met. Before and after a call every `factor` is that of messages without the term.
    """
    fresh = np.empty(_BLOCK + 1, np.int32)
    for row in range(first_row, batch.seq.shape[0]):
        first, last = batch.term_offsets[row], batch.term_offsets[row + 1]
        terms = batch.terms[first:last]
        _enter(factor, terms, batch.counts[first:last], fading)
        lifted = lift(batch.event_time_us[row], fading)
        place = point_of(batch, row)
        messages[0] += 1
        scanned = verified = matched = 0
        for i in range(terms.shape[0]):
            term = terms[i]
            # a term above all that were ever posted has no list
            if term >= v.start.shape[0]:
                continue
            scanned += v.count[term]
            for block in range(v.start[term], v.start[term] + v.count[term], _BLOCK):
                end = min(block + _BLOCK, v.start[term] + v.count[term])
                kept = _take_fresh(c, v, met, messages[0], block, end, fresh)
                verified += kept
                for h in range(kept):
                    prefetch(c.terms, c.term_start[fresh[h]] * TERM_HALVES)
                    prefetch(best.start, np.int64(fresh[h]) * RESULT_WORDS)
                for h in range(kept):
                    slot = fresh[h]
                    text = 1.0
                    for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
                        text *= factor[c.terms[at]]
                    key = key_of(relevance(c, slot, place, text), lifted)
                    # of equal keys the older stays; a threshold of -inf is that of fewer than k: any key enters
                    if key <= c.threshold[slot] and key != -np.inf:
                        continue
                    if filters.span.shape[0] and not message_passes(filters, slot, batch, row):
                        continue
                    said = offer(c.threshold, c.k, best, slot, batch.seq[row], key)
                    if said == POOL_FULL:
                        _leave(factor, terms, fading)
                        return row
                    matched += said == A_RESULT
        _leave(factor, terms, fading)
        # added once a row is complete: a repeated row is counted once
        counters[0] += scanned
        counters[1] += verified
        counters[2] += matched
    return batch.seq.shape[0]


@njit_no_refcount
def _enter(factor, terms, counts, fading):
    """Write the probabilities of a message's terms, some of which may have no subscription."""
    length = length_of(counts, 0, counts.shape[0])
    for i in range(terms.shape[0]):
        if terms[i] < factor.shape[0]:
            factor[terms[i]] = probability(counts[i], length, background_of(fading, terms[i]), fading.smoothing)


@njit(cache=True, nogil=True)
def _leave(factor, terms, fading):
    """Set the factors of a message's terms back to those of messages without them."""
    for term in terms:
        if term < factor.shape[0]:
            # what `probability` gives for a count of 0, to the last bit
            factor[term] = fading.smoothing * background_of(fading, term)


@njit_inner
def _take_fresh(c, v, met, message, first, end, fresh):
    """Write to `fresh` the slots of a piece of a list that the message has not met yet; prefetch their rows."""
    kept = 0
    for place in range(first, end):
        prefetch(met, v.slot[min(place + _AHEAD, end - 1)])
        slot = v.slot[place]
        # written before it is known, so that there is no branch to be guessed wrong
        fresh[kept] = slot
        kept += met[slot] != message
        met[slot] = message
        prefetch(c.x, np.int64(slot) * ROW_WORDS)
    return kept
