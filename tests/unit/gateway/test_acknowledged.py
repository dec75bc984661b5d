"""What was acknowledged is missed if it is damaged or gone, and a record that was torn is not."""

import json
import shutil

import pytest

from gateway.live.acknowledged import DURABLE, DurableMark, acknowledged_bytes
from gateway.live.status import read_status
from matching.errors import CheckpointError
from spouts.history import LOG
from spouts.log import read_records
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The words and the folder of a stream that was killed while it was idle, before its first checkpoint."""
    folder = tmp_path_factory.mktemp("acknowledged")
    words = write_etl(folder / "words", random_rows(50))
    stream = Stream(words, folder / "out", batch=2)
    for number in range(6):
        stream.take({"id": f"m{number}", "text": "w1", "lon": 1.0, "lat": 1.0})
        stream.take({"subscribe": {"subscription_id": f"s{number}", "kind": "boolean", "keywords": "w1"}})
        stream.pipe.close_batch()
    stream.journal._file.close()
    stream.journal._mark._file.close()  # nothing more is forced
    return words, folder / "out"


@pytest.fixture
def out(killed, tmp_path):
    shutil.copytree(killed[1], tmp_path / "out")
    (tmp_path / "out" / "run.json").write_text(json.dumps({"state": "running", "live": settings_in(killed)}))
    return tmp_path / "out"


def settings_in(killed):
    words, folder = killed
    return Stream(words, folder.parent / "another").journal.settings


def flip(data):
    return data[:-3] + bytes([data[-3] ^ 4]) + data[-2:]


HARMS = {
    "a bit in the last record": flip,
    "the last record is gone": lambda data: data[: data.rindex(b'{"last_seq"')],
    "the end of the last record is gone": lambda data: data[:-5],
    "zeros at the end": lambda data: data[:-40] + bytes(40),
    "emptied": lambda data: b"",
}


@pytest.mark.parametrize("harm", HARMS)
def test_log_without_what_was_acknowledged_is_refused_and_left_as_it_is(killed, out, harm):
    log = out / LOG
    data = HARMS[harm](log.read_bytes())
    log.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"can be read up to byte .* were acknowledged: .*restore a backup"):
        Stream(killed[0], out)
    if data:
        with pytest.raises(CheckpointError, match="were acknowledged"):
            read_status(out)
    assert log.read_bytes() == data


def test_record_that_nobody_was_answered_is_cut(killed, out):
    whole = (out / LOG).read_bytes()
    for torn in (whole[:40], b'{"last_seq":', bytes(100)):
        (out / LOG).write_bytes(whole + torn)
        stream = Stream(killed[0], out)
        assert stream.journal.next_seq == 6 and (out / LOG).read_bytes() == whole
        stream.journal.close()


def test_log_without_a_mark_and_a_checkpoint_is_read(killed, out):
    (out / DURABLE).unlink()
    (out / LOG).write_bytes((out / LOG).read_bytes()[:-5])
    stream = Stream(killed[0], out)
    assert stream.journal.next_seq == 5
    stream.journal.close()


def test_mark_is_its_last_whole_line_and_begins_anew_before_it_grows(tmp_path, monkeypatch):
    (tmp_path / "journal").mkdir()
    monkeypatch.setattr("gateway.live.acknowledged._LINES", 50)
    mark = DurableMark(tmp_path, 7)
    for number in range(8, 200):
        mark.note(number)
        assert acknowledged_bytes(tmp_path) == number
    mark.close()
    data = (tmp_path / DURABLE).read_bytes()
    assert len(data) <= 50 * 38
    for cut in range(1, 39):
        (tmp_path / DURABLE).write_bytes(data[:-cut])
        assert acknowledged_bytes(tmp_path) == 198
    (tmp_path / DURABLE).write_bytes(b"")
    assert acknowledged_bytes(tmp_path) == -1


def test_torn_tail_has_whole_records_before_it(killed):
    records = [record for record, _, _ in read_records(killed[1] / LOG)]
    assert len(records) == 6 and all(record.checksum for record in records)
