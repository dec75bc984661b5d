"""Checks messages and changes of subscriptions of a live stream, in the order in which they arrive.

Rows get the same checks as in the ETL and a run (`matching.validate`); the active subscriptions are tracked here. Used
by `gateway.engine`, which matches accepted rows in the caller's process, and by `gateway.live.pipe`, which logs
them for a topology.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gateway.live.logged_changes import Accepted, Active, ActiveKinds, plain_changes
from gateway.live.new_terms import NewTerms
from gateway.live.recent_fields import RecentFields
from matching.conditions import meant
from matching.errors import ConfigError, InputError
from matching.expiry import expiry_us
from matching.faults import message_fault, subscription_fault
from matching.fields import OBJECT_ROLES, Fault, Refusal, identifier, point_of, shown
from matching.kind_table import Kind, Kinds
from matching.kinds import KINDS
from matching.reasons import explain
from matching.space import Space
from matching.subscription_rows import PlainRows, SubscriptionRows
from matching.subscription_words import refused_when_new
from matching.synonyms import Synonyms
from matching.validate import ParsedMessage, ParsedSubscription, decode_object
from matching.vocabulary import Vocabulary
from matching.window import NO_FLOOR, Window
from spouts.change_block import Changed, checked_changes
from spouts.log import Record
from spouts.parsed import parse_message
from topology.settings import MAX_AHEAD_S


class RefusedLine(NamedTuple):
    """A refused line: reason code, the reason in words, and the column at fault; None if it is the whole line."""

    reason: str
    what: str
    fault: Fault | None = None

    def named(self, line: bytes) -> dict[str, Any]:
        """`column` and `value` of the line, as `Fault.named` has them."""
        return (self.fault or whole_row(line)).named


def whole_row(data: bytes) -> Fault:
    """The fault of a row that is wrong as a whole: no column, and how the row begins."""
    return Fault(None, data[:_QUOTED].decode(errors="replace")[:_QUOTED])


class _RefusedSubscription(InputError):
    """A subscription that fails the checks, with the column at fault."""

    def __init__(self, refusal: Refusal, message: str):
        super().__init__(refusal.reason, message)
        self.fault = refusal.fault


#: Bytes of a row that is at fault as a whole that its refusal has.
_QUOTED = 40
#: Attributes that a refusal names.
_NAMED = 20
#: Fewer subscriptions of a record are checked one by one, without kernels: a new release has to compile these first.
_MANY = 100
#: A row of subscriptions after the checks.
Checked = ParsedSubscription | Refusal
#: An accepted change: a subscription, or the id of one that ends.
Change = ParsedSubscription | str


class Admission:
    """Checks rows and lines.

    Parameters
    ----------
    vocabulary : Vocabulary
        It may admit new terms, and those of subscriptions must fit.
    refuses : callable, optional
        Why no task can take a subscription that is checked, with words to be written after its name; None if one can.
    max_ahead_s : float
        With a time window or fading scores, a message dated more seconds than this after its arrival is set aside: it
        keeps its seq and matches nothing.
    now : callable
        Seconds since 1970, when a message arrives.
    active : Active, optional
        Each accepted change is applied to it.
    strict : bool
        Refuse messages with a value that does not fit its attribute; by default such a value is missing.
    objects : bool
        The stream is one of objects: `"deleted": true` of a message ends its object, and `ttl_s` or `expires_at` of a
        version at a time that its user looks for (`gateway.live.living_versions`).
    synonyms : Synonyms, optional
        For `written_out`.

    Attributes
    ----------
    new_terms : NewTerms
    rows : SubscriptionRows
        What subscriptions are by themselves, whatever was subscribed before.
    recent : RecentFields
        Fields of messages without an attribute; noted by its user.
    next_seq : int
        Seq of the next message, before which a change takes effect; set by its user, if it matters to it.
    rejected : Counter
        Refused messages by reason.
    misfits : Counter
        Values of accepted messages that do not fit their attribute, by column.
    set_aside : Counter
        Accepted messages, where times matter, without one (`no_time`: they reach kinds that need none) or dated too
        far `ahead`.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        space: Space,
        window: Window,
        kinds: Kinds = KINDS,
        refuses: Callable[[ParsedSubscription], Refusal | None] = lambda parsed: None,
        max_ahead_s: float = MAX_AHEAD_S,
        now: Callable[[], float] = time.time,
        active: Active | None = None,
        strict: bool = False,
        objects: bool = False,
        synonyms: Synonyms | None = None,
    ):
        self.objects = objects
        self.vocabulary = vocabulary
        self.new_terms = NewTerms(vocabulary)
        self.recent = RecentFields([*OBJECT_ROLES * objects, *["lang"] * bool(vocabulary.stem_language)])
        self.space = space
        self.window = window
        self.kinds = kinds
        self.rejected: Counter[str] = Counter()
        self.misfits: Counter[str] = Counter()
        self.set_aside: Counter[str] = Counter()
        self.next_seq = 0
        self._refuses = refuses
        self._max_ahead_s = max_ahead_s
        self._now = now
        self._strict = strict
        self._synonyms = synonyms or Synonyms()
        self.active: Active = ActiveKinds() if active is None else active
        self.rows = SubscriptionRows(self.new_terms.words, space, kinds)
        self._fading = 0  # number of active subscriptions whose scores fade
        self._met: set[int] = set()
        self._takes: dict[int, bool] = {}  # by sort: `_takes_plain`
        self._replays = False  # a log is replayed: earlier releases took some lines that are refused now

    def now_us(self) -> int:
        """Microseconds since 1970, now."""
        return round(self._now() * 1e6)

    def parsed(self, row: Any, strict: bool = False) -> ParsedMessage | str:
        """A row as a message of this stream, or the reason code of its refusal (`spouts.parsed.parse_message`)."""
        words = self.vocabulary
        return parse_message(row, self.space, words.attributes, strict, self.objects, words.stem_language)

    def message(self, row: Any) -> ParsedMessage | str:
        """The parsed message, or the reason code of its refusal, which is counted."""
        parsed = self.parsed(row, self._strict)
        if isinstance(parsed, str):
            self.rejected[parsed] += 1
            return parsed
        if self.objects and (row.get("ttl_s") is not None or row.get("expires_at") is not None):
            expires = expiry_us(row.get("ttl_s"), row.get("expires_at"), self.now_us())
            if isinstance(expires, str):
                self.rejected[expires] += 1
                return expires
            parsed = parsed._replace(expires_us=expires)
        for one in parsed.misfits:
            self.misfits[one.fault.column or ""] += 1
        if self._needs_times():
            if parsed.event_time_us is None:
                self.set_aside["no_time"] += 1
            elif parsed.event_time_us > (self._now() + self._max_ahead_s) * 1e6:
                self.set_aside["ahead"] += 1
                parsed = parsed._replace(ahead=True)
        return parsed

    def ahead_of(self, time_us: list[int]) -> list[int]:
        """Which of messages that come now are dated too far ahead; counts them, and those without a time.

        `time_us` has `NO_FLOOR` where a message has no time.
        """
        if not self._needs_times():
            return []
        latest_us = (self._now() + self._max_ahead_s) * 1e6
        ahead = [row for row, time in enumerate(time_us) if time > latest_us]
        for reason, count in (("no_time", time_us.count(NO_FLOOR)), ("ahead", len(ahead))):
            if count:
                self.set_aside[reason] += count
        return ahead

    def written_out(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        """The columns of a subscription that comes with its synonyms written out, as they are logged."""
        return self._synonyms.written_out(columns, self.kinds)

    @property
    def has_synonyms(self) -> bool:
        """Whether `written_out` changes anything."""
        return len(self._synonyms) > 0

    def subscribe(
        self, row: Mapping[str, Any], checked: Checked | None = None, line: bytes = b""
    ) -> ParsedSubscription:
        """Register a subscription, replacing any of the same id.

        Parameters
        ----------
        checked : Checked, optional
            The answer of `rows` for this row; by default the row is checked here.
        line : bytes
            As it is logged.

        Raises
        ------
        InputError
            With the reason code of a run.
        """
        if row.get("at") is not None or row.get("until") is not None:
            raise InputError("bad_span", "at and until are for files: subscribe and unsubscribe when it is time")
        before = self.vocabulary.attributes
        try:
            return self._subscribe(row, checked, line)
        except InputError:
            self.vocabulary.attributes = before  # what it named first is declared only if it is taken
            raise

    def subscribe_new(self, rows: Sequence[Mapping[str, Any]], plain: PlainRows, lines: Sequence[bytes]) -> bool:
        """Register subscriptions whose ids are new; False, and none is registered, if `subscribe` must check each.

        `rows` have their columns, `plain` what their check says; `lines` are as they are logged.
        """
        table, wordless = plain.table, np.diff(plain.word_offsets) == 0
        filtered = np.diff(table.filter_offsets) > 0 if table.filter_offsets.shape[0] else np.zeros(len(rows), np.bool_)
        sorts = 4 * table.kind.astype(np.int64) + 2 * wordless + filtered
        for sort, first in zip(*np.unique(sorts, return_index=True), strict=True):
            if not self._takes_plain(int(sort), int(table.kind[first]), rows[first]):
                return False
        if plain.unknown.any() and not self.new_terms.of_subscription(plain.words):
            return False
        columns = rows, plain.names, plain.table.kind.tolist(), lines, map(tuple, plain.boxes.tolist())
        accepted = [
            Accepted(name, kind, line, box, row.get("owner"), row.get("expires_at"))
            for row, name, kind, line, box in zip(*columns, strict=True)
        ]
        self._put(accepted, [self.next_seq] * len(accepted))
        return True

    def _takes_plain(self, sort: int, kind: int, row: Mapping[str, Any]) -> bool:
        """Whether plain subscriptions like `row` are taken: `refuses` says the same of all of a kind that have words or
        not, and a filter or not."""
        if sort not in self._takes:
            one = self.rows.row(row)
            runs = self.kinds[kind].runs
            self._takes[sort] = runs and not isinstance(one, Refusal) and self._refuses(one) is None
        return self._takes[sort]

    def _subscribe(self, row: Mapping[str, Any], checked: Checked | None, line: bytes) -> ParsedSubscription:
        parsed = self.rows.row(row) if checked is None else checked
        if isinstance(parsed, Refusal) and parsed.reason == "unknown_attribute":
            parsed = self._with_declared(row)
        if isinstance(parsed, ParsedSubscription) and not self._replays:
            parsed = refused_when_new(row, self.vocabulary) or parsed
        if isinstance(parsed, Refusal):
            what = explain(parsed.reason, self.kinds, parsed.detail)
            raise _RefusedSubscription(parsed, f"subscription {shown(row.get('subscription_id'))}: {what}")
        name, kind = parsed.subscription_id, self.kinds[parsed.kind]
        if not kind.runs:
            raise InputError("kind_without_engine", f"subscription {name!r}: no engine matches its kind")
        if (refusal := self._refuses(parsed)) is not None:
            raise InputError(refusal.reason, f"subscription {name!r} {refusal.detail}")
        if not self.new_terms.of_subscription(_new_words(parsed)):
            raise InputError("too_many_terms", f"subscription {name!r}: {explain('too_many_terms', self.kinds)}")
        self._put([_accepted(row, parsed, kind, line)], [self.next_seq])
        return parsed

    def _with_declared(self, row: Mapping[str, Any]) -> Checked:
        """Declare the attributes that conditions name first, if recent messages have them, and check the row again."""
        schema = self.vocabulary.attributes
        new = []
        for name in row["where"]:
            if isinstance(name, str) and schema.number_of(name) is not None:
                continue
            found = self.recent.attribute(name) if isinstance(name, str) else None
            if found is None:
                names = [one.name for one in schema.compared]
                there, near = ", ".join(names[:_NAMED]) or "none", meant(name, [*names, *self.recent.names])
                how = "PUT /v1/stream/attributes/NAME, --attribute NAME:TYPE, or attributes= of an engine"
                what = f"{shown(name)}; {near}there are {there}, and no recent message has it: declare it ({how})"
                return Refusal("unknown_attribute", what)
            new.append(str(found))
        refusal = self.declare(new)
        return refusal or self.rows.row(row)

    def declare(self, attributes: Sequence[str]) -> Refusal | None:
        """Declare attributes (`NAME:TYPE`) for the messages from now on; returns why they cannot be.

        The next record of the log has them (`spouts.log.Admitted`).
        """
        try:
            self.vocabulary.admit((), 0, attributes)
        except ConfigError as error:
            return Refusal("unknown_attribute", str(error))
        return None

    def unsubscribe(self, subscription_id: Any) -> str:
        """End a subscription, and return its id, which may come as a number. Raises InputError if there is none."""
        name = identifier(subscription_id)
        if not name:
            refusal = Refusal("bad_id", "", Fault("unsubscribe", subscription_id))
            raise _RefusedSubscription(refusal, f"{refusal.fault}: {explain('bad_id', self.kinds)}")
        kind = self.active.end(name, self.next_seq)
        if kind is None:
            raise InputError("unknown_subscription", f"subscription {name!r}: is not active")
        self._ended(kind)
        return name

    def row(
        self, row: dict[str, Any] | str, name_of: Callable[[str], str] = str, line: bytes = b""
    ) -> ParsedMessage | Change | RefusedLine:
        """Check a decoded line and apply its change: what it is, or the refusal.

        Parameters
        ----------
        row : dict or str
            The object of the line, or the reason code why it is none.
        name_of : callable
            Gives the name that a column had where the line came from.
        line : bytes
            As it is logged.

        Notes
        -----
        Never raises; about 15 us.
        """
        if isinstance(row, str):
            return RefusedLine(row, explain(row, self.kinds))
        if "subscribe" in row or "unsubscribe" in row:
            return self.change(row, line=line)
        parsed = self.message(row)
        if not isinstance(parsed, str):
            return parsed
        fault = message_fault(parsed, row, self.space, self.vocabulary.attributes)
        fault = None if fault is None or fault.column is None else fault._replace(column=name_of(fault.column))
        return RefusedLine(parsed, explain(parsed, self.kinds, str(fault or "")), fault)

    def change(self, row: Mapping[str, Any], checked: Checked | None = None, line: bytes = b"") -> Change | RefusedLine:
        """Apply a change of subscriptions, `{"subscribe": columns}` or `{"unsubscribe": id}`, or return its refusal.

        `checked` and `line` are as `subscribe` takes them.
        """
        if len(row) > 1:
            other = next((name for name in row if name not in ("subscribe", "unsubscribe")), "unsubscribe")
            what = "a line with subscribe or unsubscribe has no other column"
            return RefusedLine("unknown_column", what, Fault(other, row[other]))
        try:
            if "unsubscribe" in row:
                return self.unsubscribe(row["unsubscribe"])
            if isinstance(row["subscribe"], dict):
                return self.subscribe(row["subscribe"], checked, line)
            raise InputError("wrong_type", "subscribe takes an object with the columns of a subscription")
        except InputError as error:
            name, given = next(iter(row.items()))
            columns = given if isinstance(given, dict) and name == "subscribe" else {}
            fault = getattr(error, "fault", None) or subscription_fault(error.reason_code, columns)
            if fault is None:
                fault = Fault("subscription_id", columns["subscription_id"]) if columns else Fault(name, given)
            return RefusedLine(error.reason_code, str(error), fault)

    def logged(self, record: Record, first_seq: int) -> RefusedLine | None:
        """Apply the changes and the admitted terms of a record of the log, whose first message has this seq.

        Returns the first refusal. The first line of each kind is checked as one that comes: whether the tasks of this
        process take the kind is no property of the line.
        """
        self.vocabulary.admit((), 0, record.admitted.attributes)
        found, seqs = plain_changes(record.lines, self.kinds), [first_seq + before for before in record.changes]
        place, count, met = 0, len(found), self._met
        while place < count:
            odd = (at for at in range(place, count) if type(one := found[at]) is not Accepted or one.kind not in met)
            stop = next(odd, count)
            self._put(found[place:stop], seqs[place:stop])
            if stop < count:
                self.next_seq, line, self._replays = seqs[stop], record.lines[stop], True
                refused = self.row(decode_object(line), line=line)
                self._replays = False
                if isinstance(refused, RefusedLine):
                    return refused
            place = stop + 1
        self.next_seq = seqs[-1] if seqs else self.next_seq
        self.new_terms.resume(record)
        return None

    def logged_words(self, lines: Sequence[bytes]) -> list[Changed] | Refusal:
        """Take the words of logged changes that the next batch admits; what the changes are, or the first refusal."""
        found: list[Changed] = []
        for one in checked_changes(lines, self.rows, _MANY):
            if isinstance(one, Refusal):
                return one
            words = () if isinstance(one, str) else one.words if isinstance(one, PlainRows) else _new_words(one)
            if not self.new_terms.of_subscription(words):
                return Refusal("too_many_terms")
            found.append(one)
        return found

    def _put(self, ones: Sequence[Any], seqs: Sequence[int]) -> None:
        """Count what is accepted (`Accepted`), and those that it replaces."""
        for kind in self.active.put(ones, seqs):
            self._ended(kind)
        for code, count in Counter([one.kind for one in ones]).items():
            self._fading += count * self.kinds[code].fades
            self._met.add(code)

    @property
    def kinds_met(self) -> list[Kind]:
        """Kinds that have had a subscription."""
        return [self.kinds[code] for code in sorted(self._met)]

    def _ended(self, kind: int) -> None:
        self._fading -= self.kinds[kind].fades

    def _needs_times(self) -> bool:
        return self.window.kind == "time" or self._fading > 0


def _accepted(row: Mapping[str, Any], parsed: ParsedSubscription, kind: Kind, line: bytes) -> Accepted:
    """What is known of a subscription that is accepted."""
    place = point_of(row) if kind.place == "point" else ()
    box = (*place, *place) if place else parsed.region
    free = row.get("owner"), row.get("expires_at"), parsed.broad, row.get("tell"), row.get("include")
    return Accepted(parsed.subscription_id, parsed.kind, line, box, *free)


def _new_words(parsed: ParsedSubscription) -> tuple[str, ...]:
    """Words of which some have no id; none if all have one."""
    return (*parsed.words, *parsed.others) if parsed.unknown or parsed.unknown_others else ()
