"""Posting lists in blocks: postings where subscriptions think they are, summaries that bound, nobody passed over."""

import numpy as np
import pytest

from matching.decay.engines.block_lists import (
    BLOCK,
    EAST,
    FAR,
    GROUP,
    HIGH,
    LEVEL,
    LOW,
    NO_LEVEL,
    NORTH,
    REST,
    SOUTH,
    TEXT_SLOPE,
    WEST,
    BlockLists,
    Described,
    is_on_sphere,
    raise_level,
)
from matching.decay.engines.block_order import order_postings
from matching.decay.engines.block_search import candidates_of
from matching.geo.sphere import unit_vectors
from matching.model import DECAY, KEYWORDS_BY_KIND, NO_VECTORS, SubscriptionTable
from matching.storage.point_subscriptions import PointSubscriptions

#: The first of an engine compiles it.
MAX_DISTANCE = 1.1


def vectors(rng, count):
    """Places on whole degrees, near each other and near the opposite of those, at a pole, and anywhere."""
    lon, lat = rng.integers(170, 181, count), rng.integers(-40, -29, count)
    kind = rng.integers(0, 4, count)
    lon, lat = np.where(kind == 1, lon - 180, lon), np.where(kind == 1, -lat, lat)
    lon, lat = np.where(kind > 1, rng.integers(-180, 181, count), lon), np.where(kind == 2, 90, lat)
    return unit_vectors(lon, np.where(kind == 3, rng.integers(-90, 91, count), lat))


def subscriptions_at(rng, numbers, terms, on_sphere=False):
    """Points, each with one to three of the terms."""
    count = len(numbers)
    words = [np.sort(rng.choice(terms, rng.integers(1, min(4, terms + 1)), replace=False)) for _ in range(count)]
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in words])])
    flat = np.concatenate(words).astype(np.int32)
    x, y = np.round(rng.random((2, count)) * 50) / 50
    none = np.full((count, 4), np.nan)
    return SubscriptionTable(
        np.array(numbers), np.full(count, DECAY, np.int8), np.zeros(count, np.int64), x, y, none,
        np.full(count, KEYWORDS_BY_KIND, np.int8), np.full(count, 3, np.int32), rng.random(count), offsets, flat,
        np.ones(len(flat), np.float32), vector=vectors(rng, count) if on_sphere else NO_VECTORS,
    )  # fmt: skip


def described(rng, table):
    nnz, count = len(table.terms), len(table)
    alone = np.repeat(np.diff(table.term_offsets) == 1, np.diff(table.term_offsets))
    return Described(
        (10.0 ** rng.uniform(-7, 0.5, count) if table.vector.shape[0] else np.zeros(0)).astype(np.float32),
        np.where(rng.random(count) < 0.01, NO_LEVEL, 0.5 + 2.0 * rng.random(count)).astype(np.float32),
        rng.random(count).astype(np.float32),
        np.where(alone, 1.0, rng.random(nnz) * 1e-3).astype(np.float32),
        np.where(alone, 0, 1 << rng.integers(0, 31, nnz)).astype(np.uint32),
    )


