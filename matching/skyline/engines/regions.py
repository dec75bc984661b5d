"""The region step: an inner disc first, so that most of what lies outside is never compared.

After Deng et al. (2022), who take an inner rectangle; that loses results and invents some, since a point next to the
middle of its side is nearer to the centre than its corners. With a disc around the centre every message inside is
spatially better than every one outside. So no message outside dominates one inside, and one inside dominates all those
outside that have no more text relevance than it. Of the outer region only what is above the highest text relevance of
the inner skyline is left to be compared, and only with its like.

It pays where a skyline is made from all candidates by comparing pairs; a sort has nothing to gain from it, and the
engines that keep what may come back need the dominated ones too.
"""

import numpy as np
from numba import njit

#: Radius of the disc in half diagonals of the rectangle.
INNER_SHARE = 0.2


@njit(cache=True, nogil=True)
def split(spatial, text, least_inner, mark, best):
    """Mark the undominated by an inner and an outer step.

    Parameters
    ----------
    spatial, text : float64[n]
    least_inner : float    spatial relevance from which on a message belongs to the disc
    mark : int8[n]         scratch
    best : bool[n]         False before; set for every message that no other one dominates
    """
    for i in range(spatial.shape[0]):
        # by relevance, not by distance: whatever was rounded, all inside are strictly better than all outside
        mark[i] = 1 if spatial[i] >= least_inner else 0
    compare_marked(spatial, text, mark, best)
    highest = -1.0
    for i in range(spatial.shape[0]):
        # the text of all inside is no higher than that of their skyline, which is in `best` alone so far
        if best[i]:
            highest = max(highest, text[i])
    for i in range(spatial.shape[0]):
        # with no more text than that it is dominated from inside, equal text included, since inside is nearer
        mark[i] = 1 if spatial[i] < least_inner and text[i] > highest else 0
    compare_marked(spatial, text, mark, best)


@njit(cache=True, nogil=True)
def compare_marked(spatial, text, mark, best):
    """Block nested loops over the marked ones: each is compared with those that nothing has beaten yet. O(n * best)."""
    # room for all: so one round does, where the original, short of memory, puts what does not fit into a file
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
        # then it has beaten nobody in the window: whatever beats it would have beaten that before
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
