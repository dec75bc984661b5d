"""The aggregation bolt: merges the tuple tasks' answers to a window query and sends the whole answer home."""

from typing import Any

from bolts.payloads import Addressed
from matching.kind_table import Kinds
from matching.kinds import KINDS
from topology.core.api.component import Bolt, Context, Delivery


class AggregationBolt(Bolt):
    """Merges partial answers, one of each tuple task, request by request."""

    def __init__(self, kinds: Kinds = KINDS):
        self.kinds = kinds

    def prepare(self, context: Context) -> None:
        self.context = context
        self.parts = context.size_of("tuples")
        self.partial: dict[tuple[int, int, int], list[Any]] = {}
        self.requests = 0

    def execute(self, delivery: Delivery) -> None:
        answer: Addressed = delivery.payload
        request = (answer.kind, answer.home, answer.request)
        parts = self.partial.setdefault(request, [])
        parts.append(answer.body)
        if len(parts) == self.parts:
            del self.partial[request]
            self.requests += 1
            merged = self.kinds[answer.kind].window().merge(parts)
            self.context.emit("answer", answer._replace(body=merged), to=answer.home)

    def quiet(self) -> bool:
        return not self.partial

    def report(self) -> dict[str, Any]:
        return {"requests": self.requests}
