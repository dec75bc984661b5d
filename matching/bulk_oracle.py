"""The bulk oracle: what every kind must answer, computed with NumPy over many messages at once.

`matching.naive` is the oracle, in plain Python, and too slow for hundreds of subscriptions over long streams.
`BulkOracle` gives the same updates and results, to the last bit of every score; property tests compare the two kind by
kind. It shares no code with engines, operators or window indexes: candidates are found by sorting the words of all
messages, scores are the oracle's expressions in the oracle's order, and a result is chosen anew from the messages that
are alive. As in the oracle, each kind is a function or two and a row of `RULES`.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from matching.errors import TopologyError
from matching.model import (
    ANY_KEYWORD,
    BOOLEAN,
    DECAY,
    ENTER,
    KNN,
    LEAVE,
    MATCH,
    SKYLINE,
    TOPK,
    Float64,
    Int64,
    MessageBatch,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    empty,
    take_rows,
)
from matching.naive import passes
from matching.naive_filters import NaiveInstruction, branches_of
from matching.naive_rows import DecayModel, NaiveSubscription, messages_of, subscriptions_of, tally
from matching.naive_shapes import EARTH_RADIUS_M
from matching.window import NO_FLOOR, Boundary

#: The end of a subscription or message without one.
NEVER = 2**62
#: Subscriptions between two calls of `on_progress`.
_PROGRESS_INTERVAL = 16


class Eligible(NamedTuple):
    """Messages eligible for a subscription's result, ascending: `row` of the messages given (int64[n]), `score` and
    `text` (float64[n]): of a region spatial relevance and Jaccard, of a point the whole score and its text part."""

    row: Int64
    score: Float64
    text: Float64


class Words(NamedTuple):
    """Postings of messages, by term and then by row of the message.

    term, owner : int64[nnz]    the term, and the row of the message that has it
    weights : float64[nnz]
    counts : int64[nnz]         how often the message has the term; empty where messages have no counts
    """

    term: Int64
    owner: Int64
    weights: Float64
    counts: Int64

    @classmethod
    def of(cls, messages: MessageBatch) -> "Words":
        """O(terms log terms)."""
        order = np.argsort(messages.terms, kind="stable")
        owner = np.repeat(np.arange(len(messages)), np.diff(messages.term_offsets))
        counts = messages.counts[order] if messages.counts.shape[0] else messages.counts
        return cls(
            messages.terms[order].astype(np.int64),
            owner[order],
            messages.weights[order].astype(np.float64),
            counts.astype(np.int64),
        )

    def lists(self, terms: np.ndarray) -> list[slice]:
        """The postings of each term."""
        wanted = terms.astype(np.int64)
        first, end = np.searchsorted(self.term, wanted), np.searchsorted(self.term, wanted, "right")
        return [slice(*cut) for cut in zip(first.tolist(), end.tolist(), strict=True)]


class Expected(NamedTuple):
    """Updates as `matching.naive_rows.tally` counts them, and results as `counted`."""

    updates: Counter
    results: Counter


def counted(rows) -> Counter:
    """Results, counted: (number, rank, seq, score), and text score where the kind has one and it is not NaN."""
    columns = (column.tolist() for column in rows._asdict().values() if column is not None)
    return Counter(tuple(value for value in row if value == value) for row in zip(*columns, strict=True))


def of_numbers(rows, numbers: Int64):
    """The rows of updates or results of these subscriptions."""
    return take_rows(rows, np.isin(rows.number, numbers))


def expected(
    messages: MessageBatch, table: SubscriptionTable, boundaries: Sequence[Boundary], max_distance: float,
    ends: Int64 | None = None, decay: DecayModel | None = None, removed_at: Int64 | None = None,
) -> Expected:  # fmt: skip
    """The updates of subscriptions at the boundaries after the first, and their results at the last.

    Parameters
    ----------
    messages : MessageBatch
        Ascending: all that may be alive at any of the boundaries; for kinds without a window all that come after the
        first registration.
    table : SubscriptionTable
    boundaries : sequence of Boundary
    max_distance : float
    ends : int64[n], optional
        By seq, which message each one of the stream ends; -1 for none.
    decay : DecayModel, optional
        For kinds whose scores fade.
    removed_at : int64[n], optional
        The seq before which each subscription ends, `NEVER` if it does not; None: none ends.
    """
    first, last = boundaries[0].last_seq, boundaries[-1].last_seq
    alive_to = None
    if ends is not None:
        alive_to = np.full(last + 1, NEVER)
        by = np.flatnonzero(ends[: last + 1] >= 0)
        alive_to[ends[by]] = by
    removed_at = np.full(len(table), NEVER) if removed_at is None else removed_at
    oracle = BulkOracle(table, removed_at, max_distance, decay)
    updates = oracle.advance(boundaries, messages.take(np.flatnonzero(messages.seq <= last)), alive_to)
    return Expected(tally(take_rows(updates, updates.as_of > first)), counted(oracle.results()))


def sampled(table: SubscriptionTable, updates: UpdateBatch, evenly: int, most: int) -> SubscriptionTable:
    """`evenly` subscriptions at equal distances and the `most` with most updates, of a table whose numbers ascend.

    An even sample of a few thousand out of a million may have no updates at all.
    """
    some = np.arange(0, len(table), max(1, len(table) // evenly))[:evenly]
    number, times = np.unique(updates.number[np.isin(updates.number, table.number)], return_counts=True)
    often = np.searchsorted(table.number, number[np.argsort(-times, kind="stable")][:most])
    return table.take(np.union1d(some, often))


# ------------------------------------------------------------------------------------------ what a score is, by kind


class Chunk:
    """Messages of some successive boundaries, indexed by word; `max_distance` and `decay` as of the oracle."""

    def __init__(self, messages: MessageBatch, max_distance: float, decay: DecayModel | None):
        self.messages, self.max_distance, self.decay = messages, max_distance, decay
        self.words = Words.of(messages)
        self._met = np.zeros(len(messages), np.bool_)
        self._index = np.zeros(len(messages), np.int64)
        before = np.concatenate([[0], np.cumsum(messages.counts, dtype=np.int64)])
        #: Words of each message, repetitions included; empty where messages have no counts.
        self.lengths = np.diff(before[messages.term_offsets]) if messages.counts.shape[0] else messages.counts

    def meeting(self, terms: np.ndarray) -> tuple[Int64, list[slice], list[Int64]]:
        """Rows of messages with any of the terms, ascending; for each term its postings in `words`, and where among
        these rows their messages are."""
        lists = self.words.lists(terms)
        owners = [self.words.owner[each] for each in lists]
        for owner in owners:
            self._met[owner] = True
        row = np.flatnonzero(self._met)
        self._met[row] = False
        self._index[row] = np.arange(row.shape[0])
        return row, lists, [self._index[owner] for owner in owners]

    def distance(self, table: SubscriptionTable, at: int, row: Int64) -> Float64:
        """As `matching.naive.distance`; arc sines are those of the C library, one by one."""
        if table.vector.shape[0] and self.messages.vector.shape[0]:
            x, y, z = (table.vector[at] - self.messages.vector[row]).T
            halves = np.minimum(1.0, 0.5 * np.sqrt((x * x + y * y) + z * z))
            return 2 * EARTH_RADIUS_M * np.array(list(map(math.asin, halves.tolist())))
        dx, dy = table.x[at] - self.messages.x[row], table.y[at] - self.messages.y[row]
        return np.sqrt(dx * dx + dy * dy)

    def proximity(self, table: SubscriptionTable, at: int, row: Int64) -> Float64:
        """As `matching.naive.proximity`."""
        own = table.radius_m[at] if table.radius_m.shape[0] else math.nan
        return 1.0 - self.distance(table, at, row) / (self.max_distance if math.isnan(own) else own)


def _terms(table: SubscriptionTable, at: int) -> slice:
    return slice(*table.term_offsets[at : at + 2].tolist())


def matching_rows(chunk: Chunk, table: SubscriptionTable, at: int) -> Int64:
    """`boolean`: the messages with all keywords, or any, whose rectangle meets the region. O(their postings)."""
    terms = table.terms[_terms(table, at)]
    row, _, having = chunk.meeting(terms)
    if table.match[at] != ANY_KEYWORD and row.shape[0]:
        times = np.bincount(np.concatenate(having), minlength=row.shape[0])
        row = row[times == terms.shape[0]]
    west, south, east, north = table.region[at].tolist()
    boxes = [(west, east)] if west <= east else [(west, 180.0), (-180.0, east)]
    there, messages = np.zeros(row.shape[0], np.bool_), chunk.messages
    for left, right in boxes:
        there |= (left <= messages.east[row]) & (messages.west[row] <= right)
    return row[there & (south <= messages.north[row]) & (messages.south[row] <= north)]


def _topk(chunk: Chunk, table: SubscriptionTable, at: int) -> Eligible:
    own = _terms(table, at)
    row, lists, having = chunk.meeting(table.terms[own])
    # term by term, ascending: a message has each once, and sums have the last bits of the oracle's
    text = np.zeros(row.shape[0])
    for index, each, weight in zip(having, lists, table.weights[own].tolist(), strict=True):
        text[index] += weight * chunk.words.weights[each]
    spatial = chunk.proximity(table, at, row)
    alpha = float(table.alpha[at])
    return Eligible(row, alpha * spatial + (1.0 - alpha) * text, text)


def _decay(chunk: Chunk, table: SubscriptionTable, at: int) -> Eligible:
    """Logarithms are those of the C library, one by one: NumPy's own differ in the last bit."""
    terms, messages, model = table.terms[_terms(table, at)], chunk.messages, chunk.decay
    row, lists, having = chunk.meeting(terms)
    text = np.ones(row.shape[0])
    if not row.shape[0]:
        return Eligible(row, text, text)
    if model is None or not chunk.lengths.shape[0]:
        what = "decay model" if model is None else "counts of terms"
        raise TopologyError(f"decay subscription {table.number[at]}: the bulk oracle was given no {what}")
    length = chunk.lengths[row]
    for term, each, index in zip(terms.tolist(), lists, having, strict=True):
        in_message = np.zeros(row.shape[0])
        in_message[index] = chunk.words.counts[each] / np.maximum(length[index], 1)  # 0 of none, without text
        in_collection = model.collection_count.get(term, 0) / model.total_tokens if model.total_tokens else 0.0
        text *= (1.0 - model.smoothing) * in_message + model.smoothing * in_collection
    alpha = float(table.alpha[at])
    relevance = alpha * chunk.proximity(table, at, row) + (1.0 - alpha) * text
    logs, positive = np.full(row.shape, -math.inf), relevance > 0.0
    logs[positive] = list(map(math.log, relevance[positive].tolist()))
    time_us = messages.event_time_us[row]
    timed = time_us != NO_FLOOR  # a message without a time has no decaying score
    score = logs + (time_us - model.epoch_us) / 1e6 * model.log_base_per_s
    return Eligible(row[timed], score[timed], text[timed])


