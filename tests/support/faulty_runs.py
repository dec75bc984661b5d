"""Runs of the product as processes that are killed, stopped and gone on with, and what they have told all the same.

The answer is collected outside the engine: the rows in the files that have names, beside those of a run that nobody
disturbed. A fault that did not strike in mid-stream, and an answer too short to mean anything, fail.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow.parquet as pq

from gateway.subscriptions.generate import generate_subscriptions
from matching.kinds import KINDS
from tests.support.etl_folder import random_rows, with_objects, write_etl
from tests.support.processes import Command, command_line
from topology.running import run
from topology.settings import RunConfig

#: Below so many rows an answer says little.
ENOUGH = 1_000


class Work(NamedTuple):
    """Inputs, settings, and what a run over them tells."""

    etl: Path
    files: tuple[Path, ...]
    options: dict[str, Any]
    expected: Counter
    digest: str


def make_work(folder: Path, messages: int, subscriptions: int, **options: Any) -> Work:
    """Messages of which a third are versions of others, so many subscriptions of every kind, some of which end."""
    etl = write_etl(folder / "etl", with_objects(random_rows(messages, late_s=25)))
    files = []
    for kind in KINDS.run:
        files.append(folder / f"{kind.name}.jsonl")
        share = 0.6 if kind.place == "region" else None
        generate_subscriptions(
            etl, kind.name, subscriptions, 4, files[-1], until_share=0.3, region_share=share, max_frequency=1.0
        )
    options = {"window": "count:200", "batch": 20, **options}
    config = RunConfig(
        messages=etl,
        subscriptions=tuple(files),
        out=folder / "quiet",
        executor="local",
        checkpoint_every=0.0,
        **options,
    )
    report = run(config)
    expected = told(folder / "quiet")
    assert expected.total() >= ENOUGH, f"only {expected.total()} rows to compare"
    return Work(etl, tuple(files), options, expected, report["digest"])


def told(out: Path) -> Counter:
    """Every row in files that have their names, and how often it is there."""
    rows: Counter = Counter()
    for path in sorted((out / "updates").glob("part-*")):
        columns = pq.read_table(path).to_pydict()
        rows.update(zip(*columns.values(), strict=True))
    return rows


def differences(out: Path, work: Work) -> dict[str, int]:
    """Rows that are missing, extra and repeated."""
    rows = told(out)
    return {
        "missing": (work.expected - rows).total(),
        "extra": len(set(rows) - set(work.expected)),
        "repeated": sum(count - work.expected[row] for row, count in rows.items() if count > work.expected[row] > 0),
    }


NOTHING = {"missing": 0, "extra": 0, "repeated": 0}


class FaultyRun:
    """One run folder, and the commands that write to it one after the other.

    Parameters
    ----------
    work : Work
    out : Path
    """

    def __init__(self, work: Work, out: Path):
        self.work = work
        self.out = out
        self.struck = 0

    def start(
        self, *more: object, environment: dict[str, str | None] | None = None, script: str | None = None
    ) -> Command:
        """`skyray run` on Ray, paced and saved often."""
        arguments: list[object] = ["run", "--messages", self.work.etl, "--out", self.out]
        arguments += [word for file in self.work.files for word in ("--subscriptions", file)]
        arguments += [word for name, value in self.work.options.items() for word in (f"--{name}", value)]
        return Command(
            [*arguments, "--executor", "ray", "--checkpoint-every", "0.3", "--json", *more], environment, script
        )

    def resume(self, *more: object) -> Command:
        """Go on with it."""
        return Command(["run", "--resume", self.out, "--json", *more])

    def epochs(self) -> int:
        """The newest checkpoint there is, -1 if none."""
        names = [path.name for path in (self.out / "checkpoints").glob("epoch-*.json")]
        return max((int(name[6:12]) for name in names), default=-1)

    def await_progress(self, command: Command, epochs: int = 1) -> None:
        """Wait for so many checkpoints more."""
        wanted = self.epochs() + epochs
        command.await_(lambda: self.epochs() >= wanted)

    def strike(self, command: Command, fault: Callable[[], None]) -> None:
        """Do harm, of which it is certain that it strikes in mid-stream."""
        assert command.process.poll() is None, command.read()
        fault()
        self.struck += 1

    def finish(self, command: Command, seconds: float = 300) -> None:
        """Wait for a command that must end well."""
        code, _, said = command.finish(seconds)
        assert code == 0, said

    def report(self) -> dict[str, Any]:
        """What `run.json` says."""
        return json.loads((self.out / "run.json").read_text())

    def assert_exact(self, strikes: int) -> dict[str, Any]:
        """The run has finished, so many faults have struck, and what it has told is what it had to tell."""
        report = self.report()
        assert report["state"] == "finished"
        assert self.struck >= strikes, f"{self.struck} of {strikes} faults have struck"
        assert differences(self.out, self.work) == NOTHING
        assert report["digest"] == self.work.digest
        assert not [path for path in self.out.rglob(".*.tmp")], "hidden files are left"
        return report


def actors(command: Command) -> list[psutil.Process]:
    """The processes of the actors of a run."""
    return [each for each in command.started() if command_line(each).startswith("ray::WorkerActor")]


def newest_actors(command: Command, count: int) -> list[psutil.Process]:
    """Wait for so many actors, and give them by age."""
    command.await_(lambda: len(actors(command)) >= count)
    return sorted(actors(command), key=lambda process: process.create_time())


def role_of(actor: psutil.Process) -> str:
    """The tasks of an actor, as Ray writes them into the file that its output goes to, first with its class alone."""
    text = Path(f"/proc/{actor.pid}/fd/1").resolve().read_text(errors="replace")
    names = [line.partition(":actor_name:")[2] for line in text.splitlines() if ":actor_name:" in line]
    return names[-1] if names else ""


def actor_of(command: Command, component: str) -> psutil.Process:
    """The newest actor that has a task of a component."""
    found = [one for one in actors(command) if component in role_of(one)]
    assert found, [role_of(one) for one in actors(command)]
    return max(found, key=lambda process: process.create_time())


def ray_process(command: Command, word: str) -> psutil.Process:
    """The process of the Ray of a run whose program has that word in its path."""
    (found,) = [each for each in command.started() if word in (command_line(each).split() or [""])[0]]
    return found


def readable(out: Path) -> int:
    """Reads every file that has its name; how many there are."""
    parts = list((out / "updates").glob("part-*"))
    for path in parts:
        pq.read_table(path)
    for path in (out / "checkpoints").glob("epoch-*.json"):
        json.loads(path.read_text())
    return len(parts)
