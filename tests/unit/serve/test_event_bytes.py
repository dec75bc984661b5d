"""Events that are made many at once have the bytes of those made one by one, and so have the chunks of clients."""

import asyncio
import math
import random

import numpy as np
import pytest

from gateway.live.update_listener import MessageText
from gateway.serve import hub as hubs
from gateway.serve.event_forms import EVENTS, LINES
from gateway.serve.hub import Hub, Interest
from gateway.serve.regions import contains
from gateway.serve.registry import Ended, Registry
from gateway.serve.released import RANKS, UpdateColumns, UpdateRows, in_order
from gateway.serve.update_log import UpdateLog
from tests.support.plain_events import plain_events, plain_lines, plain_rows
from tests.support.releasing import RawUpdate, released_of

PIECES = [
    "a",
    "é",
    "你好",
    "🙂👍🏽",
    '"',
    "\\",
    "\n",
    "\r\n",
    "\t",
    "\x00",
    "\x1f",
    "\x7f",
    "\u2028",
    "</script>",
    " " * 30,
    "",
]


def text_of(rng):
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(12)))


def messages_of(rng, count):
    """Messages of 0 to 40 pieces of text; places that are whole, tiny, negative zero."""
    numbers = [0, -0.0, 1e-7, 5e-324, -179.99999999999997, 12.5, 180.0, 1 / 3]
    return {
        seq: MessageText(f"m{seq}{text_of(rng)}", text_of(rng) + text_of(rng), rng.choice(numbers), rng.choice(numbers))
        for seq in range(count)
    }


def random_release(rng, size):
    """Two or three boundaries in one: messages that have entered and left, some several times; null and odd scores."""
    names = [f"s{number}{text_of(rng)}" for number in range(7)]
    scores = [None, 0.0, -0.0, 0.1 + 0.2, 1e300, 5e-324, math.inf, 123456.75]
    some = []
    for boundary in (99, 199, 299)[: rng.randrange(1, 4)]:
        rows = {}
        for _ in range(size):
            row = (rng.choice(names), RANKS[rng.choice(["enter", "leave", "match"])], rng.randrange(100))
            rows[row] = RawUpdate(*row, boundary - rng.randrange(2), rng.choice(scores))
        one = released_of(boundary, rows.values())
        some.append(UpdateColumns(*one[:-1]))
    return in_order(some)


class _LookUp(dict):
    """The messages, whichever are sought."""

    def __call__(self, seqs):
        return {seq: self[seq] for seq in seqs}


def tag_of(boundary):
    return "" if boundary == 199 else f"{boundary:08x}"


@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("size", [1, 2, 9, 10, 11, 300])
def test_events_made_at_once_are_those_made_one_after_another(size, tagged):
    rng, seen = random.Random(size), set()
    for _ in range(5):
        messages, released = messages_of(rng, 100), random_release(rng, size)
        look_up = _LookUp(messages)
        tags = tag_of if tagged else lambda boundary: ""
        rows = plain_rows(released, look_up, tags)
        for most_bytes in (None, 2_000):
            events, lines, updates, at = [], [], [], 0
            while at < len(rows):
                some = UpdateRows(released, np.arange(at, len(rows)), look_up, most_bytes, tags)
                events.append(EVENTS.updates(some).data)
                lines += LINES.updates(some).each()
                assert len(some) > 0 and (most_bytes or len(some) == len(rows))
                untagged = UpdateRows(released, some.rows, look_up, None)
                updates += untagged.updates()
                at += len(some)
            assert b"".join(events) == b"".join(plain_events(rows))
            assert lines == plain_lines(rows)
            plain = plain_rows(released, look_up, lambda boundary: "")
            assert [one.data for one in updates] == [line[:-1] for line in plain_lines(plain)]
            fields = [{name: getattr(one, name) for name in row} for one, row in zip(updates, plain, strict=True)]
            assert fields == plain
        turned = UpdateRows(released, np.arange(len(rows))[::-1], look_up, None, tags)
        assert EVENTS.updates(turned).each() == plain_events(rows)[::-1]
        assert EVENTS.updates(turned.turned()).each() == plain_events(rows)
        some = np.array(sorted(rng.sample(range(len(rows)), rng.randrange(1, len(rows) + 1))))
        assert LINES.updates(turned).at(some) == b"".join(plain_lines([rows[place] for place in some]))
        seen.update(row["score"] for row in rows)
        seen.update(row["change"] for row in rows)
    assert size < 9 or {None, math.inf, "enter", "leave"} <= seen


def test_chunks_of_clients_are_the_events_that_each_wants_and_one_a_boundary(monkeypatch):
    """By subscription, owner, kind and region, alone and together, against a filter of rows one by one."""
    rng = random.Random(5)
    messages, registry = messages_of(rng, 100), Registry()

    class NoParts:
        ends, included = range(10_000), None

        def look_up(self, seqs):
            return messages

        def last_boundary(self):
            return -1

    def wants(interest, row):
        name = row["subscription_id"]
        return (
            (interest.subscriptions is None or name in interest.subscriptions)
            and (interest.kinds is None or registry.last[name].kind in interest.kinds)
            and (interest.owner is None or registry.last[name].owner == interest.owner)
            and (interest.region is None or contains(interest.region, row["lon"], row["lat"]))
        )

    async def story():
        hub = Hub(UpdateLog(NoParts()), registry, lambda: 0, tag_of)
        hub.start(asyncio.get_running_loop())
        released = random_release(rng, 200)
        names = released.names.to_pylist()
        for place, name in enumerate(names):
            registry.last[name] = Ended(("knn", "topk")[place % 2], ("x", "y")[place // 2 % 2])
        interests = [
            Interest(subscriptions, kinds, owner, region)
            for subscriptions in (None, frozenset(names[:1]), frozenset(names[2:5]))
            for kinds in (None, frozenset(["knn"]))
            for owner in (None, "x")
            for region in (None, (-1.0, -1.0, 1.0, 1.0))
        ]
        queues = []
        for form in (EVENTS, LINES):
            for interest in interests * 2:
                stream = hub.follow(form, interest, None)
                assert await anext(stream) == form.hint()
                await anext(stream)
                queues.append((form, interest, stream))
        chunks = {}

        def put(queue, chunk, updates):
            chunks.setdefault(queue, []).append((chunk, updates))

        monkeypatch.setattr(hubs._Queue, "put", put)
        hub.deliver([released], 299)
        await asyncio.sleep(0)
        rows, wanted = plain_rows(released, lambda seqs: messages, tag_of), 0
        assert len(hub._queues) == len(queues) == 2 * 2 * len(interests)
        for queue in hub._queues:
            mine = [row for row in rows if wants(queue.interest, row)]
            plain = plain_events(mine) if queue.form is EVENTS else plain_lines(mine)
            got = chunks.get(queue, [])
            assert [one for one, count in got if count] == ([b"".join(plain)] if mine else [])
            assert sum(count for _, count in got) == len(mine)
            wanted += len(mine) > 0
        assert wanted > 40
        for *_, stream in queues:
            await stream.aclose()

    asyncio.run(story())


@pytest.mark.parametrize("score", [None, 0.5])
def test_update_that_comes_alone_is_in_order_as_among_others(score):
    update = RawUpdate("s2", 1, 7, 9, score)
    alone = released_of(9, [update])
    among = released_of(9, [RawUpdate("s3", 1, 8, 9, 0.25), update])
    assert alone.names.to_pylist() == ["s2"] and among.names.to_pylist() == ["s2", "s3"]
    assert alone.names.type == among.names.type
    for mine, theirs in zip(alone[1:], among[1:], strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs[:1])
