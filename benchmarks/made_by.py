"""Write `docs/made-by.md`: where each figure that is kept comes from, and whether it would count today.

`python -m benchmarks.made_by`, after a file of `benchmarks/results/` has changed; a test holds the page to the files.
What makes a figure count is in `benchmarks.command`.
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
from it), the command, cores and load of the machine, and the fewest expected updates, matches or answers that an engine
of the file was compared with. From 1,000 of 500 subscriptions on a figure counts; whatever times something ends with
exit code 1 below. Of one checkout against another, all that both told was compared, and nothing with the oracle; that
tool timed operators of commits whose `skyray bench` says less than today's, and is at the commit that is named.

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
    made, told = report["made_by"], "all, with each other"
    if compared:
        fewest, of = min(compared)
        told = f"{fewest:,} of {of:,}" + ("" if verdict(True, fewest, of)["exact"] else ": too little")
    link, load = path.relative_to(results.parents[1]).as_posix(), made["load_average"][0]
    commit, command, cores = made["commit"], _typed(made["command"]), made["cores"]
    return f"| [{path.stem}](../{link}) | `{commit}` | `{command}` | {cores} | {load:.1f} | {told} |"


def _typed(command: str) -> str:
    """A command as people type it today; of the packages only one is a command, whose reports did not say its name."""
    program, _, rest = command.partition(" ")
    module = {"__main__.py": "against"}.get(program, program.removesuffix(".py"))
    named = {"cli.py": "skyray", "skyray": "skyray", "run.py": "skyray bench"}
    named["profile.py"] = "python -m benchmarks.workloads.profile"
    return f"{named.get(program, f'python -m benchmarks.{module}')} {rest}".strip()


if __name__ == "__main__":
    PAGE.write_text(page())
