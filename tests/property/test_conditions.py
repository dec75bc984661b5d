"""The kernels of conditions against their oracle; broken variants must be found by the same comparison."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.conditions import NONE_OF, WITHIN, fit_words, parse_match, word_conditions
from matching.naive_conditions import words_hold
from tests.support.conditions import judged, missing_as_zero, random_values, random_where


def drawn(seed, wheres=120, messages=120):
    generator = np.random.default_rng(seed)

    def draw(below):
        return int(generator.integers(below))

    return [random_where(draw) for _ in range(wheres)], [random_values(draw) for _ in range(messages)]


@pytest.mark.parametrize("seed", range(4))
def test_attribute_kernel_judges_as_the_oracle(seed):
    kernel, oracle = judged(*drawn(seed))
    assert np.argwhere(kernel != oracle).tolist() == []
    assert 1000 < oracle.sum() < oracle.size - 1000, "too few pairs of one verdict, so little is compared"


@given(st.data())
def test_attribute_kernel_judges_as_the_oracle_whatever_is_drawn(data):
    def draw(below):
        return data.draw(st.integers(0, below - 1))

    kernel, oracle = judged([random_where(draw) for _ in range(2)], [random_values(draw) for _ in range(3)])
    assert kernel.tolist() == oracle.tolist()


def not_ignored(table):
    low, high = table.low.copy(), table.high.copy()
    high[table.operator == NONE_OF] = low[table.operator == NONE_OF]
    return table._replace(high=high)


def open_at_the_top(table):
    high = table.high.copy()
    high[table.operator == WITHIN] -= 1
    return table._replace(high=high)


def closed_at_the_bottom(table):
    low = table.low.copy()
    low[table.operator == WITHIN] -= 1
    return table._replace(low=low)


@pytest.mark.parametrize("broken", [not_ignored, open_at_the_top, closed_at_the_bottom])
def test_broken_table_is_found(broken):
    kernel, oracle = judged(*drawn(0), broken_table=broken)
    assert (kernel != oracle).any()


def test_missing_taken_for_zero_is_found():
    kernel, oracle = judged(*drawn(0), broken_keys=missing_as_zero)
    assert (kernel != oracle).any()


def judged_words(subscriptions, messages, known):
    """What kernel and oracle say; words beyond `known` have no id, as those that no message had."""
    ids = {word: number for number, word in enumerate(known)}
    needs = [parse_match(match, len(set(keywords))) for match, keywords, _ in subscriptions]
    table = word_conditions(
        needs,
        [[ids[word] for word in keywords if word in ids] for _, keywords, _ in subscriptions],
        [[ids[word] for word in excluded if word in ids] for _, _, excluded in subscriptions],
    )
    flat = [sorted(ids[word] for word in set(message)) for message in messages]
    offsets = np.zeros(len(messages) + 1, np.int64)
    offsets[1:] = np.cumsum([len(one) for one in flat])
    terms = np.array([term for one in flat for term in one], np.int32)
    slots = np.repeat(np.arange(len(subscriptions), dtype=np.int32), len(messages))
    rows = np.tile(np.arange(len(messages), dtype=np.int32), len(subscriptions))
    out = np.ones(slots.shape[0], np.bool_)
    fit_words(table, offsets, terms, slots, rows, out)
    oracle = [
        [words_hold(match, keywords, excluded, message) for message in messages]
        for match, keywords, excluded in subscriptions
    ]
    return out.reshape(len(subscriptions), len(messages)), np.array(oracle)


def drawn_words(seed, subscriptions=150, messages=100):
    generator = np.random.default_rng(seed)
    known, all_words = list("abcdef"), list("abcdefxy")

    def some(words, least, most):
        return generator.choice(words, generator.integers(least, most + 1), replace=False).tolist()

    rows = []
    for _ in range(subscriptions):
        keywords = some(all_words, 1, 5)
        match = ["all", "any", None, int(generator.integers(1, len(keywords) + 1))][int(generator.integers(4))]
        rows.append((match, keywords, some(all_words, 0, 2)))
    return rows, [some(known, 0, 6) for _ in range(messages)], known


@pytest.mark.parametrize("seed", range(3))
def test_word_kernel_judges_as_the_oracle(seed):
    kernel, oracle = judged_words(*drawn_words(seed))
    assert np.argwhere(kernel != oracle).tolist() == []
    assert 1000 < oracle.sum() < oracle.size - 1000


def test_excluded_words_ignored_are_found():
    subscriptions, messages, known = drawn_words(0)
    kernel, _ = judged_words([(match, keywords, []) for match, keywords, _ in subscriptions], messages, known)
    _, oracle = judged_words(subscriptions, messages, known)
    assert (kernel != oracle).any()


def test_unknown_words_left_out_of_all_are_found():
    subscriptions, messages, known = drawn_words(0)
    forgetful = [
        (match, [word for word in keywords if word in known], excluded)
        for match, keywords, excluded in subscriptions
        if match in ("all", None)
    ]
    honest = [one for one in subscriptions if one[0] in ("all", None)]
    kernel, _ = judged_words(forgetful, messages, known)
    _, oracle = judged_words(honest, messages, known)
    assert (kernel != oracle).any()
