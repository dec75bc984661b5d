"""Skyray from Python: what the commands do, for notebooks and programs.

    import skyray

    skyray.etl("tweets.jsonl.gz", out="etl")
    run = skyray.run(messages="etl", subscriptions=["mine.jsonl"], out="runs/first", executor="local")
    run.results("s1").to_pandas()
    run.explain("s1", "tweet-17")["why"]

    with skyray.Client("http://127.0.0.1:8080", key=key) as client:  # of `skyray serve`; AsyncClient is awaited
        client.publish({"id": "m1", "text": "ramen is open", "lon": 139.69, "lat": 35.68})
        for update in client.updates(subscription="s1", since="begin"):
            ...

    engine = skyray.Engine("etl", window="count:10000")
    engine.subscribe(subscription_id="s1", kind="knn", keywords="ramen", lon=139.7, lat=35.7, k=3)
    engine.publish([{"id": "m1", "text": "ramen is open", "lon": 139.69, "lat": 35.68}])

Errors are those of `matching.errors`: they say what, where and what to do. docs/python.md goes through all of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from matching.errors import ConfigError, DeliveryError, EngineError, InputError, TopologyError
from matching.extras import require

if TYPE_CHECKING:
    from gateway.client.awaiting import AsyncClient
    from gateway.client.blocking import Client
    from gateway.client.errors import (
        ClientError,
        Denied,
        Failed,
        Gap,
        NotFound,
        Refused,
        Throttled,
        Unreachable,
    )
    from gateway.engine import Engine
    from gateway.runs.interface import Run, etl, open, run

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "ConfigError",
    "DeliveryError",
    "Denied",
    "Engine",
    "EngineError",
    "Failed",
    "Gap",
    "InputError",
    "NotFound",
    "Refused",
    "Run",
    "Throttled",
    "TopologyError",
    "Unreachable",
    "etl",
    "open",
    "run",
]

_ERRORS = ("ClientError", "Denied", "Failed", "Gap", "NotFound", "Refused", "Throttled", "Unreachable")
#: Names that are imported on first use, and their modules.
_LATE = {
    "AsyncClient": "gateway.client.awaiting",
    "Client": "gateway.client.blocking",
    "Engine": "gateway.engine",
    **dict.fromkeys(("Run", "etl", "open", "run"), "gateway.runs.interface"),
    **dict.fromkeys(_ERRORS, "gateway.client.errors"),
}


def __dir__() -> list[str]:
    """The names of the interface, those that are imported late among them."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """What takes a second to import, or needs an extra, imported on first use."""
    if name not in _LATE:
        raise AttributeError(f"module 'skyray' has no attribute {name!r}")
    module = _LATE[name]
    if name in ("Client", "AsyncClient"):
        require("client", f"skyray.{name}")
    return getattr(import_module(module), name)
