"""The CloudEvents 1.0 attributes of an update, for sinks whose records have headers.

The names are those of the specification; a binding has its prefix for them: `ce_` in Kafka, `ce-` in NATS, and
`datacontenttype` is the header `content-type` in binary mode. There is no `time`: an update has numbers of the stream
(`seq`, `as_of`), no clock.
"""

from functools import lru_cache
from urllib.parse import quote

from gateway.serve.released import ReleasedUpdate


def attributes_of(update: ReleasedUpdate, stream: str) -> dict[str, str]:
    """The CloudEvents attributes of an update.

    Parameters
    ----------
    stream : str
        Identity of the stream.

    Returns
    -------
    dict of str to str
        By name. The `id` is unique among all streams, and the same whenever the update comes again.
    """
    return {
        "specversion": "1.0",
        "id": f"{stream}/{update.position}",
        "source": source_of(stream),
        "type": f"skyray.update.{update.change}",
        "subject": update.subscription_id,
        "datacontenttype": "application/json",
    }


@lru_cache(maxsize=16)
def source_of(stream: str) -> str:
    """The `source` of all updates of a stream, a URI reference."""
    return f"/skyray/{quote(stream, safe='')}"
