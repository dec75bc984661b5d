"""Lines whose columns have other names than those of a message: `tweet`, `geo.coordinates.0`, `created_at`.

Columns may be named; the others are found by their names in the line, as `skyray etl` finds them in a file
(`spark_etl.finding`). The line is rewritten with the names of a message, so that the log has only these. Used by
`gateway.live.pipe`; read on in `gateway.live.admission`, which checks the line.
"""

import json
from collections.abc import Mapping
from typing import Any

from gateway.live.admission import Refused
from matching.attributes import NO_ATTRIBUTES, AttributeSchema
from matching.errors import ConfigError, InputError
from matching.fields import event_time_us, value_at
from matching.validate import MESSAGE_ROLES, decode_object
from spark_etl.finding import Columns, columns_of_roles, columns_of_row
from spark_etl.times import moment_of, time_reader

#: Roles whose columns may be named, or are found.
ROLES = ("text", "lat", "lon", "time", "id")
#: Shapes of lines that are remembered, and columns of each, at most.
_SHAPES, _COLUMNS = 1_000, 200


class ColumnMapping:
    """Gives a message's columns their usual names.

    Parameters
    ----------
    named : mapping of str to str, optional
        Role (of `ROLES`) -> column, or path into objects; "" for none. Those left out are found line by line.
    attributes : AttributeSchema
        Lines keep the values of these.

    Attributes
    ----------
    named : dict

    Raises
    ------
    ConfigError
        If a role is no role, or the text is to have no column.

    Notes
    -----
    2 us for a line that has only the usual names, 10 to 30 for others; more where a line has many columns.
    """

    def __init__(self, named: Mapping[str, str] | None = None, attributes: AttributeSchema = NO_ATTRIBUTES):
        self._paths = [one.path for one in attributes.attributes]
        self.named = dict(named or {})
        if unknown := sorted(self.named.keys() - set(ROLES)):
            raise ConfigError(f"no such column of a message: {unknown[0]}; name those of {', '.join(ROLES)}")
        if self.named.get("text") == "":
            raise ConfigError("text column: must have a name")
        self._sought = [role for role in ROLES if role not in self.named]
        self._read_time = time_reader()
        self._known: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[str, str] | Refused] = {}

    def rename(self, data: bytes) -> bytes | Refused:
        """A line with the names of a message, or a refusal if a column is ambiguous or missing.

        Changes of subscriptions, and lines that have these names, are returned unchanged. Never raises.
        """
        row = decode_object(data)
        if isinstance(row, str) or "subscribe" in row or "unsubscribe" in row:
            return data
        if not self.named and row.keys() <= _ROLES and _is_read(row.get("time")):
            return data
        found = self._columns(columns_of_row(row))
        if isinstance(found, Refused):
            return found
        columns = {role: role for role in MESSAGE_ROLES} | self.named | found
        values = {role: value_at(row, name) if name else None for role, name in columns.items()}
        if not _is_read(values["time"]):
            values["time"] = self._time(values["time"], "time" in found and columns["time"] != "time")
        elif all(name == role for role, name in columns.items()):
            return data
        values |= {path: value_at(row, path) for path in self._paths}
        return json.dumps({role: value for role, value in values.items() if value is not None}).encode()

    def _columns(self, there: Columns) -> dict[str, str] | Refused:
        """Role -> column, of the roles without a named column."""
        shape = (tuple(there.seen), tuple(there.points))
        found = self._known.get(shape)
        if found is None:
            found = self._find(there)
            if len(self._known) >= _SHAPES:
                self._known.clear()
            if len(there.seen) <= _COLUMNS:
                self._known[shape] = found
        return found

    def _find(self, there: Columns) -> dict[str, str] | Refused:
        try:
            found = columns_of_roles(there, [role for role in self._sought if role in _NEEDED], "this line")
        except InputError as error:
            return Refused(error.reason_code, str(error))
        for role in self._sought:
            if role not in _NEEDED:
                try:
                    found |= columns_of_roles(there, [role], "this line")
                except InputError:
                    found[role] = ""  # optional: do not lose the line for it
        return found

    def _time(self, value: Any, guessed: bool) -> Any:
        """A time in ISO 8601; None if it is unreadable and its column was guessed."""
        try:
            time_us = self._read_time(value)
        except (ValueError, ArithmeticError):
            return None if guessed else value
        return None if time_us is None else moment_of(time_us).isoformat()


_ROLES = frozenset(MESSAGE_ROLES)
_NEEDED = ("text", "lat", "lon")


def _is_read(time: Any) -> bool:
    """Whether admission can read this time unchanged."""
    try:
        event_time_us(time)
    except (ValueError, ArithmeticError):
        return False
    return True
