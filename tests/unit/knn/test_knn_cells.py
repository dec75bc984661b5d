"""Lists by cell and term against a dictionary: where balls are posted, what has left a cell, how the table grows."""

import math

import numpy as np
import pytest

from matching.geo.sphere import EARTH_RADIUS_M, unit_vectors
from matching.knn.engines import cells
from matching.knn.engines.balls import NOWHERE, BallLists, drop, limit_of
from matching.knn.engines.cells import CellLists, find_list, has_left, is_crowded, post_cells, reach_of, unpost_cells
from matching.space import Space
from matching.storage import squares
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.squares import Earth, cell_of, home_of_key, key_of
from tests.support.knn_engines import around, replaced, subscriptions
from tests.support.worlds import SPACE, SPHERE

#: The first of an engine compiles it.
TERMS = 4
SIDES = (2, 8, 16)
#: More than what rounding moves a border by: in the unit square, and in degrees.
EPSILON, DEGREES = 1e-12, 1e-6

Cell = tuple[int, int, int]


class Index:
    """Subscriptions with a radius and some of `TERMS` terms, and their postings, also in a dictionary.

    plain : {(grid, cell, term): {slot: limit}}
    """

    def __init__(self, space: Space, sides=SIDES):
        self.space, self.earth = space, Earth.of(space)
        self.store, self.cells = PointSubscriptions(space.max_distance), CellLists(np.array(sides), space.on_sphere)
        self.cells.ensure_terms(TERMS)
        self.plain: dict[Cell, dict[int, float]] = {}
        self.grown = 0

    def insert(self, rng, lon, lat, radius) -> np.ndarray:
        """Slots of new subscriptions, in no cell yet; every eighth term is said to be in the list of its term."""
        n, x, y = lon.shape[0], *self.space.project(lon, lat)
        words = [np.sort(rng.choice(TERMS, rng.integers(1, TERMS), replace=False)) for _ in range(n)]
        terms = np.concatenate(words).astype(np.int32)
        table = replaced(
            subscriptions(np.stack([x, y], axis=1), 1),
            number=self.store.slots.high_water + np.arange(n),
            term_offsets=np.cumsum([0, *map(len, words)]),
            terms=terms,
            weights=np.ones(terms.shape[0], np.float32),
        )
        if self.space.on_sphere:
            table = replaced(table, vector=unit_vectors(lon, lat))
        slots = self.store.insert(table, rng.random(terms.shape[0]) < 0.125)
        self.store.columns.threshold[slots] = -radius
        return slots

    def place(self, slot: int) -> tuple[float, float]:
        x, y = self.store.unit_square
        return float(x[slot]), float(y[slot])

    def radius(self, slot: int) -> float:
        return float(-self.store.columns.threshold[slot])

    def terms(self, slot: int) -> list[int]:
        """Those that are posted in cells."""
        c = self.store.columns
        mine = np.arange(c.term_start[slot], c.term_start[slot] + c.term_count[slot])
        return c.terms[mine[c.position[mine] < 0]].tolist()

    def post(self, slot: int, grid: int) -> set[int]:
        """Post a subscription, however often the pool or the table must grow; returns its cells."""
        c, v = self.store.columns, self.cells
        reach = reach_of(self.earth, c.threshold[slot] * -1.0)
        given, rounds = (self.earth, self.store.unit_square), 0
        while not post_cells(
            c, *given, v.view, v.sides, v.counts, v.entered, np.int32(slot), np.int64(grid), reach
        ):  # fmt: skip
            unpost_cells(c, *given, v.view, v.sides, v.counts, np.int32(slot), np.int8(grid), reach)
            self.check()
            v.grow(TERMS * SIDES[grid] ** 2)
            rounds += 1
            assert rounds < 20, "what was reserved is not there"
            assert not is_crowded(v.view, v.entered)
            self.grown += 1
        assert v.entered[0] == np.count_nonzero(v.view.key >= 0)
        mine = {cell for term in self.terms(slot) for cell in self.cells_of(slot, grid, term)}
        limit = float(limit_of(c.threshold[slot], self.earth.on_sphere))
        for term in self.terms(slot):
            for cell in mine:
                self.plain.setdefault((grid, cell, term), {})[slot] = limit
        return mine

    def unpost(self, slot: int, grid: int, radius: float) -> None:
        """`radius`: with which it was posted."""
        c, v = self.store.columns, self.cells
        reach = reach_of(self.earth, radius)
        unpost_cells(
            c, self.earth, self.store.unit_square, v.view, v.sides, v.counts, np.int32(slot), np.int8(grid), reach
        )
        for key, mine in self.plain.items():
            if key[0] == grid:
                mine.pop(slot, None)

    def leave(self, grid: int, cell: int, term: int, slot: int) -> None:
        """Take one posting out, as a scan does for a ball that has left the cell."""
        v, at = self.cells.view, self.find(grid, cell, term)
        nth = v.slot[v.start[at] : v.start[at] + v.count[at]].tolist().index(slot)
        drop(v, np.int64(at), np.int64(v.start[at] + nth))
        self.cells.counts[term, grid] -= 1
        del self.plain[grid, cell, term][slot]

    def left(self, slot: int, inside: tuple[float, float], grid: int) -> bool:
        """Whether it has left the cell of this point."""
        threshold, side = self.store.columns.threshold[slot], self.cells.sides[grid]
        return has_left(self.earth, *self.place(slot), threshold, *inside, side)

    def find(self, grid: int, cell: int, term: int) -> int:
        """Place of a list in the table."""
        keys, key = self.cells.view.key, key_of(self.cells.sides[grid], np.int64(cell), np.int32(term))
        return find_list(keys, key, home_of_key(key, keys.shape[0]))

    def cells_of(self, slot: int, grid: int, term: int) -> list[int]:
        """All cells in which a subscription is posted by a term, each as often as it is there."""
        v, side, found = self.cells.view, int(self.cells.sides[grid]), []
        numbers, terms = v.key >> 31, v.key & 0x7FFFFFFF
        for at in np.flatnonzero((terms == term) & (numbers >= side**2) & (numbers < 2 * side**2) & (v.count > 0)):
            times = np.count_nonzero(v.slot[v.start[at] : v.start[at] + v.count[at]] == slot)
            found += times * [int(numbers[at]) - side**2]
        return found

    def check(self) -> None:
        """The table has the postings of the dictionary and no other, where they are found."""
        v, c, counts = self.cells.view, self.store.columns, np.zeros_like(self.cells.counts)
        keys = [
            (grid, cell, term)
            for grid, side in enumerate(self.cells.sides.tolist())
            for cell in range(side * side)
            for term in range(TERMS)
        ]
        lists = 0
        for grid, cell, term in keys:
            at, mine = self.find(grid, cell, term), self.plain.get((grid, cell, term), {})
            if at == NOWHERE:
                assert not mine
                continue
            lists += 1
            places = np.arange(v.start[at], v.start[at] + v.count[at])
            slots = v.slot[places]
            assert dict(zip(slots.tolist(), v.limit[places].tolist(), strict=True)) == mine
            assert v.count[at] == len(mine)
            counts[term, grid] += len(mine)
            assert np.array_equal(v.x[places], c.x[slots].astype(np.float32))
            assert np.array_equal(v.y[places], c.y[slots].astype(np.float32))
            if self.earth.on_sphere:
                assert np.array_equal(v.z[places], c.z[slots].astype(np.float32))
        assert lists == np.count_nonzero(v.key >= 0) == self.cells.entered[0] < v.key.shape[0]
        assert np.array_equal(self.cells.counts, counts) and v.used[1] == counts.sum()


