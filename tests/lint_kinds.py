"""Finds kinds of subscription that are named where none may be: part of `make lint`.

Spouts, bolts, routers and the topology work by what a row of `matching.kinds` says; a kind named there would be one
more thing to be told of the next one. Looks at code alone: docstrings and comments may explain by example.

    python tests/lint_kinds.py
"""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: Where no kind is named.
FOLDERS = ("bolts", "topology", "distribution", "spouts")


class Finding(NamedTuple):
    """A line (from 1), and what stands there."""

    line: int
    what: str


def kinds_of(source: str) -> dict[str, str]:
    """Code, as it is called in `matching.model`, to name of every `Kind(CODE, "name", ...)` in the source."""
    rows: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="Kind"), args=[ast.Name(id=code), ast.Constant(value=str(name)), *_]):
                rows[code] = name
    return rows


def findings(source: str, kinds: dict[str, str]) -> Iterator[Finding]:
    """Where source code names a kind: by its code, its package, or its name as a word of any string. O(nodes)."""
    named = re.compile(rf"(?<![a-z])({'|'.join(map(re.escape, kinds.values()))})(?![a-z])", re.IGNORECASE)
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) if word in kinds:
                yield Finding(node.lineno, f"code {word}")
            case ast.ImportFrom(module=module, names=names):
                for alias in names:
                    if alias.name in kinds:
                        yield Finding(node.lineno, f"code {alias.name}")
                if module and named.search(module):
                    yield Finding(node.lineno, f"import from {module}")
            case ast.Import(names=names):
                for alias in names:
                    if named.search(alias.name):
                        yield Finding(node.lineno, f"import of {alias.name}")
            case ast.Constant(value=str(text) | bytes(text)) if id(node) not in prose:
                told = text if isinstance(text, str) else text.decode("latin-1")
                if found := named.search(told):
                    yield Finding(node.lineno, f"string with {found[0]!r}")


def main(folders: Sequence[str | Path] = ()) -> int:
    """Look through folders, by default `FOLDERS` of the project; 1 if a kind is named there, each in a line."""
    kinds = kinds_of((ROOT / "matching" / "kinds.py").read_text(encoding="utf-8"))
    if not kinds:
        sys.stderr.write("matching/kinds.py: no row Kind(CODE, name, ...) is found there any more\n")
        return 1
    wrong = 0
    for folder in folders or [ROOT / name for name in FOLDERS]:
        for file in sorted(Path(folder).rglob("*.py")):
            for line, what in sorted(findings(file.read_text(encoding="utf-8"), kinds)):
                shown = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
                sys.stderr.write(f"{shown}:{line}: {what}: ask the row of the kind (matching.operator.Kind) instead\n")
                wrong += 1
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
