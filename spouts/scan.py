"""Scan of subscription files before a run starts: which kinds occur, and which row no task can take.

So a run builds no window index for a kind that does not occur, and refuses rows before any task starts; each file is
read once.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from matching.fields import Refusal
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.space import Space
from matching.unpacking import UNPACKING_ERRORS
from matching.validate import ParsedSubscription, subscription_row
from matching.vocabulary import Vocabulary
from spouts.history import history_of
from spouts.lines import read_rows, unpacked_blocks
from topology.core.places import arrow_file, place


class FoundRow(NamedTuple):
    """A subscription in a file: its id, the file, its line or row (from 1), and why it is refused."""

    subscription_id: str
    path: Path
    line: int
    refusal: Refusal


def scan_rows(
    suspects: Callable[[Mapping[str, Any]], bool],
    refuses: Callable[[ParsedSubscription], Refusal | None],
    paths: Iterable[str | os.PathLike[str]],
    vocabulary: Vocabulary,
    space: Space,
    kinds: Kinds = KINDS,
) -> tuple[FoundRow | None, tuple[str, ...]]:
    """The first row that a run would accept but for `refuses`, None if there is none; and the kinds of all rows, up to
    that one.

    O(bytes), about 1 us a row: only rows that `suspects` (by their columns) get the whole check of a subscription.

    Raises
    ------
    InputError
        If a file is missing or cannot be read to its end.
    """
    found: set[str] = set()
    for path in map(place, paths):
        for line, row in read_rows(path):
            if not isinstance(row, dict):
                continue
            found.add(str(row.get("kind")))
            if suspects(row):
                parsed = subscription_row(row, vocabulary, space, kinds)
                if isinstance(parsed, Refusal) or not kinds[parsed.kind].runs:
                    continue
                if (refusal := refuses(parsed)) is not None:
                    return FoundRow(parsed.subscription_id, path, line, refusal), _in_order(found, kinds.names)
    return None, _in_order(found, kinds.names)


def scan_kinds(kinds: Iterable[str], paths: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Those of these kinds that a row of the files may be of: some may be wrong, none is missing. O(bytes), some GB/s.

    A file that is missing or damaged may have all of them: the loader refuses it.
    """
    wanted, found = list(kinds), set[str]()
    for path in map(place, paths):
        if len(found) < len(wanted):
            found |= _kinds_of(wanted, path)
    return _in_order(found, wanted)


def _in_order(found: set[str], kinds: Iterable[str]) -> tuple[str, ...]:
    return tuple(kind for kind in kinds if kind in found)


def _kinds_of(kinds: list[str], path: Path) -> set[str]:
    if history := history_of(path):
        return {str(row.get("kind")) for row in history.changes()}
    found: set[str] = set()
    try:
        with path.open("rb") as file:
            if file.read(4) == b"PAR1":
                with pq.ParquetFile(arrow_file(path)) as table:
                    for batch in table.iter_batches(1 << 16, columns=["kind"], use_threads=False):
                        found |= set(pc.call_function("unique", [batch.column("kind")]).to_pylist())
                return found
            file.seek(0)
            # a keyword may be the word itself, and JSON may spell any letter as \\u followed by four digits
            rest, longest = b"", max(map(len, kinds))
            for block in unpacked_blocks(file):
                text = rest + block
                if b"\\u00" in text:
                    return set(kinds)
                found |= {kind for kind in kinds if kind not in found and kind.encode() in text}
                if len(found) == len(kinds):
                    break
                rest = text[-longest:]
            return found
    except (*UNPACKING_ERRORS, pa.ArrowException, KeyError, UnicodeDecodeError):
        return set(kinds)
