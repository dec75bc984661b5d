"""Threshold rules: their answers worked out by hand, the cost model against a simulation, and what it learns."""

import numpy as np
import pytest

from matching.errors import ConfigError
from matching.topk.thresholds import CostRule, KMaxRule, RankRule, SmaRule, rule


def column(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_rule_of_an_unknown_name_is_refused_with_the_names_there_are():
    with pytest.raises(ConfigError, match="cost, k_max, sma, rank"):
        rule("kmax")


def test_rank_rule_asks_for_twice_k_and_cuts_beyond_three_times():
    assert RankRule().ranks(column(1, 10)).tolist() == [4, 20]
    assert RankRule().cuts(column(10, 10, 1, 1), column(30, 31, 7, 8)).tolist() == [0, 20, 0, 4]


def test_sma_rule_asks_for_k_and_never_cuts():
    assert SmaRule().ranks(column(1, 10)).tolist() == [1, 10]
    assert SmaRule().cuts(column(1, 10), column(500, 500)).tolist() == [0, 0]


def test_k_max_rule_follows_the_last_entry_and_keeps_what_is_dominated():
    assert KMaxRule().ranks(column(1, 10)).tolist() == [4, 20]
    assert KMaxRule().cuts(column(10, 10, 10), column(9, 14, 33)).tolist() == [0, 14, 20]
    assert KMaxRule().dominators(column(1, 10)).min() > 1000


def test_cost_rule_aims_between_k_and_three_k_and_higher_where_refills_cost_more():
    """Spec 2.3: for k = 20 about 1.4 to 2.3 k, growing with the logarithm of a refill's cost."""
    ranks = []
    for steps in (1e3, 1e4, 1e5, 1e6):
        costly = CostRule(refill_steps=steps, hit_steps=0.0)
        costly.window = 1e6
        ranks.append(int(costly.ranks(column(20))[0]))
    assert ranks == sorted(ranks) and ranks[0] < ranks[-1]
    assert ranks[0] >= 24 and ranks[-1] <= 50


def test_cost_rule_cuts_back_to_the_entries_that_its_aim_gives():
    costs = CostRule()
    (rank,) = costs.ranks(column(10)).tolist()
    aim = costs.cuts(column(10), column(10_000))[0]
    assert 10 < aim < rank, "a skyband of n messages has fewer than n entries"
    assert costs.cuts(column(10), np.array([aim], np.int32)).tolist() == [0]


def fifo_windows(k: int, n: int, window: int, seed: int) -> float:
    """Windows until fewer than k of the last `window` coin flips are heads, begun with n heads; mean of many."""
    rng = np.random.default_rng(seed)
    lives = []
    for _ in range(60):
        heads = np.zeros(window, bool)
        heads[rng.choice(window, n, replace=False)] = True
        flips = np.concatenate([heads, rng.random(200 * window) < n / window]).astype(np.int64)
        total = np.cumsum(flips)
        counts = total[window:] - total[:-window]
        below = np.flatnonzero(counts < k)
        lives.append((below[0] if below.size else counts.size) / window)
    return float(np.mean(lives))


@pytest.mark.parametrize(("k", "n"), [(5, 8), (10, 12), (10, 15)])
def test_cost_rule_life_of_a_threshold_agrees_with_simulation(k, n):
    model = CostRule()._expected_life(k, float(n))
    assert model == pytest.approx(fifo_windows(k, n, 1000, 3), rel=0.35)


def held(**by_k: int) -> np.ndarray:
    """How many subscriptions there are of each k, by k."""
    counts = np.zeros(128, np.int64)
    for name, count in by_k.items():
        counts[int(name.removeprefix("k"))] = count
    return counts


def learned(rule: CostRule, k: int) -> dict:
    return rule.describe()["by_k"][str(k)]


def test_cost_rule_learns_from_more_refills_than_it_expected_and_keeps_that():
    learning = CostRule()
    (before,) = learning.ranks(column(10)).tolist()
    for _ in range(30):
        learning.observe(50_000, 100_000.0, held(k10=1000), np.full(3_000, 10, np.int32))
    (after,) = learning.ranks(column(10)).tolist()
    assert after > before and learned(learning, 10)["correction"] > 1.0
    again = CostRule()
    again.restore(learning.state())
    assert again.ranks(column(10)).tolist() == [after]


def test_cost_rule_has_a_model_for_each_k():
    """What is learned of one k says nothing of another, which today's first key would have stood for."""
    learning = CostRule()
    before = learning.ranks(column(1, 10, 100)).tolist()
    for _ in range(4):
        learning.observe(50_000, 100_000.0, held(k1=1000, k10=1000, k100=1000), np.full(5_000, 10, np.int32))
    after = learning.ranks(column(1, 10, 100)).tolist()
    assert after[1] > before[1] and after[0] <= before[0] and after[2] <= before[2]
    assert learned(learning, 10)["correction"] > 2.0 > 1.0 >= learned(learning, 1)["correction"]


@pytest.mark.parametrize("drift", [0.3, 1.0, 5.0])
def test_cost_rule_correction_settles_at_how_much_oftener_refills_come(drift):
    """And does not run to its limit, as a factor upon a factor would."""
    learning, rng = CostRule(), np.random.default_rng(2)
    for _ in range(60):
        rank = int(learning.ranks(column(10))[0])
        refills = rng.poisson(drift * 20_000 * 0.25 / learning._expected_life(10, float(rank)))
        learning.observe(25_000, 100_000.0, held(k10=20_000), np.full(refills, 10, np.int32))
    told = learning.describe()
    assert told["by_k"]["10"]["correction"] == pytest.approx(drift, rel=0.5) and told["most_correction"] > 8 * drift


def test_cost_rule_asks_for_more_where_refills_are_measured_to_take_more():
    ranks = {}
    for read in (0, 1_000_000):
        measuring = CostRule()
        measuring.refilled(np.full(500, 10, np.int32), np.full(500, read))
        ranks[read] = measuring.ranks(column(10, 20)).tolist()
    assert ranks[0][0] < ranks[1_000_000][0]
    assert ranks[0][1] == ranks[1_000_000][1] == CostRule().ranks(column(20))[0], "of another k nothing was measured"


def cold_start(windows: int, refills: int = 0) -> CostRule:
    """A rule whose subscriptions were all answered at once, and of which so many a window ran short since."""
    starting = CostRule()
    starting.observe(5_000, 100_000.0, held(k4=150_000), column())
    starting.refilled(np.full(150_000, 4, np.int32), np.full(150_000, 500))
    for _ in range(windows * 20):
        starting.observe(5_000, 100_000.0, held(k4=150_000), np.full(refills // 20, 4, np.int32))
    return starting


def test_cost_rule_keeps_what_it_asks_for_after_a_first_window_without_refills():
    """Results that were just filled last; at little more than k, each would run short in every window."""
    first, second = (int(cold_start(windows).ranks(column(4))[0]) for windows in (0, 1))
    assert first - 2 <= second < first
    assert int(cold_start(6).ranks(column(4))[0]) < second - 2, "where none come for long, fewer are asked for"
    assert int(cold_start(2, 60_000).ranks(column(4))[0]) > first


def watched(messages: int, batch: int, short: int, **by_k: int) -> CostRule:
    """A rule that has seen so many messages of windows of 100,000 in batches; of each k so many run short in one."""
    watching = CostRule()
    counts = held(**by_k)
    for _ in range(messages // batch):
        watching.observe(batch, 100_000.0, counts, np.repeat(np.flatnonzero(counts), short).astype(np.int32))
    return watching


def test_cost_rule_asks_for_more_where_few_share_a_request():
    """Asking costs as much for one subscription as for a thousand."""
    ranks = {}
    for batch in (10, 5_000, 40_000):
        watching = watched(40_000, batch, 0, k10=10_000)
        ranks[batch] = int(watching.ranks(column(10))[0])
        assert learned(watching, 10)["sharing_requests"] == pytest.approx(10_000 * batch / 100_000)
    assert ranks[10] > ranks[5_000] > ranks[40_000]
    unknown = CostRule()
    assert unknown.ranks(column(10)).tolist() == [ranks[40_000]]


def test_cost_rule_counts_subscriptions_of_all_k_that_share_a_request():
    alone, beside = (watched(100_000, 1_000, 5, **each) for each in ({"k10": 1_000}, {"k10": 1_000, "k20": 1_000}))
    alone.ranks(column(10))
    beside.ranks(column(10, 20))
    assert learned(beside, 10)["sharing_requests"] == pytest.approx(
        2 * learned(alone, 10)["sharing_requests"], rel=0.01
    )


def test_cost_rule_goes_on_from_what_it_saved_and_from_nothing_of_another_shape():
    learning = watched(100_000, 1_000, 2, k1=500, k10=2_000)
    learning.refilled(np.full(5, 10, np.int32), np.full(5, 3_000))
    learning.ranks(column(1, 10))
    state, again = learning.state(), CostRule()
    again.restore(state)
    for each in (learning, again):
        for _ in range(150):
            each.observe(1_000, 100_000.0, held(k1=500, k10=2_000), column(1, 10, 10))
    assert np.array_equal(again.state(), learning.state()) and again.describe() == learning.describe()
    assert learning.knows(state) and CostRule().knows(CostRule().state())
    assert not any(
        learning.knows(each) for each in (np.zeros(0), state[:-1], state[1:], np.delete(state, slice(5, 16)))
    )


def test_cost_rule_takes_the_size_of_the_window_from_the_stream():
    learning = CostRule()
    learning.ranks(column(10))
    learning.observe(10, 1e6, held(k10=1), column())
    assert learning.window == 1e6
    assert learning.ranks(column(10))[0] >= CostRule().ranks(column(10))[0]
