"""The command line: what people and scripts type, and the start of the way of the data.

Each command reads its options, imports what it needs only then (so that `skyray --help` answers at once), calls one
function of another module and prints its answer. Read on in `topology.wiring` for what `skyray run` starts,
`spark_etl.job` for `skyray etl`, `gateway.verify` for `skyray verify`.

Exit codes: 0 done; 1 done, but the answer is no (not exact, a fault found); 2 wrong use or setting; 3 to 8 the
errors of `matching.errors`; 130 interrupted; 143 terminated.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from gateway.interrupts import Interrupts, run_interruptible
from gateway.packages import check_packages, from_checkout
from gateway.per_kind import KindCommand
from gateway.terminal import Terminal, fail, table
from matching.errors import ConfigError, EngineError, TopologyError

EXIT_CODES = (
    "Exit codes: 0 done, 1 done but the answer is no, 2 wrong use or setting, 3 topology or its Ray failed, "
    "4 unreadable input, 5 damaged checkpoint, 6 output cannot be written, 7 overload, 8 shadowed package, "
    "130 interrupted, 143 terminated."
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML settings (skyray.toml here, if it is there).")]
EtlDir = Annotated[Path | None, typer.Option(help="Output folder of `skyray etl`.")]
Files = Annotated[list[Path] | None, typer.Option(help="Subscription files, JSON Lines or Parquet; one or more.")]
Out = Annotated[Path | None, typer.Option(help="Folder for updates, results and report.")]
WindowText = Annotated[str | None, typer.Option(help="count:N messages or time:SECONDS (count:20000).")]
Executor = Annotated[str | None, typer.Option(help="ray, or local: one process, deterministic (ray).")]
Router = Annotated[
    str | None, typer.Option(help="hashing, location, keyword or prefix; refuses what it cannot place (hashing).")
]
Signatures = Annotated[str | None, typer.Option(help="off, spatial or spatial+text: send query bolts less (off).")]
QueryBolts = Annotated[int | None, typer.Option(help="Tasks that hold subscriptions (2).")]
TupleBolts = Annotated[int | None, typer.Option(help="Tasks that hold the window (1).")]
DistributionBolts = Annotated[int | None, typer.Option(help="Tasks that route messages (1).")]
AggregationBolts = Annotated[int | None, typer.Option(help="Tasks that merge partial answers (1).")]
Engines = Annotated[list[str] | None, typer.Option(help="Engine for a kind, KIND=NAME; may be repeated. {engines}.")]
ThresholdRule = Annotated[
    str | None, typer.Option(help="cost, k_max, sma or rank: thresholds of result buffers (cost).")
]
WindowIndex = Annotated[
    list[str] | None, typer.Option(help="Window index for a kind, KIND=NAME; may be repeated. {windows}.")
]
World = Annotated[str | None, typer.Option(help="W,S,E,N in degrees, earth, or extent of the messages (extent).")]
Projection = Annotated[str | None, typer.Option(help="plate-carree or equal-area (plate-carree).")]
Batch = Annotated[int | None, typer.Option(help="Messages between two boundaries (5000).")]
Credits = Annotated[int | None, typer.Option(help="Batches in flight at most (4).")]
Limit = Annotated[int | None, typer.Option(help="Stop after so many messages.")]
Placement = Annotated[
    str | None,
    typer.Option(help="spread: an actor a task; shared: one for all light tasks; auto: by the cores (auto)."),
]
Address = Annotated[str | None, typer.Option(help="Ray cluster to join, HOST:PORT or auto; else a Ray of its own.")]
Sink = Annotated[str | None, typer.Option(help="parquet, jsonl, or count: digest only (parquet).")]
Interleaving = Annotated[int | None, typer.Option(help="Order in which the local executor interleaves tasks.")]
Overwrite = Annotated[bool | None, typer.Option("--overwrite", help="Replace what is in the output folder.")]
Follow = Annotated[bool | None, typer.Option("--follow", help="Go on reading while the ETL still writes.")]


def group(help_text: str) -> typer.Typer:
    """A command group in house style."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


app = group("Publish/subscribe for streams of geo-tagged text. Start with `skyray demo`.")
subscriptions = group("Subscription files.")
config = group("Settings.")
topology = group("What a run consists of.")
app.add_typer(subscriptions, name="subscriptions")
app.add_typer(config, name="config")
app.add_typer(topology, name="topology")


def example(line: str) -> str:
    """The text under a command's help."""
    return f"Example: {line}\n\n{EXIT_CODES}"


