"""Deliberately broken variants, each of which the comparison with the oracle must catch.

A check that only ever runs green proves nothing. Here the right variant of a small independent engine agrees with the
oracle on the same random streams on which every broken one, each wrong in a single place, is found out. Coordinates
lie on a coarse grid and vocabularies are small, so that ties, borders and refills are common.
"""

import functools
import math

import numpy as np
import pytest

from matching import naive
from matching.model import BOOLEAN, DECAY, KNN, SKYLINE, TOPK
from matching.naive import Decay, Knn, Skyline, TopK
from matching.naive_rows import DecayModel, NaiveMessage, NaiveSubscription, tally
from tests.support.naive_tables import message, run, subscription

SEEDS = (1, 2, 3)
MODEL = DecayModel(0.05, 0.3, dict.fromkeys(range(9), 5), 45)


def stream(seed: int, count: int = 240, late: bool = False) -> list[NaiveMessage]:
    """Messages on a grid of 3 x 3 points with up to three of six terms; with `late`, lives jump back and forth."""
    rng = np.random.default_rng(seed)
    rows = []
    for seq in range(count):
        terms = set((rng.zipf(1.6, rng.integers(0, 4)) % 6 + 1).tolist())
        x, y = (rng.integers(0, 3, 2) / 2).tolist()
        life = int(seq * 1_000_000 - rng.integers(0, 12) * 1_000_000) if late else seq
        rows.append(message(seq, terms, x=x, y=y, life=life, time_us=seq // 8 * 1_000_000))
    return rows


def several(seed: int, kind: int, count: int = 12) -> list[NaiveSubscription]:
    rng = np.random.default_rng(100 + seed)
    rows = []
    for number in range(count):
        terms = set((rng.zipf(1.6, rng.integers(1, 3)) % 6 + 1).tolist())
        x, y = (rng.integers(0, 3, 2) / 2).tolist()
        corner = (x, y, min(1.0, x + 0.5), min(1.0, y + 0.5))
        alpha = float(rng.integers(0, 5) / 4)
        rows.append(subscription(number, kind, terms, x=x, y=y, region=corner, k=1 + number % 4, alpha=alpha))
    return rows


# -------------------------------------------------------------------------------- the oracle's own classes, broken


class OlderFirstTopK(TopK):
    def ranked(self, floor):
        best = sorted((-score, seq) for score, seq, life in self.scored if life > floor)
        return [(seq, -negative, math.nan) for negative, seq in best[: self.subscription.k]]


class WindowOneTooLongTopK(TopK):
    def ranked(self, floor):
        return super().ranked(floor - 1)


class WindowOneTooShortTopK(TopK):
    def ranked(self, floor):
        return super().ranked(floor + 1)


class ExpiryBySeqTopK(TopK):
    """Takes a higher seq for a longer life."""

    def offer(self, message):
        super().offer(message._replace(life=max([message.life, *(life for _, _, life in self.scored)])))


class OneTooManyTopK(TopK):
    def __init__(self, subscription, max_distance, decay):
        super().__init__(subscription._replace(k=subscription.k + 1), max_distance, decay)


class SwappedAlphaTopK(TopK):
    def __init__(self, subscription, max_distance, decay):
        super().__init__(subscription._replace(alpha=1.0 - subscription.alpha), max_distance, decay)


class NeverRefilledTopK(TopK):
    """Forgets what did not make it into the result at once."""

    def ranked(self, floor):
        ranked = super().ranked(floor)
        self.scored = list(self.best)
        self.ranked_count = len(self.scored)
        return ranked


class NewerStaysKnn(Knn):
    def ranked(self, floor):
        return [(-seq, far, math.nan) for far, seq in self.nearest]

    def offer(self, message):
        super().offer(message._replace(seq=-message.seq))


class ExpiringKnn(Knn):
    def ranked(self, floor):
        return [row for row in super().ranked(floor) if row[0] > floor]


class NewerStaysDecay(Decay):
    def ranked(self, floor):
        return [(-seq, key, math.nan) for key, seq in self.best]

    def offer(self, message):
        super().offer(message._replace(seq=-message.seq))


class UnfadedDecay(Decay):
    def offer(self, message):
        super().offer(message._replace(event_time_us=0))


class OneOfCoincidentSkyline(Skyline):
    def ranked(self, floor):
        seen, rows = set(), []
        for row in super().ranked(floor):
            if row[1:] not in seen:
                rows.append(row)
            seen.add(row[1:])
        return rows


class StrictlyBetterInBothSkyline(Skyline):
    def ranked(self, floor):
        alive = [(seq, *scores) for seq, (scores, life) in self.scored.items() if life > floor]
        return sorted(
            (row for row in alive if not any(one[1] > row[1] and one[2] > row[2] for one in alive)),
            key=lambda row: (-row[1], row[0]),
        )


class EagerWithoutReturnSkyline(Skyline):
    """Drops dominated messages for good, also those that would outlive their dominator."""

    def ranked(self, floor):
        ranked = super().ranked(floor)
        self.scored = {seq: self.scored[seq] for seq, _, _ in ranked}
        return ranked


BROKEN_STANDINGS = [
    (TOPK, OlderFirstTopK, "count:20"),
    (TOPK, WindowOneTooLongTopK, "count:20"),
    (TOPK, WindowOneTooShortTopK, "count:20"),
    (TOPK, ExpiryBySeqTopK, "time:20"),
    (TOPK, OneTooManyTopK, "count:20"),
    (TOPK, SwappedAlphaTopK, "count:20"),
    (TOPK, NeverRefilledTopK, "count:20"),
    (KNN, NewerStaysKnn, "count:20"),
    (KNN, ExpiringKnn, "count:20"),
    (DECAY, NewerStaysDecay, "count:20"),
    (DECAY, UnfadedDecay, "count:20"),
    (SKYLINE, OneOfCoincidentSkyline, "count:20"),
    (SKYLINE, StrictlyBetterInBothSkyline, "count:20"),
    (SKYLINE, EagerWithoutReturnSkyline, "count:20"),
]


@pytest.mark.parametrize(("kind", "broken", "window"), BROKEN_STANDINGS, ids=str)
def test_broken_standing_gives_other_updates(kind, broken, window):
    for seed in SEEDS:
        messages, wanted = stream(seed, late=window.startswith("time")), several(seed, kind)
        options = {"window": window, "size": 3, "max_distance": math.sqrt(2.0), "decay": MODEL}
        _, right = run(messages, wanted, **options)
        _, wrong = run(messages, wanted, standings={kind: broken}, **options)
        assert len(right) > 50
        assert tally(right) != tally(wrong), f"seed {seed}"


# ---------------------------------------------------------------------------- a skyband buffer beside the oracle


def buffered_results(
    messages: list[NaiveMessage], wanted: NaiveSubscription, span: int, broken: str = ""
) -> list[set[int]]:
    """The top k after every message, kept as a partial k-skyband above a threshold with refills from the window.

    `broken` names the single thing that is done wrong. A refill takes three messages to come back: what is
    published meanwhile must be routed without the old threshold, which "no barrier" leaves in place.
    """
    refill_rank, lag = wanted.k + 1, 3
    scores: dict[int, float] = {}  # the window index: every eligible message
    buffer: list[list] = []  # [score, seq, by how many newer ones it is beaten]
    threshold, blind_until, blind_below = -math.inf, -1, -math.inf
    results = []

    def offer(seq: int, score: float) -> None:
        limit = wanted.k - 1 if broken == "evicts one too early" else wanted.k
        for entry in buffer:
            entry[2] += entry[0] < score or (entry[0] == score and broken != "ties do not dominate")
        if broken == "older dominates" and any(entry[0] == score for entry in buffer):
            return
        buffer[:] = [entry for entry in buffer if entry[2] < limit]
        buffer.append([score, seq, 0])

    for got in messages:
        now = got.seq
        if naive.common_terms(wanted, got):
            score = scores[now] = naive.topk_score(wanted, got, math.sqrt(2.0))
            needed = threshold
            if broken == "prunes by the k-th score" and len(buffer) >= wanted.k:
                needed = sorted((entry[0] for entry in buffer), reverse=True)[wanted.k - 1]
            if broken == "no barrier" and now <= blind_until:
                needed = max(needed, blind_below)
            if score > needed if broken == "strictly above threshold" else score >= needed:
                offer(now, score)
        expired = now - span + {"window too short": 1, "window too long": -1}.get(broken, 0)
        buffer[:] = [entry for entry in buffer if entry[1] > expired]
        if len(buffer) < wanted.k and (threshold > -math.inf or now == 0) and broken != "never refills":
            blind_until, blind_below = now + lag, threshold
            newer_first = -1 if broken == "refill keeps the older of ties" else 1
            alive = [(score, seq) for seq, score in scores.items() if seq > now - span]
            alive.sort(key=lambda pair: (pair[0], newer_first * pair[1]), reverse=True)
            threshold = alive[refill_rank - 1][0] if len(alive) >= refill_rank else -math.inf
            taken = [pair for pair in alive if pair[0] >= threshold]
            if broken == "refill keeps the older of ties":
                taken = taken[:refill_rank]
            buffer.clear()
            for score, seq in sorted(taken, key=lambda pair: pair[1]):
                offer(seq, score)
        elif len(buffer) > refill_rank:  # a raise is free, and the higher the threshold the more refills there are
            threshold = sorted((entry[0] for entry in buffer), reverse=True)[wanted.k]
            buffer[:] = [entry for entry in buffer if entry[0] >= threshold]
        best = sorted(buffer, key=lambda entry: (entry[0], entry[1]), reverse=True)
        results.append({seq for _, seq, _ in best[: wanted.k]})
    return results


def oracle_results(messages: list[NaiveMessage], wanted: NaiveSubscription, span: int) -> list[set[int]]:
    """The same from the oracle, by replaying its updates message by message."""
    _, updates = run(messages, [wanted], window=f"count:{span}", max_distance=math.sqrt(2.0))
    holds: set[int] = set()
    results = []
    for got in messages:
        for row in updates:
            if row.as_of == got.seq:
                (holds.add if row.change == naive.ENTER else holds.discard)(row.seq)
        results.append(set(holds))
    return results


def wrong_answers(broken: str) -> tuple[int, int]:
    """In how many of all answers the skyband buffer differs from the oracle."""
    wrong = total = 0
    for messages, wanted, truth in buffer_cases():
        got = buffered_results(messages, wanted, 40, broken)
        wrong += sum(a != b for a, b in zip(got, truth, strict=True))
        total += len(truth)
    return wrong, total


@functools.cache
def buffer_cases() -> list[tuple[list[NaiveMessage], NaiveSubscription, list[set[int]]]]:
    """Stream, subscription and what the oracle says, worked out once for all variants."""
    cases = []
    for seed in SEEDS:
        messages = stream(seed, 300)
        cases += [(messages, wanted, oracle_results(messages, wanted, 40)) for wanted in several(seed, TOPK, 8)]
    return cases


def test_skyband_buffer_done_right_agrees_with_the_oracle():
    wrong, total = wrong_answers("")
    assert (wrong, total) == (0, 7200)


@pytest.mark.parametrize(
    "broken",
    [
        "prunes by the k-th score",
        "strictly above threshold",
        "evicts one too early",
        "older dominates",
        "refill keeps the older of ties",
        "no barrier",
        "never refills",
        "window too short",
        "window too long",
    ],
)
def test_skyband_buffer_done_wrong_is_caught(broken):
    wrong, total = wrong_answers(broken)
    assert 0 < wrong < total


# ------------------------------------------------------------------------------------------- boolean, done wrong


def boolean_matches(messages, wanted, ended, broken=""):
    """(subscription, message) pairs by an own double loop; `broken` names the single thing that is done wrong."""
    ends = dict(ended)
    pairs = []
    for row in wanted:
        west, south, east, north = row.region
        begin, end = row.at, ends.get(row.number, 2**62)
        if broken == "changes at the batch":
            begin, end = begin // 4 * 4, end // 4 * 4
        for got in messages:
            begun = got.seq > begin if broken == "begins one late" else got.seq >= begin
            ended_before = got.seq > end if broken == "ends one late" else got.seq >= end
            east_ok = got.west < east if broken == "open border" else got.west <= east
            if west <= east or broken == "antimeridian as one box":
                crosses = east_ok and got.east >= west
            else:
                crosses = east_ok or got.east >= west
            if broken == "point only":
                crosses = crosses and west <= got.west
            held = any if broken == "any keyword" else all
            text = held(term in got.weights for term in row.weights)
            if begun and not ended_before and crosses and got.south <= north and got.north >= south and text:
                pairs.append((row.number, got.seq))
    return sorted(pairs)


def boolean_case(seed):
    """Points and rectangles on a grid of 30 degrees that reaches both edges of the world."""
    rng = np.random.default_rng(seed)
    messages, wanted = [], []
    for seq in range(120):
        west, south = (rng.integers(-6, 7) * 30).item(), (rng.integers(-3, 4) * 30).item()
        box = (west, south, min(180, west + 30 * int(rng.integers(0, 3))), south)
        messages.append(message(seq, set((rng.zipf(1.6, rng.integers(0, 4)) % 4 + 1).tolist()), box=box))
    for number in range(40):
        west, east = (rng.integers(-6, 7, 2) * 30).tolist()
        south = (rng.integers(-3, 3) * 30).item()
        terms = set((rng.zipf(1.6, rng.integers(1, 3)) % 4 + 1).tolist())
        wanted.append(subscription(number, BOOLEAN, terms, int(rng.integers(0, 60)), region=(west, south, east, 90)))
    ended = [(number, 61 + int(rng.integers(0, 50))) for number in range(0, 40, 3)]
    return messages, wanted, ended


def oracle_matches(messages, wanted, ended):
    _, updates = run(messages, wanted, ended, size=4)
    return sorted((row.number, row.seq) for row in updates)


def test_boolean_done_right_agrees_with_the_oracle():
    for seed in SEEDS:
        case = boolean_case(seed)
        truth = oracle_matches(*case)
        assert len(truth) > 200
        assert boolean_matches(*case) == truth


@pytest.mark.parametrize(
    "broken",
    [
        "open border",
        "antimeridian as one box",
        "point only",
        "any keyword",
        "begins one late",
        "ends one late",
        "changes at the batch",
    ],
)
def test_boolean_done_wrong_is_caught(broken):
    for seed in SEEDS:
        case = boolean_case(seed)
        assert boolean_matches(*case, broken) != oracle_matches(*case), f"seed {seed}"
