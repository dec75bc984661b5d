"""The input files and the format of each."""

import glob
import re
from contextlib import closing, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from matching.errors import ConfigError, InputError
from matching.unpacking import UNPACKING_ERRORS, compression_of
from matching.validate import bare
from spark_etl.documents import is_document
from spark_etl.options import EtlOptions
from spark_etl.unpacking import open_unpacked

_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".geojsonl": "jsonl",
    # of lines or one document
    ".json": "json",
    ".geojson": "json",
    ".geojsonseq": "json",
    ".geojsons": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSION_SUFFIXES = (".gz", ".gzip", ".zst", ".zstd")
#: Names of the files that are read of a folder, as a regular expression.
NAMES_OF_DATA = (
    "(?i)(" + "|".join(map(re.escape, _SUFFIXES)) + ")(" + "|".join(map(re.escape, _COMPRESSION_SUFFIXES)) + ")?$"
)
#: Bytes of a JSON file that decide between one document and lines.
_BEGINNING_BYTES = 2**20
#: Ends of a first line whose row goes on.
_GOES_ON = (b"{", b"[", b",", b":")


class InputFile(NamedTuple):
    """One input file. `name` is its path below the folder that all inputs have in common."""

    number: int
    path: str
    name: str
    file_format: str
    compression: str
    size_bytes: int

    @property
    def text_bytes(self) -> int:
        """Size once unpacked, roughly."""
        return self.size_bytes * (4 if self.compression or self.file_format == "parquet" else 1)

    @property
    def delimiter(self) -> str | None:
        """Delimiter of a CSV file by its name; None if the name does not say."""
        return "\t" if _plain_suffix(Path(self.path)) == ".tsv" else None


def find_sources(options: EtlOptions) -> list[InputFile]:
    """The input files in order, each once.

    Raises
    ------
    ConfigError
        If a file's format is unknown.
    InputError
        If a path or pattern matches no file, or a file cannot be opened.
    """
    paths = list(dict.fromkeys(path for given in options.inputs for path in _expand(given)))
    shared = Path(paths[0]).parent
    while not all(path.is_relative_to(shared) for path in paths):
        shared = shared.parent
    sources = []
    for number, path in enumerate(paths):
        try:
            with path.open("rb") as stream:
                start = stream.read(64)
            size_bytes = path.stat().st_size
        except OSError as error:
            raise InputError(
                "broken_file", f"{path}: cannot be opened ({error.strerror}); check its permissions"
            ) from None
        compression = compression_of(start[:4])
        file_format = options.input_format
        if file_format == "auto":
            file_format = _format_of(path, start, compression)
            if file_format in ("jsonl", "json"):
                file_format = _json_form(file_format, path, compression, options.encoding)
        name = path.relative_to(shared).as_posix()
        sources.append(InputFile(number, str(path), name, file_format, compression, size_bytes))
    return sources


def _expand(given: str) -> list[Path]:
    """Absolute paths of the files of one input."""
    path = Path(given)
    if path.is_dir():
        found = [
            file
            for file in path.rglob("*")
            if file.is_file()
            and not any(part[0] in "._" for part in file.relative_to(path).parts)
            and _plain_suffix(file) in _SUFFIXES
        ]
        missing = f"{given}: no file in this folder is named {', '.join(_SUFFIXES)} (with or without .gz or .zst)"
    elif path.is_file():
        return [path.resolve()]
    else:
        found = [Path(name) for name in glob.glob(given, recursive=True) if Path(name).is_file()]
        missing = f"{given}: no such file or folder, and no file matches it as a pattern{_meant(path)}"
    if not found:
        raise InputError("missing_file", missing)
    return sorted(file.resolve() for file in found)


def _meant(path: Path) -> str:
    """A hint at a file with a similar name."""
    with suppress(OSError):
        names = [other.name for other in path.parent.iterdir() if other.name[0] != "."]
        if near := get_close_matches(path.name, names, 1):
            return f"; did you mean {path.parent / near[0]}?"
    return "; check its path"


def _plain_suffix(path: Path) -> str:
    name = path.with_suffix("") if path.suffix.lower() in _COMPRESSION_SUFFIXES else path
    return name.suffix.lower()


def _format_of(path: Path, start: bytes, compression: str) -> str:
    file_format = _SUFFIXES.get(_plain_suffix(path))
    # other data may begin like this, but does not end like it, too
    if start[:4] == b"PAR1" and (file_format in (None, "parquet") or _last_bytes(path) == b"PAR1"):
        return "parquet"
    if file_format is None:
        if compression or bare(start)[:1] not in (b"{", b"["):
            raise ConfigError(f"{path}: the name does not show the format; set it to one of jsonl, csv, parquet, json")
        return "jsonl"
    return file_format


def _last_bytes(path: Path) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 4))
        return file.read()


def _json_form(by_name: str, path: Path, compression: str, encoding: str) -> str:
    """`json` for one document (an array, a FeatureCollection, rows over several lines), `jsonl` for a row a line."""
    beginning = b""
    with closing(open_unpacked(str(path), compression, encoding)) as stream, suppress(*UNPACKING_ERRORS):
        while len(beginning) < _BEGINNING_BYTES and (piece := stream.read(_BEGINNING_BYTES)):
            beginning += piece
    first_line = bare(beginning.partition(b"\n")[0]).rstrip()
    over_lines = by_name == "json" and (first_line.startswith(b"[") or first_line.endswith(_GOES_ON))
    return "json" if over_lines or is_document(beginning) else "jsonl"
