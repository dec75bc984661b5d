"""Holds what a follower has read against the oracle: missing, extra and repeated updates of a load test of a server.

The messages that the server has accepted, at the places in its stream that it answered with, and the subscriptions,
each from the message on and up to the one that it answered with (`gateway.load.lifetimes`), go to the bulk oracle
(`matching.bulk_oracle`, the file to read next). Boundaries are those of the updates' ids: at one without an update no
result has changed, so that it makes no difference.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from gateway.load.follower import Received
from gateway.load.lifetimes import Lifetimes
from gateway.load.served import RECOUNTED, WORDS, ServedWorkload, idf_at, reweighed, weighed
from matching.attributes import MISSING_KEY
from matching.bulk_oracle import BulkOracle
from matching.kinds import KINDS
from matching.model import NO_KEYS, Int64, MessageBatch, SubscriptionTable, UpdateBatch, concatenate
from matching.naive_rows import updates_of
from matching.window import Boundary, Window

#: Fewer expected updates than this say too little.
ENOUGH = 1_000
#: Pairs of a subscription and a message with a common word that are counted at most, of each kind; with filters, which
#: the oracle tests one by one, and without. Subscriptions beyond are left out.
_MOST_PAIRS, _MOST_FILTERED = 40_000_000, 2_000_000
#: Largest difference of equal scores: a server with a vocabulary weighs new words by a number that it does not publish.
_CLOSE = 1e-6


class Sent(NamedTuple):
    """Messages that the server accepted: seq of the first, which has all words; `number` and `seq` of the others."""

    primer_seq: int
    number: Int64
    seq: Int64


#: What is counted of each kind, and summed.
_COUNTS = (
    "compared", "compared_subscriptions", "compared_changed", "changed_subscriptions", "missing", "extra", "repeated",
    "scores_off",
)  # fmt: skip


def recount(
    load: ServedWorkload, window: Window, lifetimes: Lifetimes, sent: Sent, received: Received
) -> dict[str, Any]:
    """Compare all updates of a run with the oracle's.

    Returns
    -------
    dict
        `exact`: `ENOUGH` were compared, of changed subscriptions too where there are any, and all are right;
        `compared`, `compared_subscriptions`, of these those that were added or ended meanwhile (`compared_changed`,
        `changed_subscriptions`), `missing`, `extra`, `repeated`, `scores_off`, also by kind (`by_kind`, with `sampled`
        subscriptions); `misnamed`: updates of a message or a subscription that there is not; `unanswered`: changes
        whose effect is not known, so that nothing is exact; `not_checked`: kinds that cannot be recounted.
    """
    table, changed = lifetimes.table, lifetimes.changed
    names = [KINDS[code].name for code in np.unique(table.kind).tolist()]
    timed = {kind.name for kind in KINDS.run if kind.windows} if window.kind == "time" else set()
    known = [name for name in names if name in RECOUNTED and name not in timed]
    stream = _stream(load, sent)
    idf = idf_at(sent.primer_seq)
    whole = weighed(load, table, lifetimes.at, idf)
    numbers = np.concatenate([[-1], sent.number])[np.argsort(np.concatenate([[sent.primer_seq], sent.seq]))]
    misnamed = _misnamed(stream, numbers, whole, received)
    by_kind = {}
    for name in known:
        rows = _affordable(whole.of_kind(KINDS.named(name).code), stream, load)
        by_kind[name] = _compared(rows, lifetimes.end[rows.number], changed, stream, window, load, received)
    report: dict[str, Any] = {"misnamed": misnamed, "unanswered": lifetimes.unanswered, "by_kind": by_kind}
    for each in _COUNTS:
        report[each] = sum(one[each] for one in by_kind.values())
    report["not_checked"] = [name for name in names if name not in known]
    right = not (misnamed or lifetimes.unanswered) and all(one["exact"] for one in by_kind.values())
    enough = report["compared"] >= ENOUGH and (report["compared_changed"] > 0 or not changed.any())
    return report | {"exact": right and enough}


def _stream(load: ServedWorkload, sent: Sent) -> MessageBatch:
    """The accepted messages, ascending, as the server has them."""
    idf = idf_at(sent.primer_seq)
    order = np.argsort(sent.number, kind="stable")
    number, seq = sent.number[order], sent.seq[order]
    parts, done = [_primer(load, sent.primer_seq, idf)], 0
    for messages, _ in load.pieces(0):
        if done == number.shape[0]:
            break
        upto = int(np.searchsorted(number, messages.seq[-1], "right"))
        rows = number[done:upto] - messages.seq[0]
        parts.append(reweighed(load, messages.take(rows), seq[done:upto], idf))
        done = upto
    whole = concatenate(parts)
    return whole.take(np.argsort(whole.seq))


def _primer(load: ServedWorkload, seq: int, idf: float) -> MessageBatch:
    row = load.primer()
    lon, lat = np.array([row["lon"]]), np.array([row["lat"]])
    ones, at = np.ones(WORDS, np.int32), np.array([seq], np.int64)
    keys = np.full((1, 1), MISSING_KEY, np.int64) if load.number is not None else NO_KEYS
    offsets, terms, empty = np.array([0, WORDS], np.int64), np.arange(WORDS, dtype=np.int32), np.zeros(0, np.int64)
    plain = MessageBatch(
        at, lon, lat, lon, lat, lon, lat, at, offsets, terms, ones.astype(np.float32), ones, empty, keys
    )  # fmt: skip
    return reweighed(load, plain, at, idf)


def _misnamed(stream: MessageBatch, numbers: Int64, table: SubscriptionTable, received: Received) -> int:
    """How many updates name a subscription that there is not, or a message by a seq that it does not have."""
    place = np.minimum(np.searchsorted(stream.seq, received.seq), len(stream) - 1)
    right = (stream.seq[place] == received.seq) & (numbers[place] == received.message)
    right &= (received.subscription >= 0) & (received.subscription < len(table))
    return int(np.count_nonzero(~right))


def _affordable(table: SubscriptionTable, stream: MessageBatch, load: ServedWorkload) -> SubscriptionTable:
    """As many subscriptions, at random, as can be counted; at least one."""
    most = _MOST_FILTERED if load.filters else _MOST_PAIRS
    spoken = np.bincount(stream.terms, minlength=WORDS)
    pairs = np.add.reduceat(spoken[table.terms], table.term_offsets[:-1]) if len(table) else np.zeros(0, np.int64)
    order = np.random.default_rng([load.seed, 6]).permutation(len(table))
    return table.take(np.sort(order[: max(1, np.count_nonzero(np.cumsum(pairs[order]) <= most))]))


def _compared(
    table: SubscriptionTable,
    end: Int64,
    changed: np.ndarray,
    stream: MessageBatch,
    window: Window,
    load: ServedWorkload,
    received: Received,
) -> dict[str, Any]:
    """The updates of these subscriptions beside the oracle's; `end` of each, `changed` by number."""
    mine = np.isin(received.subscription, table.number)
    ends = np.unique(np.concatenate([received.boundary[mine], stream.seq[-1:]]))
    boundaries = [
        Boundary(at, first, last, window.floor(last, 0))
        for at, (first, last) in enumerate(zip([0, *(ends[:-1] + 1).tolist()], ends.tolist(), strict=True))
    ]
    oracle = BulkOracle(table, end, load.space.max_distance)
    wanted = oracle.advance(boundaries, stream)
    got = UpdateBatch(
        received.as_of[mine], received.subscription[mine], received.seq[mine], received.change[mine],
        received.score[mine],
    )  # fmt: skip
    wanted_times, wanted_score = _by_key(wanted)
    got_times, got_score = _by_key(got)
    missing = sum((wanted_times - got_times).values())
    extra = sum(1 for key in got_times if key not in wanted_times)
    repeated = sum(times - 1 for times in got_times.values())
    off = sum(not _close(got_score[key], score) for key, score in wanted_score.items() if key in got_score)
    return {
        "exact": not (missing or extra or repeated or off),
        "compared": wanted_times.total(),
        "compared_subscriptions": len({key[1] for key in wanted_times}),
        "compared_changed": sum(times for key, times in wanted_times.items() if changed[key[1]]),
        "changed_subscriptions": len({key[1] for key in wanted_times if changed[key[1]]}),
        "sampled": len(table),
        "missing": missing,
        "extra": extra,
        "repeated": repeated,
        "scores_off": off,
    }


def _by_key(updates: UpdateBatch) -> tuple[Counter[tuple[int, ...]], dict[tuple[int, ...], float]]:
    """How often each update is there, and its score."""
    times: Counter[tuple[int, ...]] = Counter()
    scores = {}
    for row in updates_of(updates):
        times[row[:4]] += 1
        scores[row[:4]] = row.score
    return times, scores


def _close(one: float, other: float) -> bool:
    return one == other or (one != one and other != other) or abs(one - other) <= _CLOSE * abs(other)
