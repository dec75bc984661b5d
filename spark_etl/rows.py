"""One row of the input, from its values to a checked message and its terms: the same for every way messages come in.

Needs no Spark, so that whoever takes messages as they come cleans them as the ETL does. Used by `spark_etl.clean` and
`spark_etl.trial`; the checks themselves are those of `matching.validate`.
"""

from typing import NamedTuple

from matching.text import count_terms, term_form
from matching.validate import DELETE, ParsedMessage, RawMessage, message_row
from spark_etl.options import EtlOptions
from spark_etl.times import moment_of, time_reader

#: Rejected rows are written down up to this many characters.
MAX_ORIGINAL_CHARACTERS = 1_000


class CleanRow(NamedTuple):
    """A checked message, how often it has each term, and whether it had a time that could not be read."""

    message: ParsedMessage
    counts: dict[str, int]
    bad_time: bool


class RowCleaner:
    """Checks and cuts rows by the options of the ETL; made once for many rows.

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

    def clean(self, values: RawMessage | str) -> CleanRow | str:
        """A row as a message, or the reason code why it is none (`values` may be one already). Never raises.

        A time that cannot be read counts as none, unless one is required. About 20 us.
        """
        if isinstance(values, str):
            return values
        time_us, bad_time = None, False
        try:
            time_us = self._read_time(values.time)
        except (ValueError, ArithmeticError):
            bad_time = True
        message = message_row(values._replace(time=None if time_us is None else moment_of(time_us)), self._space)
        if isinstance(message, str):
            return message
        if self._require_time and time_us is None:
            return "bad_time" if bad_time else "missing_time"
        return CleanRow(message, {} if message.op == DELETE else count_terms(message.text, self._form), bad_time)


def readable(original: bytes | str) -> str:
    """How a row looked, cut to a length for people; bytes that are no UTF-8 become escapes."""
    if isinstance(original, bytes):
        original = original[: 4 * MAX_ORIGINAL_CHARACTERS].decode("utf-8", "backslashreplace")
    original = original[:MAX_ORIGINAL_CHARACTERS]
    return original.encode("utf-8", "backslashreplace").decode()
