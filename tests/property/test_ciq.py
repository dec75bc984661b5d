"""Engine `ciq` of `decay` and its opponents where their rules bite, against the oracle; what holds of their lists."""

import numpy as np
import pytest

from baselines.decay.inverted_file import DecayInvertedFile
from benchmarks.driving import Tasks, kind_of
from matching.half_life import LONGEST_HALF_LIFE_S, SHORTEST_HALF_LIFE_S, DecayParameters
from matching.model import DECAY, KEYWORDS_BY_KIND, MessageBatch, SubscriptionTable
from matching.naive_rows import tally
from papers.ciq.block_inverted_file import BlockInvertedFile
from papers.ciq.ciq import Ciq
from papers.ciq.ciq_paper import BifPaper, CiqHPaper, CiqPaper, IflPaper
from tests.support.celled import Cramped, CrampedH, cells_of, check_blocks, check_cells
from tests.support.worlds import SPACE, Recipe, make_world

#: The first of an engine compiles it.
pytestmark = pytest.mark.wide


class MostBuckets(Cramped):
    """As many buckets as there may be."""

    name = "most_buckets"
    buckets, width = 126, 0.01


class SmallBlocks(BlockInvertedFile):
    """The block inverted file with blocks of two."""

    name = "small_blocks"
    block = 2


class SmallPaper(CiqPaper):
    """What is printed, with cells for next to nothing and tiny blocks."""

    name = "small_paper"
    depth, buckets, block, delta, rise = 3, 4, 2, 0.01, 0.0


class SmallHPaper(CiqHPaper):
    """The printed heuristic with tiny blocks."""

    name = "small_h_paper"
    depth, buckets, block, rise = 3, 4, 2, 0.0


class SmallBif(BifPaper):
    """Its opponent with tiny blocks."""

    name = "small_bif"
    block = 2


ENGINES = (Cramped, CrampedH, SmallBlocks, DecayInvertedFile, SmallPaper, SmallHPaper, SmallBif, IflPaper)
#: Grids of a power of two put points on the borders of cells.
RECIPES = {
    "borders": {"grid": 4, "alphas": (0.25, 0.5, 0.75), "terms": 4},
    "one_place_many_words": {"grid": 1, "terms": 3, "largest_k": 2},
    "place_alone": {"alphas": (1.0,), "grid": 8, "terms": 4},
    "nearly_place_alone": {"alphas": (1.0 - 1e-5, 1.0 - 1e-7, 1.0 - 2.0**-53), "terms": 4},
    "text_alone": {"alphas": (0.0,), "terms": 5},
    "half_life_of_a_second": {"half_life_s": 1.0, "terms": 4, "largest_k": 2},
    "half_life_of_a_millisecond": {"half_life_s": 1e-3, "late_s": 500.0, "terms": 3, "largest_k": 2},
    "half_life_of_a_microsecond": {"half_life_s": SHORTEST_HALF_LIFE_S, "late_s": 500.0, "terms": 3, "largest_k": 2},
    "half_life_of_ages": {"half_life_s": LONGEST_HALF_LIFE_S, "terms": 4},
    "half_life_of_ten_years": {"half_life_s": 3.2e8, "grid": 4, "terms": 4},
    "very_late_messages": {"late_s": 500.0, "half_life_s": 2.0, "terms": 4},
    "equal_times": {"late_s": 0.0, "half_life_s": 1e6, "grid": 2, "terms": 4},
    "k_beyond_the_stream": {"largest_k": 400, "terms": 4},
    "comings_and_goings": {"churn": 1.0, "subscriptions": 10, "terms": 3, "largest_k": 2, "batch": 4},
    "many_thresholds": {"terms": 2, "largest_k": 1, "subscriptions": 90},
    "no_smoothing": {"smoothing": 0.0, "terms": 3, "largest_k": 2},
}
#: Seeds that CI waits for, and all others.
SEEDS = [pytest.param(range(4), id="few"), pytest.param(range(4, 200), id="many", marks=pytest.mark.long)]


