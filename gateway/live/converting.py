"""Writes the folder of a stream of the release before in the formats of this one.

The log of that release has the lines of messages as they came; they are checked, and cut into words, as that release
did it at each start. Checkpoints know places in that log and stay behind: the converted stream matches its log from the
beginning when it is resumed, which gives the same updates. The folder itself is only read.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from gateway.live.acknowledged import DURABLE
from gateway.live.admission import Admission
from gateway.live.opening import reopened
from gateway.shell.terminal import writing_to
from matching.decoding import cut_deep, decode_object, is_deep
from matching.errors import CheckpointError, ConfigError
from spouts.history import LOG
from spouts.log import Admitted, Positions, Record, checksum_in, encode_record
from spouts.messages import MessageBlock
from spouts.parsed import parse_message
from topology.folder import CHECKPOINTS, REPORT, RunFolder

#: Files and folders that are not copied. The log is written anew; the others belong to the old log.
_LEFT = (LOG, DURABLE, Path(CHECKPOINTS), Path("tables"), Path(REPORT))


class Converted(NamedTuple):
    """Contents of a converted folder: `messages`, clock marks among them, `batches`, and `size_bytes` of the log."""

    messages: int
    batches: int
    size_bytes: int


class _Head(msgspec.Struct, omit_defaults=True):
    """The head of a record of that release, as `spouts.log` had it."""

    last_seq: int
    line: int
    changes: tuple[int, ...]
    bytes: int
    xxh3: str
    time_us: int | None = None
    mark: bool = False
    ahead: tuple[int, ...] = ()
    terms: tuple[str, ...] = ()
    messages: int = 0
    positions: Positions = {}
    before: str | None = None


class _Format(msgspec.Struct):
    format: int = 1


def convert(folder: Path, to: Path) -> Converted:
    """Convert a folder into another one.

    Parameters
    ----------
    folder : Path
        Of a stream that no process writes to.
    to : Path
        Must not exist.

    Raises
    ------
    ConfigError
        If `to` exists, or the folder is of no stream, or of this release already.
    CheckpointError
        If the log is damaged, or has a message that is refused now.
    InUseError
        If a process writes to the folder.
    DeliveryError
        If `to` cannot be written.

    Notes
    -----
    O(bytes of the folder): about half a minute for a million messages.
    """
    if to.exists():
        raise ConfigError(f"{to}: is there already; name a folder that is not")
    run = RunFolder(folder)
    report = run.report()
    if not report.get("live") or not (folder / LOG).exists():
        raise ConfigError(f"{folder}: is of no stream of skyray serve or live")
    with run.locked(), writing_to(to):
        partial = to.with_name(f".{to.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            shutil.copytree(folder, partial, ignore=lambda path, names: _left(folder, Path(path), names))
            (partial / LOG).parent.mkdir(exist_ok=True)
            _, admission = reopened(folder, report["live"], partial)
            messages, batches = 0, 0
            with open(partial / LOG, "wb") as log:
                before = ""
                for record in _records(folder / LOG, admission):
                    log.write(data := encode_record(record, before))
                    before = checksum_in(data)
                    messages, batches = messages + record.messages, batches + (record.last_seq >= 0)
            size_bytes = (partial / LOG).stat().st_size
            report |= {"log_bytes": size_bytes} if "log_bytes" in report else {}
            (partial / REPORT).write_text(json.dumps(report))
            partial.rename(to)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return Converted(messages, batches, size_bytes)


def _left(folder: Path, path: Path, names: list[str]) -> set[str]:
    return {name for name in names if name.startswith(".") or (path / name).relative_to(folder) in _LEFT}


def _records(log: Path, admission: Admission) -> Iterator[Record]:
    """The records of a log of that release as this one has them."""
    vocabulary, words, first = admission.vocabulary, admission.new_terms.words, 0
    for head, lines in _old_records(log):
        admitted, changes = Admitted(head.terms, head.messages), frozenset(head.changes)
        places = tuple(place - earlier for earlier, place in enumerate(head.changes))
        record = Record(head.last_seq, head.line, len(lines) - len(changes), places, [lines[at] for at in head.changes])
        record = record._replace(time_us=head.time_us, mark=head.mark, admitted=admitted, positions=head.positions)
        if admitted.terms:
            vocabulary.admit(*admitted)
        if record.messages and not head.mark:
            block, ahead = [], frozenset(head.ahead)
            for place, line in enumerate(lines):
                if place not in changes:
                    parsed = parse_message(decode_object(line), admission.space, vocabulary.attributes)
                    if isinstance(parsed, str):
                        what = f"message {first + len(block):,} is refused now ({parsed}): {line[:200]!r}"
                        raise CheckpointError(f"{log}: {what}")
                    block.append(parsed._replace(ahead=place in ahead))
            columns = MessageBlock.of(block, vocabulary.attributes)
            record = record._replace(block=columns, terms=words.terms(words.cut(columns.words())))
        first += record.messages
        yield record


def _old_records(log: Path) -> Iterator[tuple[_Head, list[bytes]]]:
    """Heads and lines, without a record that is torn at the end. Raises CheckpointError."""
    decoder, size = msgspec.json.Decoder(_Head), log.stat().st_size
    with open(log, "rb") as file:
        while (offset := file.tell()) < size:
            line, head = file.readline(), None
            with suppress(msgspec.MsgspecError, ValueError):
                if msgspec.json.decode(line, type=_Format).format != 1:
                    raise ConfigError(f"{log}: has the format of this release; resume the stream as it is")
                head = decoder.decode(line)
            data = b"" if head is None else file.read(head.bytes)
            if head is None or len(data) != head.bytes or _old_checksum(head, data) != head.xxh3:
                if file.tell() < size:
                    raise CheckpointError(f"{log}: is damaged at byte {offset:,}; bring the file back")
                return
            # releases before took rows of any depth, in columns that nothing reads
            yield head, [cut_deep(line) if is_deep(line) else line for line in data.split(b"\n")[:-1]]


def _old_checksum(head: _Head, data: bytes) -> str:
    digest = xxhash.xxh3_64(data)
    if head.before is not None:
        digest.update(msgspec.json.encode(msgspec.structs.replace(head, xxh3="")))
        return digest.hexdigest()
    if head.terms:
        digest.update(msgspec.json.encode((head.terms, head.messages)))
    if head.positions:
        digest.update(msgspec.json.encode(head.positions))
    return digest.hexdigest()
