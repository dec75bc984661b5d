"""A run in one process whose files lack an update, or have one that says another thing."""

import numpy as np

from bolts.sinks import PartSink
from matching.model import take_rows


def spoil_one(monkeypatch, numbers: range, behind: int, how: str = "lost") -> None:
    """The first update of these subscriptions as of a message behind this one is `lost`, told `twice`, or `off`."""
    write, done = PartSink.write, []

    def spoilt(self, updates, *more):
        of_them = (updates.number >= numbers.start) & (updates.number < numbers.stop) & (updates.as_of > behind)
        if of_them.any() and not done:
            at, rows = int(np.argmax(of_them)), np.arange(len(updates))
            done.append(at)
            if how == "off":
                seq = updates.seq.copy()
                seq[at] -= 1
                updates = updates._replace(seq=seq)
            else:
                updates = take_rows(updates, np.delete(rows, at) if how == "lost" else np.append(rows, at))
        write(self, updates, *more)

    monkeypatch.setattr(PartSink, "write", spoilt)
