"""Settings besides the options of a command: a TOML file, the environment, and `--set`.

The command line wins, `--set` included; then the environment (`SKYRAY_SECTION__NAME`), then the file, then the default.
Commands read all three through `gateway.shell.options.Command`.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matching.errors import ConfigError
from topology.given import COMMAND_LINE

#: Read when it exists and no other file is named.
DEFAULT_FILE = "skyray.toml"
PREFIX = "SKYRAY_"
#: Variables with our prefix that are no settings.
OTHER_VARIABLES = ("SKYRAY_CONFIG", "SKYRAY_KERNEL_CACHE", "SKYRAY_KEY", "SKYRAY_STARTED_BY")
#: Section -> settings that several commands share, in the order of help pages. Other settings are of one command, in a
#: section of its name, or of `OWNED`.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "input": (
        *("messages", "subscriptions", "from", "vocabulary", "attribute", "strict_attributes", "numbers", "stem"),
        *("fold_accents", "follow", "limit", "rate", "strict"),
    ),
    "output": ("out", "overwrite", "sink", "to", "to_wait_s", "rejects", "log_format"),
    "columns": (
        *("text", "lat", "lon", "time", "id", "geometry"),
        *("west", "south", "east", "north", "object_id", "op"),
    ),
    "stream": (
        *("window", "objects", "batch", "batch_rows", "linger_ms", "world", "distance", "projection", "max_ahead"),
        *("decay_half_life", "decay_smoothing", "most_terms", "synonyms"),
    ),
    "topology": (
        *("executor", "address", "router", "signatures", "allow_loss", "query_bolts", "tuple_bolts"),
        *("distribution_bolts", "aggregation_bolts", "delivery_bolts", "engine", "window_index", "query_threads"),
        *("threshold_rule", "placement", "placement_sample", "rebalance", "credits", "seed"),
    ),
    "recovery": ("checkpoint_every", "checkpoints", "restarts", "resume"),
    "reservations": (
        *("query_cpus", "query_memory_mib", "tuple_cpus", "tuple_memory_mib"),
        *("distribution_cpus", "distribution_memory_mib", "aggregation_cpus", "aggregation_memory_mib"),
        *("delivery_cpus", "delivery_memory_mib", "spout_cpus", "spout_memory_mib", "reserve_wait"),
    ),
    "metrics": ("port", "targets"),
    "server": (
        *("host", "port", "keys", "require_key", "allowed_host", "allow_origin", "trusted_proxy"),
        *("tiles", "tiles_by", "demo", "demo_rate"),
    ),
    "spark": ("master", "driver_memory"),
}
#: Sections of one command that are not named like it.
OWNED = ("limits", "webhooks", "count", "retain")

Place = tuple[str, str]


class Setting(NamedTuple):
    """A value as it was written, and where."""

    value: Any
    origin: str


def read_settings(file: Path | None, sets: Sequence[str] = ()) -> dict[Place, Setting]:
    """All settings that are given besides options, by section and name.

    Parameters
    ----------
    file : Path, optional
        TOML file that must exist. Without it `SKYRAY_CONFIG` names the file, or `skyray.toml` is read if there.
    sets : sequence of str
        `SECTION.NAME=VALUE`, as the command line has them; a repeated one has a list of values.

    Raises
    ------
    ConfigError
        For a missing or unreadable file, and what has no section.
    """
    given = _of_file(file) | _of_environment()
    values: dict[Place, list[str]] = {}
    for text in sets:
        named, equals, value = text.partition("=")
        section, dot, name = named.strip().partition(".")
        if not (equals and dot and name):
            raise ConfigError(f"--set {text}: write SECTION.NAME=VALUE{_suggested(named, _shared())}")
        values.setdefault((section, name.replace("-", "_")), []).append(value)
    for place, several in values.items():
        given[place] = Setting(several if len(several) > 1 else several[0], COMMAND_LINE)
    return given


def refuse_unknown_settings(given: Mapping[Place, Setting], own: Collection[Place], sections: Iterable[str]) -> None:
    """Raise ConfigError for the first given setting that does not exist.

    Parameters
    ----------
    given : mapping
        As of `read_settings`.
    own : collection of places
        Settings of the command.
    sections : iterable of str
        Sections of other commands; the names in them are not checked.
    """
    known, complete = {*own, *_shared()}, {*SECTIONS, *(section for section, _ in own)}
    for place, (_, origin) in given.items():
        section, name = place
        if origin == COMMAND_LINE and place not in own:
            known_elsewhere = place in known or (section not in complete and section in sections)
            hint = "; this command has no such setting" if known_elsewhere else _suggested(f"{section}.{name}", own)
            raise ConfigError(f"--set {section}.{name}: unknown setting{hint}")
        if place not in known and (section in complete or section not in sections):
            raise ConfigError(f"{origin}: unknown setting {section}.{name}{_suggested(f'{section}.{name}', known)}")


def _of_file(named: Path | None) -> dict[Place, Setting]:
    file = named or Path(os.environ.get("SKYRAY_CONFIG") or DEFAULT_FILE)
    if not file.is_file():
        if named is None and not os.environ.get("SKYRAY_CONFIG"):
            return {}
        raise ConfigError(f"settings file {file} does not exist; name another with --config, or leave it out")
    try:
        text = file.read_bytes().decode()
        sections = tomllib.loads(text)
    except (ValueError, OSError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigError(f"settings file {file} cannot be read as TOML: {error}") from None
    given = {}
    for section, table in sections.items():
        if not isinstance(table, dict):
            where = f"{file}, line {_line_of(text, '', section)}"
            raise ConfigError(f"{where}: {section} is in no section{_suggested(section, _shared())}")
        for name, value in table.items():
            origin = f"{file}, line {_line_of(text, section, name)}"
            given[section.replace("-", "_"), name.replace("-", "_")] = Setting(value, origin)
    return given


def _line_of(text: str, section: str, name: str) -> int:
    """The line on which a file sets a value; where it is written otherwise than usual, that of its section, or 1."""
    inside, begins = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        if heading := re.match(r"\s*\[([\w.\"-]+)\]", line):
            inside = heading[1]
            begins = number if inside.partition(".")[0] == section else begins
        key = (re.match(r"\s*([\w.\"-]+)\s*=", line) or ("", ""))[1]
        if (f"{inside}.{key}" if inside and key else key or inside) in (
            name if not section else "",
            f"{section}.{name}",
        ):
            return number
    return begins


def _of_environment() -> dict[Place, Setting]:
    given = {}
    for variable, value in sorted(os.environ.items()):
        if variable.startswith(PREFIX) and variable not in OTHER_VARIABLES:
            section, _, name = variable.removeprefix(PREFIX).lower().partition("__")
            if not name:
                close = _suggested(section, _shared())
                raise ConfigError(f"environment variable {variable}: write {PREFIX}SECTION__NAME{close}")
            given[section, name] = Setting(value, variable)
    return given


def _shared() -> set[Place]:
    return {(section, name) for section, names in SECTIONS.items() for name in names}


def _suggested(named: str, known: Iterable[Place]) -> str:
    """What may have been meant; the name alone finds its section."""
    places = {f"{section}.{name}": name for section, name in sorted(known)}
    name = named.rpartition(".")[2].replace("-", "_")
    alike = [place for place, own in places.items() if own == name] or difflib.get_close_matches(named, places, 1)
    if not alike:
        close = difflib.get_close_matches(name, places.values(), 1)
        alike = [place for place, own in places.items() if own in close]
    return f"; did you mean {alike[0]}?" if alike else "; `skyray config show` lists the settings"
