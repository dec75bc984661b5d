"""Numbered batches in order, joined from several streams and senders.

Executors guarantee order only between two tasks. A bolt that gets batch b from one distribution task, batch b + 1 from
another, and the change list of each batch from a spout, puts in payloads as they arrive and takes out complete batches
in order:

    self.inputs = InOrder({"parts": 1, "changes": 1})
    ...
    self.inputs.put(part.boundary.number, "parts", part)
    while (ready := self.inputs.pop()) is not None:
        number, payloads = ready
        self.work(payloads["changes"][0], payloads["parts"][0])
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from matching.errors import TopologyError

#: In the place of a payload that has not come.
_ABSENT = object()


class Ready(NamedTuple):
    """A complete batch: for every stream its payloads, in the order of their senders."""

    number: int
    payloads: dict[str, list[Any]]


class _Waiting:
    """One batch that is not complete yet."""

    __slots__ = ("missing", "payloads")

    def __init__(self, streams: Mapping[str, int]):
        self.payloads = {stream: [_ABSENT] * senders for stream, senders in streams.items()}
        self.missing = sum(streams.values())


class InOrder:
    """Batches 0, 1, 2, ... of several streams, handed out in order and complete.

    Parameters
    ----------
    streams : dict of str to int
        How many payloads of each stream make a batch complete: 1 where one task sends the batch (whichever task
        that is), the number of senders where each of them sends its part.
    first : int
        Number of the first batch, above 0 after a restore.
    limit : int
        How many batches may be waiting. Credits keep the number small, so more means that some sender is stuck
        or numbers its batches wrongly.
    name : str
        Name in error messages.

    Notes
    -----
    `put` and `pop` are O(1) per payload.
    """

    def __init__(self, streams: Mapping[str, int], first: int = 0, limit: int = 4096, name: str = "inputs"):
        if not streams or any(senders < 1 for senders in streams.values()):
            raise TopologyError(f"{name}: every stream needs at least one sender, got {dict(streams)}")
        self.streams = dict(streams)
        self.next_number = first
        self.limit = limit
        self.name = name
        self._waiting: dict[int, _Waiting] = {}

    def __len__(self) -> int:
        """Number of batches that have arrived, in part or whole, and were not taken."""
        return len(self._waiting)

    def put(self, number: int, stream: str, payload: Any, sender: int = 0) -> None:
        """Add a payload of batch `number`.

        Raises
        ------
        TopologyError
            If it has come before, its batch was taken, its stream or sender is unknown, or its batch is `limit`
            or more ahead of the next one.
        """
        senders = self.streams.get(stream)
        if senders is None:
            raise TopologyError(f"{self.name}: stream {stream!r} is not among {', '.join(self.streams)}")
        if not 0 <= sender < senders:
            raise TopologyError(f"{self.name}: sender {sender} of stream {stream!r}, which has {senders}")
        if number < self.next_number:
            raise TopologyError(
                f"{self.name}: batch {number} of {stream!r} from sender {sender} came again, "
                f"the next batch is {self.next_number}"
            )
        if number >= self.next_number + self.limit:
            raise TopologyError(
                f"{self.name}: batch {number} of {stream!r} is {number - self.next_number} ahead of the next batch "
                f"(limit {self.limit}); still missing: {self.missing()}"
            )
        waiting = self._waiting.get(number)
        if waiting is None:
            waiting = self._waiting[number] = _Waiting(self.streams)
        payloads = waiting.payloads[stream]
        if payloads[sender] is not _ABSENT:
            raise TopologyError(f"{self.name}: batch {number} of {stream!r} from sender {sender} came twice")
        payloads[sender] = payload
        waiting.missing -= 1

    def pop(self) -> Ready | None:
        """The next batch, or None while something of it is missing."""
        waiting = self._waiting.get(self.next_number)
        if waiting is None or waiting.missing:
            return None
        number = self.next_number
        del self._waiting[number]
        self.next_number += 1
        return Ready(number, waiting.payloads)

    def take_whole(self, number: int) -> bool:
        """Pass over a batch that the caller has whole and processes now; False unless it is the next one, and nothing
        of it has been put in. Saves a small batch its way through the queue."""
        if number != self.next_number or number in self._waiting:
            return False
        self.next_number += 1
        return True

    def skip(self) -> None:
        """Pass over the next batch, of which nothing comes.

        Raises
        ------
        TopologyError
            If something of it has come.
        """
        if self.next_number in self._waiting:
            raise TopologyError(f"{self.name}: batch {self.next_number} is passed over, and something of it has come")
        self.next_number += 1

    def missing(self) -> str:
        """Payloads that the next batch waits for, as text for errors and stalled runs."""
        waiting = self._waiting.get(self.next_number)
        gaps = []
        for stream, senders in self.streams.items():
            got = [_ABSENT] * senders if waiting is None else waiting.payloads[stream]
            absent = [str(sender) for sender, payload in enumerate(got) if payload is _ABSENT]
            if absent:
                gaps.append(f"{stream!r} from sender {', '.join(absent)}")
        return f"batch {self.next_number} waits for {'; '.join(gaps) or 'nothing'}"
