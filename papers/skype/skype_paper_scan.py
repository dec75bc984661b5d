"""Dissemination of engine `skype_paper`: Algorithm 1 of the Skype paper, over a batch of messages at a time.

The rules are those that are printed, in the printed order: cells (Lemma 6), groups (Theorem 5.3), early termination
(Theorem 5.4), location-aware prefixes (Lemmas 3 and 4, Theorem 5.1), unseen keywords (Theorem 5.2). Two things differ.
The products of a pair are added up anew over all its terms, and only at its first common one, since the printed
algorithm loses pairs whose later term is pruned. And the lemma of cells is applied from the root down, and to many
messages at once, so that a leaf is in the cache for all of them.
"""

import math

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount
from matching.geo.sphere import point_of
from matching.storage.slots import longer
from matching.topk.scores import slot_score
from papers.skype.skype_paper_tree import DEEPEST, first_place

#: What is counted, and the place of each count (`papers.skype.skype_paper.SkypePaper.counters`).
COUNTERS = (
    "nodes",
    "cells",
    "lists",
    "groups",
    "early_stop",
    "scanned",
    "prefix",
    "first_common",
    "unseen",
    "verified",
)
NODES, CELLS, LISTS, GROUPS, EARLY_STOP, SCANNED, PREFIX, FIRST_COMMON, UNSEEN, VERIFIED = range(len(COUNTERS))
#: Bounds are in float64, but for weights, which are widened.
_EPS = 1e-7
_SLACK = 1e-6


@njit_inner
def _message_suffixes(batch, first_row, last_row, total, peak):
    """Sum and maximum of the weights of each message from each term on, and a zero behind its last."""
    first = batch.term_offsets[first_row]
    for r in range(first_row, last_row):
        end = batch.term_offsets[r + 1] - first + (r - first_row)
        total[end] = peak[end] = 0.0
        for j in range(end - 1, batch.term_offsets[r] - first + (r - first_row) - 1, -1):
            weight = np.float64(batch.weights[j - (r - first_row) + first])
            total[j] = total[j + 1] + weight
            peak[j] = max(peak[j + 1], weight)


@njit_inner_no_refcount
def _find_list(tree, node, term):
    """The list of a term in a leaf, -1 if there is none."""
    start, mask = tree.table[node], tree.mask[node]
    at = first_place(term, mask)
    while tree.keys[start + at] != term:
        if tree.keys[start + at] < 0:
            return -1
        at = (at + 1) & mask
    return tree.lists[start + at]


@njit_inner_no_refcount
def _text_of(c, slot, term, place, terms, weights, total, peak, at_message, unseen):
    """Text similarity of a pair, NaN if `term` is not its first common one, -1 if it cannot be enough (Theorem 5.2).

    total, peak : float64    of all messages; this one's begin at `at_message`
    """
    at, end = c.term_start[slot], c.term_start[slot] + c.term_count[slot]
    alpha, more_sum, largest = c.alpha[slot], 0.0, 0.0
    needed = -np.inf
    if unseen:
        # the place is exact here, which is the best that cells can say
        needed = c.threshold[slot] - (slot_score(c, slot, place, 0.0) + _SLACK)
        for j in range(at, end):
            weight = np.float64(c.weights[j])
            more_sum += weight
            largest = max(largest, weight)
    text, common, i = 0.0, 0, 0
    while at < end and i < terms.shape[0]:
        if c.terms[at] > terms[i]:
            i += 1
            continue
        weight = np.float64(c.weights[at])
        more_sum -= weight
        if c.terms[at] == terms[i]:
            if common == 0 and terms[i] != term:
                return np.nan
            common += 1
            text += weight * np.float64(weights[i])
            i += 1
            # of what is left: sum by maximum, either way round
            rest = min(max(0.0, more_sum) * peak[at_message + i], largest * total[at_message + i])
            if unseen and (1.0 - alpha) * (text + rest) < needed:
                return -1.0
        at += 1
    return text


