"""Options that `skyray run`, `skyray live` and `skyray serve` have in common."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from gateway.live.retain_settings import RetainSettings
from gateway.shell.logs import LogFormat
from gateway.shell.options import of_model, of_signature
from gateway.shell.per_kind import WORDS
from matching.errors import ConfigError
from spark_etl.options import ROLES, EtlOptions
from topology.settings import NOT_LIVE, LiveConfig

#: Sections of the settings that a run and a stream read.
READ = ("input", "output", "stream", "topology", "recovery", "reservations", "metrics")
#: Words that follow the descriptions of settings in their help.
MORE = {
    "engine": f". {WORDS['engines']}; of papers and opponents: docs/papers.md",
    "window_index": f". {WORDS['windows']}",
}
SinkPatience = Annotated[
    float,
    typer.Option(
        "--to-wait-s",
        min=0.0,
        max=1e6,
        help="Seconds without progress after which the command ends, with exit code 75, although --to lacks updates.",
    ),
]
UpdateSinks = Annotated[
    list[str] | None,
    typer.Option(
        "--to",
        metavar="<uri>",
        help="Where all updates go, beside the folder: postgresql://USER@HOST/DATABASE?schema=NAME (with the standing "
        "results, exactly once), kafka://HOST:PORT/TOPIC or nats://HOST:PORT/STREAM; may be repeated.",
    ),
]

#: Fields of `StreamOptions` that are not named like their setting.
_CALLED = {"from_": "from", "batch": "batch_rows"}


@dataclass(frozen=True)
class StreamOptions:
    """Settings of a live stream, beside those of its topology; annotated fields are options of both commands.

    Raises
    ------
    ConfigError
        For a number out of its range.
    """

    out: Annotated[Path | None, "folder with the write-ahead log; a stream that it has is resumed"] = None
    from_: Annotated[
        str,
        "broker whose messages are read, beside all others: nats://HOST:PORT/STREAM?consumer=NAME (JetStream), "
        "kafka://HOST:PORT/TOPIC?group=NAME, or feed:FOLDER, which a Spark job fills. Each is read once: how far is in "
        "the folder's log, not at the broker",
    ] = ""
    vocabulary: Annotated[
        Path | None,
        "output folder of `skyray etl`, whose words, weights and world the stream starts with; by default it starts "
        "without words, and its world is the earth",
    ] = None
    attribute: Annotated[
        tuple[str, ...],
        "attribute that messages have, for `where` of subscriptions: NAME:TYPE or NAME=PATH:TYPE; the type is number, "
        "category, time or text (not compared, only carried by updates). With --vocabulary its folder declares them",
    ] = ()
    strict_attributes: Annotated[
        bool, "refuse messages with a value that does not fit its attribute; by default the value is missing"
    ] = False
    numbers: Annotated[
        str,
        "form of numbers that are text: plain (1200.5), point (1,200.50) or comma (1.200,50), these two also with a "
        "unit before or behind, such as 284 EUR",
    ] = "plain"
    stem: Annotated[
        str,
        "language for stemming, such as english, in messages as in subscriptions; none by default. With --vocabulary "
        "it is that of its folder",
    ] = ""
    fold_accents: Annotated[
        bool, "let cafe find café, in messages as in subscriptions. With --vocabulary it is that of its folder"
    ] = False
    subscriptions: Annotated[tuple[Path, ...], "files of subscriptions that are active from the start"] = ()
    batch: Annotated[int, "messages and changes of a batch at most"] = 5_000
    log_format: Annotated[
        LogFormat, "form of the log on standard error: text has NAME=VALUE (logfmt), json an object a line"
    ] = "text"
    linger_ms: Annotated[
        float | None, "milliseconds that one waits for others at most; by default 50, and 5 of a server"
    ] = None

    def __post_init__(self) -> None:
        if self.log_format not in get_args(LogFormat):
            raise ConfigError(f"--log-format {self.log_format}: give one of {', '.join(get_args(LogFormat))}")
        for name, least, most in (("batch", 1, 1_000_000), ("linger_ms", 0, 60_000)):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"stream.{_CALLED.get(name, name)} {value}: give a number, {least:,} to {most:,}")


@dataclass(frozen=True)
class ServerOptions:
    """Settings of a server; annotated fields are options of `skyray serve`, or of `skyray show --page`."""

    port: Annotated[int, "0: any that is free"] = 8080
    host: Annotated[str, "address to listen on; for one of other machines there must be keys"] = "127.0.0.1"
    keys: Annotated[Path | None, "file of the keys; by default keys.json of the folder"] = None
    require_key: Annotated[bool, "ask for a key even if there is none"] = False
    allowed_host: Annotated[tuple[str, ...], "name by which the server may be called; may be repeated"] = ()
    allow_origin: Annotated[
        tuple[str, ...], "URL of the origin of a page elsewhere whose scripts may call it; may be repeated"
    ] = ()
    trusted_proxy: Annotated[
        tuple[str, ...],
        "address, or network such as 10.0.0.0/8, of a proxy whose X-Forwarded-For names the client; may be repeated. "
        "Nobody else's is read",
    ] = ()
    tiles: Annotated[
        str,
        "URL of tiles for the page's map, such as https://HOST/{z}/{x}/{y}.png, or .pbf or .mvt for vector "
        "tiles; without, it has coasts, borders and large cities",
    ] = ""
    tiles_by: Annotated[str, "who is named on the map as their maker"] = ""
    demo: Annotated[
        bool,
        "add generated subscriptions of every kind and messages that reach them, to see updates at once; without --out "
        "in a new temporary folder",
    ] = False
    demo_rate: Annotated[float | None, "messages of the demo a second; 20 by default"] = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"--port {self.port}: give a number, 0 to 65535")
        if self.demo_rate is not None and not 0.1 <= self.demo_rate <= 10_000:
            raise ConfigError(f"server.demo_rate {self.demo_rate:g}: give a number, 0.1 to 10,000")


def stream_options() -> Iterator[Parameter]:
    """The options of `StreamOptions`."""
    return of_signature(StreamOptions, lambda name: _CALLED.get(name, name))


World = Annotated[str, typer.Option(help="What is covered, as in `skyray run`.")]
Distance = Annotated[str, typer.Option(help="sphere or plane, as in `skyray run`.")]
#: Options of the section [retain].
RETAINED = tuple(of_signature(RetainSettings, lambda name: name.removeprefix("retain_")))
#: Settings that the help pages of both show.
SHOWN = (
    *("out", "from", "to", "vocabulary", "subscriptions", "attribute", "stem"),
    *("world", "distance", "window", "objects", "decay_half_life", "router", "query_bolts", "executor"),
)
#: Options that no help page shows.
QUIET = ("log_format",)
#: How fields of `EtlOptions` end that name columns.
_COLUMN = "_column"


def live_settings() -> Iterator[Parameter]:
    """The options of a live stream that are settings of its topology."""
    return (parameter for parameter in of_model(LiveConfig, **MORE) if parameter.name not in NOT_LIVE)


def column_options() -> Iterator[Parameter]:
    """The options that name columns of messages."""
    options = of_signature(EtlOptions, lambda name: name.removesuffix(_COLUMN))
    return (option for option in options if option.name.endswith(_COLUMN) and option.name[: -len(_COLUMN)] in ROLES)


def named_columns(options: dict[str, Any]) -> dict[str, str]:
    """The columns that these options name, by role."""
    return {name.removesuffix(_COLUMN): column for name, column in options.items()}


def say(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
