"""Group commit: one call for all items that were put while the previous call ran.

So many changes share one transaction.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Together(Generic[Item, Answer]):
    """Calls a coroutine function with all waiting items, and returns each its answer; within one event loop.

    Parameters
    ----------
    do : callable
        Takes items in the order of `put` and returns an answer for each. An exception that it raises goes to the
        callers of these items.
    """

    def __init__(self, do: Callable[[list[Item]], Awaitable[Sequence[Answer]]]):
        self._do = do
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._running: asyncio.Task[None] | None = None

    async def put(self, item: Item) -> Answer:
        """Wait for the call of `do` that has this item, and return the item's answer. Raises what `do` raises."""
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
