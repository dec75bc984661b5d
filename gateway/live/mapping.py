"""Renames the columns of input lines to those of a message: `tweet` to `text`, `created_at` to `time`.

The user may name columns (`--text-column` and so on). `ColumnMapping` finds the others by their names in the line, as
`skyray etl` finds them in a file (`spark_etl.finding`).
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from gateway.live.admission import RefusedLine
from matching.attributes import NO_ATTRIBUTES, AttributeSchema
from matching.errors import ConfigError, InputError
from matching.fields import OBJECT_ROLES, event_time_us, text_at, text_columns, value_at
from matching.validate import MESSAGE_ROLES, bare, decode_object
from spark_etl.finding import ByShape, FirstColumns, Seen, columns_of_line, columns_of_row, may_be
from spark_etl.options import ROLES


class RenamedLine(NamedTuple):
    """A line as a row with the column names of a message.

    data : bytes    the line, from where its row begins
    row : dict or str    the row, or the reason code why it is none
    came : dict          the row as it came; {} if there is none, or it is a change of subscriptions
    taken : collection   names of its columns that are those of a message
    """

    data: bytes
    row: dict[str, Any] | str
    came: Mapping[str, Any] = {}
    taken: Collection[str] = ()


class ColumnMapping:
    """Gives rows the column names of a message.

    Parameters
    ----------
    named : mapping of str to str, optional
        Role (of `ROLES`) -> input column, or path into objects such as `geo.coordinates.0`; "" if the input has no such
        column; of the text perhaps several (`matching.fields.text_columns`). The mapping finds the columns of
        the other roles line by line.
    attributes : AttributeSchema
        A rewritten line has the values of these attributes, too; more may be declared later.

    Attributes
    ----------
    named : dict

    Raises
    ------
    ConfigError
        If a key of `named` is not in `ROLES`.

    Notes
    -----
    2 us for a line that has only the usual names, 10 to 30 for others; more where a line has many columns.
    """

    def __init__(self, named: Mapping[str, str] | None = None, attributes: AttributeSchema = NO_ATTRIBUTES):
        self.declare(attributes)
        self.named = dict(named or {})
        if unknown := sorted(self.named.keys() - set(ROLES)):
            raise ConfigError(f"no such column of a message: {unknown[0]}; name those of {', '.join(ROLES)}")
        self._sought = [role for role in ROLES if role not in self.named]
        self._found = ByShape(self._find)

    def declare(self, attributes: AttributeSchema) -> None:
        """Have these attributes in the lines from now on."""
        self._paths = [one.path for one in attributes.attributes]

    def rename(self, data: bytes) -> RenamedLine | RefusedLine:
        """Decode a line, and give its row the column names of a message; a refusal if a column is ambiguous or missing.

        Admission refuses bytes that are no JSON object. Never raises.
        """
        data = bare(data)
        row = decode_object(data)
        if isinstance(row, str) or "subscribe" in row or "unsubscribe" in row:
            return RenamedLine(data, row)
        if not self.named and row.keys() <= _ROLES and _is_read(row.get("time")):
            return RenamedLine(data, row, row, _ROLES)
        found = self._found.of(columns_of_row(row))
        if isinstance(found, RefusedLine):
            return found
        columns = {role: role for role in MESSAGE_ROLES} | self.named | found
        taken = {*columns.values(), *text_columns(columns["text"], row)}
        values = {role: value_at(row, name) if name else None for role, name in columns.items()}
        values["text"] = text_at(row, columns["text"]) if columns["text"] else None
        if not _is_read(values["time"]):
            if "time" in found and columns["time"] != "time":
                values["time"] = None  # the column was a guess, and is no time
        elif all(name == role for role, name in columns.items()):
            return RenamedLine(data, row, row, taken)
        values |= {path: value_at(row, path) for path in (*self._paths, *OBJECT_ROLES, "lang")}
        return RenamedLine(data, {role: value for role, value in values.items() if value is not None}, row, taken)

    def columns_of_names(self, names: Collection[str]) -> dict[str, str] | RefusedLine:
        """Role -> column of a row that has values of these names and nothing within objects; "" for none."""
        found = self._found.of(FirstColumns(None, dict.fromkeys(sorted(names), Seen(1, None)), [], 1))
        return found if isinstance(found, RefusedLine) else self.named | found

    def is_lone(self, role: str, names: Collection[str]) -> bool:
        """Whether no other column would be taken for a role if its own had no value."""
        return role in self.named or sum(may_be(name, role) for name in names) == 1

    def column_of(self, data: bytes, role: str) -> str:
        """The input column of a role in a line that was renamed; the role itself where there is none."""
        row = decode_object(data)
        found = RefusedLine("", "") if isinstance(row, str) else self._found.of(columns_of_row(row))
        if isinstance(found, RefusedLine) or not isinstance(row, dict) or (not self.named and role in row):
            return role
        name = (self.named | found).get(role) or role
        if role == "text":  # of several the first that is no text, as `text_of_columns` says
            own = text_columns(name, row)
            name = next((one for one in own if not isinstance(value_at(row, one), str | None)), name)
        return name

    def _find(self, there: FirstColumns) -> dict[str, str] | RefusedLine:
        """Role -> input column, for the roles that the user has not named."""
        try:
            return columns_of_line(there, self._sought, "this line")
        except InputError as error:
            return RefusedLine(error.reason_code, str(error))


_ROLES = frozenset(MESSAGE_ROLES)


def _is_read(time: Any) -> bool:
    """Whether admission reads this value as a time."""
    try:
        event_time_us(time)
    except ValueError:
        return False
    return True
