"""This checkout timed against one of another commit: the same `skyray bench` in each, process after process.

    python -m benchmarks.against OTHER_CHECKOUT [--pairs 3] COMMAND... > report.json

COMMAND is what follows `skyray bench`, as `topk --subscriptions 1000000 --window 100000 --engines skype`. Both run it
with this interpreter in turns A B B A, so that a slow minute of the machine hits both. `ratio` is how long a message
takes here over how long it takes there, pair by pair; `scatter` is the same of the other's runs over those before them:
what this checkout does to the speed shows only beyond it. `compared` is how many expected updates the run that compared
fewest did. All runs must be exact and have the same updates, or the exit code is 1. Updates are compared round by
round, up to the first one in which two runs took different numbers of messages, since a round ends after some seconds:
what a message causes depends on those before it. `rounds_compared` says how many that were; none is not the same. Give
more `--rounds`, or fewer `--messages`, where it is few. `--here '--distance sphere'` gives
this checkout options that the other one, which may be the same, has not; then the updates of both may differ. Read on
in `benchmarks.run`, which is what runs.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.command import ROOT, commit_of, provenance, say
from benchmarks.harness import compare_rounds
from matching.errors import ConfigError

Rows = dict[str, dict[str, Any]]


def run(checkout: Path, words: list[str]) -> Rows:
    """What `skyray bench` of a checkout reports, by engine."""

    def python(*given: str) -> str:
        how: dict[str, Any] = {"cwd": checkout, "env": os.environ | {"PYTHONPATH": str(checkout)}}
        return subprocess.run([sys.executable, *given], stdout=subprocess.PIPE, text=True, check=False, **how).stdout

    imported = Path(python("-c", "import matching; print(matching.__file__)").strip())
    if not imported.resolve().is_relative_to(checkout.resolve() / "matching"):
        raise ConfigError(f"{checkout} was to be timed, but {imported} was imported")
    told = python("-m", "gateway.cli", "bench", *words, "--json")
    if not told:
        raise ConfigError(f"`skyray bench` in {checkout} has failed; see what it wrote")
    rows = json.loads(told)["results"]
    return {row["engine"]: row for row in rows}


def compare(this: list[Rows], other: list[Rows]) -> Rows:
    """Of each engine that both have: whether all runs were exact and had the same updates, how many updates and
    rounds each compared at least, and how long a message took.
    """
    report = {}
    for name in (name for name in this[0] if name in other[0]):
        ours, theirs = [rows[name] for rows in this], [rows[name] for rows in other]
        rounds, same = zip(*(compare_rounds(ours[0]["rounds"], row["rounds"]) for row in ours + theirs), strict=True)
        here, there = ([row["us_per_message"] for row in rows] for rows in (ours, theirs))
        ratios = [one / another for one, another in zip(here, there, strict=True)]
        report[name] = {
            "exact": all(row["exact"] for row in ours + theirs),
            "compared": min(row["compared"] for row in ours + theirs),
            "compared_subscriptions": min(row["compared_subscriptions"] for row in ours + theirs),
            "same_updates": min(rounds) > 0 and all(same),
            "rounds_compared": min(rounds),
            "matched_per_message": {"this": ours[0]["matched_per_message"], "other": theirs[0]["matched_per_message"]},
            "us_per_message": {"this": here, "other": there},
            "ratio": {"median": median(ratios), "pairs": ratios},
            "scatter": [later / before for before, later in pairwise(there)],
        }
    return report


def main() -> int:
    """Run both as the command line says, and print; 1 if the comparison does not count."""
    parser = argparse.ArgumentParser(description="This checkout timed against another one.", allow_abbrev=False)
    parser.add_argument("other", type=Path, help="checkout of another commit; then what follows `skyray bench`")
    parser.add_argument("--pairs", type=int, default=3, choices=range(2, 100), metavar="N", help="2 or more")
    parser.add_argument("--here", type=shlex.split, default=[], metavar="OPTIONS", help="of this checkout alone")
    given, words = parser.parse_known_args()
    checkouts, runs = (ROOT, given.other.resolve()), ([], [])
    for pair in range(given.pairs):
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            say(f"pair {pair + 1} of {given.pairs}: {checkouts[side]}")
            runs[side].append(run(checkouts[side], words if side else words + given.here))
    engines, (this, other) = compare(*runs), map(commit_of, checkouts)
    exact = bool(engines) and all(each["exact"] and (each["same_updates"] or given.here) for each in engines.values())
    report = {"made_by": provenance(), "this": this, "other": other, "exact": exact, "engines": engines}
    print(json.dumps(report, indent=1))
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
