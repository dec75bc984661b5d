"""Tunes Python's cyclic garbage collector for a stream with hundreds of thousands of subscriptions.

A full collection visits every object of the process and stops all threads meanwhile: 0.6 s with 100,000 subscriptions,
again and again while messages arrive. So objects that survive one full collection are frozen, and later collections
skip them. What is loaded at the start is frozen without a visit: collections took half of the time in which a log is
replayed, and another one behind it a tenth of a second for 100,000 subscriptions. Cycles among frozen objects, such as
those of clients that disconnect, are freed by an unfrozen collection after `_ENDED` streams have ended.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
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

    @contextmanager
    def loading(self) -> Iterator[None]:
        """A block in which objects are made that stay: nothing is collected during it, and all is frozen behind it."""
        gc.disable()
        try:
            yield
        finally:
            gc.freeze()
            gc.enable()

    def settle(self) -> None:
        """Freeze what came since; call it once all is loaded. O(objects that are not frozen)."""
        gc.collect()

    def look(self, ended: int) -> None:
        """Run an unfrozen collection if `_ENDED` more streams have ended; `ended`: streams ended since the start.

        O(objects of the process).
        """
        if ended >= self._ended + _ENDED:
            self._ended = ended
            self.whole += 1
            gc.unfreeze()
            gc.collect()

    @staticmethod
    def _freeze(phase: str, info: dict[str, Any]) -> None:
        """Callback of `gc`: freeze the survivors of a full collection."""
        if phase == "stop" and info["generation"] == _OLDEST:
            gc.freeze()
