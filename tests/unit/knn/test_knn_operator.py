"""The operator of `knn` against a sorted list a subscription, and where it reports that messages matter."""

import math
from collections import Counter

import numpy as np
import pytest

from matching.errors import EngineError
from matching.influence import SIDES, InfluenceKeys
from matching.knn.engines.influence_grid import InfluenceGrid
from matching.knn.operator import KnnOperator
from matching.model import ENTER, KNN, LEAVE, NO_MESSAGES, MessageBatch, Removals, SubscriptionTable, empty
from matching.naive_rows import tally
from matching.operator import OperatorContext, OperatorInput, OperatorOutput
from matching.storage.squares import cell_of, key_of
from matching.window import NO_FLOOR, Boundary, Window
from tests.support.knn_engines import messages, replaced, subscriptions
from tests.support.worlds import SPACE

#: The first of an engine compiles it.
BATCH, TERMS = 20, 6
NOBODY, NOTHING = empty(SubscriptionTable), empty(Removals)


def make(**context) -> KnnOperator:
    return KnnOperator(InfluenceGrid, OperatorContext(SPACE, Window("count", 50), **context))


def words(rng, n: int):
    """Some of the terms for each row, as columns."""
    each = [np.sort(rng.choice(TERMS, rng.integers(1, 3), replace=False)) for _ in range(n)]
    flat = np.concatenate(each).astype(np.int32)
    offsets = np.cumsum([0, *map(len, each)])
    return {"term_offsets": offsets, "terms": flat, "weights": np.ones(flat.shape[0], np.float32)}


def said(rng, number: int) -> MessageBatch:
    """The messages of a batch; some are at one place."""
    return replaced(messages(np.round(rng.random((BATCH, 2)), 2), number * BATCH), **words(rng, BATCH))


def joining(rng, numbers, first_seq: int) -> SubscriptionTable:
    """Subscriptions that begin anywhere inside a batch."""
    n = len(numbers)
    table = subscriptions(np.round(rng.random((n, 2)), 2), 1)
    return replaced(
        table, number=np.array(numbers), k=rng.integers(1, 5, n).astype(np.int32),
        at=first_seq + rng.integers(0, BATCH, n), **words(rng, n),
    )  # fmt: skip


def leaving(numbers) -> Removals:
    n = len(numbers)
    return Removals(np.array(numbers, np.int64), np.full(n, KNN, np.int8), np.zeros(n, np.int64))


def step(operator: KnnOperator, batch: MessageBatch, added=NOBODY, removed=NOTHING, number=None, home=0):
    """Process the next batch."""
    number = operator.watermark + 1 if number is None else number
    boundary = Boundary(number, number * BATCH, number * BATCH + BATCH - 1, NO_FLOOR)
    rows = len(added)
    given = OperatorInput(boundary, batch, NO_MESSAGES, added, np.full(rows, home), np.ones(rows, np.bool_), removed)
    return operator.close(operator.match(given).own_hits, [])


class Plain:
    """Each subscription with all the messages that have been near enough to be seen."""

    def __init__(self):
        self.rows: dict[int, tuple] = {}
        self.seen: dict[int, list[tuple[float, int]]] = {}

    def result(self, number: int) -> dict[int, float]:
        k = self.rows[number][2]
        return {seq: distance for distance, seq in sorted(self.seen[number])[:k]}

    def radius(self, number: int) -> float:
        """Of the k-th, if there are k."""
        result = self.result(number)
        return max(result.values()) if len(result) == self.rows[number][2] else math.inf

    def step(self, batch: MessageBatch, added=NOBODY, removed=NOTHING) -> Counter:
        """Updates as (number, seq, change, distance)."""
        before = {number: self.result(number) for number in self.rows}
        gone = set(removed.number.tolist())
        for row, number in enumerate(added.number.tolist()):
            cut = slice(added.term_offsets[row], added.term_offsets[row + 1])
            self.rows[number] = added.x[row], added.y[row], added.k[row], set(added.terms[cut].tolist()), added.at[row]
            self.seen[number] = []
        for number in gone & self.rows.keys():
            del self.rows[number], self.seen[number]
        for row, seq in enumerate(batch.seq.tolist()):
            mine = set(batch.terms[batch.term_offsets[row] : batch.term_offsets[row + 1]].tolist())
            for number, (x, y, _, terms, at) in self.rows.items():
                if seq >= at and terms & mine:
                    dx, dy = x - batch.x[row], y - batch.y[row]
                    self.seen[number].append((math.sqrt(dx * dx + dy * dy), seq))
        told: Counter = Counter()
        for number in before.keys() | self.rows.keys():
            old, new = before.get(number, {}), self.result(number) if number in self.rows else {}
            told.update((number, seq, LEAVE, old[seq]) for seq in old.keys() - new.keys())
            told.update((number, seq, ENTER, new[seq]) for seq in new.keys() - old.keys())
        return told


