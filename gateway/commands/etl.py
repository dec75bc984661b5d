"""`skyray etl`: raw files in, numbered messages and their vocabulary out."""

import logging
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.json import decode

from gateway.shell.options import Command, Defined, Json, example, of_signature, shares
from gateway.shell.terminal import Terminal, cell, shortened, table
from matching.extras import require
from matching.reasons import REASONS
from spark_etl.options import EtlOptions

#: Options that are not called as their field is; that a field is a column's name goes without saying.
CALLED = {"input_format": "format", "csv_delimiter": "delimiter", "stem_language": "stem", "sink": "stream"}
#: Sections of settings that the ETL and the feed share.
SHARED = ("columns", "spark")

#: Seconds below which a stage is too short for a rate in rows a second.
RATED_S = 1.0

#: Options that the help page shows.
SHOWN = (
    *("out", "overwrite", "format", "encoding", "delimiter", "time_format", "require_time", "world"),
    *("attribute", "strict_attributes", "objects", "stem", "fold_accents", "stop_share", "dry_run"),
    *("master", "driver_memory"),
)

app = typer.Typer()


def called(name: str) -> str:
    """The name of the option that sets a field."""
    return CALLED.get(name, name.removesuffix("_column"))


@app.command(cls=Command, epilog=example("skyray etl tweets.jsonl.gz --out etl --column time=created_at"))
@shares(*SHARED, shown=SHOWN)
def etl(
    raw: Annotated[list[str], typer.Argument(help="Files, folders, patterns: JSON, CSV, Parquet; - for a pipe.")],
    options: Annotated[dict[str, Any], Defined(of_signature(EtlOptions, called))],
    dry_run: Annotated[
        int, typer.Option(min=0, metavar="ROWS", help="Clean the first N rows, report the outcome, and exit.")
    ] = 0,
    json: Json = False,
) -> int:
    """Clean raw messages and build their vocabulary with Spark.

    Bad rows go to rejected/ with a reason and are counted; good rows beside them are kept. The columns are found by
    their usual names (text, body, tweet; lat, latitude; lon, lng; time, created_at; id) where none are named.
    """
    terminal = Terminal(json)
    if dry_run:
        return try_shown(terminal, {"inputs": tuple(raw), **options}, dry_run)
    manifest = run_etl_shown(terminal, {"inputs": tuple(raw), **options})
    folder = Path(options["out"])
    seconds = decode((folder / "run_log.json").read_bytes())["seconds"]
    terminal.answer(manifest | {"seconds": seconds}, lambda out: print_manifest(out, manifest, folder, seconds))
    return 0


def run_etl_shown(terminal: Terminal, options: Mapping[str, Any]) -> dict[str, Any]:
    """Run the ETL with its stages shown; returns the manifest."""
    require("spark", "the ETL")
    from spark_etl.job import run_etl

    # An interrupt cuts its connection to Java, which it would log at length, by its own logger and the root's.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
    with terminal.steps("etl") as show:

        def on_progress(progress: Any) -> None:
            stage = f"{progress.stage} ({progress.number} of {progress.of})"
            if progress.seconds is None:
                show(stage)
            elif progress.rows and progress.seconds >= RATED_S:
                show(f"{stage}: {progress.rows:,} rows, {_rate(progress.rows, progress.seconds)}")

        return run_etl(EtlOptions(**options), on_progress=on_progress)


def try_shown(terminal: Terminal, options: Mapping[str, Any], rows: int) -> int:
    """Show what becomes of the first rows; writes nothing."""
    from spark_etl.trial import try_rows

    found = try_rows(EtlOptions(**options), rows)
    terminal.answer(found, lambda out: print_trial(out, found))
    return 0


