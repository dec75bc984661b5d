"""What kinds with a window have to tell, computed apart from every engine: each result from scratch, with NumPy.

`matching.naive` is asked where it can be. It scores one pair after the other, and cannot say in time what thousands of
subscriptions are told over a window of a million messages; this can, and a test holds it against `matching.naive`. It
shares no code with engines or windows: whoever shares a word is found by sorting the words of all messages, scores are
the oracle's expressions in the oracle's order, and a result is made anew at every boundary.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.cases import Case
from benchmarks.workload import NO_REMOVALS, WORLD
from matching.model import (
    ENTER,
    LEAVE,
    SKYLINE,
    Float64,
    Int32,
    Int64,
    MessageBatch,
    SubscriptionTable,
    UpdateBatch,
    take_rows,
)
from matching.naive import Oracle, tally
from matching.window import NO_FLOOR, Boundary


class Eligible(NamedTuple):
    """Messages that may be of a subscription's result, ascending: `row` int64, `score` and `text` float64."""

    row: Int64
    score: Float64
    text: Float64


class Words(NamedTuple):
    """Messages by word, ascending in each: `term`, `owner` (row) and `weights` (float64) of every place."""

    term: Int32
    owner: Int64
    weights: Float64

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
    """Updates as `matching.naive.tally` counts them, and results: (number, rank, seq, score[, text score]), counted."""

    updates: Counter
    results: Counter


def expected(
    messages: MessageBatch,
    table: SubscriptionTable,
    boundaries: Sequence[Boundary],
    max_distance: float,
    ends: Int64 | None = None,
) -> Expected:
    """What subscriptions, live at the first boundary, are told at those after it, and hold at the last.

    Parameters
    ----------
    messages : MessageBatch      the stream from seq 0 on, dense
    table : SubscriptionTable    of one kind that has a window
    boundaries : sequence        ascending
    max_distance : float         of the space
    ends : int64[messages]       which message each one ends, -1 for none

    Notes
    -----
    O(terms log terms) once, and O(n log n) a subscription, of its n messages, for each boundary.
    """
    count = boundaries[-1].last_seq + 1
    messages = messages.take(np.arange(count))
    ended_at = np.full(count, count)
    if ends is not None:
        by = np.flatnonzero(ends[:count] >= 0)
        ended_at[ends[by]] = by
    words = Words.of(messages)
    updates, results = Counter(), Counter()
    for at in range(len(table)):
        found = eligible(messages, words, table, at, max_distance)
        _tell(messages, found, ended_at, boundaries, int(table.number[at]), int(table.kind[at]), int(table.k[at]),
              updates, results)  # fmt: skip
    return Expected(updates, results)


def told_to(case: Case, sample: SubscriptionTable, boundaries: Sequence[Boundary]) -> Expected:
    """What some subscriptions are told behind the first boundary; of kinds without window `matching.naive` says it."""
    if case.kind.windowed:
        ends = case.ends if case.kind.needs_ended else None
        return expected(case.messages, sample, boundaries, WORLD.max_distance, ends)
    whole = Boundary(0, boundaries[0].last_seq + 1, boundaries[-1].last_seq, NO_FLOOR)
    rows, _ = case.batch_of(whole)
    return Expected(tally(Oracle(None, WORLD.max_distance).advance(whole, rows, sample, NO_REMOVALS)), Counter())


