"""The aggregation bolt: merges the tuple tasks' answers to a request and sends the whole one home.

Read on in `matching.topk.window_index.merge_answers`, its namesake in `matching.skyline.answers`, and in `bolts.query`,
where the answer goes.
"""

from typing import Any

from bolts.payloads import SkylineAnswers, WindowAnswers
from matching.skyline import answers as skyline_answers
from matching.topk import window_index
from topology.core.component import Bolt, Context, Delivery


class AggregationBolt(Bolt):
    """Merges partial answers, request by request."""

    def prepare(self, context: Context) -> None:
        self.context = context
        self.tuple_tasks = context.size_of("tuples")
        self.partial: dict[tuple[str, int, int], list] = {}
        self.requests = 0

    def execute(self, delivery: Delivery) -> None:
        answers: WindowAnswers | SkylineAnswers = delivery.payload
        request = (delivery.stream, answers.home, answers.request)
        parts = self.partial.setdefault(request, [])
        parts.append(answers)
        if len(parts) == self.tuple_tasks:
            del self.partial[request]
            self.requests += 1
            if delivery.stream == "partial_skyline":
                self.context.emit("refilled_skyline", skyline_answers.merge_answers(parts), to=answers.home)
            else:
                self.context.emit("refilled", window_index.merge_answers(parts), to=answers.home)

    def report(self) -> dict[str, Any]:
        return {"requests": self.requests}
