"""`skyray preview`: what subscriptions would have matched in the past."""

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.commands import stream_options as stream
from gateway.shell.listing import fitted
from gateway.shell.options import Command, Json, example, shares
from gateway.shell.terminal import Terminal, cell

app = typer.Typer()


@app.command(cls=Command, epilog=example("skyray preview --messages etl --subscriptions mine.jsonl"))
@shares("stream")
def preview(
    subscriptions: Annotated[list[Path], typer.Option(help="Files of subscriptions: JSON Lines, CSV or Parquet.")],
    messages: Annotated[Path, typer.Option(help="Output folder of `skyray etl`: the past.")],
    world: stream.World = "extent",
    distance: stream.Distance = "sphere",
    shown: Annotated[int, typer.Option(min=0, help="Messages shown of each subscription, the newest first.")] = 3,
    limit: Annotated[int, typer.Option(min=0, help="Subscriptions shown at most; 0: all.")] = 20,
    json: Json = False,
) -> int:
    """Say how often subscriptions would have matched in the past, and which condition leaves out most.

    A day and a week are the last ones of the folder. Of kinds that keep the best messages, those that match compete.
    Exit code 1 if a row is refused.
    """
    from gateway.subscriptions.preview import preview_subscriptions

    terminal = Terminal(json)
    with terminal.steps("preview"):
        previewed = preview_subscriptions(subscriptions, messages, world, shown, distance=distance)
        rows = list(islice(previewed, limit or None))
    terminal.answer({"subscriptions": rows}, lambda out: print_preview(out, rows))
    return 1 if any(row["reason"] for row in rows) else 0


def print_preview(out: Any, rows: list[dict[str, Any]]) -> None:
    """Each subscription in a few lines."""
    for row in rows:
        name = cell(row["subscription_id"])
        if row["reason"]:
            out.print(f"{name}: refused, {row['reason']}: {cell(row['what'])}", markup=False, soft_wrap=True)
            continue
        recent = "" if row["day"] is None else f"; in the last day {row['day']:,}, in the last week {row['week']:,}"
        rate = "" if row["per_day"] is None else f", {row['per_day']:.3g} a day"
        out.print(
            f"{name}: {row['kind']}, {row['messages']:,} of the {row['candidates']:,} messages with a keyword"
            f"{rate}{recent}",
            markup=False,
            soft_wrap=True,
        )
        most = row["conditions"][0] if row["conditions"] else None
        if most is not None and most["without"]:
            out.print(f"    without {most['name']} there would be {most['without']:,} more", markup=False)
        for message in row["newest"]:
            line = f"    {message['time'] or ''} {message['lon']:.2f} {message['lat']:.2f} {cell(message['text'])}"
            out.print(fitted(line, out.width), markup=False)
