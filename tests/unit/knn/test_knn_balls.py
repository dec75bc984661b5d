"""The pool of posting lists against lists in plain Python: what is in them, whose every place is, and limits."""

import math

import numpy as np
import pytest

from matching.geo.sphere import EARTH_RADIUS_M, chord_squared, metres, unit_vectors
from matching.knn.engines.balls import NOWHERE, SPHERE_WORDS, BallLists, drop, is_on_sphere, limit_of, push

#: The first of a layout compiles it.
spaces = pytest.mark.parametrize("on_sphere", [False, True], ids=["plane", "sphere"])
layouts = pytest.mark.parametrize("together", [False, True], ids=["columns", "together"])

Posting = tuple[int, float, float, float, float]


class Pool:
    """Lists of balls, and the same in plain Python."""

    def __init__(self, together: bool, on_sphere: bool, lists: int):
        self.balls, self.plain = BallLists(together, on_sphere), [[] for _ in range(lists)]
        self.balls.make_lists(lists)

    def push(self, at: int, posting: Posting) -> bool:
        """Whether there was a place; where there was none, nothing has changed."""
        before = [column.copy() for column in self.balls.view]
        slot, *floats = posting
        done = push(self.balls.view, np.int32(at), np.int32(slot), *map(np.float32, floats))
        if done:
            self.plain[at].append(posting)
        else:
            pairs = zip(before, self.balls.view, strict=True)
            assert all(np.array_equal(then, now) for then, now in pairs), "a push that failed left something behind"
        return done

    def drop(self, at: int, nth: int) -> None:
        """The last one fills the gap."""
        drop(self.balls.view, np.int32(at), np.int64(self.balls.view.start[at] + nth))
        mine = self.plain[at]
        mine[nth] = mine[-1]
        mine.pop()

    def check(self) -> None:
        """Every list has its postings in order, and every place of the used part is of one block."""
        v = self.balls.view
        columns = (v.slot, v.x, v.y, v.z, v.limit) if is_on_sphere(v) else (v.slot, v.x, v.y, v.limit)
        owner = np.zeros(v.slot.shape[0], np.int64)
        for at, mine in enumerate(self.plain):
            assert v.count[at] == len(mine) and v.key[at] == NOWHERE
            if not mine:
                assert v.start[at] == NOWHERE
                continue
            size = 1 << int(v.size_class[at])
            assert len(mine) <= size
            owner[v.start[at] : v.start[at] + size] += 1
            there = [column[v.start[at] : v.start[at] + len(mine)].tolist() for column in columns]
            assert list(zip(*there, strict=True)) == [one if is_on_sphere(v) else one[:3] + one[4:] for one in mine]
        for size_class, block in enumerate(v.free):
            while block != NOWHERE:
                owner[block : block + (1 << size_class)] += 1
                block = v.slot[block]
        end, postings = v.used
        assert end <= v.slot.shape[0]
        assert np.all(owner[:end] == 1), "a place is of two blocks or of none"
        assert not owner[end:].any()
        assert postings == sum(map(len, self.plain))

    def free_blocks(self) -> list[int]:
        """How many there are of each class."""
        counts = []
        for block in self.balls.view.free:
            counts.append(0)
            while block != NOWHERE:
                counts[-1] += 1
                block = self.balls.view.slot[block]
        return counts


def posting(rng) -> Posting:
    """Of numbers that float32 has."""
    x, y, z, limit = rng.normal(size=4).astype(np.float32).tolist()
    return int(rng.integers(1 << 31)), x, y, z, limit


@spaces
@layouts
@pytest.mark.parametrize("seed", range(3))
def test_balls_pushed_and_dropped_at_random_are_those_of_plain_lists(together, on_sphere, seed, monkeypatch):
    """Lists come, grow by bursts, and go; pools are packed whenever they are full."""
    monkeypatch.setattr(BallLists, "fewest", (1, 40, 1 << 10)[seed])
    rng = np.random.default_rng(seed)
    pool, failed, reused, largest = Pool(together, on_sphere, 5), 0, 0, 0
    for step in range(60):
        if step % 6 == 5:
            lists = len(pool.plain) + int(rng.integers(12))
            pool.balls.make_lists(lists)
            pool.plain += [[] for _ in range(lists - len(pool.plain))]
        at = int(rng.integers(len(pool.plain)))
        free = sum(pool.free_blocks())
        for _ in range(int(rng.choice([1, 3, 9, 40]))):
            one = posting(rng)
            if not pool.push(at, one):
                failed += 1
                pool.balls.reserve(1)
                pool.check()
                assert pool.push(at, one), "one more was reserved"
        reused += sum(pool.free_blocks()) < free
        for at in rng.integers(len(pool.plain), size=4).tolist():
            for _ in range(min(len(pool.plain[at]), int(rng.choice([0, 1, 5, 100])))):
                pool.drop(at, int(rng.integers(len(pool.plain[at]))))
        pool.check()
        largest = max(largest, *map(len, pool.plain))
    assert largest > 40 and (failed > 1 or seed == 2) and (reused > 3 or seed != 2)
    for at, mine in enumerate(pool.plain):
        while mine:
            pool.drop(at, 0)
    pool.check()
    assert pool.balls.view.used[1] == 0


