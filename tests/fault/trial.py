"""A real workload on Ray, struck over and over: `python -m tests.fault.trial --messages ETL --subscriptions FILE...`.

The tests beside this file take seconds and small inputs. Here the inputs are whatever they are told, paced, and faults
strike for as long as the stream lasts:

actors        kill -9 of an actor, another one each time, 5 s after the run has come to go on
everything    kill -9 of the driver and all it has started, and `--resume`, also while the last one still goes on
stopped       an actor is stopped for 30 s, and wakes after another has taken its place
driver        kill -9 of the driver alone: what it has started must be gone after 5 s

What was told is read from the files that have names and held against a run that nobody disturbed, row by row, as many
times as each was told. Prints one JSON object a fault; exit code 1 if anything is missing, extra or told twice, or
fewer faults struck than were asked for.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import xxhash

from tests.support.faulty_runs import actors
from tests.support.processes import Command, command_line

FAULTS = ("actors", "everything", "stopped", "driver")
#: After a run has come to go on, before the next fault.
REST_S = 5.0
_MIX = np.uint64(0x9E3779B97F4A7C15)


def main() -> int:
    """Run the faults asked for, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.trial", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=Path, required=True)
    parser.add_argument("--subscriptions", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--fault", choices=FAULTS, nargs="+", default=list(FAULTS))
    parser.add_argument("--strikes", type=int, default=10)
    parser.add_argument("--rate", type=float, default=1500)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--batch", default="500")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two checkpoints")
    options = parser.parse_args()
    trial = Trial(options)
    exact = True
    for fault in options.fault:
        told = trial.run(fault)
        exact &= told["exact"] and told["strikes"] >= told["asked"]
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
    return int(not exact)


