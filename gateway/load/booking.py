"""Books what packing and moving payloads costs each task of a topology that runs in one process.

Used by `gateway.load.measuring` and by `benchmarks.routers`; packing itself is in `topology.core.payload`.
"""

from collections import Counter
from collections.abc import Sequence
from time import thread_time_ns
from typing import Any, NamedTuple

from topology.core.payload import pack, unpack
from topology.core.tasks.links import Channel, Destination


class Weighed(NamedTuple):
    """A task's channel that packs and unpacks what it carries, and books the nanoseconds to tasks that would do it.

    `book` has, by what and address: `packing` (of the sender), `unpacking` and `bytes` (of the receiver), and `lent`,
    the unpacking that ran within the sender's time.
    """

    book: Counter[tuple[str, int]]
    sender: int
    channel: Channel

    def send(self, destinations: Sequence[Destination], payload: Any, size_bytes: int) -> None:
        carried = [address for address, edge, _ in destinations if edge >= 0 and address != self.sender]
        if carried:
            begun = thread_time_ns()
            pieces = pack(payload, 1 << 62)
            packed = thread_time_ns()
            unpack(pieces)
            unpacking = thread_time_ns() - packed
            self.book["packing", self.sender] += packed - begun
            # it ran inside the sender's time, and belongs to the receivers
            self.book["lent", self.sender] += unpacking
            for address in carried:
                self.book["unpacking", address] += unpacking
                self.book["bytes", address] += sum(map(len, pieces))
        self.channel.send(destinations, payload, size_bytes)
