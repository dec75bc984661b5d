"""Every boolean engine there is: what matches, what is refused, what a snapshot holds, how much work is done."""

import numpy as np
import pytest

from baselines.boolean.inverted_list import InvertedList
from benchmarks.workload import WORLD, boolean_subscriptions, make_messages
from matching.boolean.engines.cell_term import CellTerm
from matching.errors import ConfigError, EngineError
from matching.kind_table import Kind
from matching.kinds import KINDS
from matching.model import ANY_KEYWORD, KEYWORDS_BY_KIND, TOPK, UNKNOWN_TERM, SubscriptionTable
from matching.space import Space
from matching.storage.cell_map import cells_of
from matching.storage.cells import LANES, box_of, lattice, level_bits, level_of, message_word, subscription_word
from matching.storage.slots import as_input
from tests.support.boolean_tables import SPACE, batch, engine_pairs, oracle_pairs, table

EVERYWHERE = (-180.0, -90.0, 180.0, 90.0)
KIND = KINDS.named("boolean")


@pytest.fixture(params=KIND.engines)
def engine(request):
    return KIND.engine(request.param)(SPACE)


@pytest.fixture(scope="module")
def crowd():
    """A workload in which blocks are sorted, messages match, and some messages are rectangles."""
    messages = make_messages(12_000, 3)
    return boolean_subscriptions(messages, 20_000, 3), messages.batch.take(np.arange(0, 12_000, 40))


def test_table_of_kinds_refuses_unknown_names_with_the_choices():
    assert KIND.engine() is KIND.engine("cell_term") is CellTerm and next(iter(KIND.engines)) == CellTerm.name
    assert all(KIND.engine(name).name == name for name in KIND.engines)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="cell_term, lfilter, lfilter_paper, mbr_trie, pt_quadtree, inverted_list"):
        KIND.engine("r_tree")
    with pytest.raises(ConfigError, match="unknown kind 'bool'; choose from boolean, topk, decay, knn, skyline"):
        KINDS.named("bool")
    with pytest.raises(ConfigError, match="engine for idle: there is none"):
        Kind(5, "idle", "point").engine()


def test_engine_point_on_every_border_matches(engine):
    engine.insert(table([((10.0, 20.0, 30.0, 40.0), [1])]))
    corners = [(10, 20), (30, 20), (10, 40), (30, 40), (20, 20), (20, 40), (10, 30), (30, 30), (20, 30)]
    outside = [
        (np.nextafter(10, 0), 30),
        (np.nextafter(30, 99), 30),
        (20, np.nextafter(20, 0)),
        (20, np.nextafter(40, 99)),
    ]
    messages = batch([(place, [1]) for place in corners + outside])
    assert engine_pairs(engine, messages) == [(0, row) for row in range(len(corners))]


def test_engine_rectangles_match_when_they_touch(engine):
    region = (10.0, 20.0, 30.0, 40.0)
    engine.insert(table([(region, [1])]))
    inside, around, touching = (15, 25, 16, 26), (0, 0, 90, 80), (30, 40, 50, 60)
    beside, below = (30.1, 20, 40, 40), (10, 0, 30, 19.9)
    messages = batch([(box, [1]) for box in (inside, around, touching, beside, below, (-180, -90, 180, 90))])
    assert engine_pairs(engine, messages) == [(0, 0), (0, 1), (0, 2), (0, 5)]


def test_engine_region_across_the_antimeridian_is_two_boxes_and_one_event(engine):
    engine.insert(table([((170.0, -10.0, -170.0, 10.0), [1])]))
    points = [(175, 0), (-175, 0), (180, 0), (-180, 0), (170, 10), (-170, -10), (169, 0), (-169, 0), (0, 0)]
    ranges = [(-180, -5, 180, 5), (-175, 0, 175, 1), (-160, 0, 160, 1), (160, 0, 170, 1)]
    messages = batch([(place, [1]) for place in points + ranges])
    wanted = [(0, row) for row in (0, 1, 2, 3, 4, 5, 9, 10, 12)]
    assert engine_pairs(engine, messages) == wanted == oracle_pairs(table([((170, -10, -170, 10), [1])]), messages)


