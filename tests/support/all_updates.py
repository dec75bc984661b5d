"""Generated updates for sinks of all updates, and a process that delivers them, which a test can kill.

python -m tests.support.all_updates kafka ADDRESS TOPIC COUNT
"""

import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gateway.live.update_listener import MessageText
from gateway.serve.released import ReleasedUpdate
from gateway.serve.update_parts import BEGINNING, Position
from gateway.sinks.kafka import KafkaSink
from gateway.sinks.stream import StreamSink, UpdateChunk
from tests.support.releasing import RawUpdate, release

STREAM = "stream-1"
_ROOT = Path(__file__).parents[2]
#: Of every so many boundaries one is larger than a chunk.
_CYCLE, _SMALL, _LARGE, _CHUNK = 25, 50, 1_200, 500
_SUBSCRIPTIONS = 97


def boundary(number: int) -> list[ReleasedUpdate]:
    """The updates of a boundary, by its number from 0."""
    end = number * 10 + 9
    size = _LARGE if number % _CYCLE == 7 else _SMALL
    updates = [
        RawUpdate(f"s{(number * 31 + place) % _SUBSCRIPTIONS}", 2 - place % 2 * 2, end - place % 10, end, place / 7)
        for place in range(size)
    ]
    return release(end, updates, _texts)


def _texts(seqs: Sequence[int]) -> dict[int, MessageText]:
    return {seq: MessageText(f"m{seq}", f"ramen in Łódź {seq}", seq % 180, seq % 90) for seq in seqs}


def chunks_after(position: Position, count: int, most: int = _CHUNK) -> Iterator[UpdateChunk]:
    """The updates behind a position, of the first `count`, in chunks of `most`."""
    part: list[ReleasedUpdate] = []
    for update, ends in _updates(position, count):
        part.append(update)
        if len(part) == most:
            yield _chunk(part, ends)
            part = []
    if part:
        yield _chunk(part, True)


def _chunk(part: list[ReleasedUpdate], ends: bool) -> UpdateChunk:
    behind = Position.of(part[-1].position)
    return UpdateChunk(part, behind, ends, behind.boundary)


def _updates(position: Position, count: int) -> Iterator[tuple[ReleasedUpdate, bool]]:
    """The updates behind a position, of the first `count`, and whether each is the last of its boundary."""
    before, number = 0, 0
    while before < count:
        end, size = number * 10 + 9, min(_LARGE if number % _CYCLE == 7 else _SMALL, count - before)
        if end >= position.boundary:
            first = position.index + 1 if end == position.boundary else 0
            for place, update in enumerate(boundary(number)[first:size], start=first + 1):
                yield update, place == size
        before += size
        number += 1


def deliver(sink: StreamSink, count: int) -> None:
    """Deliver what the receiver lacks of the first `count` updates."""
    for chunk in chunks_after(sink.open(STREAM) or BEGINNING, count):
        sink.deliver(chunk)
    sink.close()


def started(address: str, topic: str, count: int, **more: Any) -> "subprocess.Popen[Any]":
    """A process that delivers to a topic of Kafka what it lacks of the first `count` updates."""
    command = [sys.executable, "-m", "tests.support.all_updates", "kafka", address, topic, str(count)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(_ROOT)}, **more)


def compared(had: Sequence[tuple[str, str]], count: int) -> dict[str, int]:
    """How the updates that a receiver had differ from the first `count`.

    Parameters
    ----------
    had : sequence of (str, str)
        Subscription id and position of each, in the order of the receiver.
    count : int
    """
    wanted = [(one.subscription_id, one.position) for chunk in chunks_after(BEGINNING, count) for one in chunk.updates]
    assert len(wanted) == count
    counts = Counter(had)
    orders: dict[bool, dict[str, list[str]]] = {side: defaultdict(list) for side in (False, True)}
    for side, rows in ((False, wanted), (True, had)):
        for subscription_id, position in rows:
            orders[side][subscription_id].append(position)
    return {
        "missing": sum(one not in counts for one in wanted),
        "extra": len(counts.keys() - set(wanted)),
        "repeated": sum(times - 1 for times in counts.values()),
        "disordered": sum(orders[True][name] != orders[False][name] for name in orders[False]),
    }


if __name__ == "__main__":
    _, _kind, _address, _topic, _count = sys.argv
    deliver(KafkaSink(_address, _topic), int(_count))
