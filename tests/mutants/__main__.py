"""Deliberately broken copies of the sources, each of which a test has to find: `python -m tests.mutants`.

A suite that only ever runs green proves nothing. `mutants.toml` lists small faults: in words the wrong output that each
makes, the text of a file that it replaces, and the tests that see it. The tree is copied, the tests named are seen
passing there, then each fault is put in alone and its tests have to fail. Nothing outside the copy is written.

A verdict is one of

found        a named test failed
NOT found    all named tests passed: write the test that fails
stale        the old text is no longer in the file, or more than once: bring the entry up to date
broken       a named test came not as far as failing (an import, a fixture, a node id), or it fails without the fault
timeout      no verdict in time

and exit code 1 says that fewer than 95 % were found, or that some entry is stale.
"""

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.copies import Copy, Mutant, read_mutants

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutants.toml")
FOUND, NOT_FOUND, STALE, BROKEN, TIMEOUT = VERDICTS = ("found", "NOT found", "stale", "broken", "timeout")
#: Share of the mutants that have to be found.
WANTED = 0.95


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: `verdict` is one of VERDICTS, `detail` the test that failed or why none did."""

    name: str
    file: str
    verdict: str
    seconds: float
    detail: str


def main(arguments: list[str] | None = None) -> int:
    """Run the list; exit code 0 if enough mutants are found and none is stale."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Break the code, see a test fail.")
    parser.add_argument("--only", action="append", metavar="TEXT", help="mutants with this in their name or file")
    parser.add_argument("--json", action="store_true", help="the verdicts as JSON on standard output")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="seconds for one run of tests")
    parser.add_argument("--list", type=Path, default=LIST, metavar="FILE", help="another list of mutants")
    options = parser.parse_args(arguments)
    mutants = [mutant for mutant in read_mutants(options.list) if _chosen(mutant, options.only)]
    if not mutants:
        parser.error(f"no mutant has {options.only} in its name or file")
    began = time.perf_counter()
    with Copy(ROOT, options.timeout) as copy:
        verdicts = judge(copy, mutants)
    if options.json:
        _say(json.dumps([asdict(verdict) for verdict in verdicts], indent=1), sys.stdout)
    else:
        _say(table(verdicts, time.perf_counter() - began), sys.stdout)
    found = sum(verdict.verdict == FOUND for verdict in verdicts)
    return int(found < WANTED * len(verdicts) or any(verdict.verdict == STALE for verdict in verdicts))


def judge(copy: Copy, mutants: list[Mutant]) -> list[Verdict]:
    """One verdict for each mutant, in order; progress goes to standard error."""
    failing = _failing_unchanged(copy, mutants)
    verdicts = []
    for number, mutant in enumerate(mutants, 1):
        verdict = _judge(copy, mutant, failing)
        verdicts.append(verdict)
        _say(f"[{number}/{len(mutants)}] {verdict.verdict:9} {verdict.seconds:6.1f} s  {mutant.name}", sys.stderr)
    return verdicts


def table(verdicts: list[Verdict], seconds: float) -> str:
    """The verdicts for people: one line each, what needs work last, then the counts."""
    lines = [f"{'verdict':9}  {'seconds':>7}  mutant"]
    for one in sorted(verdicts, key=lambda one: one.verdict != FOUND):
        lines.append(f"{one.verdict:9}  {one.seconds:7.1f}  {one.file}: {one.name}")
        if one.verdict != FOUND:
            lines.append(f"{'':20}{one.detail}")
    counts = Counter(one.verdict for one in verdicts)
    lines.append(", ".join(f"{counts[which]} {which}" for which in VERDICTS if counts[which]) + f" ({seconds:.0f} s)")
    return "\n".join(lines)


def _judge(copy: Copy, mutant: Mutant, failing: dict[tuple[str, bool], str]) -> Verdict:
    began = time.perf_counter()

    def verdict(which: str, detail: str) -> Verdict:
        return Verdict(mutant.name, mutant.file, which, round(time.perf_counter() - began, 1), detail)

    if (count := copy.occurrences(mutant)) != 1:
        return verdict(STALE, f"the old text is {count} times in {mutant.file}, and has to be there once")
    for test in mutant.tests:
        if (test, mutant.jit) in failing:
            return verdict(BROKEN, f"fails without the fault: {test}: {failing[test, mutant.jit]}")
    with copy.broken(mutant):
        outcome = copy.run(mutant.tests, mutant.jit)
    if outcome.failed:
        return verdict(FOUND, outcome.failed[0])
    if outcome.timed_out:
        return verdict(TIMEOUT, outcome.timed_out)
    if outcome.errors:
        return verdict(BROKEN, outcome.errors[0])
    return verdict(NOT_FOUND, "passed: " + ", ".join(mutant.tests))


def _failing_unchanged(copy: Copy, mutants: list[Mutant]) -> dict[tuple[str, bool], str]:
    """Tests that do not pass on the unchanged copy, with what they say; each is run once with and once without JIT."""
    failing: dict[tuple[str, bool], str] = {}
    for jit in (True, False):
        tests = sorted({test for mutant in mutants if mutant.jit == jit for test in mutant.tests})
        if not tests:
            continue
        _say(f"{len(tests)} tests on the unchanged copy{'' if jit else ', uncompiled'}", sys.stderr)
        if copy.run(tests, jit, times=len(tests), stop=False).passed:
            continue
        for test in tests:  # somebody does not pass: one by one, to know who
            outcome = copy.run([test], jit)
            if not outcome.passed:
                failing[test, jit] = (*outcome.failed, *outcome.errors, outcome.timed_out)[0]
                _say(f"fails without any fault: {test}", sys.stderr)
    return failing


def _chosen(mutant: Mutant, only: list[str] | None) -> bool:
    return not only or any(text in mutant.name or text in mutant.file for text in only)


def _say(text: str, stream) -> None:
    stream.write(text + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