def cells_met(x: float, y: float, radius: float, side: int) -> set[int]:
    """Cells that a ball of the plane meets; those at the border have no end outwards."""
    edges = np.arange(side + 1) / side
    edges[0], edges[-1] = -np.inf, np.inf
    dx = np.maximum(0.0, np.maximum(edges[:-1] - x, x - edges[1:]))
    dy = np.maximum(0.0, np.maximum(edges[:-1] - y, y - edges[1:]))
    return set(np.flatnonzero(np.hypot(dx[None, :], dy[:, None]) <= radius).tolist())


def cells_of_box(lon: float, lat: float, radius_m: float, side: int, more: float) -> set[int]:
    """Cells of the earth that the box of a ball on the sphere overlaps by more than `-more` degrees."""
    angle = radius_m / EARTH_RADIUS_M
    south, north = lat - math.degrees(angle) - more, lat + math.degrees(angle) + more
    width = 360.0
    if south > -90.0 and north < 90.0:
        width = math.degrees(math.asin(min(1.0, math.sin(angle) / math.cos(math.radians(lat))))) + more
    found, step = set(), 360.0 / side
    for column in range(side):
        west = column * step - 180.0
        if not any(west + turn <= lon + width and lon - width <= west + step + turn for turn in (-360.0, 0.0, 360.0)):
            continue
        for row in range(side):
            if row * step - 90.0 <= north and south <= row * step - 90.0 + step:
                found.add(row * side + column)
    return found


