"""The aggregation bolt: sends the window queries of several homes as one, and merges the tuple tasks' answers to it.

Homes send the queries of a boundary to one aggregation task. Queries that are there together go to the tuple tasks as
one: a tuple task searches its part of the window once for all of them, and the parcels of a boundary are as many as
there are tasks, not as pairs of tasks. No query waits for one that has not been sent.
"""

from typing import Any, NamedTuple

from bolts.payloads import Addressed, Collecting
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import concatenate
from topology.core.api.component import Bolt, Context, Delivery


class _Joined(NamedTuple):
    """Window queries that were sent as one, how many rows each has, and the answers to it so far."""

    requests: list[Addressed]
    rows: list[int]
    answers: list[Any]


class AggregationBolt(Bolt):
    """Joins window queries, and merges partial answers, one of each tuple task."""

    def __init__(self, kinds: Kinds = KINDS):
        self.kinds = kinds

    def prepare(self, context: Context) -> None:
        self.context = context
        self.parts = context.size_of("tuples")
        self.homes = context.size_of("query")
        self.waiting: list[Addressed] = []
        self.joined: dict[int, _Joined] = {}
        self.queries = self.requests = 0

    def execute(self, delivery: Delivery) -> None:
        if delivery.stream == "partial":
            self._merge(delivery.payload)
            return
        if delivery.stream == "window_query":
            self.waiting.append(delivery.payload)
            if self.homes > 1:
                if len(self.waiting) == 1:  # behind the queries that have arrived already
                    self.context.emit("collected", Collecting(self.queries), to=self.context.task)
                return
        self._send()

    def quiet(self) -> bool:
        return not self.waiting and not self.joined

    def report(self) -> dict[str, Any]:
        return {"requests": self.requests, "queries": self.queries}

    def _send(self) -> None:
        """Send the queries that wait; those of one kind and boundary as one."""
        together: dict[tuple[int, ...], list[Addressed]] = {}
        for request in self.waiting:
            query = request.body
            key = (request.kind, query.as_of.number, query.up_to, query.onward, query.more)
            together.setdefault(key, []).append(request)
        self.waiting = []
        for requests in together.values():
            first, rows = requests[0], [request.body.rows for request in requests]
            counts = [each[0].shape[0] for each in rows]
            self.joined[self.queries] = _Joined([each._replace(body=None) for each in requests], counts, [])
            query = first.body._replace(rows=concatenate(rows))
            self.context.emit("joined_query", Addressed(first.kind, self.context.task, self.queries, query))
            self.queries += 1

    def _merge(self, answer: Addressed) -> None:
        joined = self.joined[answer.request]
        joined.answers.append(answer.body)
        if len(joined.answers) < self.parts:
            return
        del self.joined[answer.request]
        self.requests += len(joined.requests)
        window = self.kinds[answer.kind].window()
        for request, body in zip(joined.requests, window.split(window.merge(joined.answers), joined.rows), strict=True):
            self.context.emit("answer", request._replace(body=body), to=request.home)
