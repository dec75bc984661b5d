"""Updates go to the delivery task that owns their subscription; equal columns stay one, and travel once."""

import numpy as np

from bolts.names import hash_names
from bolts.shares import Owners, owner_of
from matching.model import Names, UpdateBatch, take_rows


def test_split_updates_are_those_of_each_owner_in_order_and_share_their_columns():
    names, tasks = Names.of([f"s{number}" for number in range(50)]), 3
    owners, owner = Owners(tasks), owner_of(hash_names(names), tasks)
    owners.note(np.arange(50), names)
    rng = np.random.default_rng(4)
    seq, number = np.sort(rng.integers(0, 90, 40)), rng.integers(0, 50, 40)
    updates = UpdateBatch(seq, number, seq, np.zeros(40, np.int8), rng.random(40))
    parts = owners.split(updates)
    assert sum(map(len, parts)) == 40 and len(parts) == tasks
    for task, part in enumerate(parts):
        wanted = take_rows(updates, owner[number] == task)
        assert all(np.array_equal(own, column) for own, column in zip(part, wanted, strict=True))
        assert part.as_of is part.seq and part.number is not part.seq
