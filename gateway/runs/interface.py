"""The Python interface of runs: `skyray.etl`, `skyray.run`, `skyray.open`, and the `skyray.Run` that they return.

A `Run` reads by `gateway.runs.reader`. Explaining and drawing stand on the reader, so they cannot be methods of it.
"""

import os
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.runs.explaining import explain
from gateway.runs.reader import RunReader, Subscriber, active_at, subscriber
from gateway.shell.settings import OWNED, SECTIONS, read_settings, refuse_unknown_settings
from gateway.shell.suggesting import refuse_unknown
from matching.extras import require, require_lonboard
from matching.fields import Refusal
from matching.validate import subscription_row
from spark_etl.options import EtlOptions
from topology import running
from topology.given import Given
from topology.settings import RunConfig, load_config

if TYPE_CHECKING:
    import lonboard

#: Subscriptions, and messages, that a map draws.
_MOST = 50_000


class Run(RunReader):
    """A run folder, in any state; see `gateway.runs.reader.RunReader` for parameters, attributes and errors."""

    def explain(self, subscription_id: str, message_id: str) -> dict[str, Any]:
        """Why a message is in a subscription's result, or is not: see `gateway.runs.explaining.explain`."""
        return explain(self.folder, subscription_id, message_id, self.kinds)

    def map(self, *subscription_ids: str, most: int = _MOST) -> "lonboard.Map":
        """A map of subscriptions, or of all, and of the messages in their results, for a notebook.

        O(updates), as `results`. Of an id with several subscriptions the last one is drawn.

        Parameters
        ----------
        *subscription_ids : str
        most : int
            Subscriptions, and messages, that are drawn; a warning says what is left out.

        Returns
        -------
        lonboard.Map
            Layers of shapes, of places and of messages, coloured by kind; none that has no rows.

        Raises
        ------
        ConfigError
            For a subscription that the run does not have, or where lonboard is not installed.
        """
        require_lonboard()
        from gateway.runs import notebook  # imports lonboard

        notebook.check(most)
        known = self.known(subscription_ids) if subscription_ids else self._all_known()
        drawn = dict(islice(known.items(), most))
        results = self.result_rows(drawn.keys())
        messages = self.join(results.slice(0, most).to_pylist(), drawn)
        shown = [_columns(active_at(several, None)) for several in drawn.values()]
        left_out = notebook.left_out("subscriptions", len(drawn), len(known))
        left_out += notebook.left_out("messages of results", len(messages), len(results))
        placed = [row for row in messages if "lon" in row]
        if lost := len(messages) - len(placed):
            left_out.append(f"{lost:,} messages of results are not in {self.etl}")
        return notebook.Drawing(shown, placed, left_out).map()

    def _all_known(self) -> dict[str, list[Subscriber]]:
        """The subscriptions of the run that were not rejected, by id, in order of `at`. O(rows of the files)."""
        found: dict[str, list[Subscriber]] = {}
        for row in self.subscription_rows():
            parsed = subscription_row(row, self.vocabulary, self.space, self.kinds)
            if not isinstance(parsed, Refusal | str):
                found.setdefault(parsed.subscription_id, []).append(subscriber(row, parsed, self.kinds))
        for several in found.values():
            several.sort(key=lambda one: one.at)
        return found


def _columns(one: Subscriber) -> dict[str, Any]:
    """A subscription as columns to be drawn."""
    place = {"lon": one.lon, "lat": one.lat, "region": one.region}
    return {"subscription_id": one.subscription_id, "kind": one.kind, "keywords": one.words} | place | one.conditions


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
    """A run in any state: its `report`, `updates()`, `results()`, `explain()`, `map()`: see `gateway.runs.reader`."""
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
