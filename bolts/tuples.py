"""The tuple bolt: holds a share of the window's messages and answers refills from it.

A question "as of batch b, up to batch B" waits until batch B is stored. Answers of all tuple tasks to one request meet
at one aggregation task. Read on in `bolts.aggregation`.
"""

from typing import Any

from bolts.ordering import InOrder
from bolts.payloads import WindowQueries
from matching.topk.window_index import WindowIndex
from matching.topk.window_indexes import window_index
from topology.component import Bolt, Context, Delivery


class TupleBolt(Bolt):
    """Stores messages and answers `WindowQueries`.

    Parameters
    ----------
    max_distance : float
        Diagonal of the scaled world box.
    kept_boundaries : int
        How far back questions may reach. With C credits, and acknowledgements held back while a refill is C batches
        behind, no batch is published more than 2 C after one that is still asked about.
    window_index : str, optional
        See `matching.topk.window_indexes`.
    """

    def __init__(self, max_distance: float, kept_boundaries: int, window_index: str | None = None):
        self.window_index = window_index
        self.max_distance = max_distance
        self.kept_boundaries = kept_boundaries

    def prepare(self, context: Context) -> None:
        self.context = context
        self.window: WindowIndex = window_index(self.window_index)(self.max_distance, self.kept_boundaries)
        self.inputs = InOrder({"window": 1}, name=f"tuples:{context.task}")
        self.aggregation_tasks = context.size_of("aggregation")
        self.waiting: list[WindowQueries] = []
        self.answered = 0

    def execute(self, delivery: Delivery) -> None:
        if delivery.stream == "ask":
            self.waiting.append(delivery.payload)
        else:
            self.inputs.put(delivery.payload.boundary.number, "window", delivery.payload)
            while (ready := self.inputs.take()) is not None:
                part = ready.payloads["window"][0]
                self.window.store(part.boundary, part.messages)
        self._answer()

    def report(self) -> dict[str, Any]:
        return {
            "messages_held": len(self.window),
            "window_bytes": self.window.size_bytes(),
            "refilled_subscriptions": self.answered,
        }

    def snapshot(self):
        return self.window.arrays()

    def restore(self, arrays) -> None:
        self.window = window_index(self.window_index).from_arrays(self.max_distance, arrays)

    def _answer(self) -> None:
        """Answer what can be answered; questions may overtake each other, since each names its boundary."""
        still_waiting = []
        for asked in self.waiting:
            if max(asked.up_to, asked.as_of.number) > self.window.stored_through:
                still_waiting.append(asked)
                continue
            answers = self.window.query(asked)
            self.answered += asked.number.shape[0]
            self.context.emit("partial", answers, to=(asked.request + asked.home) % self.aggregation_tasks)
        self.waiting = still_waiting
