"""The operator of `knn`: the k nearest messages since registration that share a keyword.

Less distance is better, so keys are negative distances. Read on in `matching.cumulative.operator`, which is common to
all kinds whose results only get better.
"""

from matching.cumulative.operator import CumulativeOperator


class KnnOperator(CumulativeOperator):
    """Nearest-neighbour subscriptions of one query task; see `matching.cumulative.operator.CumulativeOperator`."""

    sign = -1.0
