"""Rows of Arrow tables as Python's own values. Imports no Arrow: a table and its values say what they are.

Arrow has more than Python's types hold: dates beyond the year 9999, zones that this machine does not know. Such a value
becomes text, which nothing reads as a time; its row stays.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
_BAD_TEXT = object()


def rows_of_table(batch: Any) -> Iterator[dict[str, Any] | str]:
    """The rows of a table by column name; the reason code `bad_utf8` for a row with text that is not UTF-8.

    Notes
    -----
    Never raises. O(values).
    """
    names = batch.schema.names
    columns = [_values(column) for column in batch.columns]
    rows = zip(*columns, strict=True) if columns else [()] * batch.num_rows
    for row in rows:
        yield "bad_utf8" if _BAD_TEXT in row else dict(zip(names, row, strict=True))


def _values(column: Any) -> Sequence[Any]:
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):
        return [_value_or_mark(scalar) for scalar in column]


def _value_or_mark(scalar: Any) -> Any:
    try:
        return _value(scalar)
    except UnicodeDecodeError:
        return _BAD_TEXT


def _value(scalar: Any) -> Any:
    """An Arrow scalar; a moment in UTC if its zone is not known here, a value beyond Python's range as text.

    Raises UnicodeDecodeError for text that is not UTF-8.
    """
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError):
        pass
    if isinstance(scalar, Sequence):  # a list or a map
        return [_value(one) for one in scalar.values]  # type: ignore[attr-defined]
    if isinstance(scalar, Mapping):  # a struct, two fields of which may have one name
        return {field.name: _value(scalar[number]) for number, field in enumerate(scalar.type)}  # type: ignore[attr-defined]
    if hasattr(scalar.type, "value_type"):  # of a dictionary
        return _value(scalar.value)
    if hasattr(scalar.type, "tz"):
        number, unit = scalar.value, scalar.type.unit
        with suppress(OverflowError):
            return _EPOCH + timedelta(microseconds=number // 1000 if unit == "ns" else number * _US[unit])
    return f"{scalar.value} ({scalar.type})"
