"""Whatever ids, words, texts and names of files hold, a terminal obeys none of it, and no line is forged."""

import contextlib
import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import cli
from gateway.shell.terminal import Terminal, as_json, cell, fail, say, shown
from gateway.subscriptions.generate import generate_subscriptions
from matching.kinds import KINDS
from tests.support.etl_folder import SCHEMA, random_rows, write_etl
from topology import running
from topology.settings import RunConfig

#: Clears the screen, names the window, turns lines around, forges a line, ends one that a reader sees as two.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202etxt\u2066\x9b31m\r\nexact: forged\x85\u2028[red]b[/red]\u200f\ufeff"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of hostile messages and subscriptions, in a folder of that name."""
    folder = tmp_path_factory.mktemp("hostile") / f"a{HOSTILE.replace('/', '|')}"
    rows = random_rows(120)
    for row in rows:
        row["message_id"] += HOSTILE
        row["text"] += HOSTILE
        row["object_id"] = row["message_id"]
    etl = write_etl(folder / "etl", rows)
    vocabulary = pq.read_table(etl / "vocabulary.parquet")
    words = pa.array([f"w{number}" if number else "w0\u061cx\x9b" for number in range(len(vocabulary))])
    pq.write_table(vocabulary.set_column(1, "term", words), etl / "vocabulary.parquet")
    path = folder / "all.jsonl"
    with path.open("w") as out:
        for kind in KINDS.run:
            share = {"region_share": 0.9} if kind.place == "region" else {}
            generate_subscriptions(
                etl, kind.name, 4, 1, folder / "made.jsonl", overwrite=True, **share, max_frequency=1.0
            )
            for line in (folder / "made.jsonl").read_text().splitlines():
                row = json.loads(line)
                out.write(
                    json.dumps(row | {"subscription_id": row["subscription_id"] + HOSTILE, HOSTILE: HOSTILE}) + "\n"
                )
        bad = {"subscription_id": f"bad{HOSTILE}", "kind": HOSTILE, "keywords": HOSTILE, "k\u202e": 1}
        out.write(json.dumps(bad) + "\n" + json.dumps({"unsubscribe": HOSTILE}) + "\n")
    config = {"window": "count:40", "batch": "20", "executor": "local"}
    running.run(RunConfig(messages=etl, subscriptions=(path,), out=folder / "run", **config))
    return folder


def wrong_run(folder, tmp_path):
    """A run with updates missing, of which verify says whose."""
    shutil.copytree(folder / "run", tmp_path / "run", ignore=shutil.ignore_patterns("updates.list"))
    part = next((tmp_path / "run" / "updates").iterdir())
    table = pq.read_table(part)
    pq.write_table(pa.concat_tables([table.slice(0, 10), table.slice(13)]), part)
    return tmp_path / "run"


#: What a line of CSV can have as a name.
COLUMN = HOSTILE.replace("\r\n", "").replace("\x85", "").replace("\u2028", "")


def hostile_table(tmp_path):
    """A file of raw messages; some rows are refused."""
    path = tmp_path / f"raw{COLUMN.replace('/', '|')}.csv"
    rows = [f"text,lat,lon,more{COLUMN}"] + [f"coffee {COLUMN},{place},2,{COLUMN}" for place in (1, 2, 99, COLUMN)]
    path.write_text("\n".join(rows))
    return path


def commands(folder, tmp_path):
    """Every command that prints data, once so that it answers and once so that it refuses."""
    etl, run, file = folder / "etl", folder / "run", folder / "all.jsonl"
    one = f"topk-1-0{HOSTILE}"
    match = ["--messages", etl, "--text", f"w11 {HOSTILE}"]
    told = {"--messages": etl, "--subscriptions": file}
    yield 0, ["show", run]
    yield 0, ["show", run, one]
    yield 0, ["show", run, "--updates"]
    yield 0, ["show", run, one, "--follow"]
    yield 0, ["show", run, one, "--map", tmp_path / f"m{HOSTILE.replace('/', '|')}.png"]
    yield 2, ["show", run, f"topk-1-1{HOSTILE}x"]
    yield 4, ["show", folder / HOSTILE.replace("/", "|")]
    yield 0, ["explain", run, one, f"message 3{HOSTILE}"]
    yield 4, ["explain", run, one, HOSTILE]
    yield 2, ["explain", run, HOSTILE, HOSTILE]
    yield 0, ["match", "--subscriptions", file, *match, "--at", "1,1"]
    yield 2, ["match", "--subscriptions", file, *match, "--at", HOSTILE]
    yield 1, ["subscriptions", "check", file, "--messages", etl, "--limit", 0]
    yield 4, ["subscriptions", "check", folder / "no\x1b[2J", "--messages", etl]
    yield 1, ["verify", wrong_run(folder, tmp_path), "--all"]
    yield 4, ["verify", folder / "no\x1b[2J"]
    generate = ["subscriptions", "generate", "--count", 2, "--messages", etl]
    yield 0, [*generate, "--kind", "knn", "--out", tmp_path / "a\x1b[2J"]
    yield 2, [*generate, "--kind", HOSTILE, "--out", tmp_path / "b"]
    yield 0, ["run", *sum(told.items(), ()), "--out", tmp_path / "r\u202e", "--executor", "local", "--limit", 60]
    yield 2, ["run", *sum(told.items(), ()), "--out", tmp_path / "c", "--window", HOSTILE]
    yield 0, ["topology", "show", *sum(told.items(), ()), "--out", tmp_path / "r\x1b[2J"]
    yield 2, ["topology", "show", "--router", HOSTILE]
    raw = hostile_table(tmp_path)
    yield 0, ["etl", raw, "--dry-run", 10]
    yield 2, ["etl", raw, "--column", f"text={COLUMN}", "--dry-run", 10]
    yield 4, ["etl", raw, "--column", "text=no", "--dry-run", 10]
    yield 4, ["etl", folder / "no\x1b[2J", "--out", tmp_path / "e"]
    yield 4, ["run", "--messages", raw, "--subscriptions", file, "--out", tmp_path / "d"]
    yield 2, [HOSTILE]
    yield 2, ["show", run, f"--{HOSTILE}"]
    yield 2, ["config", "show", "--config", f"x{HOSTILE}"]
    yield 2, ["bench", HOSTILE]


