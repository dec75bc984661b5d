"""Turns of questions: callers take turns of a slice of time, few questions are open, and the stream goes first.

A lane is a caller and a sort of question. Lanes take turns, and questions of a lane come one after the other, so that a
caller's long questions hold back neither other callers nor its own short ones.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Self, TypeVar

from gateway.serve.fair import FairQueue, Room
from gateway.serve.problems import later

#: Questions that are worked on at a time, and that may be open, of one caller half (`Room`).
AT_ONCE, MOST_OPEN = 2, 32
#: Seconds of a turn while others wait. As long a pause follows each while the stream has work.
SLICE_S = 0.05
#: Seconds that a thread waits for its next turn at most: only a server that ends lets one wait so long.
_MOST_WAIT_S = 60.0

_T = TypeVar("_T")


class Questions:
    """The questions of all callers; for one event loop.

    Parameters
    ----------
    is_busy : callable
        Whether the stream has work.
    at_once, most_open : int
        As `AT_ONCE` and `MOST_OPEN`.
    """

    def __init__(self, is_busy: Callable[[], bool] = lambda: False, at_once: int = AT_ONCE, most_open: int = MOST_OPEN):
        self.is_busy = is_busy
        self.threads = ThreadPoolExecutor(most_open, "question")
        self.room = Room(most_open)
        self._free = at_once
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    def open(self, caller: str, sort: str) -> "Turn":
        """The turn of a new question; close it in the end. Raises ApiError if too many are open."""
        if not self.room.has(caller, 1):
            detail = "more questions are open, of this caller or of all, than may be"
            raise later(429, "too_many_questions", detail, 1)
        self.room.take(caller, 1)
        return Turn(self, caller, sort, is_counted=True)

    def turn(self, caller: str, sort: str) -> "Turn":
        """The turn of work that counts as no question, since something else bounds it."""
        return Turn(self, caller, sort)

    async def answer(self, caller: str, sort: str, question: Callable[..., _T], *arguments: Any) -> _T:
        """The answer of a function, as `Turn.run` calls it."""
        with closing(self.open(caller, sort)) as turn:
            async with turn:
                return await turn.run(question, *arguments)

    async def enter(self, lane: str, first: bool) -> None:
        """Wait for a place; with `first` before the others of the lane."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.put(lane, future, first)
        self._grant()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                self.leave()  # it had got the place just before
            raise

    def leave(self) -> None:
        """Give a place back."""
        self._free += 1
        self._grant()

    async def again(self, lane: str) -> None:
        """Give a place back if it is another lane's turn, and wait for one."""
        self._free += 1
        await self.enter(lane, first=True)

    def _grant(self) -> None:
        while self._free and self._waiting:
            future = self._waiting.take()
            if not future.done():
                self._free -= 1
                future.set_result(None)


class Turn:
    """One question's place among the others; it has one within `async with`."""

    def __init__(self, questions: Questions, caller: str, sort: str, is_counted: bool = False):
        self._questions = questions
        self._caller = caller
        self._lane = f"{sort} {caller}"
        self._is_counted = is_counted
        self._has_place = self._is_inside = False
        self._until_s = 0.0

    async def __aenter__(self) -> Self:
        await self._questions.enter(self._lane, first=False)
        self._is_inside = True
        self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_inside = False
        if self._has_place:
            self._has_place = False
            self._questions.leave()

    def close(self) -> None:
        """The question is answered."""
        if self._is_counted:
            self._is_counted = False
            self._questions.room.give_back(self._caller, 1)

    async def run(self, question: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function in a thread; its last argument is a function that lets others have their turn (`pass_on`)."""
        loop = asyncio.get_running_loop()

        def share() -> None:
            if time.monotonic() >= self._until_s:
                asyncio.run_coroutine_threadsafe(self.pass_on(), loop).result(_MOST_WAIT_S)

        return await loop.run_in_executor(self._questions.threads, question, *arguments, share)

    async def pass_on(self) -> None:
        """Once the slice is over: pause while the stream has work, let others have their turn, and begin a new one."""
        if time.monotonic() < self._until_s:
            return
        if self._questions.is_busy():
            await asyncio.sleep(SLICE_S)
        if self._has_place:
            self._has_place = False
            await self._questions.again(self._lane)
            self._begin()
        if not self._is_inside:  # the client has gone: this ends the thread
            await self.__aexit__()
            raise asyncio.CancelledError

    def _begin(self) -> None:
        self._has_place, self._until_s = True, time.monotonic() + SLICE_S
