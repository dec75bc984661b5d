"""Settings of a feed. Importable without Spark."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from matching.errors import ConfigError
from spark_etl.feed_folder import SINK_NAME
from spark_etl.options import FORMATS, STANDARD_INPUT, EtlOptions

#: Fields of `EtlOptions` that a feed has: words are cut and weighted where the feed is read.
CLEANING = (
    *("strict_attributes", "numbers", "encoding", "csv_delimiter", "time_format", "require_time", "world"),
    *("text_column", "lat_column", "lon_column", "time_column", "id_column"),
    *("west_column", "south_column", "east_column", "north_column", "object_id_column", "op_column"),
    *("geometry", "attribute"),
    *("master", "driver_memory"),
)


@dataclass(frozen=True)
class FeedOptions:
    """Settings of `skyray feed`; annotated fields are options of the command.

    Attributes
    ----------
    etl : EtlOptions
        How rows are cleaned, the inputs, and Spark; of its fields those of `CLEANING` and `inputs` count.
    """

    etl: EtlOptions = field(default_factory=lambda: EtlOptions(inputs=()))
    out: Annotated[str, "feed folder, which `skyray live` and `serve` read with --from feed:FOLDER"] = ""
    sink: Annotated[str, "name of this stream in the feed; each stream into a feed has its own"] = "posts"
    checkpoint: Annotated[
        str, "folder in which Spark keeps how far it is; by default one in the feed, beside the batches"
    ] = ""
    format: Annotated[
        str,
        "form of the files: auto (by the name, then the first bytes), jsonl, csv, parquet or json; or a streaming "
        "source of Spark, such as kafka, delta, rate, or nats",
    ] = "auto"
    option: Annotated[
        tuple[str, ...], "option of that source, as NAME=VALUE, such as subscribe=posts; may be repeated"
    ] = ()
    packages: Annotated[str, "Maven coordinates that the source needs, separated by commas, fetched by Spark"] = ""
    every: Annotated[float, "seconds between two batches at least; 0: one after the other"] = 1.0
    files: Annotated[int, "most new files of a batch"] = 100
    once: Annotated[bool, "take what is there, in batches, and end"] = False

    @property
    def of_files(self) -> bool:
        """Whether the input is files, which are read as `skyray etl` reads them."""
        return self.format in FORMATS

    def folder(self) -> Path:
        """The feed."""
        return Path(self.out).absolute()

    def checkpoint_folder(self) -> Path:
        """Where Spark keeps its position."""
        return Path(self.checkpoint).absolute() if self.checkpoint else self.folder() / self.sink / "checkpoint"

    def source_options(self) -> Mapping[str, str]:
        """Options of the source by name. Raises ConfigError."""
        found = {}
        for one in self.option:
            name, equals, value = one.partition("=")
            if not equals or not name:
                raise ConfigError(f"--option {one!r}: write it as NAME=VALUE, such as subscribe=posts")
            found[name] = value
        return found

    def check(self) -> None:
        """Check every setting, as far as it can be done without Spark.

        Raises
        ------
        ConfigError
            With the option, its value, and what to write.
        """
        if not self.out:
            raise ConfigError("--out: name the folder of the feed")
        if not SINK_NAME.fullmatch(self.sink):
            raise ConfigError(f"--stream {self.sink!r}: give a name of letters, digits, _, - and .")
        if not 0 <= self.every <= 86_400:
            raise ConfigError(f"--every {self.every:g}: give seconds from 0 to 86400")
        if self.files < 1:
            raise ConfigError(f"--files {self.files}: must be at least 1")
        self.source_options()
        if self.of_files:
            self._check_inputs()
        elif len(self.etl.inputs) > 1:
            raise ConfigError(f"--format {self.format}: takes one path at most, and {len(self.etl.inputs)} are given")
        EtlOptions.check(_with_input(self.etl))

    def _check_inputs(self) -> None:
        inputs = self.etl.inputs
        if not inputs:
            raise ConfigError("name at least one folder or pattern to read, or a source of Spark with --format")
        if self.option:
            raise ConfigError(f"--option: is for sources of Spark, and --format is {self.format}")
        if STANDARD_INPUT in inputs:
            raise ConfigError("-: standard input cannot be read again after a crash; name a folder of files")
        paths, out = [Path(one).resolve() for one in inputs], self.folder().resolve()
        for given, path in zip(inputs, paths, strict=True):
            if "**" in given:
                raise ConfigError(f"{given}: ** is not for streams; name the folder, which is searched with all below")
            if not any(mark in given for mark in "*?[{") and not path.exists():
                raise ConfigError(f"{given}: there is no such folder; make it, files may come later")
            if path.is_relative_to(out):
                raise ConfigError(f"{given}: lies in the feed that it would be read into; choose another --out")
            if out.is_relative_to(path):
                raise ConfigError(f"--out {self.out}: lies in the input {given}; choose another folder")
        for number, path in enumerate(paths):
            for other in paths[:number]:
                if path.is_relative_to(other) or other.is_relative_to(path):
                    raise ConfigError(f"{inputs[number]}: is read twice, since {other} is an input, too")


def _with_input(options: EtlOptions) -> EtlOptions:
    """The same options, which are not checked for inputs."""
    return replace(options, inputs=options.inputs or ("stream",), input_format="auto")
