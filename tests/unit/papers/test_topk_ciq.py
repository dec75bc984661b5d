"""Engine `ciq` of `topk` where its rules bite, against the oracle and a plain index; what holds of its lists."""

import numpy as np
import pytest

from baselines.topk.inverted_file import TopkInvertedFile
from benchmarks.driving import Tasks, kind_of
from matching.model import TOPK
from matching.naive_rows import tally
from papers.ciq.cell_bounds import is_spatial
from papers.ciq.topk import CiqTopk
from tests.support.celled import cells_of, check_blocks, check_cells
from tests.support.worlds import SPACE, Recipe, make_world

#: The first of an engine compiles it.
pytestmark = pytest.mark.wide


class Cramped(CiqTopk):
    """Cells for next to nothing, tiny blocks, and associated anew whenever a threshold rises."""

    name = "cramped"
    depth, buckets, block, delta, rise = 3, 4, 2, 1e-4, 0.0


class CrampedH(Cramped):
    """By the heuristic, and associated anew only when a threshold falls."""

    name = "cramped_h"
    block, rise, by_cost = 1, 1e18, False


#: Grids of a power of two put points on the borders of cells.
RECIPES = {
    "borders": {"grid": 4, "alphas": (0.25, 0.5, 0.75), "terms": 4},
    "one_place_many_words": {"grid": 1, "terms": 3, "largest_k": 2},
    "place_alone": {"alphas": (1.0,), "grid": 8, "terms": 4},
    "nearly_place_alone": {"alphas": (1.0 - 1e-5, 1.0 - 1e-7, 1.0 - 2.0**-53), "terms": 4},
    "text_alone": {"alphas": (0.0,), "terms": 5},
    "short_window": {"window": "count:9", "terms": 4, "largest_k": 2, "batch": 4},
    "late_messages": {"window": "time:15", "late_s": 60.0, "terms": 4, "grid": 3},
    "comings_and_goings": {"churn": 1.0, "subscriptions": 10, "terms": 3, "largest_k": 2, "batch": 4},
    "many_thresholds": {"terms": 2, "largest_k": 1, "subscriptions": 90},
}


def scaled_by(threshold: float, alpha: float) -> float:
    """What bounds have of a threshold."""
    return threshold if is_spatial(alpha) else threshold / (1.0 - alpha)


def check_lists(engine: CiqTopk) -> None:
    """What has to hold between any two batches; whoever has no threshold stands at the root."""
    check_cells(engine)
    check_blocks(engine, scaled_by)
    for slot, cells in cells_of(engine).items():
        if engine.subscriptions.columns.threshold[slot] == -np.inf:
            assert cells == [0]


def found_by(engine, messages, most_hits: int = 1 << 21) -> list[tuple[int, int, float]]:
    """Hits as (subscription, row, score), rows in ascending order, part by part."""
    number, row, hits = engine.subscriptions.columns.number, 0, []
    while row < len(messages):
        part = engine.match(messages, row, most_hits)
        assert np.all(np.diff(part.row) >= 0) and part.next_row > row
        hits += zip(number[part.slot].tolist(), part.row.tolist(), part.scores[0].tolist(), strict=True)
        row = part.next_row
    assert len(set(hits)) == len(hits), "a pair came twice"
    return sorted(hits)


@pytest.mark.parametrize("engine", [Cramped, CrampedH], ids=["cramped", "cramped_h"])
@pytest.mark.parametrize(
    "seeds", [pytest.param(range(4), id="few"), pytest.param(range(4, 60), id="many", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("name", RECIPES)
def test_topk_ciq_where_its_rules_bite_equals_oracle(engine, name, seeds):
    for seed in seeds:
        world = make_world(Recipe(kinds=(TOPK,), **RECIPES[name]), seed)
        tasks = Tasks(kind_of("topk", engine), SPACE, world.window)
        expected, _ = world.expected()
        for number, (boundary, messages, changes) in enumerate(world.batches):
            got = tally(tasks.process(boundary, messages, changes.added, changes.removed).updates)
            assert got == expected[number], f"seed {seed}, batch {number}"
            if number % 4 == 0:
                check_lists(tasks.operator.engine)


@pytest.mark.parametrize("posted_share", [1.0, 0.5])
@pytest.mark.parametrize("grid", [None, 3])
def test_topk_ciq_finds_what_a_plain_index_finds_while_thresholds_rise_and_fall(posted_share, grid):
    rng = np.random.default_rng(7)
    world = make_world(Recipe(kinds=(TOPK,), terms=6, subscriptions=80, messages=200, batch=40, grid=grid), 8)
    table = world.batches[0][2].added
    posted = None if posted_share == 1.0 else rng.random(table.terms.shape[0]) < posted_share
    engines = [Cramped(SPACE), CrampedH(SPACE), TopkInvertedFile(SPACE)]
    slots = engines[0].insert(table, posted)
    for engine in engines[1:]:
        assert np.array_equal(engine.insert(table, posted), slots)
    expected, hits = [], 0
    for _, messages, _ in world.batches * 6:
        some = rng.permutation(slots)[: slots.size * 2 // 3]
        thresholds = np.where(rng.random(some.size) < 0.2, -np.inf, rng.random(some.size))
        if expected:  # exact scores of pairs that were found: a tie is a hit
            scores = np.array([score for *_, score in expected])
            thresholds[::3] = rng.choice(scores, thresholds[::3].size)
        for engine in engines:
            engine.set_thresholds(some, thresholds)
        expected = found_by(engines[2], messages)
        hits += len(expected)
        for engine in engines[:2]:
            assert found_by(engine, messages) == expected
            assert found_by(engine, messages, most_hits=5) == expected
            check_lists(engine)
    assert hits > 1000
    gone = slots[::2]
    for engine in engines:
        engine.withdraw(gone)
    assert all(found_by(engine, messages) == found_by(engines[2], messages) for engine in engines[:2])
    for engine in engines[:2]:
        engine.release(gone)
        check_lists(engine)


def test_topk_ciq_spreads_by_cost_and_skips_what_blocks_without_cells_do_not():
    world = make_world(Recipe(kinds=(TOPK,), terms=4, subscriptions=400, messages=400, alphas=(0.6, 0.8), churn=0), 2)
    plain, engine = TopkInvertedFile(SPACE), CiqTopk(SPACE)
    for each in (plain, engine):
        slots = each.insert(world.batches[0][2].added)
        each.set_thresholds(slots, 0.75)
    assert max(len(cells) for cells in cells_of(engine).values()) >= 4
    messages = world.batches[-1][1]
    assert found_by(engine, messages) == found_by(plain, messages)
    ours, all_of_them = engine.match(messages), plain.match(messages)
    assert ours.scanned < 0.7 * all_of_them.scanned and ours.verified < 0.5 * all_of_them.verified


def test_topk_ciq_meets_a_subscription_of_several_keywords_once():
    world = make_world(Recipe(kinds=(TOPK,), terms=3), 4)
    _, messages, changes = world.batches[0]
    engine = Cramped(SPACE)
    slots = engine.insert(changes.added)
    c, postings, pairs = engine.subscriptions.columns, 0, 0
    for slot in slots:
        terms = c.terms[c.term_start[slot] : c.term_start[slot] + c.term_count[slot]]
        for row in range(len(messages)):
            shared = np.isin(messages.terms[messages.term_offsets[row] : messages.term_offsets[row + 1]], terms).sum()
            postings, pairs = postings + shared, pairs + (shared > 0)
    hits = engine.match(messages)
    assert (hits.scanned, hits.verified, hits.slot.size) == (postings, pairs, pairs) and postings > pairs