def test_hostile_data_reaches_no_terminal(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bare = 0
    for code, arguments in commands(folder, tmp_path):
        assert cli.main(list(map(str, arguments))) == code, (arguments, capsys.readouterr())
        printed = capsys.readouterr()
        for text in (printed.out, printed.err):
            assert not OBEYED.search(text), (arguments, text[:2000])
            assert not any(line.startswith("exact: forged") for line in text.splitlines()), text
        bare += "\\x1b[2J" in printed.out + printed.err
    assert bare > 15, "what was escaped must have been there"


@pytest.mark.spark
@pytest.mark.wide
def test_hostile_columns_of_the_etl_reach_no_terminal(tmp_path, capsys):
    arguments = ["etl", hostile_table(tmp_path), "--out", tmp_path / "a\x1b[2J"]
    assert cli.main(list(map(str, arguments))) == 0
    printed = capsys.readouterr()
    assert "\\x1b[2J" in printed.out and not OBEYED.search(printed.out + printed.err), printed


@pytest.mark.parametrize("more", [[], ["--updates"]])
def test_hostile_data_is_whole_in_json_and_in_csv(folder, capsys, more):
    one = f"boolean-1-1{HOSTILE}"
    assert cli.main(["show", str(folder / "run"), one, *more, "--json", "--limit", "0"]) == 0
    text = capsys.readouterr().out
    assert not OBEYED.search(text) and text.count("\n") == 1
    payload = json.loads(text)
    rows = payload["updates"] if more else payload["subscriptions"][0]["results"]
    assert rows and all(row["text"].endswith(HOSTILE) and row["subscription_id"] == one for row in rows)


@given(text=st.text())
def test_shown_text_is_on_one_line_and_obeyed_by_nobody(text):
    made = shown(text)
    assert not OBEYED.search(made) and "\n" not in made
    made.encode()
    assert shown(text, lines=True).count("\n") == text.count("\n")
    if text.isalnum():
        assert made == text


@given(value=st.recursive(st.text() | st.none() | st.integers(), lambda each: st.dictionaries(st.text(), each)))
def test_as_json_says_the_same_and_is_obeyed_by_nobody(value):
    made = as_json({"value": value})
    assert json.loads(made) == {"value": value}
    assert not OBEYED.search(made) and "\n" not in made


def test_shown_leaves_scripts_and_pictures_as_they_are():
    text = "नमस्ते 日本 עברית مرحبا 👩‍👩‍👧 café\u200bx"
    assert shown(text) == text


@pytest.mark.parametrize("tell", [lambda: fail(HOSTILE), lambda: say(cell([HOSTILE, {HOSTILE: HOSTILE}]))])
def test_errors_and_cells_are_on_one_line(tell, capsys):
    tell()
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("\n") == 1


def test_progress_in_lines_says_names_on_one_line(capsys):
    with Terminal().steps(f"bench {HOSTILE}", in_lines=True) as step:
        step(HOSTILE, messages=3)
    assert capsys.readouterr().err.count("\n") == 1


def test_schema_of_hostile_messages_is_that_of_the_etl(folder):
    """Else the run above would have read something else."""
    assert pq.read_schema(next((Path(folder) / "etl" / "messages").iterdir())).names == SCHEMA.names
    with contextlib.suppress(StopIteration):
        row = next(iter(pq.read_table(folder / "run" / "updates").to_pylist()))
        assert HOSTILE in row["message_id"]
