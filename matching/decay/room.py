"""The room of `decay`: the k best messages since registration, of scores that fade with time.

All that is particular is the score (`matching.decay.scores`); what happens to it is the same for every kind whose
results only get better: read on in `matching.lasting.room`.
"""

from collections.abc import Callable

import numpy as np

from matching.errors import ConfigError
from matching.fading import Fading
from matching.kind import Matched, Site, Turn
from matching.lasting.engine import LastingEngine
from matching.lasting.room import LastingRoom
from matching.window import NO_FLOOR

#: Of a run that has no such subscriptions, and so need not say how their scores would fade.
_NOTHING_FADES = Fading(0.0, 0.0, np.zeros(0), 0)


class DecayRoom(LastingRoom):
    """Fading subscriptions of one query task; see `matching.lasting.room.LastingRoom`."""

    def make_engine(self, engine: Callable[..., LastingEngine], site: Site) -> LastingEngine:
        self._fading = site.fading
        return engine(site.space, site.fading or _NOTHING_FADES)

    def match(self, turn: Turn) -> Matched:
        """As `LastingRoom.match`.

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