def balls(rng, n: int, on_sphere: bool):
    """Places, at borders of cells, at the antimeridian and at poles too, and radii from a metre to half the earth."""
    lon, lat = rng.uniform(-180, 180, n), rng.uniform(-90, 90, n)
    edge = rng.integers(0, 6, n)
    lon = np.where(edge == 0, rng.choice([-180.0, 180.0, -179.999, 179.999], n), lon)
    lat = np.where(edge == 1, rng.choice([-90.0, 90.0, 89.999, -89.99], n), lat)
    lon, lat = np.where(edge == 2, np.round(lon / 45) * 45, lon), np.where(edge == 2, np.round(lat / 45) * 45, lat)
    radius = 10.0 ** rng.uniform(0 if on_sphere else -7, 7.2 if on_sphere else 0.2, n)
    return lon, lat, np.where(~on_sphere & (edge == 2) & (rng.random(n) < 0.5), 0.125, radius)


# ----------------------------------------------------------------------------------------------- where balls are posted


@pytest.mark.parametrize("grid", range(len(SIDES)))
def test_cells_of_a_ball_in_the_plane_are_those_that_it_meets(grid):
    rng, index, posted = np.random.default_rng(grid), Index(SPACE), 0
    for slot in index.insert(rng, *balls(rng, 150, False)).tolist():
        mine, radius = index.post(slot, grid), index.radius(slot)
        if not index.terms(slot):
            continue
        x, y = index.place(slot)
        assert cells_met(x, y, radius, SIDES[grid]) <= mine <= cells_met(x, y, radius + 2.1e-6, SIDES[grid])
        assert all(len(index.cells_of(slot, grid, term)) == len(mine) for term in index.terms(slot)), "twice in a cell"
        posted += len(mine)
    assert posted > 150
    index.check()


@pytest.mark.parametrize("grid", range(len(SIDES)))
def test_cells_of_a_ball_on_the_sphere_are_those_of_its_box(grid):
    rng, index, across, pole = np.random.default_rng(grid), Index(SPHERE), 0, 0
    lon, lat, radius = balls(rng, 150, True)
    for slot in index.insert(rng, lon, lat, radius).tolist():
        mine, side = index.post(slot, grid), SIDES[grid]
        if not index.terms(slot):
            continue
        given = lon[slot], lat[slot], radius[slot], side
        assert cells_of_box(*given, -DEGREES) <= mine <= cells_of_box(*given, DEGREES)
        assert all(len(index.cells_of(slot, grid, term)) == len(mine) for term in index.terms(slot)), "twice in a cell"
        columns = {cell % side for cell in mine}
        pole += len(columns) == side
        across += {0, side - 1} <= columns and len(columns) < side
    assert pole > 20 and (across > 10 or grid == 0)
    index.check()


