"""The textual half of a signature: which keywords somebody waits for, and where.

The world is a quadtree of `levels` levels below the root (level l has 2^l x 2^l nodes). A rectangle is put into the
nodes of the finest level on which it touches at most two a side, with its keywords: that makes pairs (node, keyword),
one number each. A message is let through if any of its terms is in the set together with any node that contains the
message (spec 4.7, L1), one node a level. A subscription that wants all of its keywords (`boolean`) is put in under its
rarest alone, one that wants any (`skyline`) under each. All nodes share one filter, a `CuckooFilter` of pairs, so that
no node is full while another is empty.

Beside it stands the papers' signature, one-permutation min-wise hashing (`MinwiseFilter`), which as printed loses
matches and has to be asked for by name.

Read on in `distribution.signatures.signature`.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from distribution.signatures.cuckoo import hashes
from distribution.signatures.spatial import Boxes
from matching.model import Int32, Int64
from matching.storage.slots import as_input

#: Levels of the quadtree below the root: nodes of 1/64 of the world's side, about the router's cells.
LEVELS = 6
#: Bins of a min-wise signature, as in the paper.
BINS = 2500
#: A message with more pairs than this (a wide range message) is let through without a look.
MOST_PAIRS = 4096
#: Shift that makes room for a term below a node.
_TERM_BITS = 31
_TERM_MASK = (1 << _TERM_BITS) - 1
_PERMUTATION = 0x2545F491
_EMPTY = np.int32(2**31 - 1)


def nodes_down_to(levels: int) -> int:
    """Nodes of a quadtree with `levels` levels below its root."""
    return (4 ** (levels + 1) - 1) // 3


def claimed_pairs(
    boxes: Boxes, side: int, levels: int, term_offsets: Int64, terms: Int32, used: Int64, step: int
) -> Int64:
    """Pairs (node, keyword) of subscriptions, int64[nnz], repeats and all. O(pairs).

    Parameters
    ----------
    boxes : Boxes                cells of their rectangles in a grid of `side` = 2**s cells, s >= levels
    term_offsets, terms          their keywords (int64[n + 1], int32[nnz]), those to be put in
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
    """Pairs (node, term) of messages with the nodes they touch, on the levels whose bit is set in `used`.

    Returns
    -------
    offsets : int64[n + 1]
    pairs : int64[nnz]      message after message, node after node
    beyond : bool[n]        more than `MOST_PAIRS`; none of them are listed
    """
    rows = term_offsets.shape[0] - 1
    row, cells = as_input(boxes.row, np.int64), as_input(boxes.cells, np.int32)
    term_offsets, terms = as_input(term_offsets, np.int64), as_input(terms, np.int32)
    finest = side.bit_length() - 1 - levels
    offsets, beyond = np.zeros(rows + 1, np.int64), np.zeros(rows, np.bool_)
    _count_asked(row, cells, finest, levels, used, term_offsets, offsets, beyond)
    pairs = np.empty(int(offsets[-1]), np.int64)
    _list_asked(row, cells, finest, levels, used, term_offsets, terms, beyond, pairs)
    return offsets, pairs, beyond


