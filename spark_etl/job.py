"""The whole ETL: raw files in, a directory of numbered messages, vocabulary, rejects and manifest out.

The steps in order, one file each: `spark_etl.sources`, `spark_etl.finding`, `spark_etl.ingest`, `spark_etl.clean`,
`spark_etl.vocabulary`, `spark_etl.vectorise`. Intermediate rows are Parquet in a hidden directory beside the output,
which is renamed into place at the end, so an output directory is always complete. `spouts.parquet` reads it.

Every Spark worker must reach inputs and output: any path on one machine, a shared folder on a cluster.
"""

import itertools
import json
import os
import shutil
import time
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from matching.attributes import TYPES
from matching.errors import ConfigError, EngineError, InputError
from matching.words.tokeniser import tokeniser_number
from spark_etl.clean import clean_rows, place_of
from spark_etl.finding import find_columns
from spark_etl.geoparquet import with_geometry
from spark_etl.ingest import check_columns, plan_tasks
from spark_etl.nothing import nothing_usable
from spark_etl.options import STANDARD_INPUT, EtlOptions
from spark_etl.ordered import TERM_COUNTS, order_rows
from spark_etl.schemas import ATTRIBUTES_VERSION, FORMAT_VERSION
from spark_etl.session import spark_session
from spark_etl.sources import InputFile, find_sources
from spark_etl.span import likely_times
from spark_etl.standard_input import spooled
from spark_etl.times import moment_of
from spark_etl.vectorise import MISFITS, add_facts, write_files, write_vocabulary
from spark_etl.vocabulary import term_statistics
from spark_etl.written import read_parquet

__all__ = ["STAGES", "EtlOptions", "EtlProgress", "run_etl"]

STAGES = ("start", "clean", "vocabulary", "messages", "publish")
#: Bytes of text of a partition, and of a small input for each of its partitions, at most one a core.
_PARTITION_BYTES, _ONE_PARTITION_BYTES = 64 * 2**20, 16 * 2**20
#: Text below this size takes minutes on a small machine.
_SHORT_JOB_BYTES = 2**30
_run_numbers = itertools.count()


class EtlProgress(NamedTuple):
    """Reported at the start and the end of each stage.

    number, of : int    the stage, from 1, and the number of stages
    seconds : float     duration, None at the start
    rows : int          size of the input, None until it has been read
    """

    stage: str
    number: int
    of: int
    seconds: float | None
    rows: int | None = None


OnProgress = Callable[[EtlProgress], None]


class _Run:
    """Times the stages, reports them to the listener, and names a stage that fails."""

    def __init__(self, on_progress: OnProgress | None):
        self._report = on_progress or (lambda progress: None)
        self.seconds: dict[str, float] = {}
        self.rows: int | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        number = STAGES.index(name) + 1
        self._report(EtlProgress(name, number, len(STAGES), None, self.rows))
        begin = time.monotonic()
        try:
            yield
        except (PySparkException, Py4JError) as error:
            raise EngineError(f"the ETL failed in its stage {name!r}: {_cause(error)}") from error
        self.seconds[name] = round(time.monotonic() - begin, 3)
        self._report(EtlProgress(name, number, len(STAGES), self.seconds[name], self.rows))


