"""What a live stream leaves at its end is a folder that says what is in it."""

import json

from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream, digest_of_run

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
    recorded = json.loads((out / "etl" / "manifest.json").read_text())
    assert recorded["format_version"] == 1 and "attributes" not in recorded
    assert digest_of_run(out, tmp_path / "again") == digest
