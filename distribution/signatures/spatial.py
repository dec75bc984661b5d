"""The spatial half of a signature: the cells of the world that rectangles touch.

The unit square is cut into `side` x `side` cells. A rectangle counts for every cell it touches, with a tolerance, so a
point in it always lies in one of them (spec 4.6). `CellCounts` has the number of rectangles for each cell, on the query
task; sent is the set of cells with a count, in one of two filters with the same methods: `CellBitmap`, one bit a cell
and exact, and the papers' spatial cuckoo filter, a `CuckooFilter` of cell numbers. The bitmap is the default: exact,
and smaller as soon as one cell in eleven is in the set.

Where the router gives each task a part of the world (its `domain`), only cells of that part have numbers, from 0 on,
since places are looked up only in their owner's signature (`distribution.location`).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiling.njit import njit, njit_no_refcount
from matching.errors import ConfigError, EngineError
from matching.model import Float64, Int32, Int64, MessageBatch
from matching.space import Space
from matching.storage.slots import as_input

#: Cells a side of the grid, as in the paper (about a million cells).
CELLS_A_SIDE = 1024
#: Tolerance for places on the border of a cell, which projection may round to either side.
BORDER = 1e-12
#: A range message over more cells than this passes without a lookup.
MOST_CELLS = 4096
#: Boxes over more cells than this multiple of the grid are counted together.
_MUCH = 2

Domain = NDArray[np.bool_]


class Boxes(NamedTuple):
    """Rectangles of cells: `row` (int64[m]) they belong to, ascending; `cells` (int32[m, 4]) first column, first row,
    last column, last row, all inside the grid."""

    row: Int64
    cells: Int32


def region_boxes(space: Space, region: Float64, side: int) -> Boxes:
    """Cells of regions (float64[n, 4]; west > east crosses the antimeridian: two boxes; NaN: none). O(n)."""
    west, south, east, north = region.T
    crosses = west > east
    first = boxes_of(space, west, south, np.where(crosses, 180.0, east), north, side)
    if not np.any(crosses):
        return first
    rows = np.flatnonzero(crosses)
    second = boxes_of(space, np.full(rows.size, -180.0), south[rows], east[rows], north[rows], side)
    row = np.concatenate([first.row, rows[second.row]])
    order = np.argsort(row, kind="stable")
    return Boxes(row[order], np.concatenate([first.cells, second.cells])[order])


def message_boxes(space: Space, messages: MessageBatch, side: int) -> Boxes:
    """Cells of messages: one for a point, but for those on a border. O(n)."""
    return boxes_of(space, messages.west, messages.south, messages.east, messages.north, side)


def boxes_of(space: Space, west: Float64, south: Float64, east: Float64, north: Float64, side: int) -> Boxes:
    """Cells that rectangles in degrees touch; rows with a NaN are left out. O(n)."""
    row = np.flatnonzero(~(np.isnan(west) | np.isnan(south) | np.isnan(east) | np.isnan(north)))
    low_x, low_y = space.project(west[row], south[row])
    high_x, high_y = space.project(east[row], north[row])
    cells = np.empty((row.size, 4), np.int32)
    for column, (values, hair) in enumerate(((low_x, -BORDER), (low_y, -BORDER), (high_x, BORDER), (high_y, BORDER))):
        cells[:, column] = np.clip(np.floor((values + hair) * side), 0, side - 1)
    return Boxes(row, cells)


def whole_domain() -> Domain:
    """The domain of a task that owns everything."""
    return np.ones((1, 1), np.bool_)


class CellNumbering:
    """Numbers of the cells of a domain, dense from 0.

    Parameters
    ----------
    side : int             cells a side of the grid
    domain : bool[d, d]    d divides side

    Attributes
    ----------
    ranks : int32[d, d]    position of a part of the domain among its parts, -1 outside
    cells : int            number of cells in the domain
    """

    def __init__(self, side: int, domain: Domain):
        if domain.ndim != 2 or domain.shape[0] != domain.shape[1] or side % domain.shape[0]:
            raise ConfigError(f"a domain of shape {domain.shape} does not divide a grid of {side} cells a side")
        ranks = np.cumsum(domain.ravel()).reshape(domain.shape) - 1
        self.side = side
        self.ranks = as_input(np.where(domain, ranks, -1), np.int32)
        self.cells = int(np.count_nonzero(domain)) * (side // domain.shape[0]) ** 2


class CellCounts:
    """How many boxes touch each cell that has a number."""

    def __init__(self, numbering: CellNumbering):
        self.numbering = numbering
        self.counts = np.zeros(numbering.cells, np.int32)
        self._reported = np.zeros(numbering.cells, np.bool_)
        self._changed = False

    def add(self, boxes: Boxes) -> None:
        """Count boxes once more. O(their cells), for many wide ones O(boxes + all cells)."""
        self._changed |= self._count(boxes, 1)

    def subtract(self, boxes: Boxes) -> None:
        """Count boxes once less.

        Raises
        ------
        EngineError
            If a count would become negative; the counts are invalid then.
        """
        self._changed |= self._count(boxes, -1)
        grid = self.numbering
        if self._is_much(boxes):
            spoilt = bool(np.any(self.counts < 0))
        else:
            spoilt = _any_negative(self.counts, grid.side, grid.ranks, as_input(boxes.cells, np.int32))
        if spoilt:
            raise EngineError("a rectangle cannot be taken out of a signature: it was not added as often")

    def contains(self, items: Int64) -> NDArray[np.bool_]:
        """bool[n]: which cells have a count."""
        return self.counts[items] > 0

    def items(self) -> Int64:
        """Cells with a count, ascending. O(cells)."""
        return np.flatnonzero(self.counts > 0)

    def __len__(self) -> int:
        return int(np.count_nonzero(self.counts))

    def changed(self) -> bool:
        """Whether any cell was added or removed since the last `pop_changes`."""
        return self._changed

    def pop_changes(self) -> tuple[Int64, Int64]:
        """Cells added and cells removed since the last call. O(cells)."""
        there = self.counts > 0
        differ = np.flatnonzero(there != self._reported)
        came = there[differ]
        self._reported, self._changed = there, False
        return differ[came], differ[~came]

    @property
    def nbytes(self) -> int:
        return self.counts.nbytes + self._reported.nbytes

    def _count(self, boxes: Boxes, step: int) -> bool:
        grid = self.numbering
        count = _count_together if self._is_much(boxes) else _count_boxes
        return bool(count(self.counts, grid.side, grid.ranks, as_input(boxes.cells, np.int32), step))

    def _is_much(self, boxes: Boxes) -> bool:
        """Whether boxes touch so many cells that a pass over the whole grid is less work."""
        sides = boxes.cells[:, 2:].astype(np.int64) - boxes.cells[:, :2] + 1
        return int(np.sum(sides[:, 0] * sides[:, 1])) > _MUCH * self.numbering.side**2


class CellBitmap:
    """A set of numbers below `size`, one bit each: the exact filter."""

    def __init__(self, size: int):
        self.bits = np.zeros((size + 7) // 8, np.uint8)
        self._count = np.zeros(1, np.int64)

    def __len__(self) -> int:
        return int(self._count[0])

    @property
    def expected_rate(self) -> float:
        """No false positives."""
        return 0.0

    def insert(self, items: Int64) -> int:
        """Insert distinct items that are not members; returns their number. O(n)."""
        self._count += _set_bits(self.bits, as_input(items, np.int64), True)
        return items.shape[0]

    def delete(self, items: Int64) -> None:
        """Delete items.

        Raises
        ------
        EngineError
            If one is not a member; the others are deleted then.
        """
        done = _set_bits(self.bits, as_input(items, np.int64), False)
        self._count -= done
        if done < items.shape[0]:
            raise EngineError("a cell cannot be deleted: it was never inserted; keep counts outside")

    def contains(self, items: Int64) -> NDArray[np.bool_]:
        """bool[n]. O(n)."""
        return (self.bits[items >> 3] >> (items & 7).astype(np.uint8)) & 1 > 0

    def arrays(self) -> dict[str, np.ndarray]:
        """`words` uint8[], `state` int64[1] (views)."""
        return {"words": self.bits, "state": self._count}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "CellBitmap":
        """Continue from `arrays`; they are copied."""
        made = cls(0)
        made.bits, made._count = arrays["words"].copy(), arrays["state"].copy()
        return made

    @property
    def nbytes(self) -> int:
        return self.bits.nbytes + self._count.nbytes


def cells_of(boxes: Boxes, rows: int, numbering: CellNumbering) -> tuple[Int64, Int64, NDArray[np.bool_]]:
    """Cells with a number that each of `rows` rows touches.

    Returns
    -------
    offsets : int64[rows + 1]
    items : int64[nnz]        cell numbers, row after row
    beyond : bool[rows]       touches more than `MOST_CELLS`; none of them are listed
    """
    row, cells = as_input(boxes.row, np.int64), as_input(boxes.cells, np.int32)
    offsets, beyond = np.zeros(rows + 1, np.int64), np.zeros(rows, np.bool_)
    _count_cells(row, cells, numbering.side, numbering.ranks, offsets, beyond)
    items = np.empty(int(offsets[-1]), np.int64)
    _list_cells(row, cells, numbering.side, numbering.ranks, beyond, items)
    return offsets, items, beyond


def any_of_row(offsets: Int64, found: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """bool[rows]: whether any of the flags found[offsets[r]:offsets[r + 1]] is set. O(flags)."""
    sums = np.zeros(found.shape[0] + 1, np.int64)
    np.cumsum(found, out=sums[1:])
    return sums[offsets[1:]] > sums[offsets[:-1]]


@njit_no_refcount
def number_of(ranks, side, x, y):
    """Number of a cell, -1 if it has none."""
    # Part by part of the domain, so that numbers are dense however scattered it is.
    cells = side // ranks.shape[0]
    rank = ranks[y // cells, x // cells]
    return -1 if rank < 0 else (np.int64(rank) * cells + y % cells) * cells + x % cells


@njit(cache=True, nogil=True)
def _count_boxes(counts, side, ranks, boxes, step):
    """Add step (1 or -1) to every cell of every box; returns whether any cell was added or removed."""
    changed = False
    # After a step a cell that was added has count 1, one that was removed 0.
    gone = 0 if step < 0 else 1
    for i in range(boxes.shape[0]):
        for y in range(boxes[i, 1], boxes[i, 3] + 1):
            for x in range(boxes[i, 0], boxes[i, 2] + 1):
                # Cells outside the domain have no number; their tasks count them.
                cell = number_of(ranks, side, x, y)
                if cell >= 0:
                    counts[cell] += step
                    changed = changed or counts[cell] == gone
    return changed


@njit(cache=True, nogil=True)
def _count_together(counts, side, ranks, boxes, step):
    """The same by sums over prefixes: four corners a box, then every cell of the grid once."""
    # One row and column more: a box ends in the cell behind its last.
    above = np.zeros((side + 1, side + 1), np.int32)
    for i in range(boxes.shape[0]):
        west, south, east, north = boxes[i, 0], boxes[i, 1], boxes[i, 2] + 1, boxes[i, 3] + 1
        above[south, west] += 1
        above[south, east] -= 1
        above[north, west] -= 1
        above[north, east] += 1
    changed = False
    for y in range(side):
        row = 0
        for x in range(side):
            row += above[y, x]
            # The counts of the row above, and what begins or ends in this one.
            if y:
                above[y, x] = above[y - 1, x] + row
            else:
                above[y, x] = row
            # The domain is looked up only where boxes are.
            if above[y, x] > 0:
                cell = number_of(ranks, side, x, y)
                if cell >= 0:
                    before = counts[cell]
                    counts[cell] += step * above[y, x]
                    # A cell is added if it was empty before, removed if it is now.
                    changed = changed or before == 0 or counts[cell] == 0
    return changed


@njit(cache=True, nogil=True)
def _any_negative(counts, side, ranks, boxes):
    for i in range(boxes.shape[0]):
        for y in range(boxes[i, 1], boxes[i, 3] + 1):
            for x in range(boxes[i, 0], boxes[i, 2] + 1):
                # Only cells of these boxes have been counted down.
                cell = number_of(ranks, side, x, y)
                if cell >= 0 and counts[cell] < 0:
                    return True
    return False


@njit(cache=True, nogil=True)
def _set_bits(bits, items, value):
    """Set or clear bits; returns how many changed."""
    done = 0
    for item in items:
        mask = 1 << (item & 7)
        old = np.int64(bits[item >> 3])
        # Unchanged bits are not counted, by which `delete` detects items that are not members.
        if (old & mask != 0) != value:
            bits[item >> 3] = old ^ mask
            done += 1
    return done


@njit(cache=True, nogil=True)
def _count_cells(row, boxes, side, ranks, offsets, beyond):
    for i in range(row.shape[0]):
        touched = (boxes[i, 2] - boxes[i, 0] + 1) * (boxes[i, 3] - boxes[i, 1] + 1)
        if touched > MOST_CELLS:
            # Passes without a lookup: too much may be sent, never too little.
            beyond[row[i]] = True
            continue
        for y in range(boxes[i, 1], boxes[i, 3] + 1):
            for x in range(boxes[i, 0], boxes[i, 2] + 1):
                # Cells outside the domain are looked up in other tasks' signatures.
                offsets[row[i] + 1] += number_of(ranks, side, x, y) >= 0
    for i in range(1, offsets.shape[0]):
        offsets[i] += offsets[i - 1]


@njit(cache=True, nogil=True)
def _list_cells(row, boxes, side, ranks, beyond, items):
    end = 0
    for i in range(row.shape[0]):
        if beyond[row[i]]:
            continue
        # Boxes ascend by row, so what is listed one after the other fits the offsets.
        for y in range(boxes[i, 1], boxes[i, 3] + 1):
            for x in range(boxes[i, 0], boxes[i, 2] + 1):
                cell = number_of(ranks, side, x, y)
                if cell >= 0:
                    items[end] = cell
                    end += 1
