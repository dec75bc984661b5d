"""The operator of `decay`: the k best messages since registration, by scores that decay with time.

This file adds the decay parameters and skips messages without a time; everything else is common to the cumulative
kinds.
"""

from collections.abc import Callable

import numpy as np

from matching.cumulative.engine import CumulativeEngine
from matching.cumulative.operator import CumulativeOperator
from matching.errors import ConfigError
from matching.half_life import DecayParameters
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
        untimed = batch_input.messages.event_time_us == NO_FLOOR
        if untimed.any():
            timed = batch_input.messages.take(np.flatnonzero(~untimed))
            batch_input = batch_input._replace(messages=timed)
        return super().match(batch_input)
