"""Window indexes of skyline subscriptions against plain Python: batches, queries, snapshots; and broken on purpose."""

from collections import deque

import numpy as np
import pytest

from baselines.skyline.i3 import I3
from baselines.skyline.il_quadtree import IlQuadtree
from matching.errors import ConfigError, EngineError
from matching.kinds import KINDS
from matching.model import MessageBatch, concatenate, empty
from matching.skyline.window import SkylineQueries
from matching.window import NO_FLOOR, Boundary
from papers.skyline import filters as cuckoo
from papers.skyline.mf_rtree import MfRtree, MfRtreePaper
from papers.skyline.mf_search import search
from tests.support.skyline_invariants import check
from tests.support.skyline_streams import (
    MANY_COUNTRIES,
    SPACE,
    TREES,
    Model,
    Recipe,
    differences,
    make_queries,
    make_steps,
    messages_at,
    run,
)

VARIANTS = {
    **{name: (tree, {}) for name, tree in TREES.items()},
    "mf_rtree_paper_all": (MfRtreePaper, {"cleaning": "all"}),
    "mf_rtree_paper_off": (MfRtreePaper, {"cleaning": "off"}),
}
GENTLE = Recipe()
RECIPES = {
    "moving_objects": GENTLE,
    "lone_messages": Recipe(objects=0),
    "coincident_points": Recipe(grid=1, objects=0, window=300, spread=1.0, most_terms=2, deletes=0.3),
    "late_messages": Recipe(late=60, objects=60),
    "few_objects_many_versions": Recipe(objects=5, batch=12, window=400, batches=30),
    "batch_longer_than_window": Recipe(window=20, objects=0),
    "higher_trees": Recipe(9, 400, 2_500, 60, 8, grid=None, objects=0, late=100, drift=0.4),
    "many_countries": MANY_COUNTRIES,
    "higher_trees_of_objects": Recipe(9, 400, 2_500, 60, 8, grid=64, objects=1_500, deletes=0.2),
}
#: Operations that `BUSY` costs each index, as they were when the figures were drawn.
BUSY = Recipe(8, 300, 1_200, 60, 8, grid=None, objects=600)
OPERATIONS = {
    "mf_rtree": 15_396,
    "mf_rtree_paper": 43_557,
    "ir_tree": 38_667,
    "il_quadtree": 51_817,
    "i3": 24_320,
    "inverted_kd": 38_381,
}


@pytest.mark.parametrize("kept", [0, 3])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_tree_over_random_streams_equals_plain_python(variant, recipe, kept):
    told, compared, window = run(variant, recipe, 1, kept=kept)
    assert not told, told[:3]
    assert compared > 10, "queries that find nothing prove nothing"
    check(window)


@pytest.mark.parametrize("name", TREES)
def test_tree_without_object_numbers_equals_plain_python(name):
    told, compared, window = run((TREES[name], {}), GENTLE, 2, objects=False)
    assert not told and compared > 20
    check(window)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_tree_emptied_by_expiry_is_as_new_and_fills_again(variant):
    recipe = Recipe(4, 300, 10_000, 40, 8, grid=None, objects=0)
    window = run(variant, recipe, 3)[2]
    floor, number, seq = 10**6, 4, 1_200
    for _ in range(3):  # the cursor goes round once for every few arrivals
        late = messages_at(np.random.default_rng(number), recipe, np.arange(seq, seq + 900), np.full(900, floor + 1))
        window.store(Boundary(number, seq, seq + 899, floor), late, np.zeros(0, np.int64), late.seq)
        assert len(window) == 900
        floor, number, seq = floor + 1, number + 1, seq + 900
        window.store(Boundary(number, seq, seq - 1, floor), empty(MessageBatch), np.zeros(0, np.int64))
        assert len(window) == 0
        number += 1
        check(window)
    everywhere = SkylineQueries(np.array([[-180.0, -90, 180, 90]]), np.array([0, 40]), np.arange(40, dtype=np.int32))
    assert window.candidates(everywhere).seq.size == 0
    if isinstance(window, MfRtree) and window.bounded:
        window.clean()
        assert len(window.log) == 0 and window.mf.memo.meta[0] == 0 and window.mf.tree.meta[3] == 1
    elif not isinstance(window, MfRtree):
        assert len(window.log) == 0
        tables = {IlQuadtree: lambda: window.trees.table.count, I3: lambda: window.pages.table.count}
        assert tables.get(type(window), lambda: window.lists.meta)()[0] == 0


