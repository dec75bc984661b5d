"""The aggregation bolt: merges the tuple tasks' answers to a request and sends the whole one home.

Read on in `matching.topk.window_index.merge_answers`, and in `bolts.query`, where the answer goes.
"""

from typing import Any

from bolts.payloads import WindowAnswers
from matching.topk.window_index import merge_answers
from topology.component import Bolt, Context, Delivery


class AggregationBolt(Bolt):
    """Merges partial answers, request by request."""

    def prepare(self, context: Context) -> None:
        self.context = context
        self.tuple_tasks = context.size_of("tuples")
        self.partial: dict[tuple[int, int], list[WindowAnswers]] = {}
        self.requests = 0

    def execute(self, delivery: Delivery) -> None:
        answers: WindowAnswers = delivery.payload
        parts = self.partial.setdefault((answers.home, answers.request), [])
        parts.append(answers)
        if len(parts) == self.tuple_tasks:
            del self.partial[answers.home, answers.request]
            self.requests += 1
            self.context.emit("refilled", merge_answers(parts), to=answers.home)

    def report(self) -> dict[str, Any]:
        return {"requests": self.requests}
