"""Engine `skype`: quadtree cells and alpha groups over inverted lists, pruned by every rule of the Skype paper.

A message walks the trees of its terms from the root down (`matching.topk.skype_tree`), skipping cells and groups that
hold nobody it could reach, scans the postings of the groups that are left (`matching.topk.skype_lists`), and verifies
what passes: exactly, over all common terms, and only if the scanned term is the pair's first common one. That last
rule makes every filter safe at any term (the printed algorithm adds up products as it goes and loses results).

Each rule is a switch in `Pruning` and has a counter of what it cut, so that its share can be measured:
`Skype.counters`. All bounds are in multiplied form, threshold <= alpha * spatial + (1 - alpha) * text, so that alpha
0 and 1 need no case of their own.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from matching.model import Float32, Float64, Int32, MessageBatch, SubscriptionTable
from matching.slots import part
from matching.space import Space
from matching.topk.index import Hits, TopkIndex
from matching.topk.l2_scan import exact_score
from matching.topk.skype_lists import SkypeLists, signature_bit
from matching.topk.skype_tree import FAR, NEAR, Shape
from matching.topk.store import SubscriptionStore

_BLOCK = 1024


class Pruning(NamedTuple):
    """Which rules are applied; answers never depend on it.

    cells : skip an inner cell of the tree, from the root down (Lemma 6, with the text bound of the term)
    groups : skip a group (Theorem 5.3)
    envelope : bound alpha and threshold of a node together, by chords over the maximum of their lines
    early_stop : stop inside a group (Theorem 5.4)
    prefix : location-aware prefix with weight sums and maximum weights (Theorem 5.1, Lemma 4)
    l2 : the same with the product of this term's weights and the norms of what follows (tighter; as in L2AP)
    inner_outer : distance of the subscription to its cell's side plus distance of the message to the cell
    exact_distance : distance to the subscription itself, kept beside the posting
    signature : a posting none of whose later terms is in the message is bounded by this term alone (needs `l2`)
    unseen : give up verification once the products so far and the bound of the rest do not reach (Theorem 5.2)
    adaptive : split a cell by what its postings differ in most; otherwise cells first, then alpha, as in the paper
    group_size, cell_size : postings of a group; of a cell that is split by alpha (not `adaptive`)
    """

    cells: bool = True
    groups: bool = True
    envelope: bool = True
    early_stop: bool = False
    prefix: bool = False
    l2: bool = True
    inner_outer: bool = False
    exact_distance: bool = True
    signature: bool = True
    unseen: bool = False
    adaptive: bool = True
    group_size: int = 64
    cell_size: int = 512


#: The rules the paper itself has.
PAPER = Pruning(
    envelope=False, early_stop=True, prefix=True, l2=False, inner_outer=True,
    exact_distance=False, signature=False, unseen=True, adaptive=False,
)  # fmt: skip

_COUNTERS = (
    "postings", "nodes", "cells", "groups", "early_stop", "scanned", "prefix", "l2", "inner_outer",
    "exact_distance", "signature", "first_common", "unseen", "verified", "hits",
)  # fmt: skip
(
    _POSTINGS, _NODES, _CELLS, _GROUPS, _EARLY_STOP, _SCANNED, _PREFIX, _L2, _INNER_OUTER,
    _EXACT_DISTANCE, _SIGNATURE, _FIRST_COMMON, _UNSEEN, _VERIFIED, _HITS,
) = range(len(_COUNTERS))  # fmt: skip


class Message(NamedTuple):
    """A message as the kernels want it; every suffix statistic has one more entry, for the end.

    rest, total, peak : float32[t + 1]   norm, sum and maximum of the weights from a term on
    signature : int32[t + 1]             bits of the terms from a term on
    """

    x: float
    y: float
    terms: Int32
    weights: Float32
    rest: Float32
    total: Float32
    peak: Float32
    signature: Int32


class Skype(TopkIndex):
    """Trees over posting lists. A message costs what its terms' lists hold near its place and within its reach.

    Parameters
    ----------
    space : Space
    pruning : Pruning
        The class attribute of the same name by default.
    """

    name = "skype"
    pruning = Pruning()

    def __init__(self, space: Space, pruning: Pruning | None = None):
        super().__init__(space)
        self.pruning = pruning or self.pruning
        if self.pruning.signature and not self.pruning.l2:
            self.pruning = self.pruning._replace(signature=False)
        p = self.pruning
        on = tuple(name for name, value in p._asdict().items() if value is True)
        self.lists = SkypeLists(space.max_distance, on, Shape(p.adaptive, p.group_size, p.cell_size, p.l2))
        self._counters = np.zeros(len(_COUNTERS), np.int64)

    def insert(self, table: SubscriptionTable, posted: np.ndarray | None = None) -> Int32:
        """Add subscriptions with threshold minus infinity; returns their slots. O(n + terms), amortised O(log) a term.

        posted : bool[nnz] or None
            Aligned with `table.terms`: only these terms are indexed, and a pair is a hit only if its first common
            term is one of them. None: all.
        """
        slots = self.store.insert(table)
        first, last = table.term_offsets[0], table.term_offsets[-1]
        chosen = np.ones(last - first, np.bool_) if posted is None else np.ascontiguousarray(posted[first:last])
        self.lists.insert(self.store, slots, chosen)
        return slots

    def withdraw(self, slots: Int32) -> None:
        """Match these slots no more, but keep their columns; `store.remove` must follow, and no new threshold."""
        self.lists.remove(self.store, slots)

    def set_thresholds(self, slots: Int32, thresholds: Float64 | float) -> None:
        """Set thresholds (float64[n] or one for all), up or down. O(terms * (depth + group))."""
        self.store.columns.threshold[slots] = thresholds
        self.lists.set_thresholds(self.store, slots)

    def match(self, batch: MessageBatch, first_row: int = 0, most_hits: int = 1 << 21) -> Hits:
        """Match rows from `first_row` on, stopping after the row that brings the hits to `most_hits`."""
        self.lists.settle(self.store)
        return super().match(batch, first_row, most_hits)

    def counters(self) -> dict[str, int]:
        """What was looked at and what each rule has cut since the engine was made.

        `postings` is what a flat scan would have read; `cells`, `groups` and `early_stop` are postings never read;
        `prefix` to `signature` are postings read and cut, each by the first rule in this order that could;
        `first_common` and `unseen` are pairs given up in verification; `nodes` are nodes tested.
        """
        return dict(zip(_COUNTERS, self._counters.tolist(), strict=True))

    def _scan(self, batch, first_row, most_hits, slot, row, score):
        before = self._counters.copy()
        found, next_row = _scan(
            self.store.columns, self.lists.view, batch, self.max_distance, self.pruning, self._counters,
            first_row, most_hits, slot, row, score,
        )  # fmt: skip
        done = self._counters - before
        return found, next_row, int(done[_SCANNED]), int(done[_VERIFIED])

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array needed to continue: names prefixed `store_` and `lists_`, and the switches."""
        store = {f"store_{name}": value for name, value in self.store.arrays().items()}
        lists = {f"lists_{name}": value for name, value in self.lists.arrays().items()}
        return store | lists | {"pruning": np.array(self.pruning, np.int64)}

    @classmethod
    def from_arrays(cls, space: Space, arrays: dict[str, np.ndarray]):
        """Continue from `arrays`, with the switches they were made with; everything is copied."""
        *switches, group_size, cell_size = map(int, arrays["pruning"])
        index = cls(space, Pruning(*map(bool, switches), group_size, cell_size))
        index.store = SubscriptionStore.from_arrays(part(arrays, "store_"))
        index.lists.load(part(arrays, "lists_"))
        return index


