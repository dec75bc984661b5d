"""Measures what packing and unpacking payloads would cost each task, for a topology that runs in one process.

In one process parcels are not packed. `Weighed` packs and unpacks each payload that would go to another task, discards
the copy, and adds the time to the task that would do the work.
"""

from collections import Counter
from collections.abc import Sequence
from time import thread_time_ns
from typing import NamedTuple

from topology.core.payload import pack, unpack
from topology.core.tasks.links import Parcel


class Weighed(NamedTuple):
    """Measures the parcels of each payload; the `watch` of `topology.core.executors.local.run_local`.

    book : Counter    (what, task address) -> sum. `packing`: nanoseconds of the sender; `unpacking`: nanoseconds of the
                      receiver; `bytes`: of the receiver; `lent`: nanoseconds of unpacking that ran in the sender's
                      thread, and which a caller subtracts from the sender's busy time
    """

    book: Counter[tuple[str, int]]

    def __call__(self, parcels: Sequence[Parcel]) -> None:
        carried = [parcel for parcel in parcels if parcel.edge >= 0 and parcel.address != parcel.sender]
        if not carried:
            return
        sender, begun = carried[0].sender, thread_time_ns()
        pieces = pack(carried[0].payload, 1 << 62)
        packed = thread_time_ns()
        unpack(pieces)
        unpacking = thread_time_ns() - packed
        self.book["packing", sender] += packed - begun
        # unpacking ran in the sender's thread here, though it is the receivers' work
        self.book["lent", sender] += unpacking
        for parcel in carried:
            self.book["unpacking", parcel.address] += unpacking
            self.book["bytes", parcel.address] += sum(map(len, pieces))
