"""Writes the folder of a stream of the release before in the formats of this one, with the words of its tokeniser.

The log of that release has the lines of messages as they came, or their columns with terms of another tokeniser
(`matching.words.tokeniser`). Texts are cut anew, and new terms admitted, in the order of the log. Checkpoints know
places in the old log and stay behind: the converted stream matches its log from the beginning when it is resumed. That
gives the same updates where the tokeniser is the same. The folder itself is only read.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import xxhash

from gateway.live.acknowledged import DURABLE
from gateway.live.admission import Admission, RefusedLine
from gateway.live.opening import reopened
from gateway.shell.terminal import writing_to
from matching.decoding import cut_deep, decode_object, is_deep
from matching.errors import CheckpointError, ConfigError
from matching.words.tokeniser import is_of_this_tokeniser, tokeniser_number
from spouts.history import LOG, VOCABULARY, start_of
from spouts.log import BASE, FORMAT, Positions, Record, checksum_in, encode_record, read_records
from spouts.messages import MessageBlock
from spouts.parsed import parse_message
from topology.folder import CHECKPOINTS, REPORT, RunFolder, checksum

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
    if (folder / LOG).with_name(BASE).exists():
        raise ConfigError(f"{folder}: the beginning of its log is gone, so its texts cannot be cut anew; begin another")
    with run.locked(), writing_to(to):
        partial = to.with_name(f".{to.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            shutil.copytree(folder, partial, ignore=lambda path, names: _left(folder, Path(path), names))
            (partial / LOG).parent.mkdir(exist_ok=True)
            recut = _take_number(partial, to, report["live"])
            _, admission = reopened(partial, report["live"], partial)
            messages, batches = 0, 0
            with open(partial / LOG, "wb") as log:
                before = ""
                for record in _cut(_records(folder / LOG, admission, recut), admission, folder / LOG):
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


def _take_number(partial: Path, to: Path, live: dict[str, Any]) -> bool:
    """Give the words that the stream began with the number of this tokeniser; whether they had another one."""
    start = start_of(partial, live)
    manifest = json.loads((start / "manifest.json").read_text())
    if is_of_this_tokeniser(manifest.get("tokeniser")):
        return False
    (start / "manifest.json").write_text(json.dumps(manifest | {"tokeniser": tokeniser_number()}))
    live["checksums"]["manifest.json"] = checksum(start / "manifest.json")
    if live["vocabulary"] is not None:
        live["vocabulary"] = str(to.resolve() / VOCABULARY)
    return True


def _cut(records: Iterable[Record], admission: Admission, log: Path) -> Iterator[Record]:
    """The records with the terms of their messages, and those that this tokeniser admits."""
    words, first, marks = admission.new_terms.words, 0, 0
    for record in records:
        for line in record.lines:
            if isinstance(refused := admission.row(decode_object(line), line=line), RefusedLine):
                raise CheckpointError(f"{log}: a change that was accepted is refused now: {refused.what}")
        if record.messages:
            cut = words.cut(record.block.words()) if record.block else None
            admitted = admission.new_terms.admit(words.new_terms(cut) if cut else (), first - marks)
            record = record._replace(admitted=admitted, terms=words.terms(cut) if cut else None)
        first, marks = first + record.messages, marks + record.mark
        yield record


def _records(log: Path, admission: Admission, recut: bool) -> Iterator[Record]:
    """The records of a log of either release, whatever terms they have."""
    if recut and _format_of(log) == FORMAT:
        yield from (record for record, _, _ in read_records(log))
        return
    first = 0
    for head, lines in _old_records(log):
        changes = frozenset(head.changes)
        places = tuple(place - earlier for earlier, place in enumerate(head.changes))
        record = Record(head.last_seq, head.line, len(lines) - len(changes), places, [lines[at] for at in head.changes])
        record = record._replace(time_us=head.time_us, mark=head.mark, positions=head.positions)
        if record.messages and not head.mark:
            block, ahead = [], frozenset(head.ahead)
            for place, line in enumerate(lines):
                if place not in changes:
                    parsed = parse_message(decode_object(line), admission.space, admission.vocabulary.attributes)
                    if isinstance(parsed, str):
                        what = f"message {first + len(block):,} is refused now ({parsed}): {line[:200]!r}"
                        raise CheckpointError(f"{log}: {what}")
                    block.append(parsed._replace(ahead=place in ahead))
            record = record._replace(block=MessageBlock.of(block, admission.vocabulary.attributes))
        first += record.messages
        yield record


def _format_of(log: Path) -> int:
    with open(log, "rb") as file, suppress(msgspec.MsgspecError, ValueError):
        return msgspec.json.decode(file.readline(), type=_Format).format
    return 1


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
