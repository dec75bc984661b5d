"""Removes the beginning of a live stream: messages up to one, and the updates up to that boundary.

What stays of them is a *base*. That of the updates has what stands: who applies it and what follows gets the same
results. That of the log (`spouts.log.BASE`) has the changes of subscriptions but for those that a later one of the same
id has made void, admitted terms, declared attributes, positions of sources, the number of clock marks, and of messages
those that are still named: by what stands, by later updates, or as the living version of an object. Texts, ids and
places of all others are gone, and with them questions about them.

Each step leaves a folder that can be resumed, and `finish` does what is left of one that was cut off: the base of the
updates gets its name, then that of the log; then parts, segments of the index, and the bytes of the log before go. The
log keeps its length: its beginning becomes a hole, so every offset stays what it was.
"""

import ctypes
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bolts.sinks import OBJECT_ID, UPDATE_SCHEMA, read_pieces
from bolts.standing import base_facts, base_of, standing_of
from gateway.live.living_versions import LivingVersions
from gateway.shell.terminal import writing_to
from matching.decoding import decode_object
from matching.errors import CheckpointError, ConfigError
from matching.fields import identifier
from matching.model import Int64, take_ragged
from matching.part_names import ListedPart, PartName, whole_parts
from matching.words.message_words import MessageTerms
from spouts.history import LOG
from spouts.log import BASE, NONE_ADMITTED, LogReader, Record, checksum_in, encode_record
from spouts.log import base_of as base_of_log
from spouts.message_index import FOLDER as INDEX
from topology.core.checkpoint.storage import LocalDisk, Output, parts_list, publish, remove_parts

#: Messages of a record of a base at most that were removed, and bytes of its changes.
_MESSAGES, _CHANGE_BYTES = 1 << 16, 4 << 20
#: Of fallocate(2): the length of the file stays, and the bytes become a hole.
_PUNCH_HOLE = 0x01 | 0x02
#: File by which it is tried, and how the name of a base of updates ends.
_HOLE, _BASE_PART = ".hole.tmp", "-0000of0000"


class Horizon(NamedTuple):
    """What is to be removed.

    boundary : int    updates up to this one
    part : int        number of the last part that has any of them, -1 for none
    seq : int         messages before this one, the first of a batch; at most `boundary` + 1
    offset : int      where that batch is in the log
    """

    boundary: int
    part: int
    seq: int
    offset: int


def base_part(folder: Path) -> PartName | None:
    """The base of the updates of a stream's folder; None if none were removed."""
    names = [PartName.of(path.name) for path in (folder / "updates").glob("part-*.parquet")]
    return max((name for name in names if name.is_base), default=None)


def prune(folder: Path, cut: Horizon, objects: bool, unwritten: Sequence[pa.Table]) -> None:
    """Write the bases of a cut, and give them their names; `finish` removes what they stand for.

    Parameters
    ----------
    folder : Path
        Of a stream that this process has locked.
    cut : Horizon
        The checkpoints that are kept need nothing of it.
    objects : bool
        The stream is one of objects.
    unwritten : sequence of pa.Table
        Updates behind the parts, of the newest checkpoint.

    Raises
    ------
    CheckpointError
        If the log or a part is damaged.
    DeliveryError
        If a base cannot be written.

    Notes
    -----
    O(what is removed, and the seqs of the updates that stay). Memory: what stands.
    """
    updates = folder / "updates"
    schema = UPDATE_SCHEMA.append(OBJECT_ID) if objects else UPDATE_SCHEMA
    listed = parts_list(updates)
    parts = [each for each in whole_parts(path.name for path in updates.glob("part-*.parquet"))]
    before = [each for each in parts if each.number <= cut.part]

    def pieces(some: Iterable[PartName]) -> Iterator[pa.Table]:
        for each in some:
            yield from read_pieces(updates / each.text, listed.get(each.text), schema)

    standing = standing_of(pieces(before), schema)
    base = base_of_log(folder / LOG)
    if base is not None:
        base.file.close()
    with writing_to(folder):
        if cut.seq > (0 if base is None else base.seq):
            needed = np.zeros(0, np.int64)
            for piece in itertools.chain([standing], pieces(parts[len(before) :]), unwritten):
                seqs = piece["seq"].to_numpy()
                needed = np.union1d(needed, seqs[seqs < cut.seq])
            if objects:
                needed = np.union1d(needed, _living(folder / LOG, cut))
            _write_base(folder / LOG, cut, needed)
        if before and not (len(before) == 1 and before[0].is_base):
            rows = sum(listed[each.text].rows if each.text in listed else _rows(updates / each.text) for each in before)
            _publish_base(updates, cut, standing, rows)
        with suppress(FileNotFoundError):
            LocalDisk((folder / LOG).parent).rename(f".{BASE}.tmp", BASE)


