"""Messages of a source, as rows for the writer of `skyray serve`: the same gate as `POST /v1/messages`."""

import threading
from collections.abc import Sequence
from typing import Any

from gateway.live.open_batch import InputLine
from gateway.serve.writer import MOST_WAITING_BYTES, LogWriter, Outcome, PublishedRow
from gateway.sources.feed import HandOver
from topology.core.executors.logs import driver_log

#: At most so many reads of the source wait for the log; other callers need room, too.
MOST_OPEN = 2
#: A read counts as this many bytes at most: it is in memory already, and one that found no room would end the reading.
MOST_COUNTED_BYTES = MOST_WAITING_BYTES // 4
#: Seconds before rows that found no room are handed over again.
_AGAIN_S = 0.05


def into_writer(writer: LogWriter) -> HandOver:
    """Hands lines to the writer; one refusal of each reason a minute is logged, and one value that does not fit."""
    room = threading.Semaphore(MOST_OPEN)

    def hand_over(lines: Sequence[InputLine]) -> bool:
        if not room.acquire(timeout=_AGAIN_S):
            return False

        def report(outcomes: list[Outcome]) -> None:
            room.release()
            for line, outcome in zip(lines, outcomes, strict=True):
                if outcome["status"] == "refused":
                    reason = outcome["reason"]
                    _log(line, "source_row_refused", sampled=reason, reason=reason, what=outcome["detail"])
                for one in outcome.get("warnings", ()):
                    _log(line, "taken_without", sampled=one["column"], **one)

        rows = [PublishedRow(line.data, line.origin) for line in lines]
        size_bytes = sum(len(row.data) for row in rows)
        if not writer.submit(rows, min(size_bytes, MOST_COUNTED_BYTES), report):
            room.release()
            threading.Event().wait(_AGAIN_S)
            return False
        return True

    return hand_over


def _log(line: InputLine, event: str, **values: Any) -> None:
    if (origin := line.origin) is not None:
        place = {"source": origin.source, "partition": origin.partition, "offset": origin.offset}
        driver_log().warning(event, **values, **place)