class MinwiseFilter:
    """One-permutation min-wise signatures of the keywords in each node; the methods of the other filters.

    The printed rule estimates the resemblance of two keyword sets and throws away messages that matter, as a rule all
    of them (`approximate`). Read otherwise (`minwise`, spec 4.7, L2) the same bins never lose one: a keyword is
    certainly absent if its bin is empty or holds only larger values, and otherwise let through.

    Deleted keywords stay, which lets more through, until a new filter is made.

    Parameters
    ----------
    nodes, bins : int
    approximate : bool
        Whether `any_of` applies the paper's rule (12), (14) with lambda = 1 / sqrt(bins): loses matches.
    unbiased : bool
        With `approximate`: divide by the bins that are not empty in both, as the estimator is meant to.
    """

    def __init__(self, nodes: int, bins: int = BINS, approximate: bool = False, unbiased: bool = False):
        self.least = np.full((nodes, bins), _EMPTY, np.int32)
        self.state = np.array([0, int(approximate), int(unbiased)], np.int64)

    def __len__(self) -> int:
        """Pairs inserted and not deleted."""
        return int(self.state[0])

    def insert(self, items: Int64) -> int:
        """Insert distinct pairs; all go in. O(n)."""
        _insert(self.least, *_places(items))
        self.state[0] += items.shape[0]
        return items.shape[0]

    def delete(self, items: Int64) -> None:
        """Count pairs out; what they left stays."""
        self.state[0] -= items.shape[0]

    def contains(self, items: Int64) -> NDArray[np.bool_]:
        """bool[n]: false where the keyword is certainly not in the node. Never false for a member. O(n)."""
        found = np.empty(items.shape[0], np.bool_)
        _maybe_there(self.least, *_places(items), found)
        return found

    def any_of(self, offsets: Int64, items: Int64) -> NDArray[np.bool_]:
        """bool[rows]: whether a row of pairs (as of `message_pairs`) is let through by the paper's rule. O(n)."""
        passed = np.empty(offsets.shape[0] - 1, np.bool_)
        occupied = np.count_nonzero(self.least != _EMPTY, axis=1)
        threshold = 1.0 / math.sqrt(self.least.shape[1])
        nodes, places = _places(items)
        offsets = as_input(offsets, np.int64)
        _resembles(self.least, occupied, offsets, nodes, places, bool(self.state[2]), threshold, passed)
        return passed

    @property
    def approximate(self) -> bool:
        """Whether to ask `any_of` instead of `contains`."""
        return bool(self.state[1])

    def arrays(self) -> dict[str, np.ndarray]:
        """`words` int32[nodes, bins], `state` int64[3] (views)."""
        return {"words": self.least, "state": self.state}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "MinwiseFilter":
        """Continue from `arrays`; they are copied."""
        made = cls(0, 1)
        made.least, made.state = arrays["words"].copy(), arrays["state"].copy()
        return made

    @property
    def nbytes(self) -> int:
        return self.least.nbytes + self.state.nbytes


@njit(cache=True, nogil=True)
def _pair(level, x, y, term):
    """The number of (node, term): nodes are numbered level by level, row by row."""
    # Levels above have (4**level - 1) / 3 nodes. With 31 bits of term it stays below 2**62, as `hashes` wants.
    node = ((1 << (2 * level)) - 1) // 3 + (y << level) + x
    return (node << _TERM_BITS) | np.int64(term)


@njit(cache=True, nogil=True)
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
        # Counted first, so that the pairs of a large batch lie in one array of the right length.
        total += wide * high * (term_offsets[row[i] + 1] - term_offsets[row[i]])
    return total


@njit(cache=True, nogil=True)
def _list_claims(row, boxes, finest, levels, term_offsets, terms, used, step, pairs):
    end = 0
    for i in range(row.shape[0]):
        level = _level_of(boxes[i], finest, levels)
        shift = finest + levels - level
        # Messages ask on levels with somebody on them, and on no others.
        used[level] += step
        for y in range(boxes[i, 1] >> shift, (boxes[i, 3] >> shift) + 1):
            for x in range(boxes[i, 0] >> shift, (boxes[i, 2] >> shift) + 1):
                for at in range(term_offsets[row[i]], term_offsets[row[i] + 1]):
                    pairs[end] = _pair(level, x, y, terms[at])
                    end += 1


