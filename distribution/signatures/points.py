"""Signatures of point messages, tested in one pass: what `SignatureReplica.may_match` finds step by step.

A batch is cut by the owner of each message, so that a query task's signature is tested with a few dozen messages, for
which a dozen NumPy calls take longer than the look-ups. Here the cells of a message, its nodes and terms are looked up
as they are computed, and the first that is found ends it. Range messages go the way of `may_match`. Used by
`distribution.signatures.signature`.
"""

import numpy as np

from distribution.signatures.cuckoo import has_item
from distribution.signatures.minwise import TERM_BITS, may_be_in_row
from distribution.signatures.spatial import BORDER, number_of
from distribution.signatures.text import MOST_PAIRS, pair_of
from matching.njit import njit, njit_no_refcount


@njit_no_refcount
def _cell(value, side):
    return min(max(np.int64(np.floor(value * side)), 0), side - 1)


@njit(cache=True, nogil=True)
def pass_cells(x, y, rows, side, ranks, bitmap, words, state, noted, passed):
    """Set passed[row] for the messages of `rows` that lie in a cell of a signature.

    x, y : float64[n]        of all messages, in the unit square; none where not a number
    rows : int64[m]          those to test
    side, ranks              of the `Numbering`
    bitmap : uint8[]         the filter that is exact, or none
    words, state             the cuckoo filter, or none
    noted : int32[cells]     counts of claims that no patch covers, or none
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
    """Clear passed[row] where no term of a message is in the signature together with a node that contains it.

    x, y, rows, side         as of `pass_cells`; rows that have not passed are left out
    levels, used             of the quadtree: the finest, and a bit for each that is used
    words, state             the cuckoo filter of pairs, or none
    least, row_of            the min-wise signatures, or none
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
        # with more pairs than are looked up it passes, as in `message_pairs`
        passed[row] = found or pairs > MOST_PAIRS
