"""How large the production code is, by role and by folder, and how often it says words that stand for too many things.

    python -m benchmarks.house

`papers/` and `baselines/` are roles of their own. In `matching/` the engines and window indexes that a run takes
without a name are `default`, with the files of `engines/` and `windows/` that they need; the remainder, and
`compiling/`, is the `floor`. All other packages are `around`. Lines include blank ones, comments and docstrings; `code`
does not.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable
from inspect import getfile
from pathlib import Path
from typing import Any

from compiling.kernel_cache import ROOT, closure_of
from gateway.shell.packages import PACKAGES
from matching.kinds import KINDS

#: Import packages of the distribution and its one module.
PRODUCTION = (*PACKAGES, "skyray.py")
#: Packages that are a role of their own.
_WINGS = {"compiling": "floor", "papers": "paper", "baselines": "baseline"}
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
    chosen = [each for kind in KINDS.run for each in (kind.engine(), *([kind.window()] if kind.windowed else []))]
    default = {path for each in chosen for path in closure_of(Path(getfile(each)).relative_to(ROOT))}

    def role(path: Path) -> str:
        package = path.parts[0]
        if package in _WINGS:
            return _WINGS[package]
        if package != "matching":
            return "around"
        return "default" if {"engines", "windows"} & set(path.parts) and path in default else "floor"

    return {path: role(path) for path in files}


def lines_of_code(text: str) -> int:
    """Number of lines of a source that have code: no blank line, comment or docstring. O(lines)."""
    tree = ast.parse(text)
    prose = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    return sum(
        number not in prose and bool(line.strip()) and not line.lstrip().startswith("#")
        for number, line in enumerate(text.splitlines(), 1)
    )


def words(texts: Iterable[str]) -> Counter[str]:
    """How often each of the vague words stands in some texts, as a word of its own and in any case."""
    every = Counter(word for text in texts for word in re.findall(r"[a-z]+", text.lower()))
    return Counter({word: every[word] for word in VAGUE})


def measure() -> dict[str, Any]:
    """`lines`, `code` and `files` by role, `packages` with their lines, `folders` with their files, and `words`."""
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in production()}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    role = roles(texts)
    tables: dict[str, Counter[str]] = {name: Counter() for name in ("lines", "code", "files", "packages", "folders")}
    for path, count in lines.items():
        tables["lines"][role[path]] += count
        tables["code"][role[path]] += lines_of_code(texts[path])
        tables["files"][role[path]] += 1
        tables["packages"][path.parts[0]] += count
        tables["folders"][path.parent.as_posix()] += 1
    return {**tables, "words": words(texts.values()), "longest": Counter(lines).most_common(5)}


def main() -> None:
    """Print the tables."""
    measured = measure()
    for name in ("lines", "code", "files", "packages", "folders", "words"):
        table: Counter[str] = measured[name]
        print(f"{name}: {table.total():,}")
        for key, count in sorted(table.items()) if name == "folders" else table.most_common():
            print(f"  {count:>7,}  {key}")
    print("longest files")
    for path, count in measured["longest"]:
        print(f"  {count:>7,}  {path}")


if __name__ == "__main__":
    main()
