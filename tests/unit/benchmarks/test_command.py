"""What is behind `python -m benchmarks.NAME`: options from parameters, one JSON object, an exit code."""

import json
import sys
from typing import Annotated, Any

import pytest

from benchmarks import command, headline, routers, topology_cost


def measure(
    count: Annotated[int, "how many"] = 3,
    many_words: Annotated[tuple[str, ...], "names"] = ("a",),
    sizes: Annotated[tuple[int, ...], "numbers"] = (1, 2),
    share: Annotated[float | None, "of all"] = None,
    inside: int = 7,
    tell: command.Tell = print,
) -> dict[str, Any]:
    tell("measuring")
    return {"given": [count, many_words, sizes, share, inside], "exact": count > 0}


@pytest.mark.parametrize(
    ("words", "given", "status"),
    [
        ([], [3, ["a"], [1, 2], None, 7], 0),
        (["--count", "-1", "--many-words", "b,c", "--sizes", "", "--share", "0.5"], [-1, ["b", "c"], [], 0.5, 7], 1),
    ],
)
def test_command_reads_parameters_and_says_whether_the_report_counts(words, given, status, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["measure.py", *words])
    assert command.main(measure) == status
    out, told = capsys.readouterr()
    report = json.loads(out)
    assert report["given"] == given and report["made_by"]["command"].startswith("measure.py") and told == "measuring\n"


def test_command_refuses_what_is_no_option(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["measure.py", "--inside", "8"])
    with pytest.raises(SystemExit, match="2"):
        command.main(measure)
    assert "--inside" in capsys.readouterr().err


@pytest.mark.parametrize("bench", [headline.headline, routers.bench, topology_cost.bench])
def test_command_of_every_benchmark_says_what_it_can_be_told(bench, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        command.main(bench)
    assert "--seed" in capsys.readouterr().out
