"""The sample of the repository is what its script makes, what the guide shows, and the same as CSV."""

import json
from pathlib import Path

from examples import make
from spark_etl.options import EtlOptions
from spark_etl.trial import try_rows
from tests.support.documents import ROOT, blocks

FOLDER = ROOT / "examples"


def test_sample_files_are_those_that_the_script_makes():
    assert (FOLDER / "tweets.jsonl").read_text(encoding="utf-8") == make.json_lines()
    assert (FOLDER / "tweets.csv").read_text(encoding="utf-8") == make.comma_separated()


def test_guide_shows_rows_of_the_sample_and_all_of_its_subscriptions():
    shown = [line for block in blocks("docs/start.md") if block.language == "json" for line in block.lines]
    mine = (FOLDER / "mine.jsonl").read_text().splitlines()
    assert [line for line in shown if "subscription_id" in line] == mine and len(mine) == 4
    tweets = (FOLDER / "tweets.jsonl").read_text(encoding="utf-8").splitlines()
    (tweet,) = [line for line in shown if "created_at" in line]
    assert tweet in tweets
    prose = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    assert f"{len(tweets)} made-up rows" in prose


def tried(name, tmp_path):
    found = try_rows(EtlOptions(inputs=(str(FOLDER / name),), out=str(tmp_path / "out")), 1000)
    return found, [{key: row[key] for key in ("message_id", "text", "event_time")} for row in found["cleaned"]]


def test_csv_and_json_lines_of_the_sample_are_the_same_messages(tmp_path):
    lines, from_lines = tried("tweets.jsonl", tmp_path)
    rows, from_rows = tried("tweets.csv", tmp_path)
    assert from_lines == from_rows and len(from_lines) >= 5
    for name in ("vocabulary_size", "null_times", "bad_times"):
        assert lines[name] == rows[name]
    assert (lines["kept"], rows["kept"]) == (401, 402), "the table has a row without a text"
    assert lines["null_times"] == 0
    assert lines["rejected_by_reason"] == {
        "coordinate_out_of_range": 1,
        "duplicate_id": 1,
        "missing_coordinate": 1,
        "not_json": 2,
    }
    assert rows["rejected_by_reason"] == {"bad_csv": 1}


def test_sample_is_small_and_holds_no_data_of_others():
    """Every text is one of the script's sentences."""
    texts = [row["text"] for row in make.messages()]
    starts = tuple(sentence.partition("{")[0] for sentence in make.SENTENCES if not sentence.startswith("{"))
    assert all(text.startswith((*starts, *make.DISHES)) for text in texts)
    assert sum(path.stat().st_size for path in Path(FOLDER).iterdir() if path.is_file()) < 200_000
    assert all(json.loads(line) for line in (FOLDER / "mine.jsonl").read_text().splitlines())
