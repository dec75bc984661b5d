"""Compares updates of a load test with those of the bulk oracle (`matching.bulk_oracle`): `skyray loadtest --check`.

`check` is for a topology of the test's own: the load is generated again by its spouts, and the updates of a sample,
over some thousand messages after the warm-up, are compared at the boundaries of the run. `recount` is for a running
server: all updates are compared that a follower has read. The messages are at the places in the stream that the server
answered with, subscriptions stand from the message on and up to the one that it answered with
(`gateway.load.lifetimes`), and boundaries are those in the ids of updates: at one without an update no result has
changed. `gateway.runs.verify` checks whole runs over files, and the order of updates.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from bolts.sinks import UPDATE_SCHEMA
from gateway.load.follower import Received
from gateway.load.lifetimes import Lifetimes
from gateway.load.served import RECOUNTED, WORDS, ServedWorkload, idf_at, reweighed, weighed
from gateway.runs.reader import read_updates
from matching.attributes import MISSING_KEY
from matching.bulk_oracle import NEVER, BulkOracle, of_numbers, sampled
from matching.half_life import DecayParameters
from matching.kinds import KINDS
from matching.model import (
    CHANGES,
    NO_KEYS,
    Int64,
    MessageBatch,
    Names,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    take_rows,
)
from matching.naive_rows import DecayModel, updates_of
from matching.window import Boundary, Window, stream_time
from spouts.cutting import Cutter, read_all
from spouts.paced import GeneratedSubscriptions, PacedSpout

#: Fewer expected updates of a server than this say too little.
ENOUGH = 1_000
#: Sampled subscriptions of each kind of a topology: evenly spaced, and with the most updates.
_SAMPLE = (400, 400)
#: Pairs of a subscription and a message with a common word that are compared of a kind: where all messages of a run
#: count (some seconds); of a server, with filters, which the oracle tests one by one, and without.
_MOST_PAIRS, _MOST_FILTERED, _MOST_SERVED = 20_000_000, 2_000_000, 40_000_000
#: Messages generated at a time.
_PIECE = 16_384
#: Largest relative difference of scores from a server with a vocabulary: it weighs new words by a number that it does
#: not publish.
_CLOSE = 1e-6
#: Counts of each kind, and their sums.
_COUNTS = (
    "compared", "compared_subscriptions", "compared_changed", "changed_subscriptions", "missing", "extra", "repeated",
    "scores_off",
)  # fmt: skip

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see


class Sent(NamedTuple):
    """Messages that the server accepted: seq of the first, which has all words; `number` and `seq` of the others."""

    primer_seq: int
    number: Int64
    seq: Int64


def check(
    source: PacedSpout,
    subscribers: GeneratedSubscriptions,
    fading: DecayParameters,
    ends: Sequence[int],
    folder: Path,
) -> dict[str, Any]:
    """Compare the updates of a topology after the first boundary and up to the last with the oracle's.

    Parameters
    ----------
    source, subscribers
        The spouts of the load.
    ends : sequence of int
        Last messages of successive batches.
    folder : Path
        Where `updates/` is.

    Returns
    -------
    dict
        `exact`: something was compared, and is right; `compared` (expected updates), `compared_subscriptions` (that
        have them), of these those that were added or ended meanwhile (`compared_changed`, `changed_subscriptions`),
        `missing`, `extra`, `repeated`, `scores_off`, also by kind (`by_kind`, with `exact` and `sampled`
        subscriptions); `misnamed` (updates with an unknown subscription, or the id of another message);
        `not_checked`: kinds that the oracle does not have.
    """
    loaded = [kind for kind in subscribers.kinds.run if subscribers.wanted[kind.code]]
    known = [kind for kind in loaded if kind.name in KINDS]
    left_out = [kind.name for kind in loaded if kind not in known]
    if len(ends) < 2:
        return _report({}, 0, left_out)
    table, removed_at = _ever(subscribers, ends[-1])
    window, max_distance = source.cutter.window, source.space.max_distance
    batches = list(read_all(source.open_source(), Cutter(window, _PIECE, ends[-1] + 1)))
    stream = concatenate([batch.messages for batch in batches])
    firsts = [0, *(end + 1 for end in ends)]
    boundaries = [
        Boundary(number, first, end, window.floor(end, stream_time(stream.life[: end + 1])))
        for number, (first, end) in enumerate(zip(firsts, ends, strict=False))
    ]
    subscription_ids = pa.array(subscribers.names(table).strings())
    message_ids = pa.array(Names.join([batch.names for batch in batches]).strings())
    delivered, misnamed = read_delivered(folder, subscription_ids, message_ids, ends[0], ends[-1])
    # the model divides by the number of tokens: 1 keeps the shares
    shares = dict(enumerate(fading.collection_share.tolist()))
    model = DecayModel(fading.log_base_per_s, fading.smoothing, shares, 1, fading.epoch_us)
    changed = removed_at != NEVER
    by_kind = {}
    for kind in known:
        rows = table.of_kind(kind.code)
        some = sampled(rows, of_numbers(delivered, rows.number), *_SAMPLE)
        some = _affordable(some, stream, _MOST_PAIRS) if kind.cumulative else some
        wanted = BulkOracle(some, removed_at[some.number], max_distance, model).advance(boundaries, stream)
        by_kind[kind.name] = _compared(some, take_rows(wanted, wanted.as_of > ends[0]), delivered, changed)
    return _report(by_kind, misnamed, left_out)


def recount(
    load: ServedWorkload, window: Window, lifetimes: Lifetimes, sent: Sent, received: Received
) -> dict[str, Any]:
    """Compare all updates of a server with the oracle's.

    Returns
    -------
    dict
        As of `check`, but that at least `ENOUGH` updates were compared, some of changed subscriptions if there are any,
        and `unanswered`: changes whose effect is not known, so that nothing is exact. `misnamed` are updates of a
        message or a subscription that there is not.
    """
    table, changed = lifetimes.table, lifetimes.changed
    names = [KINDS[code].name for code in np.unique(table.kind).tolist()]
    timed = {kind.name for kind in KINDS.run if kind.windows} if window.kind == "time" else set()
    known = [name for name in names if name in RECOUNTED and name not in timed]
    stream = _stream(load, sent)
    whole = weighed(load, table, lifetimes.at, idf_at(sent.primer_seq))
    numbers = np.concatenate([[-1], sent.number])[np.argsort(np.concatenate([[sent.primer_seq], sent.seq]))]
    got = UpdateBatch(received.as_of, received.subscription, received.seq, received.change, received.score)
    most = _MOST_FILTERED if load.filters else _MOST_SERVED
    by_kind = {}
    for name in known:
        some = _affordable(whole.of_kind(KINDS.named(name).code), stream, most)
        mine = received.boundary[np.isin(received.subscription, some.number)]
        ends = np.unique(np.concatenate([mine, stream.seq[-1:]]))
        boundaries = [
            Boundary(at, first, last, window.floor(last, 0))
            for at, (first, last) in enumerate(zip([0, *(ends[:-1] + 1).tolist()], ends.tolist(), strict=True))
        ]
        wanted = BulkOracle(some, lifetimes.end[some.number], load.space.max_distance).advance(boundaries, stream)
        by_kind[name] = _compared(some, wanted, got, changed, _CLOSE)
    misnamed = _misnamed(stream, numbers, whole, received)
    report = _report(by_kind, misnamed, [name for name in names if name not in known])
    enough = report["compared"] >= ENOUGH and (report["compared_changed"] > 0 or not changed.any())
    exact = report["exact"] and enough and not lifetimes.unanswered
    return report | {"unanswered": lifetimes.unanswered, "exact": exact}


def _report(by_kind: dict[str, dict[str, Any]], misnamed: int, not_checked: list[str]) -> dict[str, Any]:
    sums = {each: sum(one[each] for one in by_kind.values()) for each in _COUNTS}
    right = not misnamed and sums["compared"] > 0 and all(one["exact"] for one in by_kind.values())
    return {"exact": right, "misnamed": misnamed, **sums, "by_kind": by_kind, "not_checked": not_checked}


def _compared(
    table: SubscriptionTable, wanted: UpdateBatch, delivered: UpdateBatch, changed: np.ndarray, close: float = 0.0
) -> dict[str, Any]:
    """The delivered updates of these subscriptions beside the wanted ones; `changed` by number, `close` as a share."""
    wanted_times, wanted_score = _by_key(wanted)
    got_times, got_score = _by_key(of_numbers(delivered, table.number))
    missing = sum((wanted_times - got_times).values())
    extra = sum(1 for key in got_times if key not in wanted_times)
    repeated = sum(times - 1 for times in got_times.values())
    off = sum(not _is_close(got_score[key], at, close) for key, at in wanted_score.items() if key in got_score)
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


def _is_close(one: float, other: float, close: float) -> bool:
    return one == other or (one != one and other != other) or abs(one - other) <= close * abs(other)


def _affordable(table: SubscriptionTable, stream: MessageBatch, most: int) -> SubscriptionTable:
    """As many subscriptions, at random, as have at most so many pairs with messages; at least one."""
    spoken = np.bincount(stream.terms, minlength=int(table.terms.max(initial=0)) + 1)
    pairs = np.diff(np.concatenate([[0], np.cumsum(spoken[table.terms])])[table.term_offsets])
    order = np.random.default_rng(6).permutation(len(table))
    return table.take(np.sort(order[: max(1, np.count_nonzero(np.cumsum(pairs[order]) <= most))]))


# ------------------------------------------------------------------------------------------------------- a topology


def _ever(subscribers: GeneratedSubscriptions, last: int) -> tuple[SubscriptionTable, Int64]:
    """All subscriptions that there ever are up to message `last`, and the seq before which each ends."""
    table = subscribers.make()
    removed_at = np.full(len(table), NEVER)
    if subscribers.changes:
        added, removed = subscribers.changed(0, last)
        table = concatenate([table, added])
        removed_at = np.full(len(table), NEVER)
        removed_at[removed.number] = removed.at
    return table, removed_at


def read_delivered(
    folder: Path, subscription_ids: pa.Array, message_ids: pa.Array, after: int, last: int
) -> tuple[UpdateBatch, int]:
    """The delivered updates with `after < as_of <= last`, and how many of them have wrong ids.

    A subscription's number and a message's seq are the positions of their ids.
    """
    parts = [UPDATE_SCHEMA.empty_table()]
    for part in read_updates(folder):
        parts.append(part.filter((pc.field("as_of") > after) & (pc.field("as_of") <= last)).cast(UPDATE_SCHEMA))
    rows = pa.concat_tables(parts)
    number = pc.index_in(rows["subscription_id"], subscription_ids).fill_null(-1).to_numpy().astype(np.int64)
    message = pc.index_in(rows["message_id"], message_ids).fill_null(-1).to_numpy()
    change = pc.index_in(rows["change"], pa.array(CHANGES)).fill_null(-1).to_numpy().astype(np.int8)
    score, seq = rows["score"].fill_null(np.nan).to_numpy(), rows["seq"].to_numpy()
    misnamed = int(np.count_nonzero((number < 0) | (message != seq)))
    return UpdateBatch(rows["as_of"].to_numpy(), number, seq, change, score), misnamed


# --------------------------------------------------------------------------------------------------------- a server


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