@spaces
@layouts
def test_balls_of_a_list_that_doubles_leave_their_blocks_to_others(together, on_sphere):
    rng, pool = np.random.default_rng(1), Pool(together, on_sphere, 3)
    for _ in range(9):
        assert pool.push(0, posting(rng))
    # 9 lie in a block of 16, behind those of 1, 2, 4 and 8
    assert pool.balls.view.used.tolist() == [31, 9] and pool.free_blocks()[:5] == [1, 1, 1, 1, 0]
    for _ in range(8):
        assert pool.push(1, posting(rng))
    assert pool.balls.view.used.tolist() == [31, 17] and pool.free_blocks()[:5] == [1, 1, 1, 0, 0]
    pool.check()
    while pool.plain[0]:
        pool.drop(0, 0)
    # a block is free only when its list is empty
    assert pool.free_blocks()[:5] == [1, 1, 1, 0, 1]
    assert pool.push(2, posting(rng)) and pool.free_blocks()[:5] == [0, 1, 1, 0, 1]
    pool.check()


@pytest.mark.parametrize(("places", "fit"), [(30, 8), (31, 16), (62, 16), (63, 32)])
def test_block_that_ends_where_the_pool_ends_fits_and_one_longer_does_not(places, fit, monkeypatch):
    monkeypatch.setattr(BallLists, "fewest", places)
    rng, pool = np.random.default_rng(9), Pool(True, False, 1)
    while pool.push(0, posting(rng)):
        pool.check()
    assert len(pool.plain[0]) == fit and pool.balls.view.slot.shape[0] == places


def test_pool_that_grows_posting_by_posting_is_packed_a_few_times(monkeypatch):
    monkeypatch.setattr(BallLists, "fewest", 1)
    rng, pool, packed = np.random.default_rng(10), Pool(True, False, 500), 0
    for at in range(500):
        one = posting(rng)
        if not pool.push(at, one):
            pool.balls.reserve(1)
            packed += 1
            assert pool.push(at, one)
    pool.check()
    assert 3 < packed < 20


@layouts
def test_balls_that_fill_a_pool_are_packed_when_more_are_reserved(together, monkeypatch):
    monkeypatch.setattr(BallLists, "fewest", 64)
    rng, pool = np.random.default_rng(2), Pool(together, False, 9)
    at = 0
    while pool.push(at, posting(rng)):
        at = (at + 1) % 9
    assert sum(pool.free_blocks()) > 0
    for at in (2, 5):
        while pool.plain[at]:
            pool.drop(at, 0)
    before = int(pool.balls.view.used[0])
    pool.balls.reserve(6)
    pool.check()
    v = pool.balls.view
    fitting = sum(1 << math.ceil(math.log2(len(mine))) for mine in pool.plain if mine)
    assert sum(pool.free_blocks()) == 0 and v.used[0] == fitting < before
    # what is reserved, and half as many again
    assert v.slot.shape[0] >= 1.5 * (fitting + 6)
    assert all(v.start[at] == NOWHERE and pool.push(at, posting(rng)) for at in (2, 5))
    pool.check()


@pytest.mark.parametrize("lists", [5, 8, 20])
def test_balls_of_one_subscription_in_many_full_lists_find_places_after_some_reservations(lists):
    """All lists must double, though the pool has nothing else: subscriptions with the same keywords, at one place."""
    rng, pool = np.random.default_rng(8), Pool(True, False, lists)
    for _ in range(128):
        for at in range(lists):
            while not pool.push(at, posting(rng)):
                pool.balls.reserve(lists)
    for _ in range(8):
        # as an engine does: all, or what is in is taken out again
        done = next((at for at in range(lists) if not pool.push(at, posting(rng))), lists)
        if done == lists:
            break
        for at in range(done):
            pool.drop(at, len(pool.plain[at]) - 1)
        pool.balls.reserve(lists)
        pool.check()
    assert done == lists


def test_balls_that_come_and_go_do_not_make_the_pool_grow(monkeypatch):
    monkeypatch.setattr(BallLists, "fewest", 1)
    rng, pool, sizes = np.random.default_rng(3), Pool(True, False, 40), []
    for _ in range(30):
        for _ in range(200):
            at, one = int(rng.integers(40)), posting(rng)
            if not pool.push(at, one):
                pool.balls.reserve(1)
                assert pool.push(at, one)
        for at in rng.permutation(40)[:30].tolist():
            while pool.plain[at]:
                pool.drop(at, 0)
        sizes.append(pool.balls.view.slot.shape[0])
    pool.check()
    assert max(sizes[10:]) <= max(sizes[:10]) < 3_000


