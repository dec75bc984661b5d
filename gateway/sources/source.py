"""Contract of sources: opened after a position, read in order; `acknowledge` reports to the broker what is durable."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from matching.errors import EngineError


class SourceAway(EngineError):
    """A broker that cannot be reached now, or a connection that is broken; opening the source again may help."""


class Delivered(NamedTuple):
    """A message as the broker has it.

    partition : str
    offset : int      grows within the partition, not always by one
    token : str       the same whenever this message is read again, and another one if the stream was made anew
    data : bytes
    """

    partition: str
    offset: int
    token: str
    data: bytes


#: Partition -> offset and token of the last message that was read.
Position = Mapping[str, tuple[int, str]]


class BrokerSource(Protocol):
    """One stream of a broker.

    Attributes
    ----------
    name : str
        Under which its position is in the log; without the broker's address, which may change.
    extra : str
        Of the distribution (`matching.extras`).
    """

    name: str
    extra: str

    def open(self, after: Position) -> int:
        """Connect, and continue behind a position; a partition that it has not is read from its first message.

        Returns
        -------
        int
            How many messages after the position the broker has removed, as far as it can be known.

        Raises
        ------
        ConfigError
            If there is no such stream, it is not the one of the position, or the broker refuses us.
        SourceAway
            If the broker cannot be reached.
        """
        ...

    def read(self, most: int, timeout_s: float) -> list[Delivered]:
        """The next messages, at most `most`; [] if none arrive within `timeout_s`. Raises as `open`."""
        ...

    def acknowledge(self, position: Position) -> None:
        """Report to the broker that messages up to here are durable; it decides nothing here. Raises SourceAway."""
        ...

    def lag(self) -> int | None:
        """How many messages of the stream are not read yet; None while it is not known."""
        ...

    def close(self) -> None:
        """Disconnect; `open` may be called again. Never raises."""
        ...
