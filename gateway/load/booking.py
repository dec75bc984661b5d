"""Measures what packing and unpacking payloads would cost each task, for a topology that runs in one process.

In one process parcels are not packed. `Weighed` packs and unpacks each parcel that would go to another task, discards
the copy, and adds the time to the task that would do the work.
"""

from collections import Counter
from collections.abc import Sequence
from time import thread_time_ns
from typing import Any, NamedTuple

from topology.core.payload import pack, unpack
from topology.core.tasks.links import Channel, Destination


class Weighed(NamedTuple):
    """A `Channel` around that of one task, which measures and then forwards.

    book : Counter    (what, task address) -> sum. `packing`: nanoseconds of the sender; `unpacking`: nanoseconds of the
                      receiver; `bytes`: of the receiver; `lent`: nanoseconds of unpacking that ran in the sender's
                      thread, and which a caller subtracts from the sender's busy time
    sender : int      address of the task
    channel : Channel
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
            # unpacking ran in the sender's thread here, though it is the receivers' work
            self.book["lent", self.sender] += unpacking
            for address in carried:
                self.book["unpacking", address] += unpacking
                self.book["bytes", address] += sum(map(len, pieces))
        self.channel.send(destinations, payload, size_bytes)
