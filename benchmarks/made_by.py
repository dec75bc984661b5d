"""Write `docs/made-by.md`: where each figure that is kept comes from, and whether it would count today.

`python -m benchmarks.made_by`, after a file of `benchmarks/results/` has changed; a test holds the page to the files.
What was kept before reports said where they come from names the commit that brought it (`kept_by`), and no more. What
makes a figure count is in `benchmarks.command`.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.command import verdict
from benchmarks.run import RESULTS

PAGE = RESULTS.parents[1] / "docs" / "made-by.md"
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
    compared: list[tuple[int, int]] = []

    def note(part: dict[str, Any]) -> dict[str, Any]:
        """Of every engine in a report, how much of how many subscriptions was compared."""
        if "compared" in part:
            compared.append((part["compared"], part.get("compared_subscriptions", 0)))
        return part

    report = json.loads(path.read_text(), object_hook=note)
    made, told = report.get("made_by", {}), "not said"
    commit = f"`{made['commit']}`" if "commit" in made else f"by `{report['kept_by']}`"
    command = f"`{_typed(made['command'])}`" if "command" in made else "-"
    load = f"{made['load_average'][0]:.1f}" if "load_average" in made else "-"
    if compared:
        fewest, of = min(compared)
        told = f"{fewest:,} of {of:,}" + ("" if verdict(True, fewest, of)["exact"] else ": too little")
    link, cores = path.relative_to(results.parents[1]).as_posix(), made.get("cores", report.get("cores", "-"))
    return f"| [{path.stem}](../{link}) | {commit} | {command} | {cores} | {load} | {told} |"


def _typed(command: str) -> str:
    """A command as people type it today; of the packages only one is a command, whose reports did not say its name."""
    program, _, rest = command.partition(" ")
    module = {"__main__.py": "against"}.get(program, program.removesuffix(".py"))
    named = {"cli.py": "skyray", "skyray": "skyray", "run.py": "skyray bench"}
    return f"{named.get(program, f'python -m benchmarks.{module}')} {rest}".strip()


if __name__ == "__main__":
    PAGE.write_text(page())
