"""`InOrder`: complete, in order, once."""

import itertools

import pytest

from bolts.ordering import InOrder
from matching.errors import TopologyError


def drain(inputs: InOrder) -> list[tuple[int, dict]]:
    taken = []
    while (ready := inputs.pop()) is not None:
        taken.append(tuple(ready))
    return taken


def test_ordering_every_arrival_order_gives_the_same_batches():
    arrivals = [(0, "parts", "p0"), (1, "parts", "p1"), (0, "changes", "c0"), (1, "changes", "c1"), (2, "parts", "p2")]
    expected = [(0, {"parts": ["p0"], "changes": ["c0"]}), (1, {"parts": ["p1"], "changes": ["c1"]})]
    for order in itertools.permutations(arrivals):
        inputs, taken = InOrder({"parts": 1, "changes": 1}), []
        for number, stream, payload in order:
            inputs.put(number, stream, payload)
            taken += drain(inputs)
        assert taken == expected
        assert len(inputs) == 1


def test_ordering_several_senders_come_out_in_their_order():
    inputs = InOrder({"updates": 3, "ids": 1})
    for sender in (2, 0):
        inputs.put(0, "updates", f"from {sender}", sender)
    inputs.put(0, "ids", "names")
    assert inputs.pop() is None
    inputs.put(0, "updates", "from 1", 1)
    assert drain(inputs) == [(0, {"updates": ["from 0", "from 1", "from 2"], "ids": ["names"]})]


def test_ordering_whole_batch_passes_in_its_turn_alone():
    inputs = InOrder({"parts": 1, "changes": 1})
    assert not inputs.take_whole(1) and inputs.take_whole(0) and not inputs.take_whole(0)
    inputs.put(1, "parts", "p")
    assert not inputs.take_whole(1), "something of it waits"
    with pytest.raises(TopologyError, match="batch 0 of 'parts'"):
        inputs.put(0, "parts", "again")
    inputs.put(1, "changes", "c")
    assert drain(inputs) == [(1, {"parts": ["p"], "changes": ["c"]})]


@pytest.mark.parametrize("taken", [False, True])
def test_ordering_repeat_raises(taken):
    inputs = InOrder({"parts": 1})
    inputs.put(0, "parts", "once")
    if taken:
        inputs.pop()
    with pytest.raises(TopologyError, match="batch 0 of 'parts'"):
        inputs.put(0, "parts", "again")


def test_ordering_too_far_ahead_raises_and_names_what_is_missing():
    inputs = InOrder({"parts": 1, "changes": 2}, limit=3, name="query:1")
    inputs.put(0, "changes", "c", 1)
    inputs.put(2, "parts", "p")
    with pytest.raises(
        TopologyError, match=r"query:1: batch 3 .* batch 0 waits for 'parts' from sender 0; 'changes' from sender 0"
    ):
        inputs.put(3, "parts", "p")


def test_ordering_unknown_stream_or_sender_raises():
    inputs = InOrder({"parts": 1})
    with pytest.raises(TopologyError, match="'part' is not among parts"):
        inputs.put(0, "part", None)
    with pytest.raises(TopologyError, match="sender 1"):
        inputs.put(0, "parts", None, 1)
    with pytest.raises(TopologyError, match="at least one sender"):
        InOrder({"parts": 0})


def test_ordering_restored_at_a_later_batch_takes_from_there():
    inputs = InOrder({"parts": 1}, first=7)
    inputs.put(8, "parts", "eight")
    assert inputs.pop() is None
    inputs.put(7, "parts", "seven")
    assert [number for number, _ in drain(inputs)] == [7, 8]
    with pytest.raises(TopologyError, match="came again"):
        inputs.put(6, "parts", "six")


def test_ordering_payload_none_counts_as_arrived():
    inputs = InOrder({"parts": 1})
    inputs.put(0, "parts", None)
    assert drain(inputs) == [(0, {"parts": [None]})]
