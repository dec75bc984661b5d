"""Both clients by one interface, so that each test is of either: the one that is awaited runs in a loop of its own."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

from skyray import AsyncClient, Client


class Awaited:
    """What a client or a stream gives, without `await`; for one thread."""

    def __init__(self, inner: Any, runner: asyncio.Runner | None = None):
        self._inner = inner
        self._owned = runner is None
        self._runner = asyncio.Runner() if runner is None else runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return (lambda *words, **named: self._plain(found(*words, **named))) if callable(found) else found

    def __enter__(self) -> "Awaited":
        self._runner.run(self._entered())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _entered(self) -> None:
        await self._inner.__aenter__()

    def close(self) -> None:
        self._runner.run(self._inner.close())
        if self._owned:
            self._runner.close()

    def __iter__(self) -> "Awaited":
        return self

    def __next__(self) -> Any:
        found = self._runner.run(_next(self._inner))
        if found is _END:
            raise StopIteration
        return found

    def _plain(self, found: Any) -> Any:
        if inspect.iscoroutine(found):
            return self._runner.run(found)
        return Awaited(found, self._runner) if isinstance(found, AsyncIterator) else found


_END = object()


async def _next(items: Any) -> Any:
    return await anext(items, _END)


def awaited_client(*words: Any, **named: Any) -> Any:
    """As `skyray.AsyncClient`, without `await`."""
    return Awaited(AsyncClient(*words, **named))


#: The clients under test.
CLIENTS = {"blocking": Client, "awaiting": awaited_client}
