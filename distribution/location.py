"""Router `location`: each query task owns a part of the world.

Parts are runs of cells of about equal load (`distribution.parts`), rebalanced by measured work when a run resumes. A
subscription to a region is assigned to every task whose part its rectangle touches, and each pair has one owner among
them (`LocationRouter`). A subscription with a point is assigned to the owner of its point, and a message goes to every
task where it may match, by a bound for each task and term (`LocationTable`).

With signatures (`distribution.signatures.signature`) a message goes to the owner of its place only if a subscription to
a region there may match it. Signatures of other tasks are not queried, since they do not cover the place. Made by
`distribution.routers`; the base of `distribution.influence`.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiling.njit import njit, njit_no_refcount
from distribution import splitting, targets
from distribution.parts import CELLS, CELLS_A_SIDE, Loads, cell_of, cut, loads_of, reweighed, step_of
from distribution.router import Router, RoutingTable, board_of, check_tasks
from distribution.signatures.patches import SignaturePatch
from distribution.signatures.signature import SignatureSpec
from distribution.signatures.spatial import Domain
from distribution.targets import no_targets, place_of, rows_of, set_bits
from matching.geo.sphere import chord_squared, covering_ball, metres, unit_vectors
from matching.kind_table import Traits
from matching.kinds import KINDS
from matching.model import KEYWORDS_BY_KIND, Float64, Int32, Int64, MessageBatch, Removals, SubscriptionTable, centres
from matching.space import Space
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.slots import grown, resized

#: Points on a cell border must fall on the same side whichever way they were projected.
_BORDER = 1e-12
_SLACK = 1e-6
_REBUILD_SHARE = 0.125
#: Above this number of messages, counts per cell are halved, so that they follow the stream.
MOST_SEEN = 1 << 20
#: Prefix of its keys in a snapshot.
_PREFIX = "location:"


class LocationRouter(Router):
    """Parts of the world by load.

    For kinds that match its rectangle, a message goes to every task that it touches, and a pair belongs to the owner of
    the lower-left corner of the intersection. For kinds that match its centre, the owner of the centre alone matches
    the message and its end, and a subscription's home is one of the tasks that it is assigned to.

    Parameters
    ----------
    tasks : int
    space : Space
    load_x, load_y : float64[n]
        Points of the unit square by which the parts are balanced, e.g. a sample of messages and subscriptions.
    signatures : SignatureSpec, optional
        Have query tasks send signatures, and filter messages by them.
    """

    name = "location"
    uses_thresholds = True
    exchanges_hits = True
    rebalances = True

    def __init__(
        self,
        tasks: int,
        space: Space,
        load_x: Float64,
        load_y: Float64,
        signatures: SignatureSpec | None = None,
        traits: Traits = KINDS.traits,
    ):
        check_tasks(tasks)
        super().__init__(tasks, traits)
        self.space = space
        self.signatures = signatures
        self._cut(load_x, load_y)

    def _cut(self, load_x: Float64, load_y: Float64) -> None:
        """Cut the world by these points."""
        self._part(loads_of(cell_of(load_x, load_y)))

    def _part(self, loads: Loads) -> None:
        self.loads = loads
        self.owner = cut(loads.weight, self.tasks)
        best = _similarities(self.owner, self.tasks, self.space).T
        # twice, since both sides of a comparison are rounded; beyond -1 and 1 rounding does not matter
        self.similarity = np.ascontiguousarray(best + 2 * _SLACK, np.float32)

    def restored(self, states: Sequence[Mapping[str, np.ndarray]], work: Sequence[int] = ()) -> "LocationRouter":
        mine = [each for each in states if _PREFIX + "seen" in each]
        if not mine:
            return self
        loads = Loads(*(np.array(mine[0][_PREFIX + name]) for name in Loads._fields))
        if len(work) == self.tasks:
            seen = np.sum([each[_PREFIX + "seen"] for each in mine], axis=0)
            loads = reweighed(loads, cut(loads.weight, self.tasks), seen, work)
        other = copy(self)
        other._part(loads)
        return other

    def assigned_to(self, table: SubscriptionTable, task: int) -> NDArray[np.bool_]:
        assigned = np.zeros(len(table), np.bool_)
        boxed = self.traits.region[table.kind]
        assigned[~boxed] = self.owner[cell_of(table.x[~boxed], table.y[~boxed])] == task
        region = table.region[boxed]
        west, south, east, north = region.T
        crosses = west > east
        mine = self._touches(west, south, np.where(crosses, 180.0, east), north, task)
        mine[crosses] |= self._touches(
            np.full(int(crosses.sum()), -180.0), south[crosses], east[crosses], north[crosses], task
        )
        assigned[boxed] = mine
        return assigned

    def exchanges(self, kind: int) -> bool:
        # a subscription with a point has one task, its home
        return super().exchanges(kind) and bool(self.traits.region[kind])

    def shares_pairs(self, messages: MessageBatch) -> bool:
        # by identity, which all parts of a batch share: one part may have points alone
        return messages.east is not messages.west or messages.north is not messages.south

    def box_rows(self, messages: MessageBatch, task: int) -> Int64 | None:
        if not self.shares_pairs(messages):
            return np.flatnonzero(self.owner[self._cells(messages.west, messages.south)] == task)
        return np.flatnonzero(self._touches(messages.west, messages.south, messages.east, messages.north, task))

    def owned_pairs(self, region: Float64, messages: MessageBatch, row: Int32, task: int) -> NDArray[np.bool_]:
        west, south, east, _ = region.T
        crosses = west > east
        # a region across the antimeridian has two boxes: the western one decides if it meets the message
        first = np.where(crosses & (messages.east[row] < west), -180.0, west)
        corner_x = np.maximum(first, messages.west[row])
        corner_y = np.maximum(south, messages.south[row])
        return self.owner[self._cells(corner_x, corner_y)] == task

    def centre_rows(self, messages: MessageBatch, task: int) -> Int64 | None:
        return np.flatnonzero(self.owner_of_centre(messages) == task)

    def owner_of_centre(self, messages: MessageBatch) -> Int64:
        """Task whose part the centre of each message lies in. O(n)."""
        return self.owner[self._cells(*centres(messages))]

    def domain_of(self, task: int) -> Domain:
        return (self.owner == task).reshape(CELLS_A_SIDE, CELLS_A_SIDE)

    def table(self) -> RoutingTable:
        return LocationTable(self)

    def describe(self):
        cells = np.bincount(self.owner, minlength=self.tasks)
        return super().describe() | {"cells_of_each_task": cells.tolist()}

    def _cells(self, lon: Float64, lat: Float64) -> Int64:
        return cell_of(*self.space.project(lon, lat))

    def _touches(self, west: Float64, south: Float64, east: Float64, north: Float64, task: int) -> NDArray[np.bool_]:
        """bool[n]: which boxes (degrees, west <= east) touch a cell of the task. O(n)."""
        low_x, low_y = self.space.project(west, south)
        high_x, high_y = self.space.project(east, north)
        # number of the task's cells in every rectangle of cells, from sums over prefixes
        sums = np.zeros((CELLS_A_SIDE + 1, CELLS_A_SIDE + 1), np.int64)
        sums[1:, 1:] = (self.owner == task).reshape(CELLS_A_SIDE, CELLS_A_SIDE).cumsum(0).cumsum(1)
        x0, y0 = step_of(low_x - _BORDER), step_of(low_y - _BORDER)
        x1, y1 = step_of(high_x + _BORDER) + 1, step_of(high_y + _BORDER) + 1
        return sums[y1, x1] - sums[y0, x1] - sums[y1, x0] + sums[y0, x0] > 0


class LocationTable(RoutingTable):
    """Subscriptions with a point, and the bounds derived from them.

    A message is sent to task r for its term w  if  1 - d(message, r) / MaxDist >= L[r, w]

    with d the distance from the message's cell to the nearest cell of r, and L[r, w] the least spatial similarity with
    which any subscription at r that carries w can still reach its threshold, (threshold - (1 - alpha)) / alpha: Skype's
    Lemma 6 for regions, with one bound for each term instead of one for all, which also filters out messages without a
    registered term. Exact, since a pair that scores shares some term w. Bounds may be lower than needed, never higher:
    raised thresholds take effect when the table is rebuilt.
    """

    sends_all = False

    def __init__(self, router: LocationRouter):
        super().__init__(router)
        self.subscriptions = PointSubscriptions(router.space.max_distance)
        self._task = np.zeros(0, np.int32)
        self._version = np.zeros(0, np.int64)
        self._least = np.full((0, router.tasks), np.inf, np.float32)
        self._has_boxes = self._has_centres = False
        self._stale = 0
        self._board = board_of(router)
        self._seen = np.zeros(CELLS, np.int64)

    def state(self) -> dict[str, np.ndarray]:
        columns = self.router.loads._asdict() | {"seen": self._seen.copy()}
        return {_PREFIX + name: column for name, column in columns.items()}

    def change(self, added: SubscriptionTable, removed: Removals) -> None:
        super().change(added, removed)
        traits = self.router.traits
        region = traits.region[added.kind]
        self._has_boxes |= bool(np.any(traits.box[added.kind]))
        self._has_centres |= bool(np.any(region & ~traits.box[added.kind]))
        if self._board is not None:
            self._board.change(added.take(np.flatnonzero(region)), self.router.assigned_to)
        points = added.take(np.flatnonzero(~region))
        if len(points):
            slots = self.subscriptions.insert(points)
            if self._task.shape[0] < self.subscriptions.capacity:
                self._task = resized(self._task, self.subscriptions.capacity)
                self._version = resized(self._version, self.subscriptions.capacity)
            self._task[slots] = self.router.owner[cell_of(points.x, points.y)]
            self._version[slots] = 0
            self._least = grown(self._least, int(np.max(points.terms, initial=-1)) + 1, np.inf)
            self._lower(slots)
        gone = removed.number[~traits.region[removed.kind]]
        if gone.size:
            slots = self.subscriptions.find(gone)
            self.subscriptions.remove(slots)
            self._stale += slots.size

    def relax(self, number: Int64, version: Int64) -> None:
        slots = self.subscriptions.find(number)
        known = slots >= 0  # others have been removed meanwhile
        slots, version = slots[known], version[known]
        self.subscriptions.columns.threshold[slots] = -np.inf
        self._version[slots] = version
        self._lower(slots)

    def raise_thresholds(self, number: Int64, version: Int64, threshold: Float64) -> None:
        slots = self.subscriptions.find(number)
        valid = slots >= 0
        valid[valid] = version[valid] >= self._version[slots[valid]]
        self.subscriptions.columns.threshold[slots[valid]] = threshold[valid]
        self._stale += int(valid.sum())

    def apply(self, patch: SignaturePatch) -> None:
        assert self._board is not None, "only where the router has signatures"
        self._board.apply(patch)

    def describe(self) -> dict[str, Any]:
        return {} if self._board is None else self._board.describe()

    def route(self, messages: MessageBatch) -> list[Int64]:
        if self._stale > _REBUILD_SHARE * len(self.subscriptions):
            self._least.fill(np.inf)
            self._lower(self.subscriptions.live_slots())
            self._stale = 0
        bits = no_targets(len(messages), self.router.tasks)
        if self._has_boxes or self._has_centres:
            self._mark_places(messages, bits)
        cells = cell_of(messages.x, messages.y)
        self._seen += np.bincount(cells, minlength=CELLS)
        if self._seen.sum() > MOST_SEEN:
            self._seen //= 2
        self._mark(messages, cells, bits)
        return rows_of(bits, self.router.tasks)

    def _mark_places(self, messages: MessageBatch, bits: Int64) -> None:
        """Set the bits of the tasks whose part a message is in, or touches, and whose signature it passes."""
        router, board = self.router, self._board
        if not router.shares_pairs(messages):
            x, y = router.space.project(messages.west, messages.south)
            owner = router.owner[cell_of(x, y)]
            if board is None:
                set_bits(owner, bits)
            else:
                set_bits(owner, bits, board.passed_by_owner(messages, x, y, owner))
            return
        for task, (value, bit) in enumerate(zip(*place_of(np.arange(router.tasks)), strict=True)):
            # a message touches the part in which its centre lies, so its box rows include its centre rows
            rows = (router.box_rows if self._has_boxes else router.centre_rows)(messages, task)
            if board is not None and rows is not None:
                rows = board.wanted(messages, rows, task)
            bits[rows, value] |= bit

    def _mark(self, messages: MessageBatch, cells: Int64, bits: Int64) -> None:
        """Set the bits of tasks for messages that may match a subscription with a point there."""
        if len(self.subscriptions):
            similarity, places = self.router.similarity, place_of(np.arange(self.router.tasks))
            _mark_bits(cells, messages.term_offsets, messages.terms, similarity, self._least, *places, bits)

    def route_ended(self, ended: MessageBatch) -> list[Int64]:
        owner = self.router.owner_of_centre(ended)
        rows = [np.flatnonzero(owner == task) for task in range(self.router.tasks)]
        if self._board is None:
            return rows
        # the subscriptions that the message was sent for are still there, or need its end no more
        return [self._board.wanted(ended, mine, task, counted=False) for task, mine in enumerate(rows)]

    def _lower(self, slots: Int32) -> None:
        _lower(self.subscriptions.columns, slots, self.router.space.max_distance, self._task, self._least)


def warmup() -> None:
    """Compile, or load from the cache, the kernels of this module."""
    none = np.zeros(0, np.int64)
    somewhere, one = np.full(1, 0.5), np.ones(1, np.int32)
    point = SubscriptionTable(
        np.zeros(1, np.int64),
        np.full(1, np.argmin(KINDS.traits.region), np.int8),
        np.zeros(1, np.int64),
        somewhere,
        somewhere,
        np.full((1, 4), np.nan),
        np.full(1, KEYWORDS_BY_KIND, np.int8),
        one,
        somewhere,
        np.array([0, 1]),
        one,
        np.ones(1, np.float32),
    )
    LocationRouter(1, Space(-180.0, -90.0, 180.0, 90.0, distance="sphere"), somewhere, somewhere)
    table = LocationRouter(1, Space(-180.0, -90.0, 180.0, 90.0), somewhere, somewhere).table()
    targets.warmup()
    splitting.warmup()
    table.change(point, Removals(none, none.astype(np.int8), none))
    seq = np.zeros(1, np.int64)
    box = (somewhere, somewhere, somewhere, somewhere)
    table.route(MessageBatch(seq, somewhere, somewhere, *box, seq, np.array([0, 1]), one, np.ones(1, np.float32)))


def _similarities(owner: Int64, tasks: int, space: Space) -> Float64:
    """Upper bound of the spatial similarity of a point in a cell to a point of a task's part: float64[tasks, cells].

    Border cells stand for everything beyond them too, so distances are taken between cells only. Minus infinity
    for a task without cells.
    """
    if space.on_sphere:
        return _similarities_on_sphere(owner, tasks, space)
    side = 1.0 / CELLS_A_SIDE
    steps = np.arange(CELLS_A_SIDE)
    # squares of how many cells lie between two rows, or two columns
    between = np.maximum(np.abs(steps[:, None] - steps) - 1, 0) ** 2
    best = np.full((tasks, CELLS_A_SIDE**2), -np.inf)
    for task in range(tasks):
        mine = (owner == task).reshape(CELLS_A_SIDE, CELLS_A_SIDE)
        rows = np.flatnonzero(mine.any(axis=1))
        if not rows.size:
            continue
        # within each of its rows the nearest column, then of these the nearest
        across = np.stack([between[:, mine[row]].min(axis=1) for row in rows])
        nearest = (between[:, rows, None] + across[None]).min(axis=1)
        best[task] = (1.0 - np.sqrt(nearest.astype(np.float64)) * side / space.max_distance).ravel()
    return best


def _similarities_on_sphere(owner: Int64, tasks: int, space: Space) -> Float64:
    """As `_similarities`, from a ball around each cell: as far apart as their centres less both radii."""
    degrees = max(space.east - space.west, space.north - space.south) / CELLS_A_SIDE
    west = space.west + degrees * np.arange(CELLS_A_SIDE)
    south = space.south + degrees * np.arange(CELLS_A_SIDE)
    # Cells beyond the world have no points.
    west, east = np.minimum(west, space.east), np.minimum(west + degrees, space.east)
    south, north = np.minimum(south, space.north), np.minimum(south + degrees, space.north)
    columns, rows = list(zip(west, east, strict=True)), zip(south, north, strict=True)
    balls = [covering_ball(left, low, right, high) for low, high in rows for left, right in columns]
    lon, lat, radius = np.array(balls).T.copy()
    vectors = unit_vectors(lon, lat)
    best = np.full((tasks, CELLS), -np.inf)
    for task in range(tasks):
        mine = np.flatnonzero(owner == task)
        if mine.size:
            best[task] = 1.0 - _least_metres(vectors, radius, mine) / space.max_distance
    return best


@njit(cache=True, nogil=True)
def _least_metres(vectors, radius, mine):
    """For each cell, the least distance to one of `mine`, or less."""
    least = np.full(vectors.shape[0], np.inf)
    for cell in range(vectors.shape[0]):
        nearest, its = np.inf, radius[mine[0]]
        for other in mine:
            # the balls of a row are alike: of these the nearest alone is worth an arc sine
            if radius[other] != its:
                least[cell] = min(least[cell], metres(nearest) - its)
                nearest, its = np.inf, radius[other]
            squared = chord_squared(
                vectors[cell, 0], vectors[cell, 1], vectors[cell, 2],
                vectors[other, 0], vectors[other, 1], vectors[other, 2],
            )  # fmt: skip
            nearest = min(nearest, squared)
        # 2 m: metres are ill-conditioned near the antipode
        least[cell] = max(0.0, min(least[cell], metres(nearest) - its) - radius[cell] - 2.0)
    return least


@njit_no_refcount
def _lower(c, slots, max_distance, task, least):
    """Lower the bounds of the slots' terms to what their thresholds need."""
    for slot in slots:
        alpha, threshold = c.alpha[slot], c.threshold[slot]
        # score <= alpha * similarity + (1 - alpha) * 1; the slack covers norms that round to more than 1
        rest = threshold - _SLACK - (1.0 - alpha) * (1.0 + _SLACK)
        # Lemma 6 of Skype (spec 3.2), not divided by zero: at alpha 0 place decides nothing, so all messages can reach
        # the threshold or none can.
        if threshold == -np.inf:
            # Every message may match; kinds that publish no thresholds may have no alpha either.
            need = -np.inf
        elif c.max_distance[slot] > max_distance:
            # its proximity falls more slowly than the similarity of cells
            need = -np.inf
        elif alpha > 0.0:
            need = rest / alpha
        else:
            need = -np.inf if rest <= 0.0 else np.inf
        for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
            # One shared keyword makes a pair, so every term has to let through what this subscription needs.
            term = c.terms[at]
            # Only ever lower: a bound that is too low sends too much, one too high loses results.
            if need < least[term, task[slot]]:
                least[term, task[slot]] = need


@njit(cache=True, nogil=True)
def _mark_bits(cell, term_offsets, terms, similarity, least, values, masks, bits):
    """Set the bits of tasks for messages that may match a subscription with a point that is assigned to the task."""
    reached = np.empty(values.shape[0], np.int32)
    for row in range(cell.shape[0]):
        reached[:] = 0
        for at in range(term_offsets[row], term_offsets[row + 1]):
            if terms[at] < least.shape[0]:
                _reach(similarity, cell[row], least, terms[at], reached)
        for task in range(values.shape[0]):
            bits[row, values[task]] |= masks[task] & -np.int64(reached[task])


@njit_no_refcount
def _reach(similarity, cell, least, term, reached):
    """Set reached[task] to 1 where a message in the cell reaches the bound of the term; all tasks, without branches.

    The similarity is that of cells, not points: never less than that of any pair that may meet there. It is finite
    where a term is registered, and a bound of infinity is that of one that is not.
    """
    for task in range(reached.shape[0]):
        reached[task] |= np.int32(similarity[cell, task] >= least[term, task])