def finish(folder: Path) -> None:
    """Remove what the bases of a folder stand for, which this process has locked, and what a prune has left over.

    O(files); nothing where nothing was removed. Raises DeliveryError, CheckpointError.
    """
    log, updates = folder / LOG, folder / "updates"
    with writing_to(folder):
        own = [log.with_name(f".{BASE}.tmp"), log.with_name(_HOLE), *updates.glob(f".part-*{_BASE_PART}.tmp")]
        for path in own:
            path.unlink(missing_ok=True)
        if (part := base_part(folder)) is not None:
            if part.text not in parts_list(updates):
                _list(updates, part, f".{part.stem}.tmp")
            names = {path.name for path in updates.glob("part-*")}
            gone = {name for name in names if PartName.of(name).number <= part.number and name != part.text}
            if gone:
                remove_parts(updates, gone)
        if (base := base_of_log(log)) is None:
            return
        base.file.close()
        for path in (log.parent / INDEX).glob("[0-9]*"):
            if int(path.name) < base.seq:
                path.unlink(missing_ok=True)
        _punch(log, base.offset)


def refuse_unpunchable(folder: Path) -> None:
    """Raise ConfigError if the file system of a folder cannot give back a part of a file."""
    path = (folder / LOG).with_name(_HOLE)
    try:
        path.write_bytes(b"\1" * 8192)
        _punch(path, 4096)
    except OSError as error:
        raise ConfigError(
            f"{folder}: its file system cannot give back the beginning of a file ({error.strerror}); leave [retain] "
            "out, or take another one (ext4, XFS, Btrfs and tmpfs can)"
        ) from error
    finally:
        path.unlink(missing_ok=True)


