"""Subscriptions before a run: what check promises is what a run does, and so is what match says a message reaches."""

import json

import pyarrow.parquet as pq
import pytest

from gateway import cli
from gateway.runs.reaching import reach
from gateway.subscriptions.checking import check_subscriptions
from matching.errors import ConfigError, InputError
from matching.fields import FIRST_US, LAST_US
from matching.kinds import KINDS
from tests.support.etl_folder import random_rows, write_etl, write_lines
from tests.support.small_runs import MESSAGES, small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A window that holds everything, and no message that replaces another."""
    return small_run(tmp_path_factory.mktemp("check"), objects=False, window="count:100000")


@pytest.fixture(scope="module")
def files(run):
    return [run.parent / f"{kind.name}.jsonl" for kind in KINDS.run] + [run.parent / "mine.csv"]


@pytest.fixture(scope="module")
def etl(run):
    return run.parent / "etl"


def rows_of(files):
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_check_takes_and_refuses_what_a_run_does(run, files, etl):
    report = check_subscriptions([*files, run.parent / "late.jsonl"], etl)
    told = json.loads((run / "run.json").read_text())["spouts"]["subscriptions"]
    assert (report["accepted"], report["rejected"]) == (told["accepted"], told["rejected"])
    assert report["rejected_by_reason"] == told["rejected_by_reason"] == {"bad_k": 1}
    assert report["replaced"] == ["topk-3-0"]
    (refused,) = (row for row in report["rows"] if row["verdict"] == "rejected")
    assert (refused["subscription_id"], refused["line"], refused["reason"]) == ("wrong", 4, "bad_k")


def test_check_counts_the_messages_that_match(run, files, etl):
    """Of kinds that only match, exactly what the run has told of who lives through all of it."""
    matches = {}
    for path in sorted((run / "updates").iterdir()):
        for row in pq.read_table(path).to_pylist():
            if row["change"] == "match":
                matches[row["subscription_id"]] = matches.get(row["subscription_id"], 0) + 1
    ending = {row["subscription_id"] for row in rows_of(files[:-1]) if "until" in row}
    report = check_subscriptions(files, etl)
    boolean = [row for row in report["rows"] if row.get("kind") == "boolean" and row["subscription_id"] not in ending]
    assert len(boolean) > 3 and sum(row["messages"] for row in boolean) > 30
    for row in boolean:
        assert row["messages"] == matches.get(row["subscription_id"], 0), row
    assert report["days"] == pytest.approx((MESSAGES + 20) / 86_400, rel=0.1)
    assert all(row["matches_per_day"] == row["messages"] / report["days"] for row in boolean)


def test_check_counts_who_would_compete(files, etl):
    """Of the others: the messages with a keyword, and in the region where there is one."""
    rows = [row for path in sorted((etl / "messages").iterdir()) for row in pq.read_table(path).to_pylist()]
    report = {row["subscription_id"]: row for row in check_subscriptions(files, etl)["rows"]}
    for given in rows_of(files[1:-1]):
        terms = {int(word[1:]) for word in given["keywords"]}
        met = [row for row in rows if terms & set(row["terms"])]
        if "region" in given:
            west, south, east, north = given["region"]
            middles = [((row["west"] + row["east"]) / 2, (row["south"] + row["north"]) / 2) for row in met]
            met = [None for lon, lat in middles if west <= lon <= east and south <= lat <= north]
        assert report[given["subscription_id"]]["messages"] == len(met)


def test_check_says_which_words_no_message_has(files, etl):
    rows = {row["subscription_id"]: row for row in check_subscriptions(files, etl)["rows"]}
    assert rows["nobody"]["unknown_words"] == ["never"]
    assert rows["nobody"]["messages"] == 0 and "cannot match" in rows["nobody"]["what"]
    assert rows["mine"]["unknown_words"] == [] and rows["mine"]["more"] == {"name": "Ana"}


def test_check_a_slip_in_a_column_is_named(etl, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"subscription_id": "a", "kind": "knn", "keyword": "w1", "lon": 1, "lat": 1, "k": 1}\n')
    (row,) = check_subscriptions([path], etl)["rows"]
    assert row["reason"] == "unknown_column" and "did you mean keywords?" in row["what"]


def test_check_a_few_absurd_dates_do_not_stretch_the_days(tmp_path):
    """One message a minute, and one of a hundred in the year 1 or 9999."""
    rows = random_rows(1_000)
    for row in rows:
        row["event_time"] = 1_600_000_000_000_000 + row["seq"] * 60_000_000
        if row["seq"] % 100 == 7:
            row["event_time"] = FIRST_US if row["seq"] % 200 == 7 else LAST_US
    etl = write_etl(tmp_path / "etl", rows)
    path = write_lines(
        tmp_path / "a.jsonl", {"subscription_id": "a", "kind": "knn", "keywords": "w11", "lon": 1, "lat": 1, "k": 1}
    )
    report = check_subscriptions([path], etl)
    assert report["days"] == pytest.approx(1_000 / 1_440, rel=0.05)
    (row,) = report["rows"]
    assert row["matches_per_day"] == row["messages"] / report["days"] > 300


def test_check_command_exits_1_where_a_row_is_rejected(files, etl, capsys):
    assert cli.main(["subscriptions", "check", *map(str, files), "--messages", str(etl)]) == 1
    shown = capsys.readouterr().out
    assert "bad_k" in shown and "matches a day:" in shown
    assert cli.main(["subscriptions", "check", str(files[0]), "--messages", str(etl), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accepted"] == 6


def test_match_reaches_whoever_has_a_word_and_the_place(etl, files):
    answer = reach(files, etl, "w11 w9 w3 unheard", "10,20")
    reached = {one["subscription_id"]: one for one in answer["reached"]}
    assert answer["unknown"] == ["unheard"] and set(answer["words"]) == {"w3", "w9", "w11"}
    assert len(reached) + sum(answer["not_reached"].values()) == answer["subscriptions"]
    assert answer["rejected"] == {"bad_k": 1}
    expected = set()
    for given in rows_of(files[:-1]):
        common = {"w11", "w9", "w3"} & set(given["keywords"])
        west, south, east, north = given.get("region", (-180, -90, 180, 90))
        inside = (west <= 10 <= east or (west > east and (west <= 10 or east >= 10))) and south <= 20 <= north
        enough = len(common) == len(given["keywords"]) if given["kind"] == "boolean" else common
        expected |= {given["subscription_id"]} if enough and inside else set()
    assert reached.keys() == expected | {"mine", "place"} and len(expected) > 5
    assert set(reached["mine"]["words"]) == {"w9", "w11"} and 0 < reached["mine"]["score"] <= 1


@pytest.mark.parametrize("place", ["10", "10,x", "500,1", "", "1,2,3", "nan,1"])
def test_match_a_place_that_is_none_is_refused(etl, files, place):
    with pytest.raises(ConfigError):
        reach(files, etl, "w1", place)


def test_match_command_shows_counts_by_reason(etl, files, capsys):
    arguments = ["--messages", str(etl), "--text", "w11", "--at", "10,20"]
    assert cli.main(["match", "--subscriptions", *map(str, files), *arguments]) == 0
    shown = capsys.readouterr().out
    assert "reaches" in shown and "no_common_word" in shown and "bad_k" in shown
    with pytest.raises(InputError):
        reach([etl / "nothing"], etl, "w1", "1,1")
