"""Calls into an event loop: in order, one wake-up for those that come together, and all of them though one fails."""

import asyncio
import threading

from gateway.serve.loop_calls import LoopCalls


class _Counting(asyncio.SelectorEventLoop):
    wakes = 0

    def call_soon_threadsafe(self, *arguments, **options):
        self.wakes += 1
        return super().call_soon_threadsafe(*arguments, **options)


def test_calls_that_come_together_wake_the_loop_once_and_keep_their_order():
    loop, calls, found, done = _Counting(), LoopCalls(), [], threading.Event()
    calls.start(loop)
    for number in range(5):
        calls.call(found.append, number)
    assert loop.wakes == 1
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert found == [0, 1, 2, 3, 4]
    calls.call(done.set)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert loop.wakes == 2 and done.is_set(), "a later one wakes it again"
    loop.close()
    calls.call(found.append, 5)
    calls.call(found.append, 6)
    assert found == [0, 1, 2, 3, 4], "not after the end"


def test_calls_behind_one_that_fails_are_made():
    loop, calls, found, failed = _Counting(), LoopCalls(), [], []
    calls.start(loop)
    loop.set_exception_handler(lambda _, context: failed.append(type(context["exception"])))
    calls.call(found.append, 1)
    calls.call(int, "no number")
    calls.call(found.append, 2)
    calls.call(loop.stop)
    loop.run_forever()
    loop.close()
    assert found == [1, 2] and failed == [ValueError]


def test_calls_of_many_threads_are_all_made():
    loop, calls, found = _Counting(), LoopCalls(), []
    calls.start(loop)
    running = threading.Thread(target=loop.run_forever)
    running.start()
    threads = [
        threading.Thread(target=lambda own=own: [calls.call(found.append, (own, n)) for n in range(2_000)])
        for own in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calls.call(loop.stop)
    running.join(20)
    assert not running.is_alive()
    loop.close()
    for own in range(3):
        assert [n for one, n in found if one == own] == list(range(2_000))
