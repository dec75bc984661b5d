"""Write `docs/papers.md`: what the five papers define and measure, row by row, and what each comes to here.

`python -m benchmarks.papers`, after `benchmarks/papers.toml` has changed; a test holds the page to the rows, and the
rows to the files that they name (`faults`). A cell may take its numbers from a results file of `rows` by a pointer:
`{FILE FIGURE METRIC ENGINE}`, or `ENGINE/ENGINE` for a ratio, or `FIGURE=X` for one value of the figure.
"""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.command import ROOT, Tell, say
from benchmarks.run import RESULTS
from matching.errors import ConfigError

ROWS, PAGE = Path(__file__).with_name("papers.toml"), ROOT / "docs" / "papers.md"
FORMS = ("printed", "variant", "ours", "none")
#: Verdicts, and what each says.
VERDICTS = {
    "reproduced": "the printed form, with the paper's opponents, parameters and measure, does as the paper says; or it "
    "does so at a stated scale, with the same trend over three sizes",
    "refuted": "it does not, under the same conditions",
    "variant": "the measured form or its parameters differ from the paper's",
    "not comparable": "the paper leaves out what a comparison needs",
    "no source": "the text of the paper that we have ends before the figure; ours is a finding of our own",
    "open": "it has not been measured as the paper does, or must be measured again",
    "ours": "the paper has no such figure",
    "not built": "with the reason",
}
#: Verdicts that need the printed form, and a file of a clean commit of this history.
_EARNED = ("reproduced", "refuted")
_SHORT = {"C": "skyray bench", "E": "python -m benchmarks.evaluations", "R": "python -m benchmarks.routers"}
_POINTER = re.compile(r"\{([\w-]+) ([\w.=]+) (\w+) (\w+)(?:/(\w+))?\}")
_HEAD = """\
# The papers' systems and figures

Written by `python -m benchmarks.papers` from `benchmarks/papers.toml`. Each paper has two tables. The first has its
definitions, lemmas, algorithms and systems: the form that each has here, the file, and a test that holds it. A file
without a folder is in `papers/`, in the folder of the paper, whose `__init__` has the citation and what the paper
leaves out. The second has its figures and tables with a verdict. *Printed* is the form of the paper, a *variant*
differs in what the row names, *ours* is not in the paper. *At best* is our default for the same work. A ratio below 1
is what the first takes of the second's. [Results](figures.md) are of earlier commits.

{verdicts}

{shorts}.
"""
_SKYPE = """
**Our text of this paper stops inside section 6.2.1.** Sections 1 to 5 lack their formulas. Section 6.2.2, section 7
(DSkype), section 8, all figures of experiments and all numbers are missing. Of the four ways to distribute we know only
table 1 of the skyline paper and the sentence under it.
"""


class Definition(NamedTuple):
    """A definition, lemma, algorithm, parameter or system: its form here, files, a test."""

    place: str
    form: str
    here: str
    test: str


class Figure(NamedTuple):
    """A figure or table of a paper: what runs, the paper's number, ours in its form and at best, verdict, results."""

    place: str
    form: str
    here: str
    command: str
    paper: str
    measured: str
    best: str
    verdict: str
    why: str
    results: str


class Paper(NamedTuple):
    """A paper with the folder of its systems and its kind of subscription."""

    title: str
    folder: str
    kind: str
    definitions: tuple[Definition, ...]
    figures: tuple[Figure, ...]


def papers(path: Path = ROWS, results: Path = RESULTS) -> list[Paper]:
    """The rows of the file, with numbers in place of pointers.

    Raises
    ------
    TypeError
        Where a row has another number of cells.
    ConfigError
        Where a results file does not have what a pointer names.
    """
    return [
        Paper(
            one["title"],
            one["folder"],
            one["kind"],
            tuple(Definition(*row) for row in one["definitions"]),
            tuple(Figure(*(_POINTER.sub(partial(_number, results), cell) for cell in row)) for row in one["figures"]),
        )
        for one in tomllib.loads(path.read_text(encoding="utf-8"))["paper"]
    ]


def _number(results: Path, pointer: re.Match[str]) -> str:
    """The numbers that a pointer names, in order of the figure's values."""
    name, figure, metric, engine, other = pointer.groups()
    figure, _, x = figure.partition("=")
    try:
        rows = json.loads((results / f"{name}.json").read_text())["rows"]
        engines = [row["engines"] for row in rows if row["figure"] == figure and x in ("", row["x"])]
        values = [each[engine][metric] / (each[other][metric] if other else 1.0) for each in engines]
    except (OSError, LookupError, TypeError) as error:
        raise ConfigError(f"pointer {pointer[0]}: {name}.json has no such number") from error
    if not values:
        raise ConfigError(f"pointer {pointer[0]}: {name}.json has no such figure")
    if other:
        return ", ".join(f"{value:.2f}" for value in values)
    return ", ".join(f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}" for value in values)


