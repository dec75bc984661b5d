"""Engine `keyword_blocks` of `decay`: for each keyword blocks of subscriptions alike in place and reach.

Keys are time-invariant in the log domain, so a fading threshold is a constant times what is left of it now: one factor
for a whole message. The score of a pair is alpha * (1 - distance / MaxDist) + (1 - alpha) * text; divided by alpha /
MaxDist and solved for the distance, its threshold exp(key - time * ln D) becomes a level that is multiplied by that
factor (`matching.decay.engines.block_lists`). On the sphere a subscription may have its own radius in place of MaxDist,
and lists count distances in radians. Levels count from a reference time that moves on with the stream, so that neither
they nor the factor leave the range of float32.

Text: a subscription with keyword w has at most the probability of w in the message (spec 6); another common keyword
leaves at most the largest probability of the others, and if none is there (by a signature of 32 bits) what is left is
known beforehand, and next to nothing. Candidates that pass are scored exactly and offered at once. Named in
`matching.kinds`.
"""

import math
from typing import NamedTuple

import numpy as np

from compiling.njit import njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.cumulative.engine import CumulativeEngine
from matching.cumulative.results import A_RESULT, POOL_FULL, RESULT_WORDS, offer
from matching.decay.engines.block_lists import BLOCK, NO_LEVEL, BlockLists, Described, raise_level
from matching.decay.engines.block_search import candidates_of
from matching.decay.reference import Reference
from matching.decay.scores import (
    background_of,
    key_of,
    length_of,
    lift,
    probability,
    relevance,
    text_relevance,
)
from matching.filters import message_passes
from matching.geo.sphere import EARTH_RADIUS_M, point_of
from matching.half_life import DecayParameters
from matching.model import Int32, MessageBatch
from matching.operator import Work
from matching.space import Space
from matching.storage.point_subscriptions import ROW_WORDS, TERM_HALVES
from matching.storage.prefetch import prefetch
from matching.storage.term_lists import bit_of

#: Below this alpha place decides next to nothing: it is taken for this one, which only lets more through.
_LEAST_ALPHA = 1e-6
_LARGEST = 1e30
_AHEAD = 8


class Farthest(NamedTuple):
    """MaxDist of the world (`distance`), and how much of it is one unit of distance in lists (`unit`)."""

    distance: float
    unit: float


class KeywordBlocks(CumulativeEngine):
    """Lists in blocks, with reaches that fade. The cost of a message is the postings of its terms within reach.

    Parameters
    ----------
    space : Space
    fading : Fading    of the run
    """

    name = "keyword_blocks"
    serves_sphere = True

    def __init__(self, space: Space, fading: DecayParameters):
        super().__init__(space)
        self.fading = fading
        self.lists = BlockLists(space.on_sphere)
        self._farthest = Farthest(space.max_distance, EARTH_RADIUS_M if space.on_sphere else 1.0)
        self._on_sphere = space.on_sphere
        self._most_common = fading.most_of_the_missing
        self._reference = Reference()
        self._passed, self._found, self._keys = np.empty(BLOCK, np.uint8), np.empty(0, np.int32), np.empty(0)

    def match(self, batch: MessageBatch) -> Work:
        """Offer every message to the subscriptions it may reach, in order; `best.begin_batch` comes first."""
        if self._reference.follow(batch, self.fading, len(self)) is not None:
            v = self.lists.view
            _set_all(self.subscriptions.columns, v, int(v.used[0]), self._farthest, self._reference.at)
            self.lists.summarise_all()
        self.lists.settle(self.subscriptions, self.max_distance, 1.0)
        return super().match(batch)

    def _post(self, slots: Int32) -> None:
        c = self.subscriptions.columns
        terms = int(c.term_count[slots].sum())
        described = Described(
            np.empty(slots.shape[0] if self._on_sphere else 0, np.float32), np.empty(slots.shape[0], np.float32),
            np.empty(slots.shape[0], np.float32), np.empty(terms, np.float32), np.empty(terms, np.uint32),
        )  # fmt: skip
        _describe(c, slots, self.fading, self._farthest, self._reference.at or 0.0, described)
        self.lists.insert(self.subscriptions, slots, described)

    def _unpost(self, slots: Int32) -> None:
        self.lists.remove(self.subscriptions, slots)

    def _scan(self, batch: MessageBatch, first_row: int) -> int:
        if self._found.shape[0] < self.lists.longest:
            capacity = self.lists.longest * 5 // 4
            self._found, self._keys = np.empty(capacity, np.int32), np.empty(capacity)
        return _scan(
            self.subscriptions.columns, self.lists.view, self.best.view, self.filters, batch, self.fading,
            self._farthest, self._reference.at or 0.0, np.float32(self._most_common), first_row, self._passed,
            self._found, self._keys, self.counters,
        )  # fmt: skip

    def arrays(self) -> dict[str, np.ndarray]:
        return super().arrays() | {f"lists_{name}": value for name, value in self.lists.arrays().items()}


@njit_inner
def _slope(c, slot, farthest):
    """What a unit of distance costs in score, never nothing."""
    return max(c.alpha[slot] / c.max_distance[slot], _LEAST_ALPHA / farthest.distance) * farthest.unit


