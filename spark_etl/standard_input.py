"""Standard input as a file, since duplicates and weights need the data as a whole."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from matching.errors import ConfigError, InputError
from spark_etl.options import EtlOptions

#: Name of the file in rejected rows.
NAME = "stdin"


def spooled(options: EtlOptions, folder: Path) -> EtlOptions:
    """Write standard input to a file in a folder, and make that the input.

    JSON Lines, plain or packed, unless a format is given.

    Raises
    ------
    ConfigError
        If there is no standard input.
    InputError
        If it cannot be read or stored.
    """
    if sys.stdin is None or sys.stdin.closed:
        raise ConfigError("inputs: - means standard input, and there is none; pipe the messages in")
    path = folder / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 2**20)
    except OSError as error:
        raise InputError(
            "broken_file", f"standard input: cannot be read and stored in {path.parent} ({error.strerror})"
        ) from None
    input_format = "jsonl" if options.input_format == "auto" else options.input_format
    return replace(options, inputs=(str(path),), input_format=input_format)
