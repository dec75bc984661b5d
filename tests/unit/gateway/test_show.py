"""Who got what: what is shown of a run is what it has told, whatever state it is in."""

import csv
import fcntl
import io
import json
import shutil
import threading
import time

import pyarrow.parquet as pq
import pytest

from gateway import cli
from gateway.shell.terminal import shortened
from matching.errors import TopologyError
from spouts.subscriptions import load_vocabulary
from tests.support.small_runs import small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("show"))


@pytest.fixture(scope="module")
def messages(run):
    folder = run.parent / "etl" / "messages"
    return [row for path in sorted(folder.iterdir()) for row in pq.read_table(path).to_pylist()]


@pytest.fixture
def copy(run, tmp_path):
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("updates.list"))
    return tmp_path / "run"


def answer(capsys, *arguments, code=0):
    assert cli.main(["show", *map(str, arguments)]) == code
    printed = capsys.readouterr()
    return printed.out if code == 0 else printed.err


def as_json(capsys, *arguments):
    return json.loads(answer(capsys, *arguments, "--json"))


def told(run):
    return [row for path in sorted((run / "updates").iterdir()) for row in pq.read_table(path).to_pylist()]


def test_show_all_results_are_those_of_the_files(run, capsys):
    payload = as_json(capsys, run, "--limit", 0)
    shown = [row for one in payload["subscriptions"] for row in one["results"]]
    standing = pq.read_table(run / "results.parquet").to_pylist()
    matched = [row for row in told(run) if row["change"] == "match"]
    assert len(standing) > 30 and len(matched) > 30
    found = sorted((row["subscription_id"], row["seq"]) for row in shown)
    assert found == sorted((row["subscription_id"], row["seq"]) for row in standing + matched)
    ranked = {(row["subscription_id"], row["rank"]): row["score"] for row in shown if row["rank"]}
    assert ranked == {(row["subscription_id"], row["rank"]): row["score"] for row in standing}
    assert sum(payload["updates"].values()) == len(told(run))


def test_show_a_result_says_words_text_place_and_distance(run, messages, capsys):
    words = load_vocabulary(run.parent / "etl").terms
    (mine,) = as_json(capsys, run, "mine")["subscriptions"]
    assert (mine["kind"], mine["k"], mine["more"]) == ("topk", 3, {"name": "Ana"})
    assert [row["rank"] for row in mine["results"]] == [1, 2, 3]
    for row in mine["results"]:
        said = messages[row["seq"]]
        assert (row["message_id"], row["text"], row["lon"], row["lat"]) == tuple(
            said[name] for name in ("message_id", "text", "lon", "lat")
        )
        assert row["words"] == [word for word in ("w11", "w9") if words.index(word) in said["terms"]] != []
        assert 0 <= row["distance_km"] < 20_100
    (place,) = as_json(capsys, run, "place")["subscriptions"]
    assert {row["distance_km"] for row in place["results"]} == {None} and place["entries"] > 10


def test_show_limit_holds_for_each_and_counts_are_of_all(run, capsys):
    (place,) = as_json(capsys, run, "place", "--limit", 2)["subscriptions"]
    assert len(place["results"]) == 2 < place["entries"] == place["updates"]["match"]
    latest = max(row["seq"] for row in told(run) if row["subscription_id"] == "place")
    assert place["results"][0]["seq"] == latest, "of matches the latest come first"


def test_show_several_are_in_the_order_asked(run, capsys):
    names = ["place", "nobody", "mine"]
    payload = as_json(capsys, run, *names)
    assert [one["subscription_id"] for one in payload["subscriptions"]] == names
    assert [{row["subscription_id"] for row in one["results"]} for one in payload["subscriptions"]] == [
        {"place"},
        set(),
        {"mine"},
    ]


@pytest.mark.parametrize("state", ["running", "failed", "interrupted"])
def test_show_a_run_without_results_is_followed_by_its_updates(run, copy, capsys, state):
    (copy / "results.parquet").unlink()
    facts = json.loads((copy / "run.json").read_text())
    for name in ("digest", "delivery", "topology", "spouts"):
        facts.pop(name, None)
    (copy / "run.json").write_text(json.dumps(facts | {"state": state}))
    before, after = as_json(capsys, run, "--limit", 0), as_json(capsys, copy, "--limit", 0)
    assert after["state"] == (state if state != "running" else "interrupted (its process died)")

    def held(payload):
        return {one["subscription_id"]: {row["seq"] for row in one["results"]} for one in payload["subscriptions"]}

    assert held(after) == held(before)
    shutil.rmtree(copy / "updates")
    assert as_json(capsys, copy)["subscriptions"] == []
    assert "nothing" in answer(capsys, copy)


def test_show_subscriptions_that_are_not_there_are_refused_with_the_reason(run, capsys):
    assert "bad_k" in answer(capsys, run, "wrong", code=2)
    assert "did you mean mine?" in answer(capsys, run, "mime", code=2)


