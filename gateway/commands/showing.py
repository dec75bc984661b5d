"""Prints the results or updates of a run, or draws its results, for `skyray show`."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.runs.picture import draw_results
from gateway.runs.reader import RunReader
from gateway.runs.showing import (
    RESULT_COLUMNS,
    flat_results,
    result_lines,
    result_lists,
    result_stream,
    update_columns,
    update_line,
    update_lines,
    update_stream,
    write_csv,
)
from gateway.shell.terminal import Terminal, as_json, cell, console, flushed, say_checkpoint
from matching.errors import ConfigError, TopologyError
from topology.folder import DIED

#: Seconds between two reads of a running run's folder.
POLL_S = 0.5


def show_run(
    run_dir: Path,
    wanted: list[str],
    updates: bool,
    follow: bool,
    limit: int | None,
    picture: Path | None,
    csv: bool,
    json: bool,
) -> int:
    """`skyray show` without `--page`."""
    if csv and json:
        raise ConfigError("--csv and --json exclude each other; drop one")
    if picture is not None and (updates or follow):
        raise ConfigError("--map draws results; leave --updates and --follow out")
    run, terminal = RunReader(run_dir), Terminal(json)
    say_checkpoint(run.checkpoint)
    if follow and run.checkpoint:
        raise ConfigError(
            f"--follow: {run.folder} is of a live stream, whose updates `skyray live` prints, and `skyray serve` sends "
            "to those who GET /v1/updates; leave it out"
        )
    if follow:
        return _follow(run, wanted, 20 if limit is None else limit, csv, json)
    if updates:
        return _updates(terminal, run, wanted, 20 if limit is None else limit, csv)
    return _results(terminal, run, wanted, 10 if limit is None else limit, csv, picture)


def _results(terminal: Terminal, run: Any, wanted: list[str], limit: int, csv: bool, picture: Path | None) -> int:
    if picture is None:
        payload = result_stream(run, wanted, limit)
    else:
        payload = result_lists(run, wanted, limit)
        payload |= {"map": picture, "not_drawn": draw_results(payload, picture)}
    if csv:
        free = run.free_columns(set(wanted) or None)
        write_csv(flat_results(payload), ["subscription_id", *dict.fromkeys([*free, *RESULT_COLUMNS])])
        return 0

    def lines(width: int) -> Iterator[str]:
        yield from result_lines(payload, run, width)
        if picture is not None:
            yield f"drawn: {cell(picture)}"
            yield from payload["not_drawn"]

    terminal.stream(payload, lines)
    return 0


def _updates(terminal: Terminal, run: Any, wanted: list[str], limit: int, csv: bool) -> int:
    run.known(wanted)
    rows = update_stream(run, wanted, limit)
    if csv:
        write_csv(rows, update_columns(run, wanted))
    else:
        payload = {"run": str(run.folder), "state": run.state, "updates": rows}
        terminal.stream(payload, lambda width: update_lines(rows, run, width))
    return 0


def _follow(run: Any, wanted: list[str], limit: int, csv: bool, json: bool) -> int:
    seen: set[Path] = set()
    begun = False
    width = console().width
    names = update_columns(run, wanted) if csv else []
    while True:
        running = run.is_running()  # before listing the parts: if it has ended, they are all
        parts = [path for path in run.parts() if path not in seen]
        seen.update(parts)
        rows = update_stream(run, wanted, 0 if begun else limit, parts)
        if csv:
            begun = write_csv(rows, names, header=not begun) or begun
        else:
            for row in flushed(rows):
                sys.stdout.write((as_json(row) if json else update_line(row, run, width)) + "\n")
                begun = True
        if not running:
            if run.state == DIED:
                raise TopologyError(
                    f"{run.folder}: {DIED}: no more updates come; resume with skyray run --resume {run.folder}"
                )
            if not json and not csv:
                console(errors=True).print(f"{cell(run.folder)}: {run.state}")
            return 0
        time.sleep(POLL_S)
