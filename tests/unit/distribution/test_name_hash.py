"""The kernel that hashes names gives what the library gives."""

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from bolts.names import _FEW, hash_names
from distribution import name_hash
from distribution.name_hash import hashes_of
from matching.model import Names


def library(names):
    return [xxhash.xxh64_intdigest(name.encode()) for name in names]


@given(st.lists(st.text(max_size=80), max_size=20))
@settings(max_examples=60, deadline=None)
def test_hash_each_is_xxh64_of_any_text(names):
    assert hashes_of(*Names.of(names)).tolist() == library(names)


def test_hash_each_is_xxh64_of_every_length():
    names = ["é" * (size // 2) + "x" * (size % 2) for size in range(140)]
    assert hashes_of(*Names.of(names)).tolist() == library(names)


@pytest.mark.parametrize("ready", [False, True])
def test_hash_names_is_the_same_for_few_and_for_many(ready, monkeypatch):
    monkeypatch.setattr(name_hash, "_WARM", [True] if ready else [])
    names = [f"subscription {number}" for number in range(_FEW + 1)]
    assert hash_names(Names.of(names)).tolist() == library(names)
    assert hash_names(Names.of(names[:100])).tolist() == library(names[:100])
