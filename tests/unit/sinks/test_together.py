"""Items that come while a call runs share the next one, and fail with it alone."""

import asyncio

import pytest

from gateway.sinks.webhooks.together import Together


def test_items_that_come_meanwhile_share_a_call_and_get_their_own_answers():
    calls = []

    async def double(items):
        calls.append(list(items))
        await asyncio.sleep(0)
        return [2 * item for item in items]

    async def run():
        together = Together(double)
        found = await asyncio.gather(*(together.put(item) for item in range(5)))
        return found, await together.put(9)

    assert asyncio.run(run()) == ([0, 2, 4, 6, 8], 18)
    assert calls == [[0, 1, 2, 3, 4], [9]]


def test_failure_is_that_of_the_items_of_its_call():
    async def refuse_one(items):
        await asyncio.sleep(0)
        if 1 in items:
            raise ValueError("one")
        return items

    async def run():
        together = Together(refuse_one)
        first = asyncio.ensure_future(together.put(0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the call with 0 has begun
        later = await asyncio.gather(together.put(1), together.put(2), return_exceptions=True)
        return await first, later, await together.put(3)

    first, later, last = asyncio.run(run())
    assert (first, last) == (0, 3)
    assert [str(each) for each in later] == ["one", "one"] and all(isinstance(each, ValueError) for each in later)


def test_item_whose_caller_has_gone_holds_up_nobody():
    async def slow(items):
        await asyncio.sleep(0.01)
        return items

    async def run():
        together = Together(slow)
        gone = asyncio.ensure_future(together.put(0))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        return await together.put(1)

    assert asyncio.run(run()) == 1
