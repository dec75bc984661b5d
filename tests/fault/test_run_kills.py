"""`skyray run --resume auto` that dies before any operation of its disk, and is started again, ends as if undisturbed.

The command's own functions run over real files that mirror a simulated disk; `test_simulation.py` has many more
histories, of topologies without them. Live streams are in `test_live_kills.py`.
"""

import random
from collections import Counter

import pyarrow.parquet as pq
import pytest

from tests.support.killed_streams import given_lines, parts_of
from tests.support.mirrored_disk import MirroredDisk
from tests.support.simulated_disk import Machine
from topology.running import run_or_resume
from topology.settings import RunConfig

pytestmark = [pytest.mark.fault, pytest.mark.long, pytest.mark.timeout(1_800)]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Messages, and files of subscriptions of every kind."""
    folder = tmp_path_factory.mktemp("given")
    return given_lines(folder, True).etl, tuple(sorted(folder.glob("*.jsonl")))


def lived(given, folder, deaths=(), luck=1):
    """What a run leaves whose lives die before these operations, with the machine or without; and all operations."""
    folder.mkdir()
    machine = Machine(str(folder))
    disk = MirroredDisk(machine, folder / "disk")
    out = disk.root / "out"
    for life, (number, stops) in enumerate([*deaths, (None, False)]):
        if number is not None:
            machine.halt_before(None, number)
        digest = None
        try:
            with disk.watched():
                digest = life_of(given, out, 1 + life % 2)
        except BaseException:
            if not machine.halted:
                raise
        disk.restart()
        if digest is not None:
            break
        disk.assert_alike()
        if stops:
            disk.lose(random.Random(f"{luck} {deaths} {life}"))
    machine.forget()
    parts = sorted((out / "updates").glob("part-*"))
    rows = Counter(tuple(row.values()) for part in parts for row in pq.read_table(part).to_pylist())
    return (digest, rows, pq.read_table(out / "results.parquet").to_pylist()), disk.done


def life_of(given, out, delivery_bolts):
    messages, files = given
    config = RunConfig(
        messages=messages, subscriptions=files, out=out, window="count:15", world="earth", batch=8, executor="local",
        checkpoint_every=1e-6, seed=1, delivery_bolts=delivery_bolts,
    )  # fmt: skip
    return run_or_resume(config)[0]["digest"]


@pytest.mark.parametrize("rows", [1, 130], ids=["one part a checkpoint", "parts now and then"])
def test_run_that_dies_before_operations_of_its_disk_ends_as_if_undisturbed(given, tmp_path, rows):
    with parts_of(rows):
        whole, operations = lived(given, tmp_path / "whole")
        assert sum(whole[1].values()) > 500 and max(whole[1].values()) == 1
        rng = random.Random(rows)
        once = [((number, number % 2 == 1),) for number in range(0, len(operations), 3)]
        twice = [
            ((rng.randrange(len(operations)), rng.random() < 0.5), (rng.randrange(80), rng.random() < 0.6))
            for _ in range(80)
        ]
        for place, deaths in enumerate([*once, *twice]):
            found, _ = lived(given, tmp_path / str(place), deaths)
            assert found == whole, f"dies before operations {deaths}, with the machine or without"