@pytest.mark.wide
def test_mf_rtree_cleaned_whole_has_an_empty_memo():
    _, _, window = run((MfRtree, {"bounded": False}), Recipe(6, 300, 800, 40, 8, grid=None, objects=400), 4)
    assert window.mf.memo.meta[0] > 0 and len(window.log) > len(window)
    window.clean()
    assert window.mf.memo.meta[0] == 0 and len(window.log) == len(window) > 0
    check(window)


@pytest.mark.parametrize("name", TREES)
def test_tree_with_more_candidates_than_room_at_first_finds_all(name):
    rng, recipe = np.random.default_rng(5), Recipe(terms=2, most_terms=2)
    messages = messages_at(rng, recipe, np.arange(1_500), np.arange(1_500))
    window, model = TREES[name](SPACE), Model()
    window.store(Boundary(0, 0, 1_499, NO_FLOOR), messages, np.zeros(0, np.int64))
    model.messages = {m.seq: m for m in Model.read(messages)}
    region = np.array([[-9.0, -9, 9, 9], [50, 50, 60, 60], [-9, -9, 9, 9]])
    queries = SkylineQueries(region, np.array([0, 2, 4, 5]), np.array([0, 1, 0, 1, 0], np.int32))
    told, compared = differences(window, model, queries)
    assert not told and compared > 1_000


@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("name", TREES)
def test_tree_ended_twice_or_unknown_is_passed_over(name, kept):
    steps = make_steps(Recipe(batches=6, objects=0, window=60), 6)
    window, model = TREES[name](SPACE, kept), Model()
    every = np.zeros(0, np.int64)
    for step in steps:
        every = np.concatenate([every, step.ended])
        again = np.concatenate([every, step.ended, [10**9], np.arange(0, step.boundary.first_seq, 7)])
        window.store(step.boundary, step.messages, again)
        model.store(type(step)(step.boundary, step.messages, again, step.objects))
        for as_of in window.known:
            told, _ = differences(window, model, make_queries(Recipe(), step.boundary.number, 10), as_of)
            assert not told
        assert len(window) == len(model.live)
        check(window)


# ------------------------------------------------------------------------------------------------- what is promised


def test_mf_rtree_bounded_holds_little_more_than_what_lives():
    recipe = Recipe(24, 300, 1_500, 60, 8, grid=None, objects=0, drift=3.0)  # the stream leaves its leaves behind
    held = {bounded: len(run((MfRtree, {"bounded": bounded}), recipe, 7)[2].log) for bounded in (True, False)}
    assert held[True] < 2_000 and held[False] > 4_000


@pytest.mark.wide
def test_mf_rtree_updates_touch_less_than_those_of_other_trees():
    work = {name: run((tree, {}), BUSY, 8)[2].work().operations for name, tree in TREES.items()}
    assert work == OPERATIONS
    others = [operations for name, operations in work.items() if not name.startswith("mf_rtree")]
    assert work["mf_rtree"] * 3 < min(others) * 2


@pytest.mark.parametrize("name", TREES)
def test_tree_asked_for_rare_things_looks_at_few_messages(name):
    recipe = Recipe(8, 400, 4_000, 300, 6, grid=None, objects=0, deletes=0.0)
    _, _, window = run((TREES[name], {}), recipe, 9)
    before = window.work()
    narrow = SkylineQueries(np.array([[0.0, 0.0, 0.4, 0.4]]), np.array([0, 2]), np.array([5, 7], np.int32))
    window.candidates(narrow)
    assert window.work().checked - before.checked < 400
    nowhere = SkylineQueries(np.array([[-180.0, -90, 180, 90]]), np.array([0, 1]), np.array([10**6], np.int32))
    before = window.work()
    assert window.candidates(nowhere).seq.size == 0
    assert window.work().checked - before.checked < 400, "keywords prune nothing"


@pytest.mark.parametrize("name", TREES)
def test_tree_that_keeps_boundaries_does_the_same_work_a_little_later(name):
    now, later = TREES[name](SPACE), TREES[name](SPACE, 2)
    for step in make_steps(Recipe(40, 50, 1_200, 60, 8, grid=None, objects=600), 8):
        for window in (now, later):
            window.store(step.boundary, step.messages, step.ended, step.objects)
    assert 0.9 < later.work().operations / now.work().operations < 1.15


def test_mf_rtree_threshold_is_the_papers_formula():
    assert MfRtree(SPACE, arrival_rate_per_s=0).clean_threshold() == 12  # 40 * 0.2 * 7/8 + 5
    assert MfRtree(SPACE, arrival_rate_per_s=1_000).clean_threshold() == 15
    assert MfRtree(SPACE, arrival_rate_per_s=10**9).clean_threshold() == 44