def _cause(error: Exception) -> str:
    """The informative line of a Spark failure."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and not line.startswith(("at ", "File ", "Traceback"))]
    return (errors or lines or ["no reason given"])[-1 if errors else 0]


def run_etl(options: EtlOptions, on_progress: OnProgress | None = None, spark: SparkSession | None = None) -> dict:
    """Run the job.

    Parameters
    ----------
    options : EtlOptions
    on_progress : callable, optional
        Gets a `EtlProgress` at the start and at the end of each stage.
    spark : SparkSession, optional
        Session to use and leave running; by default a Java process of this run.

    Returns
    -------
    dict
        Content of `manifest.json`.

    Raises
    ------
    ConfigError
        For an option that cannot be used, an output directory in use, missing Java.
    InputError
        For input that cannot be opened, lacks a required column or has several for one, or has no usable row.
    EngineError
        If Spark fails.

    Notes
    -----
    Same input files, options and versions give the same bytes, with any number of cores. This process gets no row, and
    its memory grows with the number of files alone. Workers have the vocabulary in memory.
    """
    options.check()
    if options.out is None:
        raise ConfigError("out: name the output directory, or look at the data with --dry-run 1000")
    out = Path(options.out).absolute()
    _check_out(out, options.overwrite)
    run = _Run(on_progress)
    piped = options.inputs == (STANDARD_INPUT,)
    sources, options, by_name = ([], options, []) if piped else _input(options, out)
    hidden = out.with_name(f".{out.name}.partial-{os.getpid()}-{next(_run_numbers)}")
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        hidden.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(
            f"out {options.out}: {hidden} cannot be made ({error.strerror}); choose another place"
        ) from None
    try:
        with ExitStack() as stack:
            if piped:
                sources, options, by_name = _input(spooled(options, hidden / "scratch"), out)
            # It warns of every pandas from 3 on; no pandas object is passed to it.
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
            with run.stage("start"):
                if spark is None:
                    short = sum(source.text_bytes for source in sources) < _SHORT_JOB_BYTES
                    spark = stack.enter_context(spark_session(options, hidden / "scratch", short))
                session = spark.newSession()
                cores = session.sparkContext.defaultParallelism
                _configure(session, sources, cores)
            manifest = _transform(session, sources, options, hidden, cores, run)
            manifest["options"]["columns_found"] = by_name
        with run.stage("publish"):
            shutil.rmtree(hidden / "scratch", ignore_errors=True)
            (hidden / "rejected").mkdir(exist_ok=True)
            _write_json(hidden / "manifest.json", manifest)
            log = {
                "started_at": started_at,
                "seconds": run.seconds,
                "inputs": [
                    {"path": STANDARD_INPUT if piped else source.path, "size_bytes": source.size_bytes}
                    for source in sources
                ],
                "out": str(out),
                "master": options.master,
                "cores": cores,
            }
            _write_json(hidden / "run_log.json", log)
            _publish(hidden, out, options.overwrite)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return manifest


def _input(options: EtlOptions, out: Path) -> tuple[list[InputFile], EtlOptions, list[str]]:
    """The files to read, the options with all columns, and the roles whose columns were found by name."""
    sources = find_sources(options)
    if inside := next((source.path for source in sources if Path(source.path).is_relative_to(out.resolve())), None):
        raise ConfigError(f"out {options.out}: {inside} is an input; choose another directory")
    given = with_geometry(sources, options)
    options, by_name = find_columns(sources, given)
    check_columns(sources, options, given.named())
    return sources, options, by_name


def _check_out(out: Path, overwrite: bool) -> None:
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise ConfigError(f"out {out}: is not a directory; choose another name")
    if out.is_dir() and any(out.iterdir()):
        if not overwrite:
            raise ConfigError(f"out {out}: is already in use; choose another directory, or overwrite it (--overwrite)")
        if not (out / "manifest.json").is_file():
            raise ConfigError(f"out {out}: has other files than an earlier output, so it is not overwritten; empty it")


def _configure(session: SparkSession, sources: list[InputFile], cores: int) -> None:
    size = sum(source.text_bytes for source in sources)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    few = min(cores, -(-size // _ONE_PARTITION_BYTES))
    session.conf.set("spark.sql.shuffle.partitions", max(1, few, size // _PARTITION_BYTES))
    # Each stage would be a job of its own, and there are no joins that could be planned anew.
    session.conf.set("spark.sql.adaptive.enabled", False)
    # A batch may consist of the longest texts that are accepted.
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 8192)
    session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", _PARTITION_BYTES)


def _transform(
    session: SparkSession, sources: list[InputFile], options: EtlOptions, hidden: Path, cores: int, run: _Run
) -> dict[str, Any]:
    """All steps between the input and the manifest; writes into `hidden`."""
    schema = options.attributes()
    with run.stage("clean"):
        cleaned = clean_rows(session, plan_tasks(sources, cores), options)
        rows = order_rows(cleaned, str(hidden / "scratch" / "ordered"), options.columns()["id"], options.objects)
        kept = len(rows.kept)
        run.rows = read = kept - rows.ends + rows.duplicates + len(rows.rejected)
        if not kept:
            raise _nothing_usable(sources, rows.reasons)
        likely_us = likely_times(kept - rows.untimed, rows.time)
    with run.stage("vocabulary"):
        counts = read_parquet(session, rows.terms, ", ".join(map(" ".join, TERM_COUNTS.items())))
        vocabulary = write_vocabulary(term_statistics(counts, kept), str(hidden), options.stop_share * kept)
    with run.stage("messages"):
        forms = options.stem_language, options.fold_accents
        sizes = options.rows_per_file, likely_us
        written, rejects = write_files(session, rows, sources, str(hidden), *sizes, schema, *forms)
    facts = add_facts([file.pop("facts") for file in written])
    if sum(file["rows"] for file in written) != kept:
        raise EngineError("the ETL lost messages while it wrote them; please report this with the run log")
    attributes = [
        {
            "name": one.name,
            "type": TYPES[one.type],
            "messages": facts[one.column],
            "misfits": facts[MISFITS + one.path],
        }
        for one in schema.attributes
    ]
    rejected = len(rows.rejected)
    if sum(file["rows"] for file in rejects) != rejected:
        raise EngineError("the ETL's counts do not add up; please report this with the run log")
    return {
        "format": "skyray-etl",
        "format_version": ATTRIBUTES_VERSION if len(schema) else FORMAT_VERSION,
        "tokeniser": tokeniser_number(),
        "read": read,
        "kept": kept,
        "duplicates": rows.duplicates,
        "rejected": rejected,
        "rejected_by_reason": {reason: count for reason, (count, _) in sorted(rows.reasons.items())},
        "broken_files": rows.broken,
        "null_times": facts["null_times"],
        "bad_times": facts["bad_times"],
        "odd_times": facts["odd_times"],
        "likely_times": likely_us and [moment_of(time_us).isoformat() for time_us in likely_us],
        "deletes": facts["deletes"],
        "range_messages": facts["range_messages"],
        "messages_without_terms": facts["messages_without_terms"],
        "total_tokens": vocabulary.pop("tokens"),
        "vocabulary_size": vocabulary["rows"],
        "word_order": True,
        "stop_terms": vocabulary.pop("stop_terms"),
        "extent": facts["extent"],
        **({"objects": True, "ended_by_time": rows.ends} if options.objects else {}),
        **({"attributes": attributes} if attributes else {}),
        "options": options.recorded(),
        "versions": _versions(),
        "files": {
            file["name"]: {"rows": file["rows"], "size_bytes": file["size_bytes"], "sha256": file["sha256"]}
            for file in sorted([vocabulary, *written, *rejects], key=lambda file: file["name"])
        },
    }


def _nothing_usable(sources: list[InputFile], reasons: Mapping[str, tuple[int, list]]) -> InputError:
    """The error for input without a usable row, with the first row of each reason."""
    commonest = sorted(sorted(reasons.items()), key=lambda item: -item[1][0])
    return nothing_usable(
        {
            reason: (count, *place_of(sources, row_id), original, json.loads(fault)["column"])
            for reason, (count, (row_id, original, fault)) in commonest
        }
    )


def _versions() -> dict[str, str]:
    """Versions that the bytes of the output may depend on."""
    packages = ("numpy", "pyarrow", "pyspark", "regex", "PyStemmer")
    return {name: version(name) for name in packages} | {"unicode": unicodedata.unidata_version}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _publish(hidden: Path, out: Path, overwrite: bool) -> None:
    """Rename the finished directory into place; an earlier output is renamed first and removed after."""
    _check_out(out, overwrite)  # hours may have passed
    replaced = hidden.with_name(hidden.name + "-replaced")
    if out.is_dir():
        out.rename(replaced)
    hidden.rename(out)
    shutil.rmtree(replaced, ignore_errors=True)