def test_message_in_a_ball_is_in_a_cell_where_it_is_posted():
    """Points of the unit square and beyond it, at borders of cells, and at the far end of the ball."""
    rng, index, inside = np.random.default_rng(3), Index(SPACE), 0
    for slot in index.insert(rng, *balls(rng, 150, False)).tolist():
        grid = int(rng.integers(len(SIDES)))
        side, mine, radius = SIDES[grid], index.post(slot, grid), index.radius(slot)
        x, y = index.place(slot)
        away = radius * np.concatenate([np.sqrt(rng.random(20)), np.ones(8)])
        bearing = np.concatenate([rng.uniform(0, 2 * np.pi, 20), np.arange(8) * np.pi / 4])
        points = np.stack([x + away * np.cos(bearing), y + away * np.sin(bearing)])
        points = np.concatenate([points, np.round(points * side) / side], axis=1)
        near = np.hypot(points[0] - x, points[1] - y) < radius
        if index.terms(slot):
            assert {int(cell_of(at[0], at[1], side)) for at in points[:, near].T} <= mine
            inside += np.count_nonzero(near)
    assert inside > 3_000


@pytest.mark.parametrize("world", [SPHERE[:4], (170.0, 60.0, 180.0, 90.0), (-180.0, -90.0, -120.0, -50.0)])
def test_message_in_a_ball_on_the_sphere_is_in_a_cell_where_it_is_posted(world):
    """Of a part of the earth too, whose antimeridian or pole is a border."""
    space, rng, inside = Space(*world, distance="sphere"), np.random.default_rng(4), 0
    west, south, east, north = world
    index = Index(space)
    lon, lat, radius = balls(rng, 150, True)
    lon, lat = np.clip(lon, west, east), np.clip(lat, south, north)
    for slot in index.insert(rng, lon, lat, radius).tolist():
        grid = int(rng.integers(len(SIDES)))
        mine = index.post(slot, grid)
        share = np.concatenate([np.sqrt(rng.random(20)), np.full(8, 1.0 - 1e-9)])
        bearing = np.concatenate([rng.uniform(0, 2 * np.pi, 20), np.arange(8) * np.pi / 4])
        x, y = space.project(*around(unit_vectors(lon[[slot]], lat[[slot]])[0], radius[slot] * share, bearing))
        here = (
            (x >= 0) & (y >= 0) & (x <= (east - west) * index.earth.scale) & (y <= (north - south) * index.earth.scale)
        )
        if index.terms(slot):
            assert {int(cell_of(*point, SIDES[grid])) for point in zip(x[here], y[here], strict=True)} <= mine
            inside += np.count_nonzero(here)
    assert inside > 500


