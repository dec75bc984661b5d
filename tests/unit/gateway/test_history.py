"""The end of a stream leaves its log, and every command reads it where it is."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import skyray
from gateway.cli import main
from gateway.live import write_ahead_log
from gateway.live.checkpointed import settings_of_stream
from gateway.live.vocabulary_files import empty_start
from gateway.runs.reader import RunReader
from gateway.runs.verify import verify_run
from matching.errors import CheckpointError
from matching.vocabulary import inverse_document_frequency
from spouts import history
from spouts.columns import SIDES
from spouts.history import LOG
from spouts.lines import read_rows
from spouts.manifest import is_live, read_manifest
from spouts.parquet import has_objects, read_points, read_span
from spouts.subscriptions import load_vocabulary
from tests.support.beside import BOX, random_message, random_subscription
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream, digest_of_run, read_table
from tests.support.vectors import unit_vector
from topology.folder import checksums, input_files

WINDOW, MESSAGES = "count:60", 600


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("tables") / "words", random_rows(50))


@pytest.fixture(scope="module")
def finished(words, tmp_path_factory):
    """A stream that has ended, whose folder nothing has read."""
    out = tmp_path_factory.mktemp("tables") / "finished"
    stream, digest = ended(words, out)
    return out, len(stream.told), digest


@pytest.fixture
def out(finished, tmp_path):
    """A copy of its folder."""
    return shutil.copytree(finished[0], tmp_path / "out")


def live(words, out, messages, seed=1, window=WINDOW):
    """A life of a stream that has been matched, and its report."""
    rng, stream = np.random.default_rng(seed), Stream(words, out, window=window)
    if not stream.before:
        for place in range(60):
            stream.take({"subscribe": random_subscription(rng, place) | {"subscription_id": f"s{place}"}})
    first = stream.journal.next_seq
    for place in range(first, first + messages):
        stream.take(random_message(rng, place))
        if place % 20 == 19:
            stream.pipe.close_batch()
    stream.pipe.close_batch()
    return stream, stream.match()


def ended(words, out, messages=MESSAGES, seed=1):
    stream, report = live(words, out, messages, seed)
    return stream, stream.finish(report)


def files_of(folder):
    """But for the lock, which tells a reader whether a process writes to the folder."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"}


@pytest.mark.parametrize("messages", [40, 600])
def test_end_of_a_stream_reads_nothing_however_long_its_log(words, tmp_path, monkeypatch, messages):
    stream, report = live(words, tmp_path / "out", messages)
    read = []
    monkeypatch.setattr(write_ahead_log, "read_records", lambda *given: read.append(given) or iter(()))
    before = {path for path in (tmp_path / "out").rglob("*") if path.name != "run.json"}
    stream.finish(report)
    assert {path for path in (tmp_path / "out").rglob("*") if path.name != "run.json"} == before
    assert not read


