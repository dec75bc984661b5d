"""What a run of the ETL can be told; `spark_etl.job` is the file to read next."""

from dataclasses import dataclass, fields

from matching.errors import ConfigError
from matching.space import Space
from matching.text import stemmer
from matching.validate import MessageDecoder

FORMATS = ("auto", "jsonl", "csv", "parquet")


@dataclass(frozen=True)
class EtlOptions:
    """Settings of one run.

    Attributes
    ----------
    inputs : tuple of str
        Files, folders (searched to the bottom) or patterns (`raw/**/*.jsonl.gz`). Of messages that are equal the first
        in this order is kept; the members of a folder or pattern come in the order of their names.
    out : str
        Output directory; must not exist, or be empty, unless `overwrite`.
    input_format : str
        `auto` goes by the name, then by the first bytes; or `jsonl`, `csv`, `parquet`. Compression (gzip, zstd) is
        always found out from the first bytes.
    text_column, lat_column, lon_column, time_column, id_column : str
        Column names in the input; time and id may be absent from it.
    west_column, south_column, east_column, north_column, object_id_column, op_column : str
        Columns of range messages and of updates; an empty name switches one off.
    csv_delimiter : str
        One character; a file named `.tsv` has tabs anyway.
    stem_language : str
        Language of the stemmer, "" for none.
    stop_share : float
        Terms in more than this share of the kept messages are removed; 1 removes none.
    world : str, optional
        `W,S,E,N` or `earth`: points outside are rejected. None keeps all.
    rows_per_file : int
        Messages in one output file.
    master : str
        Spark master.
    driver_memory : str
        Heap of the Spark driver, such as `2g`.
    overwrite : bool
        Replace what is in `out`.
    """

    inputs: tuple[str, ...]
    out: str
    input_format: str = "auto"
    text_column: str = "text"
    lat_column: str = "lat"
    lon_column: str = "lon"
    time_column: str = "time"
    id_column: str = "id"
    west_column: str = "west"
    south_column: str = "south"
    east_column: str = "east"
    north_column: str = "north"
    object_id_column: str = "object_id"
    op_column: str = "op"
    csv_delimiter: str = ","
    stem_language: str = ""
    stop_share: float = 1.0
    world: str | None = None
    rows_per_file: int = 100_000
    master: str = "local[*]"
    driver_memory: str = "2g"
    overwrite: bool = False

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