def updates_of(output: OperatorOutput) -> Counter:
    u = output.updates
    return Counter(zip(u.number.tolist(), u.seq.tolist(), u.change.tolist(), u.score.tolist(), strict=True))


def assert_results(operator: KnnOperator, plain: Plain) -> None:
    results, expected = operator.results(), []
    for number in plain.rows:
        ranked = sorted((distance, seq) for seq, distance in plain.result(number).items())
        expected += [(number, rank, seq, distance) for rank, (distance, seq) in enumerate(ranked)]
    first = results.rank.min() if len(expected) else 0
    got = zip(
        results.number.tolist(), (results.rank - first).tolist(), results.seq.tolist(), results.score.tolist(),
        strict=True,
    )  # fmt: skip
    assert sorted(got) == sorted(expected)
    full = sum(len(plain.result(number)) == row[2] for number, row in plain.rows.items())
    assert operator.report() == {"homed": len(plain.rows), "full": full}


def changes(rng, plain: Plain, number: int):
    """Some who come, some who go, some who are not here, and one that does both."""
    following = 8 * number
    added = joining(rng, range(following, following + 8), number * BATCH)
    gone = rng.choice(list(plain.rows), 5, replace=False).tolist() if len(plain.rows) > 10 else []
    return added, leaving([*gone, following + 3, 10_000])


@pytest.mark.parametrize("ranges", [False, True], ids=["", "ranges"])
def test_operator_reports_distances_of_what_enters_and_leaves(ranges):
    rng, operator, plain, count = np.random.default_rng(1), make(ranges=ranges), Plain(), 0
    for number in range(25):
        batch = said(rng, number)
        added, removed = changes(rng, plain, number) if number % 3 != 1 else (NOBODY, NOTHING)
        told = updates_of(step(operator, batch, added, removed))
        assert told == plain.step(batch, added, removed)
        assert all(row[3] >= 0.0 for row in told)
        count += len(told)
        assert operator.watermark == number and len(operator) == len(plain.rows)
        assert_results(operator, plain)
    assert count > 1_000 and operator.report()["full"] > 10


def test_operator_of_another_home_or_batch_is_refused_and_nothing_has_changed():
    rng, operator, plain = np.random.default_rng(2), make(task=0), Plain()
    added = joining(rng, range(6), 0)
    for number in range(2):
        batch = said(rng, number)
        assert updates_of(step(operator, batch, added)) == plain.step(batch, added)
        added = NOBODY
    later = joining(rng, range(6, 9), 2 * BATCH)
    with pytest.raises(EngineError, match="batch 3 cannot follow batch 1"):
        step(operator, said(rng, 3), later, number=3)
    with pytest.raises(EngineError, match="must be assigned to its home task"):
        step(operator, said(rng, 2), later, home=1)
    assert operator.watermark == 1 and len(operator) == 6
    assert operator.contains(np.array([0, 5, 6, 7])).tolist() == [True, True, False, False]
    batch = said(rng, 2)
    assert updates_of(step(operator, batch, later)) == plain.step(batch, later)
    assert_results(operator, plain)


# ------------------------------------------------------------------------------------------------------------ snapshots


def test_operator_snapshot_is_of_its_boundary_whatever_comes_before_it_is_written():
    rng, operator, plain = np.random.default_rng(3), make(), Plain()
    for number in range(6):
        batch, added = said(rng, number), joining(rng, range(10 * number, 10 * number + 10), number * BATCH)
        step(operator, batch, added)
        plain.step(batch, added)
    now, taken = operator.state(), operator.snapshot()
    again = operator.snapshot(taken.version)
    for number in range(6, 9):
        step(operator, said(rng, number), joining(rng, range(10 * number, 10 * number + 10), 0), leaving(range(5)))
    assert taken.subscriptions is not None
    late = taken.subscriptions().beside(taken.results()).arrays()
    assert late.keys() == now.arrays().keys()
    for name, value in now.arrays().items():
        np.testing.assert_array_equal(value, late[name], err_msg=name)
    # subscriptions that are in a file are not copied, results are
    assert again.version == taken.version != operator.snapshot().version
    for name, value in again.results().arrays().items():
        np.testing.assert_array_equal(value, late[name], err_msg=name)
    best, numbers = now.lists["best"], now.rows["number"].tolist()
    for row, number in enumerate(numbers):
        cut = slice(best.offsets[row], best.offsets[row + 1])
        keys = dict(zip(best.columns["seq"][cut].tolist(), best.columns["key"][cut].tolist(), strict=True))
        assert keys == {seq: -distance for seq, distance in plain.result(number).items()}
        # where it goes on: not before its beginning, and behind what it has
        assert max(plain.rows[number][4], *(seq + 1 for seq in keys), 0) <= now.rows["at"][row] <= 6 * BATCH


