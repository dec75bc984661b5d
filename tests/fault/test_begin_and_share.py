"""Where runs begin: what fails at open leaves nothing, and runs with one folder of checkpoints keep to their own."""

import json
import shutil

import pytest

from gateway import cli
from matching.errors import ConfigError, InputError
from tests.support.faulty_runs import FaultyRun, make_work
from topology.core.checkpoint.store import CheckpointStore

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return make_work(tmp_path_factory.mktemp("shared"), 4_000, 40)


def names_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.name != ".lock"}


def run_arguments(work, etl, subscriptions, out, *more):
    named = [word for file in subscriptions for word in ("--subscriptions", file)]
    named += [word for name, value in work.options.items() for word in (f"--{name}", value)]
    words = ["run", "--messages", etl, *named, "--out", out, "--executor", "local", "--json", *more]
    return list(map(str, words))


@pytest.mark.parametrize(
    ("what", "overwrite"),
    [
        *((what, False) for what in ("messages", "footer", "subscriptions", "checkpoints")),
        ("messages", True),
        *(pytest.param(what, True, marks=pytest.mark.wide) for what in ("footer", "subscriptions", "checkpoints")),
    ],
    ids=lambda value: value if isinstance(value, str) else "overwrite" if value else "new",
)
def test_run_that_fails_at_open_leaves_the_output_folder_as_it_was(work, tmp_path, capsys, what, overwrite):
    etl, files, out, more = tmp_path / "etl", list(work.files), tmp_path / "out", []
    shutil.copytree(work.etl, etl)
    if what in ("messages", "footer"):
        path = max((etl / "messages").iterdir())
        data = path.read_bytes()
        path.write_bytes(data[:200] if what == "messages" else data[:-9] + bytes(9))
        if what == "footer":
            assert path.stat().st_size == len(data)

        def mend():
            path.write_bytes(data)

    elif what == "subscriptions":
        files[0] = tmp_path / "bad.parquet"
        files[0].write_bytes(b"PAR1 and nothing else")

        def mend():
            files[0] = work.files[0]

    else:
        more = ["--set", "recovery.checkpoints=nosuch://place"]

        def mend():
            more[1] = f"recovery.checkpoints={tmp_path / 'place'}"

    if overwrite:
        assert cli.main(run_arguments(work, work.etl, work.files, out)) == 0
        more.append("--overwrite")
    before = names_in(out) if overwrite else set()
    arguments = run_arguments(work, etl, files, out, *more)
    for _ in range(2):  # the same command once more
        assert cli.main(arguments) in (InputError.exit_code, ConfigError.exit_code, 5), what
        assert (names_in(out) if out.exists() else set()) == before
        assert out.exists() == overwrite
    capsys.readouterr()
    mend()
    assert cli.main(run_arguments(work, etl, files, out, *more)) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == work.digest


def test_runs_that_begin_at_once_in_one_folder_of_checkpoints_keep_to_their_own(work, tmp_path):
    shared = tmp_path / "shared"
    runs = [FaultyRun(work, tmp_path / name) for name in ("first", "second")]
    more = ("--executor", "local", "--set", "input.rate=400", "--set", f"recovery.checkpoints={shared}")
    with runs[0].start(*more) as first, runs[1].start(*more) as second:

        def saved(run: FaultyRun) -> int:
            if not (run.out / "run.json").exists():
                return 0
            return len(list((shared / run.report()["run"]).glob("epoch-*.json")))

        first.await_(lambda: saved(runs[0]) and saved(runs[1]))
        for run, command in zip(runs, (first, second), strict=True):
            run.strike(command, command.process.kill)
            command.process.wait(20)
    assert not [path for path in shared.iterdir() if path.is_file()]
    for run in runs:
        own = CheckpointStore(str(shared / run.report()["run"])).newest()
        assert own is not None and own.facts["run"] == run.report()["run"]
        with run.resume("--set", "input.rate=1e9") as command:
            run.finish(command)
        run.assert_exact(1)
    assert not list(shared.iterdir()), "what a finished run has saved goes with its folder"
