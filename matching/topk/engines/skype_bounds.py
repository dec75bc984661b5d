"""Upper bounds of the score of a node, of a posting and of a pair in engine `skype`, by the Skype paper's rules."""

import math

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount
from matching.geo.sphere import distance_to, least_angle_squared

#: What is counted, and the place of each count (`matching.topk.engines.skype.Skype.counters`).
COUNTERS = (
    "postings", "nodes", "cells", "groups", "early_stop", "scanned", "prefix", "l2", "inner_outer",
    "exact_distance", "signature", "first_common", "unseen", "verified", "hits",
)  # fmt: skip
(
    POSTINGS, NODES, CELLS, GROUPS, EARLY_STOP, SCANNED, PREFIX, L2, INNER_OUTER,
    EXACT_DISTANCE, SIGNATURE, FIRST_COMMON, UNSEEN, VERIFIED, HITS,
) = range(len(COUNTERS))  # fmt: skip


@njit_inner_no_refcount
def bound_l2(
    x, y, slope, base, own, rest, first, last, message_x, message_y, message_weight, message_rest, passed
):  # fmt: skip
    """Set passed[p] to 1 where the bound of posting first + p reaches its threshold. All float32; it vectorises."""
    x, y, slope, base = x[first:last], y[first:last], slope[first:last], base[first:last]
    own, rest = own[first:last], rest[first:last]
    for p in range(x.shape[0]):
        # Theorem 5.1 with norms: the product of this term, then Cauchy-Schwarz over those after it (spec 1.3)
        margin = base[p] + own[p] * message_weight + rest[p] * message_rest
        dx = x[p] - message_x
        dy = y[p] - message_y
        steep = slope[p]
        # margin >= slope * distance, without the root
        # the sign first, since squaring loses it; `&`, not `and`, leaves no branch
        passed[p] = (margin >= np.float32(0.0)) & (margin * margin >= steep * steep * (dx * dx + dy * dy))


@njit_inner_no_refcount
def bound_l2_sphere(
    x, y, z, slope, base, own, rest, first, last, message_x, message_y, message_z, message_weight, message_rest, passed
):  # fmt: skip
    """As `bound_l2`, by angles: a kernel of its own, since one more column would slow down the plane."""
    x, y, z, slope, base = x[first:last], y[first:last], z[first:last], slope[first:last], base[first:last]
    own, rest = own[first:last], rest[first:last]
    for p in range(x.shape[0]):
        margin = base[p] + own[p] * message_weight + rest[p] * message_rest
        dx = x[p] - message_x
        dy = y[p] - message_y
        dz = z[p] - message_z
        steep = slope[p]
        away = least_angle_squared(dx * dx + dy * dy + dz * dz)
        passed[p] = (margin >= np.float32(0.0)) & (margin * margin >= steep * steep * away)


@njit_inner
def bound_any(v, first, last, x, y, z, away, weight, rest, total, peak, norm, max_distance, rules, counters, passed):
    """As `bound_l2`, for any choice of rules, counting what each of them cuts. `v`: the view of the lists."""
    on_sphere = v.z.shape[0] > 0
    for p in range(first, last):
        passed[p - first] = 0
        slope = v.slope[p]
        margin = v.base[p] - slope * away
        # without a rule on texts their norms alone are the bound
        text = (np.float32(1.0) - (v.alpha[p] if on_sphere else slope * max_distance)) * norm
        # Theorem 5.1 and Lemma 4: each product bounds all from the first common term on, and so does the lesser
        if rules.prefix:
            text = min(text, v.total[p] * peak, v.peak[p] * total)
            if margin + text < np.float32(0.0):
                counters[PREFIX] += 1
                continue
        if rules.l2:
            text = min(text, v.own[p] * weight + v.rest[p] * rest)
            if margin + text < np.float32(0.0):
                counters[L2] += 1
                continue
        # the way between the points leaves the cell once: the parts add up, where a root would be looser (spec 1.5);
        # at 0 the message is in the cell, or the posting in the tail, where `inner` was never written. On the sphere
        # chords add up so, and angles exceed them by ever more (spec 1.8)
        if rules.inner_outer and away > np.float32(0.0):
            margin -= slope * v.inner[p]
            if margin + text < np.float32(0.0):
                counters[INNER_OUTER] += 1
                continue
        if rules.exact_distance:
            dx, dy = v.x[p] - x, v.y[p] - y
            squared = dx * dx + dy * dy
            if on_sphere:
                squared = least_angle_squared(squared + (v.z[p] - z) * (v.z[p] - z))
            # base, not margin: the distance itself stands in for its bounds
            if v.base[p] + text < slope * np.float32(math.sqrt(squared)):
                counters[EXACT_DISTANCE] += 1
                continue
        passed[p - first] = 1


