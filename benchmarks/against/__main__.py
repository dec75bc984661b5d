"""Time this checkout against another one, process against process.

    python -m benchmarks.against OTHER_CHECKOUT [--pairs 9] [--case A,B] [--scale X] > report.json

For each case (`benchmarks.against.cases`) there are four processes, two of each checkout, all loaded before the first
turn: where a process happens to have its memory makes it up to a tenth faster or slower for as long as it lives, which
one of each would show as a difference between the checkouts. They take turns, in an order that goes round, and only one
of them works at a time, so that a slow minute of the machine hits all alike. `ratio` is the median, turn by turn, of
the seconds of this checkout's two over the other's two. `scatter` says how far the other is from itself: one of its
processes over the other one. What this checkout does to the speed shows only beyond that.

Both take the same batches and must tell the same updates: a pair whose digests differ makes the exit code 1. The first
turn of each process is not counted. The processes of a case need about 3 GB each at the largest.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np

from benchmarks import command
from benchmarks.against.cases import PLANS, write_case
from benchmarks.command import ROOT, Tell, commit_of
from matching.errors import ConfigError

_DRIVER = Path(__file__).with_name("driver.py")
#: Processes of a case: name to whether it is of this checkout.
_SIDES = {"this": True, "other": False, "this again": True, "other again": False}


class Process:
    """A driver in one checkout, idle until it is told that it is its turn.

    Parameters
    ----------
    checkout : Path
    case : Path        folder of the case
    python : str       interpreter; what the checkout needs must be installed for it
    """

    def __init__(self, checkout: Path, case: Path, python: str = sys.executable):
        adapter = "rooms.py" if (checkout / "matching" / "alone.py").is_file() else "streams.py"
        self.checkout = checkout
        self._process = subprocess.Popen(
            [python, "-P", str(_DRIVER), str(case), adapter], cwd=checkout, text=True,
            env=os.environ | {"PYTHONPATH": str(checkout), "RAY_USAGE_STATS_ENABLED": "0"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def ready(self) -> dict[str, Any]:
        """Wait until everything is loaded.

        Raises
        ------
        ConfigError
            If another checkout than this one was imported.
        """
        report = self._answer()
        if Path(report["checkout"]).resolve() != self.checkout.resolve():
            raise ConfigError(f"{self.checkout} was to be timed, but {report['checkout']} was imported")
        return report

    def turn(self, number: int) -> dict[str, Any]:
        """One round."""
        print(number, file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """Let it end."""
        try:
            self._process.communicate(timeout=30.0)  # closes its input, which ends it
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout and self._process.stdout.readline()
        if not line:
            raise ConfigError(f"the driver in {self.checkout} has ended with {self._process.wait()}; see what it wrote")
        return json.loads(line)


def compare(
    other: Path, case: str, pairs: int = 9, *, this: Path | None = None, scale: float = 1.0, seed: int = 0, tell: Tell
) -> dict[str, Any]:
    """Time two checkouts on one case; `this` is the one that this file is in, by default.

    Returns
    -------
    dict
        The settings of the case; `seconds` of each process, turn by turn; `median_s`; `ratio` (median, least and
        most of this over other, turn by turn, both processes of each together) and `scatter` (the same of the other's
        second process over its first); `updates` a turn;
        `same_updates`, and of the turns in which they differed the `different` ones.
    """
    with tempfile.TemporaryDirectory(prefix="skyray-against-") as folder, ExitStack() as running:
        tell(f"{case}: drawing the workload")
        settings = write_case(Path(folder), case, pairs + 1, scale, seed)
        tell(f"{case}: {settings['subscriptions']:,} subscriptions are loaded four times")
        processes = {}
        for name, is_this in _SIDES.items():
            processes[name] = Process((this or ROOT) if is_this else other, Path(folder))
            running.callback(processes[name].close)
        loaded = {name: process.ready()["loaded_s"] for name, process in processes.items()}
        turns: dict[str, list[dict[str, Any]]] = {name: [] for name in _SIDES}
        names = list(_SIDES)
        for number in range(pairs + 1):
            for place in range(len(names)):
                name = names[(number + place) % len(names)]
                turns[name].append(processes[name].turn(number))
            took = ", ".join(f"{name} {turns[name][-1]['seconds']:.3f} s" for name in names)
            tell(f"{case}: {'warm-up' if number == 0 else f'pair {number} of {pairs}'}: {took}")
    told = [{turns[name][number]["digest"] for name in names} for number in range(pairs + 1)]
    seconds = {name: [turn["seconds"] for turn in turns[name][1:]] for name in names}
    both = {name: np.add(seconds[name], seconds[f"{name} again"]).tolist() for name in ("this", "other")}
    ratio, scatter = _ratios(both["this"], both["other"]), _ratios(seconds["other again"], seconds["other"])
    same = all(len(digests) == 1 for digests in told)
    tell(
        f"{case}: this takes {ratio['median']:.3f} times as long ({ratio['least']:.3f} to {ratio['most']:.3f}), "
        f"the other against itself {scatter['median']:.3f} ({scatter['least']:.3f} to {scatter['most']:.3f}); "
        f"same updates: {same}"
    )
    return {
        "case": settings,
        "pairs": pairs,
        "loaded_s": loaded,
        "seconds": seconds,
        "median_s": {name: median(values) for name, values in seconds.items()},
        "ratio": ratio,
        "scatter": scatter,
        "updates": [turn["updates"] for turn in turns["this"]],
        "same_updates": same,
        "different": [number for number, digests in enumerate(told) if len(digests) > 1],
    }


def _ratios(one: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    ratios = [a / b for a, b in zip(one, other, strict=True)]
    return {"median": median(ratios), "least": min(ratios), "most": max(ratios), "pairs": ratios}


def bench(
    other: Annotated[Path, "checkout of another commit"],
    pairs: Annotated[int, "turns that are counted"] = 9,
    case: Annotated[tuple[str, ...], "names, one after the other"] = tuple(PLANS),
    scale: Annotated[float, "of subscriptions, window and messages"] = 1.0,
    seed: Annotated[int, "of the workload"] = 0,
    this: Path | None = None,
    tell: Tell = print,
) -> dict[str, Any]:
    """Time both on every case, as `compare` says; exact if they told the same updates."""
    other = other.resolve()
    cases = {name: compare(other, name, pairs, this=this, scale=scale, seed=seed, tell=tell) for name in case}
    exact = all(said["same_updates"] for said in cases.values())
    return {"this": commit_of(ROOT), "other": commit_of(other), "exact": exact, "cases": cases}


if __name__ == "__main__":
    sys.exit(command.main(bench))
