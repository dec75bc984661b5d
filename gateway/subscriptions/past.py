"""The messages of a folder, or of a log, in segments: what subscriptions would have matched."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from matching.kind_table import Kind
from matching.message_segments import EMPTY, MessageSegment, SegmentConditions
from matching.model import NO_ORDER, NO_WORDS, Float64, Names
from matching.pieces import NAMED_ID
from matching.validate import ParsedSubscription
from matching.vocabulary import Vocabulary
from matching.window import NO_FLOOR
from spark_etl.span import span_us
from spouts.changes import NEVER
from spouts.columns import AHEAD, ORDER, attribute_keys
from spouts.parquet import read_columns

US_PER_DAY = 86_400e6
#: Times from which the span of a long past is estimated, about.
_TIMES = 100_000
_SIDES = (("west", "lon"), ("south", "lat"), ("east", "lon"), ("north", "lat"))


class Past(NamedTuple):
    """Messages of a folder, or of a log.

    segments : sequence of MessageSegment    ascending
    days : float or None              time span in days; None without times
    last_us : int or None             the latest time
    """

    segments: Sequence[MessageSegment]
    days: float | None
    last_us: int | None

    @classmethod
    def of(cls, segments: Sequence[MessageSegment]) -> "Past":
        """Reads the times of the messages, of many a part."""
        segments = segments or (EMPTY,)
        step = max(1, sum(map(len, segments)) // _TIMES)
        times = np.concatenate([np.zeros(0, np.int64), *(one.time_us[::step] for one in segments)])
        span = span_us(times[times != NO_FLOOR])
        last_us = max(one.latest_us for one in segments)
        return cls(segments, span / US_PER_DAY if span else None, None if last_us == NO_FLOOR else last_us)

    def __len__(self) -> int:
        """How many messages there are."""
        return sum(map(len, self.segments))


def matches_in(
    parsed: ParsedSubscription, kind: Kind, vocabulary: Vocabulary, past: Past, share: Callable[[], None] = lambda: None
) -> int:
    """How many messages of the past satisfy a subscription; `share` is called between segments."""
    conditions, found = SegmentConditions(parsed, kind, vocabulary), 0
    for segment in past.segments:
        share()
        found += conditions.matching(segment, 0, NEVER).shape[0]
    return found


def unmet_in(
    parsed: ParsedSubscription, kind: Kind, vocabulary: Vocabulary, past: Past, clauses: Mapping[bytes, str]
) -> list[str]:
    """Names of the conditions that no message of the past satisfies which has a word of the subscription; `clauses` as
    of `SegmentConditions`."""
    conditions, met = SegmentConditions(parsed, kind, vocabulary, clauses), dict[str, bool]()
    for segment in past.segments:
        for name, passes in conditions.tested(segment).parts.items():
            met[name] = met.get(name, False) or bool(passes.any())
    return [name for name, some in met.items() if not some]


def read_past(etl: Path, vocabulary: Vocabulary) -> Past:
    """Read a folder's messages: 20 bytes a term and 60 a message. Raises InputError as the spout does."""
    flat, counts, places, boxes, times, keys = [], [], [], [], [], []
    names = [one.column for one in vocabulary.attributes.compared]
    visible, order, lengths = [], [NO_ORDER], [NO_WORDS]
    sides = [name for name, _ in _SIDES]
    for batch in read_columns(etl, ["lon", "lat", "terms"], (*sides, "event_time", "op", AHEAD, ORDER, *names)):
        lists: Any = batch.column("terms")
        flat.append(lists.flatten().to_numpy())
        counts.append(lists.value_lengths().fill_null(0).to_numpy())
        places.append([batch.column(name).to_numpy() for name in ("lon", "lat")])
        boxes.append(np.stack([_side(batch, *each) for each in _SIDES], axis=1))
        time = np.full(len(batch), NO_FLOOR)
        if "event_time" in batch.schema.names:
            time = batch.column("event_time").cast(pa.int64()).fill_null(NO_FLOOR).to_numpy()
        times.append(time)
        visible.append(_visible(batch))
        if ORDER in batch.schema.names:
            words: Any = batch.column(ORDER)
            order.append(words.flatten().to_numpy())
            lengths.append(words.value_lengths().fill_null(0).to_numpy().astype(np.int64))
        if names:
            keys.append(np.concatenate([attribute_keys(batch.column(name)) for name in names], axis=1))
    if not places:
        return Past.of(())
    lon, lat = np.concatenate(places, axis=1)
    rows = np.repeat(np.arange(lon.shape[0]), np.concatenate(counts))
    ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths])) if len(lengths) > 1 else NO_WORDS
    every = np.concatenate(order)
    named = np.flatnonzero(every <= NAMED_ID)
    rows = np.concatenate([rows, np.searchsorted(ends, named, "right") - 1])
    segment = MessageSegment.of(
        0,
        Names(np.zeros(lon.shape[0] + 1, np.int64), np.zeros(0, np.uint8)),  # of a folder they are read by seq
        lon,
        lat,
        np.concatenate(boxes),
        np.concatenate(times),
        np.concatenate(keys) if keys else np.zeros((lon.shape[0], 0), np.int64),
        (ends, every),
        (rows, np.concatenate([*flat, NAMED_ID - every[named]]).astype(np.int64)),
        np.concatenate(visible),
        vocabulary.reserved,
    )
    return Past.of([segment])


def _visible(batch: pa.RecordBatch) -> np.ndarray:
    """bool[n]: False for deletions and for messages that are dated too far ahead, True for all others."""
    visible = np.ones(len(batch), np.bool_)
    for name in ("op", AHEAD):
        if name in batch.schema.names:
            visible &= batch.column(name).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) == 0
    return visible


def _side(batch: pa.RecordBatch, name: str, point: str) -> Float64:
    """One side of the rectangles of messages; of a point message the coordinate itself."""
    own = batch.column(point).to_numpy()
    if name not in batch.schema.names:
        return own
    side = batch.column(name).to_numpy(zero_copy_only=False)
    return np.where(np.isnan(side), own, side)
