"""The graph of packages: who imports whom, which packages form a circle, and which imports stand inside functions.

    python -m benchmarks.graph

A node is a package of the distribution; `topology.core` is one beside `topology`, and so are the folders and files of
`gateway`. An import inside a function makes an edge like any other. Such an import is there for an *extra* if it brings
a package that only an extra installs, itself or by what it imports; all others could stand at the top of their file.
Exit code 1 if there is a circle. Imports for type checkers alone do not count.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.house import ROOT, production
from matching.extras import EXTRAS

#: Modules that an extra installs.
_OPTIONAL = {module for extra in EXTRAS.values() for module in extra.modules}


class Import(NamedTuple):
    """An import: where it stands, the module that it brings, and whether it stands inside a function."""

    by: str
    of: str
    inside: bool


def sources() -> dict[str, str]:
    """Source of every module of the distribution, by its dotted name."""
    names = {path: path.with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__") for path in production()}
    return {name: (ROOT / path).read_text(encoding="utf-8") for path, name in names.items()}


def imports(texts: Mapping[str, str]) -> list[Import]:
    """All imports of some modules; one of a name is an import of the module that has the name. O(size of the texts)."""
    return [
        Import(by, _module(name, texts), inside)
        for by, text in texts.items()
        for name, inside in _named(ast.parse(text), False)
    ]


def _named(tree: ast.AST, inside: bool) -> Iterator[tuple[str, bool]]:
    """What a tree imports, and whether inside a function."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, inside) for alias in names)
            case ast.ImportFrom(module=module, names=names):
                yield from ((f"{module}.{alias.name}", inside) for alias in names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case _:
                yield from _named(node, inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def _module(name: str, texts: Mapping[str, str]) -> str:
    """The longest beginning of a name that is one of our modules; the top-level package of another's."""
    parts = name.split(".")
    ours = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((module for module in ours if module in texts), parts[0])


def node_of(module: str) -> str:
    """The node of a module."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "gateway" or parts[:2] == ["topology", "core"] else 1])


def circles(edges: Mapping[tuple[str, str], Any]) -> list[list[str]]:
    """The nodes that reach each other, two or more together. O(nodes * edges)."""
    after: dict[str, set[str]] = {}
    for source, target in edges:
        after.setdefault(source, set()).add(target)
    reached = {node: _reached(node, after) for node in after}
    found = {tuple(sorted(other for other in far if node in reached.get(other, ()))) for node, far in reached.items()}
    return [list(nodes) for nodes in sorted(found) if len(nodes) > 1]


def _reached(start: str, after: Mapping[str, set[str]]) -> set[str]:
    """What can be reached from a node in one step or more."""
    found: set[str] = set()
    left = [start]
    while left:
        new = after.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def for_extras(every: list[Import]) -> set[Import]:
    """The imports inside functions that bring, directly or not, a module that only an extra installs."""
    after: dict[str, set[str]] = {}
    for each in every:
        if not each.inside:
            after.setdefault(each.by, set()).add(each.of)
    return {each for each in every if each.inside and ({each.of} | _reached(each.of, after)) & _OPTIONAL}


def measure(texts: Mapping[str, str]) -> dict[str, Any]:
    """`edges` with their imports, of all and of those inside functions; `circles`; `inside`, by node and reason."""
    every = imports(texts)
    ours = [each for each in every if each.of in texts and node_of(each.by) != node_of(each.of)]
    edges = Counter((node_of(each.by), node_of(each.of)) for each in ours)
    inner = Counter((node_of(each.by), node_of(each.of)) for each in ours if each.inside)
    optional = for_extras(every)
    inside: dict[str, Counter[str]] = {}
    for each in (one for one in every if one.inside):
        reason = "extra" if each in optional else "ours" if each.of in texts else "other"
        inside.setdefault(node_of(each.by), Counter())[reason] += 1
    return {"edges": edges, "inner": inner, "circles": circles(edges), "inside": inside}


def main() -> int:
    """Print the graph, its circles and the imports inside functions; 1 if there is a circle."""
    found = measure(sources())
    edges, inner = found["edges"], found["inner"]
    for node in sorted({source for source, _ in edges}):
        targets = sorted(target for source, target in edges if source == node)
        shown = (f"{target} {edges[node, target]}" for target in targets)
        print(f"{node}: {', '.join(shown)}")
    for nodes in found["circles"]:
        print(f"circle of {', '.join(nodes)}")
        for (source, target), count in sorted(edges.items()):
            if source in nodes and target in nodes:
                print(f"  {count:>5}  {source} -> {target}, {inner[source, target]} inside functions")
    total = sum(found["inside"].values(), Counter())
    print("imports inside functions:", ", ".join(f"{total[reason]} {reason}" for reason in ("extra", "ours", "other")))
    for node, counts in sorted(found["inside"].items()):
        print(f"  {node}: {', '.join(f'{count} {reason}' for reason, count in sorted(counts.items()))}")
    return int(bool(found["circles"]))


if __name__ == "__main__":
    sys.exit(main())