@njit(cache=True, nogil=True)
def _bound_l2(x, y, slope, base, own, rest, message_x, message_y, message_weight, message_rest, passed):
    """Set passed[p] to 1 where the bound of posting p reaches its threshold. All float32; the loop vectorises."""
    for p in range(x.shape[0]):
        room = base[p] + own[p] * message_weight + rest[p] * message_rest
        dx = x[p] - message_x
        dy = y[p] - message_y
        steep = slope[p]
        # room >= slope * distance, without the root
        passed[p] = (room >= np.float32(0.0)) & (room * room >= steep * steep * (dx * dx + dy * dy))


@njit(cache=True, nogil=True)
def _bound_any(v, first, last, m, i, away, max_distance, rules, counters, passed):
    """As `_bound_l2`, for any choice of rules, counting what each of them cuts."""
    for p in range(first, last):
        passed[p - first] = 0
        slope = v.slope[p]
        room = v.base[p] - slope * np.float32(away)
        text = np.float32((1.0 - slope * max_distance) * m.rest[0] * 1.000001)
        if rules.prefix:
            text = min(text, v.total[p] * m.peak[i], v.peak[p] * m.total[i])
            if room + text < 0.0:
                counters[_PREFIX] += 1
                continue
        if rules.l2:
            text = min(text, v.own[p] * m.weights[i] + v.rest[p] * m.rest[i + 1])
            if room + text < 0.0:
                counters[_L2] += 1
                continue
        if rules.inner_outer and away > 0.0:
            room -= slope * v.inner[p]
            if room + text < 0.0:
                counters[_INNER_OUTER] += 1
                continue
        if rules.exact_distance:
            dx, dy = v.x[p] - np.float32(m.x), v.y[p] - np.float32(m.y)
            if v.base[p] + text < slope * math.sqrt(dx * dx + dy * dy):
                counters[_EXACT_DISTANCE] += 1
                continue
        passed[p - first] = 1


