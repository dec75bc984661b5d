"""A run as Python has it: its report, updates and results as Arrow, and why a message is in a result or is not.

Used by `skyray`, the Python way in; read on in `gateway.runs.reader` and `gateway.runs.showing`, which commands use as
well.
"""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from gateway.runs.reader import RunReader
from gateway.runs.showing import join, known_subscribers

#: What is known of messages beside their ids.
_SAID = {
    "kind": pa.string(),
    "words": pa.list_(pa.string()),
    "text": pa.string(),
    "lon": pa.float64(),
    "lat": pa.float64(),
    "event_time": pa.string(),
    "distance_km": pa.float64(),
}


class Run:
    """A run folder, in any state.

    Parameters
    ----------
    folder : path

    Attributes
    ----------
    folder : Path
    report : dict
        `run.json`: state, settings, counts, digest, figures.

    Raises
    ------
    InputError
        If the folder is no run's.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self._reading = RunReader(Path(folder))
        self.folder = self._reading.folder
        self.report: dict[str, Any] = self._reading.facts

    @property
    def state(self) -> str:
        """`running`, `finished`, `interrupted` or `failed`, when it was opened."""
        return self._reading.state

    def updates(self, *subscription_ids: str, with_messages: bool = False) -> pa.Table:
        """What subscriptions were told, in the order of the files; all of them if none is named.

        Parameters
        ----------
        *subscription_ids : str
        with_messages : bool
            With `kind`, `words` found, `text`, `lon`, `lat`, `event_time` and `distance_km` (null for a region).

        Returns
        -------
        pyarrow.Table
            `as_of`, `subscription_id`, `message_id`, `seq`, `change`, `score`; `to_pandas()` makes a data frame.

        Raises
        ------
        ConfigError
            With messages, for a subscription that the run does not have.
        """
        table = self._reading.updates(subscription_ids or None)
        return self._said(table) if with_messages else table

    def results(self, *subscription_ids: str) -> pa.Table:
        """What subscriptions hold, best first; all of them if none is named.

        Returns
        -------
        pyarrow.Table
            `subscription_id`, `rank` (null while the run goes on, and for matches), `message_id`, `seq`, `score`,
            `text_score`, and of the message `kind`, `words` found, `text`, `lon`, `lat`, `event_time`, `distance_km`.

        Raises
        ------
        ConfigError
            For a subscription that the run does not have.
        """
        ids = subscription_ids or None
        known_subscribers(self._reading, subscription_ids)
        return self._said(self._reading.results(ids))

    def explain(self, subscription_id: str, message_id: str) -> dict[str, Any]:
        """Why a message is in a subscription's result, or is not: see `gateway.runs.explaining.explain`."""
        from gateway.runs.explaining import explain

        return explain(self.folder, subscription_id, message_id)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.state})"

    def _said(self, table: pa.Table) -> pa.Table:
        known = known_subscribers(self._reading, sorted(set(table["subscription_id"].to_pylist())))
        rows = join(self._reading, table.to_pylist(), known)
        for name, column_type in _SAID.items():
            table = table.append_column(name, pa.array([row.get(name) for row in rows], column_type))
        return table