def _knn(chunk: Chunk, table: SubscriptionTable, at: int) -> Eligible:
    row, _, _ = chunk.meeting(table.terms[_terms(table, at)])
    far = chunk.distance(table, at, row)
    return Eligible(row, far, far)


def _skyline(chunk: Chunk, table: SubscriptionTable, at: int) -> Eligible:
    words, terms = chunk.words, table.terms[_terms(table, at)]
    lists = [words.owner[each][~np.signbit(words.weights[each])] for each in words.lists(terms)]
    return in_region(chunk.messages, table.region[at], lists)


def in_region(messages: MessageBatch, region: np.ndarray, lists: Sequence[Int64]) -> Eligible:
    """The messages inside a region that have a keyword, with both relevances; `lists`: rows by keyword. O(lists)."""
    west, south, east, north = region.tolist()
    there = []
    for each in lists:
        lon = (messages.west[each] + messages.east[each]) / 2.0
        each = each[(west <= lon) & (lon <= east)]
        lat = (messages.south[each] + messages.north[each]) / 2.0
        there.append(each[(south <= lat) & (lat <= north)])
    row, common = np.unique(np.concatenate(there), return_counts=True)
    dx = (messages.west[row] + messages.east[row]) / 2.0 - (west + east) / 2.0
    dy = (messages.south[row] + messages.north[row]) / 2.0 - (south + north) / 2.0
    half = math.sqrt((east - west) * (east - west) + (north - south) * (north - south)) / 2.0
    spatial = np.maximum(0.0, 1.0 - np.sqrt(dx * dx + dy * dy) / half) if half > 0.0 else np.ones(row.shape[0])
    # terms for matching alone, and the reserved one, are no words; their weight is minus zero
    words = np.concatenate([[0], np.cumsum(~np.signbit(messages.weights))])
    lengths = words[messages.term_offsets[row + 1]] - words[messages.term_offsets[row]]
    return Eligible(row, spatial, common / (len(lists) + lengths - common))


