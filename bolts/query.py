"""The query bolt: holds subscriptions, matches batches, keeps results.

A task takes batches strictly in order, each together with the subscription changes that belong to it, and has a room
for every kind (`matching.operator.KindOperator`): each matches the batch and closes it, at once or, where several tasks
hold a subscription, when all have been heard (`bolts.exchange`). What rooms ask goes to the tuple tasks, after the
routers have been relaxed if thresholds play a part in routing; what their answers bring is told late. Nothing ever
waits. Read on in `matching.operator`, then in a room.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bolts.exchange import Exchange
from bolts.ordering import InOrder
from bolts.payloads import Addressed, Closed, Late, Part, Relaxing
from distribution.router import Router
from distribution.signatures.claims import Claims
from distribution.signatures.signature import QuerySignature
from matching.half_life import DecayParameters
from matching.kind_table import Kind, Kinds
from matching.kinds import KINDS
from matching.model import (
    NO_MESSAGES,
    ChangeList,
    MessageBatch,
    Removals,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    empty,
    take_rows,
)
from matching.operator import KindOperator, OperatorContext, OperatorInput, OperatorOutput
from matching.space import Space
from matching.window import NO_FLOOR, Boundary, Window
from topology.core.api.component import Bolt, Context, Delivery, Saved


class QueryBolt(Bolt):
    """Holds the subscriptions the router gives to this task.

    Parameters
    ----------
    router : Router
    space : Space
    window : Window
    engines : mapping of kind to engine name, optional
        Kinds left out get their default.
    options : mapping, optional
        See `matching.operator.OperatorContext.options`.
    kinds : Kinds
    fading : Fading, optional
        How scores fade, for kinds that do.
    """

    def __init__(
        self,
        router: Router,
        space: Space,
        window: Window,
        engines: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        kinds: Kinds = KINDS,
        fading: DecayParameters | None = None,
    ):
        self.router = router
        self.space = space
        self.window = window
        self.engines = dict(engines or {})
        self.options = dict(options or {})
        self.kinds = kinds
        self.fading = fading

    def prepare(self, context: Context) -> None:
        self.context = context
        router, task = self.router, context.task
        self.rooms: dict[int, KindOperator] = {}
        for kind in self.kinds.run:
            replicates = router.replicates and kind.replicas
            site = OperatorContext(
                self.space, self.window, task, context.tasks, router.uses_thresholds and kind.thresholds, replicates,
                getattr(router, "prefix_only", False), context.size_of("distribution"), self.options,
                self.fading,
            )  # fmt: skip
            self.rooms[kind.code] = kind.make_operator(site, self.engines.get(kind.name))
        self.boundary = Boundary(-1, 0, -1, NO_FLOOR)
        self._begin(0)
        self.relaxing: dict[tuple[int, int], tuple[int, int]] = {}  # kind, request -> answers missing, largest batch
        self.finished = self.told = False
        self.subscriptions = self.raises_sent = 0
        self.met = 0  # messages that mattered to a subscription to a region here
        self.lost = 0  # those that would have, and were kept from it
        self.lost_pairs = dict.fromkeys(self.rooms, 0)
        self.signature = self._new_signature()

    def _new_signature(self) -> QuerySignature | None:
        router, task = self.router, self.context.task
        spec = router.signatures
        return None if spec is None else QuerySignature(spec, router.domain_of(task), task)

    def _begin(self, first: int) -> None:
        """Expect batches from `first` on."""
        self.inputs = InOrder({"parts": 1, "changes": 1}, first=first, name=f"query:{self.context.task}")
        self.exchanges = {
            kind.code: Exchange(kind.code, self.context, first)
            for kind in self.kinds.run
            if kind.standing and self.router.shares
        }

    def execute(self, delivery: Delivery) -> None:
        payload = delivery.payload
        if delivery.stream in ("whole", "parts"):
            self.inputs.put(payload.boundary.number, "parts", payload)
            self._advance()
        elif delivery.stream == "changes":
            self.inputs.put(payload.batch, "changes", payload)
            self._advance()
        elif delivery.stream == "found":
            self.exchanges[payload.kind].receive(payload, delivery.task)
            self._tell_late(self._close(payload.kind))
        elif delivery.stream == "answer":
            step = self.rooms[payload.kind].answer(payload.request, payload.body)
            self._tell_late([self._follow(payload.kind, step)])
        elif delivery.stream == "relaxed":
            self._note_relaxed(payload)
        elif delivery.stream == "register":
            register = payload.body
            self.rooms[payload.kind].register(
                payload.home, register.number, register.version, register.rows, register.changes_through
            )
        else:
            self.rooms[payload.kind].raise_thresholds(payload.body)

    def finish(self) -> None:
        self.finished = True
        self._tell_results()

    def idle(self) -> bool:
        return self.watermark == self.boundary.number

    def quiet(self) -> bool:
        return self.idle()

    @property
    def watermark(self) -> int:
        """Number of the last batch up to which every event has been told."""
        return min(room.watermark for room in self.rooms.values())

    def report(self) -> dict[str, Any]:
        names = {code: self.kinds[code].name for code in self.rooms}
        return ({} if self.signature is None else self.signature.describe()) | {
            "held": {names[code]: len(room) for code, room in self.rooms.items()},
            "room_bytes": {
                names[code]: sum(array.nbytes for array in room.arrays().values()) for code, room in self.rooms.items()
            },
            "subscriptions_taken": self.subscriptions,
            "rooms": {names[code]: room.report() for code, room in self.rooms.items()},
            "found_sent": {names[code]: exchange.sent for code, exchange in self.exchanges.items()},
            "raises_sent": self.raises_sent,
            "messages_met": self.met,
            "messages_lost": self.lost,
            "pairs_lost": {names[code]: pairs for code, pairs in self.lost_pairs.items()},
            "engines": {names[code]: self.kinds[code].chosen(self.engines.get(names[code])) for code in self.rooms},
        }

    # -- batches

    def _advance(self) -> None:
        while (ready := self.inputs.pop()) is not None:
            self._process(ready.payloads["changes"][0], ready.payloads["parts"][0])

    def _process(self, changes: ChangeList, part: Part) -> None:
        self.boundary = part.boundary
        added = changes.added
        held = self.router.holds(changes, self.context.task) if len(added) else np.zeros(0, np.bool_)
        self.subscriptions += int(np.count_nonzero(held))
        if self.signature is not None:
            self._sign(part.boundary.number, added.take(np.flatnonzero(held)), changes.removed)
        updates, met, missed = [empty(UpdateBatch)], [], [np.zeros(0, np.int64)]
        coming = set(added.kind.tolist())
        for kind in self.kinds.run:
            room = self.rooms[kind.code]
            if kind.code not in coming and self._nobody_at(kind.code, part.boundary.number):
                room.pass_over(part.boundary)
                continue
            matched = room.match(self._turn(kind, part, changes, held))
            met.append(room.met)
            missed.append(room.missed)
            self.lost_pairs[kind.code] += missed[-1].shape[0]
            if kind.code in self.exchanges:
                self.exchanges[kind.code].put(part.boundary.number, matched)
                updates += self._close(kind.code)
            else:
                updates.append(self._follow(kind.code, room.close(matched.mine, [])))
        met = [seqs for seqs in met if seqs.shape[0]]
        self.met += met[0].shape[0] if len(met) == 1 else np.unique(np.concatenate(met)).shape[0] if met else 0
        if len(part.withheld):
            self.lost += np.unique(np.concatenate(missed)).shape[0]
        told = concatenate([each for each in updates if len(each)] or updates[:1])
        self.context.emit("updates", Closed(part.boundary, self.watermark, told))

    def _nobody_at(self, code: int, batch: int) -> bool:
        """Whether nobody of a kind is here, waits, or may be asked by other tasks: all before this batch is told."""
        room = self.rooms[code]
        return code not in self.exchanges and not len(room) and room.watermark == batch - 1

    def _turn(self, kind: Kind, part: Part, changes: ChangeList, held: np.ndarray) -> OperatorInput:
        """What a batch is for one kind."""
        task, router = self.context.task, self.router
        rows = np.flatnonzero(changes.added.kind == kind.code)
        home = np.full(rows.shape[0], task, np.int64)
        mine = held[rows]
        added = changes.added
        if kind.code in self.exchanges and rows.shape[0]:
            home, holders = router.homes_of(changes.added.take(rows))
            self.exchanges[kind.code].note(home, holders)
            here = np.flatnonzero(mine | (home == task))
        else:
            here = np.flatnonzero(mine)
        if here.shape[0] < len(added):  # not of an empty table, as most small batches have
            added = added.take(rows[here])
        messages, withheld = (self._answered(kind.code, each) for each in (part.messages, part.withheld))
        ended = part.ended if kind.needs_ended else NO_MESSAGES
        shared = kind.stands == "box" and any(router.shares_pairs(some) for some in (messages, withheld) if len(some))
        owned = self._owned if shared else None
        removed = changes.removed.of_kind(kind.code)
        return OperatorInput(part.boundary, messages, ended, added, home[here], mine[here], removed, owned, withheld)

    def _answered(self, kind: int, messages: MessageBatch) -> MessageBatch:
        """Those that this task answers for."""
        wanted = self.router.rows_for(kind, messages, self.context.task) if len(messages) else None
        return messages if wanted is None or wanted.size == len(messages) else messages.take(wanted)

    def _close(self, code: int) -> list[UpdateBatch]:
        """Close what can be closed now of a kind that tasks share."""
        room = self.rooms[code]
        return [self._follow(code, room.close(mine, found)) for mine, found in self.exchanges[code].ready()]

    def _owned(self, region, messages, row):
        return self.router.owned_pairs(region, messages, row, self.context.task)

    def _sign(self, batch: int, added: SubscriptionTable, removed: Removals) -> None:
        """Tell the distribution tasks what this batch's changes leave. Every earlier batch has been routed by now."""
        assert self.signature is not None
        region = self.router.traits.region
        added = added.take(np.flatnonzero(region[added.kind]))
        leaving, strict = [], []
        for code, room in self.rooms.items():
            if region[code]:
                gone = removed.of_kind(code).number
                leaving.append(gone[room.holds(gone)])
                strict.append(room.claims(leaving[-1]))
        regions, terms = (np.concatenate(column) for column in zip(*strict, strict=True))
        staying = added.take(np.flatnonzero(~np.isin(added.number, removed.number)))
        claims = Claims(regions, np.arange(terms.shape[0] + 1), terms)
        self.signature.follow(staying, np.concatenate(leaving), claims)
        patch = self.signature.patch(batch, noted=len(added) > 0)
        if patch is not None:
            self.context.emit("signature", patch)

    # -- what rooms ask for

    def _follow(self, code: int, step: OperatorOutput) -> UpdateBatch:
        """Send out what a step asks for; returns what it tells."""
        task = self.context.task
        for ask in step.asks:
            if not ask.question.more:
                self.context.count("refills", ask.question.rows[0].shape[0])
            self.context.emit("ask", Addressed(code, task, ask.request, ask.question))
        for relax in step.relaxes:
            self.context.count("refills", relax.number.shape[0])
            self.relaxing[code, relax.request] = (self.context.size_of("distribution"), -1)
            self.context.emit("relax", Addressed(code, task, relax.request, Relaxing(relax.number, relax.version)))
        if step.raised.number.size and self.router.uses_thresholds:
            self.context.emit("raise", Addressed(code, task, 0, step.raised))
            if self.router.replicates and self.kinds[code].replicas:
                self._tell_replicas(code, step)
        for name, amount in step.work._asdict().items():
            self.context.count(name, amount)
        return step.updates

    def _tell_replicas(self, code: int, step: OperatorOutput) -> None:
        wanted = self.rooms[code].sharers(step.raised.number)
        for task in range(self.context.tasks):
            mine = np.flatnonzero(wanted[:, task])
            if task != self.context.task and mine.size:
                self.raises_sent += mine.size
                self.context.emit(
                    "thresholds", Addressed(code, self.context.task, 0, take_rows(step.raised, mine)), to=task
                )

    def _note_relaxed(self, relaxed: Addressed) -> None:
        key = relaxed.kind, relaxed.request
        missing, last_batch = self.relaxing.pop(key)
        last_batch = max(last_batch, relaxed.body.last_batch)
        if missing > 1:
            self.relaxing[key] = (missing - 1, last_batch)
            return
        ask = self.rooms[relaxed.kind].relaxed(relaxed.request, last_batch)
        self.context.emit("ask", Addressed(relaxed.kind, self.context.task, ask.request, ask.question))

    # -- what is told

    def _tell_late(self, updates: list[UpdateBatch]) -> None:
        """Tell of batches that were told of before; an empty list if there is nothing new to know."""
        if updates:
            self.context.emit("late", Late(self.watermark, concatenate(updates)))
        if self.finished:
            self._tell_results()

    def _tell_results(self) -> None:
        if self.idle() and not self.told:
            self.told = True
            standing = [self.rooms[kind.code].results() for kind in self.kinds.run if kind.standing]
            nothing = ResultBatch(*empty(ResultBatch)[:4])
            self.context.emit("results", concatenate([each for each in standing if len(each)] or [nothing]))

    # -- what is saved

    def state(self) -> dict[str, np.ndarray]:
        counts = np.array([self.subscriptions, self.raises_sent])
        met = np.array([self.met, self.lost, *self.lost_pairs.values()])
        arrays = {"boundary": np.array(self.boundary, np.int64), "counts": counts, "met": met}
        for code, room in self.rooms.items():
            state = room.state()
            if self.router.shares and not self.kinds[code].standing:  # held by several, saved by the lowest of them
                lower = [self.router.held_by(state.table, task) for task in range(self.context.task)]
                if lower:
                    state = state.take(np.flatnonzero(~np.logical_or.reduce(lower)))
            arrays |= {f"{self.kinds[code].name}:{name}": values for name, values in state.arrays().items()}
        return arrays

    def restore(self, saved: Saved) -> None:
        self.boundary = Boundary(*map(int, saved.parts["query"][0]["boundary"]))
        self._begin(saved.number + 1)
        if self.context.task == 0:  # figures of all that is done
            before = saved.tasks("query")
            self.subscriptions, self.raises_sent = np.sum([task["counts"] for task in before], 0).tolist()
            if "met" in before[0]:
                self.met, self.lost, *pairs = np.sum([task["met"] for task in before], 0).tolist()
                self.lost_pairs = dict(zip(self.lost_pairs, pairs, strict=True))
        self.router = self.router.restored(saved.tasks("distribution"), saved.work.get("query", ()))
        self.signature = self._new_signature()
        states = self.kinds.saved_states(saved.parts["query"])
        # of all kinds together: what is placed by cost is weighed against all others
        everyone = concatenate([state.table for state in states.values()])
        told = saved.parts.get("subscriptions", ({},))[0]
        held_of_all = self.router.holds_again(everyone, self.context.task, told)
        cuts = np.cumsum([len(state.table) for state in states.values()])[:-1]
        for (code, state), held in zip(states.items(), np.split(held_of_all, cuts), strict=True):
            table = state.table
            home = np.full(len(table), self.context.task, np.int64)
            here = held
            if code in self.exchanges:
                home, holders = self.router.homes_of(table)
                self.exchanges[code].note(home, holders)
                here = held | (home == self.context.task)
            rows = np.flatnonzero(here)
            self.rooms[code].restore(self.boundary, state.take(rows), home[rows], held[rows])
        if self.signature is not None:
            mine = everyone.take(np.flatnonzero(held_of_all & self.router.traits.region[everyone.kind]))
            nobody = Claims(np.zeros((0, 4)), np.zeros(1, np.int64), np.zeros(0, np.int32))
            self.signature.follow(mine, np.zeros(0, np.int64), nobody)