@njit(cache=True, nogil=True)
def _distance_to(row, x, y):
    """Distance from a point to the box of a node, float32."""
    dx = max(np.float32(0.0), row[0] - x, x - row[2])
    dy = max(np.float32(0.0), row[1] - y, y - row[3])
    return math.sqrt(dx * dx + dy * dy)


@njit(cache=True, nogil=True)
def _text_of(row, m, i, max_distance, rules):
    """Bound of the text part for all postings of a node."""
    text = np.float32((1.0 - row[4] * max_distance) * m.rest[0] * 1.000001)
    if rules.prefix:
        text = min(text, row[10] * m.peak[i], row[11] * m.total[i])
    if rules.l2:
        text = min(text, row[8] * m.weights[i] + row[9] * m.rest[i + 1])
    return text


@njit(cache=True, nogil=True)
def _within(row, away, text, envelope):
    """Whether a node at this distance may hold somebody the message reaches."""
    if row[5] + text < np.float32(0.0):
        return False
    if not envelope:
        return row[5] + text >= row[4] * away
    if away < NEAR:
        reach = row[5] + (row[6] - row[5]) * (away / NEAR)
    elif away < FAR:
        reach = row[6] + (row[7] - row[6]) * ((away - NEAR) / (FAR - NEAR))
    else:
        reach = row[7] - row[4] * (away - FAR)
    return reach + text >= np.float32(0.0)


@njit(cache=True, nogil=True)
def _stop_at(v, first, last, least_slope, away, weight):
    """The first posting of a group from which on none can reach; both columns fall, so it is found by bisection."""
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        if v.stop_base[middle] + v.stop_text[middle] * weight < least_slope * away:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True, nogil=True)
def _may_reach(c, slot, term, m, max_distance):
    """1 if the pair may reach its threshold, 0 if it cannot, -1 if `term` is not its first common one (Theorem 5.2)."""
    at, end = c.term_start[slot], c.term_start[slot] + c.term_count[slot]
    dx = c.x[slot] - m.x
    dy = c.y[slot] - m.y
    alpha = c.alpha[slot]
    needed = c.threshold[slot] - alpha * (1.0 - math.sqrt(dx * dx + dy * dy) / max_distance)
    square = total = peak = 0.0
    for j in range(at, end):
        weight = np.float64(c.weights[j])
        square += weight * weight
        total += weight
        peak = max(peak, weight)
    text = 0.0
    common = 0
    i = 0
    while at < end and i < m.terms.shape[0]:
        if c.terms[at] > m.terms[i]:
            i += 1
            continue
        weight = np.float64(c.weights[at])
        square -= weight * weight
        total -= weight
        if c.terms[at] == m.terms[i]:
            if common == 0 and m.terms[i] != term:
                return -1
            common += 1
            text += weight * m.weights[i]
            i += 1
            more = min(math.sqrt(max(0.0, square)) * m.rest[i], total * m.peak[i], peak * m.total[i])
            if (1.0 - alpha) * (text + more) + 1e-5 < needed:
                return 0
        at += 1
    return 1


@njit(cache=True, nogil=True)
def _scan_run(c, v, m, i, first, last, away, max_distance, rules, counters, passed, r, found, slots, rows, scores):
    """Scan postings first to last of term i of a message; returns the hits so far, or -1 if there is no room."""
    words = passed.view(np.uint64)
    plain = rules.l2 and rules.exact_distance and not rules.prefix and not rules.inner_outer
    term = m.terms[i]
    weight = m.weights[i]
    x, y = np.float32(m.x), np.float32(m.y)
    counters[_SCANNED] += last - first
    for block in range(first, last, _BLOCK):
        size = min(_BLOCK, last - block)
        end = block + size
        # zero what the last word holds beyond the block, so that words can be tested whole
        words[(size - 1) >> 3] = 0
        if plain:
            _bound_l2(
                v.x[block:end], v.y[block:end], v.slope[block:end], v.base[block:end], v.own[block:end],
                v.rest[block:end], x, y, weight, m.rest[i + 1], passed,
            )  # fmt: skip
        else:
            _bound_any(v, block, end, m, i, away, max_distance, rules, counters, passed)
        for word in range((size + 7) >> 3):
            if words[word] == 0:
                continue
            for p in range(block + (word << 3), min(end, block + ((word + 1) << 3))):
                if passed[p - block] == 0:
                    continue
                if rules.signature and v.signature[p] & m.signature[i + 1] == 0:
                    room = v.base[p] + v.own[p] * weight
                    dx, dy = v.x[p] - x, v.y[p] - y
                    if room < 0.0 or room * room < v.slope[p] * v.slope[p] * (dx * dx + dy * dy):
                        counters[_SIGNATURE] += 1
                        continue
                slot = v.slot[p]
                if slot < 0:
                    continue
                if rules.unseen:
                    may = _may_reach(c, slot, term, m, max_distance)
                    if may <= 0:
                        counters[_UNSEEN if may == 0 else _FIRST_COMMON] += 1
                        continue
                score = exact_score(c, slot, term, m.x, m.y, m.terms, m.weights, max_distance)
                counters[_VERIFIED] += 1
                if score >= c.threshold[slot]:  # False for NaN: not the first common term
                    if found == slots.shape[0]:
                        return -1
                    slots[found] = slot
                    rows[found] = r
                    scores[found] = score
                    found += 1
                elif math.isnan(score):
                    counters[_FIRST_COMMON] += 1
    return found


