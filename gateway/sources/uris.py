"""Makes the source that the URI of `--from` names.

nats://HOST:PORT/STREAM?consumer=NAME
kafka://HOST:PORT,HOST:PORT/TOPIC?group=NAME
feed:FOLDER
"""

from pathlib import Path

from gateway.brokers.uris import NAME, BrokerUri
from gateway.sources.folder import FolderSource
from gateway.sources.source import BrokerSource
from matching.errors import ConfigError

_EXAMPLES = {
    "nats": "nats://127.0.0.1:4222/POSTS?consumer=skyray",
    "kafka": "kafka://127.0.0.1:9092/posts?group=skyray",
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
        folder = Path(uri.removeprefix(_FEED)).absolute()
        if uri == _FEED or not folder.is_dir():
            raise ConfigError(f"--from {uri}: there is no such folder; create it, or let the job begin that feeds it")
        return FolderSource(folder)
    named = BrokerUri("--from", uri, _EXAMPLES, ", or with feed: and a folder")
    if named.scheme == "nats":
        servers, stream = named.nats("consumer")
        from gateway.sources.nats import NatsSource

        consumer = named.options.get("consumer", "")
        if consumer and not NAME.fullmatch(consumer):
            raise named.wrong(f"{consumer!r} cannot be the name of a consumer")
        return NatsSource(servers, stream, consumer)
    hosts, topic, properties = named.kafka("group")
    from gateway.sources.kafka import KafkaSource

    return KafkaSource(hosts, topic, named.options.get("group", ""), properties)
