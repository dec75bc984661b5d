"""The room of `knn`: the k nearest messages since registration that share a keyword.

Less distance is better, so keys are distances with their sign turned. What happens to them is the same for every kind
whose results only get better: read on in `matching.cumulative.operator`.
"""

from matching.cumulative.operator import CumulativeOperator


class KnnOperator(CumulativeOperator):
    """Nearest-neighbour subscriptions of one query task; see `matching.cumulative.operator.CumulativeOperator`."""

    sign = -1.0
