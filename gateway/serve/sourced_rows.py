"""Messages of a source, as rows for the writer of `skyray serve`: the same gate as `POST /v1/messages`."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from gateway.live.batching import Line
from gateway.serve.writer import MOST_WAITING_BYTES, Message, Outcome, Writer
from gateway.sources.feed import HandOver

#: Reads of the source that wait for the log at most: the other callers need room, too.
MOST_OPEN = 2
#: Bytes of a read that count at most: it is in memory already, and one that never found room would end the reading.
MOST_COUNTED_BYTES = MOST_WAITING_BYTES // 4
#: Seconds before rows are handed over again that found no room.
_AGAIN_S = 0.05
#: Refusals that are quoted, of each reason: the others are counted.
_QUOTED = 3


def into_writer(writer: Writer, say: Callable[[str], None]) -> HandOver:
    """Hands lines to the writer; `say` takes the first refusals of each reason, as text."""
    room, refusals = threading.Semaphore(MOST_OPEN), Counter[str]()

    def hand_over(lines: Sequence[Line]) -> bool:
        if not room.acquire(timeout=_AGAIN_S):
            return False

        def report(outcomes: list[Outcome]) -> None:
            room.release()
            for line, outcome in zip(lines, outcomes, strict=True):
                if outcome["status"] == "refused":
                    _say_refusal(line, outcome, refusals, say)

        rows = [Message(line.data, line.origin) for line in lines]
        size_bytes = sum(len(row.data) for row in rows)
        if not writer.submit(rows, min(size_bytes, MOST_COUNTED_BYTES), report):
            room.release()
            threading.Event().wait(_AGAIN_S)
            return False
        return True

    return hand_over


def _say_refusal(line: Line, outcome: Outcome, refusals: Counter[str], say: Callable[[str], None]) -> None:
    reason, origin = outcome["reason"], line.origin
    refusals[reason] += 1
    if refusals[reason] <= _QUOTED and origin is not None:
        more = "; further ones are counted in skyray_refused_rows_total" if refusals[reason] == _QUOTED else ""
        place = f"{origin.source}, partition {origin.partition}, offset {origin.offset}"
        say(f"serve: {place} refused, {reason}: {outcome['detail']}{more}")
