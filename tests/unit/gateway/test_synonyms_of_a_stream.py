"""Synonyms of a stream: the log and the answers have a subscription as it is written out, whichever door it came by."""

import json
import time

import pytest

from gateway.live.mapping import RenamedLine
from gateway.live.open_batch import InputLine
from gateway.serve.writer import Subscribe
from matching.errors import ConfigError
from matching.validate import ParsedSubscription, decode_object
from tests.support.writing import WriterStream

ROW = {"subscription_id": "s", "kind": "boolean", "region": [0, 0, 2, 2], "keywords": "Bike red"}
OUT = {"keywords": ["red"], "query": {"all": [{"any": ["bike", "velo"]}]}}


def logged(stream: WriterStream) -> list[dict]:
    return [json.loads(line)["subscribe"] for record in stream.records() for line in record.lines]


def test_subscription_of_a_request_is_logged_and_answered_as_it_is_written_out(tmp_path):
    path, out = tmp_path / "synonyms.txt", tmp_path / "out"
    path.write_text("bike, velo\n")
    with WriterStream(out, settings={"synonyms": path}) as stream:
        found = stream.submit(Subscribe(ROW), Subscribe(ROW), Subscribe(ROW | OUT))
        stream.writer.begin()
        stream.end()
        assert [one["status"] for one in found] == ["created", "unchanged", "unchanged"]
        assert found[0]["read_as"] == "(bike OR velo)"
        assert logged(stream) == [ROW | OUT]
    path.write_text("bike, bicycle\n")
    with WriterStream(out, settings={"synonyms": path}) as stream:
        (kept,) = stream.registry.listed()
        assert kept.columns == ROW | OUT, "another file changes what comes"
        found = stream.submit(Subscribe(ROW | {"subscription_id": "t", "keywords": "red"}))
        stream.writer.begin()
        stream.end()
        assert found[0]["status"] == "created" and "read_as" not in found[0]


def test_subscription_of_a_line_is_logged_as_it_is_written_out(tmp_path):
    (path := tmp_path / "synonyms.txt").write_text("bike, velo\n")
    with WriterStream(tmp_path / "out", settings={"synonyms": path}) as stream:
        data = json.dumps({"subscribe": ROW}).encode()
        taken = stream.writer.batching.admit(
            InputLine(1, data, time.monotonic()), RenamedLine(data, decode_object(data))
        )
        assert isinstance(taken, ParsedSubscription) and taken.words == ("red",) and taken.others == ("bike", "velo")
        stream.writer.batching.close()
        assert logged(stream) == [ROW | OUT]


def test_file_of_synonyms_that_cannot_be_read_is_refused_before_anything_is_logged(tmp_path):
    (path := tmp_path / "synonyms.txt").write_bytes(b"\xff\xfe\x00")
    for one in (path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="cannot be read"):
            WriterStream(tmp_path / "out", settings={"synonyms": one})
    path.write_text("\ufeffbike, velo\nbike,,\n", "utf-8")
    with pytest.raises(ConfigError, match=r"synonyms.txt, line 2: there is no word"):
        WriterStream(tmp_path / "out", settings={"synonyms": path})
    assert not (tmp_path / "out" / "journal" / "log").exists()