def test_show_updates_are_the_last_ones_in_order(run, capsys):
    rows = as_json(capsys, run, "--updates", "--limit", 7)["updates"]
    assert [(row["as_of"], row["subscription_id"], row["seq"], row["change"]) for row in rows] == [
        (row["as_of"], row["subscription_id"], row["seq"], row["change"]) for row in told(run)[-7:]
    ]
    assert all(row["text"] for row in rows)
    mine = as_json(capsys, run, "mine", "--updates", "--limit", 0)["updates"]
    assert len(mine) == sum(row["subscription_id"] == "mine" for row in told(run)) > 5
    assert {row["name"] for row in mine} == {"Ana"}


def test_show_updates_of_an_id_are_of_who_had_it_then(run, capsys):
    rows = as_json(capsys, run, "topk-3-0", "--updates", "--limit", 0)["updates"]
    before, after = ([row.get("name") for row in rows if (row["as_of"] < 100) == first] for first in (True, False))
    assert set(before) == {None} and set(after) == {"again"}


def test_show_csv_has_one_header_and_a_row_a_result(run, capsys):
    rows = list(csv.DictReader(io.StringIO(answer(capsys, run, "mine", "place", "--csv", "--limit", 3))))
    assert [row["subscription_id"] for row in rows] == ["mine"] * 3 + ["place"] * 3
    assert rows[0]["name"] == "Ana" and float(rows[0]["distance_km"]) >= 0 and rows[3]["score"] == ""


def test_show_csv_formulas_are_made_text(run, copy, capsys):
    folder = copy.parent / "etl"
    shutil.copytree(run.parent / "etl", folder)
    for path in sorted((folder / "messages").iterdir()):
        rows = pq.read_table(path)
        texts = ["=cmd|' /C calc'!A0"] * len(rows)
        pq.write_table(rows.set_column(rows.schema.get_field_index("text"), "text", [texts]), path)
    facts = json.loads((copy / "run.json").read_text()) | {"messages": str(folder)}
    (copy / "run.json").write_text(json.dumps(facts))
    rows = list(csv.DictReader(io.StringIO(answer(capsys, copy, "mine", "--csv"))))
    assert {row["text"] for row in rows} == {"'=cmd|' /C calc'!A0"}


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("mine", "--map", "a.gif"), ".png"),
        (("nobody", "--map", "a.png", "--limit", "1"), None),
        (("--csv", "--json"), "exclude"),
        (("--updates", "--map", "a.png"), "--map"),
    ],
)
def test_show_what_cannot_be_is_refused(run, capsys, monkeypatch, tmp_path, arguments, what):
    monkeypatch.chdir(tmp_path)
    if what is None:  # a region alone can be drawn
        answer(capsys, run, *arguments)
        assert (tmp_path / "a.png").exists()
    else:
        assert what in answer(capsys, run, *arguments, code=2)
        assert not list(tmp_path.iterdir())


def test_show_follow_tells_parts_as_they_get_their_names_until_the_run_ends(run, copy, capsys):
    """As a run does: it holds the lock, names part after part, and says at last that it has ended."""
    whole = pq.read_table(next((copy / "updates").iterdir()))
    shutil.rmtree(copy / "updates")
    (copy / "updates").mkdir()
    facts = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(facts | {"state": "running"}))
    began = threading.Event()

    def write():
        with open(copy / ".lock", "a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            began.set()
            for number, start in enumerate(range(0, len(whole), 300)):
                hidden = copy / "updates" / f".part-{number:05d}.0.parquet.tmp"
                pq.write_table(whole.slice(start, 300), hidden)
                time.sleep(0.2)
                hidden.rename(copy / "updates" / f"part-{number:05d}.parquet")
            (copy / "run.json").write_text(json.dumps(facts))

    writer = threading.Thread(target=write)
    writer.start()
    assert began.wait(10)
    lines = answer(capsys, copy, "--follow", "--json", "--limit", 0).splitlines()
    writer.join()
    found = [(row["as_of"], row["subscription_id"], row["seq"]) for row in map(json.loads, lines)]
    assert found == [(row["as_of"], row["subscription_id"], row["seq"]) for row in whole.to_pylist()]


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]])
def test_show_follow_a_run_whose_process_is_gone_ends_with_an_error(copy, capsys, form):
    facts = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(facts | {"state": "running"}))
    assert cli.main(["show", str(copy), "mine", "--follow", "--limit", "3", *form]) == TopologyError.exit_code
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 3 + (form == ["--csv"]), "what it has told is told"
    assert "interrupted (its process died)" in printed.err and f"skyray run --resume {copy}" in printed.err
    assert cli.main(["show", str(copy)]) == 0
    assert "interrupted (its process died)" in capsys.readouterr().out


def test_shortened_texts_are_on_one_line():
    assert shortened("a\n b\t c", 10) == "a b c" and shortened("x" * 99, 10) == "x" * 9 + "…"
