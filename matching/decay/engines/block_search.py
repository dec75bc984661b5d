"""Subscriptions that a message may reach among the postings of one keyword.

The bounds are those of `matching.decay.engines.block_lists`, all in float32 with slack: a posting that is skipped
cannot reach its threshold, the others are scored exactly by the caller.

On the sphere distances are compared as squared chords: that of an angle r is 2 - 2 cos r, which is at most r^2 - r^4 /
12 + r^6 / 360, three products where many postings take one instruction (spec G11).
"""

import numpy as np

from compiling.njit import njit, njit_inner, njit_no_refcount
from matching.decay.engines.block_lists import (
    ABSOLUTE_SLACK,
    BLOCK,
    EAST,
    FAR,
    GROUP,
    HIGH,
    LEVEL,
    LOW,
    NO_LEVEL,
    NORTH,
    RELATIVE_SLACK,
    REST,
    SOUTH,
    TEXT_SLOPE,
    WEST,
    is_on_sphere,
)

#: Radians, more than between any two places.
_BEYOND = np.float32(4.0)


@njit_no_refcount
def candidates_of(v, term, x, y, z, far, factor, text, others, signature, passed, out):
    """Slots of a list that the message may reach, into `out` (int32, as long as the list).

    Parameters
    ----------
    v : Lists
    term : int               below `v.start.shape[0]`
    x, y, z : float32        the message; z is 0 in the plane
    far, factor : float32    see `matching.decay.engines.block_lists`
    text : float32           largest text score of a subscription with this keyword alone
    others : float32         factor by which a second keyword lowers that, at most
    signature : uint32       bits of its other terms
    passed : uint8[BLOCK]    scratch

    Returns
    -------
    found, scanned : int
    """
    found = scanned = 0
    start, count = v.start[term], v.count[term]
    first, on_sphere = v.first_summary[term], is_on_sphere(v)
    if first < 0 or count <= BLOCK:
        if count:
            a, b = start, start + count
            if on_sphere:
                found = _bound_on_sphere(v, a, b, x, y, z, factor, text, others, signature, passed, out, 0)
            else:
                found = bound_postings(v, a, b, x, y, far, factor, text, others, signature, passed, out, 0)
        return found, count
    blocks = (count + BLOCK - 1) // BLOCK
    groups = first + (v.capacity[term] + BLOCK - 1) // BLOCK
    for group in range((blocks + GROUP - 1) // GROUP):
        if not _may_reach(v.summaries, groups + group, x, y, z, far, factor, text, others):
            continue
        least = np.float32(np.inf)
        for block in range(group * GROUP, min(group * GROUP + GROUP, blocks)):
            if _may_reach(v.summaries, first + block, x, y, z, far, factor, text, others):
                a = start + block * BLOCK
                b = min(a + BLOCK, start + count)
                scanned += b - a
                if on_sphere:
                    found = _bound_on_sphere(v, a, b, x, y, z, factor, text, others, signature, passed, out, found)
                else:
                    found = bound_postings(v, a, b, x, y, far, factor, text, others, signature, passed, out, found)
                # levels have risen since the summary was made; changes by this message count from the next one on
                v.summaries[first + block, LEVEL] = _least(v.level, a, b)
            least = min(least, v.summaries[first + block, LEVEL])
        v.summaries[groups + group, LEVEL] = least
    return found, scanned


@njit(cache=True, nogil=True)
def _least(level, a, b):
    least = np.float32(np.inf)
    for place in range(a, b):
        least = min(least, level[place])
    return least


@njit_inner
def _chord_of(reach):
    """Upper bound of the squared chord of an angle in radians, 0 or more; all angles above `_BEYOND` count as that."""
    r = min(reach, _BEYOND)
    squared = r * r
    return squared * (np.float32(1.0) - squared * (np.float32(1.0 / 12.0) - squared * np.float32(1.0 / 360.0)))


@njit_inner
def _may_reach(summaries, row, x, y, z, far, factor, text, others):
    """Whether a posting under a summary may be reached."""
    on_sphere = summaries.shape[1] > FAR
    if on_sphere:
        far = summaries[row, FAR]
        # `NO_LEVEL`: a subscription that every message reaches; times a factor, the level may seem out of reach
        if summaries[row, LEVEL] <= NO_LEVEL:
            return True
    faded = summaries[row, LEVEL] * factor
    reach = far - faded
    slack = far + abs(faded)
    # a subscription with more keywords gets no more than `others` of it, or exactly its rest
    part = summaries[row, TEXT_SLOPE] * (text * max(others, summaries[row, REST]))
    reach += part
    slack += part
    reach += slack * RELATIVE_SLACK + ABSOLUTE_SLACK
    dx = max(np.float32(0.0), max(summaries[row, WEST] - x, x - summaries[row, EAST]))
    dy = max(np.float32(0.0), max(summaries[row, SOUTH] - y, y - summaries[row, NORTH]))
    if on_sphere:
        dz = max(np.float32(0.0), max(summaries[row, LOW] - z, z - summaries[row, HIGH]))
        return reach >= np.float32(0.0) and _chord_of(reach) >= dx * dx + dy * dy + dz * dz
    # the sign first, since squaring loses it
    return reach >= np.float32(0.0) and reach * reach >= dx * dx + dy * dy


@njit_inner
def bound_postings(v, a, b, x, y, far, factor, text, others, signature, passed, out, found):
    """Append those of the postings a to b (a block at most) that may be reached; returns how many there are now."""
    n = b - a
    px, py, level = v.x[a:b], v.y[a:b], v.level[a:b]
    text_slope, rest, bits = v.text_slope[a:b], v.rest[a:b], v.signature[a:b]
    for p in range(n):
        # none of its other keywords is in the message: what remains of its text is known; else some of them may be
        remainder = rest[p] if bits[p] & signature == 0 else others
        part = text_slope[p] * (text * remainder)
        faded = level[p] * factor
        reach = far + part - faded
        reach += (far + part + abs(faded)) * RELATIVE_SLACK + ABSOLUTE_SLACK
        dx, dy = px[p] - x, py[p] - y
        passed[p] = (reach >= np.float32(0.0)) & (reach * reach >= dx * dx + dy * dy)
    return _take_passed(v, a, n, passed, out, found)


@njit_inner
def _bound_on_sphere(v, a, b, x, y, z, factor, text, others, signature, passed, out, found):
    """As `bound_postings`, on the sphere."""
    n = b - a
    px, py, pz, far, level = v.x[a:b], v.y[a:b], v.z[a:b], v.far[a:b], v.level[a:b]
    text_slope, rest, bits = v.text_slope[a:b], v.rest[a:b], v.signature[a:b]
    for p in range(n):
        remainder = rest[p] if bits[p] & signature == 0 else others
        part = text_slope[p] * (text * remainder)
        faded = level[p] * factor
        reach = far[p] + part - faded
        reach += (far[p] + part + abs(faded)) * RELATIVE_SLACK + ABSOLUTE_SLACK
        dx, dy, dz = px[p] - x, py[p] - y, pz[p] - z
        near = (reach >= np.float32(0.0)) & (_chord_of(reach) >= dx * dx + dy * dy + dz * dz)
        passed[p] = near | (level[p] <= NO_LEVEL)
    return _take_passed(v, a, n, passed, out, found)


@njit_inner
def _take_passed(v, a, n, passed, out, found):
    """Append the slots of those of n postings from a on that have passed; returns how many there are now."""
    for p in range(n):
        # a hole passes only where its infinite level meets a factor of zero, and never counts
        if passed[p] and v.slot[a + p] >= 0:
            out[found] = v.slot[a + p]
            found += 1
    return found