@pytest.mark.parametrize("kept", [0, 3])
@pytest.mark.parametrize("cleaning", ["threshold", "all"])
def test_mf_rtree_keeps_versions_of_an_object_up_to_the_threshold(cleaning, kept):
    window = MfRtree(SPACE, kept, cleaning=cleaning, bounded=False)
    rng, recipe = np.random.default_rng(0), Recipe(most_terms=3)
    held = []
    for seq in range(40):
        one = messages_at(rng, recipe, np.array([seq]), np.array([seq]))
        ended = np.array([seq - 1] if seq else [], np.int64)
        window.store(Boundary(seq, seq, seq, NO_FLOOR), one, ended, np.zeros(1, np.int64))
        held.append(len(window.log))
        check(window)
    assert len(window) == 1
    assert max(held) == kept + (1 if cleaning == "all" else window.clean_threshold() + 1)


# ------------------------------------------------------------------------------------------------------ bad states


def batch(first: int, count: int) -> MessageBatch:
    seq = np.arange(first, first + count)
    return messages_at(np.random.default_rng(first), Recipe(), seq, seq)


@pytest.mark.parametrize(
    ("boundary", "messages", "objects", "says"),
    [
        (Boundary(2, 5, 9, NO_FLOOR), batch(5, 5), None, "batch 2 cannot follow batch 0"),
        (Boundary(1, 5, 9, NO_FLOOR - 1), batch(5, 5), None, "floor"),
        (Boundary(1, 5, 9, NO_FLOOR), batch(4, 5), None, "ascend from seq 5"),
        (Boundary(1, 5, 9, NO_FLOOR), concatenate([batch(7, 2), batch(5, 2)]), None, "ascend"),
        (Boundary(1, 5, 9, NO_FLOOR), batch(6, 5), None, "message 10 of batch 1 comes after 9"),
        (Boundary(1, 5, 9, NO_FLOOR), batch(5, 5), np.arange(5), "for every batch or for none"),
    ],
)
@pytest.mark.parametrize("name", ["mf_rtree", "i3"])
def test_tree_given_what_does_not_follow_raises(name, boundary, messages, objects, says):
    window = TREES[name](SPACE)
    window.store(Boundary(0, 0, 4, NO_FLOOR), batch(0, 5), np.zeros(0, np.int64))
    with pytest.raises(EngineError, match=says):
        window.store(boundary, messages, np.zeros(0, np.int64), objects)


@pytest.mark.parametrize("kept", [0, 2])
def test_mf_rtree_with_two_live_versions_of_an_object_raises(kept):
    window = MfRtree(SPACE, kept, cleaning="all")
    with pytest.raises(EngineError, match="two versions of an object"):
        for number in range(3 + kept):
            boundary = Boundary(number, 5 * number, 5 * number + 4, NO_FLOOR)
            window.store(boundary, batch(5 * number, 5), np.zeros(0, np.int64), np.zeros(5, np.int64))


def test_tree_of_an_unknown_name_or_cleaning_is_refused():
    with pytest.raises(ConfigError, match="mf_rtree_paper, ir_tree"):
        KINDS.named("skyline").window("nothing")
    with pytest.raises(ConfigError, match="threshold, all, off"):
        MfRtree(SPACE, cleaning="sometimes")


# ----------------------------------------------------------------------------------------------- broken on purpose


class ForgetsReferences(MfRtreePaper):
    """Broken: a leaf's filter does not count how many messages have a keyword."""

    def store(self, boundary, messages, ended, objects=None):
        super().store(boundary, messages, ended, objects)
        tree, nodes, _, words = self.mf.tree, self.mf.nodes, self.mf.memo, self.mf.filters.words
        for leaf in np.flatnonzero((tree.level == 0) & (nodes.bits >= 0)):
            for bucket in range(nodes.start[leaf], nodes.start[leaf] + (1 << nodes.bits[leaf])):
                for place in range(0, 60, 15):
                    if (words[bucket] >> place) & 1023:
                        words[bucket] &= ~(np.int64(31) << (place + 10))
                        words[bucket] |= np.int64(1) << (place + 10)


class TrustsTheTop(MfRtree):
    """Broken: takes the newest version in a leaf for the newest of all."""

    def candidates(self, queries, as_of=None):
        place = self._place
        self._place = np.zeros_like(place)
        try:
            return super().candidates(queries, as_of)
        finally:
            self._place = place


class DeletesAbove(MfRtree):
    """Broken: removed keywords are taken out of inner filters too, where nobody counts them."""

    def store(self, boundary, messages, ended, objects=None):
        super().store(boundary, messages, ended, objects)
        tree, nodes = self.mf.tree, self.mf.nodes
        for node in np.flatnonzero((tree.level > 0) & (nodes.bits >= 0)):
            self.mf.filters.words[nodes.start[node]] = 0


