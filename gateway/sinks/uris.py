"""Makes the sink that a URI of `--to` names.

kafka://HOST:PORT,HOST:PORT/TOPIC?config=FILE&create=PARTITIONS
nats://HOST:PORT/STREAM?subject=PREFIX
postgresql://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME
"""

import re
from urllib.parse import quote, unquote

from gateway.brokers.uris import TOPIC, BrokerUri
from gateway.sinks.stream import StreamSink
from matching.extras import require

_EXAMPLES = {
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
    named = BrokerUri("--to", re.sub("^postgres://", "postgresql://", uri), _EXAMPLES)  # libpq takes both
    return {"kafka": _kafka, "nats": _nats, "postgresql": _postgres}[named.scheme](named)


def _kafka(uri: BrokerUri) -> StreamSink:
    hosts, topic, properties = uri.kafka("create")
    create = uri.options.get("create")
    if create is not None and not (create.isascii() and create.isdigit() and 0 < int(create) <= _MOST_PARTITIONS):
        raise uri.wrong(f"create={create} is no number of partitions from 1 to {_MOST_PARTITIONS:,}")
    from gateway.sinks.kafka import KafkaSink

    return KafkaSink(hosts, topic, properties, int(create) if create else None)


def _nats(uri: BrokerUri) -> StreamSink:
    servers, stream = uri.nats("subject")
    subject = uri.options.get("subject", stream)
    if not TOPIC.fullmatch(subject) or ".." in subject or subject.startswith(".") or subject.endswith("."):
        raise uri.wrong(f"{subject!r} cannot begin a subject")
    from gateway.sinks.nats import NatsSink

    return NatsSink(servers, stream, subject)


def _postgres(uri: BrokerUri) -> StreamSink:
    """All parameters but the schema are libpq's, such as `sslmode`; so are a URI without a host, and several hosts."""
    uri.check(None)
    schema = uri.options.get("schema", "skyray")
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise uri.wrong(f"{schema!r} cannot be the name of a schema")
    if uri.parts.netloc.rpartition("@")[2]:
        uri.hosts(5432)
    if not unquote(uri.parts.path).strip("/"):
        raise uri.wrong("names no database: it comes behind the host, after a /")
    require("postgres", "--to postgresql://")
    from gateway.sinks.postgres import PostgresSink

    rest = "&".join(f"{name}={quote(value, safe='')}" for name, value in uri.options.items() if name != "schema")
    return PostgresSink(f"postgresql://{uri.parts.netloc}{uri.parts.path}{'?' + rest if rest else ''}", schema)
