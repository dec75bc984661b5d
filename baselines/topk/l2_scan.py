"""Engine `l2_scan`: a flat scan of the message's posting lists that skips by the L2 suffix bound.

For each term of a message its whole list is bounded in float32, many postings at a time, and only where the bound
reaches the threshold is the pair verified: exactly, over all common terms, and only if the scanned term is their first
common one (where it is not, the pair was decided at an earlier term). The bound is that of `papers.skype.postings`; the
rule is Skype's Theorem 5.1 with norms instead of weight sums (as in L2AP).
"""

import math

import numpy as np

from baselines.topk.posted import PostedEngine
from compiling.njit import njit, njit_inner
from matching.geo.sphere import point_of
from matching.topk.scores import exact_score

_BLOCK = 1024


class L2Scan(PostedEngine):
    """Posting lists with the L2 suffix bound. A message costs O(postings of its terms), vectorised."""

    name = "l2_scan"
    bounded = True

    def _scan(self, batch, first_row, most_hits, slot, row, score):
        return _scan(
            self.subscriptions.columns,
            self.postings.view,
            batch,
            first_row,
            most_hits,
            slot,
            row,
            score,
        )


@njit_inner
def _bound_block(x, y, steepness, base, own, rest, message_x, message_y, message_weight, message_rest, passed):
    """Set passed[p] to 1 where the bound of posting p reaches its threshold. All float32; the loop vectorises."""
    for p in range(x.shape[0]):
        slack = base[p] + own[p] * message_weight + rest[p] * message_rest
        dx = x[p] - message_x
        dy = y[p] - message_y
        # slack >= alpha / MaxDist * distance, without the root
        # the sign first, since squaring loses it; `&`, not `and`, leaves no branch
        passed[p] = (slack >= np.float32(0.0)) & (slack * slack >= steepness[p] * (dx * dx + dy * dy))


@njit(cache=True, nogil=True)
def _scan(c, v, batch, first_row, most_hits, out_slot, out_row, out_score):
    passed = np.zeros(_BLOCK, np.uint8)
    words = passed.view(np.uint64)
    found = 0
    scanned = 0
    verified = 0
    for r in range(first_row, batch.seq.shape[0]):
        found_before = found
        if found >= most_hits:
            return found, r, scanned, verified
        first, last = batch.term_offsets[r], batch.term_offsets[r + 1]
        terms, weights = batch.terms[first:last], batch.weights[first:last]
        x, y, place = batch.x[r], batch.y[r], point_of(batch, r)
        # from the last term back, to accumulate the norm of the later terms
        square = 0.0
        for i in range(terms.shape[0] - 1, -1, -1):
            weight = np.float64(weights[i])
            rest = math.sqrt(square)
            square += weight * weight
            term = terms[i]
            # a term above all that were ever posted has no list
            if term >= v.start.shape[0]:
                continue
            start, count = v.start[term], v.count[term]
            scanned += count
            for block in range(start, start + count, _BLOCK):
                size = min(_BLOCK, start + count - block)
                end = block + size
                # zero the last word beyond the block, so that words can be tested whole
                words[(size - 1) >> 3] = 0
                _bound_block(
                    v.x[block:end],
                    v.y[block:end],
                    v.steepness[block:end],
                    v.base[block:end],
                    v.own[block:end],
                    v.rest[block:end],
                    np.float32(x),
                    np.float32(y),
                    np.float32(weight),
                    np.float32(rest),
                    passed,
                )
                for word in range((size + 7) >> 3):
                    # eight at once, as most do not pass
                    if words[word] == 0:
                        continue
                    for p in range(word << 3, min(size, (word + 1) << 3)):
                        if passed[p] == 0:
                            continue
                        slot = v.slot[block + p]
                        score = exact_score(c, slot, term, place, terms, weights)
                        verified += 1
                        if score >= c.threshold[slot]:  # False for NaN: not the first common term
                            if found == out_slot.shape[0]:
                                # the hit columns are full: return the rows before this one, or the capacity needed
                                return found_before, r, scanned, verified
                            out_slot[found] = slot
                            out_row[found] = r
                            out_score[found] = score
                            found += 1
    return found, batch.seq.shape[0], scanned, verified
