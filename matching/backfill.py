"""Backfill: the matches of messages that came before a subscription, which it gets when it begins.

`backfill` says how far back: `true` (all logged messages), `"7d"` (a time, counted back from the latest time of an
earlier message) or a number of messages. Where it begins follows from the log before the subscription alone, so a
replay finds the same matches. They are `match` updates as of the message `at` before which the subscription takes
effect: of every other one `as_of` is the message's own seq (`is_backfill`).
"""

from collections.abc import Sequence

import numpy as np

from matching.errors import EngineError
from matching.message_segments import MessageSegment, SegmentConditions
from matching.model import MATCH, Int8, Int64
from matching.window import NO_FLOOR

#: Updates of a backfill, and of those that take effect with one batch together.
MOST, MOST_TOGETHER = 10_000, 1_000_000


def start_of(backfill: int, at: int, segments: Sequence[MessageSegment], floor: int = 0) -> int:
    """The seq of the first message of a backfill (`matching.filter_fields.backfill_of`), at least `floor`.

    O(times of the segments)."""
    if backfill >= 0:
        return max(floor, at - backfill) if backfill else floor
    firsts = [max(floor, one.first) for one in segments]
    times = [
        one.time_us[first - one.first : max(0, at - one.first)] for one, first in zip(segments, firsts, strict=True)
    ]
    latest_us = max((int(one.max(initial=NO_FLOOR)) for one in times), default=NO_FLOOR)
    for first, time_us in zip(firsts, times, strict=True):
        later = time_us > latest_us + backfill if latest_us != NO_FLOOR else time_us[:0]
        if later.any():
            return first + int(np.argmax(later))
    return at


def backfilled(
    conditions: SegmentConditions,
    backfill: int,
    at: int,
    segments: Sequence[MessageSegment],
    most: int = MOST,
    aside: Sequence[tuple[int, int]] = (),
    floor: int = 0,
) -> tuple[Int64, bool]:
    """The messages of a backfill.

    Parameters
    ----------
    conditions : SegmentConditions
    backfill, at : int
    segments : sequence of MessageSegment    all messages before `at`, from `floor` on
    most : int                        the newest are taken
    aside : sequence of (int, int)    ranges of seqs that match nobody
    floor : int                       earlier messages may be removed: they are not asked for

    Returns
    -------
    int64[n]
        Seqs, ascending.
    bool
        Whether there are more.

    Raises
    ------
    EngineError
        If segments are missing.
    """
    if (segments[-1].first + len(segments[-1]) if segments else floor) < at:
        raise EngineError(f"backfill before message {at:,}: the index has fewer messages; remove it, to make it again")
    first, found, count = start_of(backfill, at, segments, floor), list[Int64](), 0
    for segment in reversed(segments):
        if segment.first + len(segment) <= first or count > most:
            break
        seqs = conditions.matching(segment, first, at - 1) + segment.first
        for begin, end in aside:
            seqs = seqs[(seqs < begin) | (seqs > end)]
        found.append(seqs)
        count += seqs.shape[0]
    whole = np.concatenate([np.zeros(0, np.int64), *reversed(found)])
    return whole[max(0, count - most) :], count > most


def is_backfill(change: Int8, seq: Int64, as_of: Int64) -> np.ndarray:
    """bool[n]: which updates came by a backfill; `change` as of `matching.model.CHANGES`."""
    return (change == MATCH) & (as_of > seq)