class LooksAtTheNewestOnly(MfRtree):
    """Broken: takes the newest version in a leaf for the one that lived at any boundary."""

    def _search(self, as_of, region, offsets, terms, first, ends, found):
        asked = (as_of, False, region, offsets, terms)
        return search(self.mf, self.log.view, self._place, *asked, first, ends, found, self._visits)


class CleansThePast(MfRtree):
    """Broken: takes messages that ended out of the tree although somebody may still ask about them."""

    def _due(self):
        told, self._late_ends = [slots for _, slots in self._late_ends], deque()
        return np.concatenate([np.zeros(0, np.int32), *told])


@pytest.mark.parametrize(
    ("broken", "recipe"),
    [
        (LooksAtTheNewestOnly, Recipe(objects=5, batch=12, window=400, batches=30, grid=1, spread=1.0)),
        (CleansThePast, GENTLE),
    ],
)
def test_tree_with_a_past_broken_on_purpose_is_found_out(broken, recipe):
    assert not run((broken.__base__, {}), recipe, 11, kept=3)[0]
    assert run((broken, {}), recipe, 11, kept=3)[0], f"{broken.__name__} went unnoticed"


@pytest.mark.parametrize(
    ("broken", "options"),
    [
        (ForgetsReferences, {"cleaning": "all"}),
        (TrustsTheTop, {"bounded": False}),
        (DeletesAbove, {}),
    ],
)
def test_mf_rtree_broken_on_purpose_is_found_out(broken, options):
    recipe = Recipe(20, 90, 1_000, 30, 4, grid=None, objects=500)
    assert not run((broken.__base__, options), recipe, 10)[0]
    told, _, window = run((broken, options), recipe, 10)
    assert told, f"{broken.__name__} went unnoticed"
    if broken is not TrustsTheTop:
        with pytest.raises(AssertionError):
            check(window)


# ----------------------------------------------------------------------------------------------------- the filters


@pytest.mark.parametrize("shape", [cuckoo.FOUR, cuckoo.SIX], ids=["four", "six"])
def test_filter_up_to_its_fill_never_denies_and_seldom_affirms(shape):
    bits, rng = 6, np.random.default_rng(0)
    words = np.zeros(100 + (1 << bits), np.int64)
    terms = rng.permutation(100_000)[: int(cuckoo.FULLEST * shape[0] * (1 << bits))]
    answers = [cuckoo.add(words, 100, bits, cuckoo.hash_term(term), shape) for term in terms.tolist()]
    assert set(answers) <= {0, 1} and sum(answers) > 0.98 * len(answers)
    assert all(cuckoo.may_contain(words, 100, bits, cuckoo.hash_term(term), shape) for term in terms.tolist())
    others = [cuckoo.may_contain(words, 100, bits, cuckoo.hash_term(t), shape) for t in range(200_000, 210_000)]
    assert 0 < sum(others) / len(others) < 2.5 * 2 * shape[0] / 1024
    if shape == cuckoo.SIX:  # all places at once, the same answers
        asked = [*terms.tolist(), *range(200_000, 210_000)]
        at_once = [cuckoo.contains(words, 100, bits, cuckoo.hash_term(term)) for term in asked]
        assert at_once == [True] * terms.size + others
    assert not words[:100].any() and (words >= 0).all()


def test_filter_of_a_leaf_counts_references_and_a_full_count_stays():
    words = np.zeros(4, np.int64)
    once, twice, often = (cuckoo.hash_term(term) for term in (1, 2, 3))
    for hashed, times in ((once, 1), (twice, 2), (often, 40)):
        for _ in range(times):
            cuckoo.add(words, 0, 2, hashed, cuckoo.FOUR)

    def held(hashed):
        return cuckoo.may_contain(words, 0, 2, hashed, cuckoo.FOUR)

    assert cuckoo.remove_entry(words, 0, 2, once) and not held(once)
    assert not cuckoo.remove_entry(words, 0, 2, twice) and held(twice)
    assert cuckoo.remove_entry(words, 0, 2, twice) and not held(twice)
    assert not any(cuckoo.remove_entry(words, 0, 2, often) for _ in range(40)) and held(often)


def test_filter_that_overflows_says_so():
    words = np.zeros(1, np.int64)
    answers = [cuckoo.add(words, 0, 0, cuckoo.hash_term(term), cuckoo.FOUR) for term in range(5)]
    assert answers == [1, 1, 1, 1, -1]