def test_balls_of_new_lists_stay_where_they_were():
    rng, pool = np.random.default_rng(4), Pool(True, True, 2)
    assert all(pool.push(at, posting(rng)) for at in (0, 1, 1))
    starts = pool.balls.view.start.copy()
    pool.balls.make_lists(50)
    pool.plain += [[] for _ in range(48)]
    pool.check()
    assert np.array_equal(pool.balls.view.start[:2], starts[:2]) and pool.push(49, posting(rng))
    pool.check()


@spaces
def test_balls_together_are_rows_and_arrays_those_of_the_used_part(on_sphere):
    rng, pool = np.random.default_rng(5), Pool(True, on_sphere, 2)
    mine = [posting(rng) for _ in range(5)]
    assert all(pool.push(1, one) for one in mine)
    slots, floats = pool.balls.postings
    start = pool.balls.view.start[1]
    assert slots.shape[1] == (SPHERE_WORDS if on_sphere else SPHERE_WORDS - 1)
    for row, (slot, x, y, z, limit) in enumerate(mine, start):
        assert slots[row, 0] == slot and floats[row, 1:].tolist() == [x, y, limit, z][: slots.shape[1] - 1]
    arrays = pool.balls.arrays()
    # behind blocks of 1, 2 and 4 places
    assert [arrays[name].shape[0] for name in ("slot", "x", "y", "limit")] == [15] * 4
    assert arrays["z"].shape[0] == (15 if on_sphere else 2) and arrays["used"].tolist() == [15, 5]
    assert arrays["slot"][start : start + 5].tolist() == [one[0] for one in mine]


# ----------------------------------------------------------------------------------------------------------- limits


def test_limit_without_radius_lets_all_through_and_of_radius_zero_nothing():
    for on_sphere in (False, True):
        assert limit_of(-np.inf, on_sphere) == np.inf
        assert limit_of(0.0, on_sphere) < 0.0 and limit_of(-0.0, on_sphere) < 0.0
        assert limit_of(-5e-324, on_sphere) > 0.0


def test_limit_in_the_plane_lets_through_what_is_nearer_by_the_last_bit():
    """Points and differences as a scan has them, in float32."""
    rng, exactly = np.random.default_rng(6), 0
    # also where the point is outside the unit square, as far as the world is
    for x, y, angle, power in rng.random((4_000, 4)):
        radius = 10.0 ** (-9 * power) * 1.4
        there = x + radius * math.cos(2 * math.pi * angle), y + radius * math.sin(2 * math.pi * angle)
        apart = math.sqrt((x - there[0]) ** 2 + (y - there[1]) ** 2)
        if apart == 0.0:
            continue
        dx, dy = np.float32(x) - np.float32(there[0]), np.float32(y) - np.float32(there[1])
        assert dx * dx + dy * dy <= limit_of(-float(np.nextafter(apart, 2.0)), False)
        exactly += 1
    assert exactly > 3_900


def test_limit_on_the_sphere_lets_through_what_is_nearer_by_the_last_bit():
    rng = np.random.default_rng(7)
    here = unit_vectors(rng.uniform(-180, 180, 4_000), rng.uniform(-90, 90, 4_000))
    there = here + rng.normal(size=(4_000, 3)) * 10.0 ** rng.uniform(-9, 1, (4_000, 1))
    # antipodes as well, where an arc is ill-conditioned in its chord
    there[:200] = -here[:200] + rng.normal(size=(200, 3)) * 10.0 ** rng.uniform(-12, -2, (200, 1))
    there /= np.linalg.norm(there, axis=1)[:, None]
    apart = here.astype(np.float32) - there.astype(np.float32)
    scanned = (apart * apart).sum(axis=1, dtype=np.float32)
    for a, b, squared in zip(here, there, scanned, strict=True):
        assert squared <= limit_of(-np.nextafter(metres(chord_squared(*a, *b)), np.inf), True)


@spaces
def test_limit_lets_little_through_that_is_farther(on_sphere):
    """And does not rise as radii shrink."""
    radii = 10.0 ** np.linspace(-3 if on_sphere else -8, 7.6 if on_sphere else 0.3, 400)
    limits = np.array([limit_of(-radius, on_sphere) for radius in radii])
    assert np.all(np.diff(limits) >= 0.0)
    chords = 2.0 * np.sin(np.minimum(radii / (2 * EARTH_RADIUS_M), math.pi / 2)) if on_sphere else radii
    assert np.all(np.sqrt(limits) > chords) and np.all(np.sqrt(limits) < 1.000002 * chords + 2e-6)
