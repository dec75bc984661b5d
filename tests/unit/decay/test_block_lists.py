"""Posting lists in blocks: postings where subscriptions think they are, summaries that bound, nobody passed over."""

import numpy as np
import pytest

from matching.decay.engines import block_lists
from matching.decay.engines.block_lists import (
    BLOCK,
    EAST,
    GROUP,
    LEVEL,
    NORTH,
    REST,
    SOUTH,
    TEXT_SLOPE,
    WEST,
    BlockLists,
    Described,
    raise_level,
)
from matching.decay.engines.block_order import order_postings
from matching.decay.engines.block_search import candidates_of
from matching.model import DECAY, KEYWORDS_BY_KIND, SubscriptionTable
from matching.storage.point_subscriptions import PointSubscriptions

#: The first of an engine compiles it.
pytestmark = pytest.mark.timeout(300)

FAR = 1.1


def subscriptions_at(rng, numbers, terms):
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
        np.ones(len(flat), np.float32),
    )  # fmt: skip


def described(rng, table):
    nnz, count = len(table.terms), len(table)
    alone = np.repeat(np.diff(table.term_offsets) == 1, np.diff(table.term_offsets))
    return Described(
        np.where(rng.random(count) < 0.01, block_lists.NO_LEVEL, 0.5 + 2.0 * rng.random(count)).astype(np.float32),
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
    slots = subscriptions.live_slots()
    assert posted == c.term_count[slots].sum()


def search(lists, term, rng):
    """Nobody whose reach is not below its distance is passed over; reaches here in double precision."""
    v = lists.view
    x, y, factor, text, others = *rng.random(2), rng.choice([0.0, 0.3, 1.0, 2.0]), rng.random(), rng.random() * 0.1
    signature = np.uint32(rng.integers(0, 2**32))
    out, passed = np.empty(max(1, v.count[term]), np.int32), np.empty(BLOCK, np.uint8)
    f = np.float32
    found, scanned = candidates_of(v, term, f(x), f(y), f(FAR), f(factor), f(text), f(others), signature, passed, out)
    places = np.arange(v.start[term], v.start[term] + v.count[term])
    places = places[v.slot[places] >= 0]
    share = np.where(v.signature[places] & signature == 0, v.rest[places].astype(float), others)
    reach = FAR + v.text_slope[places] * (text * share) - v.level[places].astype(float) * factor
    distance = np.hypot(v.x[places] - x, v.y[places] - y)
    needed = set(v.slot[places][reach >= distance].tolist())
    got = out[:found].tolist()
    assert needed <= set(got) and len(got) == len(set(got))
    return int(v.count[term]) - scanned


@pytest.mark.parametrize("seed", range(4))
def test_block_lists_stay_sound_through_changes_and_pass_nobody_over(seed):
    rng = np.random.default_rng(seed)
    terms, subscriptions, lists = (2, 8)[seed % 2], PointSubscriptions(), BlockLists()
    following, skipped = 0, 0
    for step in range(14):
        count = int(rng.choice([1, 30, 1500]))
        table = subscriptions_at(rng, range(following, following + count), terms)
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
            lists.settle(subscriptions, FAR, 1.0)
            assert not lists.view.dirty.any()
        check(lists, subscriptions)
        for term in range(min(terms, len(lists.view.start))):
            skipped += search(lists, term, rng)
        check(lists, subscriptions)  # what was read has heard of its levels
    assert skipped > 500, "a search that reads everything proves no summary"
    assert lists.view.used[1] >= 0 and lists.arrays()["slot"].shape[0] == lists.view.used[0]


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
        lists.settle(subscriptions, FAR, 1.0)
        check(lists, subscriptions)
        sizes.append(lists.view.slot.shape[0])
    assert sizes[-1] == sizes[15], "so many come and go, and the pool goes on growing"


def test_order_puts_alike_reach_and_near_places_into_one_block():
    rng = np.random.default_rng(1)
    x, y = rng.random((2, 4096)).astype(np.float32)
    reach = rng.random(4096).astype(np.float32)
    order = order_postings(x, y, reach, BLOCK)
    assert np.array_equal(np.sort(order), np.arange(4096))
    blocks = order.reshape(-1, BLOCK)
    area = np.ptp(x[blocks], axis=1) * np.ptp(y[blocks], axis=1)
    assert np.median(area) < 0.2 and np.median(np.ptp(reach[blocks], axis=1)) < 0.3
