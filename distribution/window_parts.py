"""Which tuple task stores a message: by place, and in crowded cells by seq, too.

A window query for a rectangle finds its candidates on the few tasks whose part of the world it meets; the others have
no message there. Parts are runs of the cells of `distribution.parts` along its curve. A cell that two parts meet in, or
that has more messages than a part, is shared: each of its tasks has the share of its messages that makes loads equal.
"""

import numpy as np

from distribution.parts import CELLS, cell_of, in_curve_order, loads_of, smoothed
from distribution.router import spread
from matching.model import Float64, Int64, MessageBatch

#: Messages of a shared cell are divided among its tasks in multiples of this fraction.
_SHARES = 4_096
_NOWHERE = np.zeros(0)


def window_load(x: Float64 = _NOWHERE, y: Float64 = _NOWHERE) -> Int64:
    """Weight of each cell (int64[cells]) by a sample of points of the unit square; all the same without one."""
    return loads_of(cell_of(x, y)).weight


class WindowParts:
    """The owner of each message.

    Parameters
    ----------
    tasks : int
    load : int64[cells]    as `window_load` gives it
    """

    def __init__(self, tasks: int, load: Int64):
        self.tasks = tasks
        order = in_curve_order()
        in_order = smoothed(load[order])
        self._load, self._before = np.empty((2, CELLS), np.int64)
        self._load[order], self._before[order] = in_order, np.cumsum(in_order) - in_order
        self._total = int(in_order.sum())

    def owner_of(self, messages: MessageBatch) -> Int64:
        """The task that stores each message: int64[n], 0 to `tasks` - 1. O(n)."""
        if self.tasks == 1:
            return np.zeros(len(messages), np.int64)
        cells = cell_of(messages.x, messages.y)
        within = self._load[cells] * spread(messages.seq, _SHARES) // _SHARES
        return (self._before[cells] + within) * self.tasks // self._total
