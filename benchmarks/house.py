"""How large the production code is, by role and by folder, and how often it says words that stand for too many things.

    python -m benchmarks.house

Roles are those of `matching.kinds` and `matching.kinds`: an engine or window index with all that only such need is
`default`, `paper` or `baseline`, by whether a run takes it without a name, a system of the papers is it, or neither;
what is left of `matching/` is the `floor` that all stand on, and all other packages are `around`. Lines are those of
files, with docstrings and blank ones. Read on in `matching.kernel_cache.closure_of`, which says what a file needs.
"""

import re
from collections import Counter
from collections.abc import Iterable
from inspect import getfile
from pathlib import Path
from typing import Any

from matching.kernel_cache import ROOT, closure_of
from matching.kinds import KINDS

#: Import packages of the distribution and its one module.
PRODUCTION = (
    "matching",
    "baselines",
    "distribution",
    "topology",
    "bolts",
    "spouts",
    "spark_etl",
    "gateway",
    "skyray.py",
)
#: Words of which nobody can tell at first reading what they mean.
VAGUE = ("told", "tell", "tells", "asks", "asked", "whoever", "nobody", "somebody", "held")


def production() -> list[Path]:
    """Files of the distribution, below the root of the checkout, in order of their names."""
    named = (
        path for name in PRODUCTION for path in ([ROOT / name] if name.endswith(".py") else (ROOT / name).rglob("*.py"))
    )
    return sorted(path.relative_to(ROOT) for path in named)


def roles(files: Iterable[Path]) -> dict[Path, str]:
    """The role of each file."""
    default, paper = _needed(first=True), _needed(first=False)

    def role(path: Path) -> str:
        package = path.parts[0]
        if package != "matching":
            return "baseline" if package == "baselines" else "around"
        if not {"engines", "windows", "ciq"} & set(path.parts):
            return "floor"
        return "default" if path in default else "paper" if path in paper else "floor"

    return {path: role(path) for path in files}


def _needed(first: bool) -> set[Path]:
    """What the first engines and window indexes of all kinds need, or what the others do."""
    classes: list[Any] = []
    for kind in KINDS.run:
        for named in (list(kind.engines.values()), list(kind.windows.values())):
            classes += named[:1] if first else named[1:]
    return {path for each in classes for path in closure_of(Path(getfile(each)).relative_to(ROOT))}


def words(texts: Iterable[str]) -> Counter[str]:
    """How often each of the vague words stands in some texts, as a word of its own and in any case."""
    every = Counter(word for text in texts for word in re.findall(r"[a-z]+", text.lower()))
    return Counter({word: every[word] for word in VAGUE})


def measure() -> dict[str, Any]:
    """`lines` and `files` by role and by package, `folders` with their files, and `words`."""
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in production()}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    role = roles(texts)
    tables: dict[str, Counter[str]] = {name: Counter() for name in ("lines", "files", "packages", "folders")}
    for path, count in lines.items():
        tables["lines"][role[path]] += count
        tables["files"][role[path]] += 1
        tables["packages"][path.parts[0]] += count
        tables["folders"][path.parent.as_posix()] += 1
    return {**tables, "words": words(texts.values()), "longest": Counter(lines).most_common(5)}


def main() -> None:
    """Print the tables."""
    measured = measure()
    for name in ("lines", "files", "packages", "folders", "words"):
        table: Counter[str] = measured[name]
        print(f"{name}: {table.total():,}")
        for key, count in sorted(table.items()) if name == "folders" else table.most_common():
            print(f"  {count:>7,}  {key}")
    print("longest files")
    for path, count in measured["longest"]:
        print(f"  {count:>7,}  {path}")


if __name__ == "__main__":
    main()
