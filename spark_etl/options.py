"""Settings of an ETL run."""

from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, fields, replace
from typing import Annotated

from matching.attributes import AttributeSchema
from matching.errors import ConfigError
from matching.fields import OBJECT_ROLES, text_columns
from matching.space import Space
from matching.text import term_form
from spark_etl.paths import ObjectDecoder
from spark_etl.times import time_reader

FORMATS = ("auto", "jsonl", "csv", "parquet", "json")
#: Columns of a message of a live stream; the user may name the input's column for each.
ROLES = ("text", "lat", "lon", "time", "id")
#: Input that stands for standard input.
STANDARD_INPUT = "-"


@dataclass(frozen=True)
class EtlOptions:
    """Settings of one run; annotated fields are options of `skyray etl`.

    Attributes
    ----------
    inputs : tuple of str
        Files, folders (searched recursively) or patterns (`raw/**/*.jsonl.gz`), or `-` alone for standard input. Of
        equal messages the first in this order is kept; files of a folder or pattern are ordered by name.

    Notes
    -----
    The name of a column may be a path into an object (`user.location.lat`, `geometry.coordinates.0`). A column that is
    None is found by its name (`spark_etl.finding`).
    """

    inputs: tuple[str, ...]
    out: Annotated[str | None, "output folder; must not exist, or be empty, unless it may be overwritten"] = None
    input_format: Annotated[
        str,
        "form of the input: auto (by the name, then the first bytes), jsonl, csv, parquet, or json (an array, a "
        "FeatureCollection); gzip, zstd are detected",
    ] = "auto"
    text_column: Annotated[
        str | None,
        "column of the text, or several as title,description, which no phrase crosses; found by its name if not given, "
        "as are the next four; an empty name for none",
    ] = None
    lat_column: Annotated[str | None, "column of the latitude; a.b.c is a path into objects, here and below"] = None
    lon_column: Annotated[str | None, "column of the longitude"] = None
    time_column: Annotated[str | None, "column of the event time; may be absent; an empty name for none"] = None
    id_column: Annotated[str | None, "column of the id; may be absent; an empty name for none"] = None
    west_column: Annotated[str, "column of a range message's western edge; an empty name for none"] = "west"
    south_column: Annotated[str, "column of its southern edge"] = "south"
    east_column: Annotated[str, "column of its eastern edge"] = "east"
    north_column: Annotated[str, "column of its northern edge"] = "north"
    object_id_column: Annotated[str, "column of the id of what an update is about"] = "object_id"
    op_column: Annotated[str, "column that says what an update does"] = "op"
    geometry: Annotated[
        str | None, "column of the place as WKT or WKB, a point or a rectangle; of GeoParquet it is found"
    ] = None
    attribute: Annotated[
        tuple[str, ...],
        "attribute to keep as a typed column, as NAME:TYPE or NAME=COLUMN:TYPE; the type is number, category, time, or "
        "text, which conditions do not compare. May be repeated; never inferred, but --dry-run suggests some",
    ] = ()
    numbers: Annotated[
        str,
        "form of numbers that are text: plain (1200.5), point (1,200.50) or comma (1.200,50), these two also with a "
        "unit before or behind, such as 284 EUR",
    ] = "plain"
    objects: Annotated[
        bool,
        "make a stream of objects: every message is a version of its object_id (its id if it has none), in the order "
        "of time, then of the input, and no version is a duplicate; an id given beside object_id is of one version",
    ] = False
    strict_attributes: Annotated[
        bool, "reject messages with a value that does not fit its attribute; by default the value is missing"
    ] = False
    time_format: Annotated[
        str, "form of the time, such as %d/%m/%Y %H:%M, or seconds, milliseconds, microseconds; many are read without"
    ] = ""
    require_time: Annotated[bool, "reject messages without a time, or with one that cannot be read"] = False
    csv_delimiter: Annotated[str, "what separates the columns of a CSV file; tabs anyway in one named .tsv"] = ","
    encoding: Annotated[str, "encoding of text files, such as latin-1, cp1252, utf-16"] = "utf-8"
    stem_language: Annotated[str, "language for stemming, such as english; none by default"] = ""
    fold_accents: Annotated[bool, "let cafe find café, in messages as in subscriptions"] = False
    stop_share: Annotated[float, "drop terms in more than this fraction of the messages kept; 1 drops none"] = 1.0
    world: Annotated[str | None, "reject messages outside W,S,E,N (or earth); none by default"] = None
    rows_per_file: Annotated[int, "messages in one output file"] = 100_000
    master: Annotated[str, "Spark master"] = "local[*]"
    driver_memory: Annotated[str, "memory of Spark's driver, such as 2g"] = "2g"
    overwrite: Annotated[bool, "replace the output folder"] = False

    def columns(self) -> dict[str, str]:
        """Role of a message's value (a field of `RawMessage`) -> column; named like the role unless given."""
        names = (field.name for field in fields(self) if _is_column(field))
        given = {name.removesuffix(_END): getattr(self, name) for name in names}
        others = dict.fromkeys(("lang", *OBJECT_ROLES) if self.objects else ("lang",))
        return {role: role if name is None else name for role, name in (given | others).items()}

    def columns_recorded(self) -> dict[str, str]:
        """`columns` without that of the language, which has no other name."""
        return {role: name for role, name in self.columns().items() if role != "lang"}

    def names(self, there: Collection[str] = ()) -> list[str]:
        """The columns of all roles, "" for none; of the text perhaps several. `there`: those of a table."""
        text, *others = self.columns().values()
        return [*text_columns(text, there), *others]

    def sought(self) -> list[str]:
        """Roles whose columns have to be found by name."""
        columns = (field.name for field in fields(self) if _is_column(field))
        roles = [name.removesuffix(_END) for name in columns if getattr(self, name) is None]
        return [role for role in roles if not (self.geometry and role in ("lat", "lon"))]

    def named(self) -> dict[str, str]:
        """Role -> column, where the user named it and the names differ."""
        return {role: name for role, name in self.columns().items() if name not in ("", role)}

    def with_columns(self, columns: Mapping[str, str]) -> "EtlOptions":
        """These options with the columns of some roles."""
        return replace(self, **{f"{role}{_END}": name for role, name in columns.items()})

    def attributes(self) -> AttributeSchema:
        """The declared attributes; empty by default."""
        return AttributeSchema.parse(self.attribute, self.numbers)

    def space(self) -> Space | None:
        """The world box that points must lie in, None for any point."""
        return Space.parse(self.world, None) if self.world is not None else None

    def recorded(self) -> dict[str, object]:
        """The options that the content of the output depends on."""
        return {
            "input_format": self.input_format,
            "columns": self.columns_recorded(),
            "geometry": self.geometry or "",
            "encoding": self.encoding,
            "csv_delimiter": self.csv_delimiter,
            "time_format": self.time_format,
            "require_time": self.require_time,
            "stem_language": self.stem_language,
            "fold_accents": self.fold_accents,
            "stop_share": self.stop_share,
            "world": self.world,
            "rows_per_file": self.rows_per_file,
            **({"attribute": list(self.attribute)} if self.attribute else {}),
            **({"objects": True} if self.objects else {}),
            **({"strict_attributes": True} if self.strict_attributes else {}),
            **({"numbers": self.numbers} if self.numbers != "plain" else {}),
        }

    def check(self) -> None:
        """Check every option.

        Raises
        ------
        ConfigError
            With the option, its value and the allowed values.
        """
        if isinstance(self.inputs, str) or not self.inputs:
            raise ConfigError("inputs: name at least one file, folder or pattern")
        if self.out == "":
            raise ConfigError("out: name the output directory")
        if STANDARD_INPUT in self.inputs and len(self.inputs) > 1:
            raise ConfigError("inputs: - stands for standard input, which cannot be read beside files")
        if self.input_format not in FORMATS:
            raise ConfigError(f"input format {self.input_format!r}: choose one of {', '.join(FORMATS)}")
        if len(self.csv_delimiter) != 1 or self.csv_delimiter in '"\r\n':
            raise ConfigError(f"CSV delimiter {self.csv_delimiter!r}: give one character, such as , ; or a tab")
        try:
            b"a".decode(self.encoding, "replace")
        except LookupError:
            raise ConfigError(
                f"encoding {self.encoding!r}: is not known; give one such as utf-8, latin-1, cp1252, utf-16"
            ) from None
        if not 0 < self.stop_share <= 1:
            raise ConfigError(f"stop share {self.stop_share}: must be above 0 and at most 1 (1 removes no term)")
        if self.rows_per_file < 1:
            raise ConfigError(f"rows per file {self.rows_per_file}: must be at least 1")
        term_form(self.stem_language, self.fold_accents)
        time_reader(self.time_format)
        self.space()
        self.attributes()
        ObjectDecoder(self.columns())


_END = "_column"


def _is_column(field: Field) -> bool:
    return field.name.endswith(_END)