def page(rows: list[Paper]) -> str:
    """The page."""
    verdicts = "\n".join(f"- **{name}**: {what}." for name, what in VERDICTS.items())
    shorts = ", ".join(f"`{short}` stands for `{whole}`" for short, whole in _SHORT.items())
    parts = [_HEAD.format(verdicts=verdicts, shorts=shorts)]
    for one in rows:
        parts.append(f"\n## {one.title}\n\nKind `{one.kind}`, folder `papers/{one.folder}`.\n")
        parts.append(_SKYPE if one.folder == "skype" else "")
        parts += _table(("in the paper", "form", "here", "test"), one.definitions)
        parts += _table(
            ("figure", "form", "here", "command", "the paper", "in that form", "at best", "verdict", "why", "results"),
            one.figures,
        )
    return "".join(parts)


def _table(names: tuple[str, ...], rows: tuple[Any, ...]) -> Iterator[str]:
    yield f"\n| {' | '.join(names)} |\n|{' --- |' * len(names)}\n"
    yield from (f"| {' | '.join(row)} |\n" for row in rows)


def faults(rows: list[Paper], root: Path = ROOT, results: Path = RESULTS) -> list[str]:
    """What is wrong with the rows: empty cells, files that are not there, verdicts that are not earned."""
    found = []
    history = _History(root)
    for paper in rows:
        for row in (*paper.definitions, *paper.figures):
            found += [f"{paper.title}, {row.place}: an empty cell"] if not all(cell.strip() for cell in row) else []
            if row.form.split(":")[0].split(";")[0] not in FORMS and not isinstance(row, Definition):
                found.append(f"{paper.title}, {row.place}: form {row.form!r}")
        for row in paper.definitions:
            for name in re.findall(r"`([\w/*.]+(?:\.py|/))`", f"{row.here} {row.test}"):
                if not any((place / name).exists() for place in (root, root / "papers" / paper.folder)):
                    found.append(f"{paper.title}, {row.place}: {name} is not there")
        for row in paper.figures:
            found += [f"{paper.title}, {row.place}: {what}" for what in _figure_faults(row, results, history)]
    return found


def _figure_faults(row: Figure, results: Path, history: "_History") -> Iterator[str]:
    if row.verdict not in VERDICTS:
        yield f"verdict {row.verdict!r}"
    if row.verdict in _EARNED and row.form != "printed":
        yield f"{row.verdict}, of the form {row.form!r}"
    names = re.findall(r"`([\w-]+)\.json`", row.results)
    if row.results != "none" and not names:
        yield f"results {row.results!r}"
    if row.verdict in (*_EARNED, "variant") and not names:
        yield f"{row.verdict}, without results"
    for name in names:
        there = [path for path in (results / f"{name}.json", results / "figures" / f"{name}.json") if path.exists()]
        if not there:
            yield f"{name}.json is not there"
            continue
        made = json.loads(there[0].read_text())["made_by"]
        if not _is_made_by(row.command, made["command"]):
            yield f"{name}.json was made by {made['command']}"
        if row.verdict in (*_EARNED, "variant") and not history.has(made["commit"].rstrip("+")):
            yield f"{row.verdict}, by {name}.json of commit {made['commit']}, which is not in this history"
        if row.verdict in _EARNED and made["commit"].endswith("+"):
            yield f"{row.verdict}, by {name}.json of files that differ from commit {made['commit']}"


def _is_made_by(command: str, made: str) -> bool:
    """Whether a results file comes from the command of a row: the same tool, kind and figure, or options."""
    words, told = shlex.split(command.strip("`")), made.split()
    tool = _SHORT.get(words[0], " ".join(words[:3]))
    if tool == "skyray bench":
        figure = words[words.index("--figure") + 1] if "--figure" in words else None
        return words[1] in told and (figure is None or figure in told or figure in made)
    if tool == _SHORT["E"]:
        # made with all values that the row names, and perhaps more of them
        options = dict(zip(told[1::2], told[2::2], strict=True))
        named = zip(words[1::2], words[2::2], strict=True)
        if not all(set(values.split(",")) <= set(options.get(name, "").split(",")) for name, values in named):
            return False
    return tool.rpartition(".")[2] in told[0]


class _History:
    """The commits before this one; every commit where there is no whole history."""

    def __init__(self, root: Path):
        self._root = root
        self._known: dict[str, bool] = {}
        shallow = self._git("rev-parse", "--is-shallow-repository")
        self._whole = shallow is not None and shallow.strip() == "false"

    def has(self, commit: str) -> bool:
        if commit not in self._known:
            there = self._git("merge-base", "--is-ancestor", commit, "HEAD") is not None
            self._known[commit] = there or not self._whole
        return self._known[commit]

    def _git(self, *words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(self._root), *words], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout


def main(tell: Tell = say) -> int:
    """Write the page; 1 if a row has a fault."""
    rows = papers()
    PAGE.write_text(page(rows), encoding="utf-8")
    found = faults(rows)
    for fault in found:
        tell(fault)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
