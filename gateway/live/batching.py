"""Lines that were checked, on their way to the log: the open batch, and when it is full or overdue.

`Batching` collects accepted lines in an `OpenBatch` and hands it to the write-ahead log. The pipe (`gateway.live.pipe`)
and the writer of a server (`gateway.serve.writer`) each have one, and decide when to close the batch.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.live.admission import Admission, Change, RefusedLine
from gateway.live.in_flight import InFlight
from gateway.live.mapping import ColumnMapping, RenamedLine
from gateway.live.open_batch import InputLine, OpenBatch
from gateway.live.reading import LineReader, ReadLines
from gateway.live.write_ahead_log import WriteAheadLog
from matching.attributes import NO_ATTRIBUTES, AttributeSchema
from matching.fields import Fault
from matching.validate import ParsedMessage, decode_object
from spouts.parsed import deletion_of
from topology.preparing import Preparing
from topology.warmup import WORDS

#: Bytes of lines with which a batch is full, however few they are.
BATCH_BYTES = 16 * 2**20
#: Of messages that are read together one of so many is looked at for fields without an attribute: a look takes 20 us.
_SAMPLE = 128


class Batching:
    """Collects accepted lines, and stores them batch by batch; for one thread.

    Parameters
    ----------
    most : int
        Messages and changes of a batch at most.
    linger_s : float
        Seconds after which a batch is due, counted from the arrival of its first line.
    mapping : ColumnMapping, optional
        Renames the columns of each line.
    preparing : Preparing, optional
        Compiles kernels. A batch is stored when the kernels of its kinds are ready.

    Attributes
    ----------
    open : OpenBatch
    batches : int            stored, with a message
    mapping : ColumnMapping
    reader : LineReader      of many lines at a time
    """

    def __init__(
        self,
        admission: Admission,
        wal: WriteAheadLog,
        in_flight: InFlight,
        most: int,
        linger_s: float,
        mapping: ColumnMapping | None = None,
        preparing: Preparing | None = None,
    ):
        self.batches = 0
        self.mapping = mapping or ColumnMapping()
        self.open = OpenBatch(admission.vocabulary.attributes)
        self._unseen = 0  # lines until the next one whose fields are looked at
        self._schema = NO_ATTRIBUTES
        self._admission = admission
        self._wal = wal
        self._in_flight = in_flight
        self._most = most
        self._linger_s = linger_s
        self._preparing = preparing
        self.reader = self._reader_of(NO_ATTRIBUTES)
        self.follow_schema()

    @property
    def next_seq(self) -> int:
        """Seq of the next message, those of the open batch counted."""
        return self._wal.next_seq + len(self.open.messages)

    @property
    def room(self) -> tuple[int, int]:
        """Lines, and their bytes, for which the open batch has room; the last line may exceed the bytes."""
        return self._most - len(self.open), BATCH_BYTES - self.open.size_bytes

    @property
    def full(self) -> bool:
        """Whether the open batch takes no more lines."""
        return len(self.open.came_s) >= self._most or self.open.size_bytes >= BATCH_BYTES

    @property
    def table_is_full(self) -> bool:
        """Whether lines are to be admitted one by one, since no new object may come."""
        return self._wal.living is not None and self._wal.living.is_full

    def end_expired(self) -> None:
        """Put deletions of objects that have ended by time into the open batch, if it is empty.

        Else it may have a newer version of them.
        """
        if self._wal.living is None or self.open:
            return
        names, came_s = self._wal.living.expired(self._admission.now_us(), self._most), time.monotonic()
        for name in names:
            self.open.append(InputLine(0, b"", came_s), deletion_of(name, self._admission.space))

    def left_s(self, otherwise: float) -> float:
        """Seconds that the open batch may still wait for lines; `otherwise` while it is empty."""
        return self.open.came_s[0] + self._linger_s - time.monotonic() if self.open else otherwise

    def admit(self, line: InputLine, renamed: RenamedLine | RefusedLine) -> ParsedMessage | Change | RefusedLine:
        """Check a line, and append it with its new names to the open batch; returns what it is, or its refusal."""
        if isinstance(renamed, RefusedLine):
            return renamed
        renamed = self._written_out(renamed)
        living, row = self._wal.living, renamed.row
        if living is not None and isinstance(row, dict) and (what := living.refusal(row)):
            return RefusedLine("too_many_objects", what, Fault("object_id", row.get("object_id")))
        found = self._admission.row(renamed.row, lambda role: self.mapping.column_of(line.data, role), renamed.data)
        if not isinstance(found, RefusedLine):
            self.follow_schema()
            self._note(renamed)
            self.open.append(line._replace(data=renamed.data), found)
        return found

    def _written_out(self, renamed: RenamedLine) -> RenamedLine:
        """The line; a subscription with its synonyms written out, as it is logged."""
        columns = renamed.row.get("subscribe") if isinstance(renamed.row, dict) else None
        if not isinstance(columns, dict) or len(renamed.row) > 1:
            return renamed
        made = self._admission.written_out(columns)
        if made is columns:
            return renamed
        row = {"subscribe": made}
        return renamed._replace(data=msgspec.json.encode(row), row=row)

    def follow_schema(self) -> None:
        """Read lines from now on with the attributes that are declared."""
        schema = self._admission.vocabulary.attributes
        if schema is not self._schema:
            self._schema = schema
            self.reader = self._reader_of(schema)
            self.mapping.declare(schema)
            self.open.messages.declare(schema)

    def _reader_of(self, schema: AttributeSchema) -> LineReader:
        space, objects, words = self._admission.space, self._admission.objects, self._admission.vocabulary
        return LineReader(self.mapping, schema, space, objects, words.stem_language)

    def _note(self, renamed: RenamedLine | RefusedLine, sampled: bool = False) -> None:
        """Note the fields of a message that no attribute is declared for."""
        if isinstance(renamed, RenamedLine) and renamed.came:
            self._admission.recent.note(renamed.came, renamed.taken, self._schema, sampled)

    def subscribe(self, columns: Mapping[str, Any]) -> RefusedLine | None:
        """Put a subscription into the open batch, before any line comes; returns its refusal, if any."""
        data = msgspec.json.encode({"subscribe": columns})
        found = self.admit(InputLine(0, data, time.monotonic()), RenamedLine(data, decode_object(data)))
        return found if isinstance(found, RefusedLine) else None

    def extend(self, found: ReadLines, lines: Sequence[bytes], came_s: Sequence[float], line: int) -> None:
        """Put messages that the reader is sure of into the open batch; `line` is the number of the last one."""
        step = 1 if self._admission.recent.is_new else _SAMPLE
        for data in lines[self._unseen :: step]:
            self._note(self.mapping.rename(data), sampled=True)
        self._unseen = 0 if step == 1 else (self._unseen - len(lines)) % _SAMPLE
        self.open.extend(found, self._admission.ahead_of(found.time_us), came_s, line, sum(map(len, lines)))

    def close(self) -> None:
        """Store the open batch; changes without a message belong to the next one."""
        batch, self.open = self.open, OpenBatch(self._admission.vocabulary.attributes)
        if not batch:
            return
        if self._preparing is not None:
            self._preparing.wait([WORDS, *(kind.name for kind in self._admission.kinds_met)])
        if messages := len(batch.messages):
            self.batches += 1
            self._in_flight.add(self._wal.next_seq + messages - 1, batch.came_s)
        self._wal.keep(batch)

    def pass_time(self, now_s: float) -> None:
        """Store a clock mark if one is due, unless too many batches are in flight; called while no line arrives."""
        time_us = self._wal.due(now_s)
        if time_us is not None and self._in_flight.await_capacity(0.0):
            self._in_flight.add(self._wal.next_seq, [])
            self._wal.mark(time_us, now_s)
