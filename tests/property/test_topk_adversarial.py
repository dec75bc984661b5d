"""Streams made to break indexes, small, against the oracle: every engine stays exact on each of them."""

import numpy as np
import pytest

from benchmarks import cases, command
from benchmarks.harness import Bench
from matching.kinds import KINDS


@pytest.fixture(autouse=True)
def short_batches(monkeypatch):
    monkeypatch.setattr(cases, "_STREAM_BATCH", 60)
    # of 300 subscriptions too few are told something for a figure to count
    monkeypatch.setattr(command, "FEWEST_COMPARED", 1)
    monkeypatch.setattr(command, "FEWEST_SUBSCRIPTIONS", 1)


@pytest.mark.parametrize("engine", KINDS.named("topk").engines)
@pytest.mark.parametrize("stream", cases.STREAMS)
def test_topk_on_adversarial_stream_equals_oracle(stream, engine):
    case = cases.make_stream(stream, 300, 240, 240, seed=5)
    load = Bench(case, 2, checked=4 * case.batch)
    checked = load.check([load.build(engine)])[0]
    assert checked["exact"]
    assert checked["compared"] > 0, "a stream in which nothing happens proves nothing"


def test_adversarial_streams_are_what_they_say():
    def case(name):
        return cases.make_stream(name, 200, 100, 100, seed=1)

    assert np.unique(case("one_point").messages.x).size == np.unique(case("one_point").table.y).size == 1
    assert np.unique(case("one_word").messages.terms).size == 1
    assert case("k_beyond_window").table.k.min() > case("k_beyond_window").filled
    assert set(case("alpha_1").table.alpha) == {1.0} and set(case("alpha_0").table.alpha) == {0.0}
    words = case("unused_words")
    assert np.isin(words.table.terms, words.messages.terms).mean() < 0.2
    drift = case("drift")
    early = drift.messages.take(np.arange(100)).terms
    late = drift.messages.take(np.arange(len(drift.messages) - 40, len(drift.messages))).terms
    assert not np.isin(late, early).any()
    lives, alive = case("half_expires").messages.life, case("half_expires").window.length
    assert np.diff(np.unique(lives)).min() * 2 == alive


def test_drift_happens_within_the_batches_that_are_checked():
    case = cases.make_stream("drift", 300, 240, 240, seed=5)
    checked = [case.messages.take(np.arange(first, first + 60)).terms for first in (240, 300)]
    assert not np.isin(checked[1], checked[0]).any()
    assert np.isin(case.table.terms, checked[1]).any(), "nobody asks for the new words"
