"""The CloudEvents attributes of an update."""

import pytest

from gateway.live.update_listener import MessageText
from gateway.sinks.cloudevents import attributes_of
from tests.support.releasing import RawUpdate, release


def _look_up(seqs):
    return {seq: MessageText(f"m{seq}", 'said "change": no', 1.0, 2.0) for seq in seqs}


@pytest.mark.parametrize(("rank", "change"), [(0, "leave"), (1, "match"), (2, "enter")])
def test_attributes_of_an_update_are_those_of_cloudevents(rank, change):
    (update,) = release(41, [RawUpdate("ramen in Łódź", rank, 40, 41, 0.5)], _look_up)
    assert attributes_of(update, "s 1") == {
        "specversion": "1.0",
        "id": "s 1/41-0",
        "source": "/skyray/s%201",
        "type": f"skyray.update.{change}",
        "subject": "ramen in Łódź",
        "datacontenttype": "application/json",
    }


def test_attributes_ids_of_two_updates_or_two_streams_differ():
    raw = [RawUpdate("a", 2, seq, 41, None) for seq in (40, 41)]
    updates = release(41, raw, _look_up)
    assert len({attributes_of(one, stream)["id"] for one in updates for stream in ("one", "two")}) == 4
