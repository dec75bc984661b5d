"""The textual half of a signature: keywords by place.

The world is a quadtree of `levels` levels below the root (level l has 2^l x 2^l nodes). A rectangle is stored with its
keywords in the nodes of the finest level on which it touches at most two nodes a side: pairs (node, keyword), an int64
each. A message passes if the set has a pair of one of its terms and a node that meets the message (spec 4.7, L1). A
point lies in one node of each level. A subscription that needs all of its keywords is stored under the rarest; one that
needs any of them is stored under each. All nodes share one filter, so that no node is full while another is empty: a
`CuckooFilter` of pairs, or the papers' `distribution.signatures.minwise`, which as printed loses matches.
"""

import numpy as np
from numpy.typing import NDArray

from compiling.njit import njit, njit_inner, njit_no_refcount
from distribution.signatures.minwise import TERM_BITS
from distribution.signatures.spatial import Boxes
from matching.model import Int32, Int64
from matching.storage.slots import as_input

#: Levels of the quadtree below the root: nodes of 1/64 of the world's side, about the router's cells.
LEVELS = 6
#: A message with more pairs than this (a wide range message) passes without a lookup.
MOST_PAIRS = 4096


def claimed_pairs(
    boxes: Boxes, side: int, levels: int, term_offsets: Int64, terms: Int32, used: Int64, step: int
) -> Int64:
    """Pairs (node, keyword) of subscriptions, int64[nnz], with duplicates. O(pairs).

    Parameters
    ----------
    boxes : Boxes                cells of their rectangles in a grid of `side` = 2**s cells, s >= levels
    term_offsets, terms          their claimed keywords (int64[n + 1], int32[nnz])
    used : int64[levels + 1]     boxes on each level; `step` (1 or -1) is added for each box
    """
    row, cells = as_input(boxes.row, np.int64), as_input(boxes.cells, np.int32)
    offsets, terms = as_input(term_offsets, np.int64), as_input(terms, np.int32)
    finest = side.bit_length() - 1 - levels
    pairs = np.empty(_count_claims(row, cells, finest, levels, offsets), np.int64)
    _list_claims(row, cells, finest, levels, offsets, terms, used, step, pairs)
    return pairs


def message_pairs(
    boxes: Boxes, side: int, levels: int, term_offsets: Int64, terms: Int32, used: int
) -> tuple[Int64, Int64, NDArray[np.bool_]]:
    """Pairs (node, term) of messages with the nodes that they touch. O(pairs).

    Parameters
    ----------
    boxes, side, levels      as of `claimed_pairs`, but rectangles of messages
    term_offsets, terms      terms of the messages (int64[n + 1], int32[nnz])
    used : int               bit l is set if level l has subscriptions; the other levels are left out

    Returns
    -------
    offsets : int64[n + 1]
    pairs : int64[nnz]      message after message, node after node
    beyond : bool[n]        whether a message has more than `MOST_PAIRS`; none of its pairs is in `pairs`
    """
    rows = term_offsets.shape[0] - 1
    row, cells = as_input(boxes.row, np.int64), as_input(boxes.cells, np.int32)
    term_offsets, terms = as_input(term_offsets, np.int64), as_input(terms, np.int32)
    finest = side.bit_length() - 1 - levels
    offsets, beyond = np.zeros(rows + 1, np.int64), np.zeros(rows, np.bool_)
    _count_message_pairs(row, cells, finest, levels, used, term_offsets, offsets, beyond)
    pairs = np.empty(int(offsets[-1]), np.int64)
    _list_message_pairs(row, cells, finest, levels, used, term_offsets, terms, beyond, pairs)
    return offsets, pairs, beyond


@njit_inner
def pair_of(level, x, y, term):
    """The number of (node, term): nodes are numbered level by level, row by row."""
    # Coarser levels have (4**level - 1) / 3 nodes. With 31 bits for the term the number stays below 2**62, the limit of
    # the filters' hash functions.
    node = ((1 << (2 * level)) - 1) // 3 + (y << level) + x
    return (node << TERM_BITS) | np.int64(term)


@njit_no_refcount
def _level_of(box, finest, levels):
    """Finest level on which a box touches at most two nodes a side; `finest` shifts a cell to a node of it."""
    # Two nodes a side: four at most, and a small box across the middle of the world stays on a fine level.
    level, shift = levels, finest
    while level > 0 and ((box[2] >> shift) - (box[0] >> shift) > 1 or (box[3] >> shift) - (box[1] >> shift) > 1):
        level -= 1
        shift += 1
    return level


@njit(cache=True, nogil=True)
def _count_claims(row, boxes, finest, levels, term_offsets):
    total = 0
    for i in range(row.shape[0]):
        shift = finest + levels - _level_of(boxes[i], finest, levels)
        wide = (boxes[i, 2] >> shift) - (boxes[i, 0] >> shift) + 1
        high = (boxes[i, 3] >> shift) - (boxes[i, 1] >> shift) + 1
        # A first pass counts, so that `_list_claims` writes into one array of the right length.
        total += wide * high * (term_offsets[row[i] + 1] - term_offsets[row[i]])
    return total


@njit(cache=True, nogil=True)
def _list_claims(row, boxes, finest, levels, term_offsets, terms, used, step, pairs):
    end = 0
    for i in range(row.shape[0]):
        level = _level_of(boxes[i], finest, levels)
        shift = finest + levels - level
        # `message_pairs` skips levels without boxes.
        used[level] += step
        for y in range(boxes[i, 1] >> shift, (boxes[i, 3] >> shift) + 1):
            for x in range(boxes[i, 0] >> shift, (boxes[i, 2] >> shift) + 1):
                for at in range(term_offsets[row[i]], term_offsets[row[i] + 1]):
                    pairs[end] = pair_of(level, x, y, terms[at])
                    end += 1


@njit(cache=True, nogil=True)
def _count_message_pairs(row, boxes, finest, levels, used, term_offsets, offsets, beyond):
    for i in range(row.shape[0]):
        nodes = 0
        for level in range(levels + 1):
            if (used >> level) & 1:
                shift = finest + levels - level
                wide = (boxes[i, 2] >> shift) - (boxes[i, 0] >> shift) + 1
                nodes += wide * ((boxes[i, 3] >> shift) - (boxes[i, 1] >> shift) + 1)
        pairs = nodes * (term_offsets[row[i] + 1] - term_offsets[row[i]])
        if pairs > MOST_PAIRS:
            # Passes without a lookup: too much may be sent, never too little.
            beyond[row[i]] = True
        else:
            # A message has one box, so this assigns and does not add.
            offsets[row[i] + 1] = pairs
    for i in range(1, offsets.shape[0]):
        offsets[i] += offsets[i - 1]


@njit(cache=True, nogil=True)
def _list_message_pairs(row, boxes, finest, levels, used, term_offsets, terms, beyond, pairs):
    end = 0
    for i in range(row.shape[0]):
        if beyond[row[i]]:
            continue
        for level in range(levels + 1):
            if (used >> level) & 1:
                shift = finest + levels - level
                for y in range(boxes[i, 1] >> shift, (boxes[i, 3] >> shift) + 1):
                    for x in range(boxes[i, 0] >> shift, (boxes[i, 2] >> shift) + 1):
                        # All terms of a node together: the min-wise filter compares node by node.
                        for at in range(term_offsets[row[i]], term_offsets[row[i] + 1]):
                            pairs[end] = pair_of(level, x, y, terms[at])
                            end += 1
