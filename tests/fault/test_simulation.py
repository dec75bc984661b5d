"""Disturbed at random and gone on with, a run tells what an undisturbed one tells: nothing missing, extra, or twice.

Each history comes from a seed; one that goes wrong prints the command that lives through it again.
"""

import random
from collections import Counter

import pytest

from tests.fault.simulate import main, replay
from tests.support.clocks import FakeClock
from tests.support.simulated_disk import Halted, Machine
from tests.support.simulation import FAULTS, published, simulate, undisturbed
from tests.support.stories import STORIES, LedgerStory
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import Checkpoints, complete
from topology.core.checkpoint.store import CheckpointStore
from topology.core.executors.local import run_local

pytestmark = pytest.mark.fault

#: Histories of each fault: those a commit waits for, and those it does not.
SHORT, LONG = {"ledger": 20, "product": 1}, {"ledger": 500, "product": 40}


def live_through(story, fault, seeds):
    """Live through histories. Each must have been disturbed, and together they must have had much to lose."""
    rows, lives, early, fired = 0, 0, 0, Counter()
    for seed in seeds:
        try:
            lived = simulate(STORIES[story](seed), fault, seed)
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error}\nlive through it again: {replay(story, fault, seed)}")
        rows, lives, fired = rows + lived.rows, lives + lived.lives, fired + lived.fired
        early += lived.died_going_on
    assert rows >= 1_000, f"{rows} rows in all: too few to lose one"
    assert fired.total() >= len(seeds) and lives > len(seeds), f"{fired} and {lives} processes: nobody was disturbed"
    if fault in ("operation", "torn") and len(seeds) >= 20:
        assert early, "nobody died while going on"


@pytest.mark.parametrize("fault", [*FAULTS, "mixed"])
@pytest.mark.parametrize("story", SHORT)
def test_disturbed_history_tells_what_an_undisturbed_one_tells(story, fault):
    first = list(FAULTS).index(fault) if fault in FAULTS else 0  # stories of the product differ by the seed
    live_through(story, fault, range(first, first + SHORT[story]))


def test_simulate_lives_through_one_history_again(capsys):
    command = replay("ledger", "torn", 7).split()
    assert command[:3] == ["python", "-m", "tests.fault.simulate"]
    said = []
    for _ in range(2):
        assert main(command[3:]) == 0
        said.append(capsys.readouterr().out.partition(" (")[0])
    assert said[0] == said[1] and said[0].startswith("torn 7: Lived(rows=259")


@pytest.mark.parametrize("stops", [False, pytest.param(True, marks=pytest.mark.long)], ids=["killed", "stopped"])
def test_death_before_any_operation_leaves_the_old_state_or_the_new_one(stops):
    """Whatever has its name is covered by the newest checkpoint, and the run goes on from there."""
    story = LedgerStory("jsonl", batches=6, size=12)
    whole, moments = undisturbed(story), 0
    while True:
        machine = Machine("every-operation")
        machine.halt_before(None, moments)
        try:
            saved_run(story, machine, 0)
            break
        except Halted:
            moments += 1
        machine.restart()
        if stops:
            machine.lose(random.Random(moments))
        store = CheckpointStore(f"{machine.root}/checkpoints")
        manifest = store.newest()
        assert not store.refused
        named = [path.removeprefix("updates/") for path in machine.paths("updates/part-")]
        if manifest is not None:
            covered = int(store.load(manifest).single("ledger")["sink:part"])
            ending = published(machine)[0] == whole.rows  # names without a checkpoint come at the end alone
            assert len(named) <= covered or ending, f"operation {moments}: {named}, covered up to {covered}"
            complete(machine.root, manifest)
            assert len(machine.paths("updates/part-")) >= covered
        else:
            assert not named, f"operation {moments}: {named} without a checkpoint"
            machine.remove(machine.paths())
        saved_run(story, machine, 1, None if manifest is None else store.load(manifest))
        assert published(machine) == (whole.rows, whole.results), f"operation {moments}"
        machine.forget()
    assert moments == machine.done.total() > 150
    machine.forget()


def saved_run(story, machine, incarnation, resume=None):
    """A run that is saved behind every second batch, and makes a part of most of them."""
    store = CheckpointStore(f"{machine.root}/checkpoints")
    checkpoints = Checkpoints(store, Cadence(batches=2), machine.root, dict, incarnation)
    plan = story.plan(machine.root, None)
    return run_local(plan, seed=1, clock=FakeClock(step_s=3.0), checkpoints=checkpoints, resume=resume)


@pytest.mark.long
@pytest.mark.parametrize("fault", [*FAULTS, "mixed"])
@pytest.mark.parametrize("story", LONG)
def test_many_disturbed_histories_tell_what_an_undisturbed_one_tells(story, fault):
    live_through(story, fault, range(SHORT[story], SHORT[story] + LONG[story]))
