"""Why a message is in a result of a run: the verdict is what the run has told, whatever the pair."""

import json
import shutil
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import skyray
from gateway import cli
from gateway.runs.explaining import explain
from matching.errors import ConfigError, InputError
from tests.support.small_runs import MESSAGES, small_run


@pytest.fixture(scope="module", params=["count:60", "time:45"])
def run(request, tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("explain"), window=request.param)


def held(run):
    """(subscription, seq) of all that is held in the end, and of all that matched."""
    pairs = {(row["subscription_id"], row["seq"]) for row in pq.read_table(run / "results.parquet").to_pylist()}
    for path in sorted((run / "updates").iterdir()):
        pairs |= {
            (row["subscription_id"], row["seq"]) for row in pq.read_table(path).to_pylist() if row["change"] == "match"
        }
    return pairs


def test_explain_verdict_is_what_the_run_holds(run):
    pairs = held(run)
    ids = sorted({name for name, _ in pairs} | {"nobody"})
    rng = np.random.default_rng(5)
    drawn = {(ids[int(rng.integers(len(ids)))], int(rng.integers(MESSAGES))) for _ in range(50)}
    drawn |= {sorted(pairs)[int(row)] for row in rng.choice(len(pairs), 30, replace=False)}
    reasons = Counter()
    for name, seq in sorted(drawn):
        answer = explain(run, name, f"message {seq}")
        assert answer["in_result"] == ((name, seq) in pairs), (name, seq, answer["why"])
        assert answer["message"]["seq"] == seq and answer["as_of"] == MESSAGES - 1
        reasons[answer["reason"]] += 1
    assert reasons["in_result"] + reasons["matched"] > 15 and len(reasons) > 5, reasons


def test_explain_says_words_score_rank_and_updates(run):
    best = next(row for row in pq.read_table(run / "results.parquet").to_pylist() if row["subscription_id"] == "mine")
    answer = explain(run, "mine", best["message_id"])
    assert (answer["in_result"], answer["rank"], answer["score"]) == (True, best["rank"], best["score"])
    assert set(answer["words"]) <= {"w11", "w9"} and answer["words"]
    assert {*answer["words"], *answer["missing"]} == {"w11", "w9"}
    assert answer["updates"][-1]["change"] == "enter" and answer["updates"][-1]["score"] == best["score"]
    assert "number 1 of at most 3" in answer["why"]
    assert answer["score"] >= answer["threshold"]


def test_explain_rivals_are_the_results_before_it(run):
    results = [row for row in pq.read_table(run / "results.parquet").to_pylist() if row["subscription_id"] == "mine"]
    last = explain(run, "mine", results[-1]["message_id"])
    assert [one["message_id"] for one in last["rivals"]] == [row["message_id"] for row in results[:-1]]
    beaten = next(
        answer
        for seq in reversed(range(MESSAGES))
        if (answer := explain(run, "mine", f"seq:{seq}"))["reason"] == "rivals"
    )
    assert beaten["rank"] > 3 and beaten["score"] <= beaten["threshold"] == results[-1]["score"]
    assert [one["seq"] for one in beaten["rivals"][:3]] == [row["seq"] for row in results]


def test_explain_a_word_that_no_message_has_is_named(run):
    answer = explain(run, "nobody", "message 5")
    assert answer["reason"] in ("missing_keyword", "outside_region")
    assert answer["unknown"] == ["never"] and "no message has never" in answer["why"]


def test_explain_a_run_that_goes_on_is_asked_as_of_what_it_has_told(run, tmp_path):
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("updates.list"))
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    for name in ("digest", "delivery", "topology", "spouts", "kind_columns", "latest_us", "limit"):
        facts.pop(name, None)
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts | {"state": "running"}))
    (tmp_path / "run" / "results.parquet").unlink()
    part = next((tmp_path / "run" / "updates").iterdir())
    rows = pq.read_table(part).to_pylist()
    early = [row for row in rows if row["as_of"] <= 149]
    pq.write_table(pq.read_table(part).slice(0, 0), part)
    with pytest.raises(InputError, match="no updates so far"):
        explain(tmp_path / "run", "mine", "message 5")
    pq.write_table(pa.Table.from_pylist(early, pq.read_schema(part)), part)
    if facts["window"].startswith("time"):
        return
    holds = set()
    for row in early:
        if row["subscription_id"] == "mine":
            (holds.add if row["change"] == "enter" else holds.discard)(row["seq"])
    answers = {seq: explain(tmp_path / "run", "mine", f"seq:{seq}") for seq in (*holds, 3, 140, 200)}
    assert {seq for seq, answer in answers.items() if answer["in_result"]} == holds and len(holds) == 3
    assert answers[200]["reason"] == "not_reached" and answers[200]["as_of"] == 149


@pytest.mark.parametrize(
    ("name", "message", "error", "what"),
    [
        ("mime", "message 1", ConfigError, "did you mean mine"),
        ("wrong", "message 1", ConfigError, "bad_k"),
        ("mine", "message 9999", InputError, "none of that id"),
        ("mine", "seq:240", InputError, "below 240"),
        ("mine", "seq:99999999999999999999", InputError, "none of that id"),
    ],
)
def test_explain_who_is_not_there_is_said(run, name, message, error, what):
    with pytest.raises(error, match=what):
        explain(run, name, message)


def test_explain_outside_the_world_and_dated_ahead_are_told(tmp_path):
    run = small_run(tmp_path, world="-100,-80,100,80", objects=False)
    rows = [
        row for path in sorted((tmp_path / "etl" / "messages").iterdir()) for row in pq.read_table(path).to_pylist()
    ]
    outside = next(row for row in rows if abs(row["lon"]) > 100)
    assert explain(run, "mine", outside["message_id"])["reason"] == "outside_world"


def test_explain_command_tells_people_and_scripts(run, capsys):
    assert cli.main(["explain", str(run), "mine", "seq:3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert cli.main(["explain", str(run), "mine", "seq:3"]) == 0
    shown = capsys.readouterr().out
    assert "NOT IN THE RESULT" in shown and answer["message"]["text"] in shown
    assert " ".join(answer["why"].split()) in " ".join(shown.split())


def test_explain_a_word_in_pieces_is_named_as_it_is_written(tmp_path):
    engine = skyray.Engine()
    place = {"lon": 1, "lat": 1}
    for name, more in {
        "whole": {"keywords": "東京都"},
        "without": {"keywords": "机", "not_keywords": ["自転車"]},
        "two": {"keywords": ["BTC&ETH", "机", "東京"], "match": 2},
    }.items():
        row = {"subscription_id": name, "kind": "boolean", "region": [-180, -90, 180, 90]}
        engine.subscribe(row | more)
    texts = ["机 と 車 東京 京都", "机 の 自転車", "btc/eth 机"]
    updates = engine.publish([{"id": f"m{number}", "text": text, **place} for number, text in enumerate(texts)])
    found = {(row["subscription_id"], row["message_id"]) for row in updates}
    assert found == {("without", "m0"), ("without", "m2"), ("two", "m0"), ("two", "m2")}
    for name, message, reason, why in (
        ("whole", "m0", "missing_word", "the message lacks a word as it is written: 東京都"),
        ("without", "m1", "excluded_word", "自転車"),
        ("two", "m1", "too_few_keywords", "2"),
    ):
        answer = engine.explain(name, message)
        assert (answer["reason"], answer["in_result"]) == (reason, False) and why in answer["why"], answer