@njit(cache=True, nogil=True, inline="always")
def within(floats, node, away, weight, rest, total, peak, norm, least_alpha, stored_at, prefix, l2, envelope):
    """Whether a node at distance `away` may have a subscription that the message reaches. All float32."""
    # no subscription below weighs text higher. Maxima of different postings only make the bound looser
    text = (np.float32(1.0) - least_alpha) * norm
    if prefix:
        text = min(text, floats[node, 10] * peak, floats[node, 11] * total)
    if l2:
        text = min(text, floats[node, 8] * weight + floats[node, 9] * rest)
    at_zero = floats[node, 5]
    # Theorem 5.3, multiplied: a distance is never negative, so the least slope is right in every case, where the
    # sign of the similarity would decide between least and largest alpha (spec 1.6)
    if not envelope:
        return at_zero + text >= floats[node, 4] * away
    # a maximum of lines is convex: between two stored values their chord lies above it
    near, far = stored_at[0], stored_at[1]
    if away < near:
        reach = at_zero + (floats[node, 6] - at_zero) * (away * stored_at[2])
    elif away < far:
        reach = floats[node, 6] + (floats[node, 7] - floats[node, 6]) * ((away - near) * stored_at[3])
    else:
        # beyond the last value every line falls at least as fast as that of the least slope
        reach = floats[node, 7] - floats[node, 4] * (away - far)
    return reach + text >= np.float32(0.0)


@njit_inner
def stop_at(stop_base, stop_text, first, last, least_slope, away, weight):
    """The first posting of a group from which on none can reach; both columns fall, so it is found by bisection."""
    # Theorem 5.4: one slope for the whole group, its least, so that the test turns from false to true only once
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        if stop_base[middle] + stop_text[middle] * weight < least_slope * away:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True, nogil=True)
def may_reach(c, slot, term, place, terms, weights, rest, total, peak):
    """1 if the pair may reach its threshold, 0 if it cannot, -1 if `term` is not its first common one (Theorem 5.2)."""
    at, end = c.term_start[slot], c.term_start[slot] + c.term_count[slot]
    alpha = c.alpha[slot]
    spatial = 1.0 - distance_to(place, c.x[slot], c.y[slot], c.z[slot]) / c.max_distance[slot]
    needed = c.threshold[slot] - alpha * spatial
    # of all its terms; the merge takes off what it passes, but for `largest`: too large is only looser
    square = sum_ = largest = 0.0
    for j in range(at, end):
        weight = np.float64(c.weights[j])
        square += weight * weight
        sum_ += weight
        largest = max(largest, weight)
    text = 0.0
    common = 0
    i = 0
    while at < end and i < terms.shape[0]:
        if c.terms[at] > terms[i]:
            i += 1
            continue
        weight = np.float64(c.weights[at])
        square -= weight * weight
        sum_ -= weight
        if c.terms[at] == terms[i]:
            if common == 0 and terms[i] != term:
                return -1
            common += 1
            # exact so far, which the printed algorithm is not; else the bound would lose results (spec 1.7)
            text += weight * weights[i]
            i += 1
            # the subtraction may leave `square` slightly below zero
            more = min(math.sqrt(max(0.0, square)) * rest[i], sum_ * peak[i], largest * total[i])
            # slack, since the statistics of the message are float32
            if (1.0 - alpha) * (text + more) + 1e-5 < needed:
                return 0
        at += 1
    return 1
