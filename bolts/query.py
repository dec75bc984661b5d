"""The query bolt: holds subscriptions, matches batches, keeps results.

A task takes batches strictly in order, each together with the subscription changes that belong to it, and closes a
batch by telling delivery what changed. Boolean matches are told at once. Top-k buffers that run short pend: the task
first has the routers relax them, if thresholds play a part in routing, then asks the tuple tasks for the window
as of the boundary, and leads them up to the present when the answer has come. Nothing ever waits. Skylines, which
several tasks may share, are the matter of `bolts.skyline`.
Read on in `matching.boolean.stream` and `matching.topk.stream`, which do the work.
"""

from typing import Any

import numpy as np

from bolts.ordering import InOrder
from bolts.payloads import Closed, Late, Part, Raise, Relax, Relaxed
from bolts.skyline import SharedSkylines
from distribution.router import Router, has_region
from distribution.signatures.signature import QuerySignature
from matching import registry
from matching.boolean.stream import BooleanStream
from matching.model import (
    BOOLEAN,
    SKYLINE,
    TOPK,
    ChangeList,
    Removals,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    empty,
)
from matching.space import Space
from matching.topk import thresholds
from matching.topk.steps import Refill, Step
from matching.topk.stream import TopkStream
from matching.window import Boundary, Window
from topology.core.component import Bolt, Context, Delivery