# ---------------------------------------------------------------------------------------------- what a result contains


class Found(NamedTuple):
    """Messages eligible for a result, ascending by seq: `seq`, `score`, `text`, and the positions of the boundaries at
    which each one enters the window (`comes`) and from which on it has left (`goes`; int64[n] each)."""

    seq: Int64
    score: Float64
    text: Float64
    comes: Int64
    goes: Int64


def _highest(found: Found, among: Int64, k: int, newer: bool = False) -> Int64:
    """The k best of these rows, best first; of equal scores the older first, or the newer."""
    score = found.score[among]
    if among.shape[0] > k:
        kept = score >= np.partition(score, -k)[-k]
        among, score = among[kept], score[kept]
    return among[np.lexsort((-among if newer else among, -score))][:k]


def _highest_newer_first(found: Found, among: Int64, k: int) -> Int64:
    return _highest(found, among, k, newer=True)


def _nearest(found: Found, among: Int64, k: int) -> Int64:
    return _highest(found._replace(score=-found.score), among, k)


def _not_dominated(found: Found, among: Int64, k: int) -> Int64:
    """Those that no other dominates, by spatial relevance and then seq."""
    if not among.shape[0]:
        return among
    pairs, which = np.unique(found.score[among] + 1j * found.text[among], return_inverse=True)
    # ascending by relevance and then text: later pairs are at least as near, and must have less text
    most_later = np.append(np.maximum.accumulate(pairs.imag[::-1])[::-1], -1.0)[1:]
    kept = among[(pairs.imag > most_later)[which]]
    return kept[np.lexsort((kept, -found.score[kept]))]


