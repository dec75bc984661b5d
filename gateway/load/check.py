"""Compares updates of a load test with the bulk oracle: `skyray loadtest --check`.

The load is generated again by its spouts. The updates of a sample of each kind, over some thousand messages after the
warm-up, are compared with those of the bulk oracle (`matching.bulk_oracle`, the file to read next) at the boundaries of
the run. `gateway.runs.verify` checks whole runs over files, and the order of updates.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute

from bolts.sinks import UPDATE_SCHEMA
from gateway.runs.reader import read_updates
from matching.bulk_oracle import NEVER, expected, of_numbers, sampled
from matching.half_life import DecayParameters
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import CHANGES, Int64, MessageBatch, Names, SubscriptionTable, UpdateBatch, concatenate
from matching.naive_rows import DecayModel, tally
from matching.window import Boundary, stream_time
from spouts.cutting import Cutter, join_names, read_all
from spouts.paced import GeneratedSubscriptions, PacedSpout

#: Sampled subscriptions of each kind: evenly spaced, and with the most updates.
_SAMPLE = (400, 400)
#: Of cumulative kinds all messages count: the sample is cut to this many pairs with a word in common (some seconds).
_MOST_PAIRS = 20_000_000
#: Messages generated at a time.
_PIECE = 16_384

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see


class Subscribers(Protocol):
    """The subscriptions of a load: generated ones, or those of a workload."""

    @property
    def kinds(self) -> Kinds: ...

    @property
    def wanted(self) -> Mapping[int, int]:
        """How many of each kind, by code."""
        ...

    def make(self) -> SubscriptionTable:
        """All of them; numbers are rows."""
        ...

    def names(self, table: SubscriptionTable) -> Names:
        """Their ids."""
        ...


def check(
    source: PacedSpout, subscribers: "Subscribers", fading: DecayParameters, ends: Sequence[int], folder: Path
) -> dict[str, Any]:
    """Compare the updates after the first boundary and up to the last with the oracle's.

    Parameters
    ----------
    source, subscribers
        The spouts of the load.
    fading : DecayParameters
    ends : sequence of int
        Last messages of successive batches.
    folder : Path
        Where `updates/` is.

    Returns
    -------
    dict
        `exact`: something was compared, and is right; `compared` (expected updates),
        `compared_subscriptions` (that have them), `misnamed` (updates with an unknown subscription, or the id of
        another message), `by_kind` with the same of each kind and `sampled` (subscriptions); `not_checked`: kinds
        that the oracle does not have.
    """
    loaded = [kind for kind in subscribers.kinds.run if subscribers.wanted[kind.code]]
    known = [kind for kind in loaded if kind.name in KINDS]
    report = {"exact": False, "compared": 0, "compared_subscriptions": 0, "misnamed": 0, "by_kind": {}}
    report["not_checked"] = [kind.name for kind in loaded if kind not in known]
    if len(ends) < 2:
        return report
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
    message_ids = pa.array(join_names([batch.names for batch in batches]).strings())
    delivered, report["misnamed"] = read_delivered(folder, subscription_ids, message_ids, ends[0], ends[-1])
    # the model divides by the number of tokens: 1 keeps the shares
    shares = dict(enumerate(fading.collection_share.tolist()))
    model = DecayModel(fading.log_base_per_s, fading.smoothing, shares, 1, fading.epoch_us)
    for kind in known:
        rows = table.of_kind(kind.code)
        some = sampled(rows, of_numbers(delivered, rows.number), *_SAMPLE)
        some = _affordable(some, stream) if kind.cumulative else some
        gone = removed_at[some.number]  # a number is a row
        wanted = expected(stream, some, boundaries, max_distance, decay=model, removed_at=gone).updates
        report["by_kind"][kind.name] = {
            "exact": tally(of_numbers(delivered, some.number)) == wanted,
            "compared": wanted.total(),
            "compared_subscriptions": len({event[1] for event in wanted}),
            "sampled": len(some),
        }
    for name in ("compared", "compared_subscriptions"):
        report[name] = sum(each[name] for each in report["by_kind"].values())
    right = all(each["exact"] for each in report["by_kind"].values())
    return report | {"exact": right and not report["misnamed"] and report["compared"] > 0}


def _ever(subscribers: "Subscribers", last: int) -> tuple[SubscriptionTable, Int64]:
    """All subscriptions that there ever are up to message `last`, and the seq before which each ends."""
    table = subscribers.make()
    removed_at = np.full(len(table), NEVER)
    if isinstance(subscribers, GeneratedSubscriptions) and subscribers.changes:
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


def _affordable(table: SubscriptionTable, stream: MessageBatch) -> SubscriptionTable:
    """The first subscriptions that have at most `_MOST_PAIRS` pairs with messages in all, at least one."""
    spoken = np.bincount(stream.terms, minlength=int(table.terms.max(initial=0)) + 1)
    pairs = np.concatenate([[0], np.cumsum(spoken[table.terms])])[table.term_offsets[1:]]
    return table.take(np.arange(max(1, np.count_nonzero(pairs <= _MOST_PAIRS))))
