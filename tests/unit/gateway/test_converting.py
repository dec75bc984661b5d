"""The folder of a stream of the release before becomes what this release would have written."""

import json
import shutil
from collections import Counter

import msgspec
import numpy as np
import pytest
import xxhash

from gateway import cli
from gateway.live import write_ahead_log
from gateway.live.converting import convert
from gateway.live.vocabulary_files import empty_start
from gateway.runs.verify import verify_run
from matching.errors import CheckpointError, ConfigError, InputError
from matching.words.tokeniser import tokeniser_number
from spouts.history import LOG, start_of
from spouts.log import NONE_ADMITTED, Admitted, Record, checksum_in, encode_record, read_records
from spouts.subscriptions import load_vocabulary
from tests.support.beside import random_message, random_subscription
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream, counted
from topology.folder import RUNNING

LATEST_S = 1_577_900_000


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("converting") / "words", random_rows(200))


def old_log(records: list[tuple[Record, list[bytes]]], chained: bool) -> bytes:
    """Records as the release before wrote them, of the lines of their messages and changes in order.

    `chained`: each names the one before, as the last of those releases had it.
    """
    data, before = b"", ""
    for record, lines in records:
        taken = [not line.startswith((b'{"subscribe"', b'{"unsubscribe"')) for line in lines]
        ahead = iter(() if record.block is None or record.block.ahead is None else record.block.ahead.tolist())
        set_aside = [place for place, is_message in enumerate(taken) if is_message and next(ahead, False)]
        body = b"".join(line + b"\n" for line in lines)
        head = {
            "last_seq": record.last_seq,
            "line": record.line,
            "changes": [at for at, one in enumerate(taken) if not one],
        }
        head |= {"bytes": len(body), "xxh3": ""}
        head |= {"time_us": record.time_us} if record.time_us is not None else {}
        head |= {"mark": True} if record.mark else {}
        head |= {"ahead": set_aside} if set_aside else {}
        if record.admitted != NONE_ADMITTED:
            head |= {"terms": record.admitted.terms} if record.admitted.terms else {}
            head |= {"messages": record.admitted.messages} if record.admitted.messages else {}
        head |= {"positions": record.positions} if record.positions else {}
        digest = xxhash.xxh3_64(body)
        if chained:
            head["before"] = before
            digest.update(msgspec.json.encode(head))
        else:
            if record.admitted.terms:
                digest.update(msgspec.json.encode((record.admitted.terms, record.admitted.messages)))
            if record.positions:
                digest.update(msgspec.json.encode(record.positions))
        before = head["xxh3"] = digest.hexdigest()
        data += msgspec.json.encode(head) + b"\n" + body
    return data


def story(words, out, window, batches=6):
    """A stream of this release, and the lines of each of its records."""
    rng, stream, lines = np.random.default_rng(5), Stream(words, out, window=window, now=lambda: LATEST_S), []
    for batch in range(batches):
        mine: list[dict] = [{"subscribe": random_subscription(rng, int(rng.integers(9)))} for _ in range(5)]
        mine += [random_message(rng, batch * 20 + number) for number in range(20)]
        mine[7] |= {"time": LATEST_S + 10**6}
        mine[9].pop("id")
        mine.insert(12, {"unsubscribe": stream_id(mine)})
        taken = [json.dumps(row).encode() for row in mine]
        for line in taken:
            stream.take(line)
        assert not stream.refused, stream.refused
        stream.pipe.close_batch()
        lines.append(taken)
        if window.startswith("time") and batch == 3:
            stream.journal.mark(stream.journal._clock.time_us + 1000, 0.0)
            lines.append([b""])
    return stream, lines


def stream_id(rows):
    return rows[0]["subscribe"]["subscription_id"]


@pytest.mark.parametrize("chained", [True, False])
@pytest.mark.parametrize("window", ["count:30", "time:3000"])
def test_converted_log_is_the_one_that_this_release_writes(words, tmp_path, window, chained, monkeypatch):
    monkeypatch.setattr(write_ahead_log, "_LOGGED_S", 2**62)  # the log of the release before does not say when it was
    stream, lines = story(words, tmp_path / "new", window)
    report = stream.match()
    told = counted(stream.told)
    stream.finish(report)
    records = [record for record, _, _ in read_records(stream.journal.log)]
    old = shutil.copytree(tmp_path / "new", tmp_path / "old")
    (old / LOG).write_bytes(old_log(list(zip(records, lines, strict=True)), chained))
    with pytest.raises(CheckpointError, match="skyray convert FOLDER TO"):
        Stream(words, old, window=window)
    found = convert(old, tmp_path / "converted")
    assert (tmp_path / "converted" / LOG).read_bytes() == stream.journal.log.read_bytes()
    assert (found.messages, found.batches) == (stream.journal.next_seq, len(records))
    assert verify_run(tmp_path / "converted").exact and sum(told.values()) > 30

    again = Stream(words, tmp_path / "converted", window=window)
    again.match()
    assert counted(again.told) == told, "it matches its log from the beginning"


