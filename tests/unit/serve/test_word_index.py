"""Subscriptions by words: those that a search of all active ones finds."""

import msgspec
import numpy as np
import pytest

from gateway.live.logged_changes import Accepted
from gateway.serve import word_index
from gateway.serve.registry import Registry
from gateway.serve.word_index import WordIndex
from matching.vocabulary import Vocabulary

WORDS = ["ramen", "Ramen!", "soup bar", "tea", "東京", "naïve", "teas", "a b c d"]


def line_of(name, keywords):
    return msgspec.json.encode({"subscribe": {"subscription_id": name, "kind": "boolean", "keywords": keywords}})


@pytest.mark.parametrize("together", [1, 2, 7, 1_000])
@pytest.mark.parametrize("stem", ["", "english"])
def test_having_finds_the_active_subscriptions_with_a_word_or_without_any(monkeypatch, together, stem):
    monkeypatch.setattr(word_index, "_TOGETHER", together)
    rng, registry = np.random.default_rng(together), Registry()
    vocabulary = Vocabulary([], [], [], [], 0, most_terms=10, stem_language=stem)
    index, shared, found_any, wordless = WordIndex(registry, vocabulary), [], 0, 0
    for turn in range(30):
        for _ in range(int(rng.integers(1, 12))):
            name = f"s{rng.integers(25)}"
            if rng.random() < 0.45:
                registry.end(name, 0)
            else:
                chosen = rng.choice(WORDS, int(rng.integers(1, 3))).tolist()
                keywords = chosen[0] if rng.random() < 0.5 else chosen
                keywords = (None, "", [])[turn % 3] if rng.random() < 0.2 else keywords
                registry.put([Accepted(name, 0, line_of(name, keywords), (0.0,) * 4)], [turn])
        asked = vocabulary.keyword_terms(rng.choice([*WORDS, "other"], 2).tolist())
        has = {one.number: vocabulary.keyword_terms(one.columns["keywords"] or ()) for one in registry.listed()}
        wanted = [one for one in registry.listed() if not has[one.number] or not set(asked).isdisjoint(has[one.number])]
        assert index.having(asked, lambda: shared.append(1)) == wanted
        found_any, wordless = found_any + len(wanted), wordless + sum(not words for words in has.values())
    assert found_any > 50 and wordless > 10 and index._subscriptions <= 2 * len(registry) + together
    assert bool(shared) or together > 2