def test_cells_at_the_border_have_what_lies_beyond_it():
    """As the nearest of the unit square."""
    index = Index(SPACE, (8,))
    lon, lat = np.array([-400.0, 10.0, 900.0]), np.array([0.0, 500.0, -700.0])
    slots = index.insert(np.random.default_rng(2), lon, lat, np.full(3, 0.01))
    index.store.columns.position[:] = NOWHERE
    west, north, corner = (index.post(slot, 0) for slot in slots.tolist())
    assert {cell % 8 for cell in west} == {0} and {cell // 8 for cell in west} <= {1, 2}
    assert {cell // 8 for cell in north} == {7} and {cell % 8 for cell in north} == {4}
    assert corner == {7}


# ------------------------------------------------------------------------------------------------------- leaving cells


def test_ball_of_the_plane_has_left_a_cell_that_it_no_longer_meets():
    rng, index, outcomes = np.random.default_rng(5), Index(SPACE), [0, 0]
    for slot in index.insert(rng, *balls(rng, 400, False)).tolist():
        grid = int(rng.integers(len(SIDES)))
        side, (x, y), radius = SIDES[grid], index.place(slot), index.radius(slot)
        away, bearing = rng.random() * (radius + 2.0 / side), rng.uniform(0, 2 * np.pi)
        inside = x + away * math.cos(bearing), y + away * math.sin(bearing)
        cell, left = int(cell_of(*inside, side)), index.left(slot, inside, grid)
        assert not (left and cell in cells_met(x, y, radius, side))
        assert left or cell in cells_met(x, y, radius + 1e-6 + EPSILON, side)
        outcomes[left] += 1
    assert min(outcomes) > 40


def test_ball_on_the_sphere_has_left_a_cell_that_its_box_no_longer_overlaps():
    rng, index, outcomes = np.random.default_rng(6), Index(SPHERE), [0, 0]
    lon, lat, radius = balls(rng, 400, True)
    for slot in index.insert(rng, lon, lat, radius).tolist():
        grid = int(rng.integers(len(SIDES)))
        away = rng.random(1) * min(radius[slot] + 2.5e7 / SIDES[grid], 2e7)
        there = around(unit_vectors(lon[[slot]], lat[[slot]])[0], away, rng.uniform(0, 2 * np.pi, 1))
        x, y = SPHERE.project(*there)
        left, cell = index.left(slot, (x[0], y[0]), grid), int(cell_of(x[0], y[0], SIDES[grid]))
        given = lon[slot], lat[slot], radius[slot], SIDES[grid]
        assert not (left and cell in cells_of_box(*given, -DEGREES))
        assert left or cell in cells_of_box(*given, DEGREES)
        outcomes[left] += 1
    assert min(outcomes) > 40


# ----------------------------------------------------------------------------------------------------------- the table


def test_table_that_is_crowded_grows_and_drops_empty_lists():
    rng, index = np.random.default_rng(8), Index(SPACE)
    lon, lat, radius = balls(rng, 120, False)
    slots = index.insert(rng, lon, lat, radius * 0.1).tolist()
    for slot in slots:
        index.post(slot, 2)
    for slot in slots[:30]:
        index.unpost(slot, 2, index.radius(slot))
    index.check()
    lists = sum(map(bool, index.plain.values()))
    entered, places = int(index.cells.entered[0]), index.cells.view.key.shape[0]
    index.cells.entered[0] = places  # as if so many more had come and gone
    assert is_crowded(index.cells.view, index.cells.entered)
    index.cells.grow(10)
    index.check()
    assert index.cells.entered[0] == lists < entered
    assert index.cells.view.key.shape[0] >= 1.5 * (lists + 10) / 0.7 and not is_crowded(
        index.cells.view, index.cells.entered
    )


@pytest.mark.parametrize("space", [SPACE, SPHERE], ids=["plane", "sphere"])
@pytest.mark.parametrize("fewest", [1, 1 << 10])
def test_cells_posted_and_unposted_at_random_are_those_of_a_dictionary(space, fewest, monkeypatch):
    """Balls shrink, leave cells one by one, go to other grids and away."""
    monkeypatch.setattr(BallLists, "fewest", fewest)
    rng, index = np.random.default_rng(7), Index(space)
    posted: dict[int, tuple[int, float]] = {}
    for _ in range(8):
        lon, lat, radius = balls(rng, 25, space.on_sphere)
        for slot in index.insert(rng, lon, lat, radius * 0.1).tolist():
            grid = int(rng.integers(len(SIDES)))
            index.post(slot, grid)
            posted[slot] = grid, index.radius(slot)
        index.check()
        for key, mine in list(index.plain.items()):
            if mine and rng.random() < 0.1:
                index.leave(*key, int(rng.choice(list(mine))))
        index.check()
        for slot in rng.choice(list(posted), 15, replace=False).tolist():
            index.unpost(slot, *posted.pop(slot))
            if rng.random() < 0.5:
                grid = int(rng.integers(len(SIDES)))
                index.store.columns.threshold[slot] *= 0.5
                index.post(slot, grid)
                posted[slot] = grid, index.radius(slot)
        index.check()
    assert index.grown > (3 if fewest == 1 else 0)
    for slot, (grid, radius) in posted.items():
        index.unpost(slot, grid, radius)
    index.check()
    assert not any(index.plain.values()) and index.cells.entered[0] > 100 and not index.cells.counts.any()


def test_table_without_a_list_is_asked_before_any_is_there():
    index = Index(SPACE)
    assert index.find(0, 0, 0) == NOWHERE and index.cells.counts.shape == (TERMS, len(SIDES))
    assert not is_crowded(index.cells.view, index.cells.entered)
    index.check()


def test_terms_that_are_new_have_no_posting_and_those_there_keep_theirs():
    rng, index = np.random.default_rng(9), Index(SPACE)
    for slot in index.insert(rng, *balls(rng, 20, False)).tolist():
        index.post(slot, 1)
    before = index.cells.counts.copy()
    index.cells.ensure_terms(TERMS - 1)
    assert index.cells.counts.shape[0] == TERMS
    index.cells.ensure_terms(TERMS + 3)
    assert index.cells.counts.shape == (TERMS + 3, len(SIDES)) and before.any()
    assert np.array_equal(index.cells.counts[:TERMS], before) and not index.cells.counts[TERMS:].any()
    assert set(index.cells.arrays()) >= {"key", "slot", "limit", "counts", "sides"}


# ------------------------------------------------------------------------------------------------- boxes on the sphere


def _plain(kernel):
    """The function of a kernel, which has no other where the compiler is switched off."""
    return getattr(kernel, "py_func", kernel)


def _without_pole(earth, y, radius_m):
    height = np.degrees(radius_m / EARTH_RADIUS_M) * earth.scale
    return height, height


def _without_other_side(earth, x, half_width, side):
    first, last, _, _ = _plain(squares.columns_of)(earth, x, half_width, side)
    return first, last, 0, -1


@pytest.mark.parametrize(
    ("name", "broken"), [("half_sides", _without_pole), ("columns_of", _without_other_side)], ids=["pole", "side"]
)
def test_knn_on_the_sphere_with_a_broken_box_is_found(name, broken):
    """In plain Python, without kernels: boxes as in the plane, or nothing across the antimeridian."""
    lon, lat = np.random.default_rng(8).uniform(-180, 180, 400), np.random.default_rng(9).uniform(-90, 90, 400)
    radius_m = 10 ** np.random.default_rng(10).uniform(3, 7, 400)
    earth, side, missed = squares.Earth.of(SPHERE), 64, {"right": 0, "broken": 0}
    functions = {"half_sides": _plain(cells.half_sides), "columns_of": _plain(squares.columns_of)}
    for which, used in (("right", functions), ("broken", functions | {name: broken})):
        for one in range(400):
            x, y = SPHERE.project(lon[one], lat[one])
            width, _ = used["half_sides"](earth, y, radius_m[one])
            first, last, other_first, other_last = used["columns_of"](earth, x, width, side)
            vector = unit_vectors(lon[one : one + 1], lat[one : one + 1])[0]
            there_lon, there_lat = around(vector, np.full(8, radius_m[one] * 0.999), np.arange(8) * np.pi / 4)
            columns = np.floor(SPHERE.project(there_lon, there_lat)[0] * side)
            inside = ((first <= columns) & (columns <= last)) | ((other_first <= columns) & (columns <= other_last))
            missed[which] += int((~inside & (columns < side)).sum())
    assert missed["right"] == 0 and missed["broken"] > 20