def test_engine_region_whose_gap_is_below_the_lattice_tells_each_pair_once(engine):
    # Both boxes of the region end in the same lattice column, on either side of a gap.
    region = (10.0002, -90.0, 10.0001, 90.0)
    rows = [(region, [1])] * 40  # enough to be sorted into cells
    engine.insert(table(rows))
    places = [
        (10.0001, 0),
        (10.00015, 0),
        (10.0002, 0),
        (10.0003, 0),
        (10.00005, 0),
        (10, -1, 11, 1),
        (-180, -90, 180, 90),
    ]
    messages = batch([(place, [1]) for place in places])
    assert engine_pairs(engine, messages) == oracle_pairs(table(rows), messages)


def test_engine_needs_all_keywords(engine):
    wanted = [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4, 5, 6], [2, 9], [7]]
    engine.insert(table([(EVERYWHERE, terms) for terms in wanted]))
    texts = [[1, 2, 3, 4, 5, 6], [1, 2, 3], [2, 3], [], [7, 2**30, 2**31 - 2], [1, 2, 3, 4, 5, 70]]
    found = engine_pairs(engine, batch([((0.0, 0.0), text) for text in texts]))
    assert found == [(0, 0), (0, 1), (0, 5), (1, 0), (1, 1), (1, 5), (2, 0), (2, 1), (2, 5), (3, 0), (5, 4)]


def test_engine_keyword_that_shares_a_filter_bit_is_told_apart(engine):
    # Keywords 64 apart look alike to a filter of 64 bits.
    engine.insert(table([(EVERYWHERE, [1, 5]), (EVERYWHERE, [1, 69]), (EVERYWHERE, [1, 5, 69])]))
    found = engine_pairs(engine, batch([((0, 0), [1, 5]), ((0, 0), [1, 69]), ((0, 0), [1, 5, 69]), ((0, 0), [1, 133])]))
    assert found == [(0, 0), (0, 2), (1, 1), (1, 2), (2, 2)]


def test_engine_keywords_that_share_a_place_of_a_table_are_told_apart(engine):
    # Keywords 1024 apart: a message may have either, both, or only a third one.
    engine.insert(table([(EVERYWHERE, [1, 5]), (EVERYWHERE, [1, 1029]), (EVERYWHERE, [1, 5, 1029])]))
    found = engine_pairs(engine, batch([((0, 0), text) for text in ([1, 5], [1, 1029], [1, 5, 1029], [1, 2053])]))
    assert found == [(0, 0), (0, 2), (1, 1), (1, 2), (2, 2)]


def test_engine_subscription_that_cannot_match_is_kept_and_never_told(engine):
    rows = [(EVERYWHERE, [1, UNKNOWN_TERM]), (EVERYWHERE, [UNKNOWN_TERM]), (EVERYWHERE, []), ((np.nan,) * 4, [1])]
    engine.insert(table([*rows, (EVERYWHERE, [1])]))
    assert len(engine) == 5
    assert engine_pairs(engine, batch([((0, 0), [1]), ((0, 0), [])])) == [(4, 0)]
    engine.remove(engine.find(np.arange(4)))
    assert len(engine) == 1
    assert engine_pairs(engine, batch([((0, 0), [1])])) == [(4, 0)]


def test_engine_message_without_coordinates_matches_nothing(engine):
    engine.insert(table([(EVERYWHERE, [1])] * 60))
    nan = float("nan")
    places = [(nan, 0, nan, 0), (0, nan, 0, nan), (nan, 0, 10, 0), (0, 0, nan, 0), (0, nan, 0, 10), (0, 0, 0, nan)]
    assert engine_pairs(engine, batch([(place, [1]) for place in places])) == []


def test_engine_outside_its_world_is_still_exact():
    subscriptions = table(
        [((-5.0, -5.0, 25.0, 25.0), [1]), ((15.0, 15.0, 20.0, 20.0), [1]), ((2.0, 2.0, 3.0, 3.0), [1])] * 20
    )
    places = [(12, 12), (17, 17), (-2, -2), (2.5, 2.5), (21, 21), (-90, 0), (10, 10), (0, 0), (16, 16, 18, 18)]
    messages = batch([(place, [1]) for place in places])
    for name in KIND.engines:
        engine = KIND.engine(name)(Space(0.0, 0.0, 10.0, 10.0))
        engine.insert(subscriptions)
        assert engine_pairs(engine, messages) == oracle_pairs(subscriptions, messages)


