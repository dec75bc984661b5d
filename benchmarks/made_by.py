"""Write `docs/figures.md`: every result that is kept, where it comes from, and whether it would count today.

`python -m benchmarks.made_by`, after a file of `benchmarks/results/` has changed; a test holds the page to the files.
What makes a figure count is in `benchmarks.command`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import verdict
from benchmarks.run import RESULTS

PAGE = RESULTS.parents[1] / "docs" / "figures.md"
_HEAD = """\
# Figures

Every measurement that is kept, written by `python -m benchmarks.made_by` from `benchmarks/results/`.
[Performance](performance.md) says what they mean.

The table has the measured commit (`+`: files differed from it), the command, cores and load of the machine, and the
fewest expected updates, matches or answers with which an engine of the file was compared. A figure counts from 1,000
of 500 subscriptions on; a benchmark that compares fewer ends with exit code 1. Where two checkouts were timed, all
updates were compared with each other and none with the oracle; the tool is at the named commit. Where the load is above
two, differences within a factor of one and a half mean little.

| figure | commit | command | cores | load | compared |
| --- | --- | --- | --- | --- | --- |
"""
_ENGINES = """
## Engines beside each other

Medians; all but the times are a message's.

"""
#: Columns of engines and of routers: heading -> field of a row.
_OF_ENGINES = {
    "us a message": "us_per_message", "messages/s": "messages_per_s", "bytes a subscription": "bytes_per_subscription",
    "scanned": "scanned_per_message", "verified": "verified_per_message", "matched": "matched_per_message",
    "refills": "refills_per_message", "p99 ms of one alone": "alone_p99_ms",
}  # fmt: skip
_OF_SCALING = {
    "subscriptions": "subscriptions", "us, busiest task": "us_per_message", "busiest": "slowest",
    "us, all tasks": "all_us", "bytes a message": "bytes_per_message", "times the first": "times",
    "of linear": "linear", "all work": "all_work",
}  # fmt: skip
_OF_ROUTERS = {
    "us, busiest task": "us_per_message", "busiest": "slowest", "us, busiest query bolt": "query_us",
    "max / mean": "query_max_to_mean", "us, all tasks": "all_us", "bolts a message": "sent_per_message",
    "hits sent": "found_per_message", "bytes a message": "bytes_per_message", "messages/s": "messages_per_s",
}  # fmt: skip


def page(results: Path = RESULTS) -> str:
    """The page, from the files in this folder."""
    reports = {path: json.loads(path.read_text()) for path in sorted(results.rglob("*.json"))}
    text = _HEAD + "\n".join(_row(path, results) for path in reports) + "\n" + _ENGINES
    for path, report in reports.items():
        if isinstance(report.get("results"), list):
            rows = [(str(row["engine"]), row) for row in report["results"]]
            text += f"### {path.stem}\n\n{_table('engine', rows, _OF_ENGINES)}\n"
    text += "## Routers beside each other\n\n"
    for path, report in reports.items():
        for part in report.get("measured", []) if path.stem.startswith("routers-") else []:
            rows = [(f"{row['router']}, {row['query_bolts']}", row) for row in part["rows"]]
            text += f"### {path.stem}, {part['kind']}\n\n{_table('router, query bolts', rows, _OF_ROUTERS)}\n"
    scaled = {path: report["rows"] for path, report in reports.items() if path.stem.startswith("scaling-")}
    for path, of_file in scaled.items():
        rows = [(f"{row['kind']}, {row['router']}, {row['query_bolts']}", row) for row in of_file]
        text += f"### {path.stem}\n\n{_table('kind, router, query bolts', rows, _OF_SCALING)}\n"
    text += "## Pictures\n\n"
    for path, report in reports.items():
        if "panels" in report:
            text += f"### {path.stem}\n\n`{_typed(report['made_by']['command'])}`\n\n"
            if (picture := path.with_suffix(".png")).is_file():
                text += f"![{path.stem}](../{picture.relative_to(results.parents[1]).as_posix()})\n\n"
            text += "".join(f"{table}\n" for table in _drawn(report))
    return text.rstrip("\n") + "\n"


def _table(first: str, rows: Sequence[tuple[str, Mapping[str, Any]]], columns: Mapping[str, str]) -> str:
    """A table of rows with a name each, without the columns of which no row has a value."""
    columns = {
        heading: field for heading, field in columns.items() if any(row.get(field) is not None for _, row in rows)
    }
    lines = [[first, *columns], ["---"] * (len(columns) + 1)]
    lines += [[f"`{name}`", *(_said(row.get(field)) for field in columns.values())] for name, row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _drawn(report: Mapping[str, Any]) -> Iterator[str]:
    """What each panel of a picture draws, as a table."""
    for panel in report["panels"]:
        heading = ", ".join(panel[name] for name in ("title", "y_label") if panel.get(name))
        if "bars" in panel:
            yield _table(heading, [(name, {"value": value}) for name, value in panel["bars"].items()], {"": "value"})
        else:
            panel = report | panel
            places = {_said(x): str(number) for number, x in enumerate(panel["x"])}
            rows = [(name, {str(n): y for n, y in enumerate(line)}) for name, line in panel["series"].items()]
            yield _table(f"{heading}, by {panel['x_label']}", rows, places)


def _said(value: object) -> str:
    """A cell: three digits of a small number, whole numbers from 100 on."""
    if value is None or isinstance(value, str):
        return value or "-"
    assert isinstance(value, int | float)
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


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
