"""From the cursor to attempts: cuts batches for every webhook, and delivers each at the webhook's own pace.

Two loops in one event loop. *Taking*: webhooks at the same position, with the same `include`, share a read; the updates
that each wants are cut into batches and put into the store. A webhook has at most `WINDOW` batches waiting; beyond that
its position stays, and its updates remain in the stream's own files. *Sending*: at most `IN_FLIGHT` attempts of a
webhook at a time, one while it fails. So an endpoint that hangs occupies its own few connections, and nothing else
waits for it. The next attempt does not wait until the store has the outcome of the one before: after a crash a
delivered batch may be sent again, with the same id. Times are measured by the monotonic clock and stored as seconds
since 1970: setting the clock changes nothing.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

from gateway.serve.registry import Ended, Registered
from gateway.serve.released import ReleasedUpdate
from gateway.serve.update_log import UpdateLog, WholeRead
from gateway.serve.update_parts import Position
from gateway.sinks.telling import Teller
from gateway.sinks.told_store import prune_told, store_step, told_after
from gateway.sinks.webhooks.model import AttemptVerdict, Batch, Outcome, Tally, Webhook, WebhookDelivery
from gateway.sinks.webhooks.retries import LONGEST_S, next_attempt_s
from gateway.sinks.webhooks.sending import WebhookClient, batch_of_told, body_of
from gateway.sinks.webhooks.settings import WebhookSettings
from gateway.sinks.webhooks.store import Recorded, Store, accept, change_webhook, move, record, rows_of
from gateway.sinks.webhooks.together import Together
from matching.errors import EngineError
from matching.telling import next_time
from topology.core.executors.logs import driver_log

#: Batches of a webhook that wait at most, and attempts that are under way.
WINDOW, IN_FLIGHT = 64, 4
#: Bytes in memory of all webhooks together: of rows that wait, and of updates that were read and found no room yet.
KEPT_ROWS_BYTES, KEPT_AHEAD_BYTES = 16 * 2**20, 16 * 2**20
#: Bytes of updates that are accepted together for the webhooks of a position, and positions that are read at a time.
ACCEPTED_BYTES, READS = 16 * 2**20, 4
#: Least seconds between two rounds of taking, so that updates come together; and most, for digests.
LINGER_S, LOOK_S = 0.02, 0.5
#: Seconds between two prunings of tellings.
_PRUNE_S = 60.0
#: Seconds between two writes of positions behind which nothing was accepted.
_MOVE_S = 5.0
#: Seconds after which a failed write is tried again; each time twice as many for the webhook, up to the second number.
_AGAIN_S, _MOST_AGAIN_S = 1.0, 300.0


class ActiveWebhook:
    """One webhook at work.

    hook : Webhook
    queue : dict of int to Delivery    waiting deliveries by number, in order
    rows : dict of int to bytes        rows of queued deliveries, as far as there is memory
    in_flight : set of int             deliveries with an attempt under way
    writing : set of int               delivered ones whose outcome is being written
    ahead : list of ReleasedUpdate, Position
        Updates that were read and found no room in the queue, and the position behind them; or None.
    unwritten : dict of int to (Delivery, Outcome)
        Outcomes that could not be written yet: writing is tried again, and the batch is not sent again.
    changing : Lock                    held while its columns are changed
    """

    def __init__(self, hook: Webhook, waiting: Iterable[WebhookDelivery] = ()):
        self.hook = hook
        self.queue = {one.number: one for one in waiting}
        self.rows: dict[int, bytes] = {}
        self.in_flight: set[int] = set()
        self.writing: set[int] = set()
        self.ahead: tuple[list[ReleasedUpdate], Position] | None = None
        self.unwritten: dict[int, tuple[WebhookDelivery, Outcome]] = {}
        self.again_s = _AGAIN_S  # after a failure to read or write the file
        self.changing = asyncio.Lock()
        self.until: Position | None = None  # the end of a digest that is being cut
        self.hold_s = 0.0  # no attempt is made before this time
        self.timer: asyncio.TimerHandle | None = None
        self.closed = False

    @property
    def room(self) -> int:
        return WINDOW - len(self.queue)


class Figures:
    """Counts of all webhooks since the start."""

    def __init__(self) -> None:
        self.deliveries = Tally()
        self.updates = Tally()
        self.dropped = 0  # deliveries that waited or were dead when their webhook was deleted
        self.forgotten = 0  # dead deliveries beyond the number or bytes that the store keeps
        self.attempts = Counter[str]()
        self.attempt_s = 0.0


class Dispatcher:
    """Delivers the updates of a stream to its webhooks; all of it in one event loop.

    Parameters
    ----------
    store : Store
    source : UpdateLog
    last : mapping of str to Registered or Ended
        The last subscription of each id.
    client : WebhookClient
    settings : WebhookSettings
    teller : Teller
        Sends the updates of subscriptions with `tell`, which are not taken here.
    told : int
        Number of its last telling.
    """

    def __init__(
        self,
        store: Store,
        source: UpdateLog,
        last: Mapping[str, Registered | Ended],
        client: WebhookClient,
        settings: WebhookSettings,
        teller: Teller,
        told: int,
    ):
        self.figures = Figures()
        self.lines: dict[str, ActiveWebhook] = {}
        self.failure: BaseException | None = None
        self._store = store
        self._source = source
        self._last = last
        self._client = client
        self._settings = settings
        self.teller, self.told, self._wall = teller, told, teller.wall
        self.on_told: Callable[[], None] = lambda: None
        self._pruned_s = time.monotonic()
        self._start_s = time.time() - time.monotonic()
        self._came = asyncio.Event()
        self._moved: set[str] = set()
        self._moved_s = time.monotonic()
        self._rows_bytes = self._ahead_bytes = 0  # in all lines
        self._reading = asyncio.Semaphore(READS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: Together[WebhookDelivery, Recorded] = Together(lambda ended: store.change(record(ended)))
        self._closing = False

    def now_s(self) -> float:
        """Seconds since 1970, by the clock as it was at the start."""
        return self._start_s + time.monotonic()

    def load(self, hooks: Iterable[Webhook], waiting: Iterable[WebhookDelivery]) -> None:
        """Take webhooks and deliveries from the store, whose times another clock may have measured."""
        by_hook: dict[str, list[WebhookDelivery]] = {}
        now_s = self.now_s()
        for one in waiting:
            times = {"due_s": min(one.due_s, now_s + LONGEST_S), "began_s": min(one.began_s, now_s)}
            by_hook.setdefault(one.webhook_id, []).append(one._replace(**times))
        for hook in hooks:
            if not hook.telling.at:
                hook.due_s = min(hook.due_s, now_s + hook.every_s)
            self.add(ActiveWebhook(hook, by_hook.get(hook.webhook_id, ())))

    def add(self, line: ActiveWebhook) -> None:
        """Take a webhook with its counts, and begin to deliver."""
        self.lines[line.hook.webhook_id] = line
        for mine, all_of_them in self._tallies(line.hook):
            for name in ("accepted", "delivered", "dead"):
                setattr(all_of_them, name, getattr(all_of_them, name) + getattr(mine, name))
        self.pump(line)
        self.wake()

    def remove(self, webhook_id: str) -> None:
        """Forget a webhook; attempts under way end by themselves and are not counted."""
        line = self.lines.pop(webhook_id)
        line.closed = True
        if line.timer is not None:
            line.timer.cancel()
        hook = line.hook
        for mine, all_of_them in self._tallies(hook):
            all_of_them.accepted -= mine.waiting + mine.dead
            all_of_them.dead -= mine.dead
        self._keep_ahead(line, None)
        for number in list(line.rows):
            self._drop_rows(line, number)
        self.figures.dropped += hook.deliveries.waiting + hook.deliveries.dead
        line.queue.clear()

    def wake(self) -> None:
        """Look for updates now."""
        self._came.set()

    async def run(self) -> None:
        """Take updates until `close`."""
        while not self._closing:
            self._came.clear()
            try:
                busy = await self._round()
                await self._save_positions(_MOVE_S)
                self.failure = None
            except (EngineError, OSError) as error:  # a file cannot be written or read: nothing was accepted
                self.failure, busy = error, False
                await asyncio.sleep(_AGAIN_S)
            if busy:
                await asyncio.sleep(LINGER_S / 10)
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), LOOK_S)
            await asyncio.sleep(LINGER_S)

    async def close(self, patience_s: float) -> None:
        """Stop. Attempts that take longer are cancelled, and repeated with the same id after the next start."""
        self._closing = True
        self.wake()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(EngineError):
            await self._save_positions(0.0)

    # ------------------------------------------------------------------------------------------------------- taking

    async def _round(self) -> bool:
        """Read once for every position and `include` of webhooks; returns whether there may be more."""
        is_told = await self._tell()
        head = min(self._source.head, self.teller.position)
        groups: dict[tuple[Position, str], list[ActiveWebhook]] = {}
        jobs = []
        for line in self.lines.values():
            if not self._takes(line, head):
                continue
            if line.ahead is not None:
                jobs.append(self._accept(line, *line.ahead, lost=False))
            else:
                groups.setdefault((line.hook.position, line.hook.include), []).append(line)
        jobs += [self._take(position, lines, head) for (position, _), lines in groups.items()]
        busy = await asyncio.gather(*map(self._in_turn, jobs))
        late = [self._take_told(line) for line in self.lines.values() if self._takes_told(line)]
        return any([is_told, *busy, *await asyncio.gather(*map(self._in_turn, late))])

    async def _tell(self) -> bool:
        """Let the teller take a step, and store it; returns whether there may be more."""
        teller = self.teller
        reached = min((line.hook.position for line in self.lines.values()), default=teller.position)
        step = teller.step(reached) if teller.idle else await asyncio.to_thread(teller.step, reached)
        if step is None:
            return False
        try:
            self.told = await self._store.change(store_step(step))
        except EngineError:
            teller.refuse(step)
            raise
        teller.take(step)
        if step.told:
            self.on_told()
        if time.monotonic() > self._pruned_s + _PRUNE_S:
            self._pruned_s = time.monotonic()
            await self._store.change(prune_told(line.hook.told for line in self.lines.values()))
        return bool(step.told) or teller.position < self._source.head

    def _takes_told(self, line: ActiveWebhook) -> bool:
        return line.hook.state == "active" and line.hook.told < self.told and line.room > WINDOW // 2

    async def _take_told(self, line: ActiveWebhook) -> bool:
        """Accept the next tellings that a webhook wants, each as one batch."""
        hook = line.hook
        found = await self._store.read(told_after(hook.told, line.room))
        if not found or line.closed:
            return False
        if found[0][0] > hook.told + 1:
            hook.why = "tellings were more than are kept; those before the next were not delivered"
        batches = [
            (batch_of_told(hook.webhook_id, one), one.rows.count(b"\n"))
            for _, one in found
            if hook.subscription_id == one.subscription_id or (hook.subscription_id is None and hook.owner == one.owner)
        ]
        await self._put(line, batches, hook.position, found[-1][0])
        return True

    async def _in_turn(self, job: Coroutine[Any, Any, bool]) -> bool:
        async with self._reading:
            return await job

    def _takes(self, line: ActiveWebhook, head: Position) -> bool:
        hook = line.hook
        if hook.state != "active" or line.room <= WINDOW // 2:  # many at a time, in one transaction
            return False
        if hook.telling.quiet_until(self._wall()) is not None:
            return False
        if not hook.every_s and not hook.telling.at:
            return hook.position < head
        is_whole = head.boundary >= self.teller.logged_before  # else some of the window is still matched again
        if line.until is None and self._clock_s(hook) >= hook.due_s and is_whole:
            line.until = head
        self._end_digest(line)
        return hook.position < head and line.until is not None

    def _clock_s(self, hook: Webhook) -> float:
        """Now, by the clock of the webhook's digests: the machine's for set times."""
        return self._wall() if hook.telling.at else self.now_s()

    def _end_digest(self, line: ActiveWebhook) -> None:
        """End a digest if all its updates were accepted, and set the time of the next one."""
        hook, clock_s = line.hook, self._clock_s(line.hook)
        if line.until is None or hook.position < line.until:
            return
        line.until = None
        if clock_s >= hook.due_s:
            if hook.telling.at:
                hook.due_s = next_time(hook.telling.at, hook.telling.zone, clock_s)
            else:
                hook.due_s += hook.every_s * (1 + (clock_s - hook.due_s) // hook.every_s)
            self._moved.add(hook.webhook_id)

    def _read(self, position: Position, lines: list[ActiveWebhook]) -> WholeRead:
        only = None if self._source.has_after(position) else self._only(lines)
        return self._source.read_whole(position, only, lines[0].hook.included)

    async def _take(self, position: Position, lines: list[ActiveWebhook], until: Position) -> bool:
        """Read from a position up to another, and accept the updates that each webhook there wants."""
        read = await asyncio.to_thread(self._read, position, lines)
        if read.behind > until:
            read = read._replace(behind=until, updates=_up_to(read.updates, until))
        if read.behind == position:
            return False
        lines = [line for line in lines if not line.closed and line.hook.position == position]
        wanted = self._wanted(lines, read.updates)
        jobs: list[Coroutine[Any, Any, bool]] = []
        size_bytes = 0
        for line in lines:
            mine = wanted[line.hook.webhook_id]
            jobs.append(self._accept(line, mine, read.behind, read.lost))
            size_bytes += _size_of(mine)
            if size_bytes >= ACCEPTED_BYTES:
                await asyncio.gather(*jobs)
                jobs, size_bytes = [], 0
        await asyncio.gather(*jobs)
        return True

    def _only(self, lines: list[ActiveWebhook]) -> set[str]:
        """Subscriptions whose updates are wanted."""
        owners = {line.hook.owner for line in lines if line.hook.subscription_id is None}
        names = {line.hook.subscription_id for line in lines if line.hook.subscription_id is not None}
        if owners:
            names.update(name for name, one in list(self._last.items()) if one.owner and one.owner in owners)
        return names

    def _wanted(self, lines: list[ActiveWebhook], updates: list[ReleasedUpdate]) -> dict[str, list[ReleasedUpdate]]:
        """By webhook the updates that it gets."""
        found: dict[str, list[ReleasedUpdate]] = {line.hook.webhook_id: [] for line in lines}
        by_name: dict[str, list[ActiveWebhook]] = {}
        by_owner: dict[str, list[ActiveWebhook]] = {}
        for line in lines:
            one_of, name = (by_name, line.hook.subscription_id) if line.hook.subscription_id else (by_owner, None)
            one_of.setdefault(name or line.hook.owner or "", []).append(line)
        for update in updates:
            name = update.subscription_id
            if self.teller.tells(name, Position.of(update.position)):
                continue
            takers = by_name.get(name, ())
            if by_owner:
                last = self._last.get(name)
                takers = (*takers, *by_owner.get("" if last is None else last.owner, ()))
            for line in takers:
                found[line.hook.webhook_id].append(update)
        return found

    async def _accept(self, line: ActiveWebhook, updates: list[ReleasedUpdate], behind: Position, lost: bool) -> bool:
        """Cut batches as long as there is room, and store them with the position behind them; there may be more."""
        hook = line.hook
        if line.closed:
            return True
        if line.until is not None and behind > line.until:
            behind = line.until
            updates = _up_to(updates, behind)
        batches, whole = cut(hook, updates, line.room, int(time.time()))
        position = behind if whole else Position.of(batches[-1][0].last)
        left = None if whole else (updates[sum(count for _, count in batches) :], behind)
        if lost:
            hook.why = "files of updates are gone or damaged; updates before the position were not delivered"
        await self._put(line, batches, position, hook.told)
        if not line.closed:
            self._keep_ahead(line, left)
            self._end_digest(line)
        return True

    async def _put(self, line: ActiveWebhook, batches: list[tuple[Batch, int]], position: Position, told: int) -> None:
        """Store batches of a webhook with its new position and telling, and begin the attempts that are due."""
        hook = line.hook
        if batches:
            began_s = self.now_s()
            accepted = accept(hook.webhook_id, position, hook.due_s, told, batches, began_s)
            numbers = await self._store.change(accepted)
            if line.closed:
                return
            for number, (batch, count) in zip(numbers, batches, strict=True):
                line.queue[number] = WebhookDelivery(
                    number, hook.webhook_id, batch.batch_id, batch.first, batch.last, count, batch.created_s,
                    began_s=began_s,
                )  # fmt: skip
                self._keep_rows(line, number, batch.rows)
            self._count(hook, "accepted", len(batches), sum(count for _, count in batches))
        else:
            self._moved.add(hook.webhook_id)
        hook.position, hook.told = position, told
        self.pump(line)

    def _keep_ahead(self, line: ActiveWebhook, left: tuple[list[ReleasedUpdate], Position] | None) -> None:
        """Keep updates that found no room, if there is memory; else they are read again."""
        self._ahead_bytes -= 0 if line.ahead is None else _size_of(line.ahead[0])
        has_room = left is not None and self._ahead_bytes + _size_of(left[0]) <= KEPT_AHEAD_BYTES
        line.ahead = left if has_room else None
        self._ahead_bytes += 0 if line.ahead is None else _size_of(line.ahead[0])

    def _keep_rows(self, line: ActiveWebhook, number: int, rows: bytes) -> None:
        """Keep the rows of a delivery, if there is memory; else the attempt reads them."""
        if self._rows_bytes + len(rows) <= KEPT_ROWS_BYTES:
            line.rows[number] = rows
            self._rows_bytes += len(rows)

    def _drop_rows(self, line: ActiveWebhook, number: int) -> None:
        self._rows_bytes -= len(line.rows.pop(number, b""))

    async def _save_positions(self, after_s: float) -> None:
        if not self._moved or time.monotonic() < self._moved_s + after_s:
            return
        self._moved_s = time.monotonic()
        lines = [self.lines[name] for name in self._moved if name in self.lines]
        self._moved.clear()
        hooks = [line.hook for line in lines]
        await self._store.change(move((one.webhook_id, one.position, one.due_s, one.told) for one in hooks))

    # ------------------------------------------------------------------------------------------------------ sending

    def pump(self, line: ActiveWebhook) -> None:
        """Begin the attempts of a webhook that are due, and set its timer for the next one."""
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        if line.closed or self._closing or line.hook.state != "active":
            return
        now_s, next_s = self.now_s(), None
        for delivery in line.queue.values():
            if len(line.in_flight) >= (1 if line.hook.failures else IN_FLIGHT):
                return  # the end of an attempt calls again
            if delivery.number in line.in_flight or delivery.number in line.writing:
                continue
            due_s = max(delivery.due_s, line.hold_s)
            if due_s <= now_s:
                self._begin(line, delivery)
            else:
                next_s = due_s if next_s is None else min(next_s, due_s)
        if next_s is not None:
            line.timer = asyncio.get_running_loop().call_later(max(0.0, next_s - now_s), self.pump, line)

    def _begin(self, line: ActiveWebhook, delivery: WebhookDelivery) -> None:
        line.in_flight.add(delivery.number)
        task = asyncio.get_running_loop().create_task(self._attempt(line, delivery))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attempt(self, line: ActiveWebhook, delivery: WebhookDelivery) -> None:
        """Make one attempt and write its outcome; if an earlier outcome could not be written, write that instead."""
        number = delivery.number
        try:
            if number not in line.unwritten:
                outcome = await self._send(line, delivery)
                line.unwritten[number] = self._after(line, delivery, outcome), outcome
                if outcome.verdict is AttemptVerdict.DELIVERED:
                    line.writing.add(number)
                    line.in_flight.discard(number)
                    self.pump(line)
            await self._end(line, *line.unwritten[number])
            del line.unwritten[number]
            line.again_s = _AGAIN_S
        except EngineError as error:
            self.failure = error
            line.hold_s = max(line.hold_s, self.now_s() + line.again_s)
            line.again_s = min(2 * line.again_s, _MOST_AGAIN_S)
        finally:
            line.in_flight.discard(number)
            line.writing.discard(number)
            if not self._closing:
                self.pump(line)
                self.wake()

    async def _send(self, line: ActiveWebhook, delivery: WebhookDelivery) -> Outcome:
        """Send a delivery once. Raises DeliveryError if its rows cannot be read."""
        hook, rows = line.hook, line.rows.get(delivery.number)
        if rows is None:
            rows = await self._store.read(rows_of(delivery.number))
        batch = Batch(delivery.batch_id, delivery.created_s, delivery.first, delivery.last, rows)
        body, began_s = body_of(hook.webhook_id, batch), time.monotonic()
        outcome = await self._client.post(hook.url, hook.secrets(time.time()), batch.batch_id, body)
        self.figures.attempt_s += time.monotonic() - began_s
        self.figures.attempts[outcome.reason or "delivered"] += 1
        return outcome

    def _after(self, line: ActiveWebhook, delivery: WebhookDelivery, outcome: Outcome) -> WebhookDelivery:
        """The delivery after an attempt."""
        now_s, attempts = self.now_s(), delivery.attempts + 1
        delivery = delivery._replace(attempts=attempts, reason=outcome.reason, detail=outcome.detail)
        if outcome.verdict is AttemptVerdict.DELIVERED:
            return delivery._replace(status="delivered", ended_s=time.time())
        if outcome.verdict is AttemptVerdict.GONE:
            return delivery
        due_s = next_attempt_s(self._settings, attempts, delivery.began_s, now_s, outcome.wait_s)
        if outcome.wait_s is not None and due_s is not None:
            line.hold_s = max(line.hold_s, due_s)
        dead = {"status": "dead", "ended_s": time.time()}
        return delivery._replace(**dead) if due_s is None else delivery._replace(due_s=due_s)

    async def _end(self, line: ActiveWebhook, delivery: WebhookDelivery, outcome: Outcome) -> None:
        """Write the outcome of a delivery."""
        hook = line.hook
        recorded = await self._ended.put(delivery)
        self.figures.forgotten += recorded.forgotten
        if not recorded.written or line.closed:
            return
        if delivery.status == "waiting":
            line.queue[delivery.number] = delivery
        else:
            line.queue.pop(delivery.number, None)
            self._drop_rows(line, delivery.number)
            self._count(hook, delivery.status, 1, delivery.updates)
        failed_before = hook.failures
        hook.failures = 0 if outcome.verdict is AttemptVerdict.DELIVERED else hook.failures + 1
        self._note_change(hook, failed_before, delivery, outcome)
        if outcome.verdict is AttemptVerdict.GONE and not line.closed:
            hook.state, hook.why = "disabled", outcome.detail  # also if it cannot be written: the receiver is gone
            await self._store.change(change_webhook(hook.webhook_id, {"state": hook.state, "why": hook.why}))

    def _note_change(self, hook: Webhook, failed_before: int, delivery: WebhookDelivery, outcome: Outcome) -> None:
        """Log that a webhook begins or ceases to fail, and dead deliveries; never its URL, which may be a secret."""
        log = driver_log().bind(webhook=hook.webhook_id)
        if outcome.verdict is AttemptVerdict.GONE:
            log.warning("webhook_disabled", reason=outcome.reason, what=outcome.detail)
        elif hook.failures and not failed_before:
            log.warning("webhook_fails", reason=outcome.reason, what=outcome.detail, waiting=hook.deliveries.waiting)
        elif failed_before and not hook.failures:
            log.info("webhook_back", failed_attempts=failed_before, waiting=hook.deliveries.waiting)
        if delivery.status == "dead":
            updates, reason = delivery.updates, outcome.reason
            log.error(
                "delivery_dead", sampled=hook.webhook_id, delivery=delivery.batch_id, updates=updates, reason=reason
            )

    def revived(self, line: ActiveWebhook, deliveries: list[WebhookDelivery]) -> None:
        """Take deliveries that wait again."""
        line.queue.update((one.number, one) for one in deliveries)
        self._count(line.hook, "dead", -len(deliveries), -sum(one.updates for one in deliveries))
        line.hold_s = 0.0
        self.pump(line)

    def _tallies(self, hook: Webhook) -> list[tuple[Tally, Tally]]:
        return [(hook.deliveries, self.figures.deliveries), (hook.updates, self.figures.updates)]

    def _count(self, hook: Webhook, what: str, deliveries: int, updates: int) -> None:
        for (mine, all_of_them), more in zip(self._tallies(hook), (deliveries, updates), strict=True):
            for tally in (mine, all_of_them):
                setattr(tally, what, getattr(tally, what) + more)


def cut(hook: Webhook, updates: list[ReleasedUpdate], room: int, now_s: int) -> tuple[list[tuple[Batch, int]], bool]:
    """At most `room` batches of a webhook with their numbers of updates, and whether they have all updates.

    A batch has at most as many updates and bytes as the webhook says, but at least one update.
    """
    batches: list[tuple[Batch, int]] = []
    some: list[ReleasedUpdate] = []
    size = 0
    for one in updates:
        if some and (len(some) >= hook.batch_updates or size + len(one.data) + 1 > hook.batch_bytes):
            batches.append(_batch(hook, some, now_s))
            some, size = [], 0
            if len(batches) >= room:
                return batches, False
        some.append(one)
        size += len(one.data) + 1
    if some:
        batches.append(_batch(hook, some, now_s))
    return batches, True


def _up_to(updates: list[ReleasedUpdate], position: Position) -> list[ReleasedUpdate]:
    return [one for one in updates if Position.of(one.position) <= position]


def _size_of(updates: Iterable[ReleasedUpdate]) -> int:
    return sum(len(one.data) for one in updates)


def _batch(hook: Webhook, updates: list[ReleasedUpdate], now_s: int) -> tuple[Batch, int]:
    first, last = updates[0].position, updates[-1].position
    rows = b"".join(one.data + b"\n" for one in updates)
    return Batch(f"{hook.webhook_id}_{first}", now_s, first, last, rows), len(updates)
