"""Which tuple task stores a message: parts by place of equal load, where crowded cells are shared."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distribution.parts import CELLS, cell_of
from distribution.window_parts import WindowParts, window_load
from matching.model import MessageBatch


def messages_at(x: np.ndarray, y: np.ndarray) -> MessageBatch:
    seq, offsets = np.arange(x.shape[0]), np.zeros(x.shape[0] + 1, np.int64)
    return MessageBatch(seq, x, y, x, y, x, y, seq, offsets, np.zeros(0, np.int32), np.zeros(0, np.float32))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 70), st.floats(0.0, 1.0))
def test_tasks_store_equally_many_however_the_messages_crowd(seed, tasks, spread):
    """At a spread of 0 all are at one point, in a cell that all tasks share."""
    rng = np.random.default_rng(seed)
    x, y = 0.3 + 0.6 * spread * rng.random((2, 20_000))
    owner = WindowParts(tasks, window_load(x[:5_000], y[:5_000])).owner_of(messages_at(x, y))
    stored = np.bincount(owner, minlength=tasks)
    assert stored.shape[0] == tasks and stored.max() <= 1.5 * 20_000 / tasks + 60


@pytest.mark.parametrize("tasks", [2, 7, 20])
def test_places_belong_to_few_tasks_and_neighbours_to_the_same(tasks):
    x, y = np.random.default_rng(4).random((2, 50_000))
    owner = WindowParts(tasks, window_load()).owner_of(messages_at(x, y))
    pairs = np.unique(cell_of(x, y) * tasks + owner)
    assert pairs.shape[0] <= CELLS + tasks, "a cell has a second task only where two parts meet"
    inside = (np.abs(x - 0.3) < 0.03) & (np.abs(y - 0.3) < 0.03)
    assert np.unique(owner[inside]).shape[0] <= max(2, tasks // 3) and np.unique(owner).shape[0] == tasks


def test_owner_depends_on_the_message_alone():
    x, y = np.random.default_rng(5).random((2, 1_000)) ** 3
    messages, parts = messages_at(x, y), WindowParts(5, window_load(x, y))
    rows = np.random.default_rng(6).permutation(1_000)[:300]
    assert np.array_equal(parts.owner_of(messages)[rows], parts.owner_of(messages.take(rows)))
