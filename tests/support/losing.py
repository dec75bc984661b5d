"""A run in one process whose files lack an update, or have one that says another thing."""

import numpy as np

from bolts.sinks import PartSink
from matching.model import UpdateBatch, take_rows


def spoil_one(monkeypatch, numbers: range, behind: int, how: str = "lost") -> None:
    """Of these subscriptions, the first update as of a message behind this one is `lost`, told `twice`, or its score is
    `off` by its last bit."""
    write, done = PartSink.write, []

    def spoilt(self, updates, *more):
        of_them = (updates.number >= numbers.start) & (updates.number < numbers.stop) & (updates.as_of > behind)
        if of_them.any() and not done:
            at, rows = int(np.argmax(of_them)), np.arange(len(updates))
            done.append(at)
            if how == "off":
                score = np.where(rows == at, np.nextafter(updates.score, np.inf), updates.score)
                updates = UpdateBatch(updates.as_of, updates.number, updates.seq, updates.change, score)
            else:
                updates = take_rows(updates, np.delete(rows, at) if how == "lost" else np.append(rows, at))
        write(self, updates, *more)

    monkeypatch.setattr(PartSink, "write", spoilt)
