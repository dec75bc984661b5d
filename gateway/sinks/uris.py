"""What `--to` names.

    kafka://HOST:PORT,HOST:PORT/TOPIC?config=FILE&create=PARTITIONS
    nats://HOST:PORT/STREAM?subject=PREFIX
    postgresql://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME

Used by `gateway.commands.delivering`.
"""

import re
from collections.abc import Callable, Mapping
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from gateway.sinks.stream import StreamSink
from matching.errors import ConfigError
from matching.extras import require

_EXAMPLES: Mapping[str, str] = {
    "kafka": "kafka://127.0.0.1:9092/updates",
    "nats": "nats://127.0.0.1:4222/UPDATES",
    "postgresql": "postgresql://skyray@127.0.0.1:5432/alerts?schema=skyray",
}
_MOST_PARTITIONS = 100_000
_NAME = re.compile(r"[A-Za-z0-9_\-]+")
_TOPIC = re.compile(r"[A-Za-z0-9_.\-]+")
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_Wrong = Callable[[str], ConfigError]


def sink_of(uri: str) -> StreamSink:
    """The sink that a URI names; nothing is connected yet.

    Raises
    ------
    ConfigError
        Saying what is wrong with the URI, or which package is missing.
    """
    scheme = uri.partition("://")[0]
    scheme = "postgresql" if scheme == "postgres" else scheme  # libpq takes both
    if "://" not in uri or scheme not in _EXAMPLES:
        known = " or ".join(_EXAMPLES.values())
        raise ConfigError(
            f"--to {_shown(uri)}: must begin with kafka://, nats:// or postgresql://; for example {known}"
        )

    def wrong(why: str) -> ConfigError:
        return ConfigError(f"--to {_shown(uri)}: {why}; for example {_EXAMPLES[scheme]}")

    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise wrong(f"cannot be read ({error})") from error
    if "@" in parts.path:
        raise wrong("a / in a user or password is written %2F, an @ in a name %40")
    if parts.fragment:
        raise wrong("has a #, which means nothing here")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for parameter, value in options.items():
        if not value:
            raise wrong(f"{parameter} is empty: give it a value, or leave it out")
    return _MAKERS[scheme](parts, options, wrong)


def _kafka(parts: SplitResult, options: Mapping[str, str], wrong: _Wrong) -> StreamSink:
    _refuse_unknown(options, {"config", "create"}, wrong)
    login, hosts = _hosts(parts, 9092, wrong)
    if login:
        raise wrong("has a user; give the file with security.protocol, sasl.username and so on as config=FILE")
    topic = _named(parts, "topic", _TOPIC, wrong)
    create = options.get("create")
    if create is not None and not (create.isascii() and create.isdigit() and 0 < int(create) <= _MOST_PARTITIONS):
        raise wrong(f"create={create} is no number of partitions from 1 to {_MOST_PARTITIONS:,}")
    require("kafka", "--to kafka://")
    from gateway.sinks.kafka import KafkaSink
    from gateway.sources.kafka import read_properties

    properties = read_properties(options["config"]) if "config" in options else {}
    return KafkaSink(",".join(hosts), topic, properties, int(create) if create else None)


def _nats(parts: SplitResult, options: Mapping[str, str], wrong: _Wrong) -> StreamSink:
    _refuse_unknown(options, {"subject"}, wrong)
    login, hosts = _hosts(parts, 4222, wrong)
    stream = _named(parts, "stream", _NAME, wrong)
    subject = options.get("subject", stream)
    if not _TOPIC.fullmatch(subject) or ".." in subject or subject.startswith(".") or subject.endswith("."):
        raise wrong(f"{subject!r} cannot begin a subject")
    require("nats", "--to nats://")
    from gateway.sinks.nats import NatsSink

    return NatsSink([f"nats://{login + '@' if login else ''}{host}" for host in hosts], stream, subject)


def _postgres(parts: SplitResult, options: Mapping[str, str], wrong: _Wrong) -> StreamSink:
    """All parameters but the schema are libpq's, such as `sslmode`; so are a URI without a host, and several hosts."""
    schema = options.get("schema", "skyray")
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise wrong(f"{schema!r} cannot be the name of a schema")
    if parts.netloc.rpartition("@")[2]:
        _hosts(parts, 5432, wrong)
    if not unquote(parts.path).strip("/"):
        raise wrong("names no database: it comes behind the host, after a /")
    require("postgres", "--to postgresql://")
    from gateway.sinks.postgres import PostgresSink

    rest = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items() if name != "schema")
    return PostgresSink(f"postgresql://{parts.netloc}{parts.path}{'?' + rest if rest else ''}", schema)


_MAKERS: Mapping[str, Callable[[SplitResult, Mapping[str, str], _Wrong], StreamSink]] = {
    "kafka": _kafka,
    "nats": _nats,
    "postgresql": _postgres,
}


def _refuse_unknown(options: Mapping[str, str], known: set[str], wrong: _Wrong) -> None:
    if unknown := sorted(set(options) - known):
        raise wrong(f"{unknown[0]!r} is no parameter of it; these are: {', '.join(sorted(known))}")


def _named(parts: SplitResult, what: str, form: re.Pattern[str], wrong: _Wrong) -> str:
    name = unquote(parts.path).strip("/")
    if not name:
        raise wrong(f"names no {what}: it comes behind the host, after a /")
    if not form.fullmatch(name):
        raise wrong(f"{name!r} cannot be the name of a {what}")
    return name


def _hosts(parts: SplitResult, default: int, wrong: _Wrong) -> tuple[str, list[str]]:
    """The login, and the hosts with their ports."""
    login, _, hosts = parts.netloc.rpartition("@")
    if not hosts:
        raise wrong("names no host")
    return login, [_with_port(host, default, wrong) for host in hosts.split(",")]


def _with_port(host: str, default: int, wrong: _Wrong) -> str:
    try:
        parts = urlsplit(f"//{host}")
        port = parts.port
    except ValueError as error:
        raise wrong(f"{host!r} is no host with a port from 1 to 65535") from error
    if not parts.hostname or port == 0:
        raise wrong(f"{host!r} is no host with a port from 1 to 65535")
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{name}:{port or default}"


def _shown(uri: str) -> str:
    """A URI without its password."""
    return re.sub(r"//.*@", "//***@", uri)
