"""`skyray show`: who got what in a run, whatever state it is in.

`gateway/commands/show.py` -> `gateway/showing.py` (joins what was told with texts and places) -> `gateway/reading.py`
(reads a run folder back); pictures are drawn in `gateway/picture.py`.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.options import Command, Json, example
from gateway.terminal import Terminal, cell, console, say
from matching.errors import ConfigError

#: How often a run that goes on is looked at.
POLL_S = 0.5

app = typer.Typer()


@app.command(cls=Command, epilog=example("skyray show runs/first s1 s2 --map s1.png"))
def show(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, in any state.")],
    subscriptions: Annotated[
        list[str] | None, typer.Argument(metavar="SUBSCRIPTION", help="Ids; a few by default.")
    ] = None,
    updates: Annotated[bool, typer.Option("--updates", help="What was told, as a stream, oldest first.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="The same, and what is still to come, as it gets its name; until it ends.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0, help="Results of each subscription, or last updates, at most; 0: all. By default 10, or 20."
        ),
    ] = None,
    picture: Annotated[Path | None, typer.Option("--map", help="Draw the results on a map: PNG, SVG or PDF.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, one row a result or update.")] = False,
    json: Json = False,
) -> int:
    """Show who got what: the words found, the text, place, distance and score.

    Without ids a few subscriptions that hold something are shown, spread over all of them. A run tells what has got a
    name in updates/, as soon as a checkpoint covers it. With --follow, --json prints one object a
    line.
    """
    from gateway.reading import Reading

    if csv and json:
        raise ConfigError("--csv and --json exclude each other; drop one")
    if picture is not None and (updates or follow):
        raise ConfigError("--map draws results; leave --updates and --follow out")
    reading, wanted, terminal = Reading(run_dir), subscriptions or [], Terminal(json)
    if follow:
        return _follow(reading, wanted, 20 if limit is None else limit, csv, json)
    if updates:
        return _updates(terminal, reading, wanted, 20 if limit is None else limit, csv)
    return _results(terminal, reading, wanted, 10 if limit is None else limit, csv, picture)


def _results(terminal: Terminal, reading: Any, wanted: list[str], limit: int, csv: bool, picture: Path | None) -> int:
    from gateway.showing import flat_results, result_table, who_got_what, write_csv

    payload = who_got_what(reading, wanted, limit)
    if picture is not None:
        from gateway.picture import draw_results

        draw_results(payload, picture)
        payload["map"] = picture
    if csv:
        write_csv(flat_results(payload))
        return 0

    def render(out: Any) -> None:
        told = cell({change: f"{count:,}" for change, count in payload["updates"].items()}) or "nothing"
        out.print(f"{cell(reading.folder)}: {payload['state']}; updates told: {told}")
        if payload["subscriptions"]:
            out.print(result_table(payload))
        if not wanted and payload["holding"] > len(payload["subscriptions"]):
            out.print(f"{payload['holding']:,} subscriptions hold something; name some, or give --limit 0 for all")
        if picture is not None:
            out.print(f"drawn: {cell(picture)}")

    terminal.answer(payload, render)
    return 0


def _updates(terminal: Terminal, reading: Any, wanted: list[str], limit: int, csv: bool) -> int:
    from gateway.showing import update_rows, update_table, write_csv

    rows = update_rows(reading, wanted, limit)
    if csv:
        write_csv(rows)
    else:
        payload = {"run": str(reading.folder), "state": reading.state, "updates": rows}
        terminal.answer(payload, lambda out: out.print(update_table(rows) if rows else "no updates yet"))
    return 0


def _follow(reading: Any, wanted: list[str], limit: int, csv: bool, json: bool) -> int:
    from gateway.showing import json_line, update_line, update_rows, write_csv

    seen: set[Path] = set()
    begun = False
    while True:
        goes_on = reading.goes_on()  # asked before looking: what it then finds is all there will be
        parts = [path for path in reading.parts() if path not in seen]
        seen.update(parts)
        rows = update_rows(reading, wanted, 0 if begun else limit, parts) if parts else []
        if csv:
            write_csv(rows, header=not begun)
        else:
            for row in rows:
                say(json_line(row) if json else update_line(row))
        begun = begun or bool(rows)
        if not goes_on:
            if not json and not csv:
                console(errors=True).print(f"{cell(reading.folder)}: {reading.state}")
            return 0
        time.sleep(POLL_S)