@pytest.mark.parametrize("region", [(1.0, 1.0, 9.0, 9.0), (5.0, 5.0, 5.001, 5.001)])
def test_engine_whole_world_message_does_not_see_who_has_left(engine, region):
    engine = type(engine)(Space(0.0, 0.0, 10.0, 10.0))
    engine.insert(table([(region, [1])] * 100))
    engine.remove(engine.find(np.arange(10)))
    assert engine_pairs(engine, batch([(EVERYWHERE, [1])])) == [(number, 0) for number in range(10, 100)]


def test_engine_empty_batch_and_empty_engine_match_nothing(engine):
    assert engine_pairs(engine, batch([])) == []
    assert engine_pairs(engine, batch([((0, 0), [1])])) == []
    engine.insert(table([]))
    engine.remove(engine.find(np.zeros(0, np.int64)))
    engine.insert(table([(EVERYWHERE, [1])]))
    assert engine_pairs(engine, batch([])) == []


def test_engine_more_hits_than_the_buffer_holds_are_all_told(engine):
    engine.insert(table([(EVERYWHERE, [1])] * 5_000))
    messages = batch([((0, 0), [1]), ((1, 1), [2]), ((2, 2), [1, 2]), ((-9, -9, 9, 9), [1])])
    assert engine_pairs(engine, messages) == [(number, row) for number in range(5_000) for row in (0, 2, 3)]


def test_engine_bad_changes_are_refused_and_change_nothing(engine, crowd):
    subscriptions, messages = crowd
    engine.insert(subscriptions.take(np.arange(2_000)))
    before = engine_pairs(engine, messages)
    with pytest.raises(EngineError, match="never used twice"):
        engine.insert(subscriptions.take(np.arange(1_999, 2_500)))
    with pytest.raises(EngineError, match="is not here"):
        engine.remove(engine.find(np.array([5, 2_000])))
    with pytest.raises(EngineError, match="twice"):
        engine.remove(engine.find(np.array([5, 5])))
    topk = subscriptions.take(np.arange(2_000, 2_010))
    topk = SubscriptionTable(**{**topk._asdict(), "kind": np.full(10, TOPK, np.int8)})
    with pytest.raises(EngineError, match="not kind 1"):
        engine.insert(topk)
    assert len(engine) == 2_000
    assert engine_pairs(engine, messages) == before != []


def test_engine_on_a_crowd_agrees_with_the_oracle_through_changes(engine, crowd):
    subscriptions, messages = crowd
    for start in range(0, 20_000, 1_999):
        engine.insert(subscriptions.take(np.arange(start, min(start + 1_999, 20_000))))
    wanted = oracle_pairs(subscriptions, messages)
    assert len(wanted) > 300
    assert engine_pairs(engine, messages) == wanted
    gone = np.random.default_rng(1).permutation(20_000)[:15_000]
    for start in range(0, 15_000, 777):
        engine.remove(engine.find(gone[start : start + 777]))
    left = set(range(20_000)) - set(gone.tolist())
    assert engine_pairs(engine, messages) == [pair for pair in wanted if pair[0] in left] != []
    engine.insert(subscriptions.take(np.sort(gone)))
    assert engine_pairs(engine, messages) == wanted


def test_engine_made_of_the_table_of_another_continues_on_its_own(engine, crowd):
    subscriptions, messages = crowd
    engine.insert(subscriptions)
    engine.remove(engine.find(np.arange(0, 20_000, 3)))
    table = engine.table()
    other = type(engine)(SPACE)
    other.insert(SubscriptionTable(*(as_input(column, column.dtype.type) for column in table)))
    assert engine_pairs(other, messages) == engine_pairs(engine, messages) != []
    for each in (engine, other):
        each.remove(each.find(np.arange(1, 20_000, 3)))
        each.insert(subscriptions.take(np.arange(0, 20_000, 3)))
    assert len(other) == len(engine)
    assert engine_pairs(other, messages) == engine_pairs(engine, messages) != []


def test_engine_read_only_messages_match_as_writable_ones(engine, crowd):
    subscriptions, messages = crowd
    engine.insert(subscriptions)
    frozen = type(messages)(*(as_input(column, column.dtype.type) for column in messages))
    assert engine_pairs(engine, frozen) == engine_pairs(engine, messages) != []


