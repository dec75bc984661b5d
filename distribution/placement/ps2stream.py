"""PS2Stream's rule, extended to subscriptions without a range: the opponent in the paper's measurements.

PS2Stream (Chen et al., ICDE 2017) cuts the world by a kd-tree: a part by place as long as its messages and
subscriptions become less similar in their terms by it, else by text, its terms distributed by load; then the parts are
merged into as many as there are tasks. The authors of DkM-SKS do not print how they extended it; this reading is in
spec 5. A subscription belongs to the part that its rectangle overlaps most, and in a part that was cut by text, to the
piece of its rarest keyword. Messages go to all, as with the other placements, so results do not depend on it.

The load of a piece with the fraction O of the messages and Q subscriptions is c1 * O * Q + c2 * O + c3 * Q. The cost of
a subscription is what it adds, c1 * O + c3.
"""

import heapq
from typing import Any, NamedTuple

import numpy as np

from distribution.placement.assign import dealt_out
from distribution.placement.costs import PlacementCosts
from distribution.placement.demand import Demand
from distribution.placement.placement import Placed, Placement
from distribution.placement.subsets import overlapped
from distribution.router import spread
from matching.model import Float64, Int64, take_ragged

#: Weights of pairs, of messages and of subscriptions. Pairs are the unit of the other placements, too; every task gets
#: every message, and keeping a subscription costs little.
PAIRS, MESSAGES, SUBSCRIPTIONS = 1.0, 1.0, 0.001
#: Pieces for each task before they are merged.
PIECES = 4


class _Part(NamedTuple):
    """A part of the world while it is being cut: its subscriptions by their places, and statistics."""

    cell: Float64
    rows: Int64
    messages: float  # share of the messages that lie in it
    alike: float  # cosine of the terms of its messages and of its subscriptions
    load: float