class QueryBolt(Bolt):
    """Holds the subscriptions the router gives to this task.

    Parameters
    ----------
    router : Router
    space : Space
    window : Window
    engines : dict of kind to engine name
        See `matching.registry`; kinds left out get the default.
    threshold_rule : str, optional
        See `matching.topk.thresholds`.
    """

    def __init__(
        self,
        router: Router,
        space: Space,
        window: Window,
        engines: dict[str, str],
        threshold_rule: str | None = None,
    ):
        self.threshold_rule = threshold_rule
        self.router = router
        self.space = space
        self.window = window
        self.engines = engines

    def prepare(self, context: Context) -> None:
        self.context = context
        self.boolean = BooleanStream(registry.factory("boolean", self.engines.get("boolean"))(self.space))
        index = registry.factory("topk", self.engines.get("topk"))(self.space)
        self.topk = TopkStream(index, self.window, context.task, thresholds.rule(self.threshold_rule))
        engine = registry.factory("skyline", self.engines.get("skyline"))(self.space)
        self.skyline = SharedSkylines(engine, self.router, context)
        self.inputs = InOrder({"parts": 1, "changes": 1}, name=f"query:{context.task}")
        self.boundary = Boundary(-1, 0, -1, 0)
        self.relaxing: dict[int, tuple[int, int]] = {}  # request -> answers still missing, largest batch so far
        self.finished = self.told = False
        self.subscriptions = 0
        self.requests = 0
        self.met = 0  # messages that match a boolean subscription here, or are a candidate of a skyline one
        spec, task = self.router.signatures, context.task
        self.signature = None if spec is None else QuerySignature(spec, self.router.domain_of(task), task)

    def execute(self, delivery: Delivery) -> None:
        payload = delivery.payload
        if delivery.stream in ("whole", "parts"):
            self.inputs.put(payload.boundary.number, "parts", payload)
            self._advance()
        elif delivery.stream == "changes":
            self.inputs.put(payload.batch, "changes", payload)
            self._advance()
        elif delivery.stream == "relaxed":
            self._note_relaxed(payload)
        elif delivery.stream == "found_skyline":
            self._tell_late(self.skyline.hear(payload, delivery.task))
        elif delivery.stream == "refilled_skyline":
            self._tell_late(self.skyline.install(payload))
        else:
            self._install(payload)

    def finish(self) -> None:
        self.finished = True
        self._tell_results()

    def idle(self) -> bool:
        return self.complete_through == self.boundary.number

    @property
    def complete_through(self) -> int:
        """Number of the last batch up to which every event has been told."""
        return min(self.topk.complete_through, self.skyline.complete_through)

    def report(self) -> dict[str, Any]:
        return ({} if self.signature is None else self.signature.describe()) | {
            "held": {"boolean": len(self.boolean), "topk": len(self.topk), "skyline": len(self.skyline)},
            "subscriptions_taken": self.subscriptions,
            "refill_requests": self.requests,
            **self.skyline.report(),
            "messages_met": self.met,
            "thresholds": self.topk.rule.describe(),
            "buffers": self.topk.buffers.describe(),
            "engines": {
                "boolean": type(self.boolean.engine).__name__,
                "topk": type(self.topk.index).__name__,
                "skyline": type(self.skyline.home.engine).__name__,
            },
        }

    def _advance(self) -> None:
        while (ready := self.inputs.take()) is not None:
            self._process(ready.payloads["changes"][0], ready.payloads["parts"][0])

    def _process(self, changes: ChangeList, part: Part) -> None:
        boundary, messages = part.boundary, part.messages
        self.boundary = boundary
        mine = np.flatnonzero(self.router.held_by(changes.added, self.context.task))
        added = changes.added.take(mine)
        self.subscriptions += len(added)
        topk = added.of_kind(TOPK)
        if self.signature is not None:
            self._sign(boundary.number, added, changes.removed)
        updates = self._match_boolean(boundary, part, added.of_kind(BOOLEAN), changes.removed)
        step = self.topk.process(boundary, messages, topk, self._known(changes.removed, topk))
        self._follow(step)
        self._count(step)
        # what depends on other tasks, which may be behind, follows as `Late`
        skylines = self.skyline.take(part, changes)
        # matches are in the order of their messages
        met = updates.as_of[np.diff(updates.as_of, prepend=-1) > 0]
        self.met += np.union1d(met, self.skyline.home.met).shape[0]
        updates = concatenate([updates, step.updates, skylines or empty(UpdateBatch)])
        self.context.emit("updates", Closed(boundary, self.complete_through, updates))
        self._install_early()

    def _known(self, removed: Removals, added) -> Removals:
        """Removals of top-k subscriptions that this task keeps, or is just being given."""
        gone = those(removed, TOPK)
        return rows_of(gone, (self.topk.index.store.find(gone.number) >= 0) | np.isin(gone.number, added.number))

    def _match_boolean(self, boundary: Boundary, part: Part, added, removed: Removals) -> UpdateBatch:
        gone = those(removed, BOOLEAN)
        known = self.boolean.engine.holds(gone.number) | np.isin(gone.number, added.number)
        rows = self.router.owned_rows(part.messages, self.context.task)
        messages = part.messages if rows is None or rows.size == len(part.messages) else part.messages.take(rows)
        before = (self.boolean.scanned, self.boolean.verified, self.boolean.matched)
        owned = self._owned if self.router.shares_pairs(part.messages) else None
        updates = self.boolean.process(boundary, messages, added, rows_of(gone, known), owned)
        after = (self.boolean.scanned, self.boolean.verified, self.boolean.matched)
        for name, old, new in zip(("scanned", "verified", "matched"), before, after, strict=True):
            self.context.count(name, new - old)
        return updates

    def _sign(self, batch: int, added: SubscriptionTable, removed: Removals) -> None:
        """Tell the distribution tasks what this batch's changes leave. Every earlier batch has been routed by now."""
        assert self.signature is not None
        boolean, skyline = those(removed, BOOLEAN).number, those(removed, SKYLINE).number
        left = np.concatenate([boolean[self.boolean.engine.holds(boolean)], skyline[self.skyline.home.holds(skyline)]])
        added = added.take(np.flatnonzero(has_region(added)))
        staying = added.take(np.flatnonzero(~np.isin(added.number, removed.number[has_region(removed)])))
        self.signature.follow(staying, left, self.boolean.engine.rows)
        patch = self.signature.patch(batch, noted=len(added) > 0)
        if patch is not None:
            self.context.emit("signature", patch)

    def _owned(self, region, messages, row):
        return self.router.owned_pairs(region, messages, row, self.context.task)

    def _follow(self, step: Step) -> None:
        """Send out what a step of the top-k stream asks for."""
        for refill in step.refills:
            self.requests += 1
            self.context.count("refills", refill.query.number.shape[0])
            if refill.relax and self.router.uses_thresholds:
                self._relax(refill)
            else:
                self.context.emit("ask", refill.query)
        number, version, threshold = step.raised
        if self.router.uses_thresholds and number.size:
            self.context.emit("raise", Raise(number, version, threshold))

    def _relax(self, refill: Refill) -> None:
        request = refill.query.request
        self.relaxing[request] = (self.context.size_of("distribution"), -1)
        self.context.emit("relax", Relax(request, self.context.task, refill.query.number, refill.versions))

    def _note_relaxed(self, relaxed: Relaxed) -> None:
        missing, last_batch = self.relaxing.pop(relaxed.request)
        last_batch = max(last_batch, relaxed.last_batch)
        if missing > 1:
            self.relaxing[relaxed.request] = (missing - 1, last_batch)
            return
        self.context.emit("ask", self.topk.relaxed_up_to(relaxed.request, last_batch))

    def _install(self, answers) -> None:
        step = self.topk.install(answers)
        self._follow(step)
        self._count(step)
        self._tell_late(step.updates)

    def _tell_late(self, updates: UpdateBatch | None) -> None:
        """Tell of boundaries that were closed before; None if there is nothing new to know."""
        if updates is not None:
            self.context.emit("late", Late(self.complete_through, updates))
        if self.finished:
            self._tell_results()

    def _install_early(self) -> None:
        """Answers that came before the last of the batches they cover."""
        for answers in self.topk.take_early():
            self._install(answers)

    def _tell_results(self) -> None:
        if self.idle() and not self.told:
            self.told = True
            results = self.topk.results()
            self.context.emit(
                "results", concatenate([results, self.skyline.results()]) if len(self.skyline) else results
            )

    def _count(self, step: Step) -> None:
        for name in ("scanned", "verified", "matched"):
            self.context.count(name, getattr(step, name))


def those(removed: Removals, kind: int) -> Removals:
    """Removals of one kind."""
    return rows_of(removed, removed.kind == kind)


def rows_of(removed: Removals, mask: np.ndarray) -> Removals:
    return Removals(removed.number[mask], removed.kind[mask], removed.at[mask])
