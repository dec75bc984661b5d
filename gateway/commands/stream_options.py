"""What `skyray live` and `skyray serve` have in common: options of a stream, and subscriptions that it starts with."""

import sys
from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.commands.run import ENGINES
from gateway.shell.options import of_model, of_signature
from gateway.shell.terminal import cell

if TYPE_CHECKING:
    from gateway.live.pipe import Pipe

StartingVocabulary = Annotated[
    Path | None,
    typer.Option(
        help="Output folder of `skyray etl`, whose words, weights and world the stream starts with; by default it "
        "starts without words, and its world is the earth.",
    ),
]
AttributeNames = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<name:type>",
        help="Attribute that messages have, for `where` of subscriptions: NAME:TYPE or NAME=PATH:TYPE; the type is "
        "number, category or time. With --vocabulary they are those of its folder.",
    ),
]
StemLanguage = Annotated[
    str,
    typer.Option(
        metavar="<language>",
        help="Language for stemming, such as english, in messages as in subscriptions; none by default. With "
        "--vocabulary it is that of its folder.",
    ),
]
StartingSubscriptions = Annotated[
    list[Path] | None,
    typer.Option(metavar="<path>", help="Files of subscriptions that are active from the start."),
]
BatchRows = Annotated[
    int,
    typer.Option(
        "--batch-rows",
        min=1,
        max=1_000_000,
        help="Messages and changes of a batch of a live stream at most.",
    ),
]
LingerMs = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=60_000.0,
        help="Milliseconds that a message or change waits for others at most.",
    ),
]
MessageSource = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="<uri>",
        help="Broker whose messages are read, beside all others: nats://HOST:PORT/STREAM?consumer=NAME (JetStream), "
        "kafka://HOST:PORT/TOPIC?group=NAME, or feed:FOLDER, which a Spark job fills. Each is read once: how far is in "
        "the folder's log, not at the broker.",
    ),
]
PagePort = Annotated[int, typer.Option("--port", min=0, max=65_535, help="0: any that is free.")]
MapTiles = Annotated[
    str,
    typer.Option(
        "--tiles",
        metavar="URL",
        help="Tiles for the page's map, such as https://HOST/{{z}}/{{x}}/{{y}}.png, or .pbf or .mvt for vector tiles; "
        "without, it has coasts, borders and large cities.",
    ),
]
MapTilesBy = Annotated[
    str,
    typer.Option(
        "--tiles-by",
        metavar="TEXT",
        help="Who is named on the map as their maker.",
    ),
]
World = Annotated[str, typer.Option(help="What is covered, as in `skyray run`.")]
Distance = Annotated[str, typer.Option(help="sphere or plane, as in `skyray run`.")]
#: Settings that the help pages of both show.
SHOWN = (
    *("out", "from", "to", "vocabulary", "subscriptions", "attribute", "stem"),
    *("world", "distance", "window", "decay_half_life", "router", "query_bolts", "executor"),
)
#: How fields of `EtlOptions` end that name columns.
_COLUMN = "_column"


def live_settings() -> Iterator[Parameter]:
    """The options of a live stream that are settings of its topology."""
    from topology.settings import NOT_LIVE, LiveConfig

    more = of_model(LiveConfig, engine=ENGINES, window_index=". {windows}")
    return (parameter for parameter in more if parameter.name not in NOT_LIVE)


def column_options() -> Iterator[Parameter]:
    """The options that name columns of messages."""
    from gateway.live.mapping import ROLES
    from spark_etl.options import EtlOptions

    options = of_signature(EtlOptions, lambda name: name.removesuffix(_COLUMN))
    return (option for option in options if option.name.endswith(_COLUMN) and option.name[: -len(_COLUMN)] in ROLES)


def named_columns(options: dict[str, Any]) -> dict[str, str]:
    """The columns that these options name, by role."""
    return {name.removesuffix(_COLUMN): column for name, column in options.items()}


def subscribe_all(pipe: "Pipe", files: list[Path]) -> dict[str, int]:
    """Register the subscriptions of files; returns the numbers accepted and refused. Raises InputError."""
    from matching.kinds import KINDS
    from matching.reasons import explain
    from spouts.lines import read_rows

    counts = {"subscriptions": 0, "rejected": 0}
    for path in files:
        for number, row in read_rows(path):
            if isinstance(row, str):
                reason, what = row, explain(row, KINDS)
            else:
                columns = {name: value for name, value in row.items() if name not in ("at", "until")}
                refused = pipe.subscribe(columns)
                reason, what = (refused.reason, refused.what) if refused else (None, "")
            counts["subscriptions" if reason is None else "rejected"] += 1
            if reason is not None:
                say(f"{cell(path)}, line {number} refused, {reason}: {cell(what)}")
    pipe.close_batch()
    return counts


def say(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
