"""One row of the input, from its values to a checked message and its terms.

Needs no Spark.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from matching.attributes import AttributeValue, Misfit, read_values
from matching.expiry import expiry_us
from matching.faults import message_fault
from matching.fields import Fault
from matching.languages import MARK, message_pieces
from matching.pieces import JOINED
from matching.text import in_case_of, named_by, term_form, words_of
from matching.validate import DELETE, ParsedMessage, RawMessage, message_row, with_attributes
from spark_etl.ingest import InputRow
from spark_etl.options import EtlOptions
from spark_etl.times import time_reader

#: Most characters of a rejected row that are written.
MAX_ORIGINAL_CHARACTERS = 1_000
#: Characters of a row that is at fault as a whole that stand for its value.
_QUOTED = 40


class CleanRow(NamedTuple):
    """A checked message, its terms in order of appearance, with `JOINED` between pieces of a word, whether its time
    could not be read, and the terms of the words that its hashtags name.

    Those for matching alone, of a message of another language, have a mark (`matching.languages.Piece`).
    """

    message: ParsedMessage
    terms: list[str]
    bad_time: bool
    named: Sequence[str] = ()

    @property
    def attributes(self) -> tuple[AttributeValue, ...]:
        """The values of the attributes in the order of the schema."""
        return self.message.attributes

    @property
    def misfits(self) -> tuple[Misfit, ...]:
        """Values that do not fit their attributes, which are missing then."""
        return self.message.misfits

    @property
    def counts(self) -> dict[str, int]:
        """How often each term occurs, 0 if for matching alone. O(terms)."""
        found = dict(Counter(filter(None, self.terms)))
        if self.message.lang:
            for name in [name for name in found if name[0] == MARK]:
                del found[name]
                if name != MARK + JOINED:
                    found.setdefault(name[1:], 0)
        for term in self.named:
            found.setdefault(term, 0)
        return found


class RowCleaner:
    """Checks rows and counts the terms of their texts, by the options of the ETL; one cleaner for many rows.

    Raises
    ------
    ConfigError
        For an option that cannot be used.
    """

    def __init__(self, options: EtlOptions):
        self._space = options.space()
        self._language, self._folded = options.stem_language, options.fold_accents
        self._form = term_form(options.stem_language, options.fold_accents)
        self._read_time = time_reader(options.time_format)
        self._require_time = options.require_time
        self._schema = options.attributes()
        self._strict = options.strict_attributes
        self._objects = options.objects
        self._bad_time = False

    def clean(self, values: RawMessage | str, attributes: Sequence[Any] = ()) -> CleanRow | str:
        """A row as a message, or the reason code of its rejection; a reason code as `values` is returned. Never raises.

        Attributes count for the content by which duplicates are found. A value that does not fit its attribute is
        missing, or the row is rejected, by option. A time that cannot be read becomes None; where times are required,
        the row is rejected. Takes about 20 us.
        """
        if isinstance(values, str):
            return values
        self._bad_time = False
        deletes = is_deletion(values)
        if (self._objects or deletes) and values.lon in (None, "") and values.west in (None, ""):
            # a deletion without a place, which may name its object by id
            op = DELETE if deletes else values.op
            values = values._replace(op=op, object_id=values.id if values.object_id in (None, "") else values.object_id)
        elif self._objects and deletes:
            values = values._replace(op=DELETE)
        message = message_row(values, self._space, self._time, self._language)
        if isinstance(message, str):
            return message
        if self._require_time and message.event_time_us is None:
            return "bad_time" if self._bad_time else "missing_time"
        if self._objects:
            expires = expiry_us(values.ttl_s, values.expires_at, message.event_time_us, self._read_time)
            if isinstance(expires, str):
                return expires
            message = message._replace(expires_us=expires)
        terms, named = list[str](), list[str]()
        if message.op == DELETE:
            pass
        elif message.lang:
            terms = [piece.name for piece in message_pieces(message.text, message.lang, self._language, self._folded)]
        else:
            terms = list(chain.from_iterable(words_of(in_case_of(message.text, self._language), self._form)))
            named = [piece for term in terms for piece in named_by(term, self._form) if piece]
        if not len(self._schema):
            return CleanRow(message, terms, self._bad_time, named)
        read = read_values(self._schema, attributes)
        if self._strict and read.misfits:
            return "bad_attribute"
        return CleanRow(with_attributes(message, read), terms, self._bad_time, named)

    def _time(self, value: Any) -> int | None:
        try:
            return self._read_time(value)
        except ValueError:
            self._bad_time = True
            return None


def is_deletion(values: RawMessage) -> bool:
    """Whether `deleted` says that the message ends its object: true, or in a file without types the word."""
    return values.deleted is True or (isinstance(values.deleted, str) and values.deleted.strip().lower() == "true")


def fault_of(row: InputRow, reason: str, options: EtlOptions) -> Fault:
    """The column whose value is the cause of a rejection; no column, and how the row begins, if it is the whole row.

    Parameters
    ----------
    row : InputRow
    reason : str
        Reason code of `RowCleaner.clean`, or `duplicate_id`.
    options : EtlOptions
    """
    values, columns = row.values, options.columns()
    fault = None
    if reason == "bad_attribute":
        fault = next((one.fault for one in read_values(options.attributes(), row.attributes).misfits), None)
    elif reason == "duplicate_id" and not isinstance(values, str):
        fault = Fault(columns["id"], values.id)
    elif not isinstance(values, str):
        found = message_fault(reason, values._asdict(), options.space())
        fault = None if found is None or found.column is None else found._replace(column=columns[found.column])
    return fault or Fault(None, readable(row.original)[:_QUOTED])


def readable(original: bytes | str) -> str:
    """Text of a row, cut to `MAX_ORIGINAL_CHARACTERS`; invalid UTF-8 becomes escapes."""
    if isinstance(original, bytes):
        original = original[: 4 * MAX_ORIGINAL_CHARACTERS].decode("utf-8", "backslashreplace")
    original = original[:MAX_ORIGINAL_CHARACTERS]
    return original.encode("utf-8", "backslashreplace").decode()
