"""Posting lists in chunks: the messages of a term lie side by side, each with a rounded place.

A query reads the lists of its keywords from end to end, and nearly all their messages lie outside its rectangle. So a
posting has the place of its message, and a list is contiguous but for its chunks of doubling length, linked from the
newest to the oldest. Places are float32; rounding is monotone, so that a rectangle rounded alike loses no message, and
the exact columns rule out false positives.

Linked lists of single messages took 7 to 20 times as long to search in windows of 100,000 to 1,000,000 messages. Used
by `matching.skyline.windows.inverted`.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit_no_refcount
from matching.model import Float32, Int32, Int64
from matching.storage.slots import grown

#: Places of the first chunk of a list, of the longest, and of a chunk's header: begin and length of the one before it.
_SHORTEST, LONGEST, HEADER = 4, 1024, 2


class SkylinePostings(NamedTuple):
    """Kernel view.

    chunk, size, used : int32[terms]    where the newest chunk of a term begins (-1: no list), places of it, in use
    row : int32[pool]                   message of a posting, ascending in a list
    lon, lat : float32[pool]            degrees, rounded
    end : int64[1]                      places of the pool in use
    """

    chunk: Int32
    size: Int32
    used: Int32
    row: Int32
    lon: Float32
    lat: Float32
    end: Int64


def new_postings(terms: int = 0, pool: int = 0) -> SkylinePostings:
    """No lists, with capacity for `terms` terms and `pool` places."""
    none = np.zeros(terms, np.int32)
    short = np.zeros(pool, np.float32)
    chunk, row = np.full(terms, -1, np.int32), np.zeros(pool, np.int32)
    return SkylinePostings(chunk, none, none.copy(), row, short, short.copy(), np.zeros(1, np.int64))


def with_terms(postings: SkylinePostings, highest: int) -> SkylinePostings:
    """The same with capacity for terms up to `highest`."""
    terms = highest + 1
    chunk, size, used = grown(postings.chunk, terms, -1), grown(postings.size, terms), grown(postings.used, terms)
    return postings._replace(chunk=chunk, size=size, used=used)


def linked(
    postings: SkylinePostings, term_offsets: Int64, terms: Int32, lon, lat, first: int, end: int
) -> SkylinePostings:
    """Append the terms of rows `first` to `end` - 1 to their lists. O(terms), amortised."""
    progress = np.array([first, term_offsets[first]], np.int64)
    while not _link(postings, term_offsets, terms, lon, lat, progress, end):
        needed = postings.row.shape[0] + LONGEST
        row, lons, lats = (grown(column, needed) for column in (postings.row, postings.lon, postings.lat))
        postings = postings._replace(row=row, lon=lons, lat=lats)
    return postings


@njit_no_refcount
def _link(p, term_offsets, terms, lon, lat, progress, end):
    """Continue from `progress` (row, place of the texts); False, to be repeated, if the pool is exhausted."""
    row, place = progress
    while row < end:
        while place < term_offsets[row + 1]:
            term = terms[place]
            if p.chunk[term] < 0 or p.used[term] == p.size[term]:
                size = _SHORTEST if p.chunk[term] < 0 else min(2 * p.size[term], LONGEST)
                if p.end[0] + size > p.row.shape[0]:
                    progress[0], progress[1] = row, place
                    return False
                start = p.end[0]
                p.row[start], p.row[start + 1] = p.chunk[term], p.size[term]
                p.chunk[term], p.size[term], p.used[term] = start, size, HEADER
                p.end[0] += size
            at = p.chunk[term] + p.used[term]
            p.row[at], p.lon[at], p.lat[at] = row, lon[row], lat[row]
            p.used[term] += 1
            place += 1
        row += 1
    return True
