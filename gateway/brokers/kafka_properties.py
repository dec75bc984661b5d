"""Properties of librdkafka in a file: TLS, SASL, compression."""

from pathlib import Path

from matching.errors import ConfigError, InputError


def read_properties(path: str) -> dict[str, str]:
    """Properties of a file, `name=value` a line. Raises ConfigError, InputError."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("missing_file", f"{path}: cannot be read ({error}); name a file by config=") from error
    found = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            if not equals or not name.strip():
                raise ConfigError(f"{path}, line {number}: must be NAME=VALUE")
            found[name.strip()] = value.strip()
    return found