def print_trial(out: Any, found: Mapping[str, Any]) -> None:
    """What `spark_etl.trial.try_rows` gives, for people."""
    seen = [
        (one["name"], one["rows"], shortened(one["example"]), one["taken_for"] or "") for one in found["columns_seen"]
    ]
    out.print(table(("column", "rows", "such as", "taken for"), seen, right=(1,), title="Columns"))
    _print_columns(out, found["columns"], found["columns_found"], {one["name"] for one in found["columns_seen"]})
    _print_counts(out, found)
    if found["attributes_suggested"]:
        options = " ".join(f"--attribute {shlex.quote(one)}" for one in found["attributes_suggested"])
        out.print(f"columns that might be attributes: {cell(options)}", markup=False)
    rejects = [
        (one["reason"], _meaning(one), f"{one['file']}:{one['line']}", shortened(one["row"]))
        for one in found["rejected_examples"]
    ]
    if rejects:
        out.print(table(("reason", "meaning", "where", "row"), rejects, title="Rejected, for example"))
    cleaned = [
        (one["message_id"], one["event_time"], f"{one['lon']:g}, {one['lat']:g}", shortened(one["text"]), one["terms"])
        for one in found["cleaned"]
    ]
    out.print(table(("id", "time", "lon, lat", "text", "terms"), cleaned, title="Cleaned, for example"))
    out.print("nothing was written: name a folder with --out, and leave --dry-run out")


def print_manifest(out: Any, manifest: Mapping[str, Any], folder: Path, seconds: Mapping[str, float]) -> None:
    """Counts of an ETL run for people, and the seconds of its stages: read = kept + duplicates + rejected."""
    options = manifest["options"]
    _print_columns(out, options["columns"], options["columns_found"], None)
    _print_counts(out, manifest)
    for one in manifest.get("attributes", ()):
        out.print(
            f"attribute {cell(one['name'])}: {one['type']}, in {one['messages']:,} of {manifest['kept']:,} messages",
            markup=False,
        )
    for file in manifest["broken_files"]:
        out.print(f"not read to its end: {cell(file)}", markup=False)
    if manifest["odd_times"]:
        first, last = (time[:10] for time in manifest["likely_times"])
        out.print(f"{manifest['odd_times']:,} messages are dated far from the others, before {first} or after {last};")
        out.print("they are kept: look at the column of the time, or at how it is written (--time-format)")
    working = sum(seconds.values()) - seconds["start"]
    out.print(
        f"{working:.0f} s, {_rate(manifest['read'], working)}, and {seconds['start']:.0f} s for the start of Spark"
    )
    out.print(f"written to {cell(folder)}", markup=False)


def _print_columns(out: Any, columns: Mapping[str, str], found: Collection[str], seen: Collection[str] | None) -> None:
    """Which column was taken for what; those of other names that were found are said to be."""
    said = []
    for role, name in columns.items():
        here = role in found or (name != role if seen is None else name in seen)
        if here:
            said.append(f"{role} = {name}" + (" (found)" if role in found and name != role else ""))
        elif role in ("time", "id"):
            said.append(f"no {role}")
    out.print(f"columns: {cell(', '.join(said))}", markup=False)


def _print_counts(out: Any, counts: Mapping[str, Any]) -> None:
    rows = [(name, counts[name]) for name in ("read", "kept", "duplicates")]
    rows += [(f"rejected: {reason}", count) for reason, count in counts["rejected_by_reason"].items()]
    misfits = counts.get("misfits") or {one["name"]: one["misfits"] for one in counts.get("attributes", ())}
    rows += [(f"values that are no {column}", count) for column, count in misfits.items() if count]
    rows += [("without time", counts["null_times"]), ("of these, of a time that cannot be read", counts["bad_times"])]
    rows.append(("without terms", counts["messages_without_terms"]))
    rows.append(("terms in the vocabulary", counts["vocabulary_size"]))
    out.print(table(("messages", "count"), rows, right=(1,)))
    if counts["bad_times"]:
        out.print("times that cannot be read count as none: say how they are written with --time-format, or reject")
        out.print("them with --require-time")


def _meaning(rejected: Mapping[str, Any]) -> str:
    meaning = REASONS[rejected["reason"]]
    return f"{meaning}: column {rejected['column']}" if rejected["column"] else meaning


def _rate(rows: int, seconds: float) -> str:
    return f"{rows / max(seconds, 0.001):,.0f} rows/s"
