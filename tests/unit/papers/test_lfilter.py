"""MBRTrie, PT-Quadtree and LFilter: the paper's example, each way through them, what is built, and live change."""

import numpy as np
import pytest
from numba import config

from benchmarks.workload import WORLD, boolean_subscriptions, make_messages
from matching.space import Space
from matching.storage.cells import box_of, lattice
from matching.storage.slots import as_input
from papers.lfilter.lfilter import _ONE_IN, _SURE, FILTERS, VERIFICATIONS, LFilter
from papers.lfilter.lfilter_cost import pays_to_prune
from papers.lfilter.lfilter_paper import WAYS, LFilterPaper
from papers.lfilter.lfilter_parts import GONE, TAIL_CAPACITY, _mark_of
from papers.lfilter.mbr_trie import END_CHILD, FIRST_CHILD, HIGH, LOW, OWN, STRATEGIES, MbrTrie, probe_cost
from papers.lfilter.pt_quadtree import COVER, END, NON_COVER, PtQuadtree, meets_within, reach_within
from papers.lfilter.pt_quadtree_build import MOST_TOKENS, box_within, greedy_pivots
from tests.support.boolean_groups import GROUPS, message_groups
from tests.support.boolean_tables import SPACE, batch, engine_pairs, oracle_pairs, table

PARTED = (MbrTrie, PtQuadtree, LFilter)
EVERYWHERE = (-180.0, -90.0, 180.0, 90.0)
A, B, C, D, E, F, G, H = range(8)

#: The running example: s1, s3, s4 and both messages as the text of the paper has them; its figure 1 is lost, so the
#: others are made so that all it says of them holds: ranges and rectangles of nodes, pivots, and the answers.
EXAMPLE_SPACE = Space(0.0, 0.0, 40.0, 40.0)
EXAMPLE = [
    ((25.0, 0.0, 30.0, 20.0), [A, B, C]),
    ((10.0, 30.0, 20.0, 40.0), [A, C]),
    ((20.0, 32.0, 35.0, 35.0), [B, C, D]),
    ((20.0, 10.0, 28.0, 18.0), [B, C, D]),
    ((30.0, 30.0, 35.0, 38.0), [B, C, H]),
    ((5.0, 25.0, 9.0, 30.0), [B, D, G]),
    ((22.0, 12.0, 30.0, 16.0), [B, E]),
    ((2.0, 2.0, 8.0, 6.0), [B, F, G]),
    ((24.0, 13.0, 32.0, 36.0), [B, F, H]),
    ((20.0, 5.0, 30.0, 15.0), [C, E]),
    ((10.0, 20.0, 18.0, 28.0), [D, E]),
    ((30.0, 2.0, 38.0, 8.0), [D, H]),
]
POINT_MESSAGE = ((26.0, 14.0), [B, C, D, E, F])
RANGE_MESSAGE = ((10.0, 10.0, 40.0, 40.0), [A, C, D, E])
#: (number, row), the paper's s4, s7, s10 and s2, s10, s11; numbers here begin at 0.
ANSWERS = [(1, 1), (3, 0), (6, 0), (9, 0), (9, 1), (10, 1)]


@pytest.fixture(scope="module")
def crowd():
    """A workload with many points, rectangles, short texts and long ones."""
    made = make_messages(12_000, 3)
    groups = message_groups(made.batch, 40, 3)
    return boolean_subscriptions(made, 12_000, 3), {name: groups[name] for name in GROUPS}


@pytest.fixture(scope="module")
def wanted(crowd):
    """Every match of the crowd, by group, from the oracle."""
    subscriptions, groups = crowd
    return {name: oracle_pairs(subscriptions, messages) for name, messages in groups.items()}


def example(engine):
    """The engine with the paper's subscriptions, built at once rather than waiting for more."""
    engine.insert(table(EXAMPLE))
    engine._build_tail()
    return engine


@pytest.mark.parametrize("kind", PARTED)
def test_engine_on_the_example_of_the_paper_gives_its_answers(kind):
    messages = batch([POINT_MESSAGE, RANGE_MESSAGE])
    engine = example(kind(EXAMPLE_SPACE))
    assert engine.parts == 1
    assert engine_pairs(engine, messages) == ANSWERS == oracle_pairs(table(EXAMPLE), messages)


