"""The table of living objects that a server has: what replaces what, what ends by time, and when it is full."""

import numpy as np

from gateway.live.living_versions import LivingVersions
from matching.attributes import NO_ATTRIBUTES
from matching.model import TERM
from matching.space import Space
from matching.validate import ParsedMessage
from matching.vocabulary import Vocabulary
from matching.window import Boundary, Window
from matching.words.message_words import MessageTerms, MessageWords
from spouts.messages import MessageBlock
from spouts.parsed import batch_of, objects_of
from spouts.versions import LivingObjects


def take(living, first, *rows):
    """Messages of (object, deleted, ahead, when it expires in us) come, without words."""
    place = 0.0, 0.0, None, None, None, None, None
    block = MessageBlock.of(
        [
            ParsedMessage(f"m{n}", b"", *place, "", name, int(deleted), ahead=ahead, expires_us=expires)
            for n, (name, deleted, ahead, expires) in enumerate(rows)
        ],
        NO_ATTRIBUTES,
    )
    none = np.zeros(len(rows), np.int32)
    return living.take(first, block, MessageTerms(np.zeros(0, TERM), np.zeros(len(rows) + 1, np.int64), none, none))


def test_living_versions_are_replaced_and_deleted_and_what_is_ahead_changes_nothing():
    living = LivingVersions()
    rows = [("a", 0, 0, None), ("a", 0, 0, None), ("b", 0, 0, None), ("a", 0, 1, None), ("a", 1, 0, None)]
    assert take(living, 10, *rows).tolist() == [-1, 10, -1, -1, 11]
    assert living.get("a") is None and living.get("b") == 12 and living.listed(-1, 9) == [("b", 12)]
    assert take(living, 15, ("b", 1, 0, None), ("b", 1, 0, None)).tolist() == [12, -1]
    assert len(living) == 0 and living.size_bytes == 0


def test_living_version_expires_once_and_only_if_it_lives_still():
    living = LivingVersions()
    take(living, 0, ("a", 0, 0, 50), ("b", 0, 0, 60), ("a", 0, 0, None), ("c", 0, 0, 90))
    assert living.expired(49, 9) == [] and living.expired(60, 9) == ["b"] and living.expired(60, 9) == []
    take(living, 4, ("d", 0, 0, 95))
    assert living.expired(100, 1) == ["c"] and living.expired(100, 1) == ["d"]


def test_times_of_versions_that_were_replaced_are_forgotten():
    living = LivingVersions()
    for seq in range(10_000):
        take(living, seq, (f"o{seq % 7}", 0, 0, 10**6 - seq))
    assert len(living._expiries) < 2_100
    assert sorted(living.expired(10**6, 99)) == [f"o{n}" for n in range(7)] and living.expired(10**6, 99) == []


def test_full_table_takes_versions_and_deletions_and_no_new_object():
    living = LivingVersions(most_bytes=1_000)
    take(living, 0, ("a", 0, 0, None), ("b", 0, 0, None))
    assert living.is_full
    assert "2 objects live" in living.refusal({"object_id": "new"}) and living.refusal({"id": "new"})
    assert "no more may be than 1,000" in living.refusal({"id": "new"})
    assert not living.refusal({"object_id": "a"}) and not living.refusal({"id": "b"})
    assert not living.refusal({"object_id": "new", "deleted": True}) and not living.refusal({"subscribe": {}})
    take(living, 2, ("a", 1, 0, None))
    assert not living.refusal({"object_id": "new"})


def test_size_of_the_table_is_that_of_the_columns_that_the_spout_has_of_its_versions():
    """Versions with long texts and short ones that replace each other; what the spout has is at most a little more."""
    rng, living, spout = np.random.default_rng(4), LivingVersions(), LivingObjects()
    space, window = Space(-180.0, -90.0, 180.0, 90.0), Window("count", 9)
    vocabulary = Vocabulary.of_counts([{f"w{n}": 1 for n in range(99)}])
    words, place = MessageWords(vocabulary), (0.0, 0.0, None, None, None, None, 5)
    for first in range(0, 4_000, 100):
        texts = [" ".join(f"w{each}" for each in rng.integers(0, 99, rng.integers(0, 60))) for _ in range(100)]
        names, deleted = rng.integers(0, 900, 100), rng.random(100) < 0.1
        rows = [
            ParsedMessage("m", b"", *place, text, f"object {name}", int(gone))
            for text, name, gone in zip(texts, names, deleted, strict=True)
        ]
        some = MessageBlock.of(rows, NO_ATTRIBUTES)
        terms = words.terms(words.cut(some.words()))
        living.take(first, some, terms)
        batch = batch_of(some, terms, vocabulary, first, space, window)
        spout.feed(batch, objects_of(some))
        spout.pop_ended(Boundary(first // 100, first, first + 99, 0))
    held = sum(len(run) for run in spout._table.runs)
    assert len(living) == len(spout) > 700
    columns = spout.size_bytes * len(spout) / held
    assert 0.8 * columns < living.size_bytes - len(living) * 2 * 180 < 1.5 * columns
    for name in list(living._living):
        take(living, 9_000, (name, 1, 0, None))
    assert living.size_bytes == 0
