"""Signatures of points in one pass: the messages that the step-by-step test lets through, and no others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distribution.hashing import HashingRouter
from distribution.location import LocationRouter
from distribution.router import board_of
from distribution.signatures import points
from distribution.signatures.claims import claims_of
from distribution.signatures.signature import QuerySignature, SignatureBoard
from matching.model import BOOLEAN, SKYLINE, Removals
from tests.support.signature_tables import SMALL, SPACE, matching, random_messages, random_subscriptions
from tests.unit.distribution.test_signature_parts import LOSSLESS, name

TASKS = 4


def boards(spec, router, seed):
    """A board that some patches have reached, with claims that none covers yet, and everybody's subscriptions."""
    board, table = board_of(router), random_subscriptions(seed, 60, kinds=(BOOLEAN, SKYLINE))
    assert isinstance(board, SignatureBoard)
    signatures = [QuerySignature(spec, router.domain_of(task), task) for task in range(TASKS)]
    for batch in range(3):
        coming = table.take(np.arange(20 * batch, 20 * batch + 20))
        board.change(coming, router.assigned_to)
        for task, signature in enumerate(signatures):
            mine = claims_of(coming.take(np.flatnonzero(router.assigned_to(coming, task))))
            signature.change(mine, mine.take(np.zeros(0, np.int64)))
            # of the last list no patch has arrived, and from one task none at all
            if batch < 2 and task:
                patch = signature.patch(batch, noted=True)
                assert patch is not None
                board.apply(patch)
    return board, table


def routers(spec):
    places = SPACE.project(np.linspace(-170, 170, 99), np.linspace(-80, 80, 99))
    return LocationRouter(TASKS, SPACE, *places, spec), HashingRouter(TASKS, spec)


@pytest.mark.parametrize("spec", LOSSLESS, ids=name)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_points_that_pass_are_those_that_may_match(spec, seed):
    # as many cells as the parts of the world are cut by at least
    spec = spec._replace(side=64)
    location, hashing = routers(spec)
    messages = random_messages(seed, 80)
    x, y = SPACE.project(messages.west, messages.south)
    board, _ = boards(spec, location, seed)
    owner = location.owner_of_centre(messages)
    wanted = np.zeros(80, np.bool_)
    for task, replica in enumerate(board.replicas):
        wanted |= replica.may_match(messages) & (owner == task)
    assert np.array_equal(board.passed_by_owner(messages, x, y, owner), wanted)
    assert (board.queried, board.kept_back) == (80, 80 - wanted.sum())
    board, _ = boards(spec, hashing, seed)
    wanted = [np.flatnonzero(replica.may_match(messages)).tolist() for replica in board.replicas]
    assert [rows.tolist() for rows in board.wanted_points(messages)] == wanted


@pytest.mark.parametrize("spec", LOSSLESS, ids=name)
def test_routers_lose_no_message_that_matches_and_spare_some(spec):
    sent = matches = 0
    for seed in range(6):
        for router in routers(spec._replace(side=64)):
            board, subscriptions = boards(router.signatures, router, seed)
            table, messages = router.table(), random_messages(seed, 200)
            none = np.zeros(0, np.int64)
            table.change(subscriptions, Removals(none, none.astype(np.int8), none))
            table._board = board
            for task, rows in enumerate(table.route(messages)):
                mine = np.flatnonzero(router.assigned_to(subscriptions, task))
                matched = matching(subscriptions.take(mine), messages)
                if isinstance(router, LocationRouter):
                    matched &= router.owner_of_centre(messages) == task
                assert np.isin(np.flatnonzero(matched), rows).all()
                sent, matches = sent + rows.size, matches + np.count_nonzero(matched)
    # by location a message is sent once, by hashing four times
    assert matches > 300 and sent < 6 * 200 * (1 + TASKS)


def test_points_of_a_signature_without_borders_are_lost(monkeypatch):
    """What is broken on purpose: no tolerance where a place lies on the border of a cell."""
    spec = LOSSLESS[0]._replace(side=64)
    monkeypatch.setattr(points, "pass_cells", points.pass_cells.py_func)
    monkeypatch.setattr(points, "_cell", lambda value, side: min(max(int(np.floor(value * side)), 0), side - 1) // 2)
    monkeypatch.setattr("distribution.signatures.signature.pass_cells", points.pass_cells)
    router = routers(spec)[0]
    board, _ = boards(spec, router, 1)
    messages = random_messages(1, 80)
    x, y = SPACE.project(messages.west, messages.south)
    owner = router.owner_of_centre(messages)
    wanted = np.zeros(80, np.bool_)
    for task, replica in enumerate(board.replicas):
        wanted |= replica.may_match(messages) & (owner == task)
    assert not np.array_equal(board.passed_by_owner(messages, x, y, owner), wanted)


def test_nowhere_is_in_no_cell():
    router = routers(LOSSLESS[0]._replace(side=64))[0]
    board, _ = boards(router.signatures, router, 2)
    messages = random_messages(2, 40)
    nowhere = np.full(40, np.nan)
    passed = board.passed_by_owner(messages, nowhere, nowhere, np.full(40, 2))
    assert not passed.any() and SMALL.side < 64
