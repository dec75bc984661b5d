"""Long lists: rows are printed as they are read, in the same memory, as wide as the terminal."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tracemalloc

import pyarrow.parquet as pq
import pytest

from gateway import cli
from gateway.runs import showing
from gateway.runs.distance import distance_km, kilometres
from gateway.runs.explaining import explain
from gateway.runs.message_rows import MessageRows
from gateway.runs.reader import RunReader
from gateway.runs.showing import result_lines, result_stream
from gateway.shell import terminal
from gateway.shell.listing import cells, listing
from tests.support.small_runs import small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("long"))


def grown(run, folder, times):
    """The run, with so many times as many updates in as many parts."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("updates.list"))
    (part,) = sorted((folder / "updates").iterdir())
    for number in range(1, times):
        shutil.copy(part, folder / "updates" / f"part-{number:05d}.parquet")
    return folder


def peak_bytes(monkeypatch, *arguments):
    """The most that a command takes of memory."""
    with open(os.devnull, "w") as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        tracemalloc.start()
        try:
            assert cli.main([*map(str, arguments)]) == 0
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    "form",
    [["--updates", "--json"], [], *(pytest.param(form, marks=pytest.mark.long) for form in (["--updates"], ["--csv"]))],
    ids=" ".join,
)
def test_show_more_rows_take_hardly_more_memory(run, tmp_path, monkeypatch, form):
    monkeypatch.setattr(showing, "JOINED", 256)
    short, long = grown(run, tmp_path / "short", 4), grown(run, tmp_path / "long", 12)
    more = sum(pq.read_table(folder / "updates").num_rows * sign for folder, sign in ((short, -1), (long, 1)))
    assert more > 6_000
    peak_bytes(monkeypatch, "show", short, *form, "--limit", 0)  # what is imported and kept once
    few, many = (peak_bytes(monkeypatch, "show", folder, *form, "--limit", 0) for folder in (short, long))
    assert many - few < 100 * more, (few, many, more)


@pytest.mark.parametrize("form", [["--updates", "--csv"], ["--updates"], ["--follow"]], ids=" ".join)
def test_show_rows_before_a_part_that_is_broken_are_printed(run, tmp_path, capsys, form):
    folder = grown(run, tmp_path / "run", 2)
    (folder / "updates" / "part-00001.parquet").write_bytes(b"PAR1 no more PAR1")
    assert cli.main(["show", str(folder), *form, "--limit", "0"]) == 4
    printed = capsys.readouterr()
    assert printed.out.count("\n") >= pq.read_table(folder / "updates" / "part-00000.parquet").num_rows > 800
    assert "part-00001.parquet" in printed.err and printed.err.count("\n") == 1


