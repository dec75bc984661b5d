"""Lists by term against plain sets: places that subscriptions know, counts of terms, and the way of rare ones."""

import numba
import numpy as np
import pytest

from matching.knn.engines.balls import NOWHERE, BallLists, is_on_sphere, limit_of
from matching.knn.engines.terms import ANY_NUMBER, TermLists, is_first_common, post_terms, unpost_terms
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.slots import as_input
from tests.support.knn_engines import ManyGrids, assert_sound, messages, replaced, subscriptions, take
from tests.support.worlds import SPACE

#: The first of an engine compiles it.
TERMS = 9
layouts = pytest.mark.parametrize("together", [False, True], ids=["columns", "together"])


def some(rng, numbers, terms=TERMS, most=5):
    """Subscriptions anywhere, each with some of the terms; the first terms are frequent."""
    n, share = len(numbers), 1.0 / np.arange(1, terms + 1)
    words = [np.sort(rng.choice(terms, rng.integers(1, most), replace=False, p=share / share.sum())) for _ in range(n)]
    flat = np.concatenate(words).astype(np.int32)
    return replaced(
        subscriptions(rng.random((n, 2)), 1),
        number=np.array(numbers), term_offsets=np.cumsum([0, *map(len, words)]), terms=flat,
        weights=np.ones(flat.shape[0], np.float32),
    )  # fmt: skip


def test_columns_of_a_single_subscription_have_the_types_of_many():
    """Else the first one of a stream on the sphere would wait for kernels compiled for it alone."""
    found = set()
    for count in (1, 3):
        store = PointSubscriptions()
        store.insert(replaced(some(np.random.default_rng(0), range(count)), vector=np.ones((count, 3))))
        found.add(numba.typeof((store.columns, store.unit_square)))
    assert len(found) == 1


class Index:
    """Subscriptions in lists by term; `posted` has the slots of each."""

    def __init__(self, together: bool, on_sphere: bool = False):
        self.store, self.lists = PointSubscriptions(), TermLists(together, on_sphere)
        self.posted: list[set[int]] = [set() for _ in range(TERMS)]
        self.grown = 0

    def insert(self, table) -> np.ndarray:
        if is_on_sphere(self.lists.view):
            table = replaced(table, vector=np.random.default_rng(len(table)).normal(size=(len(table), 3)))
        slots = self.store.insert(table)
        self.lists.ensure_terms(self.store.columns, slots)
        return slots

    def terms(self, slot: int) -> list[int]:
        c = self.store.columns
        return c.terms[c.term_start[slot] : c.term_start[slot] + c.term_count[slot]].tolist()

    def post(self, slot: int, most: int = ANY_NUMBER) -> None:
        c, rounds = self.store.columns, 0
        while not post_terms(c, self.lists.view, np.int32(slot), most):
            unpost_terms(c, self.lists.view, np.int32(slot))
            for listed in self.posted:
                listed.discard(slot)
            self.check()
            self.lists.grow(c, int(c.term_count[slot]))
            self.check()
            self.grown += 1
            rounds += 1
            assert rounds < 20, "what was reserved is not there"
        for term in self.terms(slot):
            if self.lists.view.key[term] <= most:
                self.posted[term].add(slot)

    def unpost(self, slot: int) -> None:
        unpost_terms(self.store.columns, self.lists.view, np.int32(slot))
        for listed in self.posted:
            listed.discard(slot)

    def check(self) -> None:
        """Lists are the sets, and each posting is where its subscription says."""
        v, c = self.lists.view, self.store.columns
        for term, listed in enumerate(self.posted):
            if term >= v.start.shape[0]:
                assert not listed
                continue
            places = np.arange(v.start[term], v.start[term] + v.count[term])
            assert sorted(v.slot[places].tolist()) == sorted(listed)
            for place, slot in zip(places.tolist(), v.slot[places].tolist(), strict=True):
                assert c.position[c.term_start[slot] + self.terms(slot).index(term)] == place
                assert (v.x[place], v.y[place]) == (np.float32(c.x[slot]), np.float32(c.y[slot]))
                assert not is_on_sphere(v) or v.z[place] == np.float32(c.z[slot])
                assert v.limit[place] == limit_of(c.threshold[slot], is_on_sphere(v))
        for slot in self.store.live_slots().tolist():
            for at, term in enumerate(self.terms(slot), int(c.term_start[slot])):
                assert (c.position[at] == NOWHERE) == (slot not in self.posted[term])
        assert v.used[1] == sum(map(len, self.posted))