def test_operator_version_changes_with_subscriptions_and_not_with_messages():
    rng, operator, versions = np.random.default_rng(4), make(), []
    for number in range(6):
        added = joining(rng, [number], 0) if number in (0, 3) else NOBODY
        step(operator, said(rng, number), added, leaving([0]) if number == 4 else NOTHING)
        versions.append(operator.snapshot().version)
    assert [a == b for a, b in zip(versions, versions[1:], strict=False)] == [True, True, False, False, True]


@pytest.mark.parametrize("ranges", [False, True], ids=["", "ranges"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_operator_restored_goes_on_with_what_is_assigned_to_it(ranges, share):
    rng, operator, plain = np.random.default_rng(5), make(ranges=ranges), Plain()
    for number in range(10):
        batch = said(rng, number)
        added, removed = changes(rng, plain, number)
        step(operator, batch, added, removed)
        plain.step(batch, added, removed)
    state = operator.state()
    assigned = rng.random(len(state.table)) < share
    resumed = make(ranges=ranges)
    boundary = Boundary(9, 9 * BATCH, 10 * BATCH - 1, NO_FLOOR)
    resumed.restore(boundary, state, np.zeros(assigned.shape[0], np.int64), assigned)
    for number in state.rows["number"][~assigned].tolist():
        del plain.rows[number], plain.seen[number]
    assert resumed.watermark == 9
    assert_results(resumed, plain)
    count = 0
    for number in range(10, 16):
        batch = said(rng, number)
        added, removed = changes(rng, plain, number)
        told = updates_of(step(resumed, batch, added, removed))
        assert told == plain.step(batch, added, removed)
        count += len(told)
    assert_results(resumed, plain)
    assert count > 100


def test_operator_restored_does_not_see_what_was_before_a_subscription():
    """One that was to begin behind the boundary of the snapshot."""
    rng, operator, resumed = np.random.default_rng(6), make(), make()
    late = replaced(subscriptions([(0.5, 0.5)], 3, terms=range(TERMS)), at=np.array([BATCH + 7]))
    step(operator, said(rng, 0), late)
    resumed.restore(Boundary(0, 0, BATCH - 1, NO_FLOOR), operator.state(), np.zeros(1, np.int64), np.ones(1, np.bool_))
    batch = said(rng, 1)
    told = tally(step(resumed, batch).updates)
    assert told == tally(step(operator, batch).updates) and told
    assert resumed.results().seq.min() >= BATCH + 7


# ------------------------------------------------------------------------------------------------ where messages matter


def test_radii_are_those_of_the_farthest_of_full_results():
    rng, operator, plain = np.random.default_rng(7), make(), Plain()
    # one sees nothing, one not enough
    few = replaced(subscriptions([(0.1, 0.1), (0.2, 0.2)], 500, terms=(0,)), at=np.array([BATCH * 5, 0]))
    for number in range(5):
        batch = said(rng, number)
        added = joining(rng, range(10 * number + 2, 10 * number + 12), number * BATCH) if number else few
        step(operator, batch, added)
        plain.step(batch, added)
    state = operator.state()
    radii = KnnOperator.radii(state)
    assert radii.tolist() == [plain.radius(number) for number in state.rows["number"].tolist()]
    assert np.isinf(radii[:2]).all() and np.count_nonzero(radii < np.inf) > 20
    assert KnnOperator.radii(make().state()).shape == (0,)


def keys_at(batch: MessageBatch, row: int) -> set[int]:
    """Keys at which a router looks for a message."""
    return {
        int(key_of(side, cell_of(batch.x[row], batch.y[row], side), np.int64(term)))
        for side in SIDES
        for term in batch.terms[batch.term_offsets[row] : batch.term_offsets[row + 1]]
    }


def test_message_that_changes_a_result_is_at_a_key_that_was_reported():
    """Whatever has come, shrunk and gone since; and what is far from all is at none."""
    rng, operator, known = np.random.default_rng(8), make(ranges=True), set()
    entered = spared = 0
    for number in range(40):
        batch = said(rng, number)
        if number % 4:
            batch = replaced(batch, x=0.4 * batch.x, y=0.4 * batch.y)
        there = set(operator.state().rows["number"].tolist())
        added = joining(rng, range(4 * number, 4 * number + 4), number * BATCH) if number < 10 else NOBODY
        added = replaced(added, x=0.4 * added.x, y=0.4 * added.y)
        removed = leaving(rng.choice(list(there), 2, replace=False)) if 0 < number < 10 else NOTHING
        u = step(operator, batch, added, removed).updates
        for seq in set(u.seq[(u.change == ENTER) & np.isin(u.number, list(there))].tolist()):
            assert keys_at(batch, seq - number * BATCH) & known
            entered += 1
        spared += sum(not keys_at(batch, row) & known for row in range(BATCH)) if number > 30 else 0
        patch = operator.influence_patch(True)
        assert patch is not None
        came, gone = set(patch.came.tolist()), set(patch.gone.tolist())
        assert not came & known and gone <= known and not came & gone
        known = (known | came) - gone
    assert entered > 100 and spared > 50
    step(operator, NO_MESSAGES, NOBODY, leaving(range(40)))
    patch = operator.influence_patch(True)
    assert patch is not None and set(patch.gone.tolist()) == known and patch.came.shape[0] == 0


def test_subscription_that_has_seen_nothing_is_at_a_key_of_every_message():
    rng, operator = np.random.default_rng(11), make(ranges=True)
    step(operator, NO_MESSAGES, subscriptions([(0.1, 0.2)], 1, terms=(2,)))
    patch, batch = operator.influence_patch(True), said(rng, 1)
    assert patch is not None
    keys = set(patch.came.tolist())
    both = {(2 in batch.take(np.array([row])).terms, bool(keys_at(batch, row) & keys)) for row in range(BATCH)}
    assert both == {(True, True), (False, False)}


def test_patch_waits_until_it_is_worth_it_unless_subscriptions_are_new():
    rng, operator = np.random.default_rng(9), make(ranges=True)
    step(operator, said(rng, 0), joining(rng, range(30), 0))
    assert operator.influence_patch(False) is None
    first = operator.influence_patch(True)
    assert first is not None and first.size > 0
    second = operator.influence_patch(True)
    assert second is not None and second.size == 0, "what is reported is not reported again"
    waited, patch, following = 0, None, 30
    while patch is None and waited < 50:
        step(operator, said(rng, operator.watermark + 1), joining(rng, range(following, following + 40), 0))
        following += 40
        waited += 1
        patch = operator.influence_patch(False)
    assert waited > 1 and patch is not None and patch.size > 0


def test_restored_operator_has_the_keys_of_its_balls_and_reports_none_of_them():
    """Distribution tasks compute them themselves."""
    rng, operator = np.random.default_rng(10), make(ranges=True)
    for number in range(8):
        step(operator, said(rng, number), joining(rng, range(9 * number, 9 * number + 9), 0))
    state, resumed = operator.state(), make(ranges=True)
    rows = len(state.table)
    resumed.restore(Boundary(7, 0, 8 * BATCH - 1, NO_FLOOR), state, np.zeros(rows, np.int64), np.ones(rows, np.bool_))
    patch = resumed.influence_patch(True)
    assert patch is not None and patch.size == 0
    fresh, store = InfluenceKeys(SPACE), resumed.engine.subscriptions
    fresh.follow(store, store.live_slots())
    keys = set(fresh.patch().came.tolist())
    step(resumed, NO_MESSAGES, NOBODY, leaving(range(rows)))
    patch = resumed.influence_patch(True)
    assert patch is not None and set(patch.gone.tolist()) == keys and len(keys) > 50


def test_operator_has_influence_keys_only_where_routers_ask_for_them():
    plainly, ranged = make(), make(ranges=True)
    extra = ranged.arrays().keys() - plainly.arrays().keys()
    assert extra and all(name.startswith("influence_") for name in extra)
    assert not plainly.arrays().keys() - ranged.arrays().keys()
    with pytest.raises(AssertionError, match="only where routers go by influence"):
        plainly.influence_patch(True)
