"""Skylines row by row, and messages as the `skyline` window sees them. Read on in `matching.skyline.operator`."""

import numpy as np

from matching.model import Int64, MessageBatch, take_ragged
from matching.skyline.results import SkylineRows
from matching.skyline.window import Contents
from matching.window import Boundary


def alive_rows(boundary: Boundary, messages: MessageBatch, ended: Int64) -> Int64:
    """Rows of a batch that are alive at its boundary: not too late, and not ended in it."""
    return np.flatnonzero((messages.life > boundary.floor) & ~np.isin(messages.seq, ended))


def contents_of(messages: MessageBatch) -> Contents:
    """Places and terms of messages; a range message is at its centre. O(n)."""
    lon, lat = (messages.west + messages.east) / 2.0, (messages.south + messages.north) / 2.0
    return Contents(messages.seq, lon, lat, messages.term_offsets, messages.terms)


def no_skylines(rows: int) -> SkylineRows:
    """Empty skylines of `rows` rows."""
    return SkylineRows(np.zeros(rows + 1, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


def take_skylines(skylines: SkylineRows, rows: Int64) -> SkylineRows:
    """The skylines at `rows`. O(their entries)."""
    offsets, picked = take_ragged(skylines.offsets, rows)
    return SkylineRows(offsets, skylines.seq[picked], skylines.spatial[picked], skylines.text[picked])


def join_skylines(parts: list[SkylineRows]) -> SkylineRows:
    """All rows of all parts; at least one part. O(entries)."""
    ends = np.cumsum([0, *(part.offsets[-1] for part in parts)])
    offsets = [np.zeros(1, np.int64), *(part.offsets[1:] + end for part, end in zip(parts, ends, strict=False))]
    return SkylineRows(
        np.concatenate(offsets),
        np.concatenate([part.seq for part in parts]),
        np.concatenate([part.spatial for part in parts]),
        np.concatenate([part.text for part in parts]),
    )