@pytest.mark.parametrize("form", [["--updates"], ["--updates", "--csv"], []], ids=" ".join)
def test_show_ends_quietly_where_its_reader_goes(run, tmp_path, form):
    folder = grown(run, tmp_path / "run", 20)
    if form:  # what comes later is not read
        (folder / "updates" / "part-00019.parquet").write_bytes(b"PAR1 no more PAR1")
    command = [sys.executable, "-m", "gateway.entry", "show", folder, *form, "--limit", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        lines = [process.stdout.readline() for _ in range(2)]
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141
    assert all(lines)


@pytest.mark.parametrize("form", [[], ["--updates"], ["--follow"]], ids=" ".join)
@pytest.mark.parametrize("width", [80, 160])
def test_show_fits_the_terminal_and_says_id_and_time_in_whole(run, capsys, monkeypatch, form, width):
    monkeypatch.setattr(terminal, "PIPED_WIDTH", width)
    assert cli.main(["show", str(run), "mine", *form, "--limit", "3"]) == 0
    out = capsys.readouterr().out
    assert max(map(cells, (line for line in out.splitlines() if not line.startswith("why:")))) <= width
    assert cli.main(["show", str(run), "mine", *form, "--limit", "3", *(["--json"])]) == 0
    printed = capsys.readouterr().out
    rows = [json.loads(line) for line in printed.splitlines()]
    if not form or form == ["--updates"]:
        rows = rows[0]["updates"] if form else rows[0]["subscriptions"][0]["results"]
    assert len(rows) == 3
    for row in rows:
        assert re.search(rf"(^|\s){re.escape(row['message_id'])}(\s|$)", out), row["message_id"]
        assert row["event_time"].replace("T", " ")[:16] in out


@pytest.mark.parametrize("form", [[], ["--updates"]], ids=" ".join)
def test_show_prints_the_command_that_explains(run, capsys, form):
    assert cli.main(["show", str(run), "mine", *form]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("why: ")]
    skyray, *arguments = shlex.split(line.removeprefix("why: "))
    assert skyray == "skyray" and arguments[:2] == ["explain", str(run)] and arguments[2] == "mine"
    assert cli.main([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["subscription"]["subscription_id"] == "mine" and answer["updates"]


def scores(run, kind):
    """Of each result of a kind: the row, and its score as printed."""
    reading = RunReader(run)
    payload = result_stream(reading, [], 0)
    found = []
    for one in payload["subscriptions"]:
        rows = list(one["results"])
        if one["kind"] == kind and rows and not one["subscription_id"].startswith(f"{kind}-3-0"):
            lines = list(result_lines({**payload, "subscriptions": [one | {"results": rows}]}, reading, 200))
            head = next(number for number, line in enumerate(lines) if line.startswith("rank"))
            end = lines[head].index("score") + len("score")
            printed = [line[:end].removesuffix(" km").split()[-1] for line in lines[head + 2 : head + 2 + len(rows)]]
            found += [(one, row, said) for row, said in zip(rows, printed, strict=True)]
    assert len(found) > 5
    return found


def test_show_score_of_the_nearest_is_in_kilometres(run):
    for one, row, said in scores(run, "knn"):
        far = distance_km(one["lon"], one["lat"], row["lon"], row["lat"])
        assert float(said) == pytest.approx(far, rel=6e-3)


def test_show_score_that_fades_is_that_of_the_message_when_it_was_published(run):
    for one, row, said in scores(run, "decay"):
        parts = explain(run, one["subscription_id"], f"seq:{row['seq']}")["parts"]
        assert float(said) == pytest.approx(parts["relevance"], rel=6e-3)


def test_kilometres_have_decimals_below_ten():
    assert [kilometres(far) for far in (12345.6, 10.04, 9.96, 9.94, 0.996, 0.994, 0.0, None)] == [
        "12,346", "10", "10", "9.9", "1.0", "0.99", "0.00", "-",
    ]  # fmt: skip


def test_listing_puts_below_what_has_no_room_and_cuts_the_text_alone():
    rows = [["id-" + "9" * 20, "東京のラーメン屋", "x" * 90], ["b", "", "short"]]
    wide = list(listing(["id", "place", "text"], rows, 150, below=["text", "place"]))
    assert wide[2] == f"{rows[0][0]}  {rows[0][1]}  {'x' * 90}" and len(wide) == 4
    narrow = list(listing(["id", "place", "text"], rows, 40, below=["text", "place"]))
    assert narrow[3:5] == [rows[0][0], f"    {rows[0][1]}  {'x' * 17}…"] and narrow[6] == "    short"
    assert cells(narrow[4]) == 40
    middle = list(listing(["id", "text"], [["a", "x" * 90], ["b", "short"]], 40, below=["text"]))
    assert middle[2:] == [f"a   {'x' * 35}…", "b   short"], "no sign of a cut where nothing was"
    assert list(listing(["id"], [], 40)) == []


def test_message_rows_are_the_same_however_few_are_kept(run):
    etl = run.parent / "etl"
    kept, not_kept = MessageRows(etl), MessageRows(etl, kept_bytes=0)
    for seqs in ([5, 3, 200], [], [5], [239, 240, 10**9]):
        assert kept.read(seqs) == not_kept.read(seqs)
        assert kept.read(seqs).keys() == {seq for seq in seqs if seq < 240}
