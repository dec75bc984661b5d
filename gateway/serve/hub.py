"""The hub: gives released updates to the clients that follow; each client has a bounded queue.

The hub encodes an update once for all clients. Everything runs in the event loop, except `Hub.deliver`, which another
thread calls, and texts that are not in memory. A client first gets the updates it has missed from
`gateway.serve.update_log`, at its own pace, and then joins the live stream. One for whose updates its queue has no room
goes back to the history: a burst waits there, and not in a queue. Only a client that does not read for some seconds
what it was sent is slow: it gets a `gap` event, and its stream ends; it reads the rest when it connects again. Neither
the topology nor other clients wait for a client.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gateway.serve.event_forms import Form
from gateway.serve.gaps import lost_events, unknown_position
from gateway.serve.loop_calls import LoopCalls
from gateway.serve.regions import contains
from gateway.serve.registry import Registry
from gateway.serve.released import RANKS, Released, UpdateRows, tagged
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import BEGINNING, PIECE, Foreign, PartDamaged, PartsMissing, Position
from topology.core.executors.logs import driver_log

#: Seconds without an event after which a client gets a heartbeat.
HEARTBEAT_S = 5.0
#: Most bytes in the queue of a client, and in those of all together.
QUEUE_BYTES, QUEUES_BYTES = 2**20, 64 * 2**20
#: Updates of a release that are put into queues at most; of more all clients read in the history.
MOST_PUT = 50_000
#: Bytes that are read for a client at a time, about, and that it is sent at a time.
READ_BYTES, SENT_BYTES = 2**18, 2**16
#: Seconds in which a client has to read what was sent, if more waits.
SLOW_S = 15.0
#: Bytes after which the answer to a poll ends.
POLL_BYTES = 8 * 2**20
#: Seconds between two checks for new parts while more updates are in memory than the limit.
_TRIM_S = 2.0


class Interest(NamedTuple):
    """Filter of a client: it gets the updates that satisfy every field that is not None.

    subscriptions, kinds : frozenset of str
    owner : str    owner of the subscriptions
    region : tuple    west, south, east, north of the messages' places, closed; west above east crosses 180 degrees
    """

    subscriptions: frozenset[str] | None = None
    kinds: frozenset[str] | None = None
    owner: str | None = None
    region: tuple[float, float, float, float] | None = None

    def has_place(self, lon: float, lat: float) -> bool:
        """Whether the region, if any, has this place."""
        return self.region is None or contains(self.region, lon, lat)


Snapshot = Callable[[Position], AsyncIterator[dict[str, Any]]]
Write = Callable[[bytes], bool]
Reading = AbstractAsyncContextManager[Any]
_AT_ONCE: Reading = nullcontext()


class _Queue:
    """The bounded queue of one client, who waits for chunks in `wait`: by a future, without a task, and one timer.

    `behind`: it takes part in the live stream no more, since there was no room; what it lacks is in the history.
    `is_valid` and `write`: as of `Hub.follow`.
    """

    __slots__ = (
        "_came", "_loop", "_timer", "_until_s", "_waiter",
        "after", "behind", "chunks", "form", "interest", "is_valid", "size_bytes", "updates", "write",
    )  # fmt: skip

    def __init__(self, form: Form, interest: Interest, is_valid: Callable[[], bool], write: Write):
        self.form = form
        self.interest = interest
        self.is_valid = is_valid
        self.write = write
        self.after = BEGINNING  # updates up to here it has already
        self.chunks: deque[bytes] = deque()
        self.size_bytes = self.updates = 0
        self.behind = False
        self._loop = asyncio.get_running_loop()
        self._came = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until_s = 0.0

    def put(self, chunk: bytes, updates: int) -> None:
        self.chunks.append(chunk)
        self.size_bytes += len(chunk)
        self.updates += updates

    def fall_behind(self) -> None:
        """Drop what was put since the last `take`."""
        self.take()
        self.behind = True
        self.wake()

    def take(self) -> bytes:
        data = b"".join(self.chunks)
        self.chunks.clear()
        self.size_bytes = self.updates = 0
        self._came = False
        return data

    def wake(self) -> None:
        """End the wait of the client, or its next one."""
        self._came = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def waits(self) -> bool:
        """Whether the client has been sent everything, and is in `wait`."""
        return self._waiter is not None and not self._waiter.done()

    def postpone(self, until_s: float) -> None:
        """A wait under way lasts until then, by the clock of the event loop."""
        self._until_s = until_s

    async def wait(self, seconds: float) -> None:
        """Wait until the next `wake`, if there was none since `take`, or until `seconds` have passed."""
        if self._came:
            return
        self._until_s = self._loop.time() + seconds
        self._waiter = self._loop.create_future()
        if self._timer is None:
            self._timer = self._loop.call_at(self._until_s, self._look)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Callback of the timer: end a wait whose time is over, else set the timer again."""
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() >= self._until_s:
            self._waiter.set_result(None)
        else:
            self._timer = self._loop.call_at(self._until_s, self._look)


