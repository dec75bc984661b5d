"""Rooms and shares in one process: what a topology of one task of each bolt does, without a topology.

Tests, benchmarks and warm-up drive this, so that what is measured is what runs: a batch is stored, matched and closed,
questions are answered by the shares at once, and every update of a boundary is told before the next batch.

    alone = Alone([KINDS.named("topk")], space, window)
    step = alone.process(boundary, messages, added, removed)

Read on in `matching.operator`, or in `bolts.query` for the same between many.
"""

from collections.abc import Iterable, Mapping, Sequence

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
from matching.operator import KindOperator, OperatorContext, OperatorInput, OperatorOutput, WindowIndex, WindowRequest
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
        The default of each kind that is not named.
    options : mapping
        As `matching.operator.OperatorContext.options`.
    fading : Fading
        Needed as soon as a kind whose scores fade has subscriptions.
    shares : int
        Among how many the messages are dealt out, by seq.

    Attributes
    ----------
    rooms, shares : dict by code of kind
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
        shares: int = 1,
    ):
        site = OperatorContext(space, window, options=options or {}, fading=fading)
        self.kinds = tuple(kinds)
        self.rooms: dict[int, KindOperator] = {}
        self.shares: dict[int, list[WindowIndex]] = {}
        for kind in self.kinds:
            self.rooms[kind.code] = kind.make_operator(site, (engines or {}).get(kind.name))
            if kind.windowed:
                index = kind.window((windows or {}).get(kind.name))
                self.shares[kind.code] = [index(space) for _ in range(shares)]

    @property
    def room(self) -> KindOperator:
        """The room of the first kind."""
        return self.rooms[self.kinds[0].code]

    @property
    def share(self) -> WindowIndex:
        """The first share of the first kind."""
        return self.shares[self.kinds[0].code][0]

    def process(
        self,
        boundary: Boundary,
        messages: MessageBatch,
        added: SubscriptionTable,
        removed: Removals,
        ended: MessageBatch = NO_MESSAGES,
    ) -> OperatorOutput:
        """Take the next batch; every update of its boundary is in what comes back, kind by kind.

        ended : MessageBatch    as `bolts.payloads.StreamBatch.ended`
        """
        steps = []
        for kind in self.kinds:
            for number, share in enumerate(self.shares.get(kind.code, ())):
                share.store(boundary, _dealt(messages, number, self.shares[kind.code]), ended.seq)
            room, of_kind = self.rooms[kind.code], len(self.kinds) == 1 and bool(np.all(added.kind == kind.code))
            mine = added if of_kind else added.of_kind(kind.code)
            home, held = np.zeros(len(mine), np.int64), np.ones(len(mine), np.bool_)
            gone_messages = ended if kind.needs_ended else NO_MESSAGES
            turn = OperatorInput(boundary, messages, gone_messages, mine, home, held, removed.of_kind(kind.code))
            steps += self._follow(kind.code, room.close(room.match(turn).mine, []))
        work = steps[0].work
        for step in steps[1:]:
            work = work.plus(step.work)
        return OperatorOutput(concatenate([step.updates for step in steps]), work=work)

    def answer(self, code: int, ask: WindowRequest) -> OperatorOutput:
        """Have the shares answer a question of a kind, and the room take it."""
        shares = self.shares[code]
        return self.rooms[code].answer(ask.request, shares[0].merge([share.answer(ask.question) for share in shares]))

    def results(self) -> ResultBatch:
        """Standing results of all kinds that have any."""
        return concatenate([empty(ResultBatch), *(self.rooms[kind.code].results() for kind in self.kinds)])

    def states(self) -> dict[int, State]:
        """State of every room, by code of its kind."""
        return {kind.code: self.rooms[kind.code].state() for kind in self.kinds}

    def restore(
        self,
        boundary: Boundary,
        messages: MessageBatch,
        states: Mapping[int, State],
        ended: Int64 | None = None,
    ) -> None:
        """Go on behind a boundary, in place of a new one; `messages` are those alive at it, but for those `ended`."""
        gone = np.zeros(0, np.int64) if ended is None else ended
        for kind in self.kinds:
            for number, share in enumerate(self.shares.get(kind.code, ())):
                share.load(boundary, _dealt(messages, number, self.shares[kind.code]), gone)
            state = states[kind.code]
            rows = state.rows["number"].shape[0]
            self.rooms[kind.code].restore(boundary, state, np.zeros(rows, np.int64), np.ones(rows, np.bool_))

    def _follow(self, code: int, first: OperatorOutput) -> list[OperatorOutput]:
        """A step and what comes of its questions."""
        steps, asks = [first], list(first.asks)
        while asks:
            steps.append(self.answer(code, asks.pop(0)))
            asks += steps[-1].asks
        return steps


def _dealt(messages: MessageBatch, number: int, shares: Sequence[WindowIndex]) -> MessageBatch:
    """The messages of one share."""
    if len(shares) == 1:
        return messages
    return messages.take(np.flatnonzero(messages.seq % len(shares) == number))
