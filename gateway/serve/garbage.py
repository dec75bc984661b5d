"""Python's collector of cycles, beside subscriptions by the hundred thousand.

A full collection visits every object of the process and holds the interpreter meanwhile: 0.6 s with 100,000
subscriptions, again and again, as messages come. So what has outlived one is not visited by the next. Cycles that form
among such objects later, those of clients that go away, are freed by a whole collection once so many have gone.
Used by `gateway.commands.serve`.
"""

import gc
from typing import Any, Self

#: Streams that have ended since the last whole collection, upon which there is another one; each leaves some 20 KB.
_ENDED = 5_000
_OLDEST = 2


class Garbage:
    """Collections of the process while the block lasts; `look` is called again and again in between.

    Attributes
    ----------
    whole : int    whole collections so far
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
        """A whole collection: once what lasts has been loaded. O(objects of the process)."""
        self.whole += 1
        gc.unfreeze()
        gc.collect()

    def look(self, ended: int) -> None:
        """A whole collection if many more streams have ended; `ended` counts them since the start."""
        if ended >= self._ended + _ENDED:
            self._ended = ended
            self.collect()

    @staticmethod
    def _freeze(phase: str, info: dict[str, Any]) -> None:
        """What a full collection has left counts as lasting."""
        if phase == "stop" and info["generation"] == _OLDEST:
            gc.freeze()