class Hub:
    """The clients that follow a stream, and the indexes by which an update finds them.

    Parameters
    ----------
    registry : Registry
        Of which kind a subscription is.
    logged : callable
        Seq of the next message of the log.
    tag_of : callable
        Tag of the log up to a boundary (`WriteAheadLog.tag_of`), for the ids of events.
    has_texts : callable
        Whether the texts of these messages, by seq, are in memory.

    Attributes
    ----------
    sent, gaps : int
        Updates that clients got, each counted for each client, and `gap` events for clients that were too slow.
    queued_bytes : int
        In the queues of all clients.
    ended : int
        Streams that have ended.
    on_release : callable
        Called when boundaries are released.
    calls : LoopCalls
        Into the event loop of the clients.
    """

    def __init__(
        self,
        log: UpdateLog,
        registry: Registry,
        logged: Callable[[], int],
        tag_of: Callable[[int], str] = lambda boundary: "",
        has_texts: Callable[[Collection[int]], bool] = lambda seqs: True,
    ):
        self.log = log
        self._head: Position | None = None  # as far as clients that take part have it; None: as far as the log
        self.queued_bytes = 0
        self._logged = logged
        self._tag_of = tag_of
        self._has_texts = has_texts
        self.sent = self.gaps = self.ended = 0
        self._registry = registry
        self._everything: set[_Queue] = set()  # without a filter by subscription
        self._by_subscription: dict[str, set[_Queue]] = {}
        self._by_owner: dict[str, set[_Queue]] = {}
        self._queues: set[_Queue] = set()
        self._polls: set[asyncio.Event] = set()
        self._awaited: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = 0
        self._closing = False
        self.on_release: Callable[[], None] = lambda: None
        self.calls = LoopCalls()
        self._trimming: asyncio.Task[None] | None = None

    @property
    def clients(self) -> int:
        """Clients that follow now."""
        return len(self._queues) + len(self._polls)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.calls.start(loop)

    @property
    def head(self) -> Position:
        """Behind the boundaries that are queued for the clients that take part."""
        return self.log.head if self._head is None else self._head

    def deliver(self, released: list[Released], through: int) -> None:
        """Put the next released boundaries into the log, and queue them for the clients; called by another thread."""
        if self._head is None:
            self._head = self.log.head
        self.log.append(released, through)
        self.calls.call(self._take, released, through, self.log.head)  # not at the end: clients read it from the parts

    def close(self) -> None:
        """End all streams, with a hint when to connect again."""
        self._closing = True
        for came in self._polls:
            came.set()
        for queue in self._queues:
            queue.wake()

    async def reached(self, seq: int) -> None:
        """Wait until all updates as of messages up to this seq are released."""
        if self.log.head.boundary < seq:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._number += 1
            heapq.heappush(self._awaited, (seq, self._number, future))
            await future

    async def follow(
        self,
        form: Form,
        interest: Interest,
        after: Position | None,
        is_valid: Callable[[], bool] = lambda: True,
        snapshot: Snapshot | None = None,
        reading: Reading = _AT_ONCE,
        write: Write = lambda data: False,
    ) -> AsyncIterator[bytes]:
        """Events of one client until the hub closes.

        Parameters
        ----------
        after : Position or None
            The client gets the updates after this position; None: those from now on.
        is_valid : callable
            Whether the client may still read; called before each event.
        snapshot : callable, optional
            Yields the `snapshot` events that come first, as of the position.
        reading : async context manager, optional
            Files are read within it: a turn among those who read.
        write : callable, optional
            Sends whole events at once, if there is room, and returns whether it did; called while the client waits for
            what is yielded next.

        Yields
        ------
        bytes
            Whole events.
        """
        queue, loop = _Queue(form, interest, is_valid, write), asyncio.get_running_loop()
        self._queues.add(queue)
        try:
            yield form.hint()
            queue.after = position = self.head if after is None else after
            if snapshot is not None:
                async for one in snapshot(position):
                    if not self._is_open(is_valid):
                        break
                    yield form.named("snapshot", one, None)
                else:
                    yield form.named("progress", {"through": position.boundary}, self._id(position))
            joined = late = False
            while self._is_open(is_valid):
                if joined and not queue.behind:
                    await queue.wait(HEARTBEAT_S)
                    if queue.behind or not self._is_open(is_valid):
                        continue
                    data = self._taken(queue)
                elif late and queue.after < self.log.head:
                    self.gaps += 1
                    yield form.named("gap", _SLOW, None)
                    return
                else:
                    joined, piece = False, await self._next(form, interest, queue.after, reading)
                    if piece is not None:
                        data, queue.after = piece
                    elif self._is_open(is_valid):
                        joined = True
                        self._join(queue)
                        data = self._progress(queue)
                    else:
                        break
                late = False
                for some in _pieces(data):
                    sent_s = loop.time()
                    yield some
                    late |= loop.time() - sent_s > SLOW_S
            if joined and is_valid() and not queue.behind:
                yield self._taken(queue)  # what was released just before the hub closed
            yield form.hint()
        finally:
            self.ended += 1
            self._queues.discard(queue)
            self._fall_behind(queue)
            queue.close()

    async def poll(
        self,
        form: Form,
        interest: Interest,
        after: Position,
        wait_s: float,
        most: int,
        reading: Reading = _AT_ONCE,
    ) -> bytes:
        """About `most` updates after a position, fewer if they are long; waits until there is one, at most `wait_s`.

        `reading` is as of `follow`.
        """
        found: list[bytes] = []
        came = asyncio.Event()
        self._polls.add(came)
        try:
            deadline_s = asyncio.get_running_loop().time() + wait_s
            position, count, size_bytes = after, 0, 0
            while True:
                came.clear()
                while (
                    count < most
                    and size_bytes < POLL_BYTES
                    and (piece := await self._next(form, interest, position, reading)) is not None
                ):
                    data, position = piece
                    found.append(data)
                    count += data.count(b"\n")
                    size_bytes += len(data)
                left_s = deadline_s - asyncio.get_running_loop().time()
                if count or left_s <= 0 or self._closing:
                    break
                with suppress(TimeoutError):
                    await asyncio.wait_for(came.wait(), left_s)
            data = {"through": self.log.through(position)}
            return b"".join(found) + form.named("progress", data, self._id(position))
        finally:
            self._polls.discard(came)

    async def _next(
        self, form: Form, interest: Interest, position: Position, reading: Reading = _AT_ONCE
    ) -> tuple[bytes, Position] | None:
        """Some events after a position, and the position behind them; None once it is at the head, or beyond."""
        log = self.log
        if isinstance(position, Foreign):
            return form.named("gap", unknown_position(position), None), log.head
        if position >= log.head:
            known = position == log.head or position.boundary < self._logged()
            return None if known else (form.named("gap", unknown_position(position), None), log.head)
        in_memory = log.has_after(position)
        only = interest.subscriptions if in_memory else self._only(interest)
        try:
            async with _AT_ONCE if in_memory else reading:
                found, behind = await asyncio.to_thread(log.rows_after, position, only, PIECE, READ_BYTES, self._tag_of)
        except (PartsMissing, PartDamaged) as lost:
            if isinstance(lost, PartDamaged):
                driver_log().warning("part_lost", why=str(lost))
            gap = lost_events(position, lost.first, isinstance(lost, PartsMissing) and lost.was_pruned)
            return form.named("gap", gap, None), log.behind(lost)
        chunks = [self._chunk(form, interest, rows) for rows in found]
        self.sent += sum(count for _, count in chunks)
        return b"".join(data for data, _ in chunks), behind

    def _id(self, position: Position) -> str:
        """The id of an event behind which a client resumes at a position."""
        return tagged(position.text, self._tag_of(position.boundary))

    def _is_open(self, is_valid: Callable[[], bool]) -> bool:
        return not self._closing and is_valid()

    def _progress(self, queue: _Queue) -> bytes:
        """A `progress` event; its id is that of the client's last update or a later one."""
        head = self.head
        event_id = self._id(head) if head >= queue.after else None
        return queue.form.named("progress", {"through": head.boundary}, event_id)

    def _take(self, released: list[Released], through: int, head: Position) -> None:
        """`deliver`, in the event loop."""
        self._head = head
        touched: set[_Queue] = set()
        for one in released:
            touched |= self._put(one)
        progress: dict[tuple[Form, bool], bytes] = {}
        until_s = asyncio.get_running_loop().time() + HEARTBEAT_S
        for queue in touched:
            if queue.behind:
                continue
            known = queue.form, head >= queue.after
            if known not in progress:
                progress[known] = self._progress(queue)
            self._queue(queue, progress[known], 0)
            self._send(queue, until_s)
        for came in self._polls:
            came.set()
        self.on_release()
        while self._awaited and self._awaited[0][0] <= through:
            future = heapq.heappop(self._awaited)[2]
            if not future.done():
                future.set_result(None)
        if self.log.full and (self._trimming is None or self._trimming.done()):
            self._trimming = asyncio.get_running_loop().create_task(self._trim())

    async def _trim(self) -> None:
        while self.log.full:  # nothing may be released meanwhile, since there is no room
            self.log.trim(await asyncio.to_thread(self.log.parts.last_boundary))
            await asyncio.sleep(_TRIM_S)

    def _put(self, released: Released) -> set[_Queue]:
        """Queue updates for the clients that take part, and return these; all fall behind if it is too much at once."""
        by_name, touched = self._by_name(released), set[_Queue]()
        if not self._everything and not by_name:
            return touched
        if self._everything:
            rows = np.arange(len(released.boundary))
        else:
            rows = released.rows_of(released.among(by_name))
        for first in range(0, len(rows), PIECE):
            some = rows[first : first + PIECE]
            found = None if len(rows) > MOST_PUT else self._at_hand(released, some)
            if found is None or len(found) < len(some):
                touched.update(self._everything, *by_name.values())
                for queue in touched:
                    self._fall_behind(queue)
                return touched
            touched |= self._put_some(found, by_name)
        return touched

    def _at_hand(self, released: Released, rows: np.ndarray) -> UpdateRows | None:
        """The updates of rows whose texts are in memory; fewer if they are long, None if they are not all there."""
        if not self._has_texts(released.seq[rows].tolist()):
            return None
        parts = self.log.parts
        if parts.included and not self._has_texts(parts.included.before(released, rows, RANKS["leave"])):
            return None
        return UpdateRows(released, rows, parts.look_up, tag_of=self._tag_of, included=parts.included)

    def _put_some(self, found: UpdateRows, by_name: Mapping[str, list[_Queue]]) -> set[_Queue]:
        """Queue updates of some rows, a chunk for each client that wants any, and return these clients."""
        released, rows = found.released, found.rows
        begins = int(released.boundary[rows[0]])
        chunks: dict[tuple[Form, Interest], tuple[bytes, int]] = {}  # clients with one interest get the same bytes
        touched: set[_Queue] = set()
        named = {} if not by_name else self._rows_by_queue(found, by_name)
        for queue in (*self._everything, *named):
            if queue.behind:
                continue
            after, key = queue.after, (queue.form, queue.interest)
            if after.boundary >= begins:  # released again after a restart
                new = np.flatnonzero(rows >= released.rows_through(*after))
                chunk = self._chunk(*key, found, np.intersect1d(new, named.get(queue, new), assume_unique=True))
            elif (chunk := chunks.get(key)) is None:
                chunk = chunks[key] = self._chunk(*key, found, named.get(queue))
            if chunk[1]:
                touched.add(queue)
                self._queue(queue, *chunk)
        return touched

    def _rows_by_queue(self, found: UpdateRows, by_name: Mapping[str, list[_Queue]]) -> dict[_Queue, np.ndarray]:
        """The places of the updates that the index of names finds for each client, ascending."""
        who = found.released.who[found.rows]
        by_who = np.argsort(who, kind="stable")
        cuts = np.flatnonzero(np.diff(who[by_who], prepend=-1)).tolist()
        names = found.released.names.take(pa.array(who[by_who[cuts]])).to_pylist()
        mine: dict[_Queue, list[np.ndarray]] = {}
        for name, begin, end in zip(names, cuts, [*cuts[1:], len(who)], strict=True):
            for queue in by_name.get(name, ()):
                mine.setdefault(queue, []).append(by_who[begin:end])
        return {queue: np.sort(np.concatenate(some)) if len(some) > 1 else some[0] for queue, some in mine.items()}

    def _chunk(
        self, form: Form, interest: Interest, found: UpdateRows, places: np.ndarray | None = None
    ) -> tuple[bytes, int]:
        """The events of the updates that a client wants, of those at some places, and their number."""
        places = self._wanted(found, interest, places)
        if places is None or len(places) == len(found):
            return form.updates(found).data, len(found)
        return (form.updates(found).at(places) if len(places) else b""), len(places)

    def _wanted(self, found: UpdateRows, interest: Interest, places: np.ndarray | None) -> np.ndarray | None:
        """Those of some places whose updates satisfy a filter; None: all."""
        passing = None if interest.region is None else found.where(interest.has_place)
        by_name = interest.subscriptions is not None and places is None  # places are those that an index of names found
        if by_name or interest.kinds is not None or interest.owner is not None:
            who = found.released.who[found.rows]
            used, of = np.unique(who if places is None else who[places], return_inverse=True)
            ids = found.released.names.take(pa.array(used)).to_pylist()
            follows = np.array([self._follows(name, interest) for name in ids], np.bool_)[of]
            places = np.flatnonzero(follows) if places is None else places[follows]
        if passing is None:
            return places
        return np.flatnonzero(passing) if places is None else places[passing[places]]

    def _by_name(self, released: Released) -> dict[str, list[_Queue]]:
        """The clients that a filter finds, by the ids of subscriptions that have updates."""
        found: dict[str, list[_Queue]] = {}
        if self._by_subscription or self._by_owner:
            for name in released.names.to_pylist():
                queues = [*self._by_subscription.get(name, ())]
                if self._by_owner:
                    queues += self._by_owner.get(self._registry.owner_of(name), ())
                if queues:
                    found[name] = queues
        return found

    def _queue(self, queue: _Queue, chunk: bytes, updates: int) -> None:
        """Put a chunk, with so many updates, into a queue, unless there is no room."""
        if queue.behind:
            return
        size_bytes = len(chunk)
        if queue.size_bytes + size_bytes > QUEUE_BYTES or self.queued_bytes + size_bytes > QUEUES_BYTES:
            self._fall_behind(queue)
            return
        self.queued_bytes += size_bytes
        queue.put(chunk, updates)

    def _send(self, queue: _Queue, until_s: float) -> None:
        """Send what is in a queue at once if its client waits, else wake it: its task and the framework take 40 us."""
        if queue.waits and queue.size_bytes <= SENT_BYTES and self._is_open(queue.is_valid):
            if queue.write(b"".join(queue.chunks)):
                self._taken(queue)
                queue.postpone(until_s)
                return
        queue.wake()

    def _fall_behind(self, queue: _Queue) -> None:
        self.queued_bytes -= queue.size_bytes
        queue.fall_behind()
        self._leave(queue)

    def _taken(self, queue: _Queue) -> bytes:
        """What is in the queue of a client, or else its progress; it then has all up to the head."""
        self.queued_bytes -= queue.size_bytes
        self.sent += queue.updates
        data = queue.take() or self._progress(queue)
        queue.after = max(queue.after, self.head)
        return data

    def _join(self, queue: _Queue) -> None:
        queue.behind = False
        for queues, name in self._indexes(queue.interest):
            queues.setdefault(name, set()).add(queue)
        if not self._indexes(queue.interest):
            self._everything.add(queue)

    def _leave(self, queue: _Queue) -> None:
        self._everything.discard(queue)
        for queues, name in self._indexes(queue.interest):
            mine = queues.get(name)
            if mine is not None:
                mine.discard(queue)
                if not mine:
                    del queues[name]

    def _indexes(self, interest: Interest) -> list[tuple[dict[str, set[_Queue]], str]]:
        """The indexes and names under which a client is found; none: every update is tested against its filter."""
        if interest.subscriptions is not None:
            return [(self._by_subscription, name) for name in interest.subscriptions]
        return [] if interest.owner is None else [(self._by_owner, interest.owner)]

    def _follows(self, name: str, interest: Interest) -> bool:
        """Whether a client follows a subscription: by its id, its owner and its kind."""
        if interest.subscriptions is not None and name not in interest.subscriptions:
            return False
        if interest.owner is not None and self._registry.owner_of(name) != interest.owner:
            return False
        return interest.kinds is None or self._registry.kind_of(name) in interest.kinds

    def names_of(self, interest: Interest) -> list[str]:
        """Ids of the subscriptions that a client follows, of all that there ever were."""
        return [name for name in list(self._registry.last) if self._follows(name, interest)]

    def _only(self, interest: Interest) -> Collection[str] | None:
        """Ids of the subscriptions whose updates a client may get; None: all."""
        if interest.subscriptions is not None or (interest.kinds is None and interest.owner is None):
            return interest.subscriptions
        return self.names_of(interest)


def _pieces(data: bytes) -> Iterator[bytes]:
    """Bytes in pieces of `SENT_BYTES`, so that no client has to read more in `SLOW_S`; of whole lines, if they fit."""
    first = 0
    while len(data) - first > SENT_BYTES:
        last = data.rfind(b"\n", first, first + SENT_BYTES) + 1 or first + SENT_BYTES
        yield data[first:last]
        first = last
    if first < len(data):
        yield data[first:]


_SLOW = {
    "reason": "slow",
    "detail": f"what was sent was not read for {SLOW_S:.0f} seconds",
    "do": "connect again with the last id (Last-Event-ID or since=), and read the rest from there",
}
