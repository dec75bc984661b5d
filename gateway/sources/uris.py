"""Parses the URI of `--from`, and makes the source that it names.

nats://HOST:PORT/STREAM?consumer=NAME
kafka://HOST:PORT,HOST:PORT/TOPIC?group=NAME
feed:FOLDER
"""

import re
from collections.abc import Mapping
from pathlib import Path

from gateway.brokers.uris import (
    NAME,
    TOPIC,
    check_parameters,
    hosts_of,
    name_of,
    read_properties,
    refuse_login,
    shown,
    split,
    wrong_of,
)
from gateway.sources.folder import FolderSource
from gateway.sources.source import BrokerSource
from matching.errors import ConfigError
from matching.extras import require

#: Of each scheme: the part that is read, its form, the parameters, the default port, and an example.
_SCHEMES: Mapping[str, tuple[str, re.Pattern[str], frozenset[str], int, str]] = {
    "nats": ("stream", NAME, frozenset({"consumer"}), 4222, "nats://127.0.0.1:4222/POSTS?consumer=skyray"),
    "kafka": ("topic", TOPIC, frozenset({"group", "config"}), 9092, "kafka://127.0.0.1:9092/posts?group=skyray"),
}
_FEED = "feed:"


def source_of(uri: str) -> BrokerSource:
    """The source that a URI names; nothing is connected yet.

    Raises
    ------
    ConfigError
        Saying what is wrong with the URI, or which package is missing.
    """
    if uri.startswith(_FEED):
        return _folder_source(uri)
    scheme, _, _ = uri.partition("://")
    if "://" not in uri or scheme not in _SCHEMES:
        known = " or ".join(example for *_, example in _SCHEMES.values())
        raise ConfigError(
            f"--from {shown(uri)}: must begin with nats:// or kafka://, or with feed: and a folder; for example {known}"
        )
    what, form, allowed, port, example = _SCHEMES[scheme]
    wrong = wrong_of("--from", uri, example)
    parts, options = split(uri, wrong)
    login, hosts = hosts_of(parts, port, wrong)
    name = name_of(parts, what, form, wrong)
    check_parameters(options, allowed, wrong)
    if scheme == "nats":
        require("nats", "--from nats://")
        from gateway.sources.nats import NatsSource

        consumer = options.get("consumer", "")
        if consumer and not NAME.fullmatch(consumer):
            raise wrong(f"{consumer!r} cannot be the name of a consumer")
        return NatsSource([f"nats://{login + '@' if login else ''}{host}" for host in hosts], name, consumer)
    refuse_login(login, wrong)
    require("kafka", "--from kafka://")
    from gateway.sources.kafka import KafkaSource

    properties = read_properties(options["config"]) if "config" in options else {}
    return KafkaSource(",".join(hosts), name, options.get("group", ""), properties)


def _folder_source(uri: str) -> BrokerSource:
    folder = Path(uri.removeprefix(_FEED)).absolute()
    if uri == _FEED or not folder.is_dir():
        raise ConfigError(f"--from {uri}: there is no such folder; create it, or let the job begin that feeds it")
    return FolderSource(folder)
