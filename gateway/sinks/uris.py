"""Parses the URIs of `--to`, and makes the sink that each names.

kafka://HOST:PORT,HOST:PORT/TOPIC?config=FILE&create=PARTITIONS
nats://HOST:PORT/STREAM?subject=PREFIX
postgresql://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME
"""

import re
from collections.abc import Callable, Mapping
from urllib.parse import SplitResult, quote, unquote

from gateway.brokers.uris import (
    NAME,
    TOPIC,
    Wrong,
    check_parameters,
    hosts_of,
    name_of,
    read_properties,
    refuse_login,
    shown,
    split,
    wrong_of,
)
from gateway.sinks.stream import StreamSink
from matching.errors import ConfigError
from matching.extras import require

_EXAMPLES: Mapping[str, str] = {
    "kafka": "kafka://127.0.0.1:9092/updates",
    "nats": "nats://127.0.0.1:4222/UPDATES",
    "postgresql": "postgresql://skyray@127.0.0.1:5432/alerts?schema=skyray",
}
_MOST_PARTITIONS = 100_000
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


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
        raise ConfigError(f"--to {shown(uri)}: must begin with kafka://, nats:// or postgresql://; for example {known}")
    wrong = wrong_of("--to", uri, _EXAMPLES[scheme])
    parts, options = split(uri, wrong)
    return _MAKERS[scheme](parts, options, wrong)


def _kafka(parts: SplitResult, options: Mapping[str, str], wrong: Wrong) -> StreamSink:
    check_parameters(options, {"config", "create"}, wrong)
    login, hosts = hosts_of(parts, 9092, wrong)
    refuse_login(login, wrong)
    topic = name_of(parts, "topic", TOPIC, wrong)
    create = options.get("create")
    if create is not None and not (create.isascii() and create.isdigit() and 0 < int(create) <= _MOST_PARTITIONS):
        raise wrong(f"create={create} is no number of partitions from 1 to {_MOST_PARTITIONS:,}")
    require("kafka", "--to kafka://")
    from gateway.sinks.kafka import KafkaSink

    properties = read_properties(options["config"]) if "config" in options else {}
    return KafkaSink(",".join(hosts), topic, properties, int(create) if create else None)


def _nats(parts: SplitResult, options: Mapping[str, str], wrong: Wrong) -> StreamSink:
    check_parameters(options, {"subject"}, wrong)
    login, hosts = hosts_of(parts, 4222, wrong)
    stream = name_of(parts, "stream", NAME, wrong)
    subject = options.get("subject", stream)
    if not TOPIC.fullmatch(subject) or ".." in subject or subject.startswith(".") or subject.endswith("."):
        raise wrong(f"{subject!r} cannot begin a subject")
    require("nats", "--to nats://")
    from gateway.sinks.nats import NatsSink

    return NatsSink([f"nats://{login + '@' if login else ''}{host}" for host in hosts], stream, subject)


def _postgres(parts: SplitResult, options: Mapping[str, str], wrong: Wrong) -> StreamSink:
    """All parameters but the schema are libpq's, such as `sslmode`; so are a URI without a host, and several hosts."""
    check_parameters(options, None, wrong)
    schema = options.get("schema", "skyray")
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise wrong(f"{schema!r} cannot be the name of a schema")
    if parts.netloc.rpartition("@")[2]:
        hosts_of(parts, 5432, wrong)
    if not unquote(parts.path).strip("/"):
        raise wrong("names no database: it comes behind the host, after a /")
    require("postgres", "--to postgresql://")
    from gateway.sinks.postgres import PostgresSink

    rest = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items() if name != "schema")
    return PostgresSink(f"postgresql://{parts.netloc}{parts.path}{'?' + rest if rest else ''}", schema)


_MAKERS: Mapping[str, Callable[[SplitResult, Mapping[str, str], Wrong], StreamSink]] = {
    "kafka": _kafka,
    "nats": _nats,
    "postgresql": _postgres,
}
