"""A top-k stream and its window in one process: what benchmarks and tests drive without a topology.

Read on in `matching.topk.stream`.
"""

from matching.model import MessageBatch, Removals, SubscriptionTable, concatenate
from matching.topk.index import TopkIndex
from matching.topk.steps import Step
from matching.topk.stream import TopkStream
from matching.topk.thresholds import ThresholdRule
from matching.topk.window_index import WindowQueries, merge_answers
from matching.topk.window_indexes import window_index as window_index_of
from matching.window import Boundary, Window


class LocalTopk:
    """Top-k in one process: a stream that refills from a window of its own. The bare engine of the benchmarks."""

    def __init__(
        self, index: TopkIndex, window: Window, rule: ThresholdRule | None = None, window_index: str | None = None
    ):
        self.stream = TopkStream(index, window, rule=rule)
        self.window_index = window_index_of(window_index)(index.max_distance, kept_boundaries=1)

    def process(self, boundary: Boundary, messages: MessageBatch, added: SubscriptionTable, removed: Removals) -> Step:
        """Take the next batch; every update of its boundary is in what comes back."""
        self.window_index.store(boundary, messages)
        steps = [self.stream.process(boundary, messages, added, removed)]
        refills = list(steps[0].refills)
        while refills:
            steps.append(self.refill(refills.pop(0).query))
            refills += steps[-1].refills
        return steps[0]._replace(updates=concatenate([step.updates for step in steps]))

    def refill(self, query: WindowQueries) -> Step:
        """Answer a request from the window."""
        return self.stream.install(merge_answers([self.window_index.query(query)]))
