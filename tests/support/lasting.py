"""An index over lasting results that looks at every pair, in plain Python: the others without their pruning."""

import numpy as np

from matching.decay.scores import key_of, length_of, lift, relevance, text_relevance
from matching.fading import Fading
from matching.lasting.engine import LastingEngine
from matching.lasting.results import NO_ROOM, offer
from matching.space import Space


class EveryPair(LastingEngine):
    """Offers every message to every subscription with which it shares a keyword.

    fading : Fading, optional    without it keys are distances
    """

    name = "every_pair"

    def __init__(self, space: Space, fading: Fading | None = None):
        super().__init__(space)
        self.fading = fading

    def _post(self, slots):
        pass

    def _unpost(self, slots):
        pass

    def _scan(self, batch, first_row):
        c = self.subscriptions.columns
        for row in range(first_row, len(batch)):
            cut = slice(batch.term_offsets[row], batch.term_offsets[row + 1])
            terms = batch.terms[cut]
            for slot in self.subscriptions.live_slots():
                start = c.term_start[slot]
                if np.isin(c.terms[start : start + c.term_count[slot]], terms).any():
                    key = self._key(c, slot, batch, row, terms, cut)
                    if offer(c, self.best.view, slot, batch.seq[row], key) == NO_ROOM:
                        return row
        return len(batch)

    def _key(self, c, slot, batch, row, terms, cut):
        x, y = batch.x[row], batch.y[row]
        if self.fading is None:
            return -np.sqrt((c.x[slot] - x) * (c.x[slot] - x) + (c.y[slot] - y) * (c.y[slot] - y))
        length = length_of(batch.counts, cut.start, cut.stop)
        text = text_relevance(c, slot, terms, batch.counts[cut], length, self.fading)
        return key_of(relevance(c, slot, x, y, text, self.max_distance), lift(batch.event_time_us[row], self.fading))
