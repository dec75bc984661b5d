"""Operators and window indexes in one process: a topology of one task of each bolt, without the topology.

Tests, benchmarks and warm-up run this, so that what is measured is what runs. A batch is stored, matched and closed;
window queries are answered at once, and all updates of a boundary are emitted before the next batch.

    engine = LocalEngine([KINDS.named("topk")], space, window)
    output = engine.process(boundary, messages, added, removed)
"""

from collections.abc import Iterable, Mapping

import numpy as np

from matching.half_life import DecayParameters
from matching.kind_table import Kind
from matching.model import (
    NO_MESSAGES,
    Int64,
    MessageBatch,
    Removals,
    ResultBatch,
    SubscriptionTable,
    concatenate,
    empty,
)
from matching.operator import (
    KindOperator,
    OperatorContext,
    OperatorInput,
    OperatorOutput,
    ResultOperator,
    Windowed,
    WindowIndex,
    WindowRequest,
    capable,
)
from matching.space import Space
from matching.storage.state import State
from matching.window import Boundary, Window


class LocalEngine:
    """Kinds in one process.

    Parameters
    ----------
    kinds : iterable of Kind
    space : Space
    window : Window
    engines, windows : mapping of kind to name
        The default for each kind that is not named.
    options : mapping
        As `matching.operator.OperatorContext.options`.
    fading : DecayParameters
        Required once a kind whose scores decay has subscriptions.
    window_tasks : int
        Number of window indexes of each kind; messages are distributed by seq.
    objects : bool
        As `matching.operator.OperatorContext.objects`.

    Attributes
    ----------
    operators, window_indexes : dict by code of kind
        Its operator; its window indexes.
    """

    def __init__(
        self,
        kinds: Iterable[Kind],
        space: Space,
        window: Window,
        *,
        engines: Mapping[str, str] | None = None,
        windows: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        fading: DecayParameters | None = None,
        window_tasks: int = 1,
        objects: bool = False,
    ):
        context = OperatorContext(space, window, options=options or {}, fading=fading, objects=objects)
        self.objects = objects
        self.kinds = tuple(kinds)
        self.operators: dict[int, KindOperator] = {}
        self.window_indexes: dict[int, list[WindowIndex]] = {}
        for kind in self.kinds:
            self.operators[kind.code] = kind.make_operator(context, (engines or {}).get(kind.name))
            if kind.windowed:
                name = (windows or {}).get(kind.name)
                self.window_indexes[kind.code] = [
                    kind.make_window(space, name, fading=fading) for _ in range(window_tasks)
                ]

    @property
    def operator(self) -> KindOperator:
        """The operator of the first kind."""
        return self.operators[self.kinds[0].code]

    @property
    def window_index(self) -> WindowIndex:
        """The first window index of the first kind."""
        return self.window_indexes[self.kinds[0].code][0]

    def process(
        self,
        boundary: Boundary,
        messages: MessageBatch,
        added: SubscriptionTable,
        removed: Removals,
        ended: MessageBatch = NO_MESSAGES,
    ) -> OperatorOutput:
        """Process the next batch; returns all updates of its boundary, kind by kind.

        ended : MessageBatch    as `bolts.payloads.StreamBatch.ended`
        """
        outputs = []
        for kind in self.kinds:
            indexes = self.window_indexes.get(kind.code, ())
            gone = ended if kind.needs_ended or self.objects else NO_MESSAGES
            for number, index in enumerate(indexes):
                index.store(boundary, _part(messages, number, len(indexes)), gone.seq)
            operator, of_kind = (
                self.operators[kind.code],
                len(self.kinds) == 1 and bool(np.all(added.kind == kind.code)),
            )
            mine = added if of_kind else added.of_kind(kind.code)
            home, assigned = np.zeros(len(mine), np.int64), np.ones(len(mine), np.bool_)
            batch_input = OperatorInput(boundary, messages, gone, mine, home, assigned, removed.of_kind(kind.code))
            outputs += self._refilled(kind.code, operator.close(operator.match(batch_input).own_hits, []))
        work = outputs[0].work
        for output in outputs[1:]:
            work = work.plus(output.work)
        return OperatorOutput(concatenate([output.updates for output in outputs]), work=work)

    def answer(self, code: int, request: WindowRequest) -> OperatorOutput:
        """Answer a window query of a kind, and give the answer to its operator."""
        indexes = self.window_indexes[code]
        body = indexes[0].merge([index.answer(request.query) for index in indexes])
        return capable(self.operators[code], Windowed).answer(request.request, body)

    def results(self) -> ResultBatch:
        """Results of all kinds that have any."""
        standing = [operator for operator in self.operators.values() if isinstance(operator, ResultOperator)]
        return concatenate([empty(ResultBatch), *(operator.results() for operator in standing)])

    def states(self) -> dict[int, State]:
        """State of every operator, by code of its kind."""
        return {kind.code: self.operators[kind.code].state() for kind in self.kinds}

    def restore(
        self,
        boundary: Boundary,
        messages: MessageBatch,
        states: Mapping[int, State],
        ended: Int64 | None = None,
    ) -> None:
        """Resume after a boundary; on a new engine. `messages` are those alive at it, except those `ended`."""
        for kind in self.kinds:
            gone = np.zeros(0, np.int64) if ended is None or not (kind.needs_ended or self.objects) else ended
            indexes = self.window_indexes.get(kind.code, ())
            for number, index in enumerate(indexes):
                index.load(boundary, _part(messages, number, len(indexes)), gone)
            state = states[kind.code]
            rows = state.rows["number"].shape[0]
            self.operators[kind.code].restore(boundary, state, np.zeros(rows, np.int64), np.ones(rows, np.bool_))

    def _refilled(self, code: int, first: OperatorOutput) -> list[OperatorOutput]:
        """An output and those of its refills."""
        outputs, requests = [first], list(first.window_requests)
        while requests:
            outputs.append(self.answer(code, requests.pop(0)))
            requests += outputs[-1].window_requests
        return outputs


def _part(messages: MessageBatch, number: int, parts: int) -> MessageBatch:
    """The messages of one window index."""
    return messages if parts == 1 else messages.take(np.flatnonzero(messages.seq % parts == number))