def passing_rows(chunk: Chunk, table: SubscriptionTable, at: int, row: Int64) -> np.ndarray:
    """bool[n]: which of these messages, in ascending order, satisfy the filter of a subscription. O(n * words)."""
    return _satisfying_all(chunk, next(subscriptions_of(table.take(np.array([at])))), row)


def _satisfying_all(chunk: Chunk, subscription: NaiveSubscription, row: Int64) -> np.ndarray:
    there = np.ones(row.shape[0], np.bool_)
    for one in subscription.filter:
        there[there] = _satisfying(chunk, subscription, one, row[there])
    return there


def _satisfying(chunk: Chunk, subscription: NaiveSubscription, one: NaiveInstruction, row: Int64) -> np.ndarray:
    """bool[n]: which of these messages satisfy an instruction.

    Sets of words are tested for all messages at once, other instructions by the oracle, message by message. A phrase is
    tested only where all its words are: in scripts without spaces many place names are phrases.
    """
    if one.name in ("either", "neither"):
        held = np.zeros(row.shape[0], np.int64)
        for way in branches_of(one):
            held += _satisfying_all(chunk, subscription._replace(filter=tuple(way)), row)
        return held >= max(1, one.argument) if one.name == "either" else held == 0
    words = np.array([word for word in one.words if word >= 0], np.int64)
    common = np.zeros(row.shape[0], np.int64)
    if one.name in ("at least", "without", "phrase"):
        for owner in (chunk.words.owner[each] for each in chunk.words.lists(words)):
            common += np.isin(row, owner)
    if one.name in ("at least", "without"):
        return common >= one.argument if one.name == "at least" else common == 0
    there = common == words.shape[0] if one.name == "phrase" else np.ones(row.shape[0], np.bool_)
    alone = subscription._replace(filter=(one,))
    there[there] = [passes(alone, message) for message in messages_of(chunk.messages.take(row[there]))]
    return there


class Rule(NamedTuple):
    """How a kind with a result scores messages, and which of them are its result.

    windowed : bool    of the messages that are alive, including those before the registration
    ended : bool       except those that a later message has ended
    text : bool        results have the text score
    """

    score: Callable[[Chunk, SubscriptionTable, int], Eligible]
    choose: Callable[[Found, Int64, int], Int64]
    windowed: bool = False
    ended: bool = False
    text: bool = False


#: Every kind with a result, by its code; `boolean` has none (`matching_rows`).
RULES = {
    TOPK: Rule(_topk, _highest_newer_first, windowed=True),
    DECAY: Rule(_decay, _highest),
    KNN: Rule(_knn, _nearest),
    SKYLINE: Rule(_skyline, _not_dominated, windowed=True, ended=True, text=True),
}


# ---------------------------------------------------------------------------------------------------- the bulk oracle


