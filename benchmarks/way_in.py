"""What a message costs from its line to its batch, and from the log to its batch, many at a time beside one by one.

    python -m benchmarks.way_in MESSAGES [--attribute price:number] [--limit 40000] [--rounds 3]

MESSAGES are lines of JSON, plain or gzip. Timed is processor time of one thread: lines are checked, their words cut and
weighed, the batch laid out for the topology, logged and forced to disk (`door`); the log is read back to the same
batches (`replay`). The first half of the messages makes words known and is not timed. Both ways take turns over the
same lines. Before, the messages of both are compared value by value, and the batches of the log with those that were
handed over, to the bit.
"""

import gzip
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import process_time
from typing import Annotated, Any

import numpy as np

from benchmarks import command
from benchmarks.stopwatch import in_turns
from gateway.live import pipe as pipes
from gateway.live.admission import Admission
from gateway.live.in_flight import InFlight
from gateway.live.open_batch import InputLine
from gateway.live.opening import open_stream
from gateway.live.pipe import Pipe
from spouts.cutting import Rows
from spouts.handover import handover_of
from spouts.live import LogSource
from spouts.logged_words import LoggedWords

_WAYS = ("one by one", "together")
#: Lines from which a pipe reads them together, by way.
_MANY = {"one by one": 2**62, "together": 1}


class _Turn:
    """A stream of these lines; processor time of its timed half in seconds."""

    def __init__(self, folder: Path, lines: Sequence[bytes], group: int, attributes: Sequence[str], way: str):
        self.door_s = self.replay_s = 0.0
        self.handed: list[Rows] = []
        self.micros: dict[str, float] = {}
        with ExitStack() as stack:
            given = {"executor": "local"}, {}, None, attributes, "", lambda line: None
            _, admission, mapping, wal, _ = open_stream(stack, folder, *given)
            pipe = Pipe(admission, wal, lambda row: None, InFlight(10**9), 10**9, mapping=mapping)
            handover = handover_of(wal.log)
            assert handover is not None, "the topology would run in this process"
            earlier, pipes.MANY = pipes.MANY, _MANY[way]
            offset = 0
            try:
                for first in range(0, len(lines), group):
                    some = [InputLine(first + at, data, 0.0) for at, data in enumerate(lines[first : first + group], 1)]
                    begun = process_time()
                    pipe.take_all(some)
                    pipe.close_batch()
                    self.door_s += process_time() - begun if first >= len(lines) // 2 else 0.0
                    taken = handover.batches.take(offset)
                    if taken is not None:
                        self.handed.append(taken.rows)
                        offset = taken.end
            finally:
                pipes.MANY = earlier
            self.unsure = pipe.batching.reader.unsure / len(lines)
            self.messages, self.log_bytes = wal.next_seq, wal.size_bytes
            self.refused = dict(pipe.refused)
            start = folder / "journal" / "start"
            words = LoggedWords(wal.log, start, admission.vocabulary.most_terms)
            self.read = self._replayed(wal.log, words, admission)

    def _replayed(self, log: Path, words: LoggedWords, admission: Admission) -> list[Rows]:
        source = LogSource(str(log), words, admission.window, admission.space)
        source._handover = None
        found: list[Rows] = []
        while True:
            begun = process_time()
            rows = source.read()
            took_s = process_time() - begun
            if rows is None:
                source.close()
                return found
            self.replay_s += took_s if len(found) >= len(self.handed) // 2 else 0.0
            found.append(rows)


def _same(one: Sequence[Rows], other: Sequence[Rows]) -> bool:
    """Whether batches are the same to the bit."""
    if len(one) != len(other):
        return False
    for first, second in zip(one, other, strict=True):
        columns = [(*rows.messages, *rows.names, rows.ahead, rows.event_time_us) for rows in (first, second)]
        if not all(np.array_equal(a, b) if a is not None else b is None for a, b in zip(*columns, strict=True)):
            return False
    return True


def lines_of(path: Path, limit: int) -> list[bytes]:
    """The first lines of a file, plain or gzip, without their ends."""
    opened = gzip.open(path) if path.suffix == ".gz" else open(path, "rb")  # noqa: SIM115 - closed below
    with opened as lines:
        return [line.rstrip(b"\r\n") for _, line in zip(range(limit), lines, strict=False)]


def bench(
    messages: Annotated[Path, "lines of JSON with a text and a place"],
    attribute: Annotated[str, "attributes of messages, separated by commas"] = "",
    limit: Annotated[int, "messages at most"] = 40_000,
    group: Annotated[int, "lines of a batch"] = 1_000,
    rounds: Annotated[int, "turns of each way"] = 3,
    tell: command.Tell = print,
) -> dict[str, Any]:
    """Microseconds a message of both ways, and their ratio."""
    lines = lines_of(messages, limit)
    lines = lines[: len(lines) // (2 * group) * 2 * group]
    attributes = attribute.split(",") if attribute else []

    def turn(way: str, number: int = -1) -> _Turn:
        folder = Path(tempfile.mkdtemp(prefix="way-in-"))
        try:
            found = _Turn(folder / "stream", lines, group, attributes, way)
        finally:
            shutil.rmtree(folder)
        timed = found.messages / 2
        found.micros = {"door": found.door_s / timed * 1e6, "replay": found.replay_s / timed * 1e6}
        tell(f"{way}, turn {number + 1}: {', '.join(f'{name} {us:.2f} us' for name, us in found.micros.items())}")
        return found

    first, second = (turn(way) for way in _WAYS)
    same = first.refused == second.refused and _same(first.handed, second.handed)
    same = same and all(_same(one.handed, one.read) for one in (first, second))
    tell(f"{second.messages:,} messages of {len(lines):,} lines are {'the same' if same else 'NOT the same'} both ways")
    turns = in_turns(_WAYS, rounds, turn)
    parts = "door", "replay"
    micros = {way: {name: median(one.micros[name] for one in turns[way]) for name in parts} for way in _WAYS}
    return {
        "lines": len(lines),
        "bytes_a_line": sum(map(len, lines)) / len(lines),
        "refused": second.refused,
        "judged_singly": second.unsure,
        "log_bytes_a_message": second.log_bytes / second.messages,
        "micros_a_message": micros,
        "ratio": micros["together"]["door"] / micros["one by one"]["door"],
        **command.verdict(same, second.messages, len(lines)),
    }


if __name__ == "__main__":
    sys.exit(command.main(bench))
