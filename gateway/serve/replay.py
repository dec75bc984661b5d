"""A run as of any of its messages: its updates, subscriptions, results and reasons, for `skyray show --page`.

Updates are read once, at the start, into the order and with the ids that a live server gives them
(`gateway.serve.update_log`); everything else is read from the folder by `gateway.runs`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bolts.sinks import UPDATE_SCHEMA
from gateway.runs.explaining import explain_in, last_boundary, number_as_of, scores_in
from gateway.runs.oracle_replay import boundary_ends
from gateway.runs.reader import RunReader, Subscriber, active_at
from gateway.runs.run_versions import RunVersions
from gateway.serve.asking import LAST_MATCHES
from gateway.serve.operation_routes import stream_facts
from gateway.serve.released import UpdateRows, in_order
from gateway.serve.standing import StoredResult
from gateway.serve.update_parts import END, Position, columns_of
from matching.errors import InputError
from matching.kinds import KINDS

_COLUMNS = [name for name in UPDATE_SCHEMA.names if name != "message_id"]


class Wanted(NamedTuple):
    """Which updates are read.

    after : Position                 those behind it; with the index `END`: those as of later messages
    through : int                    those as of messages up to this seq
    subscriptions, kinds : collection of str or None    of these only
    """

    after: Position
    through: int
    subscriptions: Collection[str] | None = None
    kinds: Collection[str] | None = None


class Replay:
    """A run folder; for one thread at a time.

    Attributes
    ----------
    run : RunReader
    last : int
        Seq of the last message; of a run that has not ended, of the last boundary whose updates are there.

    Raises
    ------
    InputError
        If the folder is no run's, damaged, or has no updates yet.
    """

    def __init__(self, folder: Path):
        self.run = RunReader(folder)
        self.last = last_boundary(self.run)
        self._ends = boundary_ends(self.run, self.run.message_count())
        pieces = [piece.select(_COLUMNS) for piece in self.run.pieces()]
        table = pa.concat_tables([UPDATE_SCHEMA.empty_table().select(_COLUMNS), *pieces])
        self._updates = in_order([columns_of(table, self._ends)])
        self._boundary, self._place, self._as_of = self._updates.boundary, self._updates.place, self._updates.as_of
        changes = self.run.changes
        self._names, self._at = changes.names.strings(), changes.table.at
        self._versions = RunVersions(self.run) if self.run.objects else None
        self._kind_of = {name: KINDS[kind].name for name, kind in zip(self._names, changes.table.kind, strict=True)}

    def facts(self) -> dict[str, Any]:
        """What the stream is, and how far it goes."""
        run = self.run
        return {
            **stream_facts(run.vocabulary, run.space, run.kinds),
            "window": run.report["window"],
            "next_seq": self.last + 1,
            "complete_through": self.last,
            "run": {
                "folder": run.folder.resolve().name,
                "state": run.state,
                "last": self.last,
                "boundaries": int(np.searchsorted(self._ends, self.last, "right")),
                "updates": len(self._as_of),
            },
        }

    def figures(self) -> dict[str, Any]:
        """Counts, as of `GET /health` of a live server."""
        counts = {"messages": self.last + 1, "next_seq": self.last + 1, "complete_through": self.last}
        nothing = dict.fromkeys(("refused", "duplicates", "clients", "waiting"), 0)
        return {**counts, "subscriptions": len(self._active(self.last)), **nothing}

    def boundary_before(self, seq: int) -> int:
        """The last boundary up to a seq; -1 before the first."""
        place = bisect_right(self._ends, seq)
        return int(self._ends[place - 1]) if place else -1

    def updates(self, wanted: Wanted, limit: int, newest: bool) -> tuple[UpdateRows, Position, int]:
        """Some updates in the order of the stream.

        Parameters
        ----------
        limit : int
            Updates at most, and fewer if they have more than `PIECE_BYTES`: the first, or, with `newest`, the last.

        Returns
        -------
        UpdateRows, Position, int
            The position behind them, and up to which message all wanted updates are before it.
        """
        if strange := [name for name in wanted.subscriptions or () if name not in self._kind_of]:
            self.run.known(strange)
        rows = self._rows(wanted)
        rest = rows.size > limit and not newest
        rows = rows[-limit:] if newest else rows[:limit]
        through = wanted.through
        found = UpdateRows(self._updates, rows[::-1] if newest else rows, self.run.texts)
        rest |= len(found) < rows.size and not newest
        found = found.turned() if newest else found
        rows = found.rows
        if rows.size:
            behind = Position(int(self._boundary[rows[-1]]), int(self._place[rows[-1]]))
        else:
            behind = max(wanted.after, Position(self.boundary_before(wanted.through), END))
        if rest:
            place = bisect_left(self._ends, behind.boundary)
            through = int(self._ends[place - 1]) if place else -1
        return found, behind, through

    def subscriptions(
        self,
        as_of: int,
        after: int,
        limit: int,
        kinds: Collection[str] | None,
        prefix: str,
        names: Collection[str] | None = None,
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Columns of the subscriptions that are active as of a message, a page of them, and the cursor of the next."""
        numbers = (number for number in self._active(as_of) if number > after)
        wanted: list[int] = []
        among = None if names is None else set(names)
        for number in numbers:
            name = self._names[number]
            if among is not None and name not in among:
                continue
            if name.startswith(prefix) and (not kinds or self._kind_of[name] in kinds):
                wanted.append(number)
                if len(wanted) > limit:
                    break
        page = wanted[:limit]
        columns = self._columns(page)
        found = [columns[self._names[number]] for number in page if self._names[number] in columns]
        return found, page[-1] if len(wanted) > limit else None

    def subscription(self, subscription_id: str, as_of: int) -> dict[str, Any]:
        """Columns of a subscription; of several of an id those of the one that is active as of a message.

        Raises ConfigError for one that the run does not have.
        """
        self.run.known([subscription_id])
        return self._columns([number_as_of(self.run, subscription_id, as_of)])[subscription_id]

    def results(self, subscription_id: str, as_of: int) -> dict[str, Any]:
        """The result of a subscription as of a message, as `GET /v1/subscriptions/ID/results` has it."""
        owner = self._owner(subscription_id, as_of)
        rows = self._updates.facts(self._rows(Wanted(Position(-1, 0), as_of, [subscription_id])))
        kind = KINDS.named(owner.kind)
        standing, versions = StoredResult(), self._versions
        for row in reversed(rows):
            standing.take(row, None if versions is None else versions.names[row["seq"]])
        if versions is not None:
            boundary = self.boundary_before(as_of) if kind.standing else as_of
            number = number_as_of(self.run, subscription_id, as_of)
            standing.bring_up(versions.at(boundary, standing.inside), lambda seqs: scores_in(self.run, number, seqs))
        matches = ((None, row) for row in reversed(rows) if row["change"] == "match" and row["as_of"] >= owner.at)
        ranked = [*standing.ranked(kind), *islice(matches, LAST_MATCHES)]
        shown = ("seq", "score", "text", "lon", "lat", "words", "distance_km")
        texts = self.run.texts([row["seq"] for _, row in ranked])
        joined = self.run.join([{**row, "as_of": as_of} for _, row in ranked], {subscription_id: [owner]})
        results = [
            {"rank": rank, "message_id": texts[row["seq"]].message_id}
            | {name: row.get(name) for name in shown}
            | ({} if versions is None else {"object_id": versions.names[row["seq"]]})
            for (rank, _), row in zip(ranked, joined, strict=True)
        ]
        return {"subscription_id": subscription_id, "kind": owner.kind, "as_of": as_of, "results": results}

    def explain(self, subscription_id: str, message: str, as_of: int) -> dict[str, Any]:
        """Why a message is in a result as of another, or is not, as `GET /v1/explain` has it.

        A kind whose result changes at boundaries is judged as of the last one. Raises as
        `gateway.runs.explaining.explain`.
        """
        owner = self._owner(subscription_id, as_of)
        last_seq = self.boundary_before(as_of) if KINDS.named(owner.kind).standing else as_of
        if last_seq < 0:
            raise InputError(
                "no_boundary", f"no boundary is complete as of message {as_of:,}: the first is {self._ends[0]:,}"
            )
        found = explain_in(self.run, subscription_id, message, last_seq)
        rows = self._rows(Wanted(Position(-1, 0), as_of, [subscription_id]))
        rows = rows[self._updates.seq[rows] == found["message"]["seq"]]
        updates = self._updates.facts(rows)
        places = zip(self._boundary[rows].tolist(), self._place[rows].tolist(), updates, strict=True)
        shown = ("change", "as_of", "score")
        return found | {
            "updates": [{"id": Position(*place).text, **{name: row[name] for name in shown}} for *place, row in places]
        }

    def messages(self, after: int, through: int, limit: int) -> list[dict[str, Any]]:
        """The last messages between two seqs, oldest first, at most `limit`; deletions and clock marks have no text.

        Of objects those that live as of the later one, with `object_id`, and the deletions with `deleted`.
        """
        rows = self.run.messages(range(max(after + 1, through + 1 - limit), through + 1))
        return [
            {"seq": seq, "message_id": row.message_id, "text": row.text, "lon": row.lon, "lat": row.lat}
            | {"time": None if row.event_time is None else row.event_time.isoformat()}
            | ({} if self._versions is None else self._versions.shown(seq))
            for seq, row in sorted(rows.items())
            if (row.text if self._versions is None else self._versions.is_last(seq, through))
        ]

    def _rows(self, wanted: Wanted) -> np.ndarray:
        """Row numbers of updates."""
        after = wanted.after
        if after.index == END:
            inside = (self._as_of > after.boundary) & (self._as_of <= wanted.through)
        else:
            behind = (self._boundary == after.boundary) & (self._place > after.index)
            inside = (behind | (self._boundary > after.boundary)) & (self._as_of <= wanted.through)
        names = wanted.subscriptions
        if wanted.kinds is not None:
            of_kinds = (name for name, kind in self._kind_of.items() if kind in wanted.kinds)
            names = [name for name in of_kinds if names is None or name in names]
        rows = np.flatnonzero(inside)
        if names is None:
            return rows
        return np.intersect1d(rows, self._updates.rows_of(self._updates.among(names)), assume_unique=True)

    def _active(self, as_of: int) -> list[int]:
        """Numbers of the subscriptions that are active as of a message."""
        return np.flatnonzero((self._at <= as_of) & (self.run.changes.end > as_of)).tolist()

    def _owner(self, subscription_id: str, as_of: int) -> Subscriber:
        return active_at(self.run.known([subscription_id])[subscription_id], as_of)

    def _columns(self, numbers: Iterable[int]) -> dict[str, dict[str, Any]]:
        """Columns of subscriptions by id. O(rows of the files)."""
        at = {self._names[number]: int(self._at[number]) for number in numbers}
        found: dict[str, dict[str, Any]] = {}
        for row in self.run.subscription_rows() if at else ():
            name = str(row.get("subscription_id"))
            if name in at and (int(row.get("at") or 0) == at[name] or name not in found):
                found[name] = {column: value for column, value in row.items() if value is not None}
        return found
