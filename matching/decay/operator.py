"""The operator of `decay`: the k best messages since registration, by scores that decay with time.

This file adds the decay parameters and skips messages without a time; everything else is common to the cumulative
kinds.
"""

from collections.abc import Callable

import numpy as np

from matching.cumulative.answers import LivingWindow
from matching.cumulative.engine import CumulativeEngine
from matching.cumulative.living import LivingOperator
from matching.cumulative.operator import CumulativeOperator
from matching.decay.engines.keyword_blocks import KeywordBlocks
from matching.errors import ConfigError
from matching.half_life import DecayParameters
from matching.model import MessageBatch
from matching.operator import Matched, OperatorContext, OperatorInput
from matching.window import NO_FLOOR

#: Decay parameters of a run without `decay` subscriptions, whose settings need not have any.
_NO_DECAY = DecayParameters(0.0, 0.0, np.zeros(0), 0)


class DecayOperator(CumulativeOperator):
    """The `decay` subscriptions of one query task; see `matching.cumulative.operator.CumulativeOperator`."""

    def make_engine(self, engine: Callable[..., CumulativeEngine], context: OperatorContext) -> CumulativeEngine:
        self._decay = context.fading
        return engine(context.space, context.fading or _NO_DECAY)

    def match(self, batch_input: OperatorInput) -> Matched:
        """Match a batch as `CumulativeOperator.match`, without the messages that have no event time, and so no score.

        Raises
        ------
        ConfigError
            If the batch adds subscriptions, and the run has no decay parameters.
        """
        if self._decay is None and len(batch_input.added):
            raise ConfigError(
                f"subscription {batch_input.added.number[0]}: its score fades, and this run does not say how; "
                "give the topology a half-life and a vocabulary"
            )
        return super().match(batch_input._replace(messages=_timed(batch_input.messages)))


class DecayOfObjects(LivingOperator):
    """The k best of the living objects; see `matching.cumulative.living.LivingOperator`."""

    def make_engine(self, engine: Callable[..., CumulativeEngine], context: OperatorContext) -> CumulativeEngine:
        return engine(context.space, context.fading or _NO_DECAY)

    def seen(self, messages: MessageBatch) -> MessageBatch:
        return _timed(messages)


class DecayWindow(LivingWindow):
    """See `matching.cumulative.answers.LivingWindow`."""

    def make_engine(self) -> CumulativeEngine:
        return KeywordBlocks(self.space, self.fading or _NO_DECAY)

    def seen(self, messages: MessageBatch) -> MessageBatch:
        return _timed(messages)


def _timed(messages: MessageBatch) -> MessageBatch:
    """The messages that have a time."""
    timed = messages.event_time_us != NO_FLOOR
    return messages if timed.all() else messages.take(np.flatnonzero(timed))
