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

import os
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from matching.errors import ConfigError, DeliveryError, EngineError, InputError, TopologyError

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
    from gateway.runs.interface import Run

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
    "Run": "gateway.runs.interface",
    **dict.fromkeys(_ERRORS, "gateway.client.errors"),
}


def etl(*inputs: str | os.PathLike[str], out: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
    """Clean raw messages and build their vocabulary with Spark.

    Parameters
    ----------
    *inputs : path
        Files, folders or patterns.
    out : path
        Folder for messages, vocabulary and rejected rows.
    **options
        Fields of `spark_etl.options.EtlOptions`, such as `time_column` or `overwrite`.

    Returns
    -------
    dict
        The manifest: counts, extent, options.

    Raises
    ------
    ConfigError, InputError
        For an unknown or invalid option, for input that cannot be read, and where Spark is not installed.
    """
    from gateway.shell.suggesting import refuse_unknown
    from matching.extras import require

    require("spark", "the ETL")
    from spark_etl.job import EtlOptions, run_etl

    refuse_unknown("skyray.etl", options, EtlOptions.__dataclass_fields__)
    return run_etl(EtlOptions(inputs=tuple(os.fspath(path) for path in inputs), out=os.fspath(out), **options))


def run(
    messages: str | os.PathLike[str],
    subscriptions: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    **settings: Any,
) -> "Run":
    """Match a stream of messages against subscriptions, to its end.

    Parameters
    ----------
    messages : path
        Output folder of `etl`.
    subscriptions : path, or several
    out : path
        Folder for updates, results and the report.
    **settings
        Fields of `topology.settings.RunConfig`, such as `window`, `executor` or `overwrite`; others are
        taken from the environment and skyray.toml, as `skyray run` does.

    Returns
    -------
    Run
        See `open`.

    Raises
    ------
    EngineError
        For an unknown or invalid setting, and other failures.
    """
    from gateway.shell.settings import run_settings
    from gateway.shell.suggesting import refuse_unknown
    from topology import running
    from topology.settings import RunConfig, load_config

    refuse_unknown("skyray.run", settings, RunConfig.model_fields)
    files = [subscriptions] if isinstance(subscriptions, str | os.PathLike) else list(subscriptions)
    config = load_config(run_settings({"messages": messages, "subscriptions": files, "out": out, **settings}))
    running.run(config)
    return open(config.out)


def open(folder: str | os.PathLike[str]) -> "Run":
    """A run in any state: its `report`, `updates()`, `results()`, `explain()`, `map()`: see `gateway.runs.reader`."""
    from gateway.runs.interface import Run

    return Run(folder)


def __dir__() -> list[str]:
    """The names of the interface, those that are imported late among them."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """What takes a second to import, or needs an extra, imported on first use."""
    if name not in _LATE:
        raise AttributeError(f"module 'skyray' has no attribute {name!r}")
    module = _LATE[name]
    if name in ("Client", "AsyncClient"):
        from matching.extras import require

        require("client", f"skyray.{name}")
    return getattr(import_module(module), name)
