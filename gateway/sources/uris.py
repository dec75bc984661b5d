"""What `--from` names.

    nats://HOST:PORT/STREAM?consumer=NAME
    kafka://HOST:PORT,HOST:PORT/TOPIC?group=NAME

Used by `gateway.commands.live` and `gateway.commands.serve`.
"""

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from gateway.sources.source import Source
from matching.errors import ConfigError
from matching.extras import require

#: Of each scheme: the part that is read, the parameters, the default port, and an example.
_SCHEMES: Mapping[str, tuple[str, frozenset[str], int, str]] = {
    "nats": ("stream", frozenset({"consumer"}), 4222, "nats://127.0.0.1:4222/POSTS?consumer=skyray"),
    "kafka": ("topic", frozenset({"group", "config"}), 9092, "kafka://127.0.0.1:9092/posts?group=skyray"),
}
_NAME = re.compile(r"[A-Za-z0-9_\-]+")
_TOPIC = re.compile(r"[A-Za-z0-9_.\-]+")


def source_of(uri: str) -> Source:
    """The source that a URI names; nothing is connected yet.

    Raises
    ------
    ConfigError
        Saying what is wrong with the URI, or which package is missing.
    """
    scheme, _, _ = uri.partition("://")
    if "://" not in uri or scheme not in _SCHEMES:
        known = " or ".join(example for *_, example in _SCHEMES.values())
        raise ConfigError(f"--from {_shown(uri)}: must begin with nats:// or kafka://; for example {known}")
    what, allowed, port, example = _SCHEMES[scheme]

    def wrong(why: str) -> ConfigError:
        return ConfigError(f"--from {_shown(uri)}: {why}; for example {example}")

    parts = urlsplit(uri)
    name, options = unquote(parts.path).strip("/"), dict(parse_qsl(parts.query, keep_blank_values=True))
    login, _, hosts = parts.netloc.rpartition("@")
    if "@" in parts.path:
        raise wrong("a / in a user or password is written %2F, an @ in a name %40")
    if parts.fragment:
        raise wrong("has a #, which means nothing here")
    if not hosts:
        raise wrong("names no host")
    if not name:
        raise wrong(f"names no {what}: it comes behind the host, after a /")
    if not (_NAME if scheme == "nats" else _TOPIC).fullmatch(name):
        raise wrong(f"{name!r} cannot be the name of a {what}")
    if unknown := sorted(set(options) - allowed):
        raise wrong(f"{unknown[0]!r} is no parameter of it; these are: {', '.join(sorted(allowed))}")
    for parameter, value in options.items():
        if not value:
            raise wrong(f"{parameter} is empty: give it a name, or leave it out")
    brokers = [_with_port(host, port, wrong) for host in hosts.split(",")]
    if scheme == "nats":
        require("nats", "--from nats://")
        from gateway.sources.nats import NatsSource

        consumer = options.get("consumer", "")
        if consumer and not _NAME.fullmatch(consumer):
            raise wrong(f"{consumer!r} cannot be the name of a consumer")
        servers = [f"nats://{login + '@' if login else ''}{broker}" for broker in brokers]
        return NatsSource(servers, name, consumer)
    if login:
        raise wrong("has a user; give the file with security.protocol, sasl.username and so on as config=FILE")
    require("kafka", "--from kafka://")
    from gateway.sources.kafka import KafkaSource, read_properties

    more = read_properties(options["config"]) if "config" in options else {}
    return KafkaSource(",".join(brokers), name, options.get("group", ""), more)


def _with_port(host: str, default: int, wrong) -> str:
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
