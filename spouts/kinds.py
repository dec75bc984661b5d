"""What files of subscriptions ask for, found out before a run starts.

What only one kind needs, a window of its own say, need not be held for files that never name it, and what a router
cannot place is refused while nothing runs yet. Read on in `topology.wiring`, which asks, and in `spouts.subscriptions`,
which reads the rows.
"""

import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from matching.space import Space
from matching.text import Vocabulary
from matching.validate import subscription_row
from spouts.lines import read_rows, unpacked


class Asked(NamedTuple):
    """A subscription in a file: its id, the file, its line or row (from 1), and what was found about it."""

    subscription_id: str
    path: Path
    line: int
    finding: str


def first_that(
    finds: Callable[[Mapping[str, Any]], str | None],
    paths: Iterable[str | os.PathLike[str]],
    vocabulary: Vocabulary,
    space: Space,
) -> Asked | None:
    """The first row about which `finds` has something to say and that a run would accept; None if there is none.

    Rows that a run would set aside are passed over here too. O(bytes); about 1 us a row, since the whole check of
    a subscription is made only where `finds` speaks.

    Raises
    ------
    InputError
        If a file is missing or cannot be read to its end.
    """
    for path in map(Path, paths):
        for line, row in read_rows(path):
            if isinstance(row, dict) and (finding := finds(row)) is not None:
                parsed = subscription_row(row, vocabulary, space)
                if not isinstance(parsed, str):
                    return Asked(parsed.subscription_id, path, line, finding)
    return None


def may_ask_for(kind: str, paths: Iterable[str | os.PathLike[str]]) -> bool:
    """Whether a row of these files may be of this kind: "yes" may be wrong, "no" is not. O(bytes), some GB/s.

    Files that are missing or damaged are for others to refuse: here they may ask for anything.
    """
    return any(_may_ask_for(kind, Path(path)) for path in paths)


def _may_ask_for(kind: str, path: Path) -> bool:
    try:
        with path.open("rb") as file:
            if file.read(4) == b"PAR1":
                return _table_asks_for(kind, path)
            file.seek(0)
            # a keyword may be the word itself, and JSON may spell any letter as \\u followed by four digits
            wanted, rest = (kind.encode(), b"\\u00"), b""
            for block in unpacked(file):
                text = rest + block
                if any(word in text for word in wanted):
                    return True
                rest = text[-len(kind) :]
            return False
    except (OSError, EOFError, zlib.error):
        return True


def _table_asks_for(kind: str, path: Path) -> bool:
    try:
        with pq.ParquetFile(path) as table:
            for batch in table.iter_batches(1 << 16, columns=["kind"], use_threads=False):
                column = batch.column("kind")
                if pc.call_function("any", [pc.call_function("equal", [column, kind])]).as_py():
                    return True
    except (pa.ArrowException, KeyError):
        return True
    return False
