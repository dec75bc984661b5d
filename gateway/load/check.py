"""What was told in a load test, held against independent computations: `skyray loadtest --check`.

The load is made again by its own spouts. A sample of each kind is held against the bulk oracle (`matching.bulk_oracle`,
the file to read next), over some thousand messages behind the warm-up, at the boundaries that the run had. Whole runs
over files, and the order of what they told, are for `gateway.runs.verify`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from bolts.sinks import UPDATE_SCHEMA
from gateway.runs.reader import read_updates
from matching.bulk_oracle import expected, of_numbers, sampled
from matching.half_life import DecayParameters
from matching.kinds import KINDS
from matching.model import CHANGES, MessageBatch, SubscriptionTable, UpdateBatch, concatenate
from matching.naive import DecayModel, tally
from matching.window import Boundary, stream_time
from spouts.cutting import Cutter, join_names, read_all
from spouts.paced import GeneratedSubscriptions, PacedSpout

#: Messages that are checked, or those of so many batches where there are more in them.
_MESSAGES, _BATCHES = 4_000, 4
#: Of each kind so many subscriptions spread evenly, and so many of those that were told most.
_SAMPLE = (400, 400)
#: Where results last all messages count, from the first on: no more pairs with a word in common than this, which take
#: some seconds, and so fewer subscriptions.
_MOST_PAIRS = 20_000_000
#: Messages that are made at a time.
_PIECE = 16_384

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see


def watched(first: int, largest: int) -> range:
    """The messages from `first` on that are checked, where a batch has `largest` at most."""
    return range(first, first + max(_MESSAGES, _BATCHES * largest))


def check(
    source: PacedSpout, subscribers: GeneratedSubscriptions, fading: DecayParameters, ends: Sequence[int], folder: Path
) -> dict[str, Any]:
    """What was told behind the first of the boundaries up to the last, against what had to be.

    Parameters
    ----------
    source, subscribers
        The spouts of the load.
    fading : Fading
    ends : sequence of int
        Last messages of successive batches.
    folder : Path
        Where `updates/` is.

    Returns
    -------
    dict
        `exact`: all that was compared is right, and something was; `compared` (updates that had to be told),
        `compared_subscriptions` (of how many), `misnamed` (updates of subscriptions that there are not, or with the id
        of another message), `by_kind` with the same of each kind, and `sampled` (subscriptions looked at);
        `not_checked`: kinds of which nobody but the engines knows what is right.
    """
    table, loaded = subscribers.make(), [kind for kind in subscribers.kinds.run if subscribers.wanted[kind.code]]
    known = [kind for kind in loaded if kind.name in KINDS]
    report = {"exact": False, "compared": 0, "compared_subscriptions": 0, "misnamed": 0, "by_kind": {}}
    report["not_checked"] = [kind.name for kind in loaded if kind not in known]
    if len(ends) < 2:
        return report
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
    told, report["misnamed"] = told_in(folder, subscription_ids, message_ids, ends[0], ends[-1])
    # a share of one token is the share
    shares = dict(enumerate(fading.collection_share.tolist()))
    model = DecayModel(fading.log_base_per_s, fading.smoothing, shares, 1, fading.epoch_us)
    for kind in known:
        rows = table.of_kind(kind.code)
        some = sampled(rows, of_numbers(told, rows.number), *_SAMPLE)
        some = _affordable(some, stream) if kind.lasting else some
        wanted = expected(stream, some, boundaries, max_distance, decay=model).updates
        report["by_kind"][kind.name] = {
            "exact": tally(of_numbers(told, some.number)) == wanted,
            "compared": wanted.total(),
            "compared_subscriptions": len({event[1] for event in wanted}),
            "sampled": len(some),
        }
    for name in ("compared", "compared_subscriptions"):
        report[name] = sum(each[name] for each in report["by_kind"].values())
    right = all(each["exact"] for each in report["by_kind"].values())
    return report | {"exact": right and not report["misnamed"] and report["compared"] > 0}


def told_in(
    folder: Path, subscription_ids: pa.Array, message_ids: pa.Array, after: int, last: int
) -> tuple[UpdateBatch, int]:
    """The updates as of messages behind one up to another, and how many of them have ids that are wrong.

    Numbers of subscriptions, and seqs of messages, are places of their ids.
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
    """The first subscriptions that meet no more than `_MOST_PAIRS` messages together, at least one."""
    spoken = np.bincount(stream.terms, minlength=int(table.terms.max(initial=0)) + 1)
    pairs = np.concatenate([[0], np.cumsum(spoken[table.terms])])[table.term_offsets[1:]]
    return table.take(np.arange(max(1, np.count_nonzero(pairs <= _MOST_PAIRS))))