@njit(cache=True, nogil=True)
def _scan(c, v, batch, max_distance, rules, counters, first_row, most_hits, slots, rows, scores):
    """Match rows from `first_row` on; returns (hits, next row), hits = -1 if not one row fitted."""
    passed = np.zeros(_BLOCK, np.uint8)
    longest = 0
    for r in range(first_row, batch.seq.shape[0]):
        longest = max(longest, batch.term_offsets[r + 1] - batch.term_offsets[r])
    rest, total = np.zeros(longest + 1, np.float32), np.zeros(longest + 1, np.float32)
    peak, signature = np.zeros(longest + 1, np.float32), np.zeros(longest + 1, np.int32)
    found = 0
    for r in range(first_row, batch.seq.shape[0]):
        if found >= most_hits:
            return found, r
        before = found
        first, last = batch.term_offsets[r], batch.term_offsets[r + 1]
        count = last - first
        square = sum_ = 0.0
        rest[count] = total[count] = peak[count] = 0.0
        signature[count] = 0
        for i in range(count - 1, -1, -1):
            weight = np.float64(batch.weights[first + i])
            square += weight * weight
            sum_ += weight
            rest[i], total[i] = math.sqrt(square), sum_
            peak[i] = max(peak[i + 1], batch.weights[first + i])
            signature[i] = signature[i + 1] | signature_bit(batch.terms[first + i])
        m = Message(
            batch.x[r], batch.y[r], batch.terms[first:last], batch.weights[first:last], rest, total, peak, signature
        )
        x, y = np.float32(m.x), np.float32(m.y)
        for i in range(count):
            term = m.terms[i]
            if term >= v.start.shape[0]:
                continue
            start, built = v.start[term], v.built[term]
            counters[_POSTINGS] += v.count[term]
            node, end = v.node_start[term], v.node_start[term] + v.node_count[term]
            while node < end:
                row = v.node_floats[node]
                size = v.node_ints[node, 2]
                group = size == 1
                away = np.float32(0.0)
                if group or rules.cells:
                    counters[_NODES] += 1
                    away = np.float32(_distance_to(row, x, y))
                    if rules.groups if group else rules.cells:
                        text = _text_of(row, m, i, max_distance, rules)
                        if not _within(row, away, text, rules.envelope):
                            cut = v.node_ints[node, 1] - v.node_ints[node, 0]
                            counters[_GROUPS if group else _CELLS] += cut
                            node += size
                            continue
                node += 1
                if group:
                    run, stop = start + v.node_ints[node - 1, 0], start + v.node_ints[node - 1, 1]
                    if rules.early_stop:
                        weight = m.rest[i] if rules.l2 else m.total[i]
                        earlier = _stop_at(v, run, stop, row[4], away, weight)
                        counters[_EARLY_STOP] += stop - earlier
                        stop = earlier
                    if run < stop:
                        found = _scan_run(
                            c, v, m, i, run, stop, away, max_distance, rules, counters, passed, r, found,
                            slots, rows, scores,
                        )  # fmt: skip
                        if found < 0:
                            return (before if r > first_row else -1), r
            if built < v.count[term]:
                found = _scan_run(
                    c, v, m, i, start + built, start + v.count[term], np.float32(0.0), max_distance, rules,
                    counters, passed, r, found, slots, rows, scores,
                )  # fmt: skip
                if found < 0:
                    return (before if r > first_row else -1), r
        counters[_HITS] += found - before
    return found, batch.seq.shape[0]
