"""Demand of a subscription, the input of placement: a place, a rectangle in which messages may match, and keywords.

It depends only on traits of the kind. A subscription with a region has that as its rectangle. One to the k nearest has
the square around its point that reaches to the k-th nearest sampled message with one of its keywords (the ball B(s) of
DkM-SKS, section 3.2): once there are k, nothing beyond can enter. Any other has the world. A subscription that needs
all of its keywords is matched by the rarest, and costs as much.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distribution.placement.costs import PlacementCosts
from matching.kind_table import Traits
from matching.model import ANY_KEYWORD, UNKNOWN_TERM, Float64, Int32, Int64, SubscriptionTable, take_ragged
from matching.space import Space


class Demand(NamedTuple):
    """One row a subscription.

    x, y : float64[n]       its place in the unit square: its point, or the middle of its region
    box : float64[n, 4]     where messages may match: west, south, east, north in the unit square, within the world
    everywhere : bool[n]    whether that is the whole world
    rarest : int32[n]       term id of its rarest keyword, -1 if it has none
    offsets : int64[n + 1]
    words : int32[nnz]      the keywords that it is matched by, as `PlacementCosts.numbered` numbers them
    """

    x: Float64
    y: Float64
    box: Float64
    everywhere: NDArray[np.bool_]
    rarest: Int32
    offsets: Int64
    words: Int32

    def __len__(self) -> int:  # a NamedTuple would count its fields
        return self.x.shape[0]

    def take(self, rows: NDArray[np.integer]) -> "Demand":
        """The subscriptions at `rows` (indices, not a mask). O(rows + their keywords)."""
        offsets, picked = take_ragged(self.offsets, rows)
        return Demand(
            self.x[rows],
            self.y[rows],
            self.box[rows],
            self.everywhere[rows],
            self.rarest[rows],
            offsets,
            self.words[picked],
        )


def demand_of(
    table: SubscriptionTable, traits: Traits, space: Space, costs: PlacementCosts, balls: bool = True
) -> Demand:
    """Demand of each subscription of a table.

    Parameters
    ----------
    balls : bool    whether to compute balls for kinds whose result is the nearest messages; else these get the world

    Notes
    -----
    O(n + keywords), and for balls part of the sample's postings of their keywords.
    """
    world = costs.world
    box = np.tile(world, (len(table), 1))
    x, y = table.x.copy(), table.y.copy()
    boxed = traits.region[table.kind]
    west, south, east, north = table.region[boxed].T
    low_x, low_y = space.project(west, south)
    high_x, high_y = space.project(east, north)
    # across the antimeridian: the whole belt, an overestimate
    crosses = west > east
    low_x, high_x = np.where(crosses, world[0], low_x), np.where(crosses, world[2], high_x)
    box[boxed] = np.stack([low_x, low_y, high_x, high_y], axis=1)
    x[boxed], y[boxed] = (low_x + high_x) / 2.0, (low_y + high_y) / 2.0
    offsets, words, rarest = _words(table, traits, costs)
    nearest = np.flatnonzero(traits.nearest[table.kind] & ~boxed & balls)
    if nearest.size:
        cuts, picked = take_ragged(offsets, nearest)
        far = costs.radius(x[nearest], y[nearest], table.k[nearest], cuts, words[picked])
        box[nearest] = np.stack([x[nearest] - far, y[nearest] - far, x[nearest] + far, y[nearest] + far], axis=1)
    box = np.clip(box, np.tile(world[:2], 2), np.tile(world[2:], 2))
    x, y = np.clip(x, world[0], world[2]), np.clip(y, world[1], world[3])
    return Demand(x, y, box, np.all(box == world, axis=1), rarest, offsets, words)


def _words(table: SubscriptionTable, traits: Traits, costs: PlacementCosts) -> tuple[Int64, Int32, Int32]:
    """Offsets and numbered keywords that each subscription is matched by, and the term id of its rarest one."""
    offsets, terms = table.term_offsets, table.terms
    some = np.diff(offsets) > 0
    padded = np.append(terms, np.int32(-1))
    first = np.where(some, padded[offsets[:-1]], -1).astype(np.int32)
    last = np.where(some, padded[offsets[1:] - 1], -1)
    strict = traits.all_keywords[table.kind] & (table.match != ANY_KEYWORD)
    never = strict & (last == UNKNOWN_TERM)
    row = np.repeat(np.arange(len(table)), np.diff(offsets))
    # terms ascend in each row and the rarest term has the smallest id
    place = np.arange(terms.shape[0]) - offsets[row]
    kept = (terms != UNKNOWN_TERM) & ~never[row] & (~strict[row] | (place == 0))
    cuts = np.append(0, np.cumsum(np.bincount(row[kept], minlength=len(table)))).astype(np.int64)
    return cuts, costs.numbered(terms[kept]), first
