"""Tunes Python's cyclic garbage collector for a server with hundreds of thousands of subscriptions.

A full collection visits every object of the process and stops all threads meanwhile: 0.6 s with 100,000 subscriptions,
again and again while messages arrive. So objects that survive one full collection are frozen, and later collections
skip them. Cycles among frozen objects, such as those of clients that disconnect, are freed by an unfrozen collection
after `_ENDED` streams have ended.
"""

import gc
from typing import Any, Self

#: Streams that end between two unfrozen collections; each leaves about 20 KB.
_ENDED = 5_000
_OLDEST = 2


class Garbage:
    """Context manager that freezes the survivors of full collections; the caller calls `look` in a loop.

    Attributes
    ----------
    whole : int    unfrozen collections so far
    """

    def __init__(self) -> None:
        self.whole = 0
        self._ended = 0

    def __enter__(self) -> Self:
        gc.callbacks.append(self._freeze)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._freeze)
        gc.unfreeze()

    def collect(self) -> None:
        """Run an unfrozen collection; call it once all subscriptions are loaded. O(objects of the process)."""
        self.whole += 1
        gc.unfreeze()
        gc.collect()

    def look(self, ended: int) -> None:
        """Run an unfrozen collection if `_ENDED` more streams have ended; `ended`: streams ended since the start."""
        if ended >= self._ended + _ENDED:
            self._ended = ended
            self.collect()

    @staticmethod
    def _freeze(phase: str, info: dict[str, Any]) -> None:
        """Callback of `gc`: freeze the survivors of a full collection."""
        if phase == "stop" and info["generation"] == _OLDEST:
            gc.freeze()