class Ps2Stream(Placement):
    """Cuts the world by place or by text, whichever separates messages and subscriptions better.

    Attributes
    ----------
    weights : (float, float, float)    c1, c2 and c3 of the load
    pieces : int                       wanted for each task
    cells : float64[g, 4]              parts of the world; at first one, the whole
    starts : int64[g + 1]              starts[i]:starts[i + 1] are the pieces of part i
    owners, prices                     task of each piece (int64[p]), C(s) of its subscriptions (float64[p])
    keys, key_pieces                   int64[w]: pieces of rarest keywords, by part * 2**32 + term id, ascending
    """

    name = "ps2stream"
    weights = (PAIRS, MESSAGES, SUBSCRIPTIONS)
    pieces = PIECES

    def __init__(self, costs: PlacementCosts, tasks: int):
        super().__init__(costs, tasks)
        self._divide([], np.zeros(0, np.int32))

    def together(self, demand: Demand) -> Placed:
        self._divide(self._parts(demand), demand.rarest)
        return self._lookup(demand)

    def price(self, demand: Demand) -> Float64:
        return self._lookup(demand).cost

    def later(self, demand: Demand, load: Float64) -> Placed:
        """Owner of each subscription by the piece that contains it; does not use loads."""
        return self._lookup(demand)

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "cells": self.cells,
            "starts": self.starts,
            "owners": self.owners,
            "prices": self.prices,
            "keys": self.keys,
            "key_pieces": self.key_pieces,
        }

    def deal_anew(self) -> None:
        # the number of subscriptions in each piece is not kept
        self.owners = dealt_out(self.prices, self.tasks)

    def describe(self) -> dict[str, Any]:
        by_text = int(np.count_nonzero(np.diff(self.starts) > 1))
        return {"parts": self.cells.shape[0], "parts_by_text": by_text, "pieces": self.owners.shape[0]}

    def _lookup(self, demand: Demand) -> Placed:
        cell = overlapped(demand.box, self.cells)
        first, last = self.starts[cell], self.starts[cell + 1]
        key = cell * 2**32 + demand.rarest
        place = np.searchsorted(self.keys, key)
        known = np.append(self.keys, -2)[place] == key  # a key is -1 or more
        piece = first + spread(np.maximum(demand.rarest, 0).astype(np.int64), last - first)
        piece[known] = self.key_pieces[place[known]]
        return Placed(self.owners[piece], self.prices[piece])

    def _load(self, messages: float, subscriptions: int) -> float:
        pairs, each_message, each_subscription = self.weights
        return pairs * messages * subscriptions + each_message * messages + each_subscription * subscriptions

    def _parts(self, demand: Demand) -> list[tuple[_Part, bool]]:
        """Parts of the world, and whether each is to be cut by text. The one with the greatest load is cut next."""
        whole = self._part(demand, self.costs.world, np.arange(len(demand)))
        queue, place = [(-whole.load, 0, whole)], 0
        done: list[tuple[_Part, bool]] = []
        while queue and len(queue) + len(done) < self.pieces * self.tasks:
            part = heapq.heappop(queue)[2]
            halves = [self._part(demand, cell, part.rows[rows]) for cell, rows in _halves(demand, part)]
            messages = sum(half.messages for half in halves)
            alike = sum(half.alike * half.messages for half in halves) / messages if messages > 0 else 0.0
            if len(halves) < 2 or alike >= part.alike:
                done.append((part, True))
                continue
            for half in halves:
                place += 1
                heapq.heappush(queue, (-half.load, place, half))
        return done + [(part, False) for _, _, part in sorted(queue, key=lambda entry: entry[:2])]

    def _part(self, demand: Demand, cell: Float64, rows: Int64) -> _Part:
        published = self.costs.in_box(cell)
        _, picked = take_ragged(demand.offsets, rows)
        wanted = np.bincount(demand.words[picked], minlength=published.shape[0]).astype(np.float64)
        lengths = np.sqrt((published @ published) * (wanted @ wanted))
        messages = float(self.costs.of_boxes(cell[None])[0])
        return _Part(
            cell, rows, messages, float(published @ wanted / lengths) if lengths > 0 else 0.0,
            self._load(messages, rows.shape[0]),
        )  # fmt: skip

    def _divide(self, parts: list[tuple[_Part, bool]], rarest: np.ndarray) -> None:
        """Cut the parts that are to be cut by text, and deal all pieces out to the tasks by descending load."""
        total, wanted = sum(part.load for part, _ in parts), self.pieces * self.tasks
        starts, prices, loads, keys, key_pieces = [0], [], [], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for place, (part, by_text) in enumerate(parts):
            terms, count = np.unique(rarest[part.rows], return_counts=True)
            pieces = min(terms.size, max(2, round(wanted * part.load / total))) if by_text and total > 0 else 1
            shares = [(part.messages, part.rows.size)]
            if pieces > 1:
                carried = self.costs.in_box(part.cell)[self.costs.numbered(terms)]
                weight = self.weights[0] * carried * count + self.weights[2] * count
                of_term = dealt_out(weight, pieces)
                keys.append(place * 2**32 + terms.astype(np.int64))
                key_pieces.append(starts[-1] + of_term)
                carried = np.minimum(np.bincount(of_term, carried, pieces), part.messages)
                shares = list(zip(carried.tolist(), np.bincount(of_term, count, pieces).tolist(), strict=True))
            starts.append(starts[-1] + len(shares))
            prices += [self.weights[0] * messages + self.weights[2] for messages, _ in shares]
            loads += [self._load(messages, subscriptions) for messages, subscriptions in shares]
        if not parts:  # no subscriptions: one part, its terms distributed by hash
            starts, loads = [0, self.tasks], [0.0] * self.tasks
            prices = [self.weights[0] / self.tasks + self.weights[2]] * self.tasks
        self.cells = np.array([part.cell for part, _ in parts] or [self.costs.world])
        self.starts = np.array(starts, np.int64)
        self.prices = self.costs.rounded(np.array(prices))
        self.owners = dealt_out(np.array(loads), self.tasks) if parts else np.arange(self.tasks)
        self.keys, self.key_pieces = np.concatenate(keys), np.concatenate(key_pieces)


def _halves(demand: Demand, part: _Part) -> list[tuple[Float64, np.ndarray]]:
    """The cell of a part cut across its longer side at the median place; fewer than two where all lie together."""
    west, south, east, north = part.cell.tolist()
    for upright in (east - west >= north - south, east - west < north - south):
        along = (demand.x if upright else demand.y)[part.rows]
        low, high = (west, east) if upright else (south, north)
        if along.size < 2 or along.min() == along.max():
            continue
        at = float(np.median(along))
        at = at if at > along.min() else float(along[along > at].min())
        if not low < at < high:
            continue
        below = [west, south, at, north] if upright else [west, south, east, at]
        above = [at, south, east, north] if upright else [west, at, east, north]
        lower = along < at
        return [(np.array(below), np.flatnonzero(lower)), (np.array(above), np.flatnonzero(~lower))]
    return []
