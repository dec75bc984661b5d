"""Calls into an event loop from other threads."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class LoopCalls:
    """Calls functions in an event loop, in the order in which threads ask for it.

    Calls that come before the loop has woken share its wake-up, which costs both threads a system call, and with it the
    interpreter's lock.

    Attributes
    ----------
    loop : event loop or None
        None before `start`.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._woken = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the loop, soon; not if the loop has ended."""
        assert self.loop is not None, "the server starts first"
        self._waiting.append((function, arguments))
        if not self._woken:  # `_run` resets it before it looks: what was appended by then is called
            self._woken = True
            try:
                self.loop.call_soon_threadsafe(self._run)
            except RuntimeError:
                return  # the loop has ended

    def _run(self) -> None:
        self._woken = False
        try:
            while self._waiting:
                function, arguments = self._waiting.popleft()
                function(*arguments)
        finally:
            if self._waiting and self.loop is not None:  # one has failed, which is no reason to leave out the others
                self.loop.call_soon(self._run)
