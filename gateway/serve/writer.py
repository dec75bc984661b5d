"""Requests become lines of the write-ahead log: many requests in one batch, with one fsync.

A thread takes some rows of one caller, then some of the next, and so on, the rows of a request in their order. It
checks each row as `skyray live` checks a line, and closes a batch when it is full, or when its first row has waited for
the linger time and the topology has room. Outcomes are reported once the batch is durable.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gateway.live.admission import Admission, Checked, RefusedLine, whole_row
from gateway.live.batching import Batching
from gateway.live.in_flight import InFlight
from gateway.live.mapping import ColumnMapping
from gateway.live.open_batch import InputLine
from gateway.live.reading import MANY, ReadLines
from gateway.live.write_ahead_log import WriteAheadLog
from gateway.serve.etags import Conditions
from gateway.serve.fair import FairQueue, Room
from gateway.serve.keys import MOST_OWNER
from gateway.serve.recent_ids import REMEMBERED, RecentIds, is_same
from gateway.serve.registry import OWNER, Registry, etag_of, owner_of
from matching.attributes import TYPES, DeclaredAttribute
from matching.decoding import is_deep
from matching.errors import DeliveryError
from matching.fields import Fault, identifier, shown
from matching.reasons import MAX_LINE_BYTES
from matching.runs import runs
from matching.subscription_rows import CheckedRows, PlainRows
from matching.subscription_words import read_as
from matching.validate import ParsedMessage
from spouts.log import Origin
from topology.core.wakeup import Wakeup
from topology.preparing import Preparing
from topology.warmup import WORDS

#: Rows, and their bytes, that may wait, of one caller half (`Room`); beyond it requests are answered with 429.
MOST_WAITING, MOST_WAITING_BYTES = 40_000, 64 * 2**20
#: Rows of a request at most; a quarter of those that may wait, so that one finds room beside others.
MOST_ROWS = 10_000
#: Rows that a caller's turn takes, before the next caller has one.
TURN_ROWS = 500
#: Rows, refused ones among them, behind which a smaller batch is closed: what it has does not wait for more of them.
_MOST_TAKEN = 5_000
#: Seconds that the thread sleeps at most while nothing comes, and while it waits for the topology.
_LOOK_S, _AGAIN_S = 0.2, 0.02
#: The column of a subscription's id.
_ID = "subscription_id"
_NO_CONDITIONS = Conditions()

Outcome = dict[str, Any]


class PublishedRow(NamedTuple):
    """A row of messages: one line of JSON, and where a source has it."""

    data: bytes
    origin: Origin | None = None


class Subscribe(NamedTuple):
    """A subscription to register.

    columns : dict
    replace : bool    one of the same id and other columns is replaced; else it is refused
    conditions : Conditions    what is asked of the entity tag of the one that is there
    owner : str or None    whose subscriptions may be changed; None: those of all
    made : bool    its id was made by the server: a refusal does not name it
    """

    columns: dict[str, Any]
    replace: bool = False
    conditions: Conditions = _NO_CONDITIONS
    owner: str | None = None
    made: bool = False


class Unsubscribe(NamedTuple):
    """A subscription to end; `conditions` and `owner` as in `Subscribe`."""

    subscription_id: str
    conditions: Conditions = _NO_CONDITIONS
    owner: str | None = None


class Declare(NamedTuple):
    """An attribute to declare."""

    attribute: DeclaredAttribute


Row = PublishedRow | Subscribe | Unsubscribe | Declare


class _Request(NamedTuple):
    """Rows that are reported together; `outcomes` are those of the rows that were taken."""

    caller: str
    rows: Sequence[Row]
    size_bytes: int
    came_s: float
    report: Callable[[list[Outcome]], None]
    outcomes: list[Outcome]


class _Parked(NamedTuple):
    """A request that waits for the kernels of kinds."""

    request: _Request
    kinds: frozenset[str]


class LogWriter:
    """Takes requests from any thread, and logs their rows.

    Parameters
    ----------
    registry : Registry
        What the admission tells of changes.
    in_flight, batch, linger_s, mapping
        As of `gateway.live.batching.Batching`.
    now : callable
        Seconds since 1970, when subscriptions expire.
    remembered : int
        Messages with an id that are remembered at least.
    most_owned : int
        Active subscriptions of an owner at most; 0 for any number.
    preparing : Preparing, optional
        Prepares the kernels of kinds: a request with the first subscription of a kind waits for them, and the others
        do not wait for it.

    Attributes
    ----------
    lines : int
        Rows that were taken.
    refused : Counter
        Rows, by reason.
    last_refused : dict of str to str
        What was wrong with the last one, by reason.
    failure : Exception or None
        The error that ended the thread.
    started, ended : bool
        Whether `begin` was called, and whether the thread has returned.
    duplicates : int
        Messages that had been sent before.
    expired : int
        Subscriptions that were ended because their time was over.
    stopped : callable
        Whether the topology has ended, so that no room for a batch will come.
    """

    def __init__(
        self,
        admission: Admission,
        registry: Registry,
        wal: WriteAheadLog,
        in_flight: InFlight,
        batch: int = 5_000,
        linger_s: float = 0.005,
        mapping: ColumnMapping | None = None,
        now: Callable[[], float] = time.time,
        remembered: int = REMEMBERED,
        most_owned: int = 0,
        preparing: Preparing | None = None,
    ):
        self.lines = self.duplicates = self.expired = 0
        self.refused: Counter[str] = Counter()
        self.last_refused: dict[str, str] = {}
        self.failure: BaseException | None = None
        self.started = self.ended = False
        self.stopped: Callable[[], bool] = lambda: False
        self._admission = admission
        self._registry = registry
        self._wal = wal
        self._in_flight = in_flight
        self._batch = batch
        self.batching = Batching(admission, wal, in_flight, batch, linger_s, mapping)
        self._now = now
        self._most_owned = most_owned
        self._kernels = preparing
        self._recent = RecentIds(remembered)
        self._recent.recover(wal.blocks_from(max(0, wal.next_seq - remembered)))
        self._line = wal.line
        self._requests: FairQueue[_Request] = FairQueue()
        self._parked: list[_Parked] = []
        self._room, self._parked_room = (Room(MOST_WAITING, MOST_WAITING_BYTES) for _ in range(2))
        self._lock, self._wakeup = threading.Lock(), Wakeup()
        self._processed: list[_Request] = []
        self._taken = 0  # rows since the last batch
        self._current: _Request | None = None  # some of its rows are being taken
        self._closing = False
        in_flight.on_idle = self._wake
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def seq_of(self, message_id: str) -> int | None:
        """The seq of a message by the id that its producer gave, if it is remembered, and kept."""
        seq = self._recent.get(message_id)
        return None if seq is None or seq < self._wal.first_seq else seq

    @property
    def waiting(self) -> int:
        """Rows that wait."""
        return self._room.used[0] + self._parked_room.used[0]

    @property
    def parks(self) -> bool:
        """Whether a request waits for the kernels of kinds; later ones then overtake it."""
        with self._lock:
            return bool(self._parked)

    @property
    def preparing(self) -> list[str]:
        """Kinds whose kernels are being prepared."""
        return [] if self._kernels is None else self._kernels.preparing

    def submit(
        self, rows: Sequence[Row], size_bytes: int, report: Callable[[list[Outcome]], None], caller: str = ""
    ) -> bool:
        """Hand over rows; False if too many wait, of this caller or of all, or the writer has ended.

        Parameters
        ----------
        size_bytes : int
            Of their data.
        report : callable
            Takes an outcome for each row, in the writer's thread, once all are durable: a dict of `status` (accepted,
            duplicate, created, replaced, unchanged, deleted, refused, failed), `reason`, `detail`, `column` and
            `value` of a refusal, `id`, `seq` and `warnings` of a message, `subscription_id`, `etag` and `from_seq` of
            a subscription, or `name`, `type` and `from_seq` of an attribute.
        caller : str
            Whose rows they are: callers take turns, and share what may wait. "" for the server's own.
        """
        unprepared = self._unprepared(rows)
        request = _Request(caller, rows, size_bytes, time.monotonic(), report, [])
        with self._lock:
            room = self._parked_room if unprepared else self._room
            if self._closing or self.failure is not None or not room.has(caller, len(rows), size_bytes):
                return False
            if unprepared:
                room.take(caller, len(rows), size_bytes)
                self._parked.append(_Parked(request, unprepared))
            else:
                self._put(request)
                self._wakeup.set()
        return True

    def begin(self) -> None:
        """Start the thread."""
        self.started = True
        self._thread.start()

    def finish(self) -> None:
        """Accept no more requests; `ended` is set once those that wait are durable."""
        with self._lock:
            self._closing = True
        self._wakeup.set()

    def _run(self) -> None:
        try:
            if self._kernels is not None:
                self._kernels.wait([WORDS], self.stopped)
            while not (self._closing and not self._requests):
                self._advance()
            while self.batching.open:
                self._commit(_LOOK_S)
            self._give_up_parked("the server ended before the kernels of its kind were there; send it again")
        except BaseException as error:
            self.failure = error  # the driver raises it
            with self._lock:
                left = [*self._requests, *(one.request for one in self._parked), *self._processed]
                self._requests, self._parked = FairQueue(), []
            left += [self._current] if self._current else []
            for request in left:
                request.report(
                    [{"status": "failed", "reason": "not_durable", "detail": str(error)}] * len(request.rows)
                )
        self.ended = True

    def _advance(self) -> None:
        """Take a request, or close the batch that is due."""
        if not self.batching.open:  # else it was done before the first row of the batch
            self._expire()
        self._unpark()
        left_s = self._left_s()
        full = self.batching.full or self._taken >= max(self._batch, _MOST_TAKEN)
        if self.batching.open and (full or (left_s <= 0.0 and not self._requests)):
            self._commit(_LOOK_S if full else _AGAIN_S)
            return
        if not self.batching.open and not self._requests:
            self.batching.pass_time(time.monotonic())
        if not self._requests and not self._closing:
            self._wakeup.wait(min(max(0.0, left_s), _LOOK_S))
        with self._lock:
            if not self._requests:
                return
            self._current = self._requests.take()
        self._process(self._current)

    def _put(self, request: _Request) -> None:
        self._requests.put(request.caller, request)
        self._room.take(request.caller, len(request.rows), request.size_bytes)

    def _left_s(self) -> float:
        """Nothing to wait for while the topology is idle: rows that come while it matches these are the next batch."""
        return 0.0 if self.batching.open and self._in_flight.idle else self.batching.left_s(_LOOK_S)

    def _wake(self) -> None:
        """The topology is idle: an open batch does not linger; for any thread."""
        if self.batching.open:
            self._wakeup.set()

    def _unprepared(self, rows: Sequence[Row]) -> frozenset[str]:
        """The kinds of rows whose kernels are not there; they are prepared from now on."""
        if self._kernels is None:
            return frozenset()
        kinds = [row.columns.get("kind") for row in rows if isinstance(row, Subscribe)]
        if not kinds:
            return frozenset()
        named = {kind for kind in kinds if isinstance(kind, str)}  # what is no text is refused later
        return frozenset(kind for kind in named if not self._kernels.is_ready(kind))

    def _unpark(self) -> None:
        """Requests whose kinds are ready now come next, in the order in which they came."""
        if not self._parked or self._kernels is None:
            return
        with self._lock:
            parked, self._parked = self._parked, []
            for one in parked:
                if not all(self._kernels.is_ready(kind) for kind in one.kinds):
                    self._parked.append(one)
                    continue
                request = one.request._replace(came_s=time.monotonic())
                self._parked_room.give_back(request.caller, len(request.rows), request.size_bytes)
                self._put(request)

    def _give_up_parked(self, why: str) -> None:
        with self._lock:
            parked, self._parked = self._parked, []
        for one in parked:
            one.request.report([{"status": "failed", "reason": "not_durable", "detail": why}] * len(one.request.rows))

    def _process(self, request: _Request) -> None:
        """Take some rows of a request; the rest has its turn after the other requests of its caller.

        The server's own requests come one after the other: the positions of a source go forward alone.
        """
        first = len(request.outcomes)
        rows = self._written_out(request.rows[first : first + TURN_ROWS])
        is_last = first + len(rows) == len(request.rows)
        with self._lock:
            self._room.give_back(request.caller, len(rows), request.size_bytes if is_last else 0)
        messages = [row for row in rows if isinstance(row, PublishedRow)]
        if len(messages) == len(rows) >= MANY and not self.batching.table_is_full:
            found = self.batching.reader.read([row.data for row in messages])
            for start, stop, place in runs(found.rows, len(rows)):
                if place < 0:
                    self._take_one(rows[start], request)
                else:
                    self._take_messages(found.part(place, place + stop - start), messages[start:stop], request)
        elif len(messages) == len(rows):
            for row in rows:
                self._take_one(row, request)
        else:
            checked = self._checked(rows)
            for start, stop, place in runs(checked.plain.rows, len(rows)):
                if place < 0:
                    self._take_one(rows[start], request, checked.others.get(start))
                else:
                    self._take_plain(rows[start:stop], checked.plain.part(place, place + stop - start), request)
        self._current = None
        if not is_last:
            with self._lock:
                self._requests.put(request.caller, request, first=not request.caller)
        elif self.batching.open:
            self._processed.append(request)
        else:
            self._taken = 0
            self._wal.keep_positions()
            request.report(request.outcomes)

    def _take_one(self, row: Row, request: _Request, checked: Checked | None = None) -> None:
        while self.batching.full:
            self._commit(_LOOK_S)
        self._line += 1
        self.lines += 1
        outcome = self._take_row(row, request.came_s, checked)
        if outcome["status"] == "refused":
            self.refused[outcome["reason"]] += 1
            self.last_refused[outcome["reason"]] = outcome["detail"]
        request.outcomes.append(outcome)
        self._taken += 1

    def _take_plain(self, rows: Sequence[Row], plain: PlainRows, request: _Request) -> None:
        """Take subscriptions that were checked together: those of new ids at once, any other by itself."""
        first, last = 0, self._registry.last
        while first < len(rows):
            while self.batching.full:
                self._commit(_LOOK_S)
            room, left_bytes = self.batching.room
            new: dict[str, tuple[dict[str, Any], bytes]] = {}  # columns, and as they are logged, by id
            for row, name in zip(rows[first : first + room], plain.names[first : first + room], strict=True):
                assert isinstance(row, Subscribe), "it was checked"
                columns = row.columns
                if name in new or name in last or row.conditions is not _NO_CONDITIONS:
                    break
                if (row.owner is not None or OWNER in columns) and (self._most_owned or self._ownership(name, row)):
                    break
                data = msgspec.json.encode({"subscribe": columns})
                if left_bytes <= 0 or len(data) > MAX_LINE_BYTES or is_deep(data):
                    break
                new[name] = columns, data
                left_bytes -= len(data)
            stop = first + max(len(new), 1)
            if not (new and self._take_new(new, plain.part(first, stop), request)):
                for row in rows[first:stop]:
                    self._take_one(row, request)
            first = stop

    def _take_new(self, new: Mapping[str, tuple[dict[str, Any], bytes]], plain: PlainRows, request: _Request) -> bool:
        """Take subscriptions together; False, and none is taken, if one of them must be checked by itself."""
        seq = self._admission.next_seq = self.batching.next_seq
        columns, lines = zip(*new.values(), strict=True)
        if not self._admission.subscribe_new(columns, plain, lines):
            return False
        request.outcomes.extend(
            {"status": "created", "subscription_id": name, "etag": etag_of(columns), "from_seq": seq}
            for name, (columns, _) in new.items()
        )
        self._line += len(new)
        self.lines += len(new)
        self._taken += len(new)
        self.batching.open.subscribe(lines, plain, request.came_s, self._line)
        return True

    def _take_messages(self, found: ReadLines, rows: Sequence[PublishedRow], request: _Request) -> None:
        """Take messages that the reader is sure of; one whose id was sent before is judged by itself."""
        made, first, place = set(found.made), 0, 0
        while first < len(rows):
            while self.batching.full:
                self._commit(_LOOK_S)
            room, left_bytes = self.batching.room
            last = min(len(rows), first + room)
            data = [row.data for row in rows[first:last]]
            seq, place, is_known = self.batching.next_seq, first, False
            if not made and sum(map(len, data)) <= left_bytes and self._recent.put_new(found.ids[first:last], seq):
                place = last
            while place < last and left_bytes > 0:
                name = found.ids[place]
                if place not in made:
                    if is_known := self.seq_of(name) is not None:
                        break
                    self._recent.put(name, seq + place - first)
                left_bytes -= len(rows[place].data)
                place += 1
            if place > first:
                taken, count = found.part(first, place), place - first
                request.outcomes.extend(
                    [{"status": "accepted", "id": name, "seq": number} for number, name in enumerate(taken.ids, seq)]
                )
                for row in rows[first:place]:
                    if row.origin is not None:
                        self._wal.reached(row.origin)
                self._line += count
                self.lines += count
                self._taken += count
                self.batching.extend(taken, data[:count], [request.came_s] * count, self._line)
            if is_known:
                self._take_one(rows[place], request)
                place += 1
            first = place

    def _commit(self, patience_s: float) -> None:
        """Close the batch if the topology has room, and report what is durable then. Changes alone need no room."""
        if len(self.batching.open.messages) and not self._in_flight.await_capacity(patience_s):
            if self.stopped():
                raise DeliveryError("the topology has ended before what was sent was logged; start the server again")
            return
        self.batching.close()
        self._taken = 0
        processed, self._processed = self._processed, []
        for request in processed:
            request.report(request.outcomes)

    def _expire(self) -> None:
        for name in self._registry.expired(round(self._now() * 1e6)):
            self._change({"unsubscribe": name}, time.monotonic())
            self.expired += 1
        self.batching.end_expired()

    def _written_out(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows; subscriptions with their synonyms written out."""
        written = self._admission.written_out
        if not self._admission.has_synonyms:
            return rows
        return [row._replace(columns=dict(written(row.columns))) if isinstance(row, Subscribe) else row for row in rows]

    def _checked(self, rows: Sequence[Row]) -> CheckedRows:
        """The subscriptions among rows, as far as they are by themselves; not of those that are there already."""
        at = [place for place, row in enumerate(rows) if isinstance(row, Subscribe) and self._is_new(row)]
        columns = [row.columns for row in map(rows.__getitem__, at) if isinstance(row, Subscribe)]
        return self._admission.rows.check(columns).placed(at)

    def _is_new(self, row: Subscribe) -> bool:
        name = row.columns.get("subscription_id")
        return row.replace or not isinstance(name, str) or name not in self._registry

    def _take_row(self, row: Row, came_s: float, checked: Checked | None = None) -> Outcome:
        if isinstance(row, PublishedRow):
            if row.origin is not None:
                self._wal.reached(row.origin)
            return self._take_message(row.data, came_s)
        if isinstance(row, Subscribe):
            outcome = self._subscribe(row, came_s, checked)
            if row.made and outcome["status"] == "refused":
                name = shown(outcome.pop("subscription_id", ""))
                outcome["detail"] = outcome["detail"].replace(f"subscription {name}", "the subscription", 1)
            return outcome
        return self._declare(row.attribute, came_s) if isinstance(row, Declare) else self._unsubscribe(row, came_s)

    def _take_message(self, data: bytes, came_s: float) -> Outcome:
        renamed = self.batching.mapping.rename(data)
        if isinstance(renamed, RefusedLine):
            return _outcome_of(renamed, data)
        row = {} if isinstance(renamed.row, str) else renamed.row
        if "subscribe" in row or "unsubscribe" in row:
            what = "subscriptions are changed by /v1/subscriptions"
            return refused("not_a_message", what, Fault(next(iter(row)), next(iter(row.values()))))
        name = identifier(row.get("id")) or None
        if self._admission.objects and identifier(row.get("object_id")) in ("", name):
            name = None  # the id is that of the object, and this a version of it
        earlier = None if name is None else self.seq_of(name)
        if name is not None and earlier is not None:
            return self._again(name, earlier, row)
        found = self.batching.admit(InputLine(self._line, data, came_s), renamed)
        if isinstance(found, RefusedLine):
            return _outcome_of(found, data)
        seq = self.batching.next_seq - 1
        if name is not None:
            self._recent.put(name, seq)
        outcome = {"status": "accepted", "id": self.batching.open.messages.ids[-1], "seq": seq}
        misfits = found.misfits if isinstance(found, ParsedMessage) else ()
        return outcome | {"warnings": [one.named for one in misfits]} if misfits else outcome

    def _again(self, name: str, seq: int, row: Mapping[str, Any]) -> Outcome:
        """A message whose id was sent before: the same one, or another."""
        schema = self._admission.vocabulary.attributes
        first = self._wal.next_seq
        earlier = self.batching.open.messages.message(seq - first) if seq >= first else self._wal.message(seq)
        now = self._admission.parsed(row)
        if isinstance(now, ParsedMessage) and is_same(now, earlier, schema.begun):
            self.duplicates += 1
            return {"status": "duplicate", "id": name, "seq": seq}
        return refused(
            "duplicate_id",
            f"message {seq:,} has the id {name!r} and other content; a new version of an object has an id of its own, "
            "and the same object_id",
            Fault("id", row.get("id")),
        )

    def _subscribe(self, row: Subscribe, came_s: float, checked: Checked | None) -> Outcome:
        name = identifier(row.columns.get("subscription_id")) or ""
        before = self._registry.get(name)
        if refusal := self._ownership(name, row):
            return refusal | {"subscription_id": name}
        if refusal := precondition(name, before and before.etag, row.conditions):
            return refusal
        etag = etag_of(row.columns)
        if before is not None:
            if before.etag == etag:
                return {"status": "unchanged", "subscription_id": name, "etag": etag}
            if not row.replace:
                return refused(
                    "subscription_exists",
                    f"subscription {name!r} exists with other columns: PUT /v1/subscriptions/ID replaces it",
                    Fault(_ID, name),
                ) | {"subscription_id": name}
        outcome = self._change({"subscribe": row.columns}, came_s, checked)
        if outcome is not None:
            return outcome | {"subscription_id": name}
        status = "created" if before is None else "replaced"
        return {
            "status": status,
            "subscription_id": name,
            "etag": etag,
            "from_seq": self.batching.next_seq,
            **read_as(row.columns, self._admission.vocabulary),
        }

    def _unsubscribe(self, row: Unsubscribe, came_s: float) -> Outcome:
        name = row.subscription_id
        before = self._registry.get(name)
        if row.owner is not None and self._registry.owner_of(name) != row.owner:
            what = f"subscription {name!r}: is not active"
            return refused("unknown_subscription", what, Fault(_ID, name)) | {"subscription_id": name}
        if refusal := precondition(name, before and before.etag, row.conditions):
            return refusal
        outcome = self._change({"unsubscribe": name}, came_s)
        if outcome is not None:
            return outcome | {"subscription_id": name}
        return {"status": "deleted", "subscription_id": name, "from_seq": self.batching.next_seq}

    def _declare(self, attribute: DeclaredAttribute, came_s: float) -> Outcome:
        """Declare an attribute from the next message on; the batch may have nothing else."""
        schema, named = self._admission.vocabulary.attributes, {"name": attribute.name, "type": TYPES[attribute.type]}
        number = schema.number_of(attribute.name)
        if number is not None:
            there = schema.attributes[number]
            if there == attribute:
                return {"status": "unchanged", **named}
            what = f"attribute {there.name} is declared as {there}, which cannot change: declare another name"
            return refused("attribute_exists", what, Fault("type", named["type"]))
        refusal = self._admission.declare([str(attribute)])
        if refusal is not None:
            return refused("too_many_attributes", refusal.detail, Fault("name", attribute.name))
        self.batching.follow_schema()
        self.batching.open.note(self._line, came_s)
        return {"status": "created", **named, "from_seq": self.batching.next_seq}

    def _ownership(self, name: str, row: Subscribe) -> Outcome | None:
        """Write the owner into the columns of a subscription; returns a refusal if it may not be theirs."""
        columns, earlier = row.columns, self._registry.owner_of(name)
        if row.owner is None and not earlier and OWNER not in columns:
            return None  # nobody's, as before
        named = columns.get(OWNER)
        if named is not None and not (isinstance(named, str) and 0 < len(named) <= MOST_OWNER):
            return refused("bad_owner", f"{OWNER} must be a name of 1 to {MOST_OWNER} characters", Fault(OWNER, named))
        owner = row.owner if row.owner is not None else owner_of(columns) or earlier
        if owner_of(columns) not in ("", owner):
            what = f"this key makes subscriptions of {owner!r} alone: leave {OWNER} out"
            return refused("bad_owner", what, Fault(OWNER, named))
        if name in self._registry.last and earlier != owner:
            return refused("subscription_exists", f"the id {name!r} is not free: choose another", Fault(_ID, name))
        if owner:
            columns[OWNER] = owner
            full = self._most_owned and self._registry.owned[owner] >= self._most_owned
            if full and name not in self._registry:
                what = f"{owner!r} has {self._most_owned:,}, and no more may be"
                return refused("too_many_subscriptions", what, Fault(OWNER, owner))
        return None

    def _change(self, change: dict[str, Any], came_s: float, checked: Checked | None = None) -> Outcome | None:
        """Put a change of subscriptions into the open batch; returns its refusal, if any."""
        self._admission.next_seq = self.batching.next_seq
        data = msgspec.json.encode(change)
        reason = "line_too_long" if len(data) > MAX_LINE_BYTES else "too_deep" if is_deep(data) else None
        found = self._admission.row(reason) if reason else self._admission.change(change, checked, data)
        if isinstance(found, RefusedLine):
            return _outcome_of(found, data)
        self.batching.follow_schema()
        self.batching.open.append(InputLine(self._line, data, came_s), found)
        return None


def refused(reason: str, detail: str, fault: Fault) -> Outcome:
    """The outcome of a refused row."""
    return {"status": "refused", "reason": reason, "detail": detail, **fault.named}


def _outcome_of(one: RefusedLine, data: bytes) -> Outcome:
    return refused(one.reason, one.what, one.fault or whole_row(data))


def precondition(name: str, there: str | None, conditions: Conditions) -> Outcome | None:
    """The refusal of a change whose subscription does not meet its conditions."""
    if conditions.hold(there):
        return None
    what = "is not active" if there is None else f"has the entity tag {there}"
    detail = f"subscription {name!r} {what}: read it again"
    return refused("precondition_failed", detail, Fault(_ID, name)) | {"subscription_id": name}
