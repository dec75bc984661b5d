"""Write `docs/made-by.md`: where each figure that is kept comes from, and whether it would count today.

`python -m benchmarks.made_by`, after a file of `benchmarks/results/` has changed; a test holds the page to the files.
What was kept before reports said where they come from names the commit that brought it (`kept_by`), and no more.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.run import RESULTS
from benchmarks.verdict import verdict

PAGE = RESULTS.parents[1] / "docs" / "made-by.md"
#: The only package that is a command; its reports did not say its name.
_AGAINST = "python -m benchmarks.against"
_HEAD = """\
# Where figures come from

Written by `python -m benchmarks.made_by` from `benchmarks/results/`: the commit that was measured (`+`: files differed
from it; *by*: the one that brought the file, where it does not say more), the command (where that is gone, the one that
measures the same today; the file has what was typed), cores and load of the machine, and the fewest expected updates,
matches or answers that an engine of the file was compared with. From 1,000 of 500 subscriptions on a figure counts;
`skyray bench` and all that times something ends with exit code 1 below. What is older than that rule and falls short of
it, or does not say what was compared, stands here as it was, and ratios to it are indications.

| figure | commit | command | cores | load | compared |
| --- | --- | --- | --- | --- | --- |
"""


def page(results: Path = RESULTS) -> str:
    """The page, from the files in this folder."""
    return _HEAD + "\n".join(_row(path, results) for path in sorted(results.rglob("*.json"))) + "\n"


def _row(path: Path, results: Path) -> str:
    report = json.loads(path.read_text())
    made = report.get("made_by", {})
    commit = f"`{made['commit']}`" if "commit" in made else f"by `{report['kept_by']}`"
    command = f"`{_typed(made['command'])}`" if "command" in made else "-"
    load = f"{made['load_average'][0]:.1f}" if "load_average" in made else "-"
    compared = sorted(_compared(report))
    told = "not said"
    if compared:
        counts = verdict(True, *compared[0])["exact"]
        told = f"{compared[0][0]:,} of {compared[0][1]:,}" + ("" if counts else ": too little")
    name = path.relative_to(results.parents[1]).as_posix()
    cores = made.get("cores", report.get("cores", "-"))
    return f"| [{path.stem}](../{name}) | {commit} | {command} | {cores} | {load} | {told} |"


def _typed(command: str) -> str:
    """A command as people type it today."""
    program, _, rest = command.partition(" ")
    named = {"cli.py": "skyray", "run.py": "skyray bench", "skyray": "skyray", "__main__.py": _AGAINST}
    return f"{named.get(program) or 'python -m benchmarks.' + program.removesuffix('.py')} {rest}".strip()


def _compared(part: Any) -> Iterator[tuple[int, int]]:
    """(compared, of how many subscriptions) of every engine in a report."""
    if isinstance(part, dict):
        if "compared" in part:
            yield part["compared"], part.get("compared_subscriptions", 0)
        for value in part.values():
            yield from _compared(value)
    elif isinstance(part, list):
        for value in part:
            yield from _compared(value)


if __name__ == "__main__":
    PAGE.write_text(page())
