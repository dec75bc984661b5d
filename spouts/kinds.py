"""Whether files of subscriptions may ask for a kind, found out without reading them row by row.

What only one kind needs, a window of its own say, need not be held for files that never name it. Read on in
`topology.skyray`, which asks, and in `spouts.subscriptions`, which reads the rows.
"""

import os
import zlib
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spouts.lines import unpacked


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