@njit(cache=True, nogil=True)
def _count_asked(row, boxes, finest, levels, used, term_offsets, offsets, beyond):
    for i in range(row.shape[0]):
        nodes = 0
        for level in range(levels + 1):
            if (used >> level) & 1:
                shift = finest + levels - level
                wide = (boxes[i, 2] >> shift) - (boxes[i, 0] >> shift) + 1
                nodes += wide * ((boxes[i, 3] >> shift) - (boxes[i, 1] >> shift) + 1)
        pairs = nodes * (term_offsets[row[i] + 1] - term_offsets[row[i]])
        if pairs > MOST_PAIRS:
            # Let through without a look: too much may be sent, never too little.
            beyond[row[i]] = True
        else:
            # A message has one box, so nothing is added up here.
            offsets[row[i] + 1] = pairs
    for i in range(1, offsets.shape[0]):
        offsets[i] += offsets[i - 1]


@njit(cache=True, nogil=True)
def _list_asked(row, boxes, finest, levels, used, term_offsets, terms, beyond, pairs):
    end = 0
    for i in range(row.shape[0]):
        if beyond[row[i]]:
            continue
        for level in range(levels + 1):
            if (used >> level) & 1:
                shift = finest + levels - level
                for y in range(boxes[i, 1] >> shift, (boxes[i, 3] >> shift) + 1):
                    for x in range(boxes[i, 0] >> shift, (boxes[i, 2] >> shift) + 1):
                        # All terms of a node together: `_resembles` compares node by node.
                        for at in range(term_offsets[row[i]], term_offsets[row[i] + 1]):
                            pairs[end] = _pair(level, x, y, terms[at])
                            end += 1


def _places(pairs: Int64) -> tuple[Int64, Int64]:
    """Node of each pair, and the place of its keyword in the permutation; the last place stands for an empty bin."""
    places = np.minimum(hashes(pairs & _TERM_MASK, _PERMUTATION), int(_EMPTY) - 1)
    return as_input(pairs >> _TERM_BITS, np.int64), as_input(places, np.int64)


@njit(cache=True, nogil=True)
def _bin_of(place, bins):
    # Bins are runs of the permutation: equal parts of 31 bits.
    return (place * bins) >> _TERM_BITS


@njit(cache=True, nogil=True)
def _insert(least, nodes, places):
    for i in range(nodes.shape[0]):
        bin_ = _bin_of(places[i], least.shape[1])
        # An empty bin holds the largest value, never 0, or it would win every minimum (spec 4.7).
        if places[i] < least[nodes[i], bin_]:
            least[nodes[i], bin_] = places[i]


@njit(cache=True, nogil=True)
def _maybe_there(least, nodes, places, out):
    for i in range(nodes.shape[0]):
        lowest = least[nodes[i], _bin_of(places[i], least.shape[1])]
        # A keyword that was put in left its own value or a smaller one in its bin (spec 4.7, L2).
        out[i] = lowest != _EMPTY and lowest <= places[i]


@njit(cache=True, nogil=True)
def _resembles(least, occupied, offsets, nodes, places, unbiased, threshold, out):
    """out[r]: whether in some node the row's keywords and the node's seem to have more in common than `threshold`."""
    bins = least.shape[1]
    mine = np.full(bins, _EMPTY, np.int32)
    for r in range(out.shape[0]):
        out[r] = False
        first, last = offsets[r], offsets[r + 1]
        while first < last:
            node, end = nodes[first], first
            while end < last and nodes[end] == node:
                bin_ = _bin_of(places[end], bins)
                mine[bin_] = min(mine[bin_], places[end])
                end += 1
            # Bins empty in both are no match: counted as one, they would let everything through (spec 4.7).
            equal, only_mine = 0, 0
            for at in range(first, end):
                bin_ = _bin_of(places[at], bins)
                if mine[bin_] != _EMPTY:  # a bin that two keywords share is looked at once
                    equal += mine[bin_] == least[node, bin_]
                    only_mine += least[node, bin_] == _EMPTY
                    mine[bin_] = _EMPTY
            # Rule (12) as printed divides by all bins; the estimator wants those that are not empty in both.
            compared = occupied[node] + only_mine if unbiased else bins
            # Rule (14): as printed it asks for more than sqrt(bins) equal ones, and a message fills a few (spec 4.7).
            out[r] = out[r] or equal > threshold * compared
            first = end
