"""One call for all that has come since the last one began: how changes share a transaction.

Used by `gateway.sinks.webhooks.store`, for changes of its file, and by `gateway.sinks.webhooks.dispatch`, for outcomes
of attempts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Together(Generic[Item, Answer]):
    """Calls a coroutine function with all items that wait, and answers each; in one event loop.

    Parameters
    ----------
    do : callable
        Takes items in the order in which they came and returns an answer for each. What it raises is raised to all of
        these, and to no others.
    """

    def __init__(self, do: Callable[[list[Item]], Awaitable[Sequence[Answer]]]):
        self._do = do
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._running: asyncio.Task[None] | None = None

    async def put(self, item: Item) -> Answer:
        """The answer for an item, once a call that had it has ended. Raises what that raised."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while self._waiting:
            items, self._waiting = self._waiting, []
            try:
                answers = await self._do([item for item, _ in items])
            except Exception as error:
                for _, future in items:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), answer in zip(items, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