def test_cell_term_looks_at_far_fewer_than_inverted_list(crowd):
    subscriptions, messages = crowd
    work = {}
    for engine in (CellTerm(WORLD), InvertedList(WORLD)):
        engine.insert(subscriptions)
        work[engine.name] = engine.match(messages)
    assert work["cell_term"].matched == work["inverted_list"].matched > 0
    # both have the box in the posting
    assert work["cell_term"].verified == work["inverted_list"].verified
    assert work["cell_term"].scanned * 4 < work["inverted_list"].scanned
    # What the lattice and the cells let through, beyond what matches: second keywords, mostly.
    assert work["cell_term"].verified < 3 * work["cell_term"].matched


def test_cell_term_memory_a_subscription_stays_small(crowd):
    subscriptions, _ = crowd
    engine = CellTerm(WORLD)
    for start in range(0, 20_000, 500):
        engine.insert(subscriptions.take(np.arange(start, start + 500)))
    assert sum(array.nbytes for array in engine.arrays().values()) < 150 * 20_000
    for start in range(0, 18_000, 500):
        engine.remove(engine.find(np.arange(start, start + 500)))
        engine.insert(
            SubscriptionTable(
                **{
                    **subscriptions.take(np.arange(start, start + 500))._asdict(),
                    "number": np.arange(start, start + 500) + 20_000,
                }
            )
        )
    assert len(engine) == 20_000
    assert engine.allocated_bytes() < 200 * 20_000, "churn leaves nothing behind"


def test_engine_any_of_the_keywords_is_enough_where_asked_for(engine):
    rows = [(EVERYWHERE, [1, 2, 3]), (EVERYWHERE, [1, 2, 3]), ((0.0, 0.0, 9.0, 9.0), [2, UNKNOWN_TERM])]
    rows += [(EVERYWHERE, [UNKNOWN_TERM]), (EVERYWHERE, [])]
    subscriptions = table(rows, loose=[True, False, True, True, True])
    engine.insert(subscriptions)
    messages = batch(
        [((5, 5), text) for text in ([2], [1, 2, 3], [3, 4], [4], [])] + [((20, 20), [2]), ((4, 4, 5, 5), [2])]
    )
    wanted = [(0, 0), (0, 1), (0, 2), (0, 5), (0, 6), (1, 1), (2, 0), (2, 1), (2, 6)]
    assert engine_pairs(engine, messages) == wanted == oracle_pairs(subscriptions, messages)
    assert len(engine) == 5 and engine.contains(np.arange(6)).tolist() == [True] * 5 + [False]
    engine.remove(engine.find(np.array([0, 1, 3])))
    assert engine_pairs(engine, messages) == [pair for pair in wanted if pair[0] == 2]
    engine.insert(table([(EVERYWHERE, [4])], first=9))  # in a slot that had parts
    assert engine_pairs(engine, messages) == [pair for pair in wanted if pair[0] == 2] + [(9, 2), (9, 3)]


@pytest.fixture(scope="module")
def loose_crowd(crowd):
    """A crowd of which every third is content with any keyword, some messages, and who matches."""
    subscriptions, messages = crowd
    subscriptions, messages = subscriptions.take(np.arange(5_000)), messages.take(np.arange(0, len(messages), 3))
    match = np.where(np.arange(5_000) % 3 == 0, ANY_KEYWORD, KEYWORDS_BY_KIND).astype(np.int8)
    loose = SubscriptionTable(**(subscriptions._asdict() | {"match": match}))
    wanted = oracle_pairs(loose, messages)
    assert len(wanted) > 2 * len(oracle_pairs(subscriptions, messages))
    return loose, messages, wanted


def test_engine_any_of_a_crowd_agrees_with_the_oracle_through_changes_and_a_restore(engine, loose_crowd):
    subscriptions, messages, wanted = loose_crowd
    for start in range(0, 5_000, 999):
        engine.insert(subscriptions.take(np.arange(start, min(start + 999, 5_000))))
    assert engine_pairs(engine, messages) == wanted
    engine.remove(engine.find(np.arange(0, 5_000, 2)))
    assert engine_pairs(engine, messages) == [pair for pair in wanted if pair[0] % 2]
    other = type(engine)(SPACE)
    other.insert(engine.table())
    for each in (engine, other):
        each.insert(subscriptions.take(np.arange(0, 5_000, 2)))
        assert engine_pairs(each, messages) == wanted
        each.remove(each.find(np.arange(5_000)))
        assert len(each) == 0 and engine_pairs(each, messages) == []


