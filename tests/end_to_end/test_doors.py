"""One stream by every door: a live stream, and what it leaves verified and run again."""

from gateway.verify import verify_run
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream, digest_of_run


def test_live_message_id_that_comes_twice_is_one_rule_at_every_door(tmp_path):
    skyline = {"subscription_id": "s", "kind": "skyline", "keywords": "w1", "region": [-90, 35, -80, 45]}
    first = {"id": "A", "lon": -85, "lat": 40, "text": "w1 w3"}
    second = {"id": "B", "lon": -86, "lat": 41, "text": "w1 w4 w5"}
    words = write_etl(tmp_path / "words", random_rows(60))
    stream = Stream(words, tmp_path / "out", world="earth")
    stream.take({"subscribe": skyline})
    for row in (first, second, first):
        stream.take(row)
    stream.pipe.close_batch()
    digest = stream.finish(stream.match())
    assert [(row["change"], row["message_id"], row["seq"]) for row in stream.told] == [("enter", "A", 2)]
    verdict = verify_run(tmp_path / "out", all=True)
    assert verdict.exact, verdict.render()
    assert digest_of_run(tmp_path / "out", tmp_path / "again") == digest