@pytest.mark.parametrize("filter_by", FILTERS)
@pytest.mark.parametrize("verify_by", VERIFICATIONS)
def test_lfilter_each_way_on_the_example_of_the_paper_gives_its_answers(filter_by, verify_by):
    engine = example(LFilter(EXAMPLE_SPACE, filter_by, verify_by, bucket=0, leaf_capacity=2))
    assert engine_pairs(engine, batch([POINT_MESSAGE, RANGE_MESSAGE])) == ANSWERS


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_trie_by_each_strategy_on_the_example_of_the_paper_gives_its_answers(strategy):
    engine = example(MbrTrie(EXAMPLE_SPACE, strategy, bucket=0))
    assert engine_pairs(engine, batch([POINT_MESSAGE, RANGE_MESSAGE])) == ANSWERS
    texts = [[A, B, C, D, E, F, G, H], [C, E, G], [D, E, H], [B, D, F, G, H]]
    messages = batch([((0.0, 0.0, 40.0, 40.0), text) for text in texts])
    assert engine_pairs(engine, messages) == oracle_pairs(table(EXAMPLE), messages)


@pytest.mark.parametrize("kind", PARTED)
def test_keyword_with_the_mark_of_another_is_told_apart(kind):
    twin = next(term for term in range(8, 10**6) if _mark_of(term) == _mark_of(7))
    rows = [(EVERYWHERE, [1, twin]), (EVERYWHERE, [1, 7]), (EVERYWHERE, [1, 2, 3, 4, twin]), (EVERYWHERE, [1])] * 12
    engine = kind(SPACE)
    engine.insert(table(rows))
    messages = batch([((0.0, 0.0), [1, 7]), ((0.0, 0.0), [1, 2, 3, 4, 7]), ((0.0, 0.0), [1, twin])])
    assert engine_pairs(engine, messages) == oracle_pairs(table(rows), messages) != []


def test_message_without_a_pivot_is_turned_away_though_signatures_agree():
    engine = PtQuadtree(SPACE)
    engine.insert(table([((0.0, 0.0, 1.0, 1.0), [7, 9])] * 40))
    hits = engine.match(batch([((0.5, 0.5), [7 + 64, 9 + 64])]))
    assert (hits.matched, hits.scanned) == (0, 1)
    assert engine.match(batch([((0.5, 0.5), [7, 9])])).matched == 40


def test_trie_of_the_example_has_the_nodes_of_the_paper():
    trie = example(MbrTrie(EXAMPLE_SPACE, bucket=0))._parts[0]
    head, token = trie["head"], trie["token"]
    slots = trie["slot"].tolist()
    assert sorted(slots[2:4]) == [2, 3], "of equal token sets, either first"
    assert [*slots[:2], 2, 3, *slots[4:]] == list(range(12)), "subscriptions are ranked by their token sets"
    assert token[1:5].tolist() == [A, B, C, D]
    assert head[0].tolist() == [1, 5, 0, 0, 12]
    assert head[2, [LOW, HIGH]].tolist() == [2, 9], "s3 to s9 lie below token b"
    steps = 2.0**15 / 40.0
    assert box_of(trie["box"][1]) == tuple(lattice(side, 0.0, steps) for side in (10.0, 0.0, 30.0, 40.0))
    bcd = [node for node in range(token.shape[0]) if token[node] == D and head[node, [LOW, OWN]].tolist() == [2, 4]]
    assert len(bcd) == 1, "s3 and s4 end at one node"


def test_pivots_of_the_example_are_one_token_where_it_hits_all():
    engine = example(PtQuadtree(EXAMPLE_SPACE))
    slot, columns = as_input(engine._parts[0]["slot"], np.int32), engine.subscriptions.columns
    out = np.zeros(MOST_TOKENS, np.int32)
    assert greedy_pivots(np.array([2, 4, 8], np.int32), slot, columns, out) == 1
    assert out[0] == B, "the paper's node 1"
    assert greedy_pivots(np.array([2, 8, 10, 11, 1], np.int32), slot, columns, out) == 3
    assert out[:3].tolist() == [A, B, D], "d hits three; of equally frequent tokens the rarest goes on"
    many = table([(EVERYWHERE, [term]) for term in range(MOST_TOKENS + 1)])
    engine = PtQuadtree(SPACE)
    engine.insert(many)
    ranks = np.arange(MOST_TOKENS + 1, dtype=np.int32)
    columns = engine.subscriptions.columns
    slot = as_input(engine._parts[0]["slot"], np.int32)
    assert greedy_pivots(ranks[:-1], slot, columns, out) == MOST_TOKENS
    assert greedy_pivots(ranks, slot, columns, out) == -1


