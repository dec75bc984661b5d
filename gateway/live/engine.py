"""Matching in this process, without a run: subscribe, publish, and be told at once.

    engine = Engine(vocabulary="etl", window="count:10000")
    engine.subscribe({"subscription_id": "s1", "kind": "knn", "keywords": "ramen", "lon": 139.7, "lat": 35.7, "k": 3})
    updates = engine.publish([{"id": "m1", "text": "ramen is open", "lon": 139.69, "lat": 35.68}])

Rows pass the gate of the ETL and of a run (`gateway.live.admission`), texts become terms by the same function, and
rooms and windows are those of a run, alone in one process. Read on in `matching.local_engine`.
"""

import inspect
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np

from gateway.live.admission import Admission
from gateway.runs.explaining import RIVALS, answer_of
from gateway.runs.match_rules import Scene, judge
from gateway.runs.reader import Row, Subscriber, subscriber
from gateway.shell.suggesting import refuse_unknown
from matching.errors import InputError
from matching.half_life import HALF_LIFE_S, SMOOTHING, DecayParameters
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.local_engine import LocalEngine
from matching.model import (
    CHANGES,
    ENTER,
    Removals,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    empty,
    take_rows,
)
from matching.naive import DecayModel, Extras, Message, Subscription, messages_of, subscriptions_of
from matching.space import Space
from matching.text import TermVector, Vocabulary
from matching.validate import ParsedMessage, ParsedSubscription, build_table
from matching.window import NO_FLOOR, Boundary, Window, stream_time
from spouts.parquet import read_manifest
from spouts.parsed import message_batch, objects_of, vector_of
from spouts.subscriptions import load_vocabulary
from spouts.versions import Versions
from topology.engines import kinds_with
from topology.settings import MAX_AHEAD_S

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Messages that are kept before those that nobody can be told of any more are given up.
_KEPT = 10_000


class _Said(NamedTuple):
    """What a message was; `life` as in `MessageBatch`."""

    parsed: ParsedMessage
    life: int


class _Subscribed(NamedTuple):
    """A subscription that has not ended, and the number it has as in a run."""

    number: int
    parsed: ParsedSubscription


