"""Bits of targets to rows, and the parts of a batch in one pass: the same as task by task."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distribution.splitting import split
from distribution.targets import no_targets, place_of, rows_of, set_bits
from matching.model import MessageBatch
from tests.support.signature_tables import random_messages


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 20, 62, 63, 130]), st.integers(0, 90))
def test_rows_of_each_task_are_those_with_its_bit_in_order(seed, tasks, messages):
    rng = np.random.default_rng(seed)
    wanted = rng.random((tasks, messages)) < rng.choice([0.0, 0.1, 1.0])
    bits = no_targets(messages, tasks)
    for task, row in np.argwhere(wanted):
        value, bit = place_of(task)
        bits[row, value] |= bit
    owner, passed = rng.integers(0, tasks, messages), rng.random(messages) < 0.5
    set_bits(owner, bits, passed)
    wanted[owner[passed], np.flatnonzero(passed)] = True
    assert [rows.tolist() for rows in rows_of(bits, tasks)] == [np.flatnonzero(row).tolist() for row in wanted]
    set_bits(owner, bits)
    wanted[owner, np.arange(messages)] = True
    assert [rows.tolist() for rows in rows_of(bits, tasks)] == [np.flatnonzero(row).tolist() for row in wanted]


@pytest.mark.parametrize("columns", ["points", "ranges", "all", "none"])
def test_parts_of_a_batch_are_those_that_are_taken_one_by_one(columns):
    rng = np.random.default_rng(8)
    messages = random_messages(3, 0 if columns == "none" else 80, ranges=columns == "ranges")
    if columns == "all":
        n, terms = len(messages), messages.terms.shape[0]
        more = {"counts": rng.integers(1, 9, terms).astype(np.int32), "event_time_us": np.arange(n)}
        more |= {"keys": rng.integers(0, 9, (n, 2)), "vector": rng.random((n, 3))}
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(rng.integers(0, 4, n))])
        more |= {"order_offsets": ends, "order": rng.integers(-2, 9, ends[-1]).astype(np.int32)}
        messages = MessageBatch(**(messages._asdict() | more))
    rows = [np.flatnonzero(rng.random(len(messages)) < share) for share in (0.0, 0.2, 1.0, 0.5)]
    parts, sizes = split(messages, rows)
    for mine, part, size in zip(rows, parts, sizes, strict=True):
        wanted = messages.take(mine)
        for name in MessageBatch._fields:
            column = getattr(part, name)
            assert np.array_equal(column, getattr(wanted, name)) and column.dtype == getattr(wanted, name).dtype, name
            assert column.flags.c_contiguous and not (column.size and column.flags.writeable)
        assert (part.east is part.west) == (columns != "ranges")
        assert size == sum(column.nbytes for column in {id(each): each for each in part}.values())