def greedy_by_definition(texts):
    """Tokens of a hitting set: time and again the one in most texts that none hits yet, the lowest of equals."""
    chosen, left = [], list(texts)
    while left:
        tokens = [token for text in left for token in text]
        chosen.append(min(tokens, key=lambda token: (-tokens.count(token), token)))
        left = [text for text in left if chosen[-1] not in text]
    return sorted(chosen)


@pytest.mark.parametrize("words", [3, 12, 40, 150])
def test_pivots_of_random_lists_are_those_of_the_definition(words):
    rng, out, sizes = np.random.default_rng(words), np.zeros(MOST_TOKENS, np.int32), []
    for size in (1, 7, 60, 120):
        texts = [np.unique(rng.integers(0, words, rng.integers(1, 5))).tolist() for _ in range(size)]
        engine = PtQuadtree(SPACE)
        engine.insert(table([(EVERYWHERE, text) for text in texts]))
        slots = as_input(np.arange(size), np.int32)
        count = greedy_pivots(np.arange(size, dtype=np.int32), slots, engine.subscriptions.columns, out)
        wanted = greedy_by_definition(texts)
        assert (count == -1) == (len(wanted) > MOST_TOKENS)
        assert count == -1 or out[:count].tolist() == wanted
        sizes.append(len(wanted))
    assert max(sizes) > (1 if words == 3 else 4)


def test_boxes_that_meet_still_meet_as_seen_from_a_cell():
    rng, told_apart, met = np.random.default_rng(5), 0, 0
    for _ in range(4_000):
        level = int(rng.integers(0, 15))
        side = 1 << (15 - level)
        column, line = rng.integers(0, 1 << level, 2).tolist()
        corners = np.clip(rng.integers(-side, 2 * side, (2, 4)) + np.array([column, line] * 2) * side, 0, 2**15 - 1)
        (a, b, c, d), (e, f, g, h) = [(*np.minimum(x[:2], x[2:]), *np.maximum(x[:2], x[2:])) for x in corners]
        cell = level << 28 | line << 14 | column
        meet = a <= g and e <= c and b <= h and f <= d
        seen = meets_within(reach_within(cell, e, f, g, h), box_within(cell, a, b, c, d))
        assert seen or not meet
        met += meet
        told_apart += not seen
    assert met > 500 and told_apart > 500


def test_cover_set_is_asked_once_and_turns_messages_away():
    corners = [(west, south, west + 1.0, south + 1.0) for west in (-99.0, 99.0) for south in (-60.0, 60.0)]
    rows = [(corner, [5, 10 + i % 7]) for corner in corners for i in range(30)]
    engine = PtQuadtree(SPACE, leaf_capacity=16)
    engine.insert(table(rows))
    tree = engine._parts[0]
    sets = [tree["pivot"][low:high].tolist() for low, high in tree["pivots"][:, [COVER, NON_COVER]]]
    assert sets[0] == [5], "all four quarters have it"
    for quarter in tree["branch"][0, :4]:
        low, _, end = tree["pivots"][quarter]
        assert low == end, "and none keeps it; they have no other"
    other = engine.match(batch([(EVERYWHERE, [10, 11, 12, 13, 14, 15, 16])]))
    assert (other.matched, other.verified, other.scanned) == (0, 0, 1), "turned away at the root"
    all_of_one = engine.match(batch([(EVERYWHERE, [5, 10])]))
    assert all_of_one.matched == len([1 for _, terms in rows if terms[1] == 10])


