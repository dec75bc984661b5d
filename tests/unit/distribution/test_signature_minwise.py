"""Min-wise signatures: of constant size, right about members, equal on every copy, and lossy only if asked."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distribution.signatures.claims import claims_of
from distribution.signatures.minwise import READINGS, MinwiseFilter, nodes_down_to
from distribution.signatures.signature import spec_of
from tests.support.signature_tables import (
    SMALL,
    SPACE,
    in_touch,
    matching,
    no_claims,
    random_messages,
    random_subscriptions,
)

LEVELS = 3
NODES = nodes_down_to(LEVELS)


def pairs(nodes, terms) -> np.ndarray:
    return np.unique((np.asarray(nodes, np.int64) << 31) | np.asarray(terms, np.int64))


#: Some pairs of node and keyword at a time, as patches bring them.
PATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, 40)), min_size=1, max_size=30), min_size=1, max_size=6
)


@settings(max_examples=60, deadline=None)
@given(PATCHES, st.integers(1, 20))
def test_minwise_of_constant_size_never_denies_a_member_and_copies_stay_equal(patches, most):
    """Whatever is merged with what: what was put into a node is found there."""
    made = MinwiseFilter(LEVELS, 16, most)
    inside: set[int] = set()
    for number, patch in enumerate(patches):
        coming = np.array(sorted(set(pairs(*zip(*patch, strict=True)).tolist()) - inside), np.int64)
        copy = MinwiseFilter.from_arrays(made.arrays())
        for each in (made, copy):
            assert each.insert(coming) == coming.size
        inside |= set(coming.tolist())
        assert made.rows <= most and made.contains(np.array(sorted(inside), np.int64)).all(), f"patch {number}"
        assert all(np.array_equal(array, copy.arrays()[name]) for name, array in made.arrays().items())
    assert len(made) == len(inside)


@settings(max_examples=40, deadline=None)
@given(PATCHES)
def test_minwise_merged_rows_are_the_minimum_of_what_they_stand_for(patches):
    """Formula (13): a row of all is what the keywords of all make together."""
    every = np.unique(np.concatenate([pairs(*zip(*patch, strict=True)) for patch in patches]))
    merged, whole = MinwiseFilter(LEVELS, 16, most=1), MinwiseFilter(0, 16)
    merged.insert(every)
    whole.insert(pairs(np.zeros(every.size), every & (2**31 - 1)))
    assert np.array_equal(merged.least, whole.least)


def test_minwise_merges_deepest_nodes_with_fewest_keywords_first():
    first = nodes_down_to(1)  # of level 2, whose first four nodes (2 x 2) lie in two rows of four
    siblings = [first, first + 1, first + 4, first + 5]
    others = [first + 2, first + 3]
    made = MinwiseFilter(2, 64, most=4)
    full = [(node << 31) | term for node in siblings for term in range(20)]
    made.insert(np.array([*full, *((node << 31) | 99 for node in others)], np.int64))
    assert made.rows == 2, "six rows are two too many: one merge of two leaves five, so the four follow"
    made = MinwiseFilter(2, 64, most=5)
    made.insert(np.array([*full, *((node << 31) | 99 for node in others)], np.int64))
    assert made.rows == 5
    beside, nobody = (others[0] << 31) | 50, ((first + 6) << 31) | 99
    assert made.contains(np.array([(others[1] << 31) | 99])).all()
    assert not made.contains(np.array([beside, nobody])).any(), "who is not there is in no row, merged or not"
    made.insert(np.array([nobody]))
    assert made.rows == 5, "whoever comes below a merged node joins it"
    assert made.contains(np.array([nobody])).all()


def test_minwise_certifies_strangers():
    made = MinwiseFilter(1, 64)
    members = np.arange(5)[:, None] * 2**31 + np.arange(0, 40, 4)
    made.insert(members.ravel())
    strangers = (np.arange(5)[:, None] * 2**31 + np.arange(1001, 2001)).ravel()
    assert 0.02 < made.contains(strangers).mean() < 0.3
    assert not MinwiseFilter(0, 64).contains(strangers[:10] % 2**31).any()


@pytest.mark.parametrize(("reading", "known"), [("printed", False), ("approximate", True)])
def test_minwise_estimate_loses_messages_of_nine_known_words(reading, known):
    """Spec 4.7: matches in at most nine of 2500 bins never exceed 50; over non-empty bins small nodes pass."""
    made = MinwiseFilter(0, 2500, reading=reading)
    made.insert(np.arange(200))
    message = np.arange(9, dtype=np.int64)
    assert made.loses and made.contains(message).all()
    assert made.any_of(np.array([0, 9]), message).tolist() == [known]
    made.insert(np.arange(200, 4000))
    assert not made.any_of(np.array([0, 9]), message).any(), "nor does either rule pass it in a node of 4000 words"


def test_signature_readings_lose_what_they_say():
    table, messages = random_subscriptions(7, 100), random_messages(7, 200)
    lost = {}
    for reading in ("cuckoo", *READINGS):
        spec = SMALL._replace(text_filter=reading, bins=2500)
        signature, replica = in_touch(spec)
        signature.change(claims_of(table), no_claims())
        replica.apply(signature.patch(0, noted=True))
        matters, passed = matching(table, messages), replica.may_match(messages)
        assert not np.any(matters & ~replica.may_match(messages, lossless=True))
        lost[reading] = np.count_nonzero(matters & ~passed) / np.count_nonzero(matters)
        assert spec.loses == (lost[reading] > 0) or reading == "approximate"
    assert lost["cuckoo"] == lost["minwise"] == 0.0 and lost["printed"] == 1.0 > lost["approximate"]


def test_spec_of_minwise_modes_shares_rows_among_tasks():
    specs = {mode: spec_of(mode, SPACE, tasks=16) for mode in ("spatial+text", "minwise", "approximate")}
    assert {mode: (spec.text_filter, spec.most, spec.loses) for mode, spec in specs.items()} == {
        "spatial+text": ("cuckoo", 32, False), "minwise": ("minwise", 32, False),
        "approximate": ("approximate", 32, True),
    }  # fmt: skip
    assert spec_of("minwise", SPACE, tasks=1000).most == 1
