"""What a live stream leaves at its end is a folder that says what is in it."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from gateway.serve.releasing import Releaser
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream, digest_of_run
from tests.support.writing import await_

SUBSCRIPTION = {"subscription_id": "s1", "kind": "knn", "keywords": "w1", "lon": 1.0, "lat": 1.0, "k": 2}


def test_messages_recorded_with_the_words_of_a_folder_with_attributes_have_none(tmp_path):
    etl, out = write_etl(tmp_path / "words", random_rows(50)), tmp_path / "out"
    manifest = json.loads((etl / "manifest.json").read_text())
    attributes = [{"name": "price", "type": "number", "messages": 7}]
    (etl / "manifest.json").write_text(json.dumps({**manifest, "format_version": 2, "attributes": attributes}))
    stream = Stream(etl, out)
    stream.take({"subscribe": SUBSCRIPTION})
    for place in range(8):
        stream.take({"text": f"w1 w{place % 3}", "lon": float(place), "lat": 1.0})
    stream.pipe.close_batch()
    digest = stream.finish(stream.match())
    assert digest_of_run(out, tmp_path / "again") == digest


def test_live_updates_wait_until_their_messages_are_on_disk(tmp_path, monkeypatch):
    """The log is matched before its fsync ends; what comes of it is written after."""
    stream = Stream(write_etl(tmp_path / "words", random_rows(50)), tmp_path / "out", window="count:9")
    disk, held, waiting = threading.Event(), threading.Event(), []
    force, take = os.fsync, Releaser.take

    def fsync(descriptor):
        log = stream.journal._file
        if not log.closed and descriptor == log.fileno() and stream.journal.next_seq > 1:
            held.set()
            assert disk.wait(60)
        force(descriptor)

    def taken(self, published):
        take(self, published)
        waiting.append(published.through)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Releaser, "take", taken)
    with ThreadPoolExecutor(2) as threads:
        stream.take({"subscribe": SUBSCRIPTION})
        for place in range(2):
            stream.take({"text": "w1", "lon": float(place), "lat": 1.0})
            closing = threads.submit(stream.pipe.close_batch)
            if not place:
                closing.result()
                matching = threads.submit(stream.match, lambda: 1)
        assert held.wait(60)
        await_(lambda: 1 in waiting)
        written, durable = [json.loads(line)["as_of"] for line in stream._written], stream.journal.durable_through
        disk.set()
        matching.result(60)
    assert (written, durable) == ([0], 0) and [row["as_of"] for row in stream.told] == [0, 1]
