"""What a run of the ETL can be told; `spark_etl.job` is the file to read next."""

from dataclasses import dataclass, fields
from typing import Annotated

from matching.errors import ConfigError
from matching.space import Space
from matching.text import stemmer
from matching.validate import MessageDecoder

FORMATS = ("auto", "jsonl", "csv", "parquet")


@dataclass(frozen=True)
class EtlOptions:
    """Settings of one run; what is annotated is an option of `skyray etl`.

    Attributes
    ----------
    inputs : tuple of str
        Files, folders (searched to the bottom) or patterns (`raw/**/*.jsonl.gz`). Of messages that are equal the first
        in this order is kept; the members of a folder or pattern come in the order of their names.
    """

    inputs: tuple[str, ...]
    out: Annotated[str, "output folder; must not exist, or be empty, unless it may be overwritten"]
    input_format: Annotated[
        str,
        "form of the input: auto (by the name, then the first bytes), jsonl, csv or parquet; gzip, zstd are found out",
    ] = "auto"
    text_column: Annotated[str, "column of the text"] = "text"
    lat_column: Annotated[str, "column of the latitude"] = "lat"
    lon_column: Annotated[str, "column of the longitude"] = "lon"
    time_column: Annotated[str, "column of the event time; may be absent"] = "time"
    id_column: Annotated[str, "column of the id; may be absent"] = "id"
    west_column: Annotated[str, "column of a range message's western edge; an empty name for none"] = "west"
    south_column: Annotated[str, "column of its southern edge"] = "south"
    east_column: Annotated[str, "column of its eastern edge"] = "east"
    north_column: Annotated[str, "column of its northern edge"] = "north"
    object_id_column: Annotated[str, "column of the id of what an update is about"] = "object_id"
    op_column: Annotated[str, "column that says what an update does"] = "op"
    csv_delimiter: Annotated[str, "what separates the columns of a CSV file; tabs anyway in one named .tsv"] = ","
    stem_language: Annotated[str, "language for stemming, such as english; none by default"] = ""
    stop_share: Annotated[float, "drop terms in more than this share of the messages kept; 1 drops none"] = 1.0
    world: Annotated[str | None, "reject messages outside W,S,E,N (or earth); none by default"] = None
    rows_per_file: Annotated[int, "messages in one output file"] = 100_000
    master: Annotated[str, "Spark master"] = "local[*]"
    driver_memory: Annotated[str, "memory of Spark's driver, such as 2g"] = "2g"
    overwrite: Annotated[bool, "replace the output folder"] = False

    def columns(self) -> dict[str, str]:
        """Role of a message's value (`matching.validate.MESSAGE_ROLES`) -> column name."""
        end = "_column"
        return {
            field.name[: -len(end)]: getattr(self, field.name) for field in fields(self) if field.name.endswith(end)
        }

    def space(self) -> Space | None:
        """The world box that points must lie in, if there is one."""
        return Space.parse(self.world, None) if self.world is not None else None

    def recorded(self) -> dict[str, object]:
        """The options that decide what the output is; where it lies and what computes it is not among them."""
        return {
            "input_format": self.input_format,
            "columns": self.columns(),
            "csv_delimiter": self.csv_delimiter,
            "stem_language": self.stem_language,
            "stop_share": self.stop_share,
            "world": self.world,
            "rows_per_file": self.rows_per_file,
        }

    def check(self) -> None:
        """Look at every option.

        Raises
        ------
        ConfigError
            Naming the option, its value and what it may be.
        """
        if isinstance(self.inputs, str) or not self.inputs:
            raise ConfigError("inputs: name at least one file, folder or pattern")
        if not self.out:
            raise ConfigError("out: name the output directory")
        if self.input_format not in FORMATS:
            raise ConfigError(f"input format {self.input_format!r}: choose one of {', '.join(FORMATS)}")
        if len(self.csv_delimiter) != 1 or self.csv_delimiter in '"\r\n':
            raise ConfigError(f"CSV delimiter {self.csv_delimiter!r}: give one character, such as , ; or a tab")
        if not 0 < self.stop_share <= 1:
            raise ConfigError(f"stop share {self.stop_share}: must be above 0 and at most 1 (1 removes no term)")
        if self.rows_per_file < 1:
            raise ConfigError(f"rows per file {self.rows_per_file}: must be at least 1")
        if not self.text_column:
            raise ConfigError("text column: must have a name")
        stemmer(self.stem_language)
        self.space()
        MessageDecoder(self.columns())
