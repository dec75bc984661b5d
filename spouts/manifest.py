"""Facts of a folder of messages: its `manifest.json`, or those of the log of a live stream."""

import json
import os
from typing import Any

from matching.errors import InputError
from matching.space import Space
from matching.words.tokeniser import is_of_this_tokeniser, tokeniser_number
from spouts.columns import damaged, first_line
from spouts.history import history_of
from topology.core.places import is_remote, place

#: Each `format_version` in the manifest of the ETL outputs that this release reads; 2 has attributes.
ETL_FORMATS = (1, 2)
#: What a live stream has of the folder of words that it began with.
_OF_STREAM = ("total_tokens", "stop_terms", "options")


def read_manifest(directory: str | os.PathLike[str]) -> dict[str, Any] | None:
    """`manifest.json` of an ETL directory; None if there is none (yet). Raises InputError if it is damaged.

    Of the folder of a live stream: the words that it began with, `kept` messages of its log, its world for the extent,
    and `live`.
    """
    if history := history_of(directory):
        begun, given = read_manifest(history.start) or {}, history.settings
        space = world_of(history.start, given["world"], given["projection"], distance=given["distance"])
        facts = {"extent": [space.west, space.south, space.east, space.north], "kept": history.messages, "live": True}
        return {name: begun[name] for name in _OF_STREAM if name in begun} | facts
    path: Any = place(directory, "manifest.json")
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise InputError(
            "not_an_etl_folder",
            f"{directory}: is a file; make a folder of it with `skyray etl {directory} --out FOLDER`",
        ) from error
    except (OSError, ValueError) as error:
        if is_remote(path) and isinstance(error, OSError):
            raise InputError("broken_file", str(error)) from error
        raise damaged(path, f"cannot be read as JSON ({first_line(error)})") from error
    if not isinstance(manifest, dict):
        raise damaged(path, "is no JSON object")
    if manifest.get("format_version", 1) not in ETL_FORMATS:
        raise InputError(
            "wrong_version",
            f"{path}: ETL output of format {manifest['format_version']}, this release reads "
            f"{' and '.join(map(str, ETL_FORMATS))}; run the ETL again",
        )
    if not is_of_this_tokeniser(number := manifest.get("tokeniser")):
        raise InputError(
            "wrong_version",
            f"{path}: its texts were cut into words by tokeniser {number or 1}, and this is {tokeniser_number()}; run "
            f"the ETL again, or write a stream's folder anew with `skyray convert FOLDER TO`",
        )
    return manifest


def world_of(
    directory: str | os.PathLike[str], world: str, projection: str = "plate-carree", *, distance: str
) -> Space:
    """The box of a run (`Space.parse`) over an ETL directory, whose extent its manifest has. Raises ConfigError."""
    extent = (read_manifest(directory) or {}).get("extent")
    return Space.parse(world, tuple(extent) if extent else None, projection, distance)


def is_of_objects(directory: str | os.PathLike[str], asked: bool = False) -> bool:
    """Whether the stream of a run is one of objects: its settings (`asked`) or the folder of its messages say so."""
    return asked or bool((read_manifest(directory) or {}).get("objects"))


def is_live(directory: str | os.PathLike[str]) -> bool:
    """Whether a live stream wrote the directory: ids may occur twice, times may be null, and the column `ahead` marks
    messages dated too far ahead."""
    return bool((read_manifest(directory) or {}).get("live"))
