"""The Python interface of runs: `skyray.etl`, `skyray.run`, `skyray.open`, and the `skyray.Run` that they return.

A `Run` reads by `gateway.runs.reader`. Explaining stands on the reader, so it cannot be a method of it.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gateway.runs.explaining import explain
from gateway.runs.reader import RunReader
from gateway.shell.settings import OWNED, SECTIONS, read_settings, refuse_unknown_settings
from gateway.shell.suggesting import refuse_unknown
from matching.extras import require
from spark_etl.options import EtlOptions
from topology import running
from topology.given import Given
from topology.settings import RunConfig, load_config


class Run(RunReader):
    """A run folder, in any state; see `gateway.runs.reader.RunReader` for parameters, attributes and errors."""

    def explain(self, subscription_id: str, message_id: str) -> dict[str, Any]:
        """Why a message is in a subscription's result, or is not: see `gateway.runs.explaining.explain`."""
        return explain(self.folder, subscription_id, message_id, self.kinds)


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
    require("spark", "the ETL")
    from spark_etl.job import run_etl

    refuse_unknown("skyray.etl", options, EtlOptions.__dataclass_fields__)
    return run_etl(EtlOptions(inputs=tuple(os.fspath(path) for path in inputs), out=os.fspath(out), **options))


def run(
    messages: str | os.PathLike[str],
    subscriptions: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    **settings: Any,
) -> Run:
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
    refuse_unknown("skyray.run", settings, RunConfig.model_fields)
    files = [subscriptions] if isinstance(subscriptions, str | os.PathLike) else list(subscriptions)
    config = load_config(run_settings({"messages": messages, "subscriptions": files, "out": out, **settings}))
    running.run(config)
    return open(config.out)


def open(folder: str | os.PathLike[str]) -> Run:
    """A run in any state: its `report`, `updates()`, `results()`, `explain()`: see `gateway.runs.reader`."""
    return Run(folder)


def run_settings(options: Mapping[str, Any]) -> Given:
    """Settings of `skyray.run`: its arguments, and those of environment and file. Raises ConfigError."""
    given, found = read_settings(None), Given()
    commands = {file.stem for file in Path(__file__).parents[1].joinpath("commands").glob("*.py")}
    refuse_unknown_settings(given, (), {*OWNED, *commands})
    for (section, name), (value, origin) in given.items():
        if section in SECTIONS and name in RunConfig.model_fields:
            found[name], found.origins[name] = value, origin
    return found | options
