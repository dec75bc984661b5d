"""A producer learns which line comes next, whatever has become of the stream before."""

import json
import os
import signal

import pytest

from gateway.live.status import read_status
from matching.errors import ConfigError
from spouts.log import LogReader, encode_record
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream
from tests.support.logged import log_bytes, record_of
from tests.support.processes import Command

W1 = {"text": "w1", "lon": 1.0, "lat": 1.0}


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("status") / "words", random_rows(50))


def told(folder, *more):
    with Command(["live", "--status", folder, *more]) as command:
        code, out, said = command.finish(60)
    assert (code, said) == (0, "")
    return out


def test_status_of_a_stream_that_runs_was_killed_and_has_ended(words, tmp_path):
    out, mine = tmp_path / "out", tmp_path / "mine.jsonl"
    mine.write_text('{"subscription_id": "s1", "kind": "knn", "keywords": "w1", "lon": 0, "lat": 0, "k": 1}\n')
    assert json.loads(told(out, "--json")) == {
        "folder": str(out), "state": "new", "process": None, "line": 0, "next_line": 1, "messages": 0, "batches": 0,
        "source": None, "error": None}  # fmt: skip
    for turn, (before, state) in enumerate(((0, "killed"), (3, "finished"))):
        read, write = os.pipe()
        arguments = ["live", "--vocabulary", words, "--world", "earth", "--subscriptions", mine, "--out", out]
        with Command([*arguments, "--set", "stream.linger_ms=1"], source=read) as command, os.fdopen(write, "w") as end:
            os.close(read)
            command.await_(lambda before=before: f"next_line={before + 1}\n" in command.read()[1])
            end.write(json.dumps(W1) + "\n" + "no line\n" + json.dumps(W1) + "\n" + "no line\n")
            end.flush()
            command.await_(lambda before=before: read_status(out)["line"] == before + 3)
            found = read_status(out)
            assert (found["state"], found["process"]) == ("running", command.process.pid)
            assert (found["next_line"], found["messages"]) == (before + 4, 2 * (turn + 1))
            if turn:
                end.close()
                assert command.finish(60)[0] == 0
            else:
                command.process.send_signal(signal.SIGKILL)
                command.process.wait(20)
        found = read_status(out)
        assert (found["state"], found["process"], found["next_line"]) == (state, None, before + 4)
    lines = told(out).splitlines()
    assert "state      finished" in lines and "next line  7" in lines


def test_status_of_a_folder_of_something_else_is_refused(words, tmp_path):
    with pytest.raises(ConfigError, match="no folder of skyray live"):
        read_status(words)


def test_status_leaves_out_a_record_that_was_cut_off(words, tmp_path):
    stream = Stream(words, tmp_path / "out")
    for _ in range(3):
        stream.take(W1)
        stream.pipe.close_batch()
    stream.match()
    whole = read_status(tmp_path / "out")
    assert whole["line"] == 3 and whole["batches"] == 3
    with open(tmp_path / "out" / "journal" / "log", "ab") as log:
        log.write(encode_record(record_of(4, 3, [W1]))[:-7])
    assert read_status(tmp_path / "out") == whole


def test_log_is_skimmed_as_it_is_read(tmp_path):
    path = tmp_path / "log"
    records = [record_of(n - 2, n, [W1] * (n - 1), [(0, b"a")], time_us=n) for n in range(1, 9)]
    path.write_bytes(log_bytes(*records))
    skims, reads = LogReader(path), LogReader(path)
    count = 0
    while (record := reads.read()) is not None:
        skimmed, count = skims.skim(), count + 1
        assert skimmed is not None and skims.offset == reads.offset
        assert record.lines == [b"a"] and record.messages == count - 1
        with_body = {"changes": (), "lines": (), "block": None, "terms": None}
        assert skimmed._replace(**with_body) == record._replace(**with_body) and (count == 8) == bool(skimmed.lines)
    assert count == 8 and skims.skim() is None
    skims.close()
    reads.close()


@pytest.mark.parametrize("left", [(), ("journal",), ("journal", "journal/log"), ("journal", "journal/log", "run.json")])
def test_live_that_died_before_it_logged_anything_counts_as_new(words, tmp_path, left):
    """So its files of subscriptions, of which none has been taken, are read when it is begun again."""
    out = tmp_path / "out"
    out.mkdir()
    for name in left:
        (out / name).mkdir() if name == "journal" else (out / name).write_text("{}" if name == "run.json" else "")
    assert read_status(out)["state"] == "new"
    stream = Stream(words, out)
    assert stream.before == {}
    stream.journal.close()
