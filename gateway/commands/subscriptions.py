"""`skyray subscriptions generate`, of real messages, and `skyray subscriptions check`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.commands import stream_options as stream
from gateway.shell.groups import Group
from gateway.shell.listing import listing
from gateway.shell.options import Command, Defined, Json, example, of_signature, shares
from gateway.shell.per_kind import WORDS
from gateway.shell.terminal import Terminal, cell, write_lines
from gateway.subscriptions.generate import generate_subscriptions
from matching.errors import ConfigError
from matching.kinds import KINDS

app = typer.Typer(cls=Group, name="subscriptions", help="Subscription files.", no_args_is_help=True)


@app.command(
    cls=Command,
    epilog=example("skyray subscriptions generate --messages etl --kind topk --count 20000 --out topk.jsonl"),
)
def generate(
    messages: Annotated[Path, typer.Option(help="Output folder of `skyray etl`.")],
    kind: Annotated[str, typer.Option(help=f"{WORDS['kinds']}.")],
    count: Annotated[int, typer.Option(min=1, help="How many.")],
    out: Annotated[Path, typer.Option(help="JSON Lines file to write.")],
    recipe: Annotated[dict[str, Any], Defined(of_signature(generate_subscriptions))],
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same bytes.")] = 0,
    json: Json = False,
) -> int:
    """Make subscriptions from the words and points of real messages, by the papers' recipes."""
    if kind not in KINDS:
        raise ConfigError(f"--kind {kind}: choose one of {', '.join(KINDS.names)}")
    payload = generate_subscriptions(messages, kind, count, seed, out, **recipe)
    Terminal(json).answer(payload, lambda shown: shown.print(f"{count:,} {kind} subscriptions written to {cell(out)}"))
    return 0


@app.command(cls=Command, epilog=example("skyray subscriptions check mine.csv --messages etl"))
@shares("stream")
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Subscriptions: JSON Lines, CSV or Parquet.")],
    messages: Annotated[Path, typer.Option(help="Output folder of `skyray etl`: its words, world and times.")],
    world: stream.World = "extent",
    distance: stream.Distance = "sphere",
    limit: Annotated[int, typer.Option(min=0, help="Rows shown at most, rejected ones first; 0: all.")] = 40,
    json: Json = False,
) -> int:
    """Say of each row of subscription files whether a run takes it, and how many messages match.

    Matches a day are counted over the messages of the folder. Exit code 1 if any row is rejected.
    """
    from gateway.subscriptions.checking import check_subscriptions

    terminal = Terminal(json)
    with terminal.steps("subscriptions check"):
        report = check_subscriptions(files, messages, world, distance=distance)
    terminal.answer(report, lambda out: print_check(out, report, limit))
    return 1 if report["rejected"] else 0


def print_check(out: Any, report: dict[str, Any], limit: int) -> None:
    """The verdicts for people, rejected rows and those that cannot match first."""
    ranked = sorted(report["rows"], key=lambda row: (row["verdict"] != "rejected", not row["what"]))
    several = len({row["file"] for row in report["rows"]}) > 1
    rows = []
    for row in ranked[: limit or None]:
        where = f"{row['file']}:{row['line']}" if several else row["line"]
        words = ", ".join(row.get("unknown_words", ()))
        verdict = row["reason"] or row["verdict"]
        rate = row.get("matches_per_day")
        shown = None if rate is None else f"{rate:.3g}" if rate < 1000 else f"{rate:,.0f}"
        rows.append([where, row.get("subscription_id"), verdict, row.get("messages"), shown, words, row["what"]])
    unknown = "words no message has"
    headings = ("line", "subscription", "verdict", "messages", "matches/day", unknown, "what")
    write_lines(listing(headings, rows, out.width, right=headings[3:5], below=("what", unknown)))
    if len(ranked) > len(rows):
        out.print(f"and {len(ranked) - len(rows):,} rows more (--limit)")
    out.print(f"{report['accepted']:,} accepted, {report['rejected']:,} rejected", end="")
    out.print(f": {cell(report['rejected_by_reason'])}" if report["rejected"] else "")
    if report["replaced"]:
        out.print(f"several rows have the id {cell(report['replaced'][:5])}: the later replaces the earlier")
    out.print(report["estimate"] if report["days"] else "no matches a day: the messages have no times")
