"""The tuple bolt: holds a share of the window's messages and answers refills from it.

A question "as of batch b, up to batch B" waits until batch B is stored. Answers of all tuple tasks to one request meet
at one aggregation task. Skylines ask as of a batch alone: whoever is home to one has put by what came after it. Their
window is another one, by keyword and with the ends of messages; it is not held where no skyline will ever ask.
Read on in `bolts.aggregation`.
"""

from typing import Any

from bolts.ordering import InOrder
from bolts.payloads import SkylineAsk, WindowQueries
from matching.errors import EngineError
from matching.skyline.answers import answer
from matching.skyline.window_plain import InvertedWindow
from matching.slots import part
from matching.topk.window_index import WindowIndex
from matching.topk.window_indexes import window_index
from topology.core.component import Bolt, Context, Delivery


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
    skylines : bool
        Whether skyline subscriptions may ask.
    """

    def __init__(
        self, max_distance: float, kept_boundaries: int, window_index: str | None = None, skylines: bool = True
    ):
        self.skylines = skylines
        self.window_index = window_index
        self.max_distance = max_distance
        self.kept_boundaries = kept_boundaries

    def prepare(self, context: Context) -> None:
        self.context = context
        self.window: WindowIndex = window_index(self.window_index)(self.max_distance, self.kept_boundaries)
        self.skyline_window = InvertedWindow(self.kept_boundaries) if self.skylines else None
        self.inputs = InOrder({"window": 1}, name=f"tuples:{context.task}")
        self.aggregation_tasks = context.size_of("aggregation")
        self.waiting: list[WindowQueries] = []
        self.waiting_skylines: list[SkylineAsk] = []
        self.answered = self.answered_skylines = 0

    def execute(self, delivery: Delivery) -> None:
        if delivery.stream == "ask":
            self.waiting.append(delivery.payload)
        elif delivery.stream == "ask_skyline":
            self.waiting_skylines.append(delivery.payload)
        else:
            self.inputs.put(delivery.payload.boundary.number, "window", delivery.payload)
            while (ready := self.inputs.take()) is not None:
                share = ready.payloads["window"][0]
                self.window.store(share.boundary, share.messages)
                if self.skyline_window is not None:
                    self.skyline_window.store(share.boundary, share.messages, share.ended.seq)
        self._answer()
        self._answer_skylines()

    def report(self) -> dict[str, Any]:
        return {
            "messages_held": len(self.window),
            "window_bytes": self.window.size_bytes(),
            "refilled_subscriptions": self.answered,
            "skyline_window_bytes": self.skyline_window.used_bytes() if self.skyline_window is not None else 0,
            "refilled_skylines": self.answered_skylines,
        }

    def snapshot(self):
        arrays = {f"topk_{name}": value for name, value in self.window.arrays().items()}
        if self.skyline_window is not None:
            arrays |= {f"skyline_{name}": value for name, value in self.skyline_window.arrays().items()}
        return arrays

    def restore(self, arrays) -> None:
        self.window = window_index(self.window_index).from_arrays(self.max_distance, part(arrays, "topk_"))
        if self.skyline_window is not None:
            self.skyline_window = InvertedWindow.from_arrays(part(arrays, "skyline_"))

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

    def _answer_skylines(self) -> None:
        still_waiting = []
        for asked in self.waiting_skylines:
            if self.skyline_window is None:
                raise EngineError(
                    f"tuples:{self.context.task}: a skyline subscription asks for a window that is not held; "
                    "give the topology skylines=True"
                )
            if asked.as_of.number > self.skyline_window.boundary.number:
                still_waiting.append(asked)
                continue
            answers = answer(self.skyline_window, asked)
            self.answered_skylines += asked.region.shape[0]
            self.context.emit("partial_skyline", answers, to=(asked.request + asked.home) % self.aggregation_tasks)
        self.waiting_skylines = still_waiting
