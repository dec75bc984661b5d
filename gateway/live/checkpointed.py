"""A folder with the complete part of a running live stream: everything as of the last checkpoint.

At a checkpoint all updates as of its messages are complete: in the parts of `updates/`, and updates that no part has
yet are in the checkpoint. The folder points to these parts and to the log, and says how far both go, so that it is read
as that of a stream that has ended, without results. The stream's folder is only read, without its lock.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from bolts.delivery import undelivered
from bolts.names import hash_names
from bolts.shares import PublishedParts, joined
from bolts.sinks import last_as_of, read_part
from gateway.live.opening import stream_config
from gateway.live.recording import facts_of, paths_of
from gateway.live.write_ahead_log import ANSWER_SETTINGS
from gateway.shell.terminal import writing_to
from matching.errors import CheckpointError, InputError
from matching.kinds import KINDS
from matching.model import Names
from matching.part_names import ListedPart, PartName
from spouts.history import LOG, History
from topology.core.checkpoint.storage import check_part, parts_list
from topology.core.checkpoint.store import CheckpointStore, Manifest, manifest_name
from topology.folder import CHECKPOINTS, FINISHED, REPORT, RunFolder
from topology.live import last_seq_of
from topology.summary import began_with
from topology.wiring import space_of

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see

#: Attempts to read the newest checkpoint: the stream may remove it during an attempt.
_TRIES = 5


class Checkpointed(NamedTuple):
    """Up to where a copy goes.

    last_seq : int    of the last message
    taken_s : float    when the checkpoint was made, in seconds since 1970
    running : bool    whether a process writes to the folder
    """

    last_seq: int
    taken_s: float
    running: bool

    @property
    def text(self) -> str:
        """For people."""
        taken = time.strftime("%H:%M:%S", time.gmtime(self.taken_s))
        more = "the stream is running" if self.running else "it was not ended: resume it for the rest"
        return f"as of message {self.last_seq:,}, checkpoint of {taken} UTC; {more}"


def has_not_ended(folder: Path, report: Mapping[str, Any]) -> bool:
    """Whether a folder is that of a live stream which runs, or has not ended in order; `report` is its `run.json`."""
    ended = report.get("state") == FINISHED or report.get("digest") is not None or "log_bytes" in report
    return bool(report.get("live")) and not ended and (folder / LOG).exists()


def copy_checkpointed(folder: Path, report: Mapping[str, Any], out: Path) -> Checkpointed:
    """Write what is complete of a stream that has not ended to another folder, as a run folder without results.

    Parameters
    ----------
    folder : Path
        Of the stream.
    report : mapping
        Its `run.json`.
    out : Path
        An empty folder, or none yet.

    Raises
    ------
    InputError
        If there is no checkpoint so far.
    CheckpointError
        If the log or the checkpoints are damaged.

    Notes
    -----
    O(updates of the checkpoint), some microseconds a record of the log, and 10 us a change of subscriptions.
    """
    found = _copy_updates(folder, str(report.get("run")), out / "updates")
    history = History(folder, report["live"])
    through = history.bytes_through(found.last_seq)
    (out / LOG.parent).symlink_to((folder / LOG.parent).absolute())
    config = stream_config(folder, report["live"], out)
    (out / REPORT).write_text(json.dumps({"live": report["live"], "log_bytes": through}))
    copy = History(out, report["live"], through)
    kinds = {str(row.get("kind")) for row in copy.changes()}
    of_log = [kind for kind in KINDS if kind.name in kinds], copy.messages, copy.marks
    facts = {**began_with(config), **facts_of(out, report["live"], space_of(config), *of_log), **paths_of(out)}
    (out / REPORT).write_text(json.dumps({**report, **facts, "log_bytes": through}))
    return found


def settings_of_stream(folder: Path, copy: Path) -> tuple[dict[str, Any], str]:
    """The settings with which a run over a live stream's messages, changes and boundaries gives the same updates.

    Parameters
    ----------
    folder : Path
        Of the stream.
    copy : Path
        Where the folder of what is complete of a stream goes that has not ended.

    Returns
    -------
    dict, str
        And up to where the copy goes, for people; empty if the stream has ended.

    Raises
    ------
    InputError, CheckpointError, DeliveryError
        As `copy_checkpointed`; if the folder is of no live stream, or the copy cannot be written.
    """
    report, text = RunFolder(folder).report(), ""
    if not report.get("live"):
        raise InputError("no_run", f"{folder}: is of no live stream; name another folder")
    if has_not_ended(folder, report):
        with writing_to(copy):
            copy.mkdir(parents=True)
            folder, text = copy, copy_checkpointed(folder, report, copy).text
    own = {"messages": folder, "subscriptions": (str(folder),), "batch": f"log:{folder}"}
    live = {"objects": False} | report["live"]  # earlier releases had messages alone
    return {**{name: live[name] for name in ANSWER_SETTINGS}, **own}, text


def _copy_updates(folder: Path, run: str, out: Path) -> Checkpointed:
    """Copy the updates of the newest checkpoint."""
    out.mkdir(parents=True)
    store = CheckpointStore(str(folder / CHECKPOINTS))
    refused = CheckpointError(f"{folder / CHECKPOINTS}: no checkpoint can be read; try again")
    for _ in range(_TRIES):
        manifest = store.newest() if (folder / CHECKPOINTS).is_dir() else None
        if manifest is None or manifest.facts.get("run") != run:
            if store.refused:
                refused = CheckpointError(store.refused[0])
                continue
            raise InputError("no_run", f"{folder}: this stream has no checkpoint so far; try again in some seconds")
        try:
            taken_s = (folder / CHECKPOINTS / manifest_name(manifest.epoch)).stat().st_mtime
            last_seq = _copy_of(folder, manifest, joined(store.load(manifest).tasks("delivery")), out)
        except (CheckpointError, FileNotFoundError) as error:
            refused = CheckpointError(f"{folder / CHECKPOINTS}: a newer checkpoint replaced the one read ({error})")
            continue
        return Checkpointed(last_seq, taken_s, RunFolder(folder).writer() is not None)
    raise refused


def _copy_of(folder: Path, manifest: Manifest, state: Mapping[str, np.ndarray], out: Path) -> int:
    """Copy the updates of a checkpoint, and return the last seq that it covers.

    Raises FileNotFoundError if a file was removed or renamed.
    """
    last_seq = last_seq_of(state)
    for path in out.iterdir():
        path.unlink()  # of another try
    listed = parts_list(folder / "updates")
    published = {path.name: path for path in (folder / "updates").glob("part-*")}
    gone = sorted(listed.keys() - published.keys())
    if gone:
        raise InputError("missing_file", f"{folder / 'updates' / gone[0]}: is gone; restore a backup")
    already = _published_since(published, int(state["sink:part"])) if "sink:part" in state else PublishedParts()
    for temporary, name in manifest.outputs:
        published.setdefault(Path(name).name, folder / temporary)
        if name in manifest.parts:
            listed = {**listed, Path(name).name: ListedPart(**manifest.parts[name])}
    for name, path in sorted(published.items()):
        if last_as_of(path, listed.get(name)) <= last_seq:
            check_part(path, listed.get(name))
            (out / name).symlink_to(path.absolute())
            (out / name).stat()
        else:  # published by a checkpoint after this one
            table = read_part(path, listed.get(name))
            pq.write_table(table.filter(pc.less_equal(table["as_of"], last_seq)), out / name)
    saved = undelivered(state)
    if len(saved) and already:
        hashes = hash_names(Names.of(saved["subscription_id"].to_pylist()))
        saved = saved.filter(pa.array(~already.has(saved["as_of"].to_numpy(), hashes)))
    if len(saved):
        pq.write_table(saved, out / "part-saved.parquet")
    return last_seq


def _published_since(published: Mapping[str, Path], number: int) -> PublishedParts:
    """The updates in parts of this number or above: those published after the checkpoint whose next part it is.

    The checkpoint may have saved some of them, too.
    """
    names = [PartName.of(name) for name in published]
    newer = [name for name in names if name.number >= number]
    rows = [(name.task, name.tasks, last_as_of(published[name.text])) for name in newer]
    return PublishedParts(np.array(rows, np.int64))
