"""A run whose process is killed -9: the files of its subscriptions are named on, not written again."""

import pytest

from gateway.subscriptions.generate import generate_subscriptions
from tests.support.etl_folder import random_rows, write_etl
from tests.support.faulty_runs import ENOUGH, FaultyRun, Work, told
from topology.core.checkpoint.writer import SMALL_FRAGMENT_BYTES
from topology.running import run
from topology.settings import RunConfig

pytestmark = pytest.mark.fault

#: So many subscriptions have a file of their own.
SUBSCRIPTIONS = 5_000


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fragments")
    etl, file = write_etl(folder / "etl", random_rows(3_000)), folder / "boolean.jsonl"
    generate_subscriptions(etl, "boolean", SUBSCRIPTIONS, 4, file, region_share=0.02, max_frequency=1.0)
    options = {"window": "count:200", "batch": 20}
    config = RunConfig(
        messages=etl, subscriptions=(file,), out=folder / "quiet", executor="local", checkpoint_every=0.0, **options
    )
    report, expected = run(config), told(folder / "quiet")
    assert expected.total() >= ENOUGH
    return Work(etl, (file,), options, expected, report["digest"])


def fragments(out):
    """Files of subscriptions."""
    return {path.name for path in (out / "checkpoints").glob("epoch-*.boolean.*.frame")}


@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.long])])
def test_killed_run_names_the_files_of_its_subscriptions_on(work, tmp_path, executor):
    killed = FaultyRun(work, tmp_path / "out")
    with killed.start("--set", "input.rate=400", "--executor", executor, "--query-bolts", 2) as command:
        killed.await_progress(command, 2)
        killed.strike(command, command.process.kill)
        command.finish()
    before = fragments(killed.out)
    assert len(before) == 2 * 2, "of each query task one of each of the two checkpoints that are kept"
    named_bytes = sum((killed.out / "checkpoints" / name).stat().st_size for name in before) // 2
    assert named_bytes > 2 * SMALL_FRAGMENT_BYTES
    with killed.resume("--set", f"input.rate={1000 if executor == 'local' else 300}") as command:
        killed.await_progress(command, 2)
        assert fragments(killed.out) == before
        killed.finish(command)
    report = killed.assert_exact(1)
    checkpoints = [one for one in report["topology"]["checkpoints"] if "failed" not in one]
    assert len(checkpoints) > 1
    assert {one["size_bytes"] - one["written_bytes"] for one in checkpoints} == {named_bytes}