def check(lists, subscriptions):
    """Every posting is where its subscription says, and every summary bounds what is under it."""
    v, c = lists.view, subscriptions.columns
    posted = 0
    for term in range(len(v.start)):
        places = np.arange(v.start[term], v.start[term] + v.count[term])
        live = places[v.slot[places] >= 0]
        assert v.count[term] <= v.capacity[term] and v.holes[term] == len(places) - len(live)
        posted += len(live)
        for place in live:
            slot, at = v.slot[place], c.term_start[v.slot[place]] + v.ordinal[place]
            assert c.terms[at] == term and c.position[at] == place
            assert (v.x[place], v.y[place]) == (np.float32(c.x[slot]), np.float32(c.y[slot]))
            if is_on_sphere(v):
                assert v.z[place] == np.float32(c.z[slot])
        if v.first_summary[term] < 0:
            assert v.capacity[term] <= BLOCK
            continue
        groups = v.first_summary[term] + -(-int(v.capacity[term]) // BLOCK)
        for block in range(-(-len(places) // BLOCK)):
            under = places[block * BLOCK : (block + 1) * BLOCK]
            under = under[v.slot[under] >= 0]
            for row in (v.summaries[v.first_summary[term] + block], v.summaries[groups + block // GROUP]):
                assert (row[WEST] <= v.x[under]).all() and (v.x[under] <= row[EAST]).all()
                assert (row[SOUTH] <= v.y[under]).all() and (v.y[under] <= row[NORTH]).all()
                assert (row[LEVEL] <= v.level[under]).all()
                assert (row[TEXT_SLOPE] >= v.text_slope[under]).all() and (row[REST] >= v.rest[under]).all()
                if is_on_sphere(v):
                    assert (row[LOW] <= v.z[under]).all() and (v.z[under] <= row[HIGH]).all()
                    assert (row[FAR] >= v.far[under]).all()
    slots = subscriptions.live_slots()
    assert posted == c.term_count[slots].sum()


def search(lists, subscriptions, term, rng):
    """Nobody whose reach is not below its distance is passed over; reaches here in double precision."""
    v, c, z = lists.view, subscriptions.columns, 0.0
    x, y, factor, text, others = *rng.random(2), rng.choice([0.0, 0.3, 1.0, 2.0]), rng.random(), rng.random() * 0.1
    if is_on_sphere(v):
        x, y, z = vectors(rng, 1)[0]
    signature = np.uint32(rng.integers(0, 2**32))
    out, passed = np.empty(max(1, v.count[term]), np.int32), np.empty(BLOCK, np.uint8)
    f = np.float32
    place, given = (f(x), f(y), f(z)), (f(MAX_DISTANCE), f(factor), f(text), f(others), signature, passed, out)
    found, scanned = candidates_of(v, term, *place, *given)
    places = np.arange(v.start[term], v.start[term] + v.count[term])
    places = places[v.slot[places] >= 0]
    share = np.where(v.signature[places] & signature == 0, v.rest[places].astype(float), others)
    far = v.far[places] if is_on_sphere(v) else MAX_DISTANCE
    reach = far + v.text_slope[places] * (text * share) - v.level[places].astype(float) * factor
    slots = v.slot[places]
    distance = np.hypot(c.x[slots] - x, c.y[slots] - y)
    if is_on_sphere(v):
        # one without a threshold takes whatever comes, also from beyond its radius
        reach[v.level[places] == NO_LEVEL] = np.inf
        distance = 2.0 * np.arcsin(np.minimum(1.0, 0.5 * np.hypot(distance, c.z[slots] - z)))
    needed = set(slots[reach >= distance].tolist())
    got = out[:found].tolist()
    assert needed <= set(got) and len(got) == len(set(got))
    return int(v.count[term]) - scanned, len(needed)


@pytest.mark.parametrize("on_sphere", [False, True], ids=["plane", "sphere"])
@pytest.mark.parametrize("seed", range(4))
def test_block_lists_stay_sound_through_changes_and_pass_nobody_over(seed, on_sphere):
    rng = np.random.default_rng(seed)
    terms, subscriptions, lists = (2, 8)[seed % 2], PointSubscriptions(), BlockLists(on_sphere)
    following, skipped, needed = 0, 0, 0
    for step in range(14):
        count = int(rng.choice([1, 30, 1500]))
        table = subscriptions_at(rng, range(following, following + count), terms, on_sphere)
        following += count
        slots = subscriptions.insert(table)
        lists.insert(subscriptions, slots, described(rng, table))
        live = subscriptions.live_slots()
        gone = rng.choice(live, int(len(live) * rng.choice([0.0, 0.05, 0.6])), replace=False)
        lists.remove(subscriptions, gone)
        subscriptions.remove(gone)
        live = subscriptions.live_slots()
        for slot in rng.choice(live, min(len(live), 300), replace=False):
            place = subscriptions.columns.position[subscriptions.columns.term_start[slot]]
            higher = np.float32(max(0.0, lists.view.level[place]) + rng.random() * 0.2)
            raise_level(subscriptions.columns, lists.view, slot, higher)
        if step % 3:
            lists.settle(subscriptions, MAX_DISTANCE, 1.0)
            assert not lists.view.dirty.any()
        check(lists, subscriptions)
        for term in range(min(terms, len(lists.view.start))):
            found = search(lists, subscriptions, term, rng)
            skipped, needed = skipped + found[0], needed + found[1]
        check(lists, subscriptions)  # what was read has heard of its levels
    assert skipped > 500, "a search that reads everything proves no summary"
    assert needed >= 1_000, "one that needs nothing proves no bound"
    assert lists.view.used[1] >= 0 and lists.arrays()["slot"].shape[0] == lists.view.used[0]


def test_search_on_the_sphere_tells_the_north_from_the_south():
    rng = np.random.default_rng(3)
    count, lat = 4096, 60.0
    table = subscriptions_at(rng, range(count), 1, True)
    south = rng.random(count) < 0.5
    places = unit_vectors(rng.uniform(-10, 10, count), np.where(south, -lat, lat) + rng.uniform(-2, 2, count))
    table = SubscriptionTable(**(table._asdict() | {"vector": places}))
    subscriptions, lists, ones = PointSubscriptions(), BlockLists(True), np.ones(count, np.float32)
    levels = Described(ones, ones, 0 * ones, ones, np.zeros(count, np.uint32))
    slots = subscriptions.insert(table)
    lists.insert(subscriptions, slots, levels)
    lists.settle(subscriptions, MAX_DISTANCE, 1.0)
    f, out, passed = np.float32, np.empty(count, np.int32), np.empty(BLOCK, np.uint8)
    x, y, z = unit_vectors(np.zeros(1), np.full(1, lat))[0]
    # 0.3 radians away and more is all of the south
    given = f(MAX_DISTANCE), f(0.7), f(0.0), f(0.0), np.uint32(0), passed, out
    found, scanned = candidates_of(lists.view, 0, f(x), f(y), f(z), *given)
    assert set(out[:found].tolist()) == set(slots[~south].tolist())
    assert found <= scanned < 1.3 * found


def test_block_lists_pools_are_packed_before_they_grow():
    rng = np.random.default_rng(9)
    subscriptions, lists = PointSubscriptions(), BlockLists()
    following, sizes = 0, []
    for _ in range(40):
        table = subscriptions_at(rng, range(following, following + 400), 6)
        following += 400
        lists.insert(subscriptions, subscriptions.insert(table), described(rng, table))
        live = subscriptions.live_slots()
        gone = np.sort(rng.choice(live, max(0, len(live) - 800), replace=False))
        lists.remove(subscriptions, gone)
        subscriptions.remove(gone)
        lists.settle(subscriptions, MAX_DISTANCE, 1.0)
        check(lists, subscriptions)
        sizes.append(lists.view.slot.shape[0])
    assert sizes[-1] == sizes[15], "so many come and go, and the pool goes on growing"


def test_block_lists_full_of_subscriptions_take_a_few_newcomers_where_they_are():
    rng, store, lists = np.random.default_rng(5), PointSubscriptions(MAX_DISTANCE), BlockLists()
    moved = []
    for first, count in ((0, 30_000), *((30_000 + 30 * nth, 30) for nth in range(20))):
        table, before = subscriptions_at(rng, range(first, first + count), 40), int(lists.view.used[0])
        lists.insert(store, store.insert(table), described(rng, table))
        moved.append(int(lists.view.used[0]) - before)
    # each of the forty lists gets some of every thirty; where there is no room in any all of them move at once
    assert lists.view.used[0] < 1.6 * lists.view.count.sum()
    assert moved[0] > 60_000 and max(moved[1:]) < 0.3 * moved[0] and max(moved[1:6]) < 0.1 * moved[0]


def test_order_puts_alike_reach_and_near_places_into_one_block():
    rng = np.random.default_rng(1)
    x, y = rng.random((2, 4096)).astype(np.float32)
    reach = rng.random(4096).astype(np.float32)
    order = order_postings(x, y, np.zeros(0, np.float32), reach, BLOCK)
    assert np.array_equal(np.sort(order), np.arange(4096))
    blocks = order.reshape(-1, BLOCK)
    area = np.ptp(x[blocks], axis=1) * np.ptp(y[blocks], axis=1)
    assert np.median(area) < 0.2 and np.median(np.ptp(reach[blocks], axis=1)) < 0.3


@pytest.mark.parametrize("degrees", [180.0, 0.5])
def test_order_on_the_sphere_puts_alike_reach_and_near_places_into_one_block(degrees):
    rng = np.random.default_rng(1)
    lon, lat = rng.uniform(-degrees, degrees, 4096), np.degrees(np.arcsin(rng.uniform(-1, 1, 4096))) * degrees / 180
    x, y, z = unit_vectors(lon, lat).T.astype(np.float32).copy()
    reach = rng.random(4096).astype(np.float32)
    order = order_postings(x, y, z, reach, BLOCK)
    assert np.array_equal(np.sort(order), np.arange(4096))
    blocks = order.reshape(-1, BLOCK)
    area = np.ptp(lon[blocks], axis=1) * np.ptp(lat[blocks], axis=1) / (np.ptp(lon) * np.ptp(lat))
    assert np.median(area) < 0.2 and np.median(np.ptp(reach[blocks], axis=1)) < 0.3
