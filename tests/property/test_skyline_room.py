"""Skylines over a stream, every engine, against the oracle; and what is broken on purpose, which must be found out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.skyline.bnl import Bnl
from baselines.skyline.sweep import Sweep
from matching.kinds import KINDS
from matching.naive import Skyline
from matching.skyline.engine import SkylineOffers
from matching.skyline.engines.eager import Eager
from matching.skyline.engines.eager_star import EagerStar
from matching.skyline.results import UNDOMINATED, WAITS, remove_members
from matching.skyline.windows.grid import GridWindow
from papers.skyline.regions import compare_marked
from tests.support.examples import examples
from tests.support.skyline_worlds import Recipe, differences, expected, make_world, run

ENGINES = tuple(KINDS.named("skyline").engines)
RECIPES = {
    "count": Recipe(),
    "objects": Recipe(objects=30, deletes=0.1),
    "time_with_equal_and_late_lives": Recipe(window="time:60", late=12, tick=3),
    "late_objects": Recipe(window="time:60", late=12, tick=3, objects=30, deletes=0.1, grid=4),
    "two_words_long_window": Recipe(terms=2, objects=40, deletes=0.1, window="time:120", late=40),
    "batch_longer_than_window": Recipe(window="count:9", objects=12, deletes=0.2),
    "often_said_anew": Recipe(
        "count:150", batches=40, batch=8, terms=2, grid=None, objects=60, deletes=0.05, churn=0.1
    ),
    "no_ties": Recipe(grid=None, objects=40, ranges=0.0),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_skyline_room_over_random_worlds_equals_oracle(engine, recipe):
    for seed in range(3):
        window, turns = make_world(recipe, seed)
        wanted, updates = expected(window, turns)
        assert updates > 40, "a world in which nothing happens proves nothing"
        told = run(engine, window, turns, restore=3 if seed == 2 else 0, window_tasks=1 + seed % 2)
        assert not differences(told, wanted), f"seed {seed}"


@pytest.mark.parametrize("tree", ["mf_rtree", "il_quadtree"])
@pytest.mark.parametrize("engine", ["eager_star", "bnl"])
def test_skyline_room_over_a_tree_equals_oracle(engine, tree):
    for seed, name in enumerate(("late_objects", "objects")):
        window, turns = make_world(RECIPES[name], 20 + seed)
        told = run(engine, window, turns, restore=5, index=tree)
        assert not differences(told, expected(window, turns)[0])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    window=st.sampled_from(["count:1", "count:7", "count:80", "time:4", "time:50"]),
    batch=st.sampled_from([1, 4, 25]),
    terms=st.integers(1, 6),
    grid=st.sampled_from([None, 1, 3]),
    objects=st.sampled_from([0, 3, 20]),
    deletes=st.sampled_from([0.0, 0.3]),
    tick=st.sampled_from([1, 4]),
    late=st.sampled_from([0, 30]),
    restore=st.sampled_from([0, 1, 4]),
)
def test_skyline_room_any_world_equals_oracle(
    seed, window, batch, terms, grid, objects, deletes, tick, late, restore
):  # fmt: skip
    recipe = Recipe(window, 10, batch, 10, terms, grid, objects, deletes, tick, late)
    span, turns = make_world(recipe, seed)
    wanted, _ = expected(span, turns)
    for engine in examples(ENGINES[:1], ENGINES):
        told = run(engine, span, turns, restore)
        assert not differences(told, wanted), engine


class Impatient(EagerStar):
    """Right: asks the window at once."""

    def __init__(self, space):
        super().__init__(space, patient=False)


class NoRegions(Bnl):
    """Right: compares all with all."""

    def __init__(self, space):
        super().__init__(space, regions=False)


@pytest.mark.parametrize("engine", [Impatient, NoRegions])
def test_skyline_engine_with_its_switch_the_other_way_equals_oracle(engine):
    for seed, name in enumerate(RECIPES):
        window, turns = make_world(RECIPES[name], 40 + seed)
        assert not differences(run(engine, window, turns, restore=4), expected(window, turns)[0])


# ------------------------------------------------------------------------------------------------ broken on purpose


class PrunesOnlyTheSkyline(Eager):
    """Broken: an arrival does not drop what waits, which comes back when its first dominator has gone."""

    def _offer(self, offers):
        v = self.candidates.view
        for i in range(offers.slot.size):
            slot = offers.slot[i]
            block = slice(v.start[slot], v.start[slot] + v.count[slot]) if v.start[slot] >= 0 else slice(0, 0)
            waiting = np.flatnonzero(v.until[block] != UNDOMINATED) + block.start
            kept = {int(v.seq[at]): int(v.until[at]) for at in waiting}
            hidden = v.spatial[waiting].copy()
            v.spatial[waiting] = 2.0  # out of reach of every newcomer
            v.text[waiting], texts = -1.0, v.text[waiting].copy()
            super()._offer(SkylineOffers(*(column[i : i + 1] for column in offers)))
            v = self.candidates.view
            block = slice(v.start[slot], v.start[slot] + v.count[slot])
            for seq, spatial, text in zip(kept, hidden, texts, strict=True):
                at = block.start + int(np.flatnonzero(v.seq[block] == seq)[0])
                v.spatial[at], v.text[at], v.until[at] = spatial, text, kept[seq]


class NeverAddsTheUndominated(Eager):
    """Broken: who has no dominator waits for one to go."""

    def _offer(self, offers):
        known = self.candidates.view.seq[: self.candidates.view.used[0]].max(initial=-1)
        super()._offer(offers)
        v = self.candidates.view
        fresh = (v.seq > known) & (v.until == UNDOMINATED)
        v.until[fresh] = WAITS


class PromotedNeverExpire(Eager):
    """Broken: what joins the skyline by influence time is given no expiry."""

    def _expire(self, floor):
        v = self.candidates.view
        promoted = (v.until > UNDOMINATED) & (v.until <= floor)
        v.life[promoted] = WAITS
        super()._expire(floor)


class EventsTooLate(Eager):
    """Broken: events of a boundary are dealt with after its arrivals only at the next one."""

    def _expire(self, floor):
        super()._expire(floor - 1)


class ForgetsForEverybody(Sweep):
    """Broken: what one subscription has dropped is taken out of the window that all share."""

    def refill(self, slots, candidates, floor):
        best = self._best(candidates)
        super().refill(slots, candidates, floor)
        window = ForgettingWindow.latest
        window.ring.life[window._find(np.unique(candidates.seq[~best]))] = -(2**63)


class ForgettingWindow(GridWindow):
    latest: "ForgettingWindow"

    def __init__(self, space, kept_boundaries=0):
        super().__init__(space, kept_boundaries)
        ForgettingWindow.latest = self


class NothingComesBack(Eager):
    """Broken: an ended message is taken out and that is all."""

    def apply(self, offers, slots, seqs, floor):
        super().apply(offers, slots, seqs, floor)
        return np.zeros(0, np.int32)


class RepairsNoInfluenceTimes(EagerStar):
    """Broken: waits for the ones that stay as it waited for the ended one, and never looks at the window again."""

    def apply(self, offers, slots, seqs, floor):
        lost = np.empty(slots.size, np.int32)
        remove_members(self.candidates.view, slots, seqs, lost)
        return super().apply(offers, slots[:0], seqs[:0], floor)


class ForgetsToBeStale(EagerStar):
    """Broken: a repair that was put off is never made up for."""

    def apply(self, offers, slots, seqs, floor):
        told = super().apply(offers, slots, seqs, floor)
        self.stale[:] = WAITS
        return told


class LeavesPutByWhatLostItsCover(EagerStar):
    """Broken: newcomers that were put by stay there when the member that dominates them has gone."""

    def _settle(self, slots):
        pass


class NeverLooksAgainWhoTheMembersAre(EagerStar):
    """Broken: newcomers are put by because of members that have gone."""

    def apply(self, offers, slots, seqs, floor):
        before = self._tails.reals.copy()
        told = super().apply(offers, slots, seqs, floor)
        known = before[:, 2] >= 0.0
        self._tails.reals[known, 2:8] = before[known, 2:8]
        return told


class EqualsBeatEachOther(Sweep):
    """Broken: of messages with equal relevances only one stays."""

    def _best(self, candidates):
        best = super()._best(candidates)
        for a, b in zip(candidates.offsets, candidates.offsets[1:], strict=False):
            seen = set()
            for i in range(a, b):
                pair = (candidates.spatial[i], candidates.text[i])
                best[i] = best[i] and pair not in seen
                if best[i]:
                    seen.add(pair)
        return best


BROKEN = {
    PrunesOnlyTheSkyline: "count",
    NeverAddsTheUndominated: "count",
    PromotedNeverExpire: "count",
    EventsTooLate: "count",
    ForgetsForEverybody: "count",
    NothingComesBack: "objects",
    RepairsNoInfluenceTimes: "objects",
    ForgetsToBeStale: "often_said_anew",
    LeavesPutByWhatLostItsCover: "count",
    NeverLooksAgainWhoTheMembersAre: "count",
    EqualsBeatEachOther: "count",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda engine: engine.__name__)
def test_skyline_engine_broken_on_purpose_is_found_out(broken):
    window = ForgettingWindow if broken is ForgetsForEverybody else GridWindow
    for seed in range(4):
        span, turns = make_world(RECIPES[BROKEN[broken]], seed)
        try:
            told = run(broken, span, turns, index=window)
        except (IndexError, AssertionError):
            return
        if differences(told, expected(span, turns)[0]):
            return
    pytest.fail(f"{broken.__name__} went unnoticed")


class OnlyOneOfEqualsStays(Skyline):
    """An oracle that lets coincident messages beat each other."""

    def ranked(self, floor):
        rows = super().ranked(floor)
        return [row for i, row in enumerate(rows) if all(row[1:] != other[1:] for other in rows[:i])]


def test_skyline_oracle_broken_on_purpose_differs_from_every_engine():
    span, turns = make_world(RECIPES["count"], 0)
    wanted, _ = expected(span, turns, OnlyOneOfEqualsStays)
    for engine in examples(ENGINES[:1], ENGINES):
        assert differences(run(engine, span, turns), wanted)


def best_by_rectangle(spatial, text, inner):
    """The printed region step, which takes what lies in an inner rectangle for the nearest."""
    best = np.zeros(spatial.size, np.bool_)
    compare_marked(spatial, text, inner.astype(np.int8), best)
    highest = text[best].max(initial=-1.0)
    compare_marked(spatial, text, (~inner & (text > highest)).astype(np.int8), best)
    return best


def test_region_step_with_a_rectangle_loses_and_invents_results_which_a_disc_does_not():
    rng = np.random.default_rng(5)
    missing = extra = 0
    for _ in range(300):
        place = rng.uniform(-0.35, 0.35, (40, 2))
        spatial = 1.0 - np.hypot(place[:, 0], place[:, 1]) / np.hypot(1.0, 0.6)
        text = rng.integers(1, 7, 40) / 6.0
        beats = (spatial[:, None] >= spatial) & (text[:, None] >= text)
        beats &= (spatial[:, None] > spatial) | (text[:, None] > text)
        right = ~beats.any(axis=0)
        disc = best_by_rectangle(spatial, text, spatial >= 0.8)
        assert np.array_equal(disc, right)
        rectangle = best_by_rectangle(spatial, text, (abs(place[:, 0]) <= 0.2) & (abs(place[:, 1]) <= 0.12))
        missing += int((right & ~rectangle).any())
        extra += int((rectangle & ~right).any())
    assert missing > 5 and extra > 5