def run(engine, recipe, seed):
    """Put a world through an engine, and check answers and lists at every boundary."""
    world = make_world(Recipe(kinds=(DECAY,), **recipe), seed)
    tasks = Tasks(kind_of("decay", engine), SPACE, world.window, fading=world.fading)
    expected, _ = world.expected()
    for number, (boundary, messages, changes) in enumerate(world.batches):
        got = tally(tasks.process(boundary, messages, changes.added, changes.removed).updates)
        assert got == expected[number], f"seed {seed}, batch {number}"
        if hasattr(tasks.operator.engine, "lists") and (number % 4 == 0 or len(messages) > 10):
            check_cells(tasks.operator.engine)
            check_blocks(tasks.operator.engine)
    return tasks.operator.engine


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_engine_where_its_rules_bite_equals_oracle(engine, name, seeds):
    for seed in seeds:
        run(engine, RECIPES[name], seed)


@pytest.mark.parametrize("name", ["borders", "place_alone", "k_beyond_the_stream"])
def test_engine_with_as_many_buckets_as_there_may_be_equals_oracle(name):
    run(MostBuckets, RECIPES[name], 1)


def test_engine_spreads_over_cells_and_does_so_anew_as_thresholds_rise():
    engine = run(Cramped, RECIPES["many_thresholds"], 3)
    cells = cells_of(engine)
    full = [slot for slot in cells if engine.subscriptions.columns.threshold[slot] > -np.inf]
    assert max(len(cells[slot]) for slot in full) > 4
    assert int(engine.lists.view.used[4]) > 0, "none was associated anew"


def test_engine_meets_a_subscription_of_several_keywords_once():
    world = make_world(Recipe(kinds=(DECAY,), terms=3), 4)
    _, messages, changes = world.batches[0]
    engine = Cramped(SPACE, world.fading)
    nobody_full = {"k": np.full(len(changes.added), 900, np.int32)}
    slots = engine.insert(SubscriptionTable(**changes.added._asdict() | nobody_full))
    engine.best.begin_batch(0, 0)
    c, postings, pairs = engine.subscriptions.columns, 0, 0
    for slot in slots:
        terms = c.terms[c.term_start[slot] : c.term_start[slot] + c.term_count[slot]]
        for row in range(len(messages)):
            shared = np.isin(messages.terms[messages.term_offsets[row] : messages.term_offsets[row + 1]], terms).sum()
            postings, pairs = postings + shared, pairs + (shared > 0)
    assert engine.match(messages).matched == pairs
    # a second time nothing changes, and so no message is begun anew for want of room
    work = engine.match(messages)
    assert (work.scanned, work.verified, work.matched) == (postings, pairs, 0)
    assert postings > pairs


def test_engine_with_too_few_results_stands_at_the_root():
    engine = run(Cramped, RECIPES["k_beyond_the_stream"], 1)
    for slot, cells in cells_of(engine).items():
        if engine.subscriptions.columns.threshold[slot] == -np.inf:
            assert cells == [0]


def test_engine_skips_blocks():
    # guards against bounds that never skip: a broken one of those would give right answers
    recipe = {"terms": 4, "subscriptions": 400, "messages": 400, "alphas": (0.6, 0.8, 0.9), "half_life_s": 1e6}
    world = make_world(Recipe(kinds=(DECAY,), **recipe), 2)
    full = run(DecayInvertedFile, recipe, 2)
    slots = full.subscriptions.live_slots()
    work = []
    for engine in (Cramped, DecayInvertedFile):
        again = engine(SPACE, world.fading)
        again.insert(full.subscriptions.rows(slots), full.best.rows(slots))
        again.best.begin_batch(99, 0)
        work.append(again.match(world.batches[-1][1]))
    assert work[0].scanned < 0.7 * work[1].scanned and work[0].verified < 0.5 * work[1].verified
    assert work[0].matched == work[1].matched