@layouts
@pytest.mark.parametrize("on_sphere", [False, True], ids=["plane", "sphere"])
def test_terms_posted_and_unposted_at_random_are_those_of_plain_sets(together, on_sphere, monkeypatch):
    """Lists double, pools are packed, slots and their terms move."""
    monkeypatch.setattr(BallLists, "fewest", 1)
    rng, index, following = np.random.default_rng(1), Index(together, on_sphere), 0
    for _ in range(16):
        count = int(rng.choice([1, 5, 30]))
        slots = index.insert(some(rng, range(following, following + count)))
        following += count
        index.store.columns.threshold[slots] = -rng.random(count) * (1e6 if on_sphere else 1.0)
        for slot in slots.tolist():
            index.post(slot)
        index.check()
        live = index.store.live_slots()
        for slot in rng.choice(live, live.shape[0] // 3, replace=False).tolist():
            index.unpost(slot)
            if rng.random() < 0.5:
                index.store.remove(np.array([slot], np.int32))
            elif rng.random() < 0.5:
                index.post(slot)
        index.check()
    assert index.grown > 3
    for slot in index.store.live_slots().tolist():
        index.unpost(slot)
    index.check()


def test_terms_posted_twice_or_never_are_there_once_or_not_at_all():
    index = Index(True)
    first, second = index.insert(some(np.random.default_rng(2), range(2), most=4)).tolist()
    for _ in range(2):
        index.post(first)
        index.check()
    index.unpost(second)
    index.check()
    assert any(index.posted)


def test_terms_that_few_subscriptions_have_are_posted_and_the_others_are_not():
    rng, index = np.random.default_rng(3), Index(True)
    slots = index.insert(some(rng, range(60)))
    index.lists.count(index.store.columns, slots, 0)
    most = int(np.median(index.lists.view.key[:TERMS]))  # as many as one of them has
    for slot in slots.tolist():
        index.post(slot, most)
    index.check()
    many = index.lists.view.key[:TERMS] > most
    assert many.any() and not many.all()
    assert [bool(listed) for listed in index.posted] == (~many).tolist()
    # what is missing comes, what is there stays
    for slot in slots.tolist():
        index.post(slot)
    index.check()
    assert [len(listed) for listed in index.posted] == index.lists.view.key[:TERMS].tolist()


@pytest.mark.parametrize("rare", [0, 3])
def test_terms_are_counted_and_those_that_cross_are_named_once(rare):
    rng, index, following = np.random.default_rng(4), Index(True), 0
    counts, crossed_in_all = np.zeros(TERMS, np.int64), 0
    for _ in range(10):
        slots = index.insert(some(rng, range(following, following + 3)))
        following += 3
        crossed = index.lists.count(index.store.columns, slots, rare)
        before = counts.copy()
        for slot in slots.tolist():
            counts[index.terms(slot)] += 1
        assert sorted(crossed.tolist()) == np.flatnonzero((before <= rare) & (counts > rare)).tolist()
        crossed_in_all += crossed.shape[0]
        gone = rng.choice(index.store.live_slots(), 1)
        index.lists.discount(index.store.columns, gone)
        counts[index.terms(int(gone[0]))] -= 1
        index.store.remove(gone)
        key = index.lists.view.key
        assert key[:TERMS].tolist() == counts[: key.shape[0]].tolist() and not key[TERMS:].any()
    assert crossed_in_all >= TERMS - 2 * rare


def test_terms_that_are_new_get_lists_ahead_and_have_no_count():
    index = Index(True)
    sizes = set()
    for number in range(40):
        slots = index.insert(replaced(subscriptions([(0.5, 0.5)], 1, terms=(number,)), number=np.array([number])))
        v = index.lists.view
        assert v.start.shape[0] > number and v.key[number] == 0 == v.count[number]
        assert np.all(index.store.columns.position[index.store.columns.term_start[slots]] == NOWHERE)
        index.lists.count(index.store.columns, slots, 0)
        assert v.key[: number + 1].tolist() == [1] * (number + 1)
        sizes.add(v.start.shape[0])
    assert len(sizes) < 20, "each new term moves all headers"


def test_first_common_term_is_the_one_at_which_a_pair_is_decided():
    """Of all terms that both have, a pair is decided in the list of exactly one."""
    rng, index, common = np.random.default_rng(5), Index(True), 0
    slots = index.insert(some(rng, range(80), most=8))
    c = index.store.columns
    for slot in slots.tolist():
        words = np.sort(rng.choice(TERMS, rng.integers(1, TERMS), replace=False)).astype(np.int32)
        # behind those of another message
        others, mine = as_input(np.concatenate([[3, 7], words]).astype(np.int32), np.int32), index.terms(slot)
        shared = [i for i, word in enumerate(words.tolist()) if word in mine]
        first = [i for i in shared if is_first_common(c.terms, c.term_start[slot], others, np.int64(2), np.int64(i))]
        assert first == shared[:1]
        common += len(shared) > 1
    assert common > 20


def test_terms_that_become_frequent_leave_their_lists_for_cells():
    """Only of balls that have a grid; and those that become rare again stay in cells."""
    rng, made = np.random.default_rng(6), ManyGrids(SPACE)
    both = listed = 0
    for step in range(25):
        made.insert(some(rng, range(4 * step, 4 * step + 4), terms=30))
        take(made, messages(rng.random((5, 2)), 5 * step, terms=tuple(range(30))))
        if step % 3 == 2:
            made.remove(rng.choice(made.subscriptions.live_slots(), 5, replace=False))
        assert_sound(made)
        c, live = made.subscriptions.columns, made.subscriptions.live_slots()
        for slot in live.tolist():
            mine = int(c.term_start[slot]) + np.arange(int(c.term_count[slot]))
            in_list, many = c.position[mine] >= 0, made.terms.view.key[c.terms[mine]] > made.rare
            if 0 <= made._grid[slot] < len(made.sides):
                assert not np.any(in_list & many), "a frequent term is read whole"
                both += bool(in_list.any() and not in_list.all())
                listed += int(in_list.sum())
        lengths = np.bincount(
            np.concatenate([c.terms[c.term_start[slot] : c.term_start[slot] + c.term_count[slot]] for slot in live]),
            minlength=made.terms.view.key.shape[0],
        )
        assert made.terms.view.key.tolist() == lengths.tolist()
    assert both > 50 and listed > 200
