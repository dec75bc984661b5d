"""Questions take turns: by caller and sort, a slice each; a bounded number is open, and the stream goes first."""

import asyncio
import threading
import time
from contextlib import closing

import pytest

from gateway.serve import questions as module
from gateway.serve.problems import ApiError
from gateway.serve.questions import Questions


def run(story):
    asyncio.run(asyncio.wait_for(story(), 30))


def steps(order, name, count):
    """A question that notes each of its steps."""

    def question(share):
        for _ in range(count):
            order.append(name)
            share()
        return name, count

    return question


def test_questions_of_callers_and_sorts_take_turns_and_those_of_a_lane_come_one_after_the_other(monkeypatch):
    monkeypatch.setattr(module, "SLICE_S", 0.0)  # a turn is a step
    order: list[str] = []

    async def story():
        questions = Questions(at_once=1)
        asked = [("a", "preview", "a1"), ("a", "preview", "a2"), ("a", "results", "a3"), ("b", "preview", "b1")]
        first = asyncio.create_task(questions.answer("first", "x", steps(order, "first", 3)))
        await asyncio.sleep(0)  # it has the place
        answers = await asyncio.gather(*(questions.answer(*one[:2], steps(order, one[2], 20)) for one in asked), first)
        assert answers == [*((one[2], 20) for one in asked), ("first", 3)] and questions.room.used == (0,)

    run(story)
    assert order[:2] == ["first", "a1"] or order[:3] == ["first", "first", "a1"]
    last = {name: len(order) - 1 - order[::-1].index(name) for name in set(order)}
    assert order.index("a2") > last["a1"], "of a lane one after the other"
    assert max(last["a3"], last["b1"]) < last["a1"] + 5 and last["first"] < 15, "lanes take turns"
    assert sorted(order) == sorted(["first"] * 3 + ["a1", "a2", "a3", "b1"] * 20)


def test_questions_too_many_of_a_caller_are_refused_and_another_is_answered():
    held = threading.Event()

    async def story():
        questions = Questions(most_open=8)
        waiting = [asyncio.create_task(questions.answer("greedy", "preview", lambda share: held.wait(20)))
                   for _ in range(4)]  # fmt: skip
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as refused:
            await questions.answer("greedy", "results", lambda share: None)
        assert (refused.value.status, refused.value.body["reason"]) == (429, "too_many_questions")
        assert refused.value.headers["Retry-After"] == "1"
        with closing(questions.open("polite", "results")):
            held.set()
        assert await asyncio.gather(*waiting) == [True] * 4
        assert await questions.answer("greedy", "results", lambda share: "again") == "again"

    run(story)


def test_question_pauses_while_the_stream_has_work_and_only_then(monkeypatch):
    monkeypatch.setattr(module, "SLICE_S", 0.02)

    def question(share):
        until, beats = time.monotonic() + 0.4, 0
        while time.monotonic() < until:
            beats += 1
            share()
        return beats

    async def story():
        pauses: list[float] = []
        whole = asyncio.sleep

        async def noted(seconds):
            pauses.append(seconds)
            await whole(seconds)

        busy = [True]
        questions = Questions(lambda: busy[0])
        monkeypatch.setattr(module.asyncio, "sleep", noted)
        await questions.answer("a", "preview", question)
        assert 3 <= len(pauses) <= 10 and set(pauses) == {0.02}, "as long as it has worked"
        busy[0] = False
        pauses.clear()
        await questions.answer("a", "preview", question)
        assert not pauses

    run(story)


def test_question_whose_client_has_gone_ends_and_leaves_its_place(monkeypatch):
    monkeypatch.setattr(module, "SLICE_S", 0.0)
    begun, ended, works, held = (threading.Event() for _ in range(4))

    def endless(share):
        begun.set()
        try:
            while True:
                share()
        finally:
            ended.set()

    def long(share):
        works.set()
        return held.wait(20)

    async def story():
        questions = Questions(at_once=1)
        gone = asyncio.create_task(questions.answer("a", "preview", endless))
        assert await asyncio.to_thread(begun.wait, 20)
        behind = asyncio.create_task(questions.answer("a", "preview", lambda share: None))
        other = asyncio.create_task(questions.answer("b", "results", long))
        assert await asyncio.to_thread(works.wait, 20)  # and the first waits for its next turn
        for one in (gone, behind):
            one.cancel()
        await asyncio.gather(gone, behind, return_exceptions=True)
        held.set()
        assert await other
        assert await asyncio.to_thread(ended.wait, 20)
        assert await questions.answer("b", "results", lambda share: 7) == 7
        assert questions._free == 1 and questions.room.used == (0,) and not questions._waiting

    run(story)


def test_question_that_fails_leaves_its_place():
    async def story():
        questions = Questions(at_once=1)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await questions.answer("a", "match", lambda share: 1 // 0)
        assert questions._free == 1 and questions.room.used == (0,)

    run(story)
