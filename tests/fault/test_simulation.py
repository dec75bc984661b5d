"""Disturbed at random and gone on with, a run tells what an undisturbed one tells: nothing missing, extra, or twice.

Each history comes from a seed; one that goes wrong prints the command that lives through it again.
"""

from collections import Counter

import pytest

from tests.fault.simulate import replay
from tests.support.simulation import FAULTS, simulate
from tests.support.stories import STORIES

pytestmark = pytest.mark.fault

#: Histories of each fault: those a commit waits for, and those it does not.
SHORT, LONG = {"ledger": 20, "product": 3}, {"ledger": 500, "product": 40}


def live_through(story, fault, seeds):
    """Live through histories. Each must have been disturbed, and together they must have had much to lose."""
    rows, lives, fired = 0, 0, Counter()
    for seed in seeds:
        try:
            lived = simulate(STORIES[story](seed), fault, seed)
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error}\nlive through it again: {replay(story, fault, seed)}")
        rows, lives, fired = rows + lived.rows, lives + lived.lives, fired + lived.fired
    assert rows >= 1_000, f"{rows} rows in all: too few to lose one"
    assert fired.total() >= len(seeds) and lives > len(seeds), f"{fired} and {lives} processes: nobody was disturbed"


@pytest.mark.parametrize("fault", [*FAULTS, "mixed"])
@pytest.mark.parametrize("story", SHORT)
def test_disturbed_history_tells_what_an_undisturbed_one_tells(story, fault):
    live_through(story, fault, range(SHORT[story]))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", [*FAULTS, "mixed"])
@pytest.mark.parametrize("story", LONG)
def test_many_disturbed_histories_tell_what_an_undisturbed_one_tells(story, fault):
    live_through(story, fault, range(SHORT[story], SHORT[story] + LONG[story]))
