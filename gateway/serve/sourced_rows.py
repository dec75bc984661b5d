"""Messages of a source, as rows for the writer of `skyray serve`: the same gate as `POST /v1/messages`."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from gateway.live.batching import InputLine
from gateway.serve.writer import MOST_WAITING_BYTES, LogWriter, Outcome, PublishedRow
from gateway.sources.feed import HandOver

#: At most so many reads of the source wait for the log; other callers need room, too.
MOST_OPEN = 2
#: A read counts as this many bytes at most: it is in memory already, and one that found no room would end the reading.
MOST_COUNTED_BYTES = MOST_WAITING_BYTES // 4
#: Seconds before rows that found no room are handed over again.
_AGAIN_S = 0.05
#: So many refusals of each reason are quoted; the others are counted.
_QUOTED = 3


def into_writer(writer: LogWriter, say: Callable[[str], None]) -> HandOver:
    """Hands lines to the writer; `say` takes the first refusals of each reason, and the first misfits, as text."""
    room, refusals = threading.Semaphore(MOST_OPEN), Counter[str]()

    def hand_over(lines: Sequence[InputLine]) -> bool:
        if not room.acquire(timeout=_AGAIN_S):
            return False

        def report(outcomes: list[Outcome]) -> None:
            room.release()
            for line, outcome in zip(lines, outcomes, strict=True):
                if outcome["status"] == "refused":
                    what = f"refused, {outcome['reason']}: {outcome['detail']}"
                    _say_some(line, outcome["reason"], what, "refused_rows", refusals, say)
                for one in outcome.get("warnings", ()):
                    what = f"taken without {one['column']} ({one['value']} is {one['why']})"
                    _say_some(line, f"misfit {one['column']}", what, "misfit_values", refusals, say)

        rows = [PublishedRow(line.data, line.origin) for line in lines]
        size_bytes = sum(len(row.data) for row in rows)
        if not writer.submit(rows, min(size_bytes, MOST_COUNTED_BYTES), report):
            room.release()
            threading.Event().wait(_AGAIN_S)
            return False
        return True

    return hand_over


def _say_some(
    line: InputLine, about: str, what: str, counted: str, said: Counter[str], say: Callable[[str], None]
) -> None:
    """Say what became of a line, if few lines before had the same; the figure `counted` has all of them."""
    origin = line.origin
    said[about] += 1
    if said[about] <= _QUOTED and origin is not None:
        more = f"; further ones are counted in skyray_{counted}_total" if said[about] == _QUOTED else ""
        say(f"serve: {origin.source}, partition {origin.partition}, offset {origin.offset} {what}{more}")
