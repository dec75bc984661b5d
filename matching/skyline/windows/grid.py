"""The default window index of `skyline`: the messages in order of arrival, and lists of them by cell of a grid.

Messages are appended to columns, and to the list of their cell (`matching.skyline.windows.postings`). Dead messages
stay until the columns are full and half of them are dead; then the live ones are rewritten. An arrival costs O(terms),
an end or expiry nothing, a query all postings of the cells that its rectangle meets. An answer is pruned while it is
found: a query meets hundreds of candidates and keeps a dozen.

Inverted lists by keyword, in place of cells, read all messages with a frequent word, wherever they are.

Tuple tasks are ahead of query tasks, so queries are as of a past boundary: messages that died since the oldest boundary
retained count as alive when columns are rewritten.

Trees, which read only where the rectangle is: `papers.skyline.mf_rtree`.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit_no_refcount
from matching.errors import EngineError
from matching.filters import filters_of, passes, words_of
from matching.model import NO_KEYS, Float64, Int32, Int64, MessageBatch, centres, take_ragged, widened
from matching.reserved import is_reserved, without_reserved
from matching.skyline.answers import sort_rows
from matching.skyline.results import dominates
from matching.skyline.subscriptions import spatial_relevance
from matching.skyline.window import Candidates, SkylineQueries, SkylineWindow
from matching.skyline.windows.postings import (
    HEADER,
    LONGEST,
    SIDE,
    count_lists,
    grid_of,
    linked,
    new_postings,
    place_in_grid,
    sign_of,
)
from matching.space import Space
from matching.storage.point_subscriptions import take_ragged_at
from matching.storage.slots import as_input, grown_length, resized
from matching.window import Boundary

#: `ended` of a message that no later version or deletion has ended.
_NEVER = 2**63 - 1
_FEWEST = 256
_LIFE, _ENDED, _FIRST, _LAST = range(4)


class Ring(NamedTuple):
    """Kernel view; the first `rows` of n messages and the first places of the pool are in use.

    seq : int64[n]            ascending
    head : int64[n, 4]        in a cache line: life, number of the batch that ended it (above all of them if none did),
                              where its words begin and end
    lon, lat : float64[n]
    ends : int64[n]           where its terms end: behind its words all of its terms once more, if it has some for
                              matching alone, else nothing
    terms : int32[pool]
    keys : int64[n, a]        of the attributes
    order_offsets, order      int64[n + 1], int32[pool]: words in order of appearance, as of `MessageBatch`
    """

    seq: Int64
    head: Int64
    lon: Float64
    lat: Float64
    ends: Int64
    terms: Int32
    keys: Int64
    order_offsets: Int64
    order: Int32

    @property
    def life(self) -> Int64:
        return self.head[:, _LIFE]

    @property
    def ended(self) -> Int64:
        return self.head[:, _ENDED]


class GridWindow(SkylineWindow):
    """A grid over the ring of messages; see the module."""

    name = "grid"
    serves_filters = True

    def __init__(self, space: Space, kept_boundaries: int = 0):
        super().__init__(space, kept_boundaries)
        whole, real = np.zeros(0, np.int64), np.zeros(0)
        head, ends = np.zeros((0, 4), np.int64), np.zeros(1, np.int64)
        none = np.zeros(0, np.int32)  # writable, as they are later: kernels are compiled for that
        self.ring = Ring(whole, head, real, real, whole, none, NO_KEYS, ends, none)
        self.postings, self.grid = new_postings(), grid_of(space)
        self.rows = 0
        self.checked = 0

    def __len__(self) -> int:
        """Live messages. O(rows)."""
        return int(np.count_nonzero(self._alive(slice(self.rows), self.boundary)))

    def store(self, boundary: Boundary, messages: MessageBatch, ended: Int64) -> None:
        """Take the next batch. O(terms), amortised.

        Raises
        ------
        EngineError
            If the batch is not the next one, or its messages do not follow.
        """
        messages = without_reserved(messages, beginnings=True)
        last, seq = self.boundary, messages.seq
        if boundary.number != last.number + 1 and last.number >= 0:
            raise EngineError(f"window: batch {boundary.number} cannot follow batch {last.number}; store each one once")
        if seq.shape[0] and (seq[0] <= last.last_seq or np.any(np.diff(seq) <= 0)):
            raise EngineError(f"window: messages of batch {boundary.number} must ascend from seq {last.last_seq + 1}")
        self.known = [*self.known, boundary][-1 - self.kept_boundaries :]
        keep = messages.life > boundary.floor
        if ended.shape[0]:
            rows = self._find(ended)
            self.ring.ended[rows] = np.minimum(self.ring.ended[rows], boundary.number)  # some may have ended before
            ended = ended[ended >= seq.min(initial=_NEVER)]
        if ended.shape[0]:
            keep &= ~np.isin(seq, ended)
        if keep.any():
            self._append(messages if keep.all() else messages.take(np.flatnonzero(keep)))

    def candidates(self, queries: SkylineQueries, as_of: Boundary | None = None) -> Candidates:
        """See `SkylineWindow.candidates`; O(postings of the cells)."""
        return self._found(queries, as_of, prune=False)

    def useful(self, queries: SkylineQueries, as_of: Boundary) -> Candidates:
        return self._found(queries, as_of, prune=True)

    def near(self, region: Float64) -> Int64:
        near = np.zeros(region.shape[0], np.bool_)
        _mark_near(self.postings, self.grid, as_input(region, np.float64), near)
        return np.flatnonzero(near)

    def _found(self, queries: SkylineQueries, as_of: Boundary | None, prune: bool) -> Candidates:
        as_of = self._known_boundary(as_of)
        arrived = int(np.searchsorted(self.ring.seq[: self.rows], as_of.last_seq, side="right"))
        count, capacity = queries.region.shape[0], _FEWEST
        region = as_input(queries.region, np.float64)
        offsets, terms = as_input(queries.term_offsets, np.int64), as_input(queries.terms, np.int32)
        filters = filters_of(queries.filter_offsets, queries.filter_words)
        ends, hits, done = np.zeros(count + 1, np.int64), np.empty(LONGEST, np.int32), 0
        row, spatial, text = np.empty(capacity, np.int32), np.empty(capacity), np.empty(capacity)
        while True:
            done, checked = _search(
                self.ring, self.postings, self.grid, arrived, as_of, region, offsets, terms, filters, prune, done, ends,
                hits, row, spatial, text,
            )  # fmt: skip
            self.checked += checked
            if done == count:
                break
            capacity *= 2
            row, spatial, text = resized(row, capacity), resized(spatial, capacity), resized(text, capacity)
        total = int(ends[-1])
        order = np.empty(total, np.int64)
        sort_rows(row, ends, order)
        rows = row[:total][order]
        return Candidates(ends, self.ring.seq[rows], self.ring.life[rows], spatial[:total][order], text[:total][order])

    def size_bytes(self) -> int:
        """Memory in bytes, spare capacity included."""
        return sum(column.nbytes for column in (*self.ring, *self.postings))

    def order_bytes(self) -> int:
        return self.ring.order_offsets.nbytes + self.ring.order.nbytes

    def _used(self) -> Int64:
        """How many rows, places of terms and words in order are in use."""
        places = self.ring.ends[self.rows - 1] if self.rows else 0
        return np.array([self.rows, places, self.ring.order_offsets[self.rows]], np.int64)

    def _alive(self, rows: Int64 | slice, boundary: Boundary) -> np.ndarray:
        """bool[n]: which rows live at a boundary that is not before them."""
        return (self.ring.life[rows] > boundary.floor) & (self.ring.ended[rows] > boundary.number)

    def _find(self, seqs: Int64) -> Int64:
        """Rows of those messages that are here."""
        known = self.ring.seq[: self.rows]
        rows = np.searchsorted(known, seqs)
        return rows[known[np.minimum(rows, self.rows - 1)] == seqs] if self.rows else np.zeros(0, np.int64)

    def _append(self, messages: MessageBatch) -> None:
        ended, place = np.full(len(messages), _NEVER), centres(messages)
        order_offsets = messages.order_offsets
        if not order_offsets.shape[0]:
            order_offsets = np.zeros(len(messages) + 1, np.int64)
        terms, order = _words_first(messages), (order_offsets, messages.order)
        self._extend(messages.seq, messages.life, ended, *place, *terms, messages.keys, *order)

    def _extend(self, seq, life, ended, lon, lat, words, term_offsets, terms, keys, order_offsets, order) -> None:
        """Append messages."""
        width = max(keys.shape[1], self.ring.keys.shape[1])
        if width > self.ring.keys.shape[1]:  # the first messages with an attribute
            self.ring = self.ring._replace(keys=widened(self.ring.keys, self.ring.seq.shape[0], width))
        more = np.array([seq.shape[0], term_offsets[-1], order_offsets[-1]])
        wanted, ring = self._used() + more, self.ring
        room = np.array([ring.seq.shape[0], ring.terms.shape[0], ring.order.shape[0]])
        if np.any(wanted > room):
            live = int(np.count_nonzero(self._alive(slice(self.rows), self.known[0])))
            # grow while most are alive, rewrite while most are dead: O(1) an arrival, amortised
            if 2 * live > self.rows:
                room = list(map(grown_length, room.tolist(), (2 * wanted).tolist()))
            self._rewrite(*np.maximum(room, wanted).tolist())
        ring, (first, place, word) = self.ring, self._used().tolist()
        end, place_end, word_end = (self._used() + more).tolist()
        ring.seq[first:end], ring.life[first:end], ring.ended[first:end] = seq, life, ended
        ring.lon[first:end], ring.lat[first:end], ring.ends[first:end] = lon, lat, term_offsets[1:] + place
        if width:
            ring.keys[first:end] = widened(keys, seq.shape[0], width)
        ring.head[first:end, _FIRST] = term_offsets[:-1] + place
        ring.head[first:end, _LAST] = ring.head[first:end, _FIRST] + words
        ring.terms[place:place_end] = terms
        ring.order_offsets[first + 1 : end + 1] = order_offsets[1:] + word
        ring.order[word:word_end] = order
        self._link(first, end)
        self.rows = end

    def _rewrite(self, rows: int, pool: int, words: int) -> None:
        """Rewrite messages that queries can still reach to new columns of these lengths, and link them."""
        old, live = self.ring, np.flatnonzero(self._alive(slice(self.rows), self.known[0]))
        head = old.head[live]
        offsets, picked = take_ragged_at(head[:, _FIRST], old.ends[live] - head[:, _FIRST])
        head[:, _LAST] += offsets[:-1] - head[:, _FIRST]
        head[:, _FIRST] = offsets[:-1]
        order_offsets, order = take_ragged(old.order_offsets, live)
        self.ring = Ring(
            seq=resized(old.seq[live], rows),
            head=resized(head, rows),
            lon=resized(old.lon[live], rows),
            lat=resized(old.lat[live], rows),
            ends=resized(offsets[1:], rows),
            terms=resized(old.terms[picked], pool),
            keys=resized(old.keys[live], rows) if old.keys.shape[1] else old.keys,
            order_offsets=resized(order_offsets, rows + 1),
            order=resized(old.order[order], words),
        )
        self.rows = live.shape[0]
        self.postings = new_postings(self.postings.row.shape[0])
        self._link(0, self.rows)

    def _link(self, first: int, end: int) -> None:
        """Add rows `first` to `end` - 1 to the lists."""
        ring = self.ring
        self.postings = linked(self.postings, self.grid, ring.lon, ring.lat, ring.head, ring.terms, first, end)


def _words_first(messages: MessageBatch) -> tuple[Int64, Int64, Int32]:
    """How many words each message has, and its terms as `Ring.ends` says: offsets and terms."""
    offsets, terms, alone = messages.term_offsets, messages.terms, is_reserved(messages.weights)
    counts = np.diff(offsets)
    if not alone.any():
        return counts, offsets, terms
    row = np.repeat(np.arange(len(messages)), counts)
    words = counts - np.bincount(row[alone], minlength=len(messages))
    again = np.flatnonzero((words < counts)[row] & ~alone)
    places = np.concatenate([again, np.arange(terms.shape[0])])
    places = places[np.lexsort((np.arange(places.shape[0]), row[places]))]
    sizes = counts + np.where(words < counts, words, 0)
    return words, np.concatenate([[0], np.cumsum(sizes)]), terms[places]


@njit_no_refcount
def _mark_near(p, grid, region, near):
    """Set near (bool[q]) to whether a rectangle meets a cell that has messages."""
    west, south, columns, rows = grid
    before = p.before
    count_lists(p)
    for query in range(region.shape[0]):
        box = region[query]
        low, high = place_in_grid(box[1], south, rows), place_in_grid(box[3], south, rows)
        left, right = place_in_grid(box[0], west, columns), place_in_grid(box[2], west, columns)
        lists = before[high + 1, right + 1] - before[low, right + 1] - before[high + 1, left] + before[low, left]
        near[query] = lists != 0


@njit_no_refcount
def _search(
    ring, p, grid, arrived, as_of, region, offsets, terms, filters, prune, first, ends, hits, out_row, out_spatial,
    out_text,
):  # fmt: skip
    """Answer queries from `first` on; returns the first that did not fit (with its end in `ends`), postings checked.

    Of messages the first `arrived` had come at the boundary. With `prune` an answer has none that another one of it
    dominates and outlives. `hits` (int32[LONGEST]) is scratch.
    """
    west, south, columns, rows = grid
    head, floor, number = ring.head, as_of.floor, as_of.number
    checked, filtered = 0, filters.span.shape[0] > 0
    for query in range(first, region.shape[0]):
        end, box, begin, last = ends[query], region[query], offsets[query], offsets[query + 1]
        low, high = place_in_grid(box[1], south, rows), place_in_grid(box[3], south, rows)
        left, right = place_in_grid(box[0], west, columns), place_in_grid(box[2], west, columns)
        signs = sign_of(terms, begin, last)
        for y in range(low, high + 1):
            for cell in range(y * SIDE + left, y * SIDE + right + 1):
                start, used = p.chunk[cell], p.used[cell]
                while start >= 0:
                    checked += used - HEADER
                    for hit in range(_inside(p, start + HEADER, start + used, box, signs, hits)):
                        row = p.row[hits[hit]]
                        # arrivals and ends of later batches do not count yet
                        if row >= arrived or head[row, _LIFE] <= floor or head[row, _ENDED] <= number:
                            continue
                        common = _common(ring.terms, head[row, _FIRST], head[row, _LAST], terms, begin, last)
                        if common == 0 or (filtered and not _fits(filters, query, ring, row)):
                            continue
                        spatial = spatial_relevance(box, p.lon[hits[hit]], p.lat[hits[hit]])
                        words = head[row, _LAST] - head[row, _FIRST]
                        text = common / (last - begin + words - common)
                        place = end
                        if prune:
                            place = _admit(out_row, out_spatial, out_text, head, ends[query], end, row, spatial, text)
                            if place < 0:
                                continue
                        if place == out_row.shape[0]:  # the caller grows the columns and repeats the query
                            return query, checked
                        out_row[place], out_spatial[place], out_text[place] = row, spatial, text
                        end = place + 1
                    start, used = p.row[start], p.row[start + 1]
        ends[query + 1] = end
    return region.shape[0], checked


@njit_no_refcount
def _inside(p, begin, end, box, signs, hits):
    """Into hits: postings begin to end - 1 that lie in the box and may share a word; returns how many.

    Without branches, which would be mispredicted about half of the time.
    """
    lon, lat, one, two, sign, other = p.lon, p.lat, p.sign, p.other, signs[0], signs[1]
    west, south, east, north = box[0], box[1], box[2], box[3]
    inside = 0
    for at in range(begin, end):
        hits[inside] = at
        fits = (west <= lon[at]) & (lon[at] <= east) & (south <= lat[at]) & (lat[at] <= north)
        inside += fits & ((one[at] & sign) != 0) & ((two[at] & other) != 0)
    return inside


@njit_no_refcount
def _admit(rows, spatial, text, head, first, end, row, near, like):
    """Drop from an answer (places `first` to `end` - 1) what a message dominates and outlives; returns its end, or -1
    if the message itself is dominated and outlived."""
    for at in range(first, end):
        if head[rows[at], _LIFE] >= head[row, _LIFE] and dominates(spatial[at], text[at], near, like):
            # to the front, since it is likely to dominate the next ones, too
            rows[first], rows[at] = rows[at], rows[first]
            spatial[first], spatial[at] = spatial[at], spatial[first]
            text[first], text[at] = text[at], text[first]
            return -1
    left = first
    for at in range(first, end):
        if not (head[row, _LIFE] >= head[rows[at], _LIFE] and dominates(near, like, spatial[at], text[at])):
            rows[left], spatial[left], text[left] = rows[at], spatial[at], text[at]
            left += 1
    return left


@njit_no_refcount
def _fits(filters, query, ring, row):
    """Whether a message satisfies the filter of a query."""
    first, last = ring.head[row, _FIRST], ring.head[row, _LAST]
    if ring.ends[row] > last:
        first, last = last, ring.ends[row]
    begin, end = words_of(ring.order_offsets, row)
    return passes(
        filters, query, ring.lon[row], ring.lat[row], ring.keys, row, ring.terms, first, last, ring.order, begin, end
    )


@njit_no_refcount
def _common(texts, first, last, terms, begin, end):
    """Number of common words of texts[first:last] and terms[begin:end]. Few of either: all pairs, without branches."""
    common = 0
    for k in range(begin, end):
        for at in range(first, last):
            common += texts[at] == terms[k]
    return common
