"""Progress of a live stream, read from its folder, in any state.

A producer that can resend from any line gets the next line here.
"""

from contextlib import closing
from pathlib import Path
from typing import Any

from gateway.live.acknowledged import refuse_lost
from gateway.live.write_ahead_log import has_begun
from spouts.history import LOG
from spouts.log import LogReader
from topology.folder import RUNNING, RunFolder

#: No line was ever accepted; the process of a running stream has died.
NEW, KILLED = "new", "killed"


def read_status(folder: Path) -> dict[str, Any]:
    """State and progress of the live stream of a folder.

    Returns
    -------
    dict
        `folder`; `state`: new, running, killed, interrupted, failed or finished; `process` that runs it, or None;
        `line`, the last durable line of input, 0 if none; `next_line`, the line after it;
        `source`, names of message sources with the last offset of each partition, or None;
        `messages` (without marks of a clock) and `batches` in the log; `error` that ended it, or None.

    Raises
    ------
    ConfigError
        If the folder holds something else.
    CheckpointError
        If the log is damaged, or lacks what was acknowledged.

    Notes
    -----
    Reads the heads of the log's records: some microseconds a batch. Forces the log to disk first.
    """
    run, line, seq, batches, marks = RunFolder(folder), 0, -1, 0, 0
    report: dict[str, Any] = {}
    sources: dict[str, dict[str, int]] = {}
    state = NEW
    process = run.writer()
    if has_begun(folder):
        report = run.report()
        state = KILLED if report["state"] == RUNNING else report["state"]
        with closing(LogReader(folder / LOG)) as log:
            log.force()
            while (record := log.skim()) is not None:
                line, marks = record.line, marks + record.mark + record.marks
                for name, partitions in record.positions.items():
                    sources.setdefault(name, {}).update({key: at for key, (at, _) in partitions.items()})
                if record.last_seq >= 0:
                    seq, batches = record.last_seq, batches + 1
            if process is None:
                refuse_lost(folder, folder / LOG, log.offset, seq)
    return {
        "folder": str(folder),
        "state": state if process is None else RUNNING,
        "process": process,
        "line": line,
        "next_line": line + 1,
        "messages": seq + 1 - marks,
        "batches": batches,
        "source": sources or None,
        "error": report.get("error") if process is None else None,
    }
