"""The default window index of `skyline`: inverted lists over the messages in order of arrival.

Messages are appended to columns, and to the list of each of their terms; a posting has a rounded place
(`matching.skyline.windows.postings`). Dead messages stay until the columns are full and half of them are dead; then the
live ones are rewritten. An arrival costs O(terms), an end or expiry nothing, a query all postings of its keywords,
wherever the messages are.

Tuple tasks are ahead of query tasks, so queries are as of a past boundary: messages that died since the oldest boundary
retained count as alive when columns are rewritten.

Trees, which read only where the rectangle is: `papers.skyline.mf_rtree`.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_no_refcount
from matching.errors import EngineError
from matching.filters import filters_of, passes, words_of
from matching.model import NO_KEYS, NO_ORDER, Float64, Int32, Int64, MessageBatch, centres, take_ragged, widened
from matching.reserved import is_reserved, without_reserved
from matching.skyline.answers import sort_rows
from matching.skyline.subscriptions import spatial_relevance
from matching.skyline.window import Candidates, SkylineQueries, SkylineWindow
from matching.skyline.windows.postings import HEADER, LONGEST, linked, new_postings, with_terms
from matching.space import Space
from matching.storage.slots import as_input, grown_length, resized
from matching.window import Boundary

#: `ended` of a message that no later version or deletion has ended.
_NEVER = 2**63 - 1
_FEWEST = 256


class Ring(NamedTuple):
    """Kernel view; the first `rows` of n messages and the first places of the pool are in use.

    seq, life : int64[n]      ascending seq
    ended : int64[n]          number of the batch that ended it, above all of them if none did
    lon, lat : float64[n]
    words : int32[n]          how many of its terms are words
    term_offsets : int64[n + 1]
    terms : int32[pool]       words, and beginnings of words
    keys : int64[n, a]        of the attributes
    order_offsets, order      int64[n + 1], int32[pool]: words in order of appearance, as of `MessageBatch`
    """

    seq: Int64
    life: Int64
    ended: Int64
    lon: Float64
    lat: Float64
    words: Int32
    term_offsets: Int64
    terms: Int32
    keys: Int64
    order_offsets: Int64
    order: Int32


class InvertedWindow(SkylineWindow):
    """Inverted lists over the ring of messages; see the module."""

    name = "inverted"
    serves_filters = True

    def __init__(self, space: Space, kept_boundaries: int = 0):
        super().__init__(space, kept_boundaries)
        whole, real = np.zeros(0, np.int64), np.zeros(0)
        no_ends = np.zeros(1, np.int64)
        self.ring = Ring(
            whole, whole, whole, real, real, NO_ORDER, no_ends, NO_ORDER, NO_KEYS, no_ends.copy(), NO_ORDER
        )
        self.postings = new_postings()
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
            keep &= ~np.isin(seq, ended)
        if keep.any():
            self._append(messages if keep.all() else messages.take(np.flatnonzero(keep)))

    def candidates(self, queries: SkylineQueries, as_of: Boundary | None = None) -> Candidates:
        """See `SkylineWindow.candidates`; O(postings of the keywords)."""
        as_of = self._known_boundary(as_of)
        count, capacity = queries.region.shape[0], _FEWEST
        region = as_input(queries.region, np.float64)
        offsets, terms = as_input(queries.term_offsets, np.int64), as_input(queries.terms, np.int32)
        filters = filters_of(queries.filter_offsets, queries.filter_words)
        ends, done = np.zeros(count + 1, np.int64), 0
        row, spatial, text = np.empty(capacity, np.int32), np.empty(capacity), np.empty(capacity)
        while True:
            done, checked = _search(
                self.ring, self.postings, as_of, region, offsets, terms, filters, done, ends, row, spatial, text
            )
            self.checked += checked
            if done == count:
                break
            capacity = max(2 * capacity, int(ends[done + 1]))
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
        return np.array([self.rows, self.ring.term_offsets[self.rows], self.ring.order_offsets[self.rows]], np.int64)

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
        offsets, order_offsets = messages.term_offsets, messages.order_offsets
        if not order_offsets.shape[0]:
            order_offsets = np.zeros(len(messages) + 1, np.int64)
        words, beginnings = np.diff(offsets), is_reserved(messages.weights)
        if beginnings.any():
            words -= np.bincount(np.repeat(np.arange(len(messages)), words)[beginnings], minlength=len(messages))
        terms, order = (words, offsets, messages.terms), (order_offsets, messages.order)
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
        ring.lon[first:end], ring.lat[first:end], ring.words[first:end] = lon, lat, words
        if width:
            ring.keys[first:end] = widened(keys, seq.shape[0], width)
        ring.term_offsets[first + 1 : end + 1] = term_offsets[1:] + place
        ring.terms[place:place_end] = terms
        ring.order_offsets[first + 1 : end + 1] = order_offsets[1:] + word
        ring.order[word:word_end] = order
        self._link(first, end)
        self.rows = end

    def _rewrite(self, rows: int, pool: int, words: int) -> None:
        """Rewrite messages that queries can still reach to new columns of these lengths, and link them."""
        old, live = self.ring, np.flatnonzero(self._alive(slice(self.rows), self.known[0]))
        offsets, picked = take_ragged(old.term_offsets, live)
        order_offsets, order = take_ragged(old.order_offsets, live)
        self.ring = Ring(
            seq=resized(old.seq[live], rows),
            life=resized(old.life[live], rows),
            ended=resized(old.ended[live], rows),
            lon=resized(old.lon[live], rows),
            lat=resized(old.lat[live], rows),
            words=resized(old.words[live], rows),
            term_offsets=resized(offsets, rows + 1),
            terms=resized(old.terms[picked], pool),
            keys=resized(old.keys[live], rows) if old.keys.shape[1] else old.keys,
            order_offsets=resized(order_offsets, rows + 1),
            order=resized(old.order[order], words),
        )
        self.rows = live.shape[0]
        self.postings = new_postings(self.postings.chunk.shape[0], self.postings.row.shape[0])
        self._link(0, self.rows)

    def _link(self, first: int, end: int) -> None:
        """Add the terms of rows `first` to `end` - 1 to the lists."""
        ring = self.ring
        offsets, terms = ring.term_offsets, ring.terms
        postings = with_terms(self.postings, int(terms[offsets[first] : offsets[end]].max(initial=-1)))
        self.postings = linked(postings, offsets, terms, ring.lon, ring.lat, first, end)


@njit(cache=True, nogil=True)
def _search(ring, p, as_of, region, offsets, terms, filters, first, ends, out_row, out_spatial, out_text):
    """Answer queries from `first` on; returns the first that did not fit (with its end in `ends`), postings checked."""
    checked, hits = 0, np.empty(LONGEST, np.int32)
    for query in range(first, region.shape[0]):
        end = ends[query]
        box = region[query]
        begin, last = offsets[query], offsets[query + 1]
        # rounded like the places of postings: contains all that the box contains
        west, south, east, north = np.float32(box[0]), np.float32(box[1]), np.float32(box[2]), np.float32(box[3])
        for j in range(begin, last):
            # no message has had a term beyond the array; the id of unknown words is one
            start = p.chunk[terms[j]] if terms[j] < p.chunk.shape[0] else np.int32(-1)
            used = p.used[terms[j]] if start >= 0 else np.int32(0)
            while start >= 0:
                checked += used - HEADER
                # without branches, which would be mispredicted about half of the time
                inside = 0
                for at in range(start + HEADER, start + used):
                    hits[inside] = p.row[at]
                    inside += (west <= p.lon[at]) & (p.lon[at] <= east) & (south <= p.lat[at]) & (p.lat[at] <= north)
                for row in hits[:inside]:
                    lon, lat = ring.lon[row], ring.lat[row]
                    if not (box[0] <= lon <= box[2] and box[1] <= lat <= box[3]):
                        continue
                    # arrivals and ends of later batches do not count yet
                    if ring.life[row] <= as_of.floor or ring.ended[row] <= as_of.number:
                        continue
                    common = _common(ring, row, terms, begin, last, j) if ring.seq[row] <= as_of.last_seq else 0
                    if common == 0 or not _fits(filters, query, ring, row):
                        continue
                    # counted beyond the capacity too: the caller grows the columns and repeats the query
                    if end < out_row.shape[0]:
                        out_row[end] = row
                        out_spatial[end] = spatial_relevance(box, lon, lat)
                        out_text[end] = common / (last - begin + ring.words[row] - common)
                    end += 1
                start, used = p.row[start], p.row[start + 1]
        ends[query + 1] = end
        if end > out_row.shape[0]:
            return query, checked
    return region.shape[0], checked


@njit_no_refcount
def _fits(filters, query, ring, row):
    """Whether a message satisfies the filter of a query."""
    first, last = ring.term_offsets[row], ring.term_offsets[row + 1]
    begin, end = words_of(ring.order_offsets, row)
    return passes(
        filters, query, ring.lon[row], ring.lat[row], ring.keys, row, ring.terms, first, last, ring.order, begin, end
    )


@njit(cache=True, nogil=True)
def _common(ring, row, terms, begin, last, j):
    """Number of common keywords; 0 unless keyword `j` is the first, since the message is in the list of each."""
    common, k, p, p_last = 0, begin, ring.term_offsets[row], ring.term_offsets[row + 1]
    while k < last and p < p_last:
        if terms[k] < ring.terms[p]:
            k += 1
        elif terms[k] > ring.terms[p]:
            p += 1
        else:
            if common == 0 and k != j:
                return 0
            common += 1
            k += 1
            p += 1
    return common