def _punch(path: Path, size_bytes: int) -> None:
    """Give back the first bytes of a file, whose length stays. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb+") as file:
        if library.fallocate(file.fileno(), _PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(size_bytes)):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))


def _rows(path: Path) -> int:
    return pq.read_metadata(path).num_rows


def _publish_base(updates: Path, cut: Horizon, standing: pa.Table, rows: int) -> None:
    """Write what stands, and give it its name; the list says how many updates it stands for."""
    name = PartName(cut.part, 0, 0)
    disk, temporary = LocalDisk(updates), f".{name.stem}.tmp"
    with disk.create(temporary) as file:
        pq.write_table(base_of(standing, cut.boundary, rows), file)
    disk.sync(temporary)
    _list(updates, name, temporary)


def _list(updates: Path, name: PartName, temporary: str) -> None:
    """Give a base its name, if it has it not, and list it: with how many updates it stands for."""
    there = temporary if (updates / temporary).exists() else name.text
    boundary, rows = base_facts(updates / there)
    facts = ListedPart.of(LocalDisk(updates).read(there), rows, boundary)
    publish(Output(str(updates / temporary), str(updates / name.text), facts._asdict()))


def _living(log: Path, cut: Horizon) -> Int64:
    """Seqs of the versions that live before a cut, ascending."""
    living, first = LivingVersions(), 0
    for record in _records(log, cut):
        if record.block is not None and record.terms is not None:
            living.take(first, record.block, record.terms, record.rows)
        first += record.messages
    return np.array([seq for _, seq in living.listed(-1, len(living))], np.int64)


def _records(log: Path, cut: Horizon) -> Iterator[Record]:
    """The records before a cut."""
    with closing(LogReader(log)) as reader:
        while reader.offset != cut.offset:
            record = reader.read()
            if record is None:
                raise CheckpointError(f"{log}: has no record that ends at byte {cut.offset:,}; restore it")
            yield record


def _write_base(log: Path, cut: Horizon, needed: Int64) -> None:
    """Write a base under its temporary name; `needed`: the messages that stay, ascending."""
    kept, checksum = _kept_changes(log, cut)
    disk, temporary, before, size_bytes = LocalDisk(log.parent), f".{BASE}.tmp", "", 0
    with disk.create(temporary) as file:
        for record in _base_records(log, cut, needed, kept, checksum):
            data = encode_record(record, before)
            before, size_bytes = checksum_in(data), size_bytes + len(data)
            file.write(data)
    if size_bytes >= cut.offset:  # offsets below it would mean both
        disk.remove(temporary)
        return
    disk.sync(temporary)


def _kept_changes(log: Path, cut: Horizon) -> tuple[set[int], str]:
    """Which changes before a cut stay, by number, and the checksum of the last record.

    Of an id the last subscription and what comes after it, and the first that names an owner: an id keeps its owner.
    """
    number, last, owned, ends, checksum = 0, dict[str, int](), dict[str, int](), dict[str, int](), ""
    for record in _records(log, cut):
        for line in record.lines:
            row: Any = decode_object(line)
            columns = row.get("subscribe")
            name = identifier(row["unsubscribe"] if columns is None else columns["subscription_id"]) or ""
            if columns is None:
                ends[name] = number
            else:
                last[name] = number
                ends.pop(name, None)
                if isinstance(columns.get("owner"), str):
                    owned.setdefault(name, number)
            number += 1
        checksum = record.checksum
    return {*last.values(), *owned.values(), *ends.values()}, checksum


def _base_records(log: Path, cut: Horizon, needed: Int64, kept: set[int], checksum: str) -> Iterator[Record]:
    """The records of a base: first the one that says where the log goes on."""
    yield Record(-1, 0, floor=cut.seq, goes_on=(cut.offset, checksum, cut.boundary))
    waits, first, number = _Waiting(), 0, 0
    for record in _records(log, cut):
        if record.goes_on is not None:  # of the base before
            continue
        changes = [place for place in range(len(record.lines)) if number + place in kept]
        number += len(record.lines)
        record = record._replace(
            changes=tuple(record.changes[place] for place in changes),
            lines=[record.lines[place] for place in changes],
            floor=0,
            logged_s=0,
        )
        record, rows = _thinned(record, first, needed)
        first += record.messages
        apart = record.admitted != NONE_ADMITTED  # their terms come behind earlier messages and before later ones
        if apart or waits.messages + record.messages > _MESSAGES or waits.change_bytes > _CHANGE_BYTES:
            yield from waits.taken()
        waits.add(record, rows)
        if apart or rows.shape[0]:
            yield from waits.taken()
    yield from waits.taken()


def _thinned(record: Record, first: int, needed: Int64) -> tuple[Record, Int64]:
    """A record with those of its messages that are needed, and which these are."""
    if record.block is None or record.terms is None:
        return record, np.zeros(0, np.int64)
    own = np.arange(record.messages) if record.rows is None else record.rows.astype(np.int64)
    some = np.flatnonzero(np.isin(own + first, needed))
    if not some.shape[0]:
        return record._replace(block=None, terms=None), some
    terms = record.terms
    offsets, picked = take_ragged(terms.offsets, some)
    few = MessageTerms(terms.ids[picked], offsets, terms.unknown[some], terms.stopped[some])
    return record._replace(block=record.block.take(some), terms=few), own[some]


class _Waiting:
    """Records that become one."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self.messages = self.change_bytes = 0
        self._record: Record | None = None

    def add(self, record: Record, rows: Int64) -> None:
        """Take the next record, of whose messages these stay."""
        before, lead = self._record, self.messages
        self.messages += record.messages
        self.change_bytes += sum(map(len, record.lines))
        joined = record._replace(
            messages=self.messages,
            changes=tuple(lead + place for place in record.changes),
            rows=(rows + lead).astype(np.int32) if self.messages else None,
            mark=False,
            marks=record.marks + record.mark,
            last_seq=record.last_seq,
        )
        if before is not None:
            joined = joined._replace(
                changes=before.changes + joined.changes,
                lines=[*before.lines, *joined.lines],
                marks=before.marks + joined.marks,
                last_seq=max(before.last_seq, record.last_seq),
                time_us=before.time_us if record.time_us is None else record.time_us,
                positions={
                    source: before.positions.get(source, {}) | record.positions.get(source, {})
                    for source in {*before.positions, *record.positions}
                },
            )
        self._record = joined

    def taken(self) -> Iterator[Record]:
        """What waits, if anything does."""
        record = self._record
        self._forget()
        empty = (0, (), {}, NONE_ADMITTED)
        if record is not None and (record.messages, record.changes, record.positions, record.admitted) != empty:
            yield record