@njit_inner
def _score_of(c, slot, place, text, counters):
    """Score of a message for a subscription whose text relevance `_text_of` says; NaN, which reaches no threshold, if
    another posting verifies the pair or none needs to."""
    if math.isnan(text):
        counters[FIRST_COMMON] += 1
        return np.nan
    if text < 0.0:
        counters[UNSEEN] += 1
        return np.nan
    counters[VERIFIED] += 1
    return slot_score(c, slot, place, text)


@njit(cache=True, nogil=True)
def _leaf(c, tree, batch, r, away, node, world, total, peak, at_message, rules, counters, found, ints, scores):
    """Match a message with a leaf `away` from it; returns the hits so far, and their arrays, grown if need be."""
    first, last = batch.term_offsets[r], batch.term_offsets[r + 1]
    terms, weights, place = batch.terms[first:last], batch.weights[first:last], point_of(batch, r)
    near = max(0.0, 1.0 - away / world)
    for i in range(terms.shape[0]):
        one = _find_list(tree, node, terms[i])
        if one < 0:
            continue
        counters[LISTS] += 1
        sum_, largest = total[at_message + i], peak[at_message + i]
        for group in range(tree.groups[one], tree.groups[one + 1]):
            begin, end = tree.postings[group], tree.postings[group + 1]
            if rules.groups and sum_ * tree.stop_peak[begin] + _EPS < (
                tree.stop_kappa[begin] - tree.stop_steep[begin] * near
            ):
                counters[GROUPS] += end - begin
                continue
            if rules.early_stop:
                # false up to some posting and true from there on, since all three only fall or only rise
                low, high = begin, end
                while low < high:
                    middle = (low + high) >> 1
                    if sum_ * tree.stop_peak[middle] + _EPS < (
                        tree.stop_kappa[middle] - tree.stop_steep[middle] * near
                    ):
                        high = middle
                    else:
                        low = middle + 1
                counters[EARLY_STOP] += end - low
                end = low
            counters[SCANNED] += end - begin
            for p in range(begin, end):
                if rules.prefix:
                    # the way leaves the cell once, so both parts of it add up; within the cell nothing is known
                    beyond = tree.inner[p] if rules.inner_outer and away > 0.0 else 0.0
                    needed = tree.kappa[p] - tree.steep[p] * max(0.0, 1.0 - (away + beyond) / world)
                    if min(tree.total[p] * largest, tree.peak[p] * sum_) + _EPS < needed:
                        counters[PREFIX] += 1
                        continue
                slot = tree.slot[p]
                if slot < 0:
                    continue
                text = _text_of(c, slot, terms[i], place, terms, weights, total, peak, at_message, rules.unseen)
                score = _score_of(c, slot, place, text, counters)
                if score >= c.threshold[slot]:
                    if found == ints.shape[0]:
                        ints, scores = longer(ints, found + 1), longer(scores, found + 1)
                    ints[found, 0], ints[found, 1], scores[found] = slot, r, score
                    found += 1
    return found, ints, scores


@njit(cache=True, nogil=True)
def _tail(c, v, batch, r, total, peak, at_message, rules, counters, found, ints, scores):
    """Match a message with the subscriptions that are not in the tree yet."""
    first, last = batch.term_offsets[r], batch.term_offsets[r + 1]
    terms, weights, place = batch.terms[first:last], batch.weights[first:last], point_of(batch, r)
    for i in range(terms.shape[0]):
        if terms[i] >= v.start.shape[0]:
            continue
        counters[SCANNED] += v.count[terms[i]]
        for p in range(v.start[terms[i]], v.start[terms[i]] + v.count[terms[i]]):
            slot = v.slot[p]
            text = _text_of(c, slot, terms[i], place, terms, weights, total, peak, at_message, rules.unseen)
            score = _score_of(c, slot, place, text, counters)
            if score >= c.threshold[slot]:
                if found == ints.shape[0]:
                    ints, scores = longer(ints, found + 1), longer(scores, found + 1)
                ints[found, 0], ints[found, 1], scores[found] = slot, r, score
                found += 1
    return found, ints, scores