def test_printed_engines_evaluate_less_by_lemma_1_and_skip_blocks_by_lemma_3():
    recipe = {"terms": 4, "subscriptions": 400, "messages": 400, "alphas": (0.6, 0.8, 0.9), "half_life_s": 1e6}
    world = make_world(Recipe(kinds=(DECAY,), **recipe), 2)
    full = run(IflPaper, recipe, 2)
    slots = full.subscriptions.live_slots()
    done = {}
    for engine in (SmallPaper, SmallHPaper, SmallBif, IflPaper):
        again = engine(SPACE, world.fading)
        again.insert(full.subscriptions.rows(slots), full.best.rows(slots))
        again.best.begin_batch(99, 0)
        work = again.match(world.batches[-1][1])
        done[engine] = again.survivors() | {"relevances": work.verified, "results": work.matched}
    ifl, bif, paper, heuristic = (done[engine] for engine in (IflPaper, SmallBif, SmallPaper, SmallHPaper))
    # without lemma 1 every text relevance is an evaluation, and no block is skipped
    assert ifl["evaluations"] == ifl["relevances"] and ifl["blocks_skipped"] == 0 < ifl["blocks_read"]
    assert bif["evaluations"] < bif["relevances"] <= ifl["relevances"]
    for cells in (paper, heuristic):
        assert cells["evaluations"] < 0.8 * bif["evaluations"] and cells["blocks_skipped"] > 0
    # nothing that becomes a result is skipped, and nobody is evaluated twice
    assert len({each["results"] for each in done.values()}) == 1
    assert all(each["results"] <= each["evaluations"] <= each["relevances"] for each in done.values())


def test_engine_lists_are_made_anew_when_half_is_dropped():
    engine = run(Ciq, {"churn": 1.0, "subscriptions": 400, "terms": 3, "largest_k": 1, "batch": 20, "messages": 400}, 0)
    assert engine.lists.associations >= len(engine)
    dropped = int(engine.lists.view.used[4])
    slots = engine.subscriptions.live_slots()
    for _ in range(60):  # as thresholds that rise would do it
        engine.lists.drop(slots)
        engine._post(slots)
        engine.lists.renew(engine.subscriptions)
        check_cells(engine)
    check_blocks(engine)
    assert int(engine.lists.view.used[4]) < dropped + 60 * len(engine)


@pytest.mark.parametrize("engine", [Ciq, BlockInvertedFile])
def test_engine_bounds_a_subscription_of_one_keyword_by_it_alone_whatever_bits_a_message_has(engine):
    n, fading = 32, DecayParameters.of(1e6, 0.2, np.ones(64, np.int64), 64)
    ones, middle = np.ones(n), np.full(n, 0.25)
    index = engine(SPACE, fading)
    index.insert(
        SubscriptionTable(
            np.arange(n), np.full(n, DECAY, np.int8), np.zeros(n, np.int64), middle, middle, np.full((n, 4), np.nan),
            np.full(n, KEYWORDS_BY_KIND, np.int8), ones.astype(np.int32), 0.0 * ones, np.arange(n + 1),
            np.arange(n, dtype=np.int32), ones.astype(np.float32),
        )
    )  # fmt: skip

    def matched(seq, terms, counts):
        zero, weights = np.zeros(1), np.full(len(terms), 0.1, np.float32)
        index.best.begin_batch(seq, seq)
        return index.match(
            MessageBatch(
                np.array([seq]), zero, zero, zero, zero, zero, zero, np.array([seq]), np.array([0, len(terms)]),
                np.array(terms, np.int32), weights, np.array(counts, np.int32), np.array([fading.epoch_us]),
            )
        ).matched  # fmt: skip

    assert matched(0, range(n), [1] * n) == n
    for word in range(n):
        assert matched(word + 1, [word, *range(n, 64)], [40] + [1] * 32) == 1