@app.command(cls=KindCommand, epilog=example("skyray demo --out runs/demo"))
def demo(
    out: Annotated[Path, typer.Option(help="Work folder; an earlier demo in it is replaced.")] = Path("runs/demo"),
    min_population: Annotated[int, typer.Option(help="Smallest town: 15000, 5000, 1000 or 500.")] = 15000,
    per_kind: Annotated[int, typer.Option(min=1, help="Subscriptions of each kind{fewer}.")] = 20_000,
    sample: Annotated[int, typer.Option(min=1, help="Subscriptions of each kind to verify.")] = 200,
    json: Json = False,
) -> int:
    """Match the world's towns against tens of thousands of subscriptions and check the answer.

    Writes the places, runs the ETL on Spark, makes subscriptions, runs the topology on Ray and verifies a sample
    against the oracle.
    """
    from gateway.demo import run_demo

    return run_demo(Terminal(json), out, min_population, per_kind, sample)


@app.command(epilog=example("skyray etl tweets.jsonl.gz --out etl --time created_at"))
def etl(
    raw: Annotated[list[str], typer.Argument(help="Files, folders, patterns: JSON Lines (gzip, zstd), CSV, Parquet.")],
    out: Annotated[Path, typer.Option(help="Output folder.")],
    format: Annotated[str, typer.Option(help="auto, jsonl, csv or parquet.")] = "auto",
    text: Annotated[str, typer.Option(help="Column of the text.")] = "text",
    lat: Annotated[str, typer.Option(help="Column of the latitude.")] = "lat",
    lon: Annotated[str, typer.Option(help="Column of the longitude.")] = "lon",
    time: Annotated[str, typer.Option(help="Column of the event time; may be absent.")] = "time",
    id: Annotated[str, typer.Option(help="Column of the id; may be absent.")] = "id",
    delimiter: Annotated[str, typer.Option(help="What separates the columns of a CSV file.")] = ",",
    stem: Annotated[str, typer.Option(help="Language for stemming, such as english; none by default.")] = "",
    stop_share: Annotated[
        float, typer.Option(help="Drop terms in more than this share of the messages; 1 drops none.")
    ] = 1.0,
    world: Annotated[str | None, typer.Option(help="Reject messages outside W,S,E,N.")] = None,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    driver_memory: Annotated[str, typer.Option(help="Memory of Spark's driver.")] = "2g",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output folder.")] = False,
    json: Json = False,
) -> int:
    """Clean raw messages and build their vocabulary with Spark.

    Bad rows go to rejected/ with a reason and are counted; good rows beside them are kept.
    """
    from gateway.commands import etl_messages

    options: dict[str, Any] = {
        "inputs": tuple(raw),
        "out": str(out),
        "input_format": format,
        "text_column": text,
        "lat_column": lat,
        "lon_column": lon,
        "time_column": time,
        "id_column": id,
        "csv_delimiter": delimiter,
        "stem_language": stem,
        "stop_share": stop_share,
        "world": world,
        "master": master,
        "driver_memory": driver_memory,
        "overwrite": overwrite,
    }
    return etl_messages(Terminal(json), options)


@subscriptions.command(
    "generate",
    cls=KindCommand,
    epilog=example("skyray subscriptions generate --messages etl --kind topk --count 20000 --out topk.jsonl"),
)
def subscriptions_generate(
    messages: Annotated[Path, typer.Option(help="Output folder of `skyray etl`.")],
    kind: Annotated[str, typer.Option(help="{kinds}.")],
    count: Annotated[int, typer.Option(min=1, help="How many.")],
    out: Annotated[Path, typer.Option(help="JSON Lines file to write.")],
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same bytes.")] = 0,
    k: Annotated[int | None, typer.Option(help="Size of a result, for kinds that have one.")] = None,
    min_keywords: Annotated[int | None, typer.Option(help="Fewest keywords.")] = None,
    max_keywords: Annotated[int | None, typer.Option(help="Most keywords.")] = None,
    region_share: Annotated[
        float | None, typer.Option(help="Largest side of a region, as a share of the world's; kinds with a region.")
    ] = None,
    until_share: Annotated[float | None, typer.Option(help="Share of subscriptions that end early.")] = None,
    match: Annotated[
        str | None, typer.Option(help="all or any of the keywords, for {match}; the other kinds ask for any.")
    ] = None,
    json: Json = False,
) -> int:
    """Make subscriptions from the words and points of real messages, by the papers' recipes."""
    from gateway.commands import generate

    named = {
        "k": k,
        "min_keywords": min_keywords,
        "max_keywords": max_keywords,
        "region_share": region_share,
        "until_share": until_share,
        "match": match,
    }
    options = {name: value for name, value in named.items() if value is not None}
    return generate(Terminal(json), messages, kind, count, out, seed, options)


