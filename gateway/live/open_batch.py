"""The lines that are logged together, while they are collected."""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.live.admission import Change
from gateway.live.reading import ReadLines
from matching.attributes import AttributeSchema
from matching.subscription_rows import PlainRows
from matching.validate import ParsedMessage
from spouts.change_block import Changed
from spouts.log import Origin
from spouts.messages import OpenBlock


class InputLine(NamedTuple):
    """One line of the input.

    number : int      from 1
    data : bytes
    came_s : float    `time.monotonic` at its arrival
    origin : Origin or None    its source, partition and offset; None for a line of a pipe or a request
    """

    number: int
    data: bytes
    came_s: float
    origin: Origin | None = None


class OpenBatch:
    """Accepted lines that are logged together.

    Attributes
    ----------
    messages : OpenBlock
    changes : list of int       how many of the messages come before each change of subscriptions
    lines : list of bytes       the changes
    checked : list              the same, checked; those that were checked together are one of it
    came_s : list of float      `time.monotonic` at the arrival of each line
    message_came_s : list of float    the same of the messages
    line : int                  number of the last line
    size_bytes : int            of the lines
    """

    def __init__(self, schema: AttributeSchema):
        self.messages = OpenBlock(schema)
        self.changes: list[int] = []
        self.lines: list[bytes] = []
        self.checked: list[Changed] = []
        self.came_s: list[float] = []
        self.message_came_s: list[float] = []
        self.line = self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self.came_s)

    def __len__(self) -> int:
        return len(self.came_s)

    def append(self, line: InputLine, found: ParsedMessage | Change) -> None:
        """Take a line, its columns renamed, and what it was checked to be."""
        if isinstance(found, ParsedMessage):
            self.messages.append(found)
            self.message_came_s.append(line.came_s)
        else:
            self.changes.append(len(self.messages))
            self.lines.append(line.data)
            self.checked.append(found)
        self.came_s.append(line.came_s)
        self.line = line.number
        self.size_bytes += len(line.data)

    def subscribe(self, lines: Sequence[bytes], plain: PlainRows, came_s: float, line: int) -> None:
        """Take subscriptions that were checked together; `line` is the number of the last one."""
        self.changes += [len(self.messages)] * len(lines)
        self.lines += lines
        self.checked.append(plain)
        self.came_s += [came_s] * len(lines)
        self.line = line
        self.size_bytes += sum(map(len, lines))

    def note(self, line: int, came_s: float) -> None:
        """Take a line that has neither a message nor a change: it has declared an attribute."""
        self.came_s.append(came_s)
        self.line = line

    def extend(
        self, found: ReadLines, ahead: Sequence[int], came_s: Sequence[float], line: int, size_bytes: int
    ) -> None:
        """Take the messages of lines, in their order, with the number of the last one and their bytes."""
        self.messages.extend(*found[1:8], ahead, found.made)
        self.message_came_s += came_s
        self.came_s += came_s
        self.line = line
        self.size_bytes += size_bytes

    @property
    def ends_with_change(self) -> bool:
        """Whether a change comes after the last message."""
        return self.changes[-1:] == [len(self.messages)]
