"""Kernels that test point messages against a signature; the answers are those of `SignatureReplica.may_match`.

A distribution task splits a batch by the owner of each message, so that it tests a query task's signature with a few
dozen messages. For so few the NumPy calls of `may_match` take longer than the lookups. These kernels compute the cells,
nodes and terms of one message at a time, and stop at the first that the filter contains. Range messages are left to
`may_match`.
"""

import numpy as np

from compiling.njit import njit, njit_inner_no_refcount
from distribution.signatures.cuckoo import has_item
from distribution.signatures.minwise import TERM_BITS, may_be_in_row
from distribution.signatures.spatial import BORDER, number_of
from distribution.signatures.text import MOST_PAIRS, pair_of


@njit_inner_no_refcount
def _cell(value, side):
    """Column or row of a coordinate (float64 in the unit square) in a grid of `side` cells a side."""
    return min(max(np.int64(np.floor(value * side)), 0), side - 1)


@njit(cache=True, nogil=True)
def pass_cells(x, y, rows, side, ranks, bitmap, words, state, noted, passed):
    """Set passed[row] for each message of `rows`: whether a cell that it touches is in the signature. O(m).

    x, y : float64[n]        of all messages of the batch, in the unit square; NaN: the message has no point
    rows : int64[m]          messages to test
    side, ranks              of the `Numbering`
    bitmap : uint8[]         bits of a `CellBitmap`; empty if the filter is another
    words, state             uint64[] and int64[] of a `CuckooFilter`; empty if the filter is another
    noted : int32[cells]     by cell, claims that no patch covers yet; empty if there are none
    passed : bool[n]         output
    """
    for row in rows:
        if np.isnan(x[row]) or np.isnan(y[row]):
            continue
        found = False
        for j in range(_cell(y[row] - BORDER, side), _cell(y[row] + BORDER, side) + 1):
            for i in range(_cell(x[row] - BORDER, side), _cell(x[row] + BORDER, side) + 1):
                cell = number_of(ranks, side, i, j)
                if cell < 0:
                    continue
                if bitmap.shape[0]:
                    found = found or bitmap[cell >> 3] >> (cell & 7) & 1 > 0
                elif words.shape[0]:
                    found = found or has_item(words, state, cell)
                if noted.shape[0]:
                    found = found or noted[cell] > 0
        passed[row] = found


@njit(cache=True, nogil=True)
def pass_terms(
    x, y, rows, side, levels, used, term_offsets, terms, words, state, least, row_of, passed
):  # fmt: skip
    """Clear passed[row] for each message of `rows` that has no pair in the filter: a node that contains it, and a term.

    O(pairs) a message, at most `MOST_PAIRS` of them decide.

    x, y, rows, side         as of `pass_cells`
    levels, used             number of the quadtree's finest level; bit l is set if level l is used
    term_offsets, terms      terms of all messages of the batch (int64[n + 1], int32[nnz])
    words, state             of the `CuckooFilter` of pairs; empty if the filter is another
    least, row_of            of a `MinwiseFilter`; empty if the filter is another
    passed : bool[n]         input and output; the kernel skips rows that are False already
    """
    finest = 0
    while side >> (finest + levels) > 1:
        finest += 1
    for row in rows:
        if not passed[row]:
            continue
        south, north = _cell(y[row] - BORDER, side), _cell(y[row] + BORDER, side)
        west, east = _cell(x[row] - BORDER, side), _cell(x[row] + BORDER, side)
        found, pairs = False, 0
        for level in range(levels, -1, -1):
            if not used >> level & 1:
                continue
            shift = finest + levels - level
            for j in range(south >> shift, (north >> shift) + 1):
                for i in range(west >> shift, (east >> shift) + 1):
                    node = pair_of(level, i, j, 0) >> TERM_BITS
                    pairs += term_offsets[row + 1] - term_offsets[row]
                    if row_of.shape[0] and row_of[node] < 0:
                        continue
                    for at in range(term_offsets[row], term_offsets[row + 1]):
                        if words.shape[0]:
                            found = has_item(words, state, pair_of(level, i, j, terms[at]))
                        elif row_of.shape[0]:
                            found = may_be_in_row(least, row_of[node], np.int64(terms[at]))
                        if found:
                            break
                    if found:
                        break
                if found:
                    break
            if found:
                break
        # a message with more pairs than this passes without a lookup, as in `message_pairs`
        passed[row] = found or pairs > MOST_PAIRS
