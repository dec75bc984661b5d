"""The operator of `decay`: the k best messages since registration, of scores that fade with time.

Only the score is its own (`matching.decay.scores`); the rest is common to all kinds whose
results only get better: read on in `matching.cumulative.operator`.
"""

from collections.abc import Callable

import numpy as np

from matching.cumulative.engine import CumulativeEngine
from matching.cumulative.operator import CumulativeOperator
from matching.errors import ConfigError
from matching.half_life import DecayParameters
from matching.operator import Matched, OperatorContext, OperatorInput
from matching.window import NO_FLOOR

#: Of a run that has no such subscriptions, and so need not say how their scores would fade.
_NOTHING_FADES = DecayParameters(0.0, 0.0, np.zeros(0), 0)


class DecayOperator(CumulativeOperator):
    """Fading subscriptions of one query task; see `matching.cumulative.operator.CumulativeOperator`."""

    def make_engine(self, engine: Callable[..., CumulativeEngine], site: OperatorContext) -> CumulativeEngine:
        self._fading = site.fading
        return engine(site.space, site.fading or _NOTHING_FADES)

    def match(self, turn: OperatorInput) -> Matched:
        """As `CumulativeOperator.match`.

        Raises
        ------
        ConfigError
            If there are subscriptions, and the run does not say how scores fade.
        """
        if self._fading is None and len(turn.added):
            raise ConfigError(
                f"subscription {turn.added.number[0]}: its score fades, and this run does not say how; "
                "give the topology a half-life and a vocabulary"
            )
        untimed = turn.messages.event_time_us == NO_FLOOR
        if untimed.any():  # no score without a time
            turn = turn._replace(messages=turn.messages.take(np.flatnonzero(~untimed)))
        return super().match(turn)
