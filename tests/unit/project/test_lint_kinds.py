"""The lint that finds kinds named where none may be: it finds each way of naming one, and nothing else."""

import subprocess
import sys

import pytest

from matching import model
from matching.kinds import KINDS
from tests.lint_kinds import ROOT, findings, kinds_of, main

NAMES = kinds_of((ROOT / "matching" / "kinds.py").read_text(encoding="utf-8"))


def test_lint_kinds_knows_every_row_of_the_table():
    assert sorted((getattr(model, code), name) for code, name in NAMES.items()) == list(enumerate(KINDS.names))


@pytest.mark.parametrize(
    "planted",
    [
        "from matching.model import TOPK",
        "from matching.model import KNN as nearest",
        "rows = table.kind == BOOLEAN",
        "rows = table.of_kind(model.SKYLINE)",
        'rows = kinds.named("topk")',
        "held = {'skyline': 3}",
        'raise ValueError(f"{count} topk subscriptions")',
        'edge("query", "found_skyline", "query")',
        'setting = "KIND=boolean,cell_term"',
        'if b"decay" in block:\n        pass',
        "from matching.topk.operator import TopkRoom",
        "import matching.skyline.operator",
        "match kind:\n        case 'knn':\n            pass",
    ],
)
def test_lint_kinds_planted_name_is_found_with_its_line(planted):
    source = f'"""Of topk and skyline."""\n\n\ndef work():\n    {planted}\n'
    assert [line for line, _ in findings(source, NAMES)] in ([5], [6])


@pytest.mark.parametrize(
    "clean",
    [
        '"""A `topk` subscription."""',
        "holds = 1  # as boolean and topk do: TOPK",
        "class Part:\n    '''What skyline rooms want.'''\n\n    def work(self):\n        '''For decay.'''",
        "field = 1\n'''Documents an attribute: knn.'''",
        'word = "topkind"',
        'word = "decayed"',
        "from matching.model import ENTER, SubscriptionTable",
        "skyline = is_region[kinds]",
    ],
)
def test_lint_kinds_prose_and_other_words_are_let_through(clean):
    assert list(findings(clean, NAMES)) == []


def test_lint_kinds_folder_with_a_planted_name_fails_and_says_where(tmp_path, capsys):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "bolt.py").write_text("x = 1\ny = 'topk'\n")
    assert main([tmp_path]) == 1
    assert f"{tmp_path / 'inner' / 'bolt.py'}:2: string with 'topk'" in capsys.readouterr().err
    (tmp_path / "inner" / "bolt.py").write_text("x = 1\n")
    assert main([tmp_path]) == 0


def test_lint_kinds_runs_as_a_script_and_topology_names_none():
    folders = [str(ROOT / name) for name in ("topology", "distribution", "spouts")]
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "lint_kinds.py", *folders], capture_output=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, b"")