@pytest.mark.parametrize("has_vocabulary", [False, True])
def test_terms_of_another_tokeniser_are_made_anew_and_its_folder_is_refused(words, tmp_path, has_vocabulary):
    """The log of the other one has other ids of terms, and has admitted other words."""
    start = words if has_vocabulary else empty_start(tmp_path / "new")
    stream, _ = story(start, tmp_path / "new", "count:30")
    stream.finish(stream.match())
    log, old = stream.journal.log.read_bytes(), shutil.copytree(tmp_path / "new", tmp_path / "old")
    data, before = b"", ""
    for number, (record, _, _) in enumerate(read_records(stream.journal.log)):
        none = None if record.terms is None else record.terms._replace(ids=record.terms.ids[::-1].copy())
        other = record._replace(terms=none, admitted=Admitted((f"only{number}",), record.admitted.messages))
        data += (one := encode_record(other, before))
        before = checksum_in(one)
    (old / LOG).write_bytes(data)
    report = json.loads((old / "run.json").read_text()) | {"log_bytes": len(data)}
    manifest = start_of(old, report["live"]) / "manifest.json"
    manifest.write_text(manifest.read_text().replace(tokeniser_number(), "0-14.0.0-00000000"))
    (old / "run.json").write_text(json.dumps(report))
    with pytest.raises(InputError, match=r"tokeniser 0-14.0.0-00000000.*skyray convert FOLDER TO"):
        load_vocabulary(manifest.parent)

    convert(old, tmp_path / "converted")
    assert (tmp_path / "converted" / LOG).read_bytes() == log
    assert verify_run(tmp_path / "converted").exact
    again = Stream(start_of(tmp_path / "converted", report["live"]), tmp_path / "converted", window="count:30")
    assert again.journal.next_seq == stream.journal.next_seq


def test_rows_too_deep_for_this_release_are_taken_without_what_is_deep(words, tmp_path):
    """An earlier release took them: they match as they did."""
    first = Stream(words, tmp_path / "old")
    first.journal.close()
    region = {"subscription_id": "all", "kind": "boolean", "keywords": "w1", "region": [-20, -10, 20, 10]}
    deep = b"[" * 980 + b"]" * 980
    lines = [
        b'{"subscribe": %s, "note": %s}}' % (json.dumps(region).encode()[:-1], deep),
        b'{"id": "old", "text": "w1 [", "lon": 1, "lat": 1, "note": %s}' % deep,
    ]
    first.journal.log.write_bytes(old_log([(Record(0, 2), lines)], True))
    first.journal.run.write_report(RUNNING, {"live": first.journal.settings})
    convert(tmp_path / "old", tmp_path / "new")
    second = Stream(words, tmp_path / "new")
    assert list(second.gate.active) == ["all"]
    second.finish(second.match())
    assert [(row["message_id"], row["text"]) for row in second.told] == [("old", "w1 [")]
    assert verify_run(tmp_path / "new").exact


def test_what_cannot_be_converted_is_refused_and_nothing_is_left(words, tmp_path):
    stream, lines = story(words, tmp_path / "new", "count:30", 2)
    stream.finish(stream.match())
    with pytest.raises(ConfigError, match="has the format of this release"):
        convert(tmp_path / "new", tmp_path / "converted")
    with pytest.raises(ConfigError, match="is there already"):
        convert(tmp_path / "new", tmp_path)
    with pytest.raises(ConfigError, match="of no stream"):
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "run.json").write_text("{}")
        convert(tmp_path / "empty", tmp_path / "converted")
    records = [record for record, _, _ in read_records(stream.journal.log)]
    data = old_log(list(zip(records, lines, strict=True)), True)
    for bad, what in ((data.replace(b'"op": "', b'"op": "x', 1), "is damaged at byte"), (data[:-9], "")):
        (tmp_path / "new" / LOG).write_bytes(bad)
        if what:
            with pytest.raises(CheckpointError, match=what):
                convert(tmp_path / "new", tmp_path / "converted")
        else:  # the last record was never acknowledged
            assert convert(tmp_path / "new", tmp_path / "torn").batches == 1
    assert {path.name for path in tmp_path.iterdir()} == {"new", "empty", "torn"}


def test_command_says_what_it_has_written(words, tmp_path, capsys):
    stream, lines = story(words, tmp_path / "new", "count:30", 2)
    stream.finish(stream.match())
    records = [record for record, _, _ in read_records(stream.journal.log)]
    (tmp_path / "new" / LOG).write_bytes(old_log(list(zip(records, lines, strict=True)), True))
    assert cli.main(["convert", str(tmp_path / "new"), str(tmp_path / "converted")]) == 0
    assert "40 messages in 2 batches" in " ".join(capsys.readouterr().out.split())
    assert Counter(path.name for path in (tmp_path / "converted").iterdir())["results.parquet"] == 1
