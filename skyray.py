"""Skyray from Python: what the commands do, for notebooks and programs.

    import skyray

    skyray.etl("tweets.jsonl.gz", out="etl")
    run = skyray.run(messages="etl", subscriptions=["mine.jsonl"], out="runs/first", executor="local")
    run.results("s1").to_pandas()
    run.explain("s1", "tweet-17")["why"]

    engine = skyray.Engine("etl", window="count:10000")
    engine.subscribe(subscription_id="s1", kind="knn", keywords="ramen", lon=139.7, lat=35.7, k=3)
    engine.publish([{"id": "m1", "text": "ramen is open", "lon": 139.69, "lat": 35.68}])

Errors are those of `matching.errors`: they say what, where and what to do. docs/python.md goes through all of it.
"""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from matching.errors import ConfigError, DeliveryError, EngineError, InputError, TopologyError

if TYPE_CHECKING:
    from gateway.live.engine import Engine
    from gateway.runs.reader import Run

__all__ = [
    "ConfigError",
    "DeliveryError",
    "Engine",
    "EngineError",
    "InputError",
    "Run",
    "TopologyError",
    "etl",
    "open",
    "run",
]


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
    from gateway.shell.suggesting import refuse_unknown
    from topology import running
    from topology.settings import RunConfig, load_config

    refuse_unknown("skyray.run", settings, RunConfig.model_fields)
    files = [subscriptions] if isinstance(subscriptions, str | os.PathLike) else list(subscriptions)
    config = load_config({"messages": messages, "subscriptions": files, "out": out, **settings})
    running.run(config)
    return open(config.out)


def open(folder: str | os.PathLike[str]) -> "Run":
    """A run in any state: its `report`, `updates()`, `results()` and `explain()`; see `gateway.runs.reader.Run`."""
    from gateway.runs.reader import Run

    return Run(folder)


def __dir__() -> list[str]:
    """The names of the interface, those that are imported late among them."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """`Engine` and `Run`, imported on first use, which takes a second."""
    if name == "Engine":
        from gateway.live.engine import Engine

        return Engine
    if name == "Run":
        from gateway.runs.reader import Run

        return Run
    raise AttributeError(f"module 'skyray' has no attribute {name!r}")
