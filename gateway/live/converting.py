"""Writes the folder of a stream whose texts another tokeniser has cut, with the words of this release's.

The log has the terms of that tokeniser (`matching.words.tokeniser`). Texts are cut anew, and new terms admitted, in the
order of the log. Checkpoints know places in the old log and stay behind: the converted stream matches its log from the
beginning when it is resumed. The folder itself is only read.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gateway.live.acknowledged import DURABLE
from gateway.live.admission import Admission, RefusedLine
from gateway.live.opening import reopened
from gateway.shell.terminal import writing_to
from matching.decoding import decode_object
from matching.errors import CheckpointError, ConfigError
from matching.words.tokeniser import is_of_this_tokeniser, tokeniser_number
from spouts.history import LOG, VOCABULARY, start_of
from spouts.log import BASE, Record, checksum_in, encode_record, read_records
from topology.folder import CHECKPOINTS, REPORT, RunFolder, checksum

#: Files and folders that are not copied. The log is written anew; the others belong to the old log.
_LEFT = (LOG, DURABLE, Path(CHECKPOINTS), Path("tables"), Path(REPORT))


class Converted(NamedTuple):
    """Contents of a converted folder: `messages`, clock marks among them, `batches`, and `size_bytes` of the log."""

    messages: int
    batches: int
    size_bytes: int


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
        If `to` exists, or the folder is of no stream, or its words are this release's already.
    CheckpointError
        If the log is damaged, or has a change that is refused now.
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
            _take_number(partial, to, report["live"])
            _, admission = reopened(partial, report["live"], partial)
            messages, batches = 0, 0
            with open(partial / LOG, "wb") as log:
                before = ""
                for record in _cut(read_records(folder / LOG), admission, folder / LOG):
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


def _take_number(partial: Path, to: Path, live: dict[str, Any]) -> None:
    """Give the words that the stream began with the number of this tokeniser. Raises ConfigError if they have it."""
    start = start_of(partial, live)
    manifest = json.loads((start / "manifest.json").read_text())
    if is_of_this_tokeniser(manifest.get("tokeniser")):
        raise ConfigError(f"{to}: not needed: the stream has the words of this release; resume it as it is")
    (start / "manifest.json").write_text(json.dumps(manifest | {"tokeniser": tokeniser_number()}))
    live["checksums"]["manifest.json"] = checksum(start / "manifest.json")
    if live["vocabulary"] is not None:
        live["vocabulary"] = str(to.resolve() / VOCABULARY)


def _cut(records: Iterable[tuple[Record, Any, Any]], admission: Admission, log: Path) -> Iterator[Record]:
    """The records with the terms of their messages, and those that this tokeniser admits."""
    words, first, marks = admission.new_terms.words, 0, 0
    for record, _, _ in records:
        for line in record.lines:
            if isinstance(refused := admission.row(decode_object(line), line=line), RefusedLine):
                raise CheckpointError(f"{log}: a change that was accepted is refused now: {refused.what}")
        if record.messages:
            cut = words.cut(record.block.words()) if record.block else None
            admitted = admission.new_terms.admit(words.new_terms(cut) if cut else (), first - marks)
            record = record._replace(admitted=admitted, terms=words.terms(cut) if cut else None)
        first, marks = first + record.messages, marks + record.mark
        yield record
