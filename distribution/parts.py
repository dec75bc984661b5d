"""Parts of the world of about equal load, and what the cells of the world weigh.

The unit square is cut into 64 x 64 cells, and the cells, along a Z-order curve, into runs, one for each task (spec
3.2). A cell weighs what its messages cost: at first each message counts for one; where the work of the tasks has been
measured (`reweighed`), as many times more as its task was found to work for each message. Everybody who goes on from
the same checkpoint works this out for himself, on whatever machine, so all of it is whole numbers.

Used by `distribution.location`; read on there.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from matching.model import Float64, Int64

CELLS_A_SIDE = 64
CELLS = CELLS_A_SIDE**2
#: What a message costs before anything was measured; prices are multiples of a 65,536th of that.
PAR = 1 << 16
#: By how much a price may rise or fall at once: a short measurement must not turn the world over.
_MOST_CHANGE = 4
_HIGHEST_PRICE = 1 << 40
#: Weights are scaled down to so much in sum, so that no product overflows.
_MOST_WEIGHT = 1 << 28
#: Below so many messages, what they were says less than the weights that there are.
_ENOUGH_MESSAGES = 1_000


class Loads(NamedTuple):
    """What cells weigh (int64[cells]), and what a message in each was found to cost (int64[cells], `PAR` at first)."""

    weight: Int64
    price: Int64


def cell_of(x: Float64, y: Float64) -> Int64:
    """Cell of each point of the unit square; points outside count to the nearest border cell. O(n)."""
    return step_of(y) * CELLS_A_SIDE + step_of(x)


def step_of(values: Float64) -> Int64:
    """Column, or row, of each coordinate. O(n)."""
    return np.clip(np.floor(values * CELLS_A_SIDE), 0, CELLS_A_SIDE - 1).astype(np.int64)


def loads_of(cells: Int64) -> Loads:
    """Of a sample of messages, by their cells."""
    return Loads(_scaled(np.bincount(cells, minlength=CELLS).tolist()), np.full(CELLS, PAR, np.int64))


def cut(weight: Int64, tasks: int) -> Int64:
    """Give every cell an owner: runs of about equal weight along a Z-order curve. Cells without weight count a little.

    Returns int64[cells].
    """
    load = weight * (1000 * CELLS) + max(1, int(weight.sum()))
    row, column = np.divmod(np.arange(CELLS), CELLS_A_SIDE)
    curve = np.zeros_like(row)
    for bit in range(CELLS_A_SIDE.bit_length() - 1):
        curve |= ((column >> bit) & 1) << (2 * bit) | ((row >> bit) & 1) << (2 * bit + 1)
    order = np.argsort(curve)
    before = np.cumsum(load[order]) - load[order]
    owner = np.empty(CELLS, np.int64)
    owner[order] = before * tasks // int(load.sum())
    return owner


def reweighed(loads: Loads, owner: Int64, seen: Int64, work: Sequence[int]) -> Loads:
    """What cells weigh by what was measured.

    Parameters
    ----------
    loads : Loads              as they were while it was measured
    owner : int64[cells]       whose each cell was
    seen : int64[cells]        messages that came to each cell
    work : sequence of int     what each task has worked, in any unit
    """
    prices = loads.price.tolist()
    if int(seen.sum()) >= _ENOUGH_MESSAGES:
        value = [count * price for count, price in zip(seen.tolist(), prices, strict=True)]
    else:
        value = loads.weight.tolist()
    value_of_task = [0] * len(work)
    for task, each in zip(owner.tolist(), value, strict=True):
        value_of_task[task] += each
    # work of a task for what its cells are worth, in proportion to that of all: the price rises by that much
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
