"""What kinds with a window have to tell, computed in bulk: a second opinion, for streams that the oracle cannot take.

`matching.naive` is the oracle: what stands there is right. It is plain Python, and cannot say in time what thousands of
subscriptions are told over a window of a million messages. This can, with NumPy, and a test holds it to the oracle. It
shares no code with engines, rooms or windows: whoever shares a word is found by sorting the words of all messages,
scores are the oracle's expressions in the oracle's order, and each result is made anew at every boundary. Read on in
`gateway.load_check`, which asks it about load tests.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from matching.model import ENTER, LEAVE, Int64, MessageBatch, SubscriptionTable, UpdateBatch, take_rows
from matching.window import Boundary


class Eligible(NamedTuple):
    """Messages that may be of a subscription's result, ascending: `row` of the messages given (int64[n]), `score` and
    `text` (float64[n]): of a region spatial relevance and Jaccard, of a point the whole score and its text part."""

    row: Int64
    score: np.ndarray
    text: np.ndarray


class Words(NamedTuple):
    """Messages by word, ascending in each: of every place its term (int32[nnz]), the row of its message (int64[nnz]),
    and the weight there (float64[nnz])."""

    term: np.ndarray
    owner: Int64
    weights: np.ndarray

    @classmethod
    def of(cls, messages: MessageBatch) -> "Words":
        """O(terms log terms)."""
        order = np.argsort(messages.terms, kind="stable")
        owner = np.repeat(np.arange(len(messages)), np.diff(messages.term_offsets))
        return cls(messages.terms[order], owner[order], messages.weights[order].astype(np.float64))

    def lists(self, terms: np.ndarray) -> list[slice]:
        """Where the places of each term are."""
        return [slice(*np.searchsorted(self.term, [term, term + 1]).tolist()) for term in terms.tolist()]


class Expected(NamedTuple):
    """Updates as `matching.naive.tally` counts them, and results as `counted`."""

    updates: Counter
    results: Counter


def counted(rows) -> Counter:
    """Results, counted: (number, rank, seq, score), and text score where the kind has one and it is not NaN."""
    columns = (column.tolist() for column in rows._asdict().values() if column is not None)
    return Counter(tuple(value for value in row if value == value) for row in zip(*columns, strict=True))


def of_numbers(rows, numbers: Int64):
    """Those rows of updates or results that are of these subscriptions."""
    mine = np.isin(rows.number, numbers)
    return type(rows)(**{name: column if column is None else column[mine] for name, column in rows._asdict().items()})


def expected(
    messages: MessageBatch, table: SubscriptionTable, boundaries: Sequence[Boundary], max_distance: float,
    ends: Int64 | None = None,
) -> Expected:  # fmt: skip
    """What subscriptions of a kind with a window, there at the first boundary, are told at those after it.

    Those with a point hold the k best, those with a region whomever none dominates. `messages` are ascending, all that
    may be alive at any of the boundaries; `ends` says by seq which message each one of the stream ends, -1 for none.
    O(terms log terms) once, and for each boundary O(n log n) a subscription that shares a word with n messages.
    """
    last = boundaries[-1].last_seq
    messages = messages.take(np.flatnonzero((messages.seq <= last) & (messages.life > boundaries[0].floor)))
    ended_at = np.full(last + 1, last + 1)
    if ends is not None:
        by = np.flatnonzero(ends[: last + 1] >= 0)
        ended_at[ends[by]] = by
    words, updates, results = Words.of(messages), Counter(), Counter()
    for at, (number, k) in enumerate(zip(table.number.tolist(), table.k.tolist(), strict=True)):
        found, by_region = _eligible(messages, words, table, at, max_distance), _has_region(table, at)
        seq, life = messages.seq[found.row], messages.life[found.row]
        gone_at, best, held = ended_at[seq], found, {}
        for boundary in boundaries:
            there = (seq <= boundary.last_seq) & (life > boundary.floor) & (gone_at > boundary.last_seq)
            some = take_rows(found, there)
            best = take_rows(some, _not_dominated(some) if by_region else _highest(some, k))
            now = dict(zip(messages.seq[best.row].tolist(), best.score.tolist(), strict=True))
            if boundary is not boundaries[0]:
                for change, here, gone in ((LEAVE, held, now), (ENTER, now, held)):
                    changed = here.keys() - gone.keys()
                    updates.update((boundary.last_seq, number, each, change, here[each]) for each in changed)
            held = now
        rows = zip(held, *(column.tolist() for column in best[1 : 3 if by_region else 2]), strict=True)
        results.update((number, rank, *row) for rank, row in enumerate(rows, start=1))
    return Expected(updates, results)


def sampled(table: SubscriptionTable, told: UpdateBatch, evenly: int, most: int) -> SubscriptionTable:
    """So many spread evenly, and so many of those told most, of a table whose numbers ascend.

    A few thousand out of a million may well be told nothing at all.
    """
    some = np.arange(0, len(table), max(1, len(table) // evenly))[:evenly]
    number, times = np.unique(told.number[np.isin(told.number, table.number)], return_counts=True)
    often = np.searchsorted(table.number, number[np.argsort(-times, kind="stable")][:most])
    return table.take(np.union1d(some, often))


def _has_region(table: SubscriptionTable, at: int) -> bool:
    """Whether a subscription has a region in place of a point."""
    return not np.isnan(table.region[at, 0])


def _eligible(messages: MessageBatch, words: Words, table: SubscriptionTable, at: int, max_distance: float) -> Eligible:
    """The messages that share a word with a subscription, and stand in its region if it has one. O(their postings)."""
    own = slice(*table.term_offsets[at : at + 2].tolist())
    lists = words.lists(table.terms[own])
    if _has_region(table, at):
        return in_region(messages, table.region[at], [words.owner[each] for each in lists])
    row, place = np.unique(np.concatenate([words.owner[each] for each in lists]), return_inverse=True)
    # term by term, ascending: a message has each once, and sums have the last bits of the oracle's
    places = np.split(place, np.cumsum([each.stop - each.start for each in lists])[:-1])
    text = np.zeros(row.shape[0])
    for part, each, weight in zip(places, lists, table.weights[own].astype(np.float64), strict=True):
        text[part] += weight * words.weights[each]
    away = np.sqrt((table.x[at] - messages.x[row]) ** 2 + (table.y[at] - messages.y[row]) ** 2)
    alpha = table.alpha[at]
    return Eligible(row, alpha * (1.0 - away / max_distance) + (1.0 - alpha) * text, text)


def in_region(messages: MessageBatch, region: np.ndarray, lists: Sequence[Int64]) -> Eligible:
    """Those inside a region with a keyword, and both relevances to it; `lists`: rows by keyword. O(lists)."""
    west, south, east, north = region
    lon, lat = (messages.west + messages.east) / 2.0, (messages.south + messages.north) / 2.0
    there = [each[(west <= lon[each]) & (lon[each] <= east)] for each in lists]
    there = [each[(south <= lat[each]) & (lat[each] <= north)] for each in there]
    row, common = np.unique(np.concatenate(there), return_counts=True)
    away = np.sqrt((lon[row] - (west + east) / 2.0) ** 2 + (lat[row] - (south + north) / 2.0) ** 2)
    half = np.sqrt((east - west) * (east - west) + (north - south) * (north - south)) / 2.0
    spatial = np.maximum(0.0, 1.0 - away / half) if half > 0.0 else np.ones(row.shape[0])
    lengths = np.diff(messages.term_offsets)[row]
    return Eligible(row, spatial, common / (len(lists) + lengths - common))


def _highest(some: Eligible, k: int) -> Int64:
    """The k best, of equal scores the newer first."""
    among = np.arange(some.row.shape[0])
    if among.shape[0] > k:
        among = np.flatnonzero(some.score >= np.partition(some.score, -k)[-k])
    return among[np.lexsort((-some.row[among], -some.score[among]))][:k]


def _not_dominated(some: Eligible) -> Int64:
    """Those whom nobody is as good as in both and better than in one, by spatial relevance and then seq."""
    pairs, which = np.unique(some.score + 1j * some.text, return_inverse=True)
    # ascending by relevance and then text: whoever comes behind is as near at least, and must have less text
    behind = np.append(np.maximum.accumulate(pairs.imag[::-1])[::-1], -1.0)[1:]
    kept = np.flatnonzero((pairs.imag > behind)[which])
    return kept[np.lexsort((some.row[kept], -some.score[kept]))]
