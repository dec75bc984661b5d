"""The parts of a URI that names a broker or a database, and the file that its `config=` names. Nothing is connected."""

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from matching.errors import ConfigError, InputError

#: Names of streams and consumers of NATS, and of topics of Kafka.
NAME, TOPIC = re.compile(r"[A-Za-z0-9_\-]+"), re.compile(r"[A-Za-z0-9_.\-]+")

#: Makes the error for what is wrong with a URI, which it shows with an example.
Wrong = Callable[[str], ConfigError]


def wrong_of(option: str, uri: str, example: str) -> Wrong:
    """Return a function that makes the errors of this URI: `option`, the URI without its password, and an example."""
    return lambda why: ConfigError(f"{option} {shown(uri)}: {why}; for example {example}")


def split(uri: str, wrong: Wrong) -> tuple[SplitResult, dict[str, str]]:
    """The parts of a URI, and its parameters. Raises ConfigError."""
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise wrong(f"cannot be read ({error})") from error
    if "@" in parts.path:
        raise wrong("a / in a user or password is written %2F, an @ in a name %40")
    if parts.fragment:
        raise wrong("has a #, which means nothing here")
    return parts, dict(parse_qsl(parts.query, keep_blank_values=True))


def check_parameters(options: Mapping[str, str], known: Collection[str] | None, wrong: Wrong) -> None:
    """Refuse parameters that are unknown or empty; `known` None: any. Raises ConfigError."""
    if known is not None and (unknown := sorted(set(options) - set(known))):
        raise wrong(f"{unknown[0]!r} is no parameter of it; these are: {', '.join(sorted(known))}")
    for parameter, value in options.items():
        if not value:
            raise wrong(f"{parameter} is empty: give it a value, or leave it out")


def name_of(parts: SplitResult, what: str, form: re.Pattern[str], wrong: Wrong) -> str:
    """The path of a URI: the name of a stream, topic or database. Raises ConfigError."""
    name = unquote(parts.path).strip("/")
    if not name:
        raise wrong(f"names no {what}: it comes behind the host, after a /")
    if not form.fullmatch(name):
        raise wrong(f"{name!r} cannot be the name of a {what}")
    return name


def hosts_of(parts: SplitResult, default_port: int, wrong: Wrong) -> tuple[str, list[str]]:
    """The login, and the hosts with their ports. Raises ConfigError."""
    login, _, hosts = parts.netloc.rpartition("@")
    if not hosts:
        raise wrong("names no host")
    return login, [_with_port(host, default_port, wrong) for host in hosts.split(",")]


def refuse_login(login: str, wrong: Wrong) -> None:
    """Kafka has no user in a URI. Raises ConfigError."""
    if login:
        raise wrong("has a user; give the file with security.protocol, sasl.username and so on as config=FILE")


def read_properties(path: str) -> dict[str, str]:
    """Properties of librdkafka in a file, `name=value` a line: TLS, SASL and so on. Raises ConfigError, InputError."""
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


def shown(uri: str) -> str:
    """A URI without its password."""
    return re.sub(r"//.*@", "//***@", uri)


def _with_port(host: str, default: int, wrong: Wrong) -> str:
    try:
        parts = urlsplit(f"//{host}")
        port = parts.port
    except ValueError as error:
        raise wrong(f"{host!r} is no host with a port from 1 to 65535") from error
    if not parts.hostname or port == 0:
        raise wrong(f"{host!r} is no host with a port from 1 to 65535")
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{name}:{port or default}"
