"""`skyray etl --dry-run`: clean the first rows without Spark and without writing anything.

The rows are read and cleaned by the code of the ETL (`spark_etl.ingest`, `spark_etl.rows`); duplicates and the
vocabulary are those of these rows alone.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matching.errors import ConfigError
from matching.fields import text_columns
from spark_etl.finding import Seen, find_columns, look, objects_in
from spark_etl.geoparquet import with_geometry
from spark_etl.ingest import BROKEN, InputRow, Split, check_columns, header_of, read_blocks
from spark_etl.nothing import nothing_usable
from spark_etl.options import STANDARD_INPUT, EtlOptions
from spark_etl.rows import CleanRow, RowCleaner, fault_of, readable
from spark_etl.sources import InputFile, find_sources
from spark_etl.standard_input import spooled
from spark_etl.suggesting import suggested_attributes
from spark_etl.times import moment_of

#: Most examples of a reason, cleaned rows and columns in the report.
_REJECTS, _CLEANED, _COLUMNS = 3, 5, 60


def try_rows(options: EtlOptions, rows: int) -> dict[str, Any]:
    """Clean the first rows of the input and report on them.

    Parameters
    ----------
    options : EtlOptions
        `out` is not needed.
    rows : int
        Number of rows, over the files in their order.

    Returns
    -------
    dict
        `columns_seen` (list of `name`, `rows` with a value, `example`, `taken_for`), `attributes_suggested` (options
        `--attribute`), `columns` and `columns_found` as
        in a manifest, its counts, `rejected_examples` (`reason`, `file`, `line`, `row`, and the `column` and `value`
        at fault), `misfits` (values that do not fit their attribute, by column), `cleaned` (`message_id`, `lon`, `lat`,
        `event_time`, `text`, `terms`).

    Raises
    ------
    ConfigError, InputError
        As `spark_etl.job.run_etl`.

    Notes
    -----
    Some 20 us a row; standard input is read to its end.
    """
    options.check()
    if rows < 1:
        raise ConfigError(f"dry run of {rows} rows: must be at least 1")
    with ExitStack() as stack:
        if options.inputs == (STANDARD_INPUT,):
            options = spooled(options, Path(stack.enter_context(TemporaryDirectory())))
        sources = find_sources(options)
        given = with_geometry(sources, options)
        options, by_name = find_columns(sources, given)
        check_columns(sources, options, given.named())
        tally = _Tally(options)
        cleaner = RowCleaner(options)
        for source, row in islice(_rows(sources, options), rows):
            tally.add(source, row, cleaner.clean(row.values, row.attributes))
        if not tally.kept:
            raise nothing_usable(
                {
                    reason: (count, *(tally.rejects[reason][0][name] for name in ("file", "line", "row", "column")))
                    for reason, count in tally.reasons.most_common()
                    if reason in tally.rejects
                },
                dry_run=True,
            )
        return tally.report() | {
            "columns": options.columns_recorded(),
            "columns_found": by_name,
            "columns_seen": _columns_seen(sources, options, rows),
            "attributes_suggested": _suggested(sources, options, rows),
        }


def _rows(sources: list[InputFile], options: EtlOptions) -> Iterator[tuple[InputFile, InputRow]]:
    for source in sources:
        for block in read_blocks(Split(source, 0, 1), options):
            yield from ((source, row) for row in block)


class _Tally:
    """Counts and examples of the rows so far."""

    def __init__(self, options: EtlOptions) -> None:
        self._options = options
        self.read = self.kept = self.duplicates = self.null_times = self.bad_times = self.without_terms = 0
        self.reasons: Counter[str] = Counter()
        self.misfits: Counter[str] = Counter()
        self.rejects: dict[str, list[dict[str, Any]]] = {}
        self._contents: dict[str, bytes] = {}
        self._terms: set[str] = set()
        self._cleaned: list[CleanRow] = []

    def add(self, source: InputFile, row: InputRow, clean: CleanRow | str) -> None:
        self.read += 1
        if not isinstance(clean, str):
            first = self._contents.get(clean.message.message_id)
            self._contents.setdefault(clean.message.message_id, clean.message.content)
            if first == clean.message.content:
                self.duplicates += 1
                return
            if first is not None:
                clean = "duplicate_id"
        if isinstance(clean, str):
            self.reasons[clean] += 1
            examples = self.rejects.setdefault(clean, [])
            if len(examples) < _REJECTS:
                place = {"file": source.name, "line": row.line, "row": readable(row.original)}
                examples.append({**place, **fault_of(row, clean, self._options).named})
            return
        self._keep(clean)

    def _keep(self, clean: CleanRow) -> None:
        self.kept += 1
        self.misfits.update(str(one.fault.column) for one in clean.misfits)
        self.null_times += clean.message.event_time_us is None
        self.bad_times += clean.bad_time
        self.without_terms += not clean.counts
        self._terms.update(clean.counts)
        if len(self._cleaned) < _CLEANED:
            self._cleaned.append(clean)

    def report(self) -> dict[str, Any]:
        return {
            "read": self.read,
            "kept": self.kept,
            "duplicates": self.duplicates,
            "rejected": self.reasons.total(),
            "rejected_by_reason": dict(sorted(self.reasons.items())),
            "misfits": dict(sorted(self.misfits.items())),
            "null_times": self.null_times,
            "bad_times": self.bad_times,
            "messages_without_terms": self.without_terms,
            "vocabulary_size": len(self._terms),
            "rejected_examples": [
                {"reason": reason, **example} for reason in sorted(self.rejects) for example in self.rejects[reason]
            ],
            "cleaned": [_as_json(clean) for clean in self._cleaned],
        }


def _as_json(clean: CleanRow) -> dict[str, Any]:
    message = clean.message
    time_us = message.event_time_us
    return {
        "message_id": message.message_id,
        "lon": message.lon,
        "lat": message.lat,
        "event_time": None if time_us is None else moment_of(time_us).isoformat().replace("+00:00", "Z"),
        "text": message.text,
        "terms": [term for term, count in clean.counts.items() if count],
    }


def _suggested(sources: list[InputFile], options: EtlOptions, rows: int) -> list[str]:
    taken = {*options.names()} - {"lang"} | {options.geometry, *(one.path for one in options.attributes().attributes)}

    def first() -> Iterator[dict[str, Any]]:
        for source in sources:
            with suppress(*BROKEN):
                yield from objects_in(source, options, header_of(source, options))

    return suggested_attributes(islice(first(), rows), {name for name in taken if name})


def _written(example: Any) -> Any:
    return example.hex() if isinstance(example, bytes) else example


def _columns_seen(sources: list[InputFile], options: EtlOptions, rows: int) -> list[dict[str, Any]]:
    roles = {one.path: f"attribute {one.name}" for one in options.attributes().attributes}
    columns = options.columns_recorded()
    roles |= {name: role for role, name in columns.items()} | {options.geometry: "geometry"}
    roles |= dict.fromkeys(text_columns(columns["text"]), "text")
    seen: dict[str, Seen] = {}
    for source in sources:
        if rows <= 0:
            break
        there = look(source, options, rows)
        rows -= there.rows
        for name in dict.fromkeys([*(there.names or ()), *there.seen]):
            known, new = seen.get(name, Seen(0, None)), there.seen.get(name, Seen(0, None))
            seen[name] = Seen(known.rows + new.rows, new.example if known.example is None else known.example)
    return [
        {"name": name, "rows": one.rows, "example": _written(one.example), "taken_for": roles.get(name)}
        for name, one in islice(seen.items(), _COLUMNS)
    ]
