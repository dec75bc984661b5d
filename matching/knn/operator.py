"""The operator of `knn`: the k nearest messages since registration that share a keyword.

Less distance is better, so keys are negative distances. Where routers go by influence, the keys of the subscriptions'
balls are kept beside the engine (`matching.influence`).
"""

from collections.abc import Callable

import numpy as np

from matching.cumulative.answers import LivingWindow
from matching.cumulative.engine import CumulativeEngine
from matching.cumulative.living import LivingOperator
from matching.cumulative.operator import CumulativeOperator
from matching.influence import InfluenceKeys, InfluencePatch
from matching.knn.engines.influence_grid import InfluenceGrid
from matching.model import Float64, Int32, Int64
from matching.operator import Bools, Matched, OperatorContext, OperatorInput, Ranged
from matching.storage.state import State
from matching.window import Boundary

#: Keys that have changed before routers are sent a patch, which costs as much as a few hundred of them.
_WORTH_A_PATCH = 512


class KnnOperator(CumulativeOperator, Ranged):
    """Nearest-neighbour subscriptions of one query task; see `matching.cumulative.operator.CumulativeOperator`."""

    sign = -1.0

    def __init__(self, engine: Callable[..., CumulativeEngine], context: OperatorContext):
        super().__init__(engine, context)
        self._keys = InfluenceKeys(context.space) if context.ranges else None

    def match(self, batch_input: OperatorInput, /) -> Matched:
        if self._keys is None:
            return super().match(batch_input)
        subscriptions, numbers = self.engine.subscriptions, batch_input.removed.number
        self._keys.withdraw(subscriptions, _found(subscriptions.find(numbers)))
        matched = super().match(batch_input)
        self._keys.follow(subscriptions, _found(subscriptions.find(batch_input.added.number)))
        self._keys.follow(subscriptions, self.engine.best.touched)
        return matched

    def influence_patch(self, new: bool) -> InfluencePatch | None:
        assert self._keys is not None, "only where routers go by influence"
        return self._keys.patch() if new or self._keys.changes >= _WORTH_A_PATCH else None

    @classmethod
    def radii(cls, state: State) -> Float64:
        best = state.lists["best"]
        count, radius = np.diff(best.offsets), np.full(best.offsets.shape[0] - 1, np.inf)
        full = np.flatnonzero((count > 0) & (count == state.rows["k"]))
        radius[full] = -best.columns["key"][best.offsets[full + 1] - 1]
        return radius

    def restore(self, boundary: Boundary, state: State, home: Int64, assigned: Bools) -> None:
        super().restore(boundary, state, home, assigned)
        if self._keys is not None:
            self._keys.follow(self.engine.subscriptions, self.engine.subscriptions.live_slots())
            self._keys.patch()  # distribution tasks compute these themselves

    def arrays(self) -> dict[str, np.ndarray]:
        keys = {} if self._keys is None else self._keys.arrays()
        return super().arrays() | {f"influence_{name}": value for name, value in keys.items()}


class KnnOfObjects(LivingOperator):
    """The k nearest of the living objects; see `matching.cumulative.living.LivingOperator`."""

    sign = -1.0


class KnnWindow(LivingWindow):
    """See `matching.cumulative.answers.LivingWindow`."""

    def make_engine(self) -> CumulativeEngine:
        return InfluenceGrid(self.space)


def _found(slots: Int32) -> Int32:
    return slots[slots >= 0]
