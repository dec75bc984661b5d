"""The region step: an inner disc first, so that most messages outside it are never compared.

After Deng et al. (2022), who take an inner rectangle, which gives wrong results: a point next to the middle of its side
is nearer to the centre than its corners. Every message in a disc around the centre is spatially better than every one
outside. So none outside dominates one inside, and one inside dominates all those outside with no more text relevance.
Outer messages above the highest text relevance of the inner skyline are compared with one another only.

It pays where a skyline is computed from all candidates by comparing pairs; sorting gains nothing from it, and the
engines with result buffers need dominated messages too.
"""

import numpy as np

from compiling.njit import njit

#: Radius of the disc, in half diagonals of the rectangle.
INNER_FRACTION = 0.2


@njit(cache=True, nogil=True)
def split(spatial, text, least_inner, mark, best):
    """Mark the undominated, first in the disc, then outside.

    Parameters
    ----------
    spatial, text : float64[n]
    least_inner : float    spatial relevance from which on a message belongs to the disc
    mark : int8[n]         scratch
    best : bool[n]         False before; set for every message that no other one dominates
    """
    for i in range(spatial.shape[0]):
        # by relevance, not distance: despite rounding, all inside are strictly better than all outside
        mark[i] = 1 if spatial[i] >= least_inner else 0
    compare_marked(spatial, text, mark, best)
    highest = -1.0
    for i in range(spatial.shape[0]):
        # no text relevance inside is above that of the inner skyline, which is all of `best` so far
        if best[i]:
            highest = max(highest, text[i])
    for i in range(spatial.shape[0]):
        # with no more text than that it is dominated from inside, equal text included, since inside is nearer
        mark[i] = 1 if spatial[i] < least_inner and text[i] > highest else 0
    compare_marked(spatial, text, mark, best)


@njit(cache=True, nogil=True)
def compare_marked(spatial, text, mark, best):
    """Block nested loops over the marked messages: each is compared with those undominated so far. O(n * best)."""
    # capacity for all, hence one pass, where the original spills to a file
    window = np.empty(spatial.shape[0], np.int64)
    length = 0
    for i in range(spatial.shape[0]):
        if mark[i] == 0:
            continue
        beaten, kept = False, 0
        for w in range(length):
            j = window[w]
            # coincident ones dominate neither way: all of them stay
            if spatial[j] >= spatial[i] and text[j] >= text[i] and (spatial[j] > spatial[i] or text[j] > text[i]):
                beaten = True
                break
        # it dominates none in the window: its dominator would have dominated that one before
        if beaten:
            continue
        for w in range(length):
            j = window[w]
            if not (spatial[i] >= spatial[j] and text[i] >= text[j] and (spatial[i] > spatial[j] or text[i] > text[j])):
                window[kept] = j
                kept += 1
        window[kept] = i
        length = kept + 1
    for w in range(length):
        best[window[w]] = True
