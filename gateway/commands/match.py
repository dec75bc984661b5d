"""`skyray match`: which subscriptions a message would reach, without a run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.commands import stream_options as stream
from gateway.shell.listing import listing
from gateway.shell.options import Command, Json, example, shares
from gateway.shell.terminal import Terminal, table, write_lines

app = typer.Typer()


@app.command(
    cls=Command,
    epilog=example('skyray match --subscriptions mine.jsonl --messages etl --text "ramen is open" --at 139.7,35.7'),
)
@shares("stream")
def match(
    subscriptions: Annotated[list[Path], typer.Option(help="Files of subscriptions: JSON Lines, CSV or Parquet.")],
    messages: Annotated[Path, typer.Option(help="Output folder of `skyray etl`: its vocabulary and its world.")],
    text: Annotated[str, typer.Option(help="What the message says.")],
    at: Annotated[str, typer.Option(metavar="LON,LAT", help="Where it lies, in degrees.")],
    world: stream.World = "extent",
    distance: stream.Distance = "sphere",
    attribute: Annotated[
        list[str] | None,
        typer.Option(metavar="<name=value>", help="What else the message has, as price=500 (repeat it)."),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Subscriptions shown at most; 0: all.")] = 20,
    json: Json = False,
) -> int:
    """Say which subscriptions a message would reach, and why not the others.

    Kinds that keep the k best messages would have it unless better ones exist: for a run, skyray explain says whether
    they do.
    """
    from gateway.commands.run_summary import print_rejected
    from gateway.runs.reaching import reach, why_not

    terminal = Terminal(json)
    answer = reach(subscriptions, messages, text, at, world, attributes=attribute or (), distance=distance)

    def render(out: Any) -> None:
        out.print(f"words: {', '.join(answer['words']) or 'none that a message has'}")
        if answer["unknown"]:
            out.print(f"words that no message has: {', '.join(answer['unknown'])}")
        out.print(f"reaches {len(answer['reached']):,} of {answer['subscriptions']:,} subscriptions")
        rows = [
            [one["subscription_id"], one["kind"], one["score"], " ".join(one["words"])]
            for one in answer["reached"][: limit or None]
        ]
        write_lines(listing(("subscription", "kind", "score", "words found"), rows, out.width, right=("score",)))
        if answer["missed"]:
            missed = [[one["subscription_id"], one["kind"], one["clause"]] for one in answer["missed"]]
            write_lines(listing(("query failed", "kind", "failed clause"), missed, out.width))
        for title, counts in (("not reached", answer["not_reached"]), ("rejected rows", answer["rejected"])):
            if counts:
                why = [[count, reason, why_not(reason)] for reason, count in counts.items()]
                out.print(table((title, "reason", "what it means"), why, right=(0,)))
        print_rejected(out, answer["first_rejected"])

    terminal.answer(answer, render)
    return 0
