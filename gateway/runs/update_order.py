"""Applies delivered updates in order, as a subscriber does, and reports those out of order.

Updates that are right as a set may still come in an unusable order. `follow` reports such rows, and the results at the
end, which `gateway.runs.verify` compares with `results.parquet`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.runs.oracle_replay import AS_OF, CHANGE, ID_ROW, SEQ
from matching.model import ENTER, LEAVE, Int64


class MisorderedRows(NamedTuple):
    """Rows out of order, and the results at the end.

    faults : list of (int64[m], str)    rows that are out of order, at least one, and why
    standing : int64[n, 2]              external id and seq of every message that has entered and not left since
    """

    faults: list[tuple[Int64, str]]
    standing: Int64


def follow(delivered: Int64, ends: Int64, id_row: Int64, at: Int64) -> MisorderedRows:
    """Apply updates id by id.

    Parameters
    ----------
    delivered : int64[n, 5]    events (see `gateway.runs.oracle_replay.AS_OF`...) in the order of the files
    ends : int64[b]            last seq of every boundary, ascending
    id_row, at : int64[s]      external id (as in `delivered`) of every subscription, and the seq from which it lives

    Notes
    -----
    O(n log n): 6 s for 10 million updates, 8 s if all of them are of ids that have had several subscriptions.
    """
    order = np.argsort(delivered[:, ID_ROW], kind="stable")
    boundary = np.searchsorted(ends, delivered[order, AS_OF])
    faults = [
        _out_of_order(delivered, order, boundary),
        _out_of_succession(delivered, order, boundary, ends, id_row, at),
        _mixed(delivered, order, boundary),
    ]
    rows, new = _by_message(delivered)
    enters = delivered[rows, CHANGE] == ENTER
    present = np.concatenate([[False], enters[:-1]])[: rows.shape[0]] & ~new
    faults.append((rows[enters & present], "updates enter a message that is in the result already"))
    faults.append((rows[~enters & ~present], "updates leave a message that is not in the result"))
    last = np.concatenate([new[1:], [True]])[: rows.shape[0]]
    standing = rows[last & enters]
    return MisorderedRows([fault for fault in faults if fault[0].shape[0]], delivered[standing][:, [ID_ROW, SEQ]])


def _out_of_order(delivered: Int64, order: Int64, boundary: Int64) -> tuple[Int64, str]:
    """Rows that go back to an earlier boundary; `order` has the rows id by id, `boundary` those of its rows."""
    id_row = delivered[order, ID_ROW]
    back = (id_row[1:] == id_row[:-1]) & (boundary[1:] < boundary[:-1])
    return order[1:][back], "updates go back to a boundary before that of the update before them under the same id"


def _mixed(delivered: Int64, order: Int64, boundary: Int64) -> tuple[Int64, str]:
    """Rows that leave at a boundary at which something has entered already."""
    change = delivered[order, CHANGE]
    of_results = np.flatnonzero((change == ENTER) | (change == LEAVE))
    id_row, change, boundary = delivered[order[of_results], ID_ROW], change[of_results], boundary[of_results]
    late = (
        (id_row[1:] == id_row[:-1]) & (boundary[1:] == boundary[:-1]) & (change[1:] == LEAVE) & (change[:-1] == ENTER)
    )
    return order[of_results[1:][late]], "updates leave after others have entered under the same id at that boundary"


def _out_of_succession(
    delivered: Int64, order: Int64, boundary: Int64, ends: Int64, id_row: Int64, at: Int64
) -> tuple[Int64, str]:
    """Rows of a subscription that stand behind some of its successor's."""
    several = np.flatnonzero(np.bincount(id_row, minlength=1)[delivered[order, ID_ROW]] > 1)
    order, boundary = order[several], boundary[several]
    of, place = delivered[order, ID_ROW], _places(delivered[order], boundary, ends, id_row, at)
    back = (of[1:] == of[:-1]) & (place[1:] < place[:-1])
    return order[1:][back], "updates of a subscription stand behind those of the one that replaced it"


def owners(updates: Int64, ends: Int64, id_row: Int64, at: Int64) -> Int64:
    """Which subscription each update is of: int64[n], positions in `id_row` and `at`; parameters as of `follow`.

    An update of a time before the first subscription of its id is of that one.
    """
    if not updates.shape[0]:
        return np.zeros(0, np.int64)
    place = _places(updates, np.searchsorted(ends, updates[:, AS_OF]), ends, id_row, at)
    order = np.lexsort((at, id_row))
    first = np.searchsorted(id_row[order], updates[:, ID_ROW])
    return order[np.maximum(place - 1, first)]


def _places(updates: Int64, boundary: Int64, ends: Int64, id_row: Int64, at: Int64) -> Int64:
    """How many subscriptions, by id and then by time, have begun up to the one that each update is of.

    Which of the subscriptions of an id an update is of follows from when they live: a match is of the one
    that is active at its message, an enter at its boundary, a leave at the boundary before.
    """
    when = np.where(updates[:, CHANGE] == LEAVE, np.concatenate([[-1], ends])[boundary], updates[:, AS_OF])
    # id and seq as one number; seqs beyond the stream are clipped to its end
    beyond = int(ends[-1]) + 1 if ends.shape[0] else 0
    begins = np.sort(id_row * (beyond + 2) + np.minimum(at, beyond) + 1)
    return np.searchsorted(begins, updates[:, ID_ROW] * (beyond + 2) + np.clip(when, -1, beyond) + 1, side="right")


def _by_message(delivered: Int64) -> tuple[Int64, NDArray[np.bool_]]:
    """Rows of enters and leaves by id and message, then in order; and whether each is the first of its message."""
    rows = np.flatnonzero((delivered[:, CHANGE] == ENTER) | (delivered[:, CHANGE] == LEAVE))
    id_row, seq = delivered[rows, ID_ROW], delivered[rows, SEQ]
    order = np.lexsort((seq, id_row))
    id_row, seq = id_row[order], seq[order]
    new = np.ones(rows.shape[0], np.bool_)
    new[1:] = (id_row[1:] != id_row[:-1]) | (seq[1:] != seq[:-1])
    return rows[order], new