class Engine:
    """Subscriptions of any kinds over one stream, in this process.

    Parameters
    ----------
    vocabulary : path or iterable of str
        Output folder of the ETL, whose words and weights are in force; or texts like those to come, from which a
        vocabulary is made. Words that it lacks are left out of messages and counted.
    window : str
        `count:N` messages or `time:SECONDS` (also `time:90s`, `time:5m`, `time:1h`, `time:2d`).
    world : str, optional
        WEST,SOUTH,EAST,NORTH in degrees, or `earth`; by default the extent of the ETL's messages, else the earth.
    projection : str
        `plate-carree` or `equal-area`.
    decay_half_life, decay_smoothing : float
        As of a run.
    max_ahead : float
        Where times matter, a message dated so many seconds after it is published is set aside: it keeps its seq and
        matches nothing.
    clock : callable
        Seconds since 1970, by which that is judged.
    engines, window_indexes : mapping of kind to name, optional
        No result depends on them.
    kinds : Kinds

    Attributes
    ----------
    rejected : Counter
        Messages that were refused, by reason.
    set_aside : Counter
        Messages that were taken while the window goes by time or a score fades, and have no time (`no_time`: they reach
        all kinds that need none) or are dated too far ahead (`ahead`: they reach none).
    unknown_words : int
        How many distinct words of messages the vocabulary lacked, message by message.

    Raises
    ------
    ConfigError, InputError
        For a setting that cannot be used, or a folder that is none of the ETL's.

    Notes
    -----
    The first engine of a process loads kernels, or compiles them for some minutes where nobody has yet. One thread at
    a time may use an engine. Memory for the window and for what results hold.
    """

    def __init__(
        self,
        vocabulary: str | os.PathLike[str] | Iterable[str],
        window: str = "count:20000",
        *,
        world: str | None = None,
        projection: str = "plate-carree",
        decay_half_life: float = HALF_LIFE_S,
        decay_smoothing: float = SMOOTHING,
        engines: Mapping[str, str] | None = None,
        window_indexes: Mapping[str, str] | None = None,
        max_ahead: float = MAX_AHEAD_S,
        clock: Callable[[], float] = time.time,
        kinds: Kinds = KINDS,
        **unknown: Any,
    ):
        refuse_unknown("skyray.Engine", unknown, [*inspect.signature(Engine).parameters][:-1])
        extent = None
        if isinstance(vocabulary, str | os.PathLike):
            self.vocabulary = load_vocabulary(vocabulary)
            extent = (read_manifest(vocabulary) or {}).get("extent")
        else:
            empty_words = Vocabulary([], [], [], [], 0)
            self.vocabulary = Vocabulary.of_counts(empty_words.count_terms(text) for text in vocabulary)
        self.kinds = kinds = kinds_with(kinds, engines, window_indexes)
        self.window = Window.parse(window)
        self.space = Space.parse(world or "extent", tuple(extent) if extent else None, projection)
        words = self.vocabulary
        self.fading = DecayParameters.of(decay_half_life, decay_smoothing, words.collection_count, words.total_tokens)
        self._alone = LocalEngine(
            kinds.run, self.space, self.window, engines=engines, windows=window_indexes, fading=self.fading
        )
        self._gate = Admission(words, self.space, self.window, kinds, max_ahead_s=max_ahead, now=clock)
        self.rejected = self._gate.rejected
        self.set_aside = self._gate.set_aside
        self.unknown_words = 0
        self._added: list[SubscriptionTable] = []
        self._removed: list[tuple[int, int, int]] = []  # number, code of the kind, first message they do not meet
        self._subscribed: dict[str, _Subscribed] = {}
        self._owners: dict[int, Subscriber] = {}  # by number, until the end of a subscription has been told
        self._next_number = 0
        self._boundary = Boundary(-1, 0, -1, NO_FLOOR)
        self._clock = NO_FLOOR
        self._said: dict[int, _Said] = {}
        self._sweep_at = _KEPT
        self._current: dict[str, int] = {}  # object -> seq of its version, of messages that are kept
        self._ends: dict[int, int] = {}  # seq of a message whose object is alive no more -> seq of what ended it
        self._versions = Versions()
        self._gone = np.zeros(0, np.int64)  # who left with the last batch: named once more

    def subscribe(self, subscription: Mapping[str, Any] | None = None, **columns: Any) -> str:
        """Register a subscription, in place of any of the same id; it takes effect before the next message.

        Parameters
        ----------
        subscription : mapping, optional
            Columns as in a file of subscriptions.
        **columns
            More of them.

        Returns
        -------
        str
            Its id.

        Raises
        ------
        InputError
            With the reason, as a run would reject it; a column that is nearly one of subscriptions is named.
        """
        if not isinstance(subscription, Mapping | None):
            raise InputError(
                "wrong_type", f"subscribe takes columns, as a mapping or by name, not {_short(subscription)}"
            )
        row = {**(subscription or {}), **columns}
        parsed = self._gate.subscribe(row)
        name = parsed.subscription_id
        if name in self._subscribed:
            self._end(name)
        number, self._next_number = self._next_number, self._next_number + 1
        at = self._boundary.last_seq + 1
        self._added.append(build_table([parsed], [number], [at]))
        self._subscribed[name] = _Subscribed(number, parsed)
        self._owners[number] = subscriber(row, parsed, self.kinds)._replace(at=at)
        return name

    def unsubscribe(self, subscription_id: str) -> None:
        """End a subscription before the next message. Raises InputError if nobody is subscribed under this id."""
        self._gate.unsubscribe(subscription_id)
        self._end(subscription_id)

    def publish(self, messages: Iterable[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
        """Publish messages as one batch, and tell what it changes.

        Parameters
        ----------
        messages : iterable of mapping, or one
            Each with `text`, `lon`, `lat`, and if need be `id`, `time`, `object_id`, `op` and the sides of a rectangle
            `west`, `south`, `east`, `north`; other columns are ignored. A bad one is counted in `rejected`, and nothing
            beside it is lost. Without any: what has been subscribed meanwhile is told.

        Returns
        -------
        list of dict
            `change` (match, enter or leave), `subscription_id`, `message_id`, `seq`, `as_of`, `score` (None for a
            match), `text`, `lon`, `lat`. What came and went within the batch is not told.

        Raises
        ------
        InputError
            For something that is neither a message nor several.
        """
        if isinstance(messages, str | bytes) or not isinstance(messages, Iterable):
            raise InputError(
                "wrong_type",
                f"publish takes one message or several, such as {{'text': ..., 'lon': ..., 'lat': ...}}, not "
                f"{_short(messages)}",
            )
        judged = map(self._gate.message, [messages] if isinstance(messages, Mapping) else messages)
        return self._tell(self._match([parsed for parsed in judged if isinstance(parsed, ParsedMessage)]))

    def _match(self, taken: Sequence[ParsedMessage]) -> UpdateBatch:
        """Match messages as one batch; what that changes, by number of subscription and message."""
        first = self._boundary.last_seq + 1
        batch = message_batch(taken, [self._vector(parsed) for parsed in taken], first, self.space, self.window)
        self._clock = stream_time(batch.life, self._clock)
        last = first + len(taken) - 1
        boundary = Boundary(self._boundary.number + 1, first, last, self.window.floor(last, self._clock))
        for seq, (parsed, life) in enumerate(zip(taken, batch.life.tolist(), strict=True), start=first):
            self._said[seq] = _Said(parsed, life)
            self._note_version(seq, parsed)
        self._versions.feed(batch, objects_of(taken))
        added = concatenate([empty(SubscriptionTable), *self._added])
        removed = Removals(
            np.array([number for number, _, _ in self._removed], np.int64),
            np.array([kind for _, kind, _ in self._removed], np.int8),
            np.array([at for _, _, at in self._removed], np.int64),
        )
        self._added, self._removed = [], []
        step = self._alone.process(boundary, batch, added, removed, self._versions.pop_ended(boundary))
        self._boundary = boundary
        self._gone = removed.number
        return step.updates

    def results(self, subscription_id: str | None = None) -> list[dict[str, Any]]:
        """What one subscription holds, or all of them, as of the last batch, best first.

        Returns
        -------
        list of dict
            `subscription_id`, `rank`, `message_id`, `seq`, `score`, `text_score` (None but for skylines), `text`,
            `lon`, `lat`, `words` found and `distance_km` (None for a region). Those that only match hold nothing.

        Raises
        ------
        InputError
            If nobody is subscribed under this id.
        """
        if subscription_id is not None:
            self._known(subscription_id)
        results: ResultBatch = self._alone.results()
        texts = results.text_score if results.text_score is not None else np.full(len(results), np.nan)
        columns = (results.number, results.rank, results.seq, results.score, texts)
        found, terms = [], {}
        for number, rank, seq, score, text in sorted(zip(*(column.tolist() for column in columns), strict=True)):
            owner = self._owners.get(number)
            if owner is not None and subscription_id in (None, owner.subscription_id):
                parsed = self._said[seq].parsed
                if seq not in terms:
                    terms[seq] = frozenset(vector_of(parsed, self.vocabulary).terms.tolist())
                row = {"subscription_id": owner.subscription_id, "rank": rank, **self._of(seq), "score": score}
                row["text_score"] = None if np.isnan(text) else text
                row["words"] = [word for word in owner.words if self.vocabulary.id_of(word) in terms[seq]]
                row["distance_km"] = owner.kilometres(parsed.lon, parsed.lat)
                found.append(row)
        return found

    def explain(self, subscription_id: str, message: str) -> dict[str, Any]:
        """Why a message is, or is not, in a subscription's result as of the last batch, as `skyray explain` says it.

        Parameters
        ----------
        subscription_id : str
        message : str
            Its id, of several messages of one id the last; or `seq:N`.

        Returns
        -------
        dict
            As of `gateway.runs.explaining.explain`, but for `told`. `rank` counts messages that the engine still keeps.

        Raises
        ------
        InputError
            If nobody is subscribed under this id, or the message was never published, or has left the window and is in
            no result, so that the engine may have given it up.

        Notes
        -----
        50 us a message that is kept.
        """
        known, seq = self._known(subscription_id), self._seq_of(message)
        owner, kind = self._owners[known.number], self.kinds[known.parsed.kind]
        subscription = next(subscriptions_of(build_table([known.parsed], [known.number], [owner.at])))
        last_seq, floor = self._boundary.last_seq, self._boundary.floor
        there = [self._message(each) for each in self._said]
        decay = self._decay_model(subscription)
        scene = Scene(there, last_seq, floor, None, self._ends, self.space.max_distance, decay)
        verdict = judge(scene, subscription, self._message(seq))
        if self._said[seq].parsed.ahead:
            verdict.held, verdict.reason = False, "ahead"
        said = {each: self._row(each) for each in (seq, *(rival.seq for rival in verdict.rivals[:RIVALS]))}
        return answer_of(verdict, scene, kind, self.vocabulary, owner, seq, said)

    @property
    def subscriptions(self) -> Sequence[str]:
        """Ids of all who are subscribed."""
        return list(self._subscribed)

    def _known(self, subscription_id: str) -> _Subscribed:
        known = self._subscribed.get(subscription_id)
        if known is None:
            raise InputError("unknown_subscription", f"subscription {subscription_id!r}: nobody is subscribed under it")
        return known

    def _end(self, name: str) -> None:
        gone = self._subscribed.pop(name)
        self._removed.append((gone.number, gone.parsed.kind, self._boundary.last_seq + 1))

    def _seq_of(self, message: str) -> int:
        name = str(message)
        for seq in reversed(self._said):
            if self._said[seq].parsed.message_id == name:
                return seq
        number = name.removeprefix("seq:")
        if name.startswith("seq:") and number.isdecimal() and int(number) in self._said:
            return int(number)
        raise InputError(
            "unknown_message",
            f"message {name}: was not published, or has left the window and is in no result; `seq:N` names one by its "
            f"number, up to {self._boundary.last_seq:,}",
        )

    def _note_version(self, seq: int, parsed: ParsedMessage) -> None:
        earlier = self._current.get(parsed.object_id)
        if earlier is not None:
            self._ends.setdefault(earlier, seq)
        if parsed.op == 1:
            self._ends[seq] = seq
        self._current[parsed.object_id] = seq

    def _message(self, seq: int) -> Message:
        """A message as the oracle has it."""
        parsed = self._said[seq].parsed
        batch = message_batch([parsed], [vector_of(parsed, self.vocabulary)], seq, self.space, self.window)
        extras = Extras(batch.event_time_us.tolist(), batch.counts.tolist(), [parsed.object_id], [parsed.op])
        return next(messages_of(batch, extras))

    def _row(self, seq: int) -> Row:
        parsed = self._said[seq].parsed
        time_us = parsed.event_time_us
        moment = None if time_us is None else _EPOCH + timedelta(microseconds=time_us)
        return Row(parsed.message_id, parsed.lon, parsed.lat, moment, parsed.text, frozenset(), parsed.ahead)

    def _decay_model(self, subscription: Subscription) -> DecayModel:
        counts = {term: int(self.vocabulary.collection_count[term]) for term in subscription.weights}
        fading = self.fading
        return DecayModel(
            fading.log_base_per_s, fading.smoothing, counts, self.vocabulary.total_tokens, fading.epoch_us
        )

    def _vector(self, parsed: ParsedMessage) -> TermVector:
        vector = vector_of(parsed, self.vocabulary)
        self.unknown_words += vector.unknown
        return vector

    def _tell(self, updates: UpdateBatch) -> list[dict[str, Any]]:
        """What `_match` gave, as `publish` tells it; to be called once, before the next batch.

        Of each subscription leaves come before enters, and who is replaced before who takes his place.
        """
        updates = take_rows(updates, np.lexsort((updates.change == ENTER, updates.number)))
        columns = (updates.as_of, updates.number, updates.seq, updates.change, updates.score)
        told = []
        for as_of, number, seq, change, score in zip(*(column.tolist() for column in columns), strict=True):
            name = self._owners[number].subscription_id
            row = {"change": CHANGES[change], "subscription_id": name, "as_of": as_of}
            told.append({**row, **self._of(seq), "score": None if np.isnan(score) else score})
        for number in self._gone.tolist():
            self._owners.pop(number, None)
        self._sweep()
        return told

    def _of(self, seq: int) -> dict[str, Any]:
        parsed = self._said[seq].parsed
        return {"message_id": parsed.message_id, "seq": seq, "text": parsed.text, "lon": parsed.lon, "lat": parsed.lat}

    def _sweep(self) -> None:
        """Give up messages that have left the window and are in no result."""
        if len(self._said) < self._sweep_at:
            return
        held = set(self._alone.results().seq.tolist())
        floor = self._boundary.floor
        self._said = {seq: said for seq, said in self._said.items() if said.life > floor or seq in held}
        self._current = {name: seq for name, seq in self._current.items() if seq in self._said}
        self._ends = {seq: by for seq, by in self._ends.items() if seq in self._said}
        self._sweep_at = max(_KEPT, 2 * len(self._said))


def _short(value: Any) -> str:
    """A value that does not fit, for an error."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
