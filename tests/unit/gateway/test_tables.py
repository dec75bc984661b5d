"""The end of a stream leaves its log; the first command that reads the folder makes the tables, the next finds them."""

import json
import os
import shutil
import threading

import numpy as np
import pytest

import skyray
from gateway.cli import main
from gateway.live import recording, tables, write_ahead_log
from gateway.live.checkpointed import settings_of_stream
from gateway.runs.reader import Run
from gateway.runs.verify import verify_run
from matching.errors import CheckpointError
from tests.support.beside import random_message, random_subscription
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream, digest_of_run, tables_in

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


@pytest.fixture
def converted(monkeypatch):
    """Messages that were converted to columns, one number for each conversion."""
    found, write = [], recording.write_tables

    def count(wal, admission, out):
        write(wal, admission, out)
        found.append(wal.next_seq)

    monkeypatch.setattr(tables, "write_tables", count)
    return found


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


@pytest.mark.parametrize("messages", [40, 600])
def test_end_of_a_stream_reads_and_converts_nothing_however_long_its_log(words, tmp_path, monkeypatch, messages):
    stream, report = live(words, tmp_path / "out", messages)
    read, written = [], []
    monkeypatch.setattr(write_ahead_log, "read_records", lambda *given: read.append(given) or iter(()))
    monkeypatch.setattr(recording, "write_table", lambda *given: written.append(given))
    before = {path for path in (tmp_path / "out").rglob("*") if path.name != "run.json"}
    stream.finish(report)
    assert {path for path in (tmp_path / "out").rglob("*") if path.name != "run.json"} == before
    assert not read and not written


def test_first_reader_converts_and_the_others_read_what_it_left(finished, out, tmp_path, converted, capsys):
    _, updates, digest = finished
    assert not (out / "tables").exists() and not converted
    verdict = verify_run(out)
    assert verdict.exact and sum(verdict.oracle_updates.values()) >= 1_000, verdict
    assert sum(verdict.delivered_updates.values()) == updates
    made = {path: path.stat().st_mtime_ns for path in (out / "tables").rglob("*")}
    run = skyray.open(out)
    assert not run.checkpoint and run.updates().num_rows == updates
    name, seq = run.result_rows().slice(0, 1).to_pylist()[0]["subscription_id"], run.result_rows()["seq"][0].as_py()
    assert main(["show", str(out), name, "--json"]) == 0
    assert seq in [row["seq"] for row in json.loads(capsys.readouterr().out)["subscriptions"][0]["results"]]
    assert main(["explain", str(out), name, f"seq:{seq}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["in_result"]
    assert main(["run", "--batch", f"log:{out}", "--out", str(tmp_path / "again"), "--executor", "local"]) == 0
    assert json.loads((tmp_path / "again" / "run.json").read_text())["digest"] == digest
    assert not (tmp_path / "again-stream").exists()
    assert digest_of_run(out, tmp_path / "third") == digest
    assert converted == [600] and {path: path.stat().st_mtime_ns for path in (out / "tables").rglob("*")} == made


def test_tables_of_a_resumed_stream_are_of_its_whole_log_and_verified(words, finished, out, converted):
    assert Run(out).message_count() == MESSAGES
    stream, _ = ended(words, out, 100, seed=2)
    verdict = verify_run(out)
    assert verdict.exact and verdict.messages == MESSAGES + 100, verdict
    assert sum(verdict.delivered_updates.values()) == finished[1] + len(stream.told) and stream.told
    assert converted == [MESSAGES, MESSAGES + 100]
    assert {path.name for path in out.iterdir() if "tables" in path.name} == {"tables", ".tables.lock"}


def test_readers_at_the_same_time_convert_once(out, converted):
    found = []
    readers = [threading.Thread(target=lambda: found.append(Run(out).message_count())) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert found == [MESSAGES] * 4 and converted == [MESSAGES]


def test_folder_that_cannot_be_written_is_read_from_a_copy(out, tmp_path, converted, monkeypatch):
    """As on a read-only disk; the processes of tests may write anywhere."""
    make = os.mkdir

    def refuse(path, *mode, **more):
        if str(path).startswith(str(out)):
            raise PermissionError(13, "Permission denied", str(path))
        make(path, *mode, **more)

    monkeypatch.setattr(os, "mkdir", refuse)
    run = Run(out)
    assert not run.etl.is_relative_to(out) and run.message_count() == MESSAGES and run.place == out
    place = run.etl.parent
    del run
    assert not place.exists() and not (out / "tables").exists()
    found, text = settings_of_stream(out, tmp_path / "copy")
    assert (found["messages"], text) == (tmp_path / "copy" / "etl", "") and converted == [MESSAGES, MESSAGES]


def test_conversion_that_was_killed_is_begun_anew(out, converted):
    partial = out / ".tables" / "etl" / "messages"
    partial.mkdir(parents=True)
    (partial / "part-00007.parquet").write_bytes(b"PAR1")
    assert verify_run(out).exact
    assert not (out / ".tables").exists() and converted == [MESSAGES]


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
    log = out / write_ahead_log.LOG
    os.truncate(log, log.stat().st_size - 1)
    with pytest.raises(CheckpointError, match="restore the folder"):
        Run(out)
    assert not (out / "tables").exists()


def test_folder_of_an_earlier_release_has_tables_of_its_own_until_it_is_resumed(words, out, tmp_path, converted):
    for path in [*tables_in(out).iterdir()]:  # as earlier releases left them
        path.rename(out / path.name)
    report = json.loads((out / "run.json").read_text())
    del report["log_bytes"]
    (out / "run.json").write_text(json.dumps(report | recording.paths_of(out)))
    shutil.rmtree(out / "tables")
    assert verify_run(out).exact and settings_of_stream(out, tmp_path / "copy")[0]["messages"] == out / "etl"
    assert converted == [MESSAGES]
    ended(words, out, 100, seed=2)
    assert not any((out / name).exists() for name in ("etl", "subscriptions.jsonl", "boundaries.parquet"))
    assert verify_run(out).messages == MESSAGES + 100
