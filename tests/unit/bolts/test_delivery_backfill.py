"""Backfills at the delivery bolt: named though their messages have left memory, and in the order of the stream."""

import json

import numpy as np
import pytest

from bolts.payloads import Closed
from matching.model import BOOLEAN, MATCH, Backfill, Names
from tests.support.deliveries import boundary, deliver, ids, make, updates
from tests.unit.bolts.test_delivery_order import changes
from topology.core.checkpoint.coordinator import publish_all

SIZE = 400  # messages in a batch: ids are dropped 1,024 at a time


def backfill_of(*rows):
    """Rows are (number, at, seqs)."""
    number, at, seq = (
        np.concatenate([np.full(len(seqs), row[place]) if place < 2 else seqs for *row, seqs in rows]).astype(np.int64)
        for place in range(3)
    )
    return Backfill(number, at, seq, Names.of([f"message {each}" for each in seq.tolist()]))


def live(number, seq):
    return (seq, number, seq, MATCH, np.nan)


def play(bolt, number, *rows, backfill=None, added=(), removed=()):
    at = boundary(number, SIZE)
    deliver(bolt, changes(number, added, removed)._replace(backfill=backfill), ids(at))
    deliver(bolt, Closed(at, number, updates(*rows)))


@pytest.mark.parametrize("sink", ["jsonl", "count"])
def test_delivery_backfill_comes_before_the_live_matches_and_behind_those_of_the_predecessor(tmp_path, sink):
    bolt, _ = make(tmp_path, sink=sink)
    play(bolt, 0, live(0, 5), added=[(0, "x", -1, BOOLEAN)])
    for number in range(1, 12):
        play(bolt, number)
    assert bolt.messages.first > 1_024
    at = 12 * SIZE + 7
    backfill = backfill_of((1, at, [3, 5, at - 1]), (2, at, [5, 2_000]))
    rows = [live(0, at - 2), live(1, at), live(2, at + 1)]
    play(bolt, 12, *rows, backfill=backfill, added=[(1, "x", 0, BOOLEAN), (2, "y", -1, BOOLEAN)], removed=[0])
    for number in range(13, 30):
        play(bolt, number)
    assert not len(bolt.backfilled) and not len(bolt.messages._kept_numbers), "they are dropped again"
    if sink == "count":
        assert bolt.report()["updates"]["match"] == 9
        return
    bolt.sink.seal(bolt.subscriptions, bolt.messages)
    publish_all(bolt.outputs())
    lines = [json.loads(line) for line in (tmp_path / "run/updates/part-00000.jsonl").read_text().splitlines()]
    assert all(one["message_id"] == f"message {one['seq']}" for one in lines)
    found = {name: [(one["as_of"], one["seq"]) for one in lines if one["subscription_id"] == name] for name in "xy"}
    assert found["x"] == [(5, 5), (at - 2, at - 2), (at, 3), (at, 5), (at, at - 1), (at, at)]
    assert found["y"] == [(at, 5), (at, 2_000), (at + 1, at + 1)]