def sampled(table: SubscriptionTable, told: UpdateBatch, evenly: int, most: int) -> SubscriptionTable:
    """So many spread evenly, and so many of those told most, of a table whose numbers ascend.

    A few thousand out of a million may well be told nothing at all.
    """
    some = np.arange(0, len(table), max(1, len(table) // evenly))[:evenly]
    number, times = np.unique(told.number[np.isin(told.number, table.number)], return_counts=True)
    often = np.searchsorted(table.number, number[np.argsort(-times, kind="stable")][:most])
    return table.take(np.union1d(some, often))


def held_against(
    case: Case, told: UpdateBatch, boundaries: Sequence[Boundary], sample: tuple[int, int]
) -> tuple[bool, int, int]:
    """What a run told behind the first of these boundaries, against what had to be; `sample` as of `sampled`.

    Returns
    -------
    tuple    whether it was the same, how many updates were expected, and of how many subscriptions
    """
    after, last = boundaries[0].last_seq, boundaries[-1].last_seq
    told = take_rows(told, np.flatnonzero((told.as_of > after) & (told.as_of <= last)))
    some = sampled(case.table, told, *sample)
    wanted = told_to(case, some, boundaries).updates
    found = tally(take_rows(told, np.flatnonzero(np.isin(told.number, some.number))))
    return found == wanted, wanted.total(), len({event[1] for event in wanted})


def eligible(messages: MessageBatch, words: Words, table: SubscriptionTable, at: int, max_distance: float) -> Eligible:
    """The messages that share a word with a subscription, and stand in its region if it has one. O(their postings)."""
    own = slice(*table.term_offsets[at : at + 2].tolist())
    lists = words.lists(table.terms[own])
    if table.kind[at] == SKYLINE:
        return in_region(messages, table.region[at], [words.owner[each] for each in lists])
    row, place = np.unique(np.concatenate([words.owner[each] for each in lists]), return_inverse=True)
    # term by term, ascending: a message has each once, and sums have the last bits of the oracle's
    places = np.split(place, np.cumsum([each.stop - each.start for each in lists])[:-1])
    text = np.zeros(row.shape[0])
    for part, each, weight in zip(places, lists, table.weights[own].astype(np.float64), strict=True):
        text[part] += weight * words.weights[each]
    away = np.sqrt((table.x[at] - messages.x[row]) ** 2 + (table.y[at] - messages.y[row]) ** 2)
    alpha = table.alpha[at]
    score = alpha * (1.0 - away / max_distance) + (1.0 - alpha) * text
    return Eligible(row, score, np.full(row.shape[0], np.nan))


def in_region(messages: MessageBatch, region: Float64, lists: Sequence[Int64]) -> Eligible:
    """Those inside a region with a keyword, and both relevances of a skyline; `lists`: rows by keyword. O(lists)."""
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


def _tell(messages, eligible, ended_at, boundaries, number, kind, k, updates, results) -> None:
    """Count what a subscription is told and what it holds in the end."""
    held: dict[int, float] = {}
    best = np.zeros(0, np.int64)
    # from the nearest on, of equally near ones the better text first: sorted once for all boundaries
    order = np.lexsort((-eligible.text, -eligible.score)) if kind == SKYLINE else best
    for boundary in boundaries:
        there = (eligible.row <= boundary.last_seq) & (messages.life[eligible.row] > boundary.floor)
        there &= (kind != SKYLINE) | (ended_at[eligible.row] > boundary.last_seq)
        if kind == SKYLINE:
            best = _not_dominated(eligible, order[there[order]])
        else:
            best = _highest(eligible, np.flatnonzero(there), k)
        now = dict(zip(eligible.row[best].tolist(), eligible.score[best].tolist(), strict=True))
        if boundary is not boundaries[0]:
            for seq in held.keys() - now.keys():
                updates[boundary.last_seq, number, seq, LEAVE, held[seq]] += 1
            for seq in now.keys() - held.keys():
                updates[boundary.last_seq, number, seq, ENTER, now[seq]] += 1
        held = now
    for rank, at in enumerate(best.tolist(), start=1):
        row = number, rank, int(eligible.row[at]), float(eligible.score[at])
        results[(*row, float(eligible.text[at])) if kind == SKYLINE else row] += 1


def _highest(eligible: Eligible, alive: Int64, k: int) -> Int64:
    """The k best, of equal scores the newer first."""
    if alive.shape[0] > k:
        bar = np.partition(eligible.score[alive], -k)[-k]
        alive = alive[eligible.score[alive] >= bar]
    return alive[np.lexsort((-eligible.row[alive], -eligible.score[alive]))][:k]


def _not_dominated(eligible: Eligible, ordered: Int64) -> Int64:
    """Those whom nobody is as good as in both and better than in one, by spatial relevance and then seq."""
    near, text = eligible.score[ordered], eligible.text[ordered]
    first = np.ones(ordered.shape[0], np.bool_)
    first[1:] = (near[1:] != near[:-1]) | (text[1:] != text[:-1])
    # whoever is farther, or as near with less text, must have a better text than all before; coincident ones stay with
    # the first of them
    before = np.concatenate([[-1.0], np.maximum.accumulate(text)[:-1]]) if ordered.size else text
    kept = ordered[(text > before)[first][np.cumsum(first) - 1]]
    return kept[np.lexsort((eligible.row[kept], -eligible.score[kept]))]
