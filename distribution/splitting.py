"""The parts of a batch for all query tasks, cut out in one pass.

Cutting a batch task by task costs a dozen calls of NumPy for each, one a column: for twenty tasks twenty times as much.
Here each column is gathered once for all parts, and the columns of a part are views of it.
"""

from collections.abc import Sequence

import numpy as np

from compiling.njit import njit
from matching.model import Int64, MessageBatch, take_optional
from matching.storage.slots import as_input

#: How many values a column has: none (it is empty in all parts), or one for each message, term or offset of terms.
_EMPTY, _ROWS, _TERMS, _OFFSETS = range(-1, 3)
#: Columns of the order of words, which has offsets of its own.
_ORDER = ("order_offsets", "order")
_RUNS_OF = {"terms": _TERMS, "weights": _TERMS, "counts": _TERMS, "term_offsets": _OFFSETS}


def split(messages: MessageBatch, rows: Sequence[Int64]) -> tuple[list[MessageBatch], list[int]]:
    """For each array of rows (ascending) the batch that `MessageBatch.take` returns, read-only, and its bytes.

    O(rows + their terms).
    """
    cuts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([each.shape[0] for each in rows], out=cuts[1:])
    picked = np.concatenate(rows)
    offsets = np.empty(picked.shape[0] + len(rows), np.int64)
    term_cuts = np.zeros(len(rows) + 1, np.int64)
    term_offsets = as_input(messages.term_offsets, np.int64)
    _offsets(term_offsets, picked, cuts, offsets, term_cuts)
    places = np.empty(int(term_cuts[-1]), np.int64)
    _places(term_offsets, picked, places)
    # by identity: west and east of points are one column
    columns, layout = dict[int, tuple[np.ndarray, int]](), list[int]()
    for name, column in zip(MessageBatch._fields, messages, strict=True):
        if name in _ORDER:
            continue
        runs, key = _RUNS_OF.get(name, _ROWS) if column.size else _EMPTY, id(column)
        if key not in columns:
            columns[key] = _gathered(column, runs, picked, places, offsets), runs
        layout.append(list(columns).index(key))
    widths = [0, 0, 0]
    for column, runs in columns.values():
        if runs != _EMPTY:
            widths[runs] += column.itemsize * (column.shape[1] if column.ndim > 1 else 1)
    order_ends, order = take_optional(messages.order_offsets, messages.order, picked)
    order.setflags(write=False)
    row_cuts, of_terms, parts, sizes = cuts.tolist(), term_cuts.tolist(), [], []
    for number in range(len(rows)):
        first, last, begin, end = row_cuts[number], row_cuts[number + 1], of_terms[number], of_terms[number + 1]
        ends = slice(first, last), slice(begin, end), slice(first + number, last + number + 1)
        views = [column if runs == _EMPTY else column[ends[runs]] for column, runs in columns.values()]
        words = order_ends, order  # empty stays empty
        if order_ends.shape[0]:
            own = order_ends[first : last + 1]
            words = own - own[0], order[own[0] : own[-1]]
            words[0].setflags(write=False)
        *plain, previous_seq = (views[at] for at in layout)
        parts.append(MessageBatch(*[*plain, *words, previous_seq]))
        of_rows = sum(width * (each.stop - each.start) for width, each in zip(widths, ends, strict=True))
        sizes.append(of_rows + sum(each.nbytes for each in words))
    return parts, sizes


def warmup() -> None:
    """Compile, or load from the cache, the kernels of this module."""
    seq, point, terms = np.zeros(1, np.int64), np.full(1, 0.5), np.ones(1, np.int32)
    split(
        MessageBatch(
            seq, point, point, point, point, point, point, seq, np.array([0, 1]), terms, np.ones(1, np.float32)
        ),
        [seq],
    )


def _gathered(column: np.ndarray, runs: int, picked: Int64, places: Int64, offsets: Int64) -> np.ndarray:
    """The rows of a column for all parts; read-only, so that all views of it are read-only, too."""
    if runs == _EMPTY:
        return column
    gathered = offsets if runs == _OFFSETS else column[places if runs == _TERMS else picked]
    gathered.setflags(write=False)
    return gathered


@njit(cache=True, nogil=True)
def _offsets(term_offsets, rows, cuts, offsets, term_cuts):
    """Fill the term offsets of all parts, each from 0, one part after the other, and the terms before each part."""
    for part in range(cuts.shape[0] - 1):
        end = np.int64(0)
        offsets[cuts[part] + part] = 0
        for at in range(cuts[part], cuts[part + 1]):
            end += term_offsets[rows[at] + 1] - term_offsets[rows[at]]
            offsets[at + part + 1] = end
        term_cuts[part + 1] = term_cuts[part] + end


@njit(cache=True, nogil=True)
def _places(term_offsets, rows, places):
    """Indices of the terms of all rows, among the terms of the whole batch."""
    end = 0
    for row in rows:
        for at in range(term_offsets[row], term_offsets[row + 1]):
            places[end] = at
            end += 1
