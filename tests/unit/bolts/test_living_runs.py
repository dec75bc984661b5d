"""Living versions of a stream of objects: which live, what of them is saved again, and names that survive a resume."""

import numpy as np
import pytest

from bolts.payloads import Closed
from bolts.retained import LivingMessages
from matching.model import Names
from matching.window import NO_FLOOR, Boundary, Window
from tests.support.deliveries import changes, deliver, ids, make, updates
from tests.support.saving import through_frames
from tests.support.snapshots import arrays_of

LIVING = Window("living", 0)


def saved(table, next_seq):
    return table.state(next_seq) | {f"{number}:seq": seqs for number, seqs in table.runs().items()}


@pytest.mark.parametrize("seed", range(3))
def test_living_messages_are_those_of_a_set_and_survive_being_saved(seed):
    rng, table, alive, first = np.random.default_rng(seed), LivingMessages(), set(), 0
    for number in range(300):
        end = first + int(rng.integers(1, 40))
        alive.update(range(first, end))
        dead = rng.choice(sorted(alive), int(rng.integers(0, min(len(alive), 38))), replace=False)
        alive.difference_update(dead.tolist())
        table.note(Boundary(number, first, end - 1, NO_FLOOR), dead)
        table.settle(number)
        first = end
        if rng.random() < 0.1:
            state, table = saved(table, first), LivingMessages()
            table.restore(state)
            runs = table.runs()
            lives = [seqs[np.unpackbits(state[f"{one}:lives"], count=len(seqs)) == 1] for one, seqs in runs.items()]
            assert set(np.concatenate(lives).tolist()) == alive
        named = table.seqs()
        assert alive <= set(named.tolist()) and np.all(np.diff(named) > 0) and len(named) <= 2 * len(alive)
        assert len(table.runs()) < 12


def moved(bolt, number, first, end, dead):
    """A batch of versions from seq to seq, of objects named by the seq of their first version."""
    at = Boundary(number, first, end - 1, NO_FLOOR)
    names = Names.of([f"object {seq}" for seq in range(first, end)])
    given = ids(at)._replace(objects=names, dead=np.array(dead, np.int64))
    deliver(bolt, changes(number), given, Closed(at, number, updates()))


@pytest.mark.parametrize("sink", ["jsonl", "count"])
def test_delivery_saves_names_of_living_versions_once_and_resumes_with_them(tmp_path, sink):
    """Of 4,000 versions few end in a batch, so that no file of theirs is written again."""
    bolt, _ = make(tmp_path / "first", window=LIVING, objects=True, sink=sink)
    moved(bolt, 0, 0, 4_000, [])
    before = bolt.snapshot({})
    for number in range(1, 6):
        first = 4_000 + 10 * (number - 1)
        moved(bolt, number, first, first + 10, range(700 * number, 700 * number + 10))
    after = bolt.snapshot({})
    (large,) = (name for name in before if name.startswith("run"))
    assert before[large].version == after[large].version
    assert all(np.array_equal(one, after[large].arrays()[name]) for name, one in before[large].arrays().items())
    fresh = {name: fragment for name, fragment in after.items() if name != large}
    sizes = [sum(one.nbytes for one in arrays_of(some).values()) for some in (fresh, {large: after[large]})]
    assert 15 * sizes[0] < sizes[1]
    resumed, _ = make(tmp_path / "second", window=LIVING, objects=True, sink=sink)
    resumed.restore(through_frames(5, delivery=bolt))
    seqs = np.setdiff1d(np.arange(4_050), [700 * number + row for number in range(1, 6) for row in range(10)])
    for column in ("messages", "objects"):
        assert np.array_equal(getattr(resumed, column).hashes(seqs), getattr(bolt, column).hashes(seqs))
    again = resumed.snapshot({})
    assert again[large].version == after[large].version
    assert all(np.array_equal(one, again[large].arrays()[name]) for name, one in after[large].arrays().items())
    moved(resumed, 6, 4_050, 4_060, [0])
    for each in (bolt, resumed):
        each.close()
