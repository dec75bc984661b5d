"""What every sink of all updates has to do (`gateway.sinks.stream`), whatever its receiver is.

A module of tests derives a class from `SinkContract` and gives it `receiver`.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from gateway.live.update_listener import MessageText
from gateway.serve.released import RANKS, ReleasedUpdate
from gateway.serve.update_parts import BEGINNING, Position
from gateway.sinks.stream import SinkAway, StreamSink, UpdateChunk
from matching.errors import ConfigError
from tests.support.releasing import RawUpdate, release

#: An update in short: subscription, change, seq.
Short = tuple[str, str, int]


def boundary_of(last_seq: int, changes: Iterable[Short]) -> list[ReleasedUpdate]:
    """The updates of a boundary, as the server releases them."""
    raw = [RawUpdate(name, RANKS[change], seq, last_seq, None if change == "match" else seq / 8)
           for name, change, seq in changes]  # fmt: skip

    def look_up(seqs: Sequence[int]) -> dict[int, MessageText]:
        return {seq: MessageText(f"m{seq}", f"ramen \t\\N 'ü' {seq}\n", seq % 180, -seq % 90) for seq in seqs}

    return release(last_seq, raw, look_up)


def chunk_of(*updates: ReleasedUpdate, ends: bool = True, through: int | None = None) -> UpdateChunk:
    """A chunk of these updates; without any, boundaries passed up to a message."""
    if not updates:
        assert through is not None
        return UpdateChunk([], Position(through, 0), True, through)
    behind = Position.of(updates[-1].position)
    return UpdateChunk(list(updates), behind, ends, behind.boundary)


def await_away(sink: StreamSink, seconds: float = 300) -> None:
    """Wait until a sink sees that its receiver is gone."""
    until_s = time.monotonic() + seconds
    with pytest.raises(SinkAway):
        while time.monotonic() < until_s:
            sink.check()


class Receiver(ABC):
    """Where a sink delivers to, in the hands of a test."""

    @abstractmethod
    def sink(self) -> StreamSink:
        """A new sink of the same place, as another process would make it."""

    @abstractmethod
    def ids(self) -> list[str]:
        """Ids of the updates that a reader sees, in order."""

    @abstractmethod
    def cut(self) -> None:
        """Break all connections; the receiver itself stays there."""


class SinkContract:
    """Derive from it, with a fixture `receiver`."""

    FIRST = boundary_of(3, [("s1", "match", 0), ("s2", "enter", 1), ("s2", "enter", 2)])
    SECOND = boundary_of(9, [("s2", "leave", 1), ("s2", "enter", 8), ("s3", "match", 9)])

    @pytest.fixture
    def sink(self, receiver: Any):
        made = receiver.sink()
        yield made
        made.close()
        made.close()

    def test_sink_has_a_name_without_address_and_an_extra(self, sink):
        assert "127.0.0.1" not in sink.name and "@" not in sink.name and "/" in sink.name
        assert sink.extra and isinstance(sink.exactly_once, bool)

    def test_new_receiver_knows_no_position(self, sink):
        assert sink.open("one") is None

    def test_chunks_arrive_in_order_and_their_end_is_the_position(self, receiver, sink):
        sink.open("one")
        for chunk in (chunk_of(*self.FIRST), chunk_of(*self.SECOND)):
            assert sink.deliver(chunk) == chunk.behind
        assert receiver.ids() == [one.position for one in (*self.FIRST, *self.SECOND)]

    def test_opened_again_it_continues_behind_its_position(self, receiver, sink):
        sink.open("one")
        sink.deliver(chunk_of(*self.FIRST))
        sink.close()
        found = sink.open("one")
        assert found == Position.of(self.FIRST[-1].position) if sink.exactly_once else True
        sink.deliver(chunk_of(*self.SECOND))
        assert receiver.ids() == [one.position for one in (*self.FIRST, *self.SECOND)]

    def test_another_process_continues_as_well(self, receiver, sink):
        sink.open("one")
        sink.deliver(chunk_of(*self.FIRST))
        other = receiver.sink()
        try:
            found = other.open("one")
            assert found == Position.of(self.FIRST[-1].position) if sink.exactly_once else True
            other.deliver(chunk_of(*self.SECOND))
        finally:
            other.close()
        assert receiver.ids() == [one.position for one in (*self.FIRST, *self.SECOND)]

    def test_another_stream_is_refused_and_changes_nothing(self, receiver, sink):
        sink.open("one")
        sink.deliver(chunk_of(*self.FIRST))
        other = receiver.sink()
        try:
            with pytest.raises(ConfigError, match="another stream"):
                other.open("two")
        finally:
            other.close()
        sink.deliver(chunk_of(*self.SECOND))
        assert receiver.ids() == [one.position for one in (*self.FIRST, *self.SECOND)]

    def test_chunk_within_a_boundary_and_the_one_that_ends_it(self, receiver, sink):
        sink.open("one")
        held = sink.deliver(chunk_of(*self.FIRST[:2], ends=False))
        assert held <= Position.of(self.FIRST[1].position)
        if sink.exactly_once:
            assert held == BEGINNING and receiver.ids() == []
        assert sink.deliver(chunk_of(self.FIRST[2])) == Position.of(self.FIRST[2].position)
        assert receiver.ids() == [one.position for one in self.FIRST]

    def test_chunk_across_a_boundary(self, receiver, sink):
        sink.open("one")
        sink.deliver(chunk_of(*self.FIRST, self.SECOND[0], ends=False))
        sink.deliver(chunk_of(*self.SECOND[1:]))
        assert receiver.ids() == [one.position for one in (*self.FIRST, *self.SECOND)]

    def test_boundaries_without_updates_move_the_position(self, receiver, sink):
        sink.open("one")
        sink.deliver(chunk_of(*self.FIRST))
        assert sink.deliver(chunk_of(through=7)) == Position(7, 0)
        sink.deliver(chunk_of(*self.SECOND))
        assert receiver.ids() == [one.position for one in (*self.FIRST, *self.SECOND)]

    def test_connection_that_breaks_within_a_boundary_leaves_whole_boundaries(self, receiver, sink):
        sink.open("one")
        sink.deliver(chunk_of(*self.FIRST))
        sink.deliver(chunk_of(self.SECOND[0], ends=False))
        receiver.cut()
        with pytest.raises(SinkAway):
            sink.deliver(chunk_of(*self.SECOND[1:]))
        sink.close()
        found = sink.open("one")
        if sink.exactly_once:
            assert found == Position.of(self.FIRST[-1].position)
            assert receiver.ids() == [one.position for one in self.FIRST]
        sink.deliver(chunk_of(*self.SECOND))
        wanted = [one.position for one in (*self.FIRST, *self.SECOND)]
        assert (receiver.ids() if sink.exactly_once else list(dict.fromkeys(receiver.ids()))) == wanted

    def test_connection_that_breaks_is_seen_where_nothing_is_to_be_delivered(self, receiver, sink):
        sink.open("one")
        sink.deliver(chunk_of(*self.FIRST))
        sink.check()
        receiver.cut()
        await_away(sink)
        sink.close()
        sink.open("one")
        sink.check()
        sink.deliver(chunk_of(*self.SECOND))
        assert receiver.ids() == [one.position for one in (*self.FIRST, *self.SECOND)]

    def test_stream_that_has_delivered_nothing_leaves_the_place_to_another(self, receiver, sink):
        """A folder whose process was killed before its first message begins anew, as another stream."""
        sink.open("one")
        sink.close()
        other = receiver.sink()
        try:
            assert other.open("two") is None
            other.deliver(chunk_of(*self.FIRST))
        finally:
            other.close()
        assert receiver.ids() == [one.position for one in self.FIRST]