class BulkOracle:
    """Subscriptions of any kinds over one stream, fed some boundaries at a time.

    Parameters
    ----------
    table : SubscriptionTable
        All that ever are registered.
    end : int64[n]
        The seq before which each one of the table ends; `NEVER` if it does not.
    max_distance : float
        Diagonal of the scaled world box (`matching.space.Space.max_distance`).
    decay : DecayModel, optional
        Needed as soon as a `decay` subscription meets a message.
    rules : mapping of kind to Rule, optional
        For tests of the oracle itself: a broken rule must be caught.

    Notes
    -----
    A call of `advance` takes O(terms log terms) once and, for each subscription, O(n) for the n messages that share a
    word with it and O(n) for each boundary at which its result loses a message. Memory: the messages of one call, what
    is alive after them, and the results.
    """

    def __init__(
        self,
        table: SubscriptionTable,
        end: Int64,
        max_distance: float,
        decay: DecayModel | None = None,
        rules: dict[int, Rule] | None = None,
    ):
        self.table, self.max_distance, self.decay = table, max_distance, decay
        self.rules = RULES | (rules or {})
        self._end = end
        self._kept: MessageBatch | None = None  # what may be alive after the last boundary
        self._last_seq = -1
        self._results: dict[int, Found] = {}  # by row of the table, best first; without empty ones
        self._windowed = any(self.rules[kind].windowed for kind in np.unique(table.kind).tolist() if kind != BOOLEAN)

    @property
    def kept(self) -> int:
        """Messages kept from one call to the next."""
        return 0 if self._kept is None else len(self._kept)

    def advance(
        self,
        boundaries: Sequence[Boundary],
        messages: MessageBatch,
        alive_to: Int64 | None = None,
        on_progress: Callable[[float, int], Any] | None = None,
    ) -> UpdateBatch:
        """Publish the messages of the next boundaries.

        Parameters
        ----------
        boundaries : sequence of Boundary
            At least one, in order, after those of earlier calls.
        messages : MessageBatch
            Ascending: those of these boundaries; gaps are messages without any of the keywords.
        alive_to : int64[m], optional
            By seq, the message that ends each one of the stream (its own seq if it is a deletion); `NEVER` for none.
        on_progress : callable, optional
            Called now and then as `on_progress(fraction of the subscriptions done, updates of this call so far)`.

        Returns
        -------
        UpdateBatch
            Subscription by subscription, boundary by boundary.

        Raises
        ------
        TopologyError
            If the boundaries do not follow those of earlier calls, or `decay` lacks its model or counts.
        """
        last_seqs = np.array([boundary.last_seq for boundary in boundaries], np.int64)
        floors = np.array([boundary.floor for boundary in boundaries], np.int64)
        if last_seqs[0] < self._last_seq or (np.diff(last_seqs) < 0).any() or (np.diff(floors) < 0).any():
            raise TopologyError(f"{boundaries[0]}: boundaries must follow those before; {self._last_seq} was the last")
        if self._kept is not None:
            messages = concatenate([self._kept, messages])
        chunk = Chunk(messages, self.max_distance, self.decay)
        comes = np.searchsorted(last_seqs, messages.seq)
        expires = np.searchsorted(floors, messages.life)
        ended = expires
        if alive_to is not None:
            ended = np.minimum(expires, np.searchsorted(last_seqs, alive_to[messages.seq]))
        starts, stops = np.searchsorted(last_seqs, self.table.at), np.searchsorted(last_seqs, self._end)
        parts, count = [empty(UpdateBatch)], 0
        for at in np.flatnonzero((self.table.at <= last_seqs[-1]) & (self._end > self._last_seq)).tolist():
            kind = int(self.table.kind[at])
            if kind == BOOLEAN:
                part = self._matches(chunk, at)
            else:
                rule = self.rules[kind]
                goes = None if not rule.windowed else ended if rule.ended else expires
                part = self._changes(rule, chunk, at, (comes, goes), int(starts[at]), int(stops[at]), last_seqs)
            parts.append(part)
            count += len(part)
            if on_progress is not None and at % _PROGRESS_INTERVAL == 0:
                on_progress(at / len(self.table), count)
        self._last_seq = int(last_seqs[-1])
        if self._windowed:
            self._kept = messages.take(np.flatnonzero(messages.life > floors[-1]))
        return concatenate(parts)

    def results(self) -> ResultBatch:
        """All results as of the last boundary, by number and rank."""
        order = sorted(self._results, key=lambda at: self.table.number[at])
        rows = [self._results[at] for at in order]
        sizes = [each.seq.shape[0] for each in rows]
        texts = [
            each.text if self.rules[int(self.table.kind[at])].text else np.full(each.seq.shape[0], np.nan)
            for at, each in zip(order, rows, strict=True)
        ]
        return ResultBatch(
            np.repeat(self.table.number[np.array(order, np.int64)], sizes),
            np.concatenate([np.zeros(0, np.int32), *(np.arange(1, size + 1, dtype=np.int32) for size in sizes)]),
            np.concatenate([np.zeros(0, np.int64), *(each.seq for each in rows)]),
            np.concatenate([np.zeros(0), *(each.score for each in rows)]),
            np.concatenate([np.zeros(0), *texts]),
        )

    def _matches(self, chunk: Chunk, at: int) -> UpdateBatch:
        """The matches of a subscription that has no result."""
        row = matching_rows(chunk, self.table, at)
        seq = chunk.messages.seq[row[passing_rows(chunk, self.table, at, row)]]
        seq = seq[(seq > self._last_seq) & (seq >= self.table.at[at]) & (seq < self._end[at])]
        number, change = np.full(seq.shape, self.table.number[at]), np.full(seq.shape, MATCH, np.int8)
        return UpdateBatch(seq, number, seq, change, np.full(seq.shape, np.nan))

    def _changes(
        self, rule: Rule, chunk: Chunk, at: int, when: tuple[Int64, Int64 | None], start: int, stop: int,
        last_seqs: Int64,
    ) -> UpdateBatch:  # fmt: skip
        """Updates of one subscription, from boundary `start` to before boundary `stop`.

        A result changes only where a message comes or one in it goes. While none goes, only messages in it and new ones
        compete; otherwise all that are alive.
        """
        eligible = rule.score(chunk, self.table, at)
        eligible = take_rows(eligible, passing_rows(chunk, self.table, at, eligible.row))
        found, best, done = self._found(eligible, chunk.messages, at, *when, start)
        k, comes, goes = int(self.table.k[at]), found.comes.tolist(), found.goes
        rows, changes, at_boundary = [], [], []
        reported = set(best.tolist())
        while True:
            lost = int(goes[best].min()) if rule.windowed and best.shape[0] else NEVER
            now = min(comes[done] if done < len(comes) else NEVER, lost)
            if now >= min(stop, last_seqs.shape[0]):
                break
            upto = bisect_right(comes, now, done)
            among = np.arange(done if lost > now else 0, upto)
            if lost > now:
                among = np.concatenate([best, among])
            best = rule.choose(found, among[goes[among] > now] if rule.windowed else among, k)
            done, chosen = upto, set(best.tolist())
            for change, some in ((LEAVE, reported - chosen), (ENTER, chosen - reported)):
                rows += some
                changes += [change] * len(some)
                at_boundary += [now] * len(some)
            reported = chosen
        if stop < last_seqs.shape[0]:
            rows += reported
            changes += [LEAVE] * len(reported)
            at_boundary += [stop] * len(reported)
            best = best[:0]
        self._results.pop(at, None)
        if best.shape[0]:
            self._results[at] = take_rows(found, best)
        row = np.array(rows, np.int64)
        number = np.full(row.shape, self.table.number[at])
        as_of = last_seqs[np.array(at_boundary, np.int64)]
        return UpdateBatch(as_of, number, found.seq[row], np.array(changes, np.int8), found.score[row])

    def _found(
        self, some: Eligible, messages: MessageBatch, at: int, comes: Int64, goes: Int64 | None, start: int
    ) -> tuple[Found, Int64, int]:
        """Eligible messages, the rows in the result now (best first), and how many rows came before.

        `goes` is None where no message ever goes.
        """
        before, seq = self._results.get(at), messages.seq[some.row]
        if goes is not None:  # the messages include all that are alive, and so the result
            found = Found(seq, some.score, some.text, np.maximum(comes[some.row], start), goes[some.row])
            best = np.zeros(0, np.int64) if before is None else np.searchsorted(seq, before.seq)
            met = int(np.searchsorted(seq, self._last_seq, "right")) if self.table.at[at] <= self._last_seq else 0
            return found, best, met
        new = np.flatnonzero((seq > self._last_seq) & (seq >= self.table.at[at]))
        found = Found(seq[new], some.score[new], some.text[new], comes[some.row[new]], np.full(new.shape, NEVER))
        if before is None:
            return found, np.zeros(0, np.int64), 0
        older = take_rows(before, np.argsort(before.seq))._replace(comes=np.full(before.seq.shape, -1))
        best = np.searchsorted(older.seq, before.seq)
        return concatenate([older, found]), best, best.shape[0]
