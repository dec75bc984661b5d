"""Reference time of decayed thresholds, which follows the stream.

A threshold as of now is exp(key - now * ln D), and would have to be reckoned anew for every message. Counted from a
reference it is a constant times exp(reference - now), one factor for all. Neither may leave the range of its numbers,
so the reference moves when the stream has gone far; users of such constants then recompute them. Those that have left
the range bound nothing, which is safe, so that need not be at once.
"""

from matching.decay.scores import lift
from matching.half_life import DecayParameters
from matching.model import MessageBatch
from matching.window import NO_FLOOR

#: How far the stream may move from the reference, in powers of e.
_FAR_AWAY = 50.0
#: Subscriptions whose constants are recomputed, per message.
_A_MESSAGE = 64


class Reference:
    """The reference of an engine.

    Attributes
    ----------
    at : float or None    its lift (`matching.decay.scores.lift`); None before the first message
    """

    def __init__(self):
        self.at: float | None = None
        self._rows = 0  # since it was moved

    def follow(self, batch: MessageBatch, fading: DecayParameters, live: int) -> float | None:
        """Follow a batch that comes to `live` subscriptions. O(messages).

        Returns
        -------
        float or None
            Where the reference was before, if it has moved; where it is now, if there was none.
        """
        # what is dated after the run has no time, and moves none
        newest = int(batch.event_time_us.max(initial=NO_FLOOR))
        if newest == NO_FLOOR:
            return None
        now = float(lift(newest, fading))
        self._rows += len(batch)
        if self.at is not None and (abs(now - self.at) <= _FAR_AWAY or self._rows * _A_MESSAGE <= live):
            return None
        before = now if self.at is None else self.at
        self.at, self._rows = now, 0
        return before
