"""KOP, keyword-oriented partition: the paper's first baseline (DkM-SKS, section 3.1).

A subscription costs the sum over its keywords of the fraction of messages that carry it (equation 1). All are assigned
by descending cost, each to the least loaded task; later ones likewise.
"""

from distribution.placement.assign import dealt_out
from distribution.placement.costs import sums_of_words
from distribution.placement.demand import Demand
from distribution.placement.placement import Placed, Placement
from matching.model import Float64


class KeywordOriented(Placement):
    """By keywords alone."""

    name = "kop"
    by_place = False

    def together(self, demand: Demand) -> Placed:
        cost = self.price(demand)
        return Placed(dealt_out(cost, self.tasks), cost)

    def price(self, demand: Demand) -> Float64:
        """Equation 1. O(keywords)."""
        return self.costs.rounded(sums_of_words(self.costs.share, demand.offsets, demand.words))