def test_commands_read_the_log_where_it_is_and_leave_the_folder_as_it_is(finished, out, tmp_path, capsys):
    _, updates, digest = finished
    before = files_of(out)
    verdict = verify_run(out)
    assert verdict.exact and sum(verdict.oracle_updates.values()) >= 1_000, verdict
    assert sum(verdict.delivered_updates.values()) == updates
    run = skyray.open(out)
    assert not run.checkpoint and run.updates().num_rows == updates and run.etl == out
    name, seq = run.result_rows().slice(0, 1).to_pylist()[0]["subscription_id"], run.result_rows()["seq"][0].as_py()
    assert main(["show", str(out), name, "--json"]) == 0
    assert seq in [row["seq"] for row in json.loads(capsys.readouterr().out)["subscriptions"][0]["results"]]
    assert main(["explain", str(out), name, f"seq:{seq}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["in_result"]
    assert main(["run", "--batch", f"log:{out}", "--out", str(tmp_path / "again"), "--executor", "local"]) == 0
    assert json.loads((tmp_path / "again" / "run.json").read_text())["digest"] == digest
    assert not (tmp_path / "again-stream").exists()
    assert digest_of_run(out, tmp_path / "third") == digest
    assert files_of(out) == before


def test_folder_of_a_stream_serves_where_an_etl_folder_is_named(out, tmp_path, capsys):
    wanted = RunReader(out)
    place = "1.0,1.0"
    rows = [row for _, row in read_rows(out)]
    assert len(rows) == 60 and all(row["at"] == 0 for row in rows)
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = ["--messages", str(out), "--world", BOX, "--json"]
    assert main(["match", "--text", "w1 w2", "--at", place, "--subscriptions", str(tmp_path / "mine.jsonl"), *own]) == 0
    assert json.loads(capsys.readouterr().out)["subscriptions"] == 60
    assert main(["preview", "--subscriptions", str(tmp_path / "mine.jsonl"), *own]) == 0
    capsys.readouterr()
    engine = skyray.Engine(vocabulary=out, window="count:9")
    engine.subscribe(subscription_id="s", kind="boolean", keywords="late1 brandnew", region=[0, 0, 2, 2])
    assert [row["seq"] for row in engine.publish([{"text": "brandnew late1", "lon": 1.0, "lat": 1.0}])] == [0]
    assert engine.vocabulary.id_of("late1") == load_vocabulary(out, 7).id_of("late1") - 7 + engine.vocabulary.most_terms
    assert has_objects(out) and is_live(out) and read_span(out) is None
    assert len(read_points(out, wanted.space, 100)[0]) == 100
    assert (read_manifest(out) or {})["kept"] == wanted.message_count() == MESSAGES


def test_messages_are_those_that_the_log_has_however_many_records_are_read_together(tmp_path, monkeypatch):
    """Of every shape: rectangles, versions, deletions, no time, ahead, attributes, new words, marks of a clock."""
    out, schema = tmp_path / "out", ["price:number", "sort:category", "due:time"]
    stream = Stream(empty_start(out, schema), out, window="time:1000", now=lambda: 1e9, most_terms=100)
    stream.take({"subscribe": {"subscription_id": "s", "kind": "knn", "keywords": "a", "lon": 1, "lat": 1, "k": 2}})
    given = [
        {"text": "a b", "price": 1.5, "sort": "x", "due": 1_000_000_000},
        {"id": "r", "text": "ä c a", "west": 1.0, "south": 0.0, "east": 2.0, "north": 2.0, "time": 10**9},
        {"id": "o1", "object_id": "o", "text": "😀 a", "sort": "", "time": 10**9},
        {"id": "o2", "object_id": "o", "deleted": True, "text": "a", "time": 10**9},
        {"id": "late", "text": "zebra", "time": 2 * 10**9},
    ]
    for place, row in enumerate(given):
        stream.take({"lon": 1.0, "lat": 1.0, **row})
        if place % 2:
            stream.pipe.close_batch()
    stream.pipe.close_batch()
    stream.journal.mark(10**15 + 5, 0.0)
    stream.take({"subscribe": {"subscription_id": "t", "kind": "boolean", "keywords": "yak", "region": [0, 0, 1, 1]}})
    stream.pipe.close_batch()
    parsed, words = [stream.journal.message(seq) for seq in range(5)], stream.gate.vocabulary
    stream.finish(stream.match())
    names = ["seq", "message_id", "text", "object_id", "op", "lon", "lat", "event_time", "ahead", *SIDES, "terms"]
    names += ["counts", "weights", "attribute_price", "attribute_sort", "attribute_due"]
    found = []
    for most in (1, 3, 4_096):
        monkeypatch.setattr(history, "_MESSAGES", most)
        history._opened.cache_clear()
        found.append(read_table(out, *names).combine_chunks())
        assert len(history.history_of(out).sizes) == {1: 4, 3: 2, 4_096: 1}[most]
    assert found[0].equals(found[1]) and found[0].equals(found[2])
    known, rows = load_vocabulary(out), found[0].to_pylist()
    assert known.terms[:2] == ["yak", "😀"] and known.idf[0] == inverse_document_frequency(5, 0.5)
    assert [row["seq"] for row in rows] == list(range(6)) and rows[5]["message_id"] == "skyray clock mark 5"
    assert rows[5]["terms"] == [] and rows[5]["event_time"].timestamp() == 10**9 + 5e-6
    for row, one in zip(rows, parsed, strict=False):
        silent = one.ahead or one.op
        counts = {} if silent else words.count_terms(one.text)
        vector = unit_vector(words, counts)
        assert [known.terms[term] for term in row["terms"]] == [words.term_of(term) for term in vector.terms.tolist()]
        assert (row["counts"], row["weights"]) == (vector.counts.tolist(), vector.weights.tolist())
        assert [row[name] for name in ("message_id", "text", "object_id", "op", "lon", "lat", "ahead", *SIDES)] == [
            *(one.message_id, one.text, one.object_id, one.op, one.lon, one.lat, one.ahead),
            *(one.west, one.south, one.east, one.north),
        ]
        time_us = None if row["event_time"] is None else round(row["event_time"].timestamp() * 1e6)
        assert time_us == one.event_time_us
        assert tuple(row[f"attribute_{name}"] for name in ("price", "sort", "due")) == one.attributes


def test_resumed_stream_is_read_to_its_new_end(words, finished, out):
    assert RunReader(out).message_count() == MESSAGES
    stream, _ = ended(words, out, 100, seed=2)
    verdict = verify_run(out)
    assert verdict.exact and verdict.messages == MESSAGES + 100, verdict
    assert sum(verdict.delivered_updates.values()) == finished[1] + len(stream.told) and stream.told


def test_run_of_a_stream_that_goes_on_is_resumed_with_the_messages_that_it_began_with(words, out, tmp_path):
    """A copy of a stream that runs points to a log which grows."""
    live(words, out, 40, seed=3)  # ends without a word, as killed
    settings, text = settings_of_stream(out, tmp_path / "copy")
    assert text and settings["messages"] == tmp_path / "copy" and (tmp_path / "copy" / LOG).samefile(out / LOG)
    kept = RunReader(tmp_path / "copy").message_count()
    sums = checksums(input_files(settings["messages"], [Path(path) for path in settings["subscriptions"]]))
    ended(words, out, 60, seed=4)
    again = checksums(input_files(settings["messages"], [Path(path) for path in settings["subscriptions"]]))
    assert sums.result() == again.result() and RunReader(tmp_path / "copy").message_count() == kept
    assert RunReader(out).message_count() > kept


def test_folder_is_read_without_the_vocabulary_it_began_with_and_elsewhere(words, tmp_path):
    shutil.copytree(words, tmp_path / "words")
    _, digest = ended(tmp_path / "words", tmp_path / "out", 200)
    shutil.rmtree(tmp_path / "words")
    (tmp_path / "out").rename(tmp_path / "moved")
    assert verify_run(tmp_path / "moved").exact
    assert digest_of_run(tmp_path / "moved", tmp_path / "again") == digest


def test_ended_stream_is_no_run_to_resume_and_its_report_names_no_tables(out, capsys):
    assert not {"messages", "subscriptions", "boundaries"} & set(json.loads((out / "run.json").read_text()))
    assert main(["run", "--resume", str(out), "--executor", "local"]) == 2
    assert "is the folder of a live stream" in " ".join(capsys.readouterr().err.split())


def test_log_that_is_shorter_than_the_report_says_is_refused(out):
    os.truncate(out / LOG, (out / LOG).stat().st_size - 1)
    with pytest.raises(CheckpointError, match="restore the folder"):
        RunReader(out)


def test_message_that_is_damaged_in_the_middle_is_found_by_who_reads_it(out):
    log, run = out / LOG, RunReader(out)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged at byte"):
        verify_run(run.folder)
