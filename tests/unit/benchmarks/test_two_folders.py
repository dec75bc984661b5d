"""Subscriptions of a benchmark that take after the texts of one folder, over the messages of another."""

import numpy as np
import pytest

from benchmarks import run
from benchmarks.workload import WORLD, resample_apart, resample_messages
from matching.errors import ConfigError
from matching.model import take_ragged
from spouts.subscriptions import load_vocabulary
from tests.support.etl_folder import random_rows, write_etl

_WORDS, _MORE = 12, 5


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """An ETL folder of messages, and one with five words that the first does not have."""
    root = tmp_path_factory.mktemp("folders")
    messages = write_etl(root / "messages", random_rows(300, _WORDS), _WORDS)
    return str(messages), str(write_etl(root / "texts", random_rows(300, _WORDS + _MORE, seed=2), _WORDS + _MORE))


def _texts(batch, words):
    """The words of each message."""
    ends = batch.term_offsets
    return [sorted(words[t] for t in batch.terms[a:b]) for a, b in zip(ends[:-1], ends[1:], strict=True)]


def test_both_folders_have_the_words_of_one_vocabulary(folders):
    made, texts = resample_apart(folders[0], folders[1], (500, 200), 3, WORLD)
    own = [f"w{word}" for word in range(_WORDS)]
    joint = [f"w{word}" for word in range(_WORDS, _WORDS + _MORE)] + own
    assert made.idf.shape[0] == len(joint) and np.all(np.diff(texts.batch.term_offsets) > 0)
    apart, other = resample_messages(folders[0], 500, 3, WORLD), resample_messages(folders[1], 200, 3, WORLD)
    assert _texts(made.batch, joint) == _texts(apart.batch, load_vocabulary(folders[0]).terms)
    assert _texts(texts.batch, joint) == _texts(other.batch, load_vocabulary(folders[1]).terms)
    # the terms of a text ascend, as everywhere
    for row in range(len(texts.batch)):
        _, at = take_ragged(texts.batch.term_offsets, np.array([row]))
        assert np.all(np.diff(texts.batch.terms[at]) > 0)
    assert np.all(made.idf[:_MORE] == np.log1p(300)) and np.array_equal(made.idf[_MORE:], apart.idf)


@pytest.mark.parametrize("kind", [pytest.param("decay", marks=pytest.mark.long), "knn"])
def test_bench_over_two_folders_is_exact(folders, kind):
    messages_from, subscriptions_from = folders
    report = run.bench(
        kind, 2_000, messages=200, rounds=1, engines=["keyword_blocks" if kind == "decay" else "influence_grid"],
        messages_from=messages_from, subscriptions_from=subscriptions_from,
    )  # fmt: skip
    (result,) = report["results"]
    assert result["exact"] and result["compared"] > 0
    assert report["workload"]["subscriptions_from"] == "resampled"
    assert report["workload"]["terms"] == _WORDS + _MORE


def test_texts_of_another_folder_need_messages_of_a_folder(folders):
    with pytest.raises(ConfigError, match="say where messages are from"):
        run.bench("decay", 100, engines=["keyword_blocks"], subscriptions_from=folders[1])
