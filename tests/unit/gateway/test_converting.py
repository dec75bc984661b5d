"""The folder of a stream that another tokeniser has cut becomes what this release would have written."""

import json
import shutil
from collections import Counter

import numpy as np
import pytest

from gateway import cli
from gateway.live.converting import convert
from gateway.live.vocabulary_files import empty_start
from gateway.runs.verify import verify_run
from matching.errors import CheckpointError, ConfigError, InputError
from matching.words.tokeniser import tokeniser_number
from spouts.history import LOG, start_of
from spouts.log import Admitted, checksum_in, encode_record, read_records
from spouts.subscriptions import load_vocabulary
from tests.support.beside import random_message, random_subscription
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream, counted

LATEST_S = 1_577_900_000


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("converting") / "words", random_rows(200))


def story(words, out, window, batches=6):
    """A stream of this release, and how many records it has."""
    rng, stream = np.random.default_rng(5), Stream(words, out, window=window, now=lambda: LATEST_S)
    for batch in range(batches):
        mine: list[dict] = [{"subscribe": random_subscription(rng, int(rng.integers(9)))} for _ in range(5)]
        mine += [random_message(rng, batch * 20 + number) for number in range(20)]
        mine[7] |= {"time": LATEST_S + 10**6}
        mine[9].pop("id")
        mine.insert(12, {"unsubscribe": stream_id(mine)})
        for row in mine:
            stream.take(json.dumps(row).encode())
        assert not stream.refused, stream.refused
        stream.pipe.close_batch()
        if window.startswith("time") and batch == 3:
            stream.journal.mark(stream.journal._clock.time_us + 1000, 0.0)
            batches += 1
    return stream, batches


def stream_id(rows):
    return rows[0]["subscribe"]["subscription_id"]


def with_other_words(stream, old):
    """A copy of the folder of a stream as another tokeniser has it: other ids of terms, other admitted words."""
    shutil.copytree(stream.journal.run.path, old)
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
    return manifest.parent, report


@pytest.mark.parametrize(("has_vocabulary", "window"), [(False, "count:30"), (True, "time:3000")])
def test_terms_of_another_tokeniser_are_made_anew_and_its_folder_is_refused(words, tmp_path, has_vocabulary, window):
    """The log of the other one has other ids of terms, and has admitted other words."""
    start = words if has_vocabulary else empty_start(tmp_path / "new")
    stream, batches = story(start, tmp_path / "new", window)
    stream.finish(stream.match())
    other, report = with_other_words(stream, tmp_path / "old")
    with pytest.raises(InputError, match=r"tokeniser 0-14.0.0-00000000.*skyray convert FOLDER TO"):
        load_vocabulary(other)

    found = convert(tmp_path / "old", tmp_path / "converted")
    assert (found.messages, found.batches) == (stream.journal.next_seq, batches)
    assert (tmp_path / "converted" / LOG).read_bytes() == stream.journal.log.read_bytes()
    assert verify_run(tmp_path / "converted").exact and sum(counted(stream.told).values()) > 30
    again = Stream(start_of(tmp_path / "converted", report["live"]), tmp_path / "converted", window=window)
    again.match()
    assert counted(again.told) == counted(stream.told), "it matches its log from the beginning"


def test_what_cannot_be_converted_is_refused_and_nothing_is_left(words, tmp_path):
    stream, _ = story(words, tmp_path / "new", "count:30", 2)
    stream.finish(stream.match())
    with pytest.raises(ConfigError, match="has the words of this release"):
        convert(tmp_path / "new", tmp_path / "converted")
    with pytest.raises(ConfigError, match="is there already"):
        convert(tmp_path / "new", tmp_path)
    with pytest.raises(ConfigError, match="of no stream"):
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "run.json").write_text("{}")
        convert(tmp_path / "empty", tmp_path / "converted")
    with_other_words(stream, tmp_path / "old")
    data = (tmp_path / "old" / LOG).read_bytes()
    (tmp_path / "old" / LOG).write_bytes(data.replace(b"only0", b"only9", 1))
    with pytest.raises(CheckpointError, match="is damaged at byte"):
        convert(tmp_path / "old", tmp_path / "converted")
    assert {path.name for path in tmp_path.iterdir()} == {"new", "empty", "old"}
    (tmp_path / "old" / LOG).write_bytes(data[:-9])  # the last record was never acknowledged
    assert convert(tmp_path / "old", tmp_path / "torn").batches == 1


def test_command_says_what_it_has_written(words, tmp_path, capsys):
    stream, _ = story(words, tmp_path / "new", "count:30", 2)
    stream.finish(stream.match())
    with_other_words(stream, tmp_path / "old")
    assert cli.main(["convert", str(tmp_path / "old"), str(tmp_path / "converted")]) == 0
    assert "40 messages in 2 batches" in " ".join(capsys.readouterr().out.split())
    assert Counter(path.name for path in (tmp_path / "converted").iterdir())["results.parquet"] == 1
