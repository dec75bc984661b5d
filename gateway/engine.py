"""Matching in this process, without a run: subscribe, publish, and get updates back.

    engine = Engine(vocabulary="etl", window="count:10000")
    engine.subscribe({"subscription_id": "s1", "kind": "knn", "keywords": "ramen", "lon": 139.7, "lat": 35.7, "k": 3})
    updates = engine.publish([{"id": "m1", "text": "ramen is open", "lon": 139.69, "lat": 35.68}])

Rows pass the same checks as in the ETL and a run (`gateway.live.admission`), texts become terms by the same function,
and operators and window indexes are those of a run, in a local engine. Public as `skyray.Engine`.
"""

import inspect
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gateway.live.admission import Admission
from gateway.live.living_versions import LivingVersions
from gateway.plain_values import plain_value, table_name
from gateway.runs.explaining import ExplainedStream, explained
from gateway.runs.match_rules import Lives
from gateway.runs.message_rows import Row, message_row
from gateway.runs.reader import Subscriber, subscriber
from gateway.shell.suggesting import refuse_unknown
from matching.attributes import AttributeSchema
from matching.errors import ConfigError, InputError
from matching.fields import MESSAGE_ROLES, Refusal
from matching.half_life import HALF_LIFE_S, SMOOTHING, DecayParameters
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.local_engine import LocalEngine
from matching.model import (
    CHANGES,
    ENTER,
    MessageBatch,
    Removals,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    empty,
    take_rows,
)
from matching.reasons import MAX_DEPTH, explain
from matching.space import DISTANCE, Space
from matching.validate import DELETE, ParsedMessage, ParsedSubscription, build_table, subscription_row
from matching.vocabulary import Vocabulary
from matching.window import NO_FLOOR, Boundary, Floors, Window, stream_time
from matching.words.message_words import MessageTerms
from spouts.cutting import Rows
from spouts.manifest import read_manifest
from spouts.messages import MessageBlock
from spouts.parsed import batch_of, deletion_of, deletions_in, objects_of
from spouts.subscriptions import load_vocabulary
from spouts.versions import LivingObjects, ObjectTable, Versions
from topology.engines import check_distance, check_window, filter_refusal, kinds_without_objects
from topology.settings import MAX_AHEAD_S, MOST_TERMS, MOST_TERMS_LIMIT

#: Messages that are kept before those outside the window and all results are dropped.
_KEPT = 10_000


class _StoredMessage(NamedTuple):
    """A message that was published; `life` as in `MessageBatch`, `first_id` as of its batch."""

    parsed: ParsedMessage
    life: int
    first_id: int


class _Subscribed(NamedTuple):
    """An active subscription and its number."""

    number: int
    parsed: ParsedSubscription


class _Added(NamedTuple):
    """A subscription that begins with the next batch, at this seq; `row` has its columns."""

    number: int
    row: Mapping[str, Any]
    parsed: ParsedSubscription
    at: int


