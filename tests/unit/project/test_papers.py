"""The table of each paper names files that there are, and all files of its folder."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAPERS = sorted(path.parent for path in (ROOT / "papers").glob("*/__init__.py"))


def files_of(table: str, folder: Path) -> tuple[set[Path], list[str]]:
    """Files that a docstring names, and names that are no file: of the folder, of the root, or of the last folder."""
    found, wrong = set(), []
    for line in table.splitlines():
        last = folder
        for name in re.findall(r"`([\w/*]+(?:\.py|/))`", line):
            there = [path for place in (folder, ROOT, last) for path in place.glob(name.rstrip("/"))]
            last = there[0].parent if there else last
            found |= set(there)
            wrong += [] if there else [name]
    return found, wrong


@pytest.mark.parametrize("folder", PAPERS, ids=lambda folder: folder.name)
def test_paper_has_a_table_of_files_that_there_are(folder):
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert re.search(r'"[^"]+",[^|]*\b20\d\d\b', said), "the citation comes before the table"
    assert said.count("\n| ") > 10 and "The paper leaves" in " ".join(said.split())
    found, wrong = files_of(said, folder)
    assert wrong == []
    assert {path for path in folder.glob("*.py") if path.name != "__init__.py"} - found == set()


def test_table_that_names_what_is_not_there_is_found_out():
    found, wrong = files_of("| a | `distribution/hashing.py`, `keyword.py`, `gone.py` |", PAPERS[0])
    assert {path.name for path in found} == {"hashing.py", "keyword.py"} and wrong == ["gone.py"]


def test_every_paper_is_named_in_the_wing():
    said = (ROOT / "papers" / "__init__.py").read_text(encoding="utf-8")
    assert len(PAPERS) == 5 and all(f"| `{folder.name}` |" in said for folder in PAPERS)