def test_pivots_of_a_cell_hit_every_subscription_below_it(crowd):
    subscriptions, _ = crowd
    engine = PtQuadtree(WORLD)
    engine.insert(subscriptions)
    tree, columns = engine._parts[0], engine.subscriptions.columns
    closed, covered = 0, 0
    stack = [(0, frozenset())]
    while stack:
        node, above = stack.pop()
        low, middle, end = tree["pivots"][node, [COVER, NON_COVER, END]].tolist()
        cover = set(tree["pivot"][low:middle].tolist())
        covered += len(cover)
        if end >= 0:
            closed += 1
            sets = cover | above | set(tree["pivot"][middle:end].tolist())
            for rank in tree["entry"][tree["branch"][node, 4] : tree["branch"][node, 5]]:
                assert sets & set(_terms_of(columns, tree["slot"][rank]))
        stack += [(child, above | cover) for child in tree["branch"][node, :4].tolist() if child >= 0]
    assert closed > 100
    assert covered > 0


def _terms_of(columns, slot):
    position, terms = columns.start[slot], []
    while columns.terms[position] >= 0:
        terms.append(int(columns.terms[position]))
        position += 1
    return [*terms, int(~columns.terms[position])]


@pytest.mark.parametrize("bucket", [0, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_trie_by_each_strategy_agrees_with_the_oracle(crowd, wanted, strategy, bucket):
    subscriptions, groups = crowd
    engine = MbrTrie(WORLD, strategy, bucket)
    engine.insert(subscriptions)
    for name, messages in groups.items():
        assert engine_pairs(engine, messages) == wanted[name] != []


def test_trie_strategies_look_at_what_they_are_named_after(crowd):
    subscriptions, groups = crowd
    scanned = {}
    for strategy in STRATEGIES:
        engine = MbrTrie(WORLD, strategy)
        engine.insert(subscriptions)
        scanned[strategy] = engine.match(groups["point_short"]).scanned
    roots = int(engine._parts[0]["head"][0, END_CHILD] - engine._parts[0]["head"][0, FIRST_CHILD])
    assert roots > 1_000
    assert scanned["probe_token_set"] >= roots * 40, "every child of the root, for each message"
    assert scanned["cheapest"] * 5 < scanned["probe_token_set"]
    assert scanned["probe_trie"] * 5 < scanned["probe_token_set"]


def test_probe_cost_picks_the_smaller_side():
    assert probe_cost(10_000, 8)[1]
    assert not probe_cost(3, 400)[1]
    assert probe_cost(10_000, 8)[0] < probe_cost(10_000, 800)[0]


@pytest.mark.wide
@pytest.mark.parametrize("by", WAYS)
def test_printed_forms_agree_with_the_oracle_and_build_what_they_are_named_after(crowd, wanted, by):
    subscriptions, groups = crowd
    small = example(LFilterPaper(EXAMPLE_SPACE, by, tau_num=2, finest_level=3))
    assert engine_pairs(small, batch([POINT_MESSAGE, RANGE_MESSAGE])) == ANSWERS
    engine = LFilterPaper(WORLD, by)
    engine.insert(subscriptions)
    for name, messages in groups.items():
        assert engine_pairs(engine, messages) == wanted[name] != []
    by_trie, by_quadtree, direct, pruned = engine.choices.tolist()
    part, columns = engine._parts[0], engine.subscriptions.columns
    assert ("head" in part, "branch" in part) == (by != "quadtree", by != "trie")
    assert (by_trie > 0, by_quadtree > 0, direct > 0, pruned > 0) == {
        "cost": (True, True, True, True), "trie": (True, False, False, False), "quadtree": (False, True, True, False)
    }[by]  # fmt: skip
    if by != "quadtree":
        leaves = part["head"][part["token"] == -1][1:]
        sets = {tuple(_terms_of(columns, slot)) for slot in part["slot"][part["slot"] >= 0]}
        assert len(leaves) == len(sets), "one for each set of tokens"
        ranks = np.concatenate([np.arange(low, high) for _, _, low, high, _ in leaves])
        assert np.array_equal(np.sort(ranks), part["listed"])
    if by != "trie":
        inner = (part["branch"][:, :4] >= 0).any(axis=1)
        assert inner.any() and not (part["branch"][inner, 5] > part["branch"][inner, 4]).any(), "lists in leaves alone"
        assert (part["pivots"][:, END] >= part["pivots"][:, NON_COVER]).all(), "no cell is open to every message"


@pytest.mark.parametrize("filter_by", FILTERS)
@pytest.mark.parametrize("verify_by", VERIFICATIONS)
def test_lfilter_each_way_agrees_with_the_oracle_and_is_counted(crowd, wanted, filter_by, verify_by):
    subscriptions, groups = crowd
    engine = LFilter(WORLD, filter_by, verify_by)
    engine.insert(subscriptions)
    for name, messages in groups.items():
        assert engine_pairs(engine, messages) == wanted[name] != []
    by_trie, by_quadtree, direct, pruned = engine.choices.tolist()
    assert by_trie + by_quadtree > 100, "messages whose terms no subscription begins with are not counted"
    if filter_by == "trie":
        assert by_quadtree == direct == pruned == 0
    if filter_by == "quadtree":
        assert by_trie == 0
        assert (direct > 0) == (verify_by != "prune")
        assert (pruned > 0) == (verify_by != "direct")


NEEDS_COMPILER = pytest.mark.skipif(
    bool(config.DISABLE_JIT),  # type: ignore[attr-defined]
    reason="without the compiler, counts of candidates become floats",
)


@NEEDS_COMPILER
@pytest.mark.parametrize("filter_by", FILTERS)
def test_lfilter_message_that_is_a_line_is_told_once(filter_by):
    """A line is no point, though two of its sides are one: it meets many cells, and boxes that lie in several."""
    rng = np.random.default_rng(5)
    west, south = rng.integers(-18, 10, 300) * 10.0, rng.integers(-9, 4, 300) * 10.0
    rows = [
        ((w, s, w + 10.0 * i % 70, s + 50.0), [i % 3, 3 + i % 2])
        for i, (w, s) in enumerate(zip(west, south, strict=True))
    ]
    engine = LFilter(SPACE, filter_by, leaf_capacity=4)
    engine.insert(table(rows))
    engine._build_tail()
    places = [(float(x), -90.0, float(x), 90.0) for x in range(-170, 180, 20)]
    places += [(-180.0, float(y), 180.0, float(y)) for y in range(-80, 90, 20)]
    messages = batch([(place, range(5)) for place in places])
    assert engine_pairs(engine, messages) == oracle_pairs(table(rows), messages) != []


def test_lfilter_takes_the_trie_for_short_texts_and_the_quadtree_for_long_ones_where_little_is(crowd):
    subscriptions, groups = crowd
    engine = LFilter(WORLD)
    engine.insert(subscriptions)
    engine.match(groups["range_short"])
    assert engine.choices[0] > 30
    assert engine.choices[1] < 5
    engine.choices[:] = 0
    quiet = [((-40.0 + i, -88.0), range(3_000, 3_600)) for i in range(20)]
    assert engine_pairs(engine, batch(quiet)) == oracle_pairs(subscriptions, batch(quiet))
    assert engine.choices[:2].tolist() == [0, 20]
    engine.choices[:] = 0
    everywhere = [(EVERYWHERE, [i, 3_000 + i, 6_000 + i]) for i in range(20)]
    assert engine_pairs(engine, batch(everywhere)) == oracle_pairs(subscriptions, batch(everywhere))
    assert engine.choices[1] == 0


def test_lfilter_with_habits_answers_as_without(crowd, wanted):
    subscriptions, groups = crowd
    engine = LFilter(WORLD)
    engine.insert(subscriptions)
    habit = engine._views[0][3]
    for _ in range(4):
        for name, messages in groups.items():
            assert engine_pairs(engine, messages) == wanted[name]
    quiet = batch([((-40.0 + i, -88.0), range(3_000, 3_600)) for i in range(40)])
    for _ in range(2):
        assert engine_pairs(engine, quiet) == oracle_pairs(subscriptions, quiet)
    assert habit.leaning.max() == _SURE and habit.leaning.min() == -_SURE, "there are messages that follow each"


def test_lfilter_weighs_what_looks_unusual_and_forgets_a_habit_that_fails(crowd):
    subscriptions, _ = crowd
    engine = LFilter(WORLD)
    engine.insert(subscriptions)
    habit = engine._views[0][3]
    first = ((0.0, 0.0), range(7))
    everything = batch([first] + [(EVERYWHERE, range(3_000, 3_600))] * 3)
    wanted = oracle_pairs(subscriptions, everything)
    habit.leaning[:] = -_SURE
    assert engine_pairs(engine, everything) == wanted != []
    assert engine.choices[:2].tolist() == [3, 1], "a message that touches every list takes the trie in spite of habit"
    assert (habit.leaning > 0).any()
    common = range(int(subscriptions.terms.max()) - 600, int(subscriptions.terms.max()))
    spoken = batch([first] + [((0.0, 50.0), common)] * 5)
    typical = engine._parts[0]["typical"]
    # where lists are long as a rule the walk costs less than they do; then it does not
    for entries, weighed in ((1e6, 0), (1.0, 5)):
        typical[0], habit.leaning[:], engine.choices[:] = entries, _SURE, 0
        assert engine_pairs(engine, spoken) == oracle_pairs(subscriptions, spoken) != []
        assert engine.choices[1] == weighed, "one that costs the trie more than typical lists do is weighed"


def test_lfilter_after_many_messages_weighs_one_for_all_its_habit(crowd):
    subscriptions, _ = crowd
    engine = LFilter(WORLD)
    engine.insert(subscriptions)
    habit = engine._views[0][3]
    short = batch([((0.0, 0.0), range(7))] * 2)
    habit.leaning[:], habit.since[0] = -_SURE, _ONE_IN
    assert engine_pairs(engine, short) == oracle_pairs(subscriptions, short)
    # the first is weighed, and no subscription begins with a term of it; the second follows its habit
    assert engine.choices[:2].tolist() == [0, 1] and habit.since[0] == 1


def test_lfilter_part_of_few_has_no_quadtree_and_answers_beside_one_that_has(crowd):
    subscriptions, groups = crowd
    engine = LFilter(WORLD)
    engine.insert(subscriptions.take(np.arange(11_600)))
    engine.insert(subscriptions.take(np.arange(11_600, 12_000)))
    assert ["branch" in part for part in engine._parts] == [True, False]
    for messages in groups.values():
        assert engine_pairs(engine, messages) == oracle_pairs(subscriptions, messages)
    engine.remove(engine.find(np.arange(11_600)))
    engine.insert(subscriptions.take(np.arange(100)))
    assert ["branch" in part for part in engine._parts] == [False, True], "when many are gone, few are many"


def test_lists_are_pruned_if_long_and_looked_through_if_short():
    assert pays_to_prune(20_000, 8, 10)
    assert not pays_to_prune(40, 8, 10)
    assert not pays_to_prune(2_000, 600, 600)


def test_trie_looks_at_fewer_than_quadtree_and_verifies_little_more_than_matches(crowd):
    subscriptions, groups = crowd
    work = {}
    for kind in PARTED:
        engine = kind(WORLD)
        engine.insert(subscriptions)
        work[kind] = engine.match(groups["point_short"])
    assert len({hits.matched for hits in work.values()}) == 1
    assert work[MbrTrie].scanned * 2 < work[PtQuadtree].scanned
    assert all(hits.verified < 2 * hits.matched for hits in work.values())


@pytest.mark.parametrize("kind", PARTED)
def test_parts_stay_few_and_go_when_they_are_empty(crowd, kind):
    subscriptions, groups = crowd
    subscriptions, messages = subscriptions.take(np.arange(3_000)), groups["range_long"]
    engine = kind(WORLD)
    for start in range(0, 3_000, 20):
        engine.insert(subscriptions.take(np.arange(start, start + 20)))
        assert engine.parts <= 5
    assert engine.parts > 1
    assert engine_pairs(engine, messages) == oracle_pairs(subscriptions, messages)
    # Some of the last ones only wait; all leave in another order than they came.
    for gone in np.array_split(np.random.default_rng(2).permutation(3_000), 7):
        engine.remove(engine.find(gone))
        left = subscriptions.take(np.flatnonzero(engine.contains(subscriptions.number)))
        assert engine_pairs(engine, messages) == oracle_pairs(left, messages)
    assert engine.parts == 0
    assert engine._tail.shape[0] == 0
    engine.insert(subscriptions)
    assert engine.parts == 1
    assert engine_pairs(engine, messages) == oracle_pairs(subscriptions, messages)


@pytest.mark.parametrize("kind", PARTED)
def test_region_of_two_boxes_leaves_with_both(kind):
    rows = [((170.0, -10.0, -170.0, 10.0), [1]), ((160.0, -20.0, 175.0, 20.0), [1])] * 30
    engine = kind(SPACE)
    engine.insert(table(rows))
    engine.remove(engine.find(np.arange(0, 20, 2)))
    column = engine._parts[0]["slot"]
    assert np.count_nonzero(column == GONE) == 20
    left = table(rows).take(np.flatnonzero(engine.contains(np.arange(60))))
    messages = batch([((-175.0, 0.0), [1]), ((172.0, 0.0), [1]), ((-180.0, -5.0, 180.0, 5.0), [1])])
    assert engine_pairs(engine, messages) == oracle_pairs(left, messages) != []


@pytest.mark.parametrize("kind", PARTED)
def test_tail_and_parts_tell_hits_in_the_order_of_messages(kind):
    rows = [(EVERYWHERE, [1])] * (3 * TAIL_CAPACITY)
    engine = kind(SPACE)
    engine.insert(table(rows[: 2 * TAIL_CAPACITY]))
    engine.insert(table(rows[: TAIL_CAPACITY // 2], first=2 * TAIL_CAPACITY))
    assert engine.parts == 1
    assert engine._tail.shape[0] == TAIL_CAPACITY // 2
    messages = batch([((0.0, 0.0), [1])] * 3_000)
    hits = engine.match(messages)
    assert hits.matched == 3_000 * (2 * TAIL_CAPACITY + TAIL_CAPACITY // 2)
    assert np.all(np.diff(hits.row) >= 0)
    assert hits.verified <= hits.scanned


@pytest.mark.parametrize("kind", PARTED)
def test_engine_made_of_the_table_of_one_with_parts_tail_and_gone_continues(crowd, kind):
    subscriptions, groups = crowd
    engine = kind(WORLD)
    engine.insert(subscriptions.take(np.arange(2_000)))
    engine.insert(subscriptions.take(np.arange(2_000, 2_100)))
    engine.insert(subscriptions.take(np.arange(2_100, 2_110)))
    engine.remove(engine.find(np.arange(0, 2_110, 5)))
    other = kind(WORLD)
    other.insert(engine.table())
    for each in (engine, other):
        each.remove(each.find(np.arange(1, 2_110, 5)))
        each.insert(subscriptions.take(np.arange(3_000, 3_500)))
    for messages in groups.values():
        assert engine_pairs(other, messages) == engine_pairs(engine, messages) != []


@pytest.mark.parametrize("kind", PARTED)
def test_subscription_of_many_keywords_among_long_texts_is_told_exactly(kind):
    rows = [(EVERYWHERE, range(n)) for n in (1, 4, 5, 40, 200)] * 20 + [(EVERYWHERE, [*range(39), 2**30])] * 20
    texts = [range(300), range(5), range(1, 300), [*range(0, 600, 2)], [*range(39), 2**30], [2**31 - 2]]
    messages = batch([((0.0, 0.0), text) for text in texts])
    engine = kind(SPACE)
    engine.insert(table(rows))
    assert engine_pairs(engine, messages) == oracle_pairs(table(rows), messages) != []


@pytest.mark.parametrize("kind", PARTED)
def test_memory_a_subscription_stays_small(crowd, kind):
    subscriptions, _ = crowd
    engine = kind(WORLD)
    for start in range(0, 12_000, 500):
        engine.insert(subscriptions.take(np.arange(start, start + 500)))
    assert engine.allocated_bytes() < (150 if kind is MbrTrie else 220) * 12_000


@pytest.mark.parametrize("kind", PARTED)
def test_engine_whose_boxes_moved_is_caught(crowd, wanted, kind):
    """The comparison with the oracle has teeth."""
    subscriptions, groups = crowd
    engine = kind(WORLD)
    engine.insert(subscriptions)
    engine._steps_per_degree *= 1.01
    assert engine_pairs(engine, groups["point_short"]) != wanted["point_short"]


@pytest.mark.parametrize("engine", PARTED)
def test_parts_grow_beside_subscriptions_that_need_one_keyword_of_several(engine):
    messages = batch([((20, 30), [term, term + 1]) for term in range(8)])
    added = [table([(EVERYWHERE, [t, t + 1])] * 300, first=300 * t, loose=[t % 2 == 0] * 300) for t in range(6)]
    wanted = sorted(pair for part in added for pair in oracle_pairs(part, messages))
    index = engine(SPACE)
    for part in added:
        index.insert(part)
    assert engine_pairs(index, messages) == wanted and len(wanted) > 1_000
