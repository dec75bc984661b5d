"""The query bolt: keeps subscriptions, matches batches, maintains results.

A task processes batches in order, each with its subscription changes, and has an operator for every kind
(`matching.operator.KindOperator`). An operator matches a batch and closes it: at once, or, where several tasks have a
copy of a subscription, when all their hits have arrived (`bolts.exchange`). Window queries go to the tuple tasks by way
of `bolts.aggregation`, after the routing tables have been relaxed if the router uses thresholds; updates that follow
from the answers are emitted as late updates. Of several delivery tasks each gets the updates of the subscriptions that
it owns, and an empty payload where there are none. Nothing blocks.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bolts.exchange import Exchange
from bolts.kind_threads import KindThreads
from bolts.ordering import InOrder
from bolts.payloads import Addressed, Closed, Late, Part, Relaxing, unchanged
from bolts.saved import delivered_of, placement_of, router_of, subscriptions_of
from bolts.shares import Owners
from bolts.state_parts import named
from distribution.router import Router
from distribution.signatures.claims import Claims
from distribution.signatures.signature import QuerySignature
from distribution.targets import rows_for
from matching.half_life import DecayParameters
from matching.kind_table import Kind, Kinds
from matching.kinds import KINDS
from matching.living import traced
from matching.model import (
    NO_MESSAGES,
    NO_UPDATES,
    ChangeList,
    Int64,
    MessageBatch,
    Removals,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    empty,
    take_rows,
)
from matching.operator import (
    KindOperator,
    Matched,
    OperatorContext,
    OperatorInput,
    OperatorOutput,
    Ranged,
    Regional,
    Replicated,
    ResultOperator,
    Windowed,
    Work,
    capable,
)
from matching.space import Space
from matching.storage.state import State
from matching.window import NO_FLOOR, Boundary, Window
from topology.core.api.component import Bolt, Context, Delivery, Fragment, Saved

#: Seconds that restoring one subscription takes, roughly; for the order of the restore jobs.
_RESTORE_S = 1e-6
#: `home` and `assigned` of an `OperatorInput` without additions.
_NO_HOME, _NO_MARK = np.zeros(0, np.int64), np.zeros(0, np.bool_)
_NO_SEQS = np.zeros(0, np.int64)


class _KindOutput(NamedTuple):
    """Result of a batch for one kind.

    matched : Matched
    patch : InfluencePatch or None
    met, missed : int64[]    as of `matching.operator.Regional`
    closed : OperatorOutput or None    None while hits of other tasks are missing
    """

    matched: Matched
    patch: Any
    met: Int64
    missed: Int64
    closed: OperatorOutput | None


class QueryBolt(Bolt):
    """Matches batches against the subscriptions that the router assigns to this task.

    Parameters
    ----------
    engines : mapping of kind to engine name, optional
        Kinds left out get their default.
    options : mapping, optional
        See `matching.operator.OperatorContext.options`.
    fading : DecayParameters, optional
        How scores decay, for kinds whose scores do.
    threads : int
        Kinds that the task matches at a time, each in a thread (`bolts.kind_threads`).
    objects : bool
        The stream is one of objects: messages come with the versions that they replace.
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
        threads: int = 1,
        objects: bool = False,
    ):
        self.objects = objects
        self.threads = threads
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
        self.operators: dict[int, KindOperator] = {}
        for kind in self.kinds.run:
            replicates = router.replicates and kind.replicated
            operator_context = OperatorContext(
                self.space, self.window, task, context.tasks, router.uses_thresholds and kind.replicated, replicates,
                getattr(router, "prefix_only", False), context.size_of("distribution"), self.options,
                self.fading, router.uses_influence and kind.ranged, self.objects, context.size_of("tuples"),
            )  # fmt: skip
            self.operators[kind.code] = kind.make_operator(operator_context, self.engines.get(kind.name))
        self.boundary = Boundary(-1, 0, -1, NO_FLOOR)
        self.watermark_emitted = -1  # to all delivery tasks
        self._begin(0)
        self.relaxing: dict[tuple[int, int], tuple[int, int]] = {}  # kind, request -> answers missing, largest batch
        self.finished = self.results_emitted = False
        self.subscriptions = self.raises_sent = 0
        self.met = 0  # messages that matched a subscription to a region here
        self.lost = 0  # messages that would have matched, but were withheld by the signature
        self.lost_pairs = dict.fromkeys(self.operators, 0)
        self.signature = self._new_signature()
        self.owners = Owners(context.size_of("delivery"))
        self.kind_threads: KindThreads[int] = KindThreads(self.threads)

    def _new_signature(self) -> QuerySignature | None:
        router, task = self.router, self.context.task
        spec = router.signatures
        return None if spec is None else QuerySignature(spec, router.domain_of(task), task)

    def _begin(self, first: int) -> None:
        """Expect batches from `first` on."""
        self.inputs = InOrder({"parts": 1, "changes": 1}, first=first, name=f"query:{self.context.task}")
        self.resting: set[int] = set()  # codes of kinds that have nothing to do (`_rests`)
        self.exchanges = {
            kind.code: Exchange(kind.code, self.context, first)
            for kind in self.kinds.run
            if self.router.exchanges(kind.code)
        }

    def execute(self, delivery: Delivery) -> None:
        payload = delivery.payload
        if delivery.stream in ("whole", "parts"):
            number, part = payload.boundary.number, self._own_part(payload)
            if not part.has_changes and self.inputs.take_whole(number):
                self._process(unchanged(number), part)
            else:
                self.inputs.put(number, "parts", part)
                if not part.has_changes:
                    self.inputs.put(number, "changes", unchanged(number))
            self._advance()
        elif delivery.stream == "changes":
            self.inputs.put(payload.batch, "changes", payload)
            self._advance()
        elif delivery.stream == "hits":
            self.exchanges[payload.kind].receive(payload, delivery.task)
            self._emit_late(self._close(payload.kind))
        elif delivery.stream == "answer":
            output = capable(self.operators[payload.kind], Windowed).answer(payload.request, payload.body)
            self._emit_late([self._emit_requests(payload.kind, output)])
        elif delivery.stream == "relaxed":
            self._note_relaxed(payload)
        elif delivery.stream == "register":
            register = payload.body
            capable(self.operators[payload.kind], Replicated).register(
                payload.home, register.number, register.version, register.rows, register.changes_through
            )
        else:
            capable(self.operators[payload.kind], Replicated).raise_thresholds(payload.body)

    def finish(self) -> None:
        self.finished = True
        self._emit_results()

    def idle(self) -> bool:
        return self.watermark == self.boundary.number

    def quiet(self) -> bool:
        return self.idle()

    @property
    def watermark(self) -> int:
        """Number of the last batch up to which all updates are out."""
        working = [each.watermark for code, each in self.operators.items() if code not in self.resting]
        return min(working, default=self.boundary.number)

    def report(self) -> dict[str, Any]:
        names = {code: self.kinds[code].name for code in self.operators}
        return ({} if self.signature is None else self.signature.describe()) | {
            "subscriptions": {names[code]: len(operator) for code, operator in self.operators.items()},
            "operator_bytes": {
                names[code]: sum(array.nbytes for array in operator.arrays().values())
                for code, operator in self.operators.items()
            },
            "subscriptions_taken": self.subscriptions,
            "operators": {names[code]: operator.report() for code, operator in self.operators.items()},
            "hits_sent": {names[code]: exchange.sent for code, exchange in self.exchanges.items()},
            "raises_sent": self.raises_sent,
            "messages_met": self.met,
            "messages_lost": self.lost,
            "pairs_lost": {names[code]: pairs for code, pairs in self.lost_pairs.items()},
            "engines": {names[code]: self.kinds[code].chosen(self.engines.get(names[code])) for code in self.operators},
        }

    # -- batches

    def _own_part(self, part: Part) -> Part:
        """A part with the messages for this task alone."""
        if part.targets is None:
            return part
        rows, messages = rows_for(part.targets, self.context.task), part.messages
        mine = messages if rows.shape[0] == len(messages) else messages.take(rows)
        return part._replace(messages=mine, targets=None)

    def _advance(self) -> None:
        while (ready := self.inputs.pop()) is not None:
            self._process(ready.payloads["changes"][0], ready.payloads["parts"][0])

    def _process(self, changes: ChangeList, part: Part) -> None:
        self.boundary = part.boundary
        added = changes.added
        assigned = _NO_MARK
        if len(added):
            assigned = self.router.assigned_in(changes, self.context.task)
            self.subscriptions += int(np.count_nonzero(assigned))
        if self.signature is not None:
            self._send_signature(part.boundary.number, added.take(np.flatnonzero(assigned)), changes.removed)
        updates, met, missed = [], [], []
        added_kinds = set(added.kind.tolist()) if len(added) else ()
        jobs: dict[int, Callable[[], _KindOutput]] = {}
        for kind in self.kinds.run:
            code, operator = kind.code, self.operators[kind.code]
            if code not in added_kinds and (code in self.resting or self._rests(code, part.boundary.number)):
                operator.pass_over(part.boundary)
                if code in self.exchanges:
                    self.exchanges[code].pass_over()
                continue
            self.resting.discard(code)
            jobs[code] = partial(self._match, code, self._operator_input(kind, part, changes, assigned))
        for code, output in self.kind_threads.run(jobs).items():
            if output.patch is not None:
                self.context.emit("influence", Addressed(code, self.context.task, part.boundary.number, output.patch))
            if output.met.shape[0]:
                met.append(output.met)
            if output.missed.shape[0]:
                missed.append(output.missed)
                self.lost_pairs[code] += output.missed.shape[0]
            if output.closed is None:
                self.exchanges[code].put(part.boundary.number, output.matched)
                updates += self._close(code)
            else:
                updates.append(self._emit_requests(code, output.closed))
        self.met += met[0].shape[0] if len(met) == 1 else np.unique(np.concatenate(met)).shape[0] if met else 0
        if missed:
            self.lost += np.unique(np.concatenate(missed)).shape[0]
        some = [each for each in updates if len(each)]
        emitted = concatenate(some) if len(some) > 1 else some[0] if some else NO_UPDATES
        watermark = self.watermark
        for owner, own in enumerate(self.owners.split(emitted)):
            self.context.emit("updates", Closed(part.boundary, watermark, own), to=owner)
        self.watermark_emitted = watermark

    def _match(self, code: int, operator_input: OperatorInput) -> "_KindOutput":
        """Match a batch for one kind, and close it unless other tasks send hits; runs in a thread of its own."""
        operator = self.operators[code]
        matched = operator.match(operator_input)
        patch = None
        if self.router.uses_influence and isinstance(operator, Ranged):
            patch = operator.influence_patch(len(operator_input.added) > 0)
        met, missed = (operator.met, operator.missed) if isinstance(operator, Regional) else (_NO_SEQS, _NO_SEQS)
        closed = None if code in self.exchanges else operator.close(matched.own_hits, [])
        return _KindOutput(matched, patch, met, missed, closed)

    def _rests(self, code: int, batch: int) -> bool:
        """Whether a kind has no subscription and no open refill here, and no other task may send hits for it.

        Called with each batch that adds none: what rests goes on resting until one does.
        """
        if code not in self.resting:
            operator, exchange = self.operators[code], self.exchanges.get(code)
            if (exchange is None or exchange.idle) and not len(operator) and operator.watermark == batch - 1:
                self.resting.add(code)
        return code in self.resting

    def _operator_input(self, kind: Kind, part: Part, changes: ChangeList, assigned: np.ndarray) -> OperatorInput:
        """The part of a batch and its changes that concerns one kind."""
        task, router = self.context.task, self.router
        if not len(changes.added) and not changes.removed.number.shape[0]:  # as in most small batches
            return self._input_without_changes(kind, part, changes)
        rows = np.flatnonzero(changes.added.kind == kind.code)
        home = np.full(rows.shape[0], task, np.int64)
        mine = assigned[rows]
        added = changes.added
        if kind.code in self.exchanges and rows.shape[0]:
            home, holders = router.homes_of(changes.added.take(rows))
            self.exchanges[kind.code].note(home, holders)
            here = np.flatnonzero(mine | (home == task))
        else:
            here = np.flatnonzero(mine)
        if self.owners.tasks > 1 and here.shape[0]:
            self.owners.note(added.number[rows[here]], changes.names.take(rows[here]))
        if here.shape[0] < len(added):
            added = added.take(rows[here])
        unchanged = self._input_without_changes(kind, part, changes)
        removed = changes.removed.of_kind(kind.code)
        return unchanged._replace(added=added, home=home[here], assigned=mine[here], removed=removed)

    def _input_without_changes(self, kind: Kind, part: Part, changes: ChangeList) -> OperatorInput:
        """The messages of a batch that concern one kind, with the changes of a list that has none."""
        router = self.router
        if self.objects and kind.message_place == "box":
            # either version of a pair may be another task's, and both are tested: ownership is of single updates
            return OperatorInput(
                part.boundary,
                part.messages,
                part.ended,
                changes.added,
                _NO_HOME,
                _NO_MARK,
                changes.removed,
                self._owned,
            )
        whole = traced(part.messages) if self.objects and len(part.messages) else part.messages
        messages, withheld = self._owned_rows(kind.code, whole), part.withheld
        shared = kind.message_place == "box" and len(messages) > 0 and router.shares_pairs(messages)
        if len(withheld):
            withheld = self._owned_rows(kind.code, withheld)
            shared |= kind.message_place == "box" and len(withheld) > 0 and router.shares_pairs(withheld)
        ended = part.ended if kind.needs_ended or self.objects else NO_MESSAGES
        owned = self._owned if shared else None
        return OperatorInput(
            part.boundary, messages, ended, changes.added, _NO_HOME, _NO_MARK, changes.removed, owned, withheld
        )

    def _owned_rows(self, kind: int, messages: MessageBatch) -> MessageBatch:
        """The messages that this task must match for a kind."""
        wanted = self.router.rows_for(kind, messages, self.context.task) if len(messages) else None
        return messages if wanted is None or wanted.size == len(messages) else messages.take(wanted)

    def _close(self, code: int) -> list[UpdateBatch]:
        """Close the batches of a replicated kind for which all hits have arrived."""
        operator = self.operators[code]
        return [self._emit_requests(code, operator.close(mine, found)) for mine, found in self.exchanges[code].ready()]

    def _owned(self, region, messages, row):
        """`OperatorInput.owned`: which pairs this task reports."""
        return self.router.owned_pairs(region, messages, row, self.context.task)

    def _send_signature(self, batch: int, added: SubscriptionTable, removed: Removals) -> None:
        """Send the signature to the distribution tasks if this batch changed it. All earlier batches are routed."""
        assert self.signature is not None
        region = self.router.traits.region
        added = added.take(np.flatnonzero(region[added.kind]))
        leaving, strict = [], [(np.zeros((0, 4)), np.zeros(0, np.int32))]
        for code, operator in self.operators.items():
            if region[code]:
                removed_here = removed.of_kind(code).number
                leaving.append(removed_here[operator.contains(removed_here)])
                if isinstance(operator, Regional):
                    strict.append(operator.claims(leaving[-1]))
        regions, terms = (np.concatenate(column) for column in zip(*strict, strict=True))
        staying = added.take(np.flatnonzero(~np.isin(added.number, removed.number)))
        claims = Claims(regions, np.arange(terms.shape[0] + 1), terms)
        self.signature.follow(staying, np.concatenate(leaving), claims)
        patch = self.signature.patch(batch, noted=len(added) > 0)
        if patch is not None:
            self.context.emit("signature", patch)

    # -- window queries and thresholds

    def _emit_requests(self, code: int, output: OperatorOutput) -> UpdateBatch:
        """Send the window queries, relaxations and thresholds of an output; returns its updates."""
        task = self.context.task
        for number, query in output.window_requests:
            if not query.more:
                self.context.count("refills", query.rows[0].shape[0])
            self._emit_query(Addressed(code, task, number, query))
        for relax in output.relaxes:
            self.context.count("refills", relax.number.shape[0])
            self.relaxing[code, relax.request] = (self.context.size_of("distribution"), -1)
            self.context.emit("relax", Addressed(code, task, relax.request, Relaxing(relax.number, relax.version)))
        if output.raised.number.size and self.router.uses_thresholds:
            self.context.emit("raise", Addressed(code, task, 0, output.raised))
            if self.router.replicates and self.kinds[code].replicated:
                self._emit_to_replicas(code, output)
        for name, amount in zip(Work._fields, output.work, strict=True):
            self.context.count(name, amount)
        return output.updates

    def _emit_to_replicas(self, code: int, output: OperatorOutput) -> None:
        """Send raised thresholds to the query tasks with replicas."""
        wanted = capable(self.operators[code], Replicated).replica_tasks(output.raised.number)
        for task in range(self.context.tasks):
            mine = np.flatnonzero(wanted[:, task])
            if task != self.context.task and mine.size:
                self.raises_sent += mine.size
                self.context.emit(
                    "thresholds", Addressed(code, self.context.task, 0, take_rows(output.raised, mine)), to=task
                )

    def _note_relaxed(self, relaxed: Addressed) -> None:
        """Count one distribution task's answer to `relax`; after the last answer, send the window query."""
        key = relaxed.kind, relaxed.request
        missing, last_batch = self.relaxing.pop(key)
        last_batch = max(last_batch, relaxed.body.last_batch)
        if missing > 1:
            self.relaxing[key] = (missing - 1, last_batch)
            return
        number, query = capable(self.operators[relaxed.kind], Replicated).relaxed(relaxed.request, last_batch)
        self._emit_query(Addressed(relaxed.kind, self.context.task, number, query))

    def _emit_query(self, request: Addressed) -> None:
        """Send a window query to the aggregation task of its boundary, which joins it with others."""
        self.context.emit("window_query", request, to=request.body.as_of.number % self.context.size_of("aggregation"))

    # -- updates

    def _emit_late(self, updates: list[UpdateBatch]) -> None:
        """Emit updates of batches whose regular updates this task has emitted already, and a new watermark."""
        if updates:
            watermark = self.watermark
            for owner, own in enumerate(self.owners.split(concatenate(updates))):
                if len(own) or watermark > self.watermark_emitted:
                    self.context.emit("late", Late(watermark, own), to=owner)
            self.watermark_emitted = watermark
        if self.finished:
            self._emit_results()

    def _emit_results(self) -> None:
        if self.idle() and not self.results_emitted:
            self.results_emitted = True
            # kinds without subscriptions are skipped, since their kernels would be loaded
            standing = [
                each.results() for each in self.operators.values() if isinstance(each, ResultOperator) and len(each)
            ]
            nothing = ResultBatch(*empty(ResultBatch)[:4])
            results = concatenate([each for each in standing if len(each)] or [nothing])
            for owner, own in enumerate(self.owners.split(results)):
                self.context.emit("results", own, to=owner)

    # -- checkpoints

    def snapshot(self, stored: Mapping[str, int]) -> Mapping[str, Fragment]:
        """Copies of results, and of subscriptions that changed; the subscriptions of each kind are one fragment."""
        counts = np.array([self.subscriptions, self.raises_sent])
        arrays = {"boundary": np.array(self.boundary, np.int64), "counts": counts}
        if self.signature is not None:  # the report compares these counts with those of the distribution tasks
            arrays["met"] = np.array([self.met, self.lost, *self.lost_pairs.values()])
        fragments, results = {}, []
        for code, operator in self.operators.items():
            kind = self.kinds[code]
            # several tasks may have a subscription: the lowest of them saves it
            if self.router.exchanges_hits and not kind.standing:
                arrays |= named(kind.name, self._saved_here(operator.state()).arrays())
                continue
            taken = operator.snapshot(stored.get(kind.name))
            if taken.subscriptions is not None:
                fragments[kind.name] = Fragment(partial(_made, kind.name, taken.subscriptions), taken.version)
            results.append(partial(_made, kind.name, taken.results))

        def others() -> dict[str, np.ndarray]:
            return arrays | {name: values for made in results for name, values in made().items()}

        return {"": Fragment(others), **fragments}

    def _saved_here(self, state: State) -> State:
        """The rows of a state that are assigned to no task with a lower number."""
        lower = [self.router.assigned_to(state.table, task) for task in range(self.context.task)]
        return state.take(np.flatnonzero(~np.logical_or.reduce(lower))) if lower else state

    def restore(self, saved: Saved) -> None:
        before = saved.tasks(self.context.component)
        self.boundary = Boundary(*map(int, before[0]["boundary"]))
        self.watermark_emitted = saved.number
        self._begin(saved.number + 1)
        if self.context.task == 0:  # totals of all tasks
            self.subscriptions, self.raises_sent = np.sum([task["counts"] for task in before], 0).tolist()
            if "met" in before[0]:
                self.met, self.lost, *pairs = np.sum([task["met"] for task in before], 0).tolist()
                self.lost_pairs = dict(zip(self.lost_pairs, pairs, strict=True))
        self.router = router_of(saved, self.router)
        self.signature = self._new_signature()
        if self.owners.tasks > 1:
            self.owners.restore(delivered_of(saved))
        states = subscriptions_of(saved, self.kinds)
        # all kinds together, since placement by cost weighs each subscription against all others
        all_rows = concatenate([state.table for state in states.values()])
        assigned_of_all = self.router.assigned_on_resume(all_rows, self.context.task, placement_of(saved))
        sizes = {code: len(state.table) for code, state in states.items()}
        cuts = np.cumsum([*sizes.values()])[:-1]
        jobs: dict[int, Callable[[], None]] = {}
        for (code, state), assigned in zip(states.items(), np.split(assigned_of_all, cuts), strict=True):
            table = state.table
            home = np.full(len(table), self.context.task, np.int64)
            here = assigned
            if code in self.exchanges:
                home, holders = self.router.homes_of(table)
                self.exchanges[code].note(home, holders)
                here = assigned | (home == self.context.task)
            rows = np.flatnonzero(here)
            mine = state if rows.shape[0] == sizes[code] else state.take(rows)
            jobs[code] = partial(self.operators[code].restore, self.boundary, mine, home[rows], assigned[rows])
        restoring: KindThreads[int] = KindThreads(self.threads)
        restoring.expect({code: _RESTORE_S * size for code, size in sizes.items()})
        restoring.run(jobs)
        if self.signature is not None:
            mine = all_rows.take(np.flatnonzero(assigned_of_all & self.router.traits.region[all_rows.kind]))
            no_claims = Claims(np.zeros((0, 4)), np.zeros(1, np.int64), np.zeros(0, np.int32))
            self.signature.follow(mine, np.zeros(0, np.int64), no_claims)


def _made(kind: str, make: Callable[[], State]) -> dict[str, np.ndarray]:
    return named(kind, make().arrays())
