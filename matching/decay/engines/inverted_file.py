"""Engine `inverted_file` (IFL): the plain inverted file with a list of subscriptions; no bounds.

Every subscription that shares a keyword with a message is scored (Chen et al., CIQ, section VII-A). The paper walks the
lists side by side to meet each of them once; here the lists are read one after another, each at full speed, and a mark
by subscription says whether this message has met it.
"""

import numpy as np
from numba import njit

from matching.decay.scores import key_of, length_of, lift, relevance, text_relevance
from matching.fading import Fading
from matching.lasting.engine import LastingEngine
from matching.lasting.results import A_RESULT, NO_ROOM, offer
from matching.model import Int32, MessageBatch
from matching.space import Space
from matching.storage.slots import resized
from matching.topk.engines.postings import Postings


class InvertedFile(LastingEngine):
    """Lists by keyword. A message costs O(postings of its terms)."""

    name = "inverted_file"

    def __init__(self, space: Space, fading: Fading):
        super().__init__(space)
        self.fading = fading
        self.postings = Postings(bounded=False)
        self._met = np.zeros(0, np.int64)  # by slot: the last message, by count, that met it
        self._messages = np.zeros(1, np.int64)

    def _post(self, slots: Int32) -> None:
        self.postings.insert(self.subscriptions, slots, self.max_distance)
        if self._met.shape[0] < self.subscriptions.capacity:
            self._met = resized(self._met, self.subscriptions.capacity)

    def _unpost(self, slots: Int32) -> None:
        self.postings.remove(self.subscriptions, slots)

    def _scan(self, batch: MessageBatch, first_row: int) -> int:
        return _scan(
            self.subscriptions.columns, self.best.view, self.postings.view, self._met, self._messages, batch,
            first_row, self.fading, self.max_distance, self.counters,
        )  # fmt: skip

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = {f"postings_{name}": value for name, value in self.postings.arrays().items()}
        return super().arrays() | arrays | {"met": self._met}


@njit(cache=True, nogil=True)
def _scan(c, best, v, met, messages, batch, first_row, fading, max_distance, counters):
    """Offer rows from `first_row` on to all who share a keyword; the row for which there was no room, or their number.

    `messages[0]` counts those that have been matched, `met` (int64[slots]) says which of them a slot met last.
    """
    for row in range(first_row, batch.seq.shape[0]):
        first, last = batch.term_offsets[row], batch.term_offsets[row + 1]
        terms, counts = batch.terms[first:last], batch.counts[first:last]
        length = length_of(batch.counts, first, last)
        lifted = lift(batch.event_time_us[row], fading)
        messages[0] += 1
        for i in range(terms.shape[0]):
            term = terms[i]
            # a term above all that were ever posted has no list
            if term >= v.start.shape[0]:
                continue
            for place in range(v.start[term], v.start[term] + v.count[term]):
                counters[0] += 1
                slot = v.slot[place]
                if met[slot] == messages[0]:
                    continue
                met[slot] = messages[0]
                counters[1] += 1
                text = text_relevance(c, slot, terms, counts, length, fading)
                key = key_of(relevance(c, slot, batch.x[row], batch.y[row], text, max_distance), lifted)
                said = offer(c, best, slot, batch.seq[row], key)
                if said == NO_ROOM:
                    return row
                counters[2] += said == A_RESULT
    return batch.seq.shape[0]