def test_cell_term_that_takes_a_lattice_cell_for_a_degree_is_caught():
    """The comparison with the oracle has teeth."""
    tiny = table([((0.0, 0.0, 1e-4, 1e-4), [1])])
    near = batch([((2e-4, 2e-4), [1])])
    engine = CellTerm(SPACE)
    engine.insert(tiny)
    assert engine_pairs(engine, near) == oracle_pairs(tiny, near) == []
    engine.subscriptions.columns.region[0] = EVERYWHERE  # now the degrees say yes to all that the lattice lets through
    assert engine_pairs(engine, near) != oracle_pairs(tiny, near)


def test_cell_term_that_looks_into_wrong_cells_is_caught(crowd):
    subscriptions, messages = crowd
    engine = CellTerm(SPACE)
    engine.insert(subscriptions)
    engine.index._steps_per_degree *= 1.01
    assert engine_pairs(engine, messages) != oracle_pairs(subscriptions, messages)


def test_cell_term_reads_no_posting_where_no_subscription_is_left():
    engine, place, foreign = CellTerm(SPACE), batch([((0.5, 0.5), [1])]), batch([((100.0, 0.5), [1])])
    engine.insert(table([((0.0, 0.0, 1.0, 1.0), [1])] * 3))
    assert (engine.match(place).matched, engine.match(foreign).scanned) == (3, 0)
    for first in (3, 6, 9):
        engine.insert(table([((99.0, 0.0, 101.0, 1.0), [1])] * 3, first))
        engine.remove(engine.find(np.arange(first - 3, first)))
        assert engine.match(foreign).matched == 3
    assert engine.match(place).scanned == 0, "the map has not forgotten who has left"


def test_boxes_that_meet_share_a_bit_of_the_cell_map():
    rng, most = np.random.default_rng(0), 2**15
    low = rng.integers(0, most, (400, 2))
    high = np.minimum(low + rng.integers(0, most, (400, 2)) // 2 ** rng.integers(0, 15, (400, 1)), most - 1)
    bits = np.array([cells_of(*box) for box in np.concatenate([low, high], axis=1)], np.uint64)
    meet = np.all((low[:, None] <= high) & (low <= high[:, None]), axis=2)
    share = (bits[:, None] & bits) != 0
    assert np.all(share[meet]) and np.count_nonzero(~share) > share.size // 4
    assert cells_of(20_000, 5, 10_000, 7) == cells_of(10_000, 5, 20_000, 7), "inside out: all between its sides"


def test_cell_term_damaged_block_is_refused():
    engine = CellTerm(SPACE)
    engine.insert(table([(EVERYWHERE, [1])] * 3))
    engine.index._link[:] = 0
    with pytest.raises(EngineError, match="restore the last checkpoint"):
        engine.remove(engine.find(np.array([1, 2])))


def test_words_keep_boxes_and_levels_apart():
    rng = np.random.default_rng(0)
    for box in np.sort(rng.integers(0, 2**15, (200, 2, 2)), axis=1).reshape(-1, 4):
        word = np.uint64(subscription_word(*box))  # compiled or not, and so a Python int or not
        for level in (0, 1, 7, 14):
            marked = word | np.uint64(level_bits(level))
            assert level_of(marked) == level
            assert box_of(marked) == tuple(box)
            assert marked & LANES == word
        reach = np.uint64(message_word(*box))
        assert reach & LANES == np.uint64(subscription_word(box[2], box[3], box[0], box[1]))


@pytest.mark.parametrize("degrees", [-1e300, -181.0, -180.0, -179.9999, 0.0, 179.99, 180.0, 1e300, np.inf])
def test_lattice_keeps_order_beyond_the_rim(degrees):
    here = lattice(degrees, -180.0, 2.0**15 / 360.0)
    assert 0 <= here <= 2**15 - 1
    assert here <= lattice(np.nextafter(degrees, np.inf), -180.0, 2.0**15 / 360.0)
    assert lattice(np.nan, -180.0, 1.0) == 0


@pytest.mark.parametrize("name", KIND.engines)
def test_engine_keeps_no_more_room_for_hits_than_a_batch_has(name):
    messages = make_messages(20_000, 3)
    subscriptions = boolean_subscriptions(messages, 2_000, 3)
    engine = KIND.engine(name)(SPACE)
    for start in range(0, 2_000, 500):  # several parts, a tail
        engine.insert(subscriptions.take(np.arange(start, start + 500)))
    found = engine.match(messages.batch).matched
    assert found > 3_000
    assert engine._hits.columns[0].shape[0] <= 4 * found