@njit(cache=True, nogil=True)
def _chunk(c, tree, tail, batch, first_row, last_row, world, rules, counters, ints, scores):
    """All hits of some rows, in no order; returns how many, and the arrays."""
    rows = last_row - first_row
    first = batch.term_offsets[first_row]
    pairs = batch.term_offsets[last_row] - first
    total, peak = np.empty(pairs + rows), np.empty(pairs + rows)
    _message_suffixes(batch, first_row, last_row, total, peak)
    # messages that are left at a node, by its depth, and how far they are from it
    left, away = np.empty((DEEPEST + 2, rows), np.int32), np.zeros((DEEPEST + 2, rows))
    count = np.zeros(DEEPEST + 2, np.int64)
    for r in range(rows):
        left[0, r] = first_row + r
    count[0] = rows
    found, node = 0, 0
    while node < tree.size.shape[0]:
        depth = tree.depth[node] + 1
        west, south, east, north = tree.box[node, 0], tree.box[node, 1], tree.box[node, 2], tree.box[node, 3]
        some = 0
        counters[NODES] += count[depth - 1]
        for k in range(count[depth - 1]):
            r = left[depth - 1, k]
            dx = max(0.0, west - batch.x[r], batch.x[r] - east)
            dy = max(0.0, south - batch.y[r], batch.y[r] - north)
            distance = math.sqrt(dx * dx + dy * dy)
            left[depth, some], away[depth, some] = r, distance
            some += (not rules.cells) | (1.0 - distance / world + _EPS >= tree.least[node])
        counters[CELLS] += count[depth - 1] - some
        count[depth] = some
        if some == 0:
            node += tree.size[node]
            continue
        if tree.size[node] == 1:
            for k in range(some):
                r = left[depth, k]
                found, ints, scores = _leaf(
                    c, tree, batch, r, away[depth, k], node, world, total, peak,
                    batch.term_offsets[r] - first + (r - first_row), rules, counters, found, ints, scores,
                )  # fmt: skip
        node += 1
    for r in range(first_row, last_row):
        found, ints, scores = _tail(
            c, tail, batch, r, total, peak, batch.term_offsets[r] - first + (r - first_row), rules, counters, found,
            ints, scores,
        )  # fmt: skip
    return found, ints, scores


@njit(cache=True, nogil=True)
def scan(c, tree, tail, batch, world, rules, counters, together, first_row, most_hits, slots, rows, scores):
    """Match rows from `first_row` on, `together` at a time; returns (hits, next row).

    Parameters
    ----------
    c, tree, tail : views    subscriptions, `PaperTree`, posting lists of those that are not in it
    world : float            MaxDist
    rules : PaperRules
    slots, rows, scores      written, as `matching.topk.engine.Hits`
    """
    done, row = np.int64(0), first_row
    ints, found_scores = np.empty((1 << 12, 2), np.int32), np.empty(1 << 12)
    while row < batch.seq.shape[0] and done < most_hits:
        last_row = min(row + together, batch.seq.shape[0])
        found, ints, found_scores = _chunk(
            c, tree, tail, batch, row, last_row, world, rules, counters, ints, found_scores
        )  # fmt: skip
        offsets = np.zeros(last_row - row + 1, np.int64)
        for k in range(found):
            offsets[ints[k, 1] - row + 1] += 1
        for r in range(last_row - row):
            offsets[r + 1] += offsets[r]
        fit = last_row
        while fit > row and done + offsets[fit - row] > slots.shape[0]:
            fit -= 1
        free = offsets.copy()
        for k in range(found):
            r = ints[k, 1] - row
            if ints[k, 1] < fit:
                at = done + free[r]
                slots[at], rows[at], scores[at] = ints[k, 0], ints[k, 1], found_scores[k]
                free[r] += 1
        done += offsets[fit - row]
        row = fit
        if fit < last_row:  # the others are found again, in larger columns
            break
    return done, row
