"""Parts of the world of about equal load, from the weights of its cells.

The unit square is cut into 64 x 64 cells, and the cells, along a Z-order curve, into runs, one for each task (spec
3.2). A cell weighs the cost of its messages: 1 each at first, and scaled by the measured work of its task per message
once that is known (`reweighed`). Every task that resumes from a checkpoint computes the parts itself and must get the
same ones on any machine, so all arithmetic is on integers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from matching.model import Float64, Int64

CELLS_A_SIDE = 64
CELLS = CELLS_A_SIDE**2
#: Price of a message before work is measured; prices are multiples of a 65,536th of that.
PAR = 1 << 16
#: Largest factor of one price change: a short measurement must not overturn the placement.
_MOST_CHANGE = 4
_HIGHEST_PRICE = 1 << 40
#: Weights are scaled to this sum, so that no product overflows.
_MOST_WEIGHT = 1 << 28
#: Below this number of messages, the present weights are more reliable than counts.
_ENOUGH_MESSAGES = 1_000


class Loads(NamedTuple):
    """Weight of each cell (int64[cells]), and price of a message in it (int64[cells], `PAR` at first)."""

    weight: Int64
    price: Int64


def cell_of(x: Float64, y: Float64) -> Int64:
    """Cell of each point of the unit square; points outside count to the nearest border cell. O(n)."""
    return step_of(y) * CELLS_A_SIDE + step_of(x)


def step_of(values: Float64) -> Int64:
    """Column, or row, of each coordinate. O(n)."""
    return np.clip(np.floor(values * CELLS_A_SIDE), 0, CELLS_A_SIDE - 1).astype(np.int64)


def loads_of(cells: Int64, count: int = CELLS) -> Loads:
    """Loads of `count` cells from a sample of messages, by the cell of each (int64[n])."""
    return Loads(_scaled(np.bincount(cells, minlength=count).tolist()), np.full(count, PAR, np.int64))


def cut(weight: Int64, tasks: int) -> Int64:
    """Give every cell an owner: runs of about equal weight along a Z-order curve. Cells without weight count a little.

    Returns int64[cells].
    """
    order = in_curve_order()
    owner = np.empty(CELLS, np.int64)
    owner[order] = cut_in_order(weight[order], tasks)
    return owner


def in_curve_order() -> Int64:
    """The cells along the Z-order curve: int64[cells]."""
    row, column = np.divmod(np.arange(CELLS), CELLS_A_SIDE)
    curve = np.zeros_like(row)
    for bit in range(CELLS_A_SIDE.bit_length() - 1):
        curve |= ((column >> bit) & 1) << (2 * bit) | ((row >> bit) & 1) << (2 * bit + 1)
    return np.argsort(curve)


def cut_in_order(weight: Int64, tasks: int) -> Int64:
    """As `cut`, for cells whose weights (int64[n]) are given in the order of the curve."""
    load = smoothed(weight)
    before = np.cumsum(load) - load
    return before * tasks // int(load.sum())


def smoothed(weight: Int64) -> Int64:
    """Weights of cells (int64[n]), scaled, with a little added to each: none is 0, and their sum is below 2**51."""
    return weight * (1000 * weight.shape[0]) + max(1, int(weight.sum()))


def reweighed(loads: Loads, owner: Int64, seen: Int64, work: Sequence[int]) -> Loads:
    """Loads from measured work.

    Parameters
    ----------
    loads : Loads              during the measurement
    owner : int64[cells]       task of each cell
    seen : int64[cells]        messages in each cell
    work : sequence of int     work of each task, in any unit
    """
    prices = loads.price.tolist()
    if int(seen.sum()) >= _ENOUGH_MESSAGES:
        value = [count * price for count, price in zip(seen.tolist(), prices, strict=True)]
    else:
        value = loads.weight.tolist()
    value_of_task = [0] * len(work)
    for task, each in zip(owner.tolist(), value, strict=True):
        value_of_task[task] += each
    # prices scale by a task's part of all work, divided by its part of all value
    everything, all_work = max(1, sum(value_of_task)), max(1, sum(work))
    ratios = []
    for mine, own in zip(value_of_task, work, strict=True):
        ratio = PAR * own * everything // (mine * all_work) if mine else PAR
        ratios.append(min(max(ratio, PAR // _MOST_CHANGE), PAR * _MOST_CHANGE))
    weight = [each * ratios[task] for each, task in zip(value, owner.tolist(), strict=True)]
    price = [
        min(max(each * ratios[task] // PAR, 1), _HIGHEST_PRICE)
        for each, task in zip(prices, owner.tolist(), strict=True)
    ]
    return Loads(_scaled(weight), np.array(price, np.int64))


def _scaled(weight: list[int]) -> Int64:
    total = max(1, sum(weight))
    return np.array([each * _MOST_WEIGHT // total for each in weight], np.int64)
