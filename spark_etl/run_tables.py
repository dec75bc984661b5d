"""Updates and results of a run as tables of Spark: `spark.read.format("skyray").option("table", "updates").load(RUN)`.

Columns are those of the files (`docs/formats.md`). A partition is a file of updates, so many delivery bolts
(`topology.delivery_bolts`) make many tasks. Of a run that has not ended only what a checkpoint has published is read.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructField, StructType

from matching.errors import ConfigError, InputError
from matching.part_names import PARTS_LIST, ListedPart, listed_parts, whole_parts
from spark_etl.feed_rows import plain_path

#: Table -> column -> type of Spark.
_COLUMNS = {
    "updates": {
        "as_of": LongType(),
        "subscription_id": StringType(),
        "message_id": StringType(),
        "seq": LongType(),
        "change": StringType(),
        "score": DoubleType(),
    },
    "results": {
        "subscription_id": StringType(),
        "rank": IntegerType(),
        "message_id": StringType(),
        "seq": LongType(),
        "score": DoubleType(),
        "text_score": DoubleType(),
    },
}
_ARROW = {LongType: pa.int64(), IntegerType: pa.int32(), StringType: pa.string(), DoubleType: pa.float64()}
_RESULTS = "results.parquet"


@dataclass(frozen=True)
class RunTable:
    """A table of a run folder: `updates` or `results`."""

    folder: Path
    table: str

    @staticmethod
    def of(options: Mapping[str, str]) -> "RunTable":
        """The table that the options `path` and `table` name (`updates` by default).

        Raises
        ------
        ConfigError
            If one of them cannot be used, or the folder is no run.
        """
        path, table = options.get("path", ""), options.get("table", "updates")
        if table not in _COLUMNS:
            raise ConfigError(f"skyray: option table {table!r}: choose one of {', '.join(_COLUMNS)}")
        plain = plain_path(path)
        if not plain or "://" in plain:
            raise ConfigError(f"skyray: load {path!r}: name the folder of a run that every worker reaches by its path")
        folder = Path(plain).absolute()
        try:
            state = json.loads((folder / "run.json").read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"skyray: {folder}: is no folder of a run ({error})") from None
        if table == "updates" and _sink_of(state) not in (None, "parquet"):
            raise ConfigError(f"skyray: {folder}: has its updates as {_sink_of(state)}, and only parquet is read")
        if table == "results" and not (folder / _RESULTS).exists():
            raise ConfigError(
                f"skyray: {folder}: has no {_RESULTS}, which comes when a run has finished; this one is "
                f"{state.get('state', 'of an unknown state')}"
            )
        return RunTable(folder, table)

    def schema(self) -> StructType:
        """Its columns; all may be null to Spark."""
        return StructType([StructField(name, kind) for name, kind in _COLUMNS[self.table].items()])

    def files(self) -> list[Path]:
        """Its files, in the order in which updates are applied."""
        if self.table == "results":
            return [self.folder / _RESULTS]
        updates = self.folder / "updates"
        listed = _listed(updates)
        there = [part.text for part in whole_parts(path.name for path in updates.glob("part-*.parquet"))]
        gone = sorted(part.text for part in whole_parts(listed) if not (updates / part.text).exists())
        if gone:
            raise InputError("missing_file", f"{updates / gone[0]}: is gone; restore a backup of the folder")
        return [updates / name for name in there]

    def batches(self, file: Path) -> Iterator[pa.RecordBatch]:
        """The rows of a file, with the columns of the table; one that the file lacks is null."""
        columns = _COLUMNS[self.table]
        schema = pa.schema([(name, _ARROW[type(kind)]) for name, kind in columns.items()])
        part = _listed(file.parent).get(file.name)
        if part is not None and not part.is_whole(file.read_bytes()):
            raise InputError("broken_file", f"{file}: is not as it was written; restore a backup of the folder")
        with pq.ParquetFile(file) as parquet:
            there = [name for name in columns if name in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(columns=there, use_threads=False):
                arrays = [
                    batch.column(field.name).cast(field.type)
                    if field.name in there
                    else pa.nulls(batch.num_rows, field.type)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _listed(updates: Path) -> dict[str, ListedPart]:
    """The list of parts of a folder of updates."""
    path = updates.with_name(updates.name + PARTS_LIST)
    return listed_parts(path.read_bytes()) if path.exists() else {}


class TableReader(DataSourceReader):
    """Reads a table, a file a task."""

    def __init__(self, table: RunTable):
        self._table = table

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(str(path)) for path in self._table.files()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._table.batches(Path(partition.value))


def _sink_of(state: Mapping[str, object]) -> object:
    settings = state.get("settings")
    return settings.get("sink") if isinstance(settings, Mapping) else None
