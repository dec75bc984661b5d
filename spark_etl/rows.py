"""One row of the input, from its values to a checked message and its terms.

Needs no Spark.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from matching.attributes import attribute_value
from matching.fields import coordinate
from matching.text import term_form, terms_of
from matching.validate import DELETE, ParsedMessage, RawMessage, message_row, with_attributes
from spark_etl.ingest import InputRow
from spark_etl.options import EtlOptions
from spark_etl.times import time_reader

#: Most characters of a rejected row that are written.
MAX_ORIGINAL_CHARACTERS = 1_000


class CleanRow(NamedTuple):
    """A checked message, its terms in order of appearance, whether its time could not be read, and its attributes'
    values."""

    message: ParsedMessage
    terms: list[str]
    bad_time: bool
    attributes: tuple[float | int | str | None, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How often each term occurs, in order of first appearance. O(terms)."""
        return dict(Counter(self.terms))


class RowCleaner:
    """Checks rows and counts the terms of their texts, by the options of the ETL; one cleaner for many rows.

    Raises
    ------
    ConfigError
        For an option that cannot be used.
    """

    def __init__(self, options: EtlOptions):
        self._space = options.space()
        self._form = term_form(options.stem_language, options.fold_accents)
        self._read_time = time_reader(options.time_format)
        self._require_time = options.require_time
        self._schema = options.attributes()
        self._bad_time = False

    def clean(self, values: RawMessage | str, attributes: Sequence[Any] = ()) -> CleanRow | str:
        """A row as a message, or the reason code of its rejection; a reason code as `values` is returned. Never raises.

        Attributes count for the content by which duplicates are found. A time that cannot be read becomes None; where
        times are required, the row is rejected. Takes about 20 us.
        """
        if isinstance(values, str):
            return values
        self._bad_time = False
        message = message_row(values, self._space, self._time)
        if isinstance(message, str):
            return message
        if self._require_time and message.event_time_us is None:
            return "bad_time" if self._bad_time else "missing_time"
        terms = [] if message.op == DELETE else terms_of(message.text, self._form)
        if not len(self._schema):
            return CleanRow(message, terms, self._bad_time)
        try:
            checked = tuple(
                attribute_value(one.type, value) for one, value in zip(self._schema.attributes, attributes, strict=True)
            )
        except ValueError:
            return "bad_attribute"
        return CleanRow(with_attributes(message, checked), terms, self._bad_time, checked)

    def _time(self, value: Any) -> int | None:
        try:
            return self._read_time(value)
        except ValueError:
            self._bad_time = True
            return None


def column_at_fault(row: InputRow, reason: str, options: EtlOptions) -> str | None:
    """The column whose value is the cause of `bad_time`, `wrong_type` or `bad_attribute`; None for other reasons.

    Parameters
    ----------
    row : InputRow
    reason : str
        Reason code of `RowCleaner.clean`.
    options : EtlOptions
    """
    if reason == "bad_attribute":
        for one, value in zip(options.attributes().attributes, row.attributes, strict=True):
            try:
                attribute_value(one.type, value)
            except ValueError:
                return one.path
    values, columns = row.values, options.columns()
    if reason == "bad_time":
        return columns["time"]
    if reason != "wrong_type" or isinstance(values, str):
        return None
    if values.text is not None and not isinstance(values.text, str):
        return columns["text"]
    sides = ("west", "south", "east", "north", "lon", "lat")
    return next((columns[side] for side in sides if coordinate(getattr(values, side), 180.0) == reason), None)


def readable(original: bytes | str) -> str:
    """Text of a row, cut to `MAX_ORIGINAL_CHARACTERS`; invalid UTF-8 becomes escapes."""
    if isinstance(original, bytes):
        original = original[: 4 * MAX_ORIGINAL_CHARACTERS].decode("utf-8", "backslashreplace")
    original = original[:MAX_ORIGINAL_CHARACTERS]
    return original.encode("utf-8", "backslashreplace").decode()
