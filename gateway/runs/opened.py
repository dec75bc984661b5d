"""A run for the Python API: report, updates and results as Arrow, and explanations.

Used by `skyray`; read on in `gateway.runs.reader` and `gateway.runs.showing`, which commands use as well.
"""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from gateway.runs.reader import RunReader
from gateway.runs.showing import join, known_subscribers

#: Columns joined to updates and results.
_MESSAGE_COLUMNS = {
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
        self._reader = RunReader(Path(folder))
        self.folder = self._reader.folder
        self.report: dict[str, Any] = self._reader.facts

    @property
    def state(self) -> str:
        """`running`, `finished`, `interrupted` or `failed`, when it was opened."""
        return self._reader.state

    def updates(self, *subscription_ids: str, with_messages: bool = False) -> pa.Table:
        """Updates of these subscriptions, or of all, in the order of the files.

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
        table = self._reader.updates(subscription_ids or None)
        return self._with_messages(table) if with_messages else table

    def results(self, *subscription_ids: str) -> pa.Table:
        """Results of these subscriptions, or of all, best first.

        Returns
        -------
        pyarrow.Table
            `subscription_id`, `rank` (null while the run is running, and for matches), `message_id`, `seq`, `score`,
            `text_score`, and of the message `kind`, `words` found, `text`, `lon`, `lat`, `event_time`, `distance_km`.

        Raises
        ------
        ConfigError
            For a subscription that the run does not have.
        """
        ids = subscription_ids or None
        known_subscribers(self._reader, subscription_ids)
        return self._with_messages(self._reader.results(ids))

    def explain(self, subscription_id: str, message_id: str) -> dict[str, Any]:
        """Why a message is in a subscription's result, or is not: see `gateway.runs.explaining.explain`."""
        from gateway.runs.explaining import explain

        return explain(self.folder, subscription_id, message_id)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.state})"

    def _with_messages(self, table: pa.Table) -> pa.Table:
        known = known_subscribers(self._reader, sorted(set(table["subscription_id"].to_pylist())))
        rows = join(self._reader, table.to_pylist(), known)
        for name, column_type in _MESSAGE_COLUMNS.items():
            table = table.append_column(name, pa.array([row.get(name) for row in rows], column_type))
        return table
