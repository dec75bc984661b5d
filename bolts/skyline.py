"""The skyline subscriptions of a query task, which may share them with others.

A task matches the messages whose place is its own, and their ends, against every skyline it holds. A skyline has one
home among its holders; what the others find goes there, one payload a batch to every home of which a task has ever held
a subscription, empty ones included: they are the marker of the batch. All tasks take the same change lists, so each
knows from whom to expect markers. The home closes a batch when it has them all; its updates go out with the batch if
nothing was missing, and as `Late` otherwise, so that those of the other kinds need not wait. `hashing` gives a
subscription to one task and every message to all, so nothing is ever missing there.

Where a skyline is new, or loses a message that kept others out, the tuple tasks are asked for its candidates. Read on
in `matching.skyline.home`, which does the work.
"""

from typing import Any

import numpy as np

from bolts.ordering import InOrder
from bolts.payloads import FoundOfBatch, Part, SkylineAnswers
from distribution.router import Router
from matching.model import SKYLINE, ChangeList, ResultBatch, UpdateBatch, concatenate
from matching.skyline.engine import SkylineEngine
from matching.skyline.home import HomeStep, Matched, SkylineHome
from topology.core.component import Context


class SharedSkylines:
    """What a query task does for its skylines.

    Parameters
    ----------
    engine : SkylineEngine    empty
    router : Router
    context : Context         of the query task
    """

    def __init__(self, engine: SkylineEngine, router: Router, context: Context):
        self.router = router
        self.context = context
        self.task, self.tasks = context.task, context.tasks
        self.home = SkylineHome(engine, self.task)
        self.inputs = InOrder({"own": 1, "found": self.tasks}, name=f"query:{self.task} as home of skylines")
        # sends[h, t]: task t holds, or has held, subscriptions at home at h
        self.sends = np.zeros((self.tasks, self.tasks), np.bool_)
        self.sent = 0

    def __len__(self) -> int:
        """Subscriptions held, replicas included."""
        return len(self.home)

    @property
    def complete_through(self) -> int:
        """Number of the last batch up to which every event has been told."""
        return self.home.complete_through

    def report(self) -> dict[str, Any]:
        """Figures for the end of the run."""
        return {
            "skylines_at_home": self.home.at_home(),
            "skyline_requests": self.home.requests,
            "skyline_pairs": self.home.pairs,
            "skyline_pairs_sent": self.sent,
        }

    def results(self) -> ResultBatch:
        """Standing skylines of those at home here."""
        return self.home.results()

    def take(self, part: Part, changes: ChangeList) -> UpdateBatch | None:
        """Match the next batch; returns what is told if it could be closed at once, else None."""
        boundary = part.boundary
        added = changes.added.of_kind(SKYLINE)
        if len(added):
            home, held = self.router.homes_of(added)
            for task in range(self.tasks):
                self.sends[home[held[:, task]], task] = True
            mine = np.flatnonzero(held[:, self.task])
            added, home = added.take(mine), home[mine]
        else:
            home = added.number
        if not self.sends.any():
            self._put(boundary.number, None)
            self.inputs.take()
            self.home.pass_over(boundary)
            return None
        gone = changes.removed.number[changes.removed.kind == SKYLINE]
        gone = gone[self.home.holds(gone) | np.isin(gone, added.number)]
        rows = self.router.skyline_rows(part.messages, self.task)
        messages = part.messages if rows is None else part.messages.take(rows)
        before = self.home.scanned
        matched, found = self.home.match(boundary, messages, part.ended, added, home, gone, self.tasks)
        self.context.count("scanned", self.home.scanned - before)
        for task in range(self.tasks):
            if task != self.task and self.sends[task, self.task]:
                self.sent += found[task].number.shape[0]
                self.context.emit("found_skyline", FoundOfBatch(boundary.number, found[task]), to=task)
        self._put(boundary.number, matched)
        return self._close()

    def hear(self, found: FoundOfBatch, sender: int) -> UpdateBatch | None:
        """Take what another task found; returns what is told if that closes a batch."""
        self.inputs.put(found.batch, "found", found.found, sender)
        return self._close()

    def install(self, answers: SkylineAnswers) -> UpdateBatch:
        """Take the candidates that were asked for; returns what is told of the batches closed meanwhile."""
        return self._ask(self.home.install(answers))

    def _put(self, batch: int, matched: Matched | None) -> None:
        """This task has matched a batch; nothing will come from those that hold no skyline at home here."""
        self.inputs.put(batch, "own", matched)
        for task in range(self.tasks):
            if task == self.task or not self.sends[self.task, task]:
                self.inputs.put(batch, "found", None, task)

    def _close(self) -> UpdateBatch | None:
        updates = []
        while (ready := self.inputs.take()) is not None:
            found = [each for each in ready.payloads["found"] if each is not None]
            updates.append(self._ask(self.home.close(ready.payloads["own"][0], found)))
        return concatenate(updates) if updates else None

    def _ask(self, step: HomeStep) -> UpdateBatch:
        for ask in step.asks:
            self.context.count("refills", ask.region.shape[0])
            self.context.emit("ask_skyline", ask)
        return step.updates