class Engine:
    """Subscriptions of any kinds over one stream, in this process.

    Parameters
    ----------
    vocabulary : path or iterable of str, optional
        Output folder of the ETL, whose terms and weights are used; or sample texts, of which a vocabulary is built.
        By default it is empty. New words of messages and subscriptions are admitted with the next batch.
    window : str
        `count:N` messages or `time:SECONDS` (also `time:90s`, `time:5m`, `time:1h`, `time:2d`).
    world : str, optional
        WEST,SOUTH,EAST,NORTH in degrees, or `earth`; by default the extent of the ETL's messages, else the earth.
    projection : str
        `plate-carree` or `equal-area`.
    distance : str
        `sphere`, great-circle metres, or `plane`, Euclidean in the projected world as in the papers.
    decay_half_life, decay_smoothing : float
        As of a run.
    max_ahead : float
        With a time window or fading scores, a message dated more seconds than this after it is published is set aside:
        it keeps its seq and matches nothing.
    clock : callable
        Seconds since 1970, for `max_ahead`, `ttl_s` and `expires_at`.
    most_terms : int
        New words that are admitted at most, a tenth of them for subscriptions alone. Beyond it those of messages are
        left out and counted, and subscriptions that have some are refused (`too_many_terms`); 0: none is admitted.
    attributes : iterable of str
        What messages have beside text and place, as `NAME:TYPE` or `NAME=PATH:TYPE` with the type number, category or
        time, for `where` of subscriptions; of a vocabulary's folder they are its own. More are declared by the first
        condition that names a field of messages before it.
    strict_attributes : bool
        Reject a message with a value that does not fit its attribute (`bad_attribute`); by default the value is
        missing.
    numbers : str
        Form of numbers that are text: `plain` (1200.5), `point` (1,200.50) or `comma` (1.200,50), the latter two with a
        unit before or behind.
    stemming : str
        Language of stemming, such as `english`; none by default. Of a vocabulary's folder it is its own.
    fold_accents : bool
        Whether `cafe` is `café`. Of a vocabulary's folder it is its own.
    engines, window_indexes : mapping of kind to name, optional
        No result depends on them.
    objects : bool
        The stream is one of objects: every message is a version of its `object_id` (its `id` if it has none), which
        `"deleted": true` ends, and results are over the living objects as they are. A version with `ttl_s` (seconds) or
        `expires_at` ends its object with the first batch from then on.
    kinds : Kinds

    Attributes
    ----------
    rejected : Counter
        Refused messages by reason.
    misfits : Counter
        Values of accepted messages that do not fit their attribute, by column.
    set_aside : Counter
        Messages accepted while the window is by time or a score fades that have no time (`no_time`: they reach kinds
        that need none) or are dated too far ahead (`ahead`: they reach none).
    unknown_words : int
        Distinct words of each message that were not admitted, summed.

    Raises
    ------
    ConfigError, InputError
        For an invalid setting, or a folder that the ETL has not written.

    Notes
    -----
    The first engine of a process loads kernels, or compiles them for some minutes if they are not cached. Not
    thread-safe. Memory: O(window + results).
    """

    def __init__(
        self,
        vocabulary: str | os.PathLike[str] | Iterable[str] = (),
        window: str = "count:20000",
        *,
        world: str | None = None,
        projection: str = "plate-carree",
        distance: str = DISTANCE,
        decay_half_life: float = HALF_LIFE_S,
        decay_smoothing: float = SMOOTHING,
        engines: Mapping[str, str] | None = None,
        window_indexes: Mapping[str, str] | None = None,
        max_ahead: float = MAX_AHEAD_S,
        most_terms: int = MOST_TERMS,
        attributes: Iterable[str] = (),
        strict_attributes: bool = False,
        numbers: str = "plain",
        stemming: str = "",
        fold_accents: bool = False,
        clock: Callable[[], float] = time.time,
        objects: bool = False,
        kinds: Kinds = KINDS,
        **unknown: Any,
    ):
        refuse_unknown("skyray.Engine", unknown, [*inspect.signature(Engine).parameters][:-1])
        extent = None
        if not isinstance(most_terms, int) or not 0 <= most_terms <= MOST_TERMS_LIMIT:
            raise ConfigError(f"most_terms {most_terms!r}: give a whole number from 0 to {MOST_TERMS_LIMIT:,}")
        if isinstance(vocabulary, str | os.PathLike):
            if attributes:
                raise ConfigError("attributes: are those of the vocabulary's folder; leave them out")
            if stemming or fold_accents:
                option = "stemming" if stemming else "fold_accents"
                raise ConfigError(f"{option}: is that of the vocabulary's folder; leave it out")
            self.vocabulary = load_vocabulary(vocabulary, most_terms)
            extent = (read_manifest(vocabulary) or {}).get("extent")
        else:
            empty_words = Vocabulary([], [], [], [], 0, stem_language=stemming, folds_accents=fold_accents)
            counts = map(empty_words.count_terms, vocabulary)
            schema = AttributeSchema.parse(attributes)
            self.vocabulary = Vocabulary.of_counts(counts, stemming, fold_accents, most_terms, schema)
        self.vocabulary.attributes = self.vocabulary.attributes.reading(numbers)
        self.window = Window.parse(window)
        self.space = Space.parse(world or "extent", tuple(extent) if extent else None, projection, distance)
        check_window(self.window, objects)
        self.kinds = kinds = kinds.of_objects() if objects else kinds
        check_distance(kinds, self.space, engines)
        words = self.vocabulary
        self.fading = DecayParameters.of(decay_half_life, decay_smoothing, words.collection_count, words.total_tokens)
        self._local = LocalEngine(
            kinds.run, self.space, self.window, engines=engines, windows=window_indexes, fading=self.fading,
            objects=objects,
        )  # fmt: skip
        filters = filter_refusal(kinds, window_indexes, most_terms, objects)
        unserved = kinds_without_objects(kinds, engines) if objects else {}

        def refuses(parsed: ParsedSubscription) -> Refusal | None:
            return unserved.get(kinds[parsed.kind].name) or filters(parsed)

        self._admission = Admission(
            words, self.space, self.window, kinds, refuses, max_ahead, clock, strict=strict_attributes, objects=objects
        )
        self.misfits = self._admission.misfits
        self.rejected = self._admission.rejected
        self.set_aside = self._admission.set_aside
        self.unknown_words = 0
        self._added: list[_Added] = []
        self._removed: list[tuple[int, int, int]] = []  # number, code of the kind, seq from which it is gone
        self._subscribed: dict[str, _Subscribed] = {}
        self._owners: dict[int, Subscriber] = {}  # by number, until the updates of its end are returned
        self._next_number = 0
        self._boundary = Boundary(-1, 0, -1, NO_FLOOR)
        self._clock = NO_FLOOR
        self._floors = Floors(self.window, objects)
        self._messages_by_seq: dict[int, _StoredMessage] = {}
        self._sweep_at = _KEPT
        self._lives = Lives()  # of the messages that are kept
        self._versions: ObjectTable = LivingObjects() if objects else Versions()
        self._living = LivingVersions() if objects else None  # what ends by time
        self._ended = np.zeros(0, np.int64)  # removed with the last batch: their updates still need names

    def subscribe(self, subscription: Mapping[str, Any] | None = None, **columns: Any) -> str:
        """Register a subscription, replacing any of the same id; it takes effect before the next message.

        Parameters
        ----------
        subscription : mapping, optional
            Columns as in a file of subscriptions; values may be NumPy's.
        **columns
            More of them.

        Returns
        -------
        str
            Its id.

        Raises
        ------
        InputError
            With the reason code of a run; a misspelt column is named.
        """
        if not isinstance(subscription, Mapping | None):
            raise InputError(
                "wrong_type", f"subscribe takes columns, as a mapping or by name, not {_short(subscription)}"
            )
        row = _plain_row({**(subscription or {}), **columns})
        if row.get("backfill") not in (None, False):
            raise InputError("backfill_needs_log", explain("backfill_needs_log", self.kinds))
        parsed = self._admission.subscribe(row)
        name = parsed.subscription_id
        if name in self._subscribed:
            self._end(name)
        number, self._next_number = self._next_number, self._next_number + 1
        at = self._boundary.last_seq + 1
        self._added.append(_Added(number, row, parsed, at))
        self._subscribed[name] = _Subscribed(number, parsed)
        self._owners[number] = subscriber(row, parsed, self.kinds)._replace(at=at)
        return name

    def unsubscribe(self, subscription_id: str | int) -> None:
        """End a subscription before the next message. Raises InputError for an unknown id."""
        self._end(self._admission.unsubscribe(plain_value(subscription_id)))

    def publish(self, messages: Iterable[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
        """Publish messages as one batch, and return its updates.

        Parameters
        ----------
        messages : iterable of mapping, or one
            Each with `text`, `lon`, `lat`, and if need be `id`, `time`, `object_id`, `op`, `lang` and the sides of a
            rectangle `west`, `south`, `east`, `north`; other columns are ignored. Values may be NumPy's; NaN, NaT and
            NA are missing values. A bad one is counted in `rejected`, the others are matched. Without messages: updates
            of the changes of subscriptions since the last batch, and of objects that have ended by time.

        Returns
        -------
        list of dict
            `change` (match, enter or leave), `subscription_id`, `message_id`, `seq`, `as_of`, `score` (None for a
            match), `text`, `lon`, `lat`. A message that entered and left within the batch has none.

        Raises
        ------
        InputError
            If `messages` is neither a message nor an iterable of them, such as a DataFrame.
        """
        if table := table_name(messages):
            raise InputError(
                "wrong_type",
                f"publish takes messages, not a {table}: give it the rows, of pandas df.to_dict('records'), of Arrow "
                "table.to_pylist(), of polars df.to_dicts()",
            )
        if isinstance(messages, str | bytes) or not isinstance(messages, Iterable):
            raise InputError(
                "wrong_type",
                f"publish takes one message or several, such as {{'text': ..., 'lon': ..., 'lat': ...}}, not "
                f"{_short(messages)}",
            )
        rows = [messages] if isinstance(messages, Mapping) else messages
        judged = map(self._judged, rows)
        return self._rows_of(self._match([parsed for parsed in judged if isinstance(parsed, ParsedMessage)]))

    def _judged(self, row: Any) -> ParsedMessage | str:
        """The parsed message of a row, or the reason code of its refusal, which is counted."""
        try:
            plain = _plain_row(row)
            if self._living is not None and isinstance(plain, Mapping) and (what := self._living.refusal(plain)):
                raise InputError("too_many_objects", what)
            found = self._admission.message(plain)
            if isinstance(found, ParsedMessage):
                self._admission.recent.note(plain, MESSAGE_ROLES, self.vocabulary.attributes)
            return found
        except InputError as error:  # it is too deep, or an object too many
            self.rejected[error.reason_code] += 1
            return error.reason_code

    def _match(self, taken: Sequence[ParsedMessage]) -> UpdateBatch:
        """Match messages as one batch, with which new terms are admitted."""
        first = self._boundary.last_seq + 1
        new_terms = self._admission.new_terms
        if self._living is not None:
            names = self._living.expired(self._admission.now_us(), len(self._living))
            taken = [*(deletion_of(name, self.space) for name in names), *taken]
        block = MessageBlock.of(taken, self.vocabulary.attributes)
        cut = new_terms.words.cut(block.words())
        new_terms.admit(new_terms.words.new_terms(cut), first)
        terms = new_terms.words.terms(cut)
        self.unknown_words += int(terms.unknown.sum())
        batch = batch_of(block, terms, self.vocabulary, first, self.space, self.window)
        self._clock = stream_time(batch.life, self._clock)
        last = first + len(taken) - 1
        floor = self._floors.at(last, self._clock, np.flatnonzero(deletions_in(block)) + first)
        boundary = Boundary(self._boundary.number + 1, first, last, floor)
        for seq, (parsed, life) in enumerate(zip(taken, batch.life.tolist(), strict=True), start=first):
            self._messages_by_seq[seq] = _StoredMessage(parsed, life, self.vocabulary.first_id)
            if not (parsed.ahead and self._living is not None):
                self._lives.take(seq, parsed.object_id, parsed.op == DELETE)
        batch = self._versions.feed(batch, objects_of(block), block.ahead)
        if self._living is not None:
            self._living.take(first, block, terms)
        added = self._added_table()
        removed = Removals(
            np.array([number for number, _, _ in self._removed], np.int64),
            np.array([kind for _, kind, _ in self._removed], np.int8),
            np.array([at for _, _, at in self._removed], np.int64),
        )
        self._removed = []
        output = self._local.process(boundary, batch, added, removed, self._versions.pop_ended(boundary))
        self._boundary = boundary
        self._ended = removed.number
        return output.updates

    def results(self, subscription_id: str | None = None) -> list[dict[str, Any]]:
        """Results of one subscription, or of all, as of the last batch, best first.

        Returns
        -------
        list of dict
            `subscription_id`, `rank`, `message_id`, `seq`, `score`, `text_score` (None but for skylines), `text`,
            `lon`, `lat`, `words` found and `distance_km` (None for a region). `boolean` has no results.

        Raises
        ------
        InputError
            For an unknown id.
        """
        if subscription_id is not None:
            self._known(subscription_id)
        results: ResultBatch = self._local.results()
        texts = results.text_score if results.text_score is not None else np.full(len(results), np.nan)
        columns = (results.number, results.rank, results.seq, results.score, texts)
        found = []
        for number, rank, seq, score, text in sorted(zip(*(column.tolist() for column in columns), strict=True)):
            owner = self._owners.get(number)
            if owner is not None and subscription_id in (None, owner.subscription_id):
                row = {"subscription_id": owner.subscription_id, "rank": rank, **self._of(seq), "score": score}
                found.append((owner, row | {"text_score": None if np.isnan(text) else text}))
        messages = self._read({row["seq"] for _, row in found})
        for owner, row in found:
            message = messages[row["seq"]]
            row["words"] = [word for word in owner.words if self.vocabulary.id_of(word) in message.terms]
            row["distance_km"] = owner.kilometres(message.lon, message.lat)
        return [row for _, row in found]

    def explain(self, subscription_id: str, message: str) -> dict[str, Any]:
        """Why a message is, or is not, in a subscription's result as of the last batch, as `skyray explain` does.

        Parameters
        ----------
        subscription_id : str
        message : str
            Its id, of several messages of one id the last; or `seq:N`.

        Returns
        -------
        dict
            As of `gateway.runs.explaining.explain`, but for `updates`. `rank` counts messages that are still kept.

        Raises
        ------
        InputError
            For an unknown id, or a message that was never published, or that the engine may have dropped because it has
            left the window and is in no result.

        Notes
        -----
        50 us for each message that is kept.
        """
        known, seq = self._known(subscription_id), self._seq_of(message)
        owner = self._owners[known.number]
        table = build_table([known.parsed], [known.number], [owner.at])
        last_seq, given = self._boundary.last_seq, (self.vocabulary, self.kinds, self.window, self.space, self.fading)
        aside, objects = lambda row: "ahead" if row.ahead else "", self._admission.objects
        stream = ExplainedStream(*given, self._read, aside, objects)
        ends, floor = self._lives.ends, self._boundary.floor
        return explained(stream, [self._kept()], table, owner, seq, last_seq, self._clock, ends=ends, floor=floor)

    @property
    def subscriptions(self) -> Sequence[str]:
        """Ids of all active subscriptions."""
        return list(self._subscribed)

    def _known(self, subscription_id: str) -> _Subscribed:
        known = self._subscribed.get(subscription_id)
        if known is None:
            raise InputError("unknown_subscription", f"subscription {subscription_id!r}: is not active")
        return known

    def _end(self, name: str) -> None:
        gone = self._subscribed.pop(name)
        self._removed.append((gone.number, gone.parsed.kind, self._boundary.last_seq + 1))

    def _seq_of(self, message: str) -> int:
        name = str(message)
        for seq in reversed(self._messages_by_seq):
            if self._messages_by_seq[seq].parsed.message_id == name:
                return seq
        number = name.removeprefix("seq:")
        if name.startswith("seq:") and number.isdecimal() and int(number) in self._messages_by_seq:
            return int(number)
        raise InputError(
            "unknown_message",
            f"message {name}: was not published, or has left the window and is in no result; `seq:N` names one by its "
            f"number, up to {self._boundary.last_seq:,}",
        )

    def _kept(self) -> Rows:
        """The messages that are kept."""
        block, terms = self._terms(self._messages_by_seq)
        batch = batch_of(block, terms, self.vocabulary, 0, self.space, self.window)
        life = np.array([one.life for one in self._messages_by_seq.values()], np.int64)
        return Rows(
            MessageBatch(**batch._asdict() | {"seq": np.array(list(self._messages_by_seq)), "life": life}), block.ids
        )

    def _read(self, seqs: Iterable[int]) -> dict[int, Row]:
        wanted, schema = list(seqs), self.vocabulary.attributes
        terms = self._terms(wanted)[1]
        found = zip(wanted, np.split(terms.ids, terms.offsets[1:-1]), strict=False)
        return {seq: message_row(self._messages_by_seq[seq].parsed, ids, schema) for seq, ids in found}

    def _terms(self, seqs: Iterable[int]) -> tuple[MessageBlock, MessageTerms]:
        """Messages that are kept, and their terms as of their batches."""
        stored, words = [self._messages_by_seq[seq] for seq in seqs], self._admission.new_terms.words
        block = MessageBlock.of([one.parsed for one in stored], self.vocabulary.attributes)
        return block, words.terms(words.cut(block.words()), [one.first_id for one in stored])

    def _added_table(self) -> SubscriptionTable:
        """The subscriptions since the last batch; those with new terms are parsed again, now that these have ids."""
        added, self._added = [self._with_ids(one) for one in self._added], []
        if not added:
            return empty(SubscriptionTable)
        return build_table([one.parsed for one in added], [one.number for one in added], [one.at for one in added])

    def _with_ids(self, added: _Added) -> _Added:
        if not (added.parsed.unknown or added.parsed.unknown_others) or not self.vocabulary.most_terms:
            return added
        parsed = subscription_row(added.row, self.vocabulary, self.space, self.kinds)
        assert isinstance(parsed, ParsedSubscription), "it was accepted"
        name = parsed.subscription_id
        if name in self._subscribed and self._subscribed[name].number == added.number:
            self._subscribed[name] = _Subscribed(added.number, parsed)
        return added._replace(parsed=parsed)

    def _rows_of(self, updates: UpdateBatch) -> list[dict[str, Any]]:
        """The updates of `_match` as dicts; called once for each batch.

        Those of a subscription are by `as_of`, leaves before enters, and a replaced subscription's before its
        successor's.
        """
        updates = take_rows(updates, np.lexsort((updates.change == ENTER, updates.as_of, updates.number)))
        columns = (updates.as_of, updates.number, updates.seq, updates.change, updates.score)
        rows = []
        for as_of, number, seq, change, score in zip(*(column.tolist() for column in columns), strict=True):
            name = self._owners[number].subscription_id
            row = {"change": CHANGES[change], "subscription_id": name, "as_of": as_of}
            rows.append({**row, **self._of(seq), "score": None if np.isnan(score) else score})
        for number in self._ended.tolist():
            self._owners.pop(number, None)
        self._sweep()
        return rows

    def _of(self, seq: int) -> dict[str, Any]:
        parsed = self._messages_by_seq[seq].parsed
        row = {"message_id": parsed.message_id, "seq": seq, "text": parsed.text, "lon": parsed.lon, "lat": parsed.lat}
        return row | {"object_id": parsed.object_id} if self._admission.objects else row

    def _sweep(self) -> None:
        """Drop messages that have left the window and are in no result."""
        if len(self._messages_by_seq) < self._sweep_at:
            return
        in_results = set(self._local.results().seq.tolist()) | self._versions.living
        floor = self._boundary.floor
        messages = self._messages_by_seq.items()
        self._messages_by_seq = {seq: one for seq, one in messages if one.life > floor or seq in in_results}
        self._lives.keep(self._messages_by_seq)
        self._sweep_at = max(_KEPT, 2 * len(self._messages_by_seq))


def _short(value: Any) -> str:
    """A value that does not fit, for an error."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


def _plain_row(row: Any) -> Any:
    """A row with Python's own values. Raises InputError if it is too deep."""
    try:
        return plain_value(row, MAX_DEPTH)
    except RecursionError:
        raise InputError("too_deep", explain("too_deep", KINDS)) from None
