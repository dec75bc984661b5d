"""Processor time of an update from delivery's columns to the bytes of the first client that follows everything.

    python -m benchmarks.events [--messages FILE] [--updates 1,10] [--rounds N]

A boundary's updates are put in order (`gateway.serve.releasing`), get the texts of their messages, and become one chunk
of Server-Sent Events or lines of JSON; `plain` makes the events of each update alone, as `tests.support.plain_events`
does, whose bytes all others are compared with first.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from time import process_time
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from benchmarks import command
from benchmarks.command import Tell, verdict
from benchmarks.stopwatch import in_turns
from gateway.live.update_listener import MessageText
from gateway.serve.event_forms import EVENTS, LINES, Form
from gateway.serve.released import UpdateColumns, UpdateRows, in_order
from tests.support.plain_events import plain_events, plain_lines, plain_rows

#: Subscriptions that the updates are of, and the seq of the first message.
_SUBSCRIPTIONS, _FIRST = 20_000, 5_000_000
_TAG = "1a2b3c4d"


def measure(
    messages: Annotated[str | None, "file of JSON lines with id, text, lon and lat; else texts are made"] = None,
    boundary: Annotated[int, "messages of a boundary"] = 1_000,
    updates: Annotated[tuple[int, ...], "updates a message"] = (1, 10),
    rounds: Annotated[int, "turns of each way"] = 15,
    *,
    tell: Tell,
) -> dict[str, Any]:
    """Microseconds an update of each way."""
    texts = _texts(messages, boundary)
    measured, judged = [], []
    for per in updates:
        columns = _columns(boundary, per)
        released = in_order([columns])
        rows = plain_rows(released, lambda seqs: texts, lambda boundary: _TAG)
        exact = _chunk(EVENTS, columns, texts) == b"".join(plain_events(rows))
        exact &= _chunk(LINES, columns, texts) == b"".join(plain_lines(rows))
        judged.append(verdict(exact, len(rows), len({row["subscription_id"] for row in rows})))
        tell(f"{per} updates a message: the bytes are {'the same' if exact else 'others'}")
        ways: dict[str, Callable[[], object]] = {
            "events": partial(_chunk, EVENTS, columns, texts),
            "lines": partial(_chunk, LINES, columns, texts),
            "plain": partial(_plain, columns, texts),
        }
        turns = in_turns(ways, rounds, lambda name, turn, ways=ways: _timed(ways[name]))
        middle = {name: round(median(mine) / len(rows) * 1e6, 3) for name, mine in turns.items()}
        measured.append({"updates_a_message": per, "us_an_update": middle, **judged[-1]})
    return {"boundary": boundary, "measured": measured, "exact": all(one["exact"] for one in judged)}


def _texts(path: str | None, count: int) -> dict[int, MessageText]:
    if path is None:
        made = [
            (f"m{number}", f'ramen \\ "tonight" 🍜 in Łódź, {number} ' * 3, 19.45, 51.77) for number in range(count)
        ]
    else:
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line, _ in zip(file, range(count), strict=False)]
        made = [(str(row["id"]), row["text"], row["lon"], row["lat"]) for row in rows]
    return {_FIRST + place: MessageText(*one) for place, one in enumerate(made)}


def _columns(boundary: int, per: int) -> UpdateColumns:
    """Updates of a boundary as delivery has them, in the order of their messages."""
    rng, size = np.random.default_rng(3), boundary * per
    names = pa.array([f"subscription-{number}" for number in range(_SUBSCRIPTIONS)], pa.string())
    used, who = np.unique(rng.integers(0, _SUBSCRIPTIONS, size), return_inverse=True)
    seq = np.repeat(np.arange(_FIRST, _FIRST + boundary), per)
    last = np.full(size, _FIRST + boundary - 1)
    score = np.where(rng.random(size) < 0.5, np.nan, rng.random(size))
    order = rng.integers(0, 3, size).astype(np.int8)
    return UpdateColumns(names.take(pa.array(used)), who.astype(np.int32), order, seq, last, score, last)


def _chunk(form: Form, columns: UpdateColumns, texts: dict[int, MessageText]) -> bytes:
    released = in_order([columns])
    rows = UpdateRows(released, None, lambda seqs: {seq: texts[seq] for seq in seqs}, None, lambda boundary: _TAG)
    return form.updates(rows).data


def _plain(columns: UpdateColumns, texts: dict[int, MessageText]) -> bytes:
    return b"".join(plain_events(plain_rows(in_order([columns]), lambda seqs: texts, lambda boundary: _TAG)))


def _timed(way: Callable[[], object]) -> float:
    begun_s = process_time()
    way()
    return process_time() - begun_s


if __name__ == "__main__":
    sys.exit(command.main(measure))
