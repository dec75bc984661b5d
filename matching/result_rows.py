"""Results of several subscriptions in rows, and what all kinds derive from them: ranks, and updates between boundaries.

Rows are a NamedTuple of `offsets` (int64[rows + 1]) and columns of entries, row after row: `seq` (int64), the reported
score (float64), and what else a kind has.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from compiling.njit import njit
from matching.model import ENTER, LEAVE, Float64, Int32, Int64, UpdateBatch, take_ragged
from matching.window import Boundary

Rows = TypeVar("Rows", bound=NamedTuple)


class ResultRows(NamedTuple):
    """Results without further columns: `offsets` int64[rows + 1], `seq` int64, `score` float64."""

    offsets: Int64
    seq: Int64
    score: Float64


def take_results(results: Rows, rows: Int64) -> Rows:
    """Some rows. O(rows + entries)."""
    offsets, picked = take_ragged(results[0], rows)
    return type(results)._make([offsets, *(column[picked] for column in results[1:])])


def join_results(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, at least one, in order. O(rows + entries)."""
    offsets = np.cumsum(np.concatenate([[0], *(np.diff(part[0]) for part in parts)]))
    columns = zip(*(part[1:] for part in parts), strict=True)
    return type(parts[0])._make([offsets, *map(np.concatenate, columns)])


def split_results(results: Rows, rows: Sequence[int]) -> list[Rows]:
    """The results of the first `rows[0]` rows, of the next `rows[1]`, and so on, as views. O(parts)."""
    cuts = np.cumsum([0, *rows])
    ends = results[0][cuts]
    return [
        type(results)._make([results[0][first : last + 1] - begin, *(column[begin:end] for column in results[1:])])
        for first, last, begin, end in zip(cuts, cuts[1:], ends, ends[1:], strict=False)
    ]


def ranks(offsets: Int64) -> Int32:
    """Rank of each entry in its row (int32[entries]), from 1. O(rows + entries)."""
    return (np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets)) + 1).astype(np.int32)


def result_updates(boundary: Boundary, number: Int64, before: Rows, after: Rows, by_seq: bool = False) -> UpdateBatch:
    """Updates of subscriptions (int64[rows]) from their results `before` to those at the boundary, row by row.

    Leaves come first. Rows are ordered by score, of equal scores the newer first; or `by_seq`, ascending. O(entries).
    """
    most = before[1].shape[0] + after[1].shape[0]
    row, seq = np.empty(most, np.int32), np.empty(most, np.int64)
    score, enters = np.empty(most), np.empty(most, np.bool_)
    n = _difference(before[:3], after[:3], by_seq, row, seq, score, enters)
    change = np.where(enters[:n], ENTER, LEAVE).astype(np.int8)
    return UpdateBatch(np.full(n, boundary.last_seq), number[row[:n]], seq[:n], change, score[:n])


@njit(cache=True, nogil=True)
def _difference(before, after, by_seq, out_row, out_seq, out_score, out_enters):
    """Write the set difference of two results of the same rows; returns the number written.

    Outputs have at least the entries of both together. One pass over both. Reference: set difference in
    `matching.naive`.
    """
    written = 0
    for row in range(before[0].shape[0] - 1):
        # the same merge twice: entries of the former result alone left, those of the latter alone entered
        for enters in (False, True):
            offsets, seqs, scores = after if enters else before
            other_offsets, other_seqs, other_scores = before if enters else after
            j, last = other_offsets[row], other_offsets[row + 1]
            for i in range(offsets[row], offsets[row + 1]):
                seq, score = seqs[i], scores[i]
                # skip what comes before the entry; a message keeps its score, so equality is exact
                while j < last and (
                    other_seqs[j] < seq
                    if by_seq
                    else other_scores[j] > score or (other_scores[j] == score and other_seqs[j] > seq)
                ):
                    j += 1
                if j == last or other_seqs[j] != seq:
                    out_row[written], out_seq[written] = row, seq
                    out_score[written], out_enters[written] = score, enters
                    written += 1
    return written
