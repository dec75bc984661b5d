"""`skyray etl`: raw files in, numbered messages and their vocabulary out.

`gateway/commands/etl.py` -> `spark_etl/options.py` (what it can be told) -> `spark_etl/job.py` -> `spark_etl/ingest.py`
-> `spark_etl/clean.py` -> `spark_etl/vocabulary.py` -> `spark_etl/vectorise.py`. What it writes is read by `run.py`
beside this file.
"""

import logging
from collections.abc import Iterator, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.options import Command, Json, Late, example, of_signature
from gateway.terminal import Terminal, table

#: Options that are not called as their field is; that a field is a column's name goes without saying.
CALLED = {"input_format": "format", "csv_delimiter": "delimiter", "stem_language": "stem"}

app = typer.Typer()


def _options() -> Iterator[Parameter]:
    from spark_etl.options import EtlOptions

    return of_signature(EtlOptions, lambda name: CALLED.get(name, name.removesuffix("_column")))


@app.command(cls=Command, epilog=example("skyray etl tweets.jsonl.gz --out etl --time created_at"))
def etl(
    raw: Annotated[list[str], typer.Argument(help="Files, folders, patterns: JSON Lines (gzip, zstd), CSV, Parquet.")],
    options: Annotated[dict[str, Any], Late(_options)],
    json: Json = False,
) -> int:
    """Clean raw messages and build their vocabulary with Spark.

    Bad rows go to rejected/ with a reason and are counted; good rows beside them are kept.
    """
    terminal = Terminal(json)
    manifest = run_etl_shown(terminal, {"inputs": tuple(raw), **options})
    terminal.answer(manifest, lambda out: print_manifest(out, manifest, Path(options["out"])))
    return 0


def run_etl_shown(terminal: Terminal, options: Mapping[str, Any]) -> dict[str, Any]:
    """Run the ETL with its stages shown; returns the manifest."""
    from spark_etl.job import EtlOptions, run_etl

    # An interrupt cuts its connection to Java, of which it would tell at length, by its own logger and by the root's.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
    with terminal.steps("etl") as show:

        def on_progress(progress: Any) -> None:
            show(f"{progress.stage} ({progress.number} of {progress.of})")

        return run_etl(EtlOptions(**options), on_progress=on_progress)


def print_manifest(out: Any, manifest: Mapping[str, Any], folder: Path) -> None:
    """Counts of an ETL run for people: read = kept + duplicates + rejected."""
    rows = [(name, manifest[name]) for name in ("read", "kept", "duplicates")]
    rows += [(f"rejected: {reason}", count) for reason, count in manifest["rejected_by_reason"].items()]
    rows += [("without time", manifest["null_times"]), ("without terms", manifest["messages_without_terms"])]
    rows.append(("terms in the vocabulary", manifest["vocabulary_size"]))
    out.print(table(("messages", "count"), rows, right=(1,)))
    out.print(f"written to {folder}")
