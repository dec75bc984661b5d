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

from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.space import Space
from matching.text import Vocabulary
from matching.validate import subscription_row
from spouts.lines import read_rows, unpacked


class SubscriptionScan(NamedTuple):
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
    kinds: Kinds = KINDS,
) -> SubscriptionScan | None:
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
                parsed = subscription_row(row, vocabulary, space, kinds)
                if not isinstance(parsed, str) and kinds[parsed.kind].runs:
                    return SubscriptionScan(parsed.subscription_id, path, line, finding)
    return None


def named_in(kinds: Iterable[str], paths: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Those of these kinds that a row of the files may be of: some may be wrong, none is missing. O(bytes), some GB/s.

    Files that are missing or damaged are for others to refuse: here they may ask for anything.
    """
    wanted = list(kinds)
    found: set[str] = set()
    for path in map(Path, paths):
        if len(found) < len(wanted):
            found |= _named_in(wanted, path)
    return tuple(kind for kind in wanted if kind in found)


def _named_in(kinds: list[str], path: Path) -> set[str]:
    try:
        with path.open("rb") as file:
            if file.read(4) == b"PAR1":
                return _kinds_of_table(kinds, path)
            file.seek(0)
            # a keyword may be the word itself, and JSON may spell any letter as \\u followed by four digits
            found: set[str] = set()
            rest, longest = b"", max(map(len, kinds))
            for block in unpacked(file):
                text = rest + block
                if b"\\u00" in text:
                    return set(kinds)
                found |= {kind for kind in kinds if kind not in found and kind.encode() in text}
                if len(found) == len(kinds):
                    break
                rest = text[-longest:]
            return found
    except (OSError, EOFError, zlib.error):
        return set(kinds)


def _kinds_of_table(kinds: list[str], path: Path) -> set[str]:
    found: set[str] = set()
    try:
        with pq.ParquetFile(path) as table:
            for batch in table.iter_batches(1 << 16, columns=["kind"], use_threads=False):
                found |= set(pc.call_function("unique", [batch.column("kind")]).to_pylist())
    except (pa.ArrowException, KeyError, UnicodeDecodeError):
        return set(kinds)
    return found & set(kinds)