@app.command(
    cls=KindCommand,
    epilog=example("skyray run --messages etl --subscriptions boolean.jsonl skyline.jsonl --out runs/first"),
)
def run(
    messages: EtlDir = None,
    subscriptions: Files = None,
    out: Out = None,
    window: WindowText = None,
    executor: Executor = None,
    router: Router = None,
    signatures: Signatures = None,
    query_bolts: QueryBolts = None,
    tuple_bolts: TupleBolts = None,
    distribution_bolts: DistributionBolts = None,
    aggregation_bolts: AggregationBolts = None,
    engine: Engines = None,
    threshold_rule: ThresholdRule = None,
    window_index: WindowIndex = None,
    world: World = None,
    projection: Projection = None,
    batch: Batch = None,
    credits: Credits = None,
    limit: Limit = None,
    placement: Placement = None,
    address: Address = None,
    sink: Sink = None,
    seed: Interleaving = None,
    overwrite: Overwrite = None,
    follow: Follow = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Match a stream of messages against subscriptions.

    Every option can also be set in skyray.toml or as SKYRAY_NAME in the environment; the command line wins.
    """
    options = _settings(locals())
    from gateway.commands import run_topology
    from topology.settings import load_config

    return run_topology(Terminal(json), load_config(options, config))


@app.command(epilog=example("skyray verify runs/first --sample 200"))
def verify(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    everything: Annotated[bool, typer.Option("--all", help="Check every subscription.")] = False,
    sample: Annotated[int | None, typer.Option(min=1, help="Check so many of each kind (200).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which ones are drawn.")] = 0,
    json: Json = False,
) -> int:
    """Check a finished run against the oracle, over all its messages and boundaries.

    Exit code 0 only if every update and every result is exactly the oracle's.
    """
    if everything and sample is not None:
        raise ConfigError("--all and --sample exclude each other; drop one")
    from gateway.commands import verify_against_oracle

    size = None if everything else sample or 200
    return verify_against_oracle(Terminal(json), run_dir, size, seed)


@app.command(
    cls=KindCommand,
    epilog=example("skyray bench boolean --subscriptions 1000000 --engines cell_term,inverted_list --json"),
)
def bench(
    kind: Annotated[str, typer.Argument(help="{running}.")],
    subscriptions: Annotated[int, typer.Option(min=1, help="How many subscriptions.")] = 100_000,
    window: Annotated[int | None, typer.Option(min=1, help="Messages in the window, for kinds that have one.")] = None,
    messages: Annotated[int | None, typer.Option(min=1, help="Messages to time.")] = None,
    engines: Annotated[
        str | None,
        typer.Option(
            help="Names separated by commas; all engines by default. Where there are peers, they can be named too: "
            "postgis, postgis_region, sqlite, sqlite_rtree, duckdb and strtree."
        ),
    ] = None,
    figure: Annotated[
        str | None, typer.Option(help="Figure of the kind; a wrong name is answered with those there are.")
    ] = None,
    messages_from: Annotated[
        str | None, typer.Option(help="Resample the messages of this output folder of `skyray etl`.")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            help="Recipe of the workload, as places=uniform,stop_words=no,keywords=1-3,regions=city,words=long."
        ),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder for a figure (benchmarks/results/figures).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the workload.")] = 0,
    progress: Annotated[
        bool | None,
        typer.Option(help="A plain line a step on standard error; by default where that is no terminal."),
    ] = None,
    json: Json = False,
) -> int:
    """Time the engines of a kind beside each other, checked against the oracle first. Needs a checkout."""
    from gateway.commands import run_bench

    runner = from_checkout("benchmarks.run", "`skyray bench`")
    options = {"window": window, "messages": messages, "engines": engines, "figure": figure}
    options |= {"messages_from": messages_from, "workload": workload, "out": out}
    given = {name: value for name, value in options.items() if value is not None}
    return run_bench(Terminal(json), runner, kind, subscriptions, seed, given, progress)


@app.command(
    cls=KindCommand, epilog=example("skyray loadtest --rate 5000 --seconds 30 --query-bolts 2 --out report.json")
)
def loadtest(
    rate: Annotated[float, typer.Option(help="Messages a second.")],
    seconds: Annotated[float, typer.Option(help="How long to publish.")] = 30.0,
    each_kind: Annotated[int | None, typer.Option("--KIND", min=0, help="{name} subscriptions ({load}).")] = None,
    window: Annotated[str, typer.Option(help="count:N or time:SECONDS.")] = "count:20000",
    batch: Annotated[int | None, typer.Option(min=1, help="Messages between two boundaries; rate / 10.")] = None,
    query_bolts: Annotated[int, typer.Option(min=1, help="Tasks that hold subscriptions.")] = 1,
    router: Annotated[str, typer.Option(help="hashing, location, keyword or prefix.")] = "hashing",
    credits: Annotated[int, typer.Option(min=1, help="Batches in flight at most.")] = 8,
    address: Address = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of messages and subscriptions.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the whole report there as JSON.")] = None,
    json: Json = False,
) -> int:
    """Publish generated messages at a set rate and report throughput and latency from publish to update.

    Latency counts from the moment a message was due, not from when the engine let it in, so a stall cannot hide itself.
    Exit code 1 if the rate was not kept.
    """
    options = {name: value for name, value in locals().items() if name not in ("out", "json", "each_kind")}
    from gateway.commands import run_loadtest

    return run_loadtest(Terminal(json), options | {"subscriptions": each_kind}, out)


@app.command(epilog=example("skyray doctor --json"))
def doctor(
    out: Annotated[Path, typer.Option(help="Folder where runs will be written.")] = Path("runs"),
    json: Json = False,
) -> int:
    """Check Java, cores, memory, shared memory, disk and packages; print the remedy for each fault."""
    from gateway.doctor import examine

    findings = examine(out)
    failed = any(finding.state == "fail" for finding in findings)
    payload = {"ok": not failed, "findings": [finding._asdict() for finding in findings]}
    headings = ("", "what", "found", "remedy")
    Terminal(json).answer(payload, lambda console: console.print(table(headings, [_shown(row) for row in findings])))
    return int(failed)


def _shown(finding: Any) -> tuple[str, ...]:
    return finding.state, finding.name, finding.found, finding.remedy


@config.command("show", epilog=example("skyray config show --json"))
def config_show(config: ConfigFile = None, json: Json = False) -> int:
    """Print every setting of a run, its value, and where the value comes from."""
    from topology.settings import show_config

    rows = show_config({}, config)
    headings = ("setting", "value", "origin", "meaning")
    cells = [[row[heading] for heading in headings] for row in rows]
    Terminal(json).answer({"settings": rows}, lambda console: console.print(table(headings, cells)))
    return 0


@topology.command("show", epilog=example("skyray topology show --query-bolts 4"))
def topology_show(
    messages: EtlDir = None,
    subscriptions: Files = None,
    window: WindowText = None,
    router: Router = None,
    signatures: Signatures = None,
    query_bolts: QueryBolts = None,
    tuple_bolts: TupleBolts = None,
    distribution_bolts: DistributionBolts = None,
    aggregation_bolts: AggregationBolts = None,
    credits: Credits = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Print the components, tasks and streams that a run would start."""
    options = _settings(locals())
    from gateway.commands import show_topology

    return show_topology(Terminal(json), options, config)


@app.command(epilog=example("skyray version --json"))
def version(json: Json = False) -> int:
    """Print the versions of Skyray and of what it stands on."""
    from gateway.commands import versions

    found = versions()
    Terminal(json).answer(
        found, lambda console: console.print("\n".join(f"{name} {number}" for name, number in found.items()))
    )
    return 0


def _settings(given: dict[str, Any], leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """The options of a command that are settings of a run and were given."""
    others = {"config", "json", *leave_out}
    return {name: value for name, value in given.items() if name not in others and value not in (None, [])}


def spread(arguments: Sequence[str], option: str = "--subscriptions") -> list[str]:
    """`--subscriptions A B` as `--subscriptions A --subscriptions B`, the form that the parser knows."""
    spread_out: list[str] = []
    following = 0  # values since the option
    listing = False
    for argument in arguments:
        if listing and not argument.startswith("-"):
            if following:
                spread_out.append(option)
            following += 1
        else:
            listing, following = argument == option, 0
        spread_out.append(argument)
    return spread_out


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is returned, and every expected error is one line on standard error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["run"] or given[:2] == ["topology", "show"]:
        given = spread(given)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return run_interruptible(lambda interrupts: _run_command(given, interrupts))


def _run_command(given: list[str], interrupts: Interrupts) -> int:
    """The exit code of a command, after its error was told."""

    def tell(message: str, details: bool = False) -> None:
        if interrupts.came is None:  # else it is but a consequence
            fail(message, details)

    try:
        check_packages()
        return int(typer.main.get_command(app).main(given, prog_name="skyray", standalone_mode=False) or 0)
    except EngineError as error:
        tell(str(error), details=error.exit_code in (EngineError.exit_code, TopologyError.exit_code))
        return error.exit_code
    except TyperException as error:
        if error.message:  # empty when the help was printed instead
            tell(f"{error.format_message()} Try `skyray --help`.")
        return error.exit_code
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - or the interpreter complains while it exits
        return 141
    except OSError as error:
        tell(f"{error.filename or 'system'}: {error.strerror or error}")
        return 1
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1


if __name__ == "__main__":
    sys.exit(main())
