"""What a boolean engine answers a batch with. Read on in `matching.boolean.engine`."""

from typing import NamedTuple

from matching.model import Int32, Int64


class MatchSet(NamedTuple):
    """Matching pairs, each once, in ascending row and no order within a row; and the work it took to find them.

    number : int64[m]    subscription
    row : int32[m]       message, as row of the batch
    scanned : int        postings looked at
    verified : int       pairs whose subscription had to be tested: what the index could not rule out by itself
    matched : int        m
    """

    number: Int64
    row: Int32
    scanned: int
    verified: int
    matched: int
