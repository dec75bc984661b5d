"""A writer of `skyray serve` over the log of a folder, without a topology: the test makes room for batches."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from gateway.live.in_flight import InFlight
from gateway.live.opening import open_stream
from gateway.serve.registry import Registry
from gateway.serve.writer import LogWriter, Row
from spouts.log import Record, read_records

DEADLINE_S = 20


class WriterStream:
    """One life of a folder.

    Parameters
    ----------
    out : Path
    most : int
        Batches that may be in flight.
    settings : dict, optional
        Of the stream.
    attributes, strict, numbers, columns
        As `open_stream` takes them.
    **options
        Of the writer.
    """

    def __init__(
        self,
        out: Path,
        most: int = 10**9,
        settings: dict[str, Any] | None = None,
        attributes: Sequence[str] = (),
        strict: bool = False,
        numbers: str = "plain",
        columns: dict[str, str] | None = None,
        **options: Any,
    ):
        self._stack = ExitStack()
        out.mkdir(exist_ok=True)
        self.registry = Registry()
        given = out, settings or {}, columns or {}, None, attributes, "", lambda line: None, self.registry, strict
        self.config, self.admission, self.mapping, self.wal, _ = open_stream(self._stack, *given, numbers)
        self.wal.run.write_report("running", {"live": self.wal.settings})
        self.in_flight = InFlight(most)
        self.writer = LogWriter(
            self.admission, self.registry, self.wal, self.in_flight, mapping=self.mapping, **options
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.stopped = lambda: True
        self.writer.finish()
        if self.writer.started:
            await_(lambda: self.writer.ended)
        self._stack.close()

    def submit(self, *rows: Row) -> list:
        """Hand over rows; the list that gets their outcomes."""
        found: list = []
        assert self.writer.submit(rows, 100, found.extend)
        return found

    def end(self) -> None:
        """Log what waits. Raises what the writer has failed with."""
        self.writer.finish()
        await_(lambda: self.writer.ended)
        if self.writer.failure is not None:
            raise self.writer.failure

    def records(self) -> list[Record]:
        return [record for record, _, _ in read_records(self.wal.log)]


def await_(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)