@njit_inner
def _far(c, slot, farthest):
    """Where place alone is worth nothing: MaxDist or the own radius; farther where `_slope` is not the true one.

    A message beyond the radius loses more by a steeper slope than it does in truth. So the steeper line is raised until
    both meet at MaxDist; it is above the true one everywhere before.
    """
    steeper = max(0.0, _LEAST_ALPHA / farthest.distance - c.alpha[slot] / c.max_distance[slot])
    return (c.alpha[slot] + steeper * farthest.distance) / _slope(c, slot, farthest)


@njit_inner_no_refcount
def _level(c, slot, farthest, reference):
    """The threshold at the reference time, as a distance; lower where float32 ends, which only lets more through."""
    if c.threshold[slot] == -math.inf:
        return NO_LEVEL
    # e**69 over the least slope is still a float32
    return np.float32(math.exp(min(c.threshold[slot] - reference, 69.0)) / _slope(c, slot, farthest))


@njit_no_refcount
def _describe(c, slots, fading, farthest, reference, described):
    """What the postings of new slots say."""
    nth = 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        described.level[i] = _level(c, slot, farthest, reference)
        described.text_slope[i] = (1.0 - c.alpha[slot]) / _slope(c, slot, farthest)
        if described.far.shape[0] > 0:
            described.far[i] = _far(c, slot, farthest)
        start, count = c.term_start[slot], c.term_count[slot]
        for j in range(count):
            # with none of the others in the message each of them counts by smoothing alone
            rest, signature = 1.0, np.uint32(0)
            for other in range(count):
                if other != j:
                    term = c.terms[start + other]
                    rest *= fading.smoothing * background_of(fading, term)
                    signature |= bit_of(term)
            described.rest[nth], described.signature[nth] = rest, signature
            nth += 1


@njit_no_refcount
def _set_all(c, v, places, farthest, reference):
    """The levels of all postings, from another reference time on."""
    for place in range(places):
        slot = v.slot[place]
        # holes are skipped: by their level no message reaches them
        if slot >= 0 and c.number[slot] >= 0:
            v.level[place] = _level(c, slot, farthest, reference)


@njit_no_refcount
def _scan(
    c, v, best, filters, batch, fading, farthest, reference, most_common, first_row, passed, found, keys, counters
):  # fmt: skip
    far = np.float32(farthest.distance)
    smallest = np.float32(0.0)
    for r in range(first_row, batch.seq.shape[0]):
        first, last = batch.term_offsets[r], batch.term_offsets[r + 1]
        terms, counts = batch.terms[first:last], batch.counts[first:last]
        length = length_of(batch.counts, first, last)
        lifted = lift(batch.event_time_us[r], fading)
        # a message before the reference meets thresholds that are higher than their levels say
        factor = np.float32(min(math.exp(min(reference - lifted, 690.0)), _LARGEST))
        place = point_of(batch, r)
        x, y, z = np.float32(place[0]), np.float32(place[1]), np.float32(place[2])
        # the two largest probabilities, so that the largest of all others is known for each term
        largest = second = smallest
        all_bits = np.uint32(0)
        for i in range(terms.shape[0]):
            worth = np.float32(probability(counts[i], length, background_of(fading, terms[i]), fading.smoothing))
            if worth > largest:
                largest, second = worth, largest
            else:
                second = max(second, worth)
            all_bits |= bit_of(terms[i])
        for i in range(terms.shape[0]):
            term = terms[i]
            # a term without subscriptions, now or ever
            if term >= v.start.shape[0] or v.count[term] == 0:
                continue
            worth = np.float32(probability(counts[i], length, background_of(fading, term), fading.smoothing))
            # a second keyword may also be one that the message lacks: then it counts as the most common word at most
            others = max(second if worth == largest else largest, most_common)
            # bits are shared, so the term's own stays in: a hit only loosens the bound
            candidates, scanned = candidates_of(v, term, x, y, z, far, factor, worth, others, all_bits, passed, found)
            counters[0] += scanned
            reached = 0
            # by stages, so that what the next one reads is on its way
            for nth in range(candidates):
                if nth + _AHEAD < candidates:
                    prefetch(c.x, found[nth + _AHEAD] * ROW_WORDS)
                slot = found[nth]
                prefetch(c.terms, c.term_start[slot] * TERM_HALVES)
            for nth in range(candidates):
                slot = found[nth]
                text = text_relevance(c, slot, terms, counts, length, fading)
                key = key_of(relevance(c, slot, place, text), lifted)
                # a key of minus infinity may still fill a result that is short of k; `offer` knows
                if key > c.threshold[slot] or key == -math.inf:
                    prefetch(best.start, slot * RESULT_WORDS)
                    # its threshold may rise, which is written at each of its postings
                    for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
                        prefetch(v.level, c.position[at])
                    found[reached], keys[reached] = slot, key
                    reached += 1
            counters[1] += candidates
            for nth in range(reached):
                if nth + _AHEAD < reached:
                    start = best.start[found[nth + _AHEAD]]
                    prefetch(best.seq, 2 * start)
                    prefetch(best.seq, 2 * start + 8)
                slot = found[nth]
                before = c.threshold[slot]
                if filters.span.shape[0] and not message_passes(filters, slot, batch, r):
                    continue
                outcome = offer(c.threshold, c.k, best, slot, batch.seq[r], keys[nth])
                # the whole message again after growing: messages offered before are not offered twice
                if outcome == POOL_FULL:
                    return r
                if outcome == A_RESULT:
                    counters[2] += 1
                    # not of a result that is short of k, nor where the k-th key is what it was
                    if c.threshold[slot] > before:
                        raise_level(c, v, slot, _level(c, slot, farthest, reference))
    return batch.seq.shape[0]
