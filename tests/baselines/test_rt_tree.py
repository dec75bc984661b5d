"""R-trees over regions: how they grow and shrink, and how much work place and keywords save them."""

import numpy as np
import pytest

from baselines.boolean.inverted_list import InvertedList
from baselines.boolean.rt_tree import InvertedRTree, RtTree
from benchmarks.workload import WORLD, boolean_subscriptions, make_messages
from matching.model import MessageBatch
from tests.support.boolean_tables import SPACE, engine_pairs, oracle_pairs

EVERYWHERE = (-180.0, -90.0, 180.0, 90.0)
#: The first of an engine compiles it.
pytestmark = pytest.mark.wide


@pytest.fixture(scope="module")
def crowd():
    """A workload in which blocks are sorted, messages match, and some messages are rectangles."""
    messages = make_messages(12_000, 3)
    return boolean_subscriptions(messages, 20_000, 3), messages.batch.take(np.arange(0, 12_000, 40))


def test_rt_tree_is_a_stack_of_trees_each_twice_the_next_and_nothing_of_the_gone(crowd):
    subscriptions, messages = crowd
    engine = RtTree(SPACE)
    for start in range(0, 6_000, 60):
        engine.insert(subscriptions.take(np.arange(start, start + 60)))
        trees = engine.arrays()["index_tree"]
        assert trees[:, 1].sum() == start + 60
        assert np.all(trees[:-1, 1] >= 2 * trees[1:, 1])
    kept = np.random.default_rng(5).permutation(6_000)[:100]
    for gone in np.array_split(np.setdiff1d(np.arange(6_000), kept), 50):
        engine.remove(engine.find(gone))
        trees = engine.arrays()["index_tree"]
        assert np.all(2 * trees[:, 3] >= trees[:, 1]) and trees[:, 3].sum() == len(engine)
    assert engine.arrays()["index_entry"].shape[0] <= 200
    assert engine_pairs(engine, messages) == oracle_pairs(subscriptions.take(np.sort(kept)), messages)


def worldwide(messages: MessageBatch) -> MessageBatch:
    """The same texts, each about the whole earth."""
    sides = zip(("west", "south", "east", "north"), EVERYWHERE, strict=True)
    return MessageBatch(**(messages._asdict() | {name: np.full(len(messages), side) for name, side in sides}))


def test_rt_tree_prunes_by_place_and_by_keyword(crowd):
    subscriptions, messages = crowd
    engine, every = RtTree(WORLD), InvertedList(WORLD)
    for each in (engine, every):
        each.insert(subscriptions)
    work, all_work = engine.match(messages), every.match(messages)
    assert work.matched == all_work.matched > 0
    assert work.verified * 4 < all_work.scanned
    # Without a place to go by, keywords lead to the very lists of the inverted list, and to nobody else.
    assert engine.match(worldwide(messages)).verified == every.match(worldwide(messages)).scanned


def test_ir_tree_looks_at_whoever_has_one_of_the_terms_and_lies_near_enough(crowd):
    subscriptions, messages = crowd
    some, every = RtTree(WORLD), InvertedRTree(WORLD)
    for each in (some, every):
        each.insert(subscriptions)
    work, all_work = some.match(messages), every.match(messages)
    assert work.matched == all_work.matched > 0
    assert work.verified < all_work.verified, "the rarest keyword alone rules out more"
    offsets = subscriptions.term_offsets
    sharing = 0
    for row in range(len(messages)):
        terms = messages.terms[messages.term_offsets[row] : messages.term_offsets[row + 1]]
        sharing += int(np.count_nonzero(np.add.reduceat(np.isin(subscriptions.terms, terms), offsets[:-1])))
    assert every.match(worldwide(messages)).verified == sharing
