"""The tables of the house count what is there."""

from pathlib import Path

from benchmarks import house


def test_house_gives_each_file_one_role_and_counts_every_line():
    measured = house.measure()
    files = house.production()
    lines = sum(len((house.ROOT / path).read_text().splitlines()) for path in files)
    assert measured["lines"].total() == measured["packages"].total() == lines
    assert measured["files"].total() == measured["folders"].total() == len(files)
    assert set(measured["lines"]) == {"around", "baseline", "default", "floor", "paper"}


def test_house_takes_roles_from_the_table_of_kinds():
    role = house.roles(house.production())
    said = {
        "matching/boolean/engines/cell_term.py": "default",
        "papers/lfilter/mbr_trie_build.py": "paper",
        "matching/topk/engines/skype_scan.py": "default",
        "matching/kinds.py": "floor",
        "baselines/topk/posted.py": "baseline",
        "bolts/query.py": "around",
    }
    assert {path: role[Path(path)] for path in said} == said


def test_house_counts_lines_of_code():
    text = '''"""A module

of two."""

import ast  # it is
# a comment

def f():
    """One."""
    return """a

b"""
'''
    assert house.lines_of_code(text) == 4, "import, def, and the two lines of a string that are not blank"


def test_house_counts_words_and_no_parts_of_them():
    counted = house.words(["Told and untold; asks.", "It is told: asks"])
    assert {word: count for word, count in counted.items() if count} == {"told": 2, "asks": 2}