class Trial:
    """Runs over the same inputs, and what they must tell."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.words = ["run", "--messages", options.messages, "--batch", options.batch]
        self.words += [word for file in options.subscriptions for word in ("--subscriptions", file)]
        self.words += [] if options.limit is None else ["--limit", options.limit]
        quiet = options.out / "quiet"
        if not (quiet / "run.json").exists():
            with Command([*self.words, "--out", quiet, "--executor", "local", "--checkpoint-every", 0]) as command:
                code, _, said = command.finish(3_600)
            assert code == 0, said
        self.expected = rows_of(quiet)
        self.digest = report_of(quiet)["digest"]

    def run(self, fault: str) -> dict[str, Any]:
        """One run, disturbed until its end; what came of it."""
        out = self.options.out / fault
        shutil.rmtree(out, ignore_errors=True)
        began = time.monotonic()
        waits: list[float] = []
        command = self._start(out, False)
        try:
            while len(waits) < self.options.strikes and self._rest(command, out):
                struck = time.monotonic()
                command = getattr(self, f"_{fault}")(command, out, len(waits))
                if not self._goes_on(command, out):
                    break
                waits.append(time.monotonic() - struck)
            command.process.wait(3_600)
            assert command.process.returncode == 0, command.read()[1]
        finally:
            command.__exit__()
        report = report_of(out)
        told = rows_of(out)
        differences = compare(self.expected, told)
        return {
            "fault": fault,
            "asked": self.options.strikes,
            "strikes": len(waits),
            "messages": report["spouts"]["messages"]["messages"],
            "subscriptions": report["spouts"]["subscriptions"]["accepted"],
            "updates_compared": int(self.expected.shape[0]),
            **differences,
            "exact": not any(differences.values()) and report["digest"] == self.digest,
            "median_until_next_checkpoint_s": round(statistics.median(waits), 2) if waits else None,
            "longest_until_next_checkpoint_s": round(max(waits, default=0.0), 2),
            "going_back_s": [round(each["seconds"], 2) for each in report["topology"]["recoveries"]],
            "seconds": round(time.monotonic() - began, 1),
        }

    # -- faults; each returns the command that goes on

    def _actors(self, command: Command, out: Path, turn: int) -> Command:
        living = sorted(actors(command), key=command_line)
        living[turn % len(living)].kill()
        return command

    def _stopped(self, command: Command, out: Path, turn: int) -> Command:
        living = sorted(actors(command), key=command_line)
        victim = living[turn % len(living)]
        victim.suspend()
        time.sleep(30)
        if victim.is_running():
            victim.resume()
        return command

    def _driver(self, command: Command, out: Path, turn: int) -> Command:
        command.process.kill()
        command.assert_nothing_left(5)
        command.__exit__()
        return self._start(out, True)

    def _everything(self, command: Command, out: Path, turn: int) -> Command:
        _kill_all(command)
        if turn % 2:  # once more while it goes on
            command = self._start(out, True)
            time.sleep(turn)
            _kill_all(command)
        return self._start(out, True)

    # -- progress

    def _start(self, out: Path, resume: bool) -> Command:
        rate = ["--set", f"input.rate={self.options.rate}"]
        if resume:
            return Command(["run", "--resume", out, *rate])
        every = ["--checkpoint-every", self.options.every, "--set", "topology.placement=spread"]
        return Command([*self.words, "--out", out, "--executor", "ray", *every, *rate])

    def _rest(self, command: Command, out: Path) -> bool:
        """Wait until it has gone on for a while; False if it has ended."""
        if not self._goes_on(command, out):
            return False
        until = time.monotonic() + REST_S
        while time.monotonic() < until and command.process.poll() is None:
            time.sleep(0.05)
        return command.process.poll() is None and len(actors(command)) > 0

    def _goes_on(self, command: Command, out: Path) -> bool:
        """Wait for the next checkpoint; False if the run has ended."""
        before = _newest(out)
        while _newest(out) <= before:
            if command.process.poll() is not None:
                assert command.process.returncode == 0, command.read()[1]
                return False
            time.sleep(0.02)
        return True


def _kill_all(command: Command) -> None:
    for process in [command.process, *command.started()]:
        try:
            process.kill()
        except psutil.Error:
            continue
    command.assert_nothing_left(10)
    command.__exit__()


def _newest(out: Path) -> int:
    return max((int(path.name[6:12]) for path in (out / "checkpoints").glob("epoch-*.json")), default=-1)


def report_of(out: Path) -> dict[str, Any]:
    """What `run.json` says."""
    return json.loads((out / "run.json").read_text())


def rows_of(out: Path) -> np.ndarray:
    """A 64-bit hash of every row in files that have their names, ascending: uint64[n]."""
    parts = [np.zeros(0, np.uint64)]
    for path in sorted((out / "updates").glob("part-*")):
        table = pq.read_table(path)
        mixed = np.zeros(len(table), np.uint64)
        for name in sorted(table.column_names):
            column = table.column(name).combine_chunks()
            if column.type.to_pandas_dtype() in (np.int64, np.float64):
                values = column.to_numpy(zero_copy_only=False).view(np.uint64)
            else:
                encoded = column.dictionary_encode() if not hasattr(column, "dictionary") else column
                hashes = [xxhash.xxh3_64_intdigest(str(text).encode()) for text in encoded.dictionary.to_pylist()]
                values = np.array([*hashes, 0], np.uint64)[encoded.indices.fill_null(len(hashes)).to_numpy()]
            mixed = (mixed ^ values) * _MIX
            mixed ^= mixed >> np.uint64(29)
        parts.append(mixed)
    return np.sort(np.concatenate(parts))


def compare(expected: np.ndarray, told: np.ndarray) -> dict[str, int]:
    """Rows that are missing, extra, and told more often than they should be."""
    values, places = np.unique(np.concatenate([expected, told]), return_inverse=True)
    wanted = np.bincount(places[: expected.shape[0]], minlength=values.shape[0])
    came = np.bincount(places[expected.shape[0] :], minlength=values.shape[0])
    more = np.maximum(came - wanted, 0)
    return {
        "missing": int(np.maximum(wanted - came, 0).sum()),
        "extra": int(more[wanted == 0].sum()),
        "repeated": int(more[wanted > 0].sum()),
    }


if __name__ == "__main__":
    sys.exit(main())
