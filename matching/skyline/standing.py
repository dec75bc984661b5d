"""Leading standing skylines from one boundary to the next: what the stream in one process and a home task share.

`lead` is given the pairs that came and those that were ended, whoever found them, and has the engine follow; `Lacking`
says for whom the engine must look into the window, which may be at hand (`matching.skyline.stream`) or elsewhere, so
that the answer comes later (`matching.skyline.home`). Until then nothing of them is told.
"""

from typing import NamedTuple

import numpy as np

from matching.model import (
    ENTER,
    LEAVE,
    Int32,
    Int64,
    MessageBatch,
    ResultBatch,
    UpdateBatch,
    concatenate,
    take_ragged,
)
from matching.skyline.engine import Offers, SkylineEngine
from matching.skyline.kept import Held, difference
from matching.skyline.window import Contents
from matching.window import Boundary


class Lacking(NamedTuple):
    """Subscriptions whose candidates must be looked up, and what they held at the boundary before."""

    slots: Int32
    before: Held


class Standing:
    """The skylines of an engine; each slot may be at a boundary of its own, which the caller keeps in mind."""

    def __init__(self, engine: SkylineEngine):
        self.engine = engine

    def lead(
        self, past: int, boundary: Boundary, offers: Offers, lost_slots: Int32, lost_seqs: Int64, leaving: Int32
    ) -> tuple[UpdateBatch, Lacking]:
        """Lead subscriptions to the next boundary.

        Parameters
        ----------
        past : int              floor of the boundary at which they are
        boundary : Boundary     the next one; nobody else of the engine may be due at its floor
        offers : Offers         what came to them, alive at the boundary
        lost_slots, lost_seqs   int32[n], int64[n]: message `lost_seqs[i]`, a candidate of `lost_slots[i]`, was ended
        leaving : int32[m]      these have ended, and keep nothing from now on; none of them is in the others

        Returns
        -------
        UpdateBatch, Lacking
            What is told as of the boundary, but for those that lack their candidates.
        """
        kept = self.engine.kept
        held_leaving = kept.held(leaving, past)
        self.engine.forget(leaving)
        offers, lost_slots, lost_seqs = self.engine.put_by(offers, lost_slots, lost_seqs)
        touched = np.unique(np.concatenate([offers.slot, lost_slots, kept.due(boundary.floor)])).astype(np.int32)
        before = kept.held(touched, past)
        lacking = self.engine.take(offers, lost_slots, lost_seqs, boundary.floor)
        told = self.tell(boundary, leaving, held_leaving)
        settled = np.flatnonzero(~np.isin(touched, lacking))
        told = concatenate([told, self.tell(boundary, touched[settled], take_held(before, settled))])
        return told, Lacking(lacking, take_held(before, np.searchsorted(touched, lacking)))

    def tell(self, boundary: Boundary, slots: Int32, before: Held) -> UpdateBatch:
        """Updates of slots that held `before` and now are at the boundary; leaves first. O(entries)."""
        after = self.engine.kept.held(slots, boundary.floor)
        room = before.seq.shape[0] + after.seq.shape[0]
        row, seq = np.empty(room, np.int32), np.empty(room, np.int64)
        score, enters = np.empty(room), np.empty(room, np.bool_)
        told = difference(before, after, row, seq, score, enters)
        change = np.where(enters[:told], ENTER, LEAVE).astype(np.int8)
        numbers = self.engine.index.slots.number[slots][row[:told]]
        return UpdateBatch(np.full(told, boundary.last_seq), numbers, seq[:told], change, score[:told])

    def results(self, slots: Int32, floor: int) -> ResultBatch:
        """The skylines of slots that are at a boundary of this floor, with both relevances. O(results log results)."""
        held = self.engine.kept.held(slots, floor)
        lengths = np.diff(held.offsets)
        row = np.repeat(np.arange(slots.shape[0]), lengths)
        order = np.lexsort((held.seq, -held.spatial, row))
        rank = np.arange(row.shape[0]) - np.repeat(held.offsets[:-1], lengths) + 1
        numbers = self.engine.index.slots.number[slots][row]
        return ResultBatch(
            numbers, rank.astype(np.int32), held.seq[order], held.spatial[order], held.text[order]
        )  # fmt: skip


def alive_rows(boundary: Boundary, messages: MessageBatch, ended: Int64) -> Int64:
    """Rows of a batch that live at its end: not too late, and not ended in it."""
    return np.flatnonzero((messages.life > boundary.floor) & ~np.isin(messages.seq, ended))


def contents_of(messages: MessageBatch) -> Contents:
    """What `skyline` sees of messages: a range message stands at its centre. O(n)."""
    lon, lat = (messages.west + messages.east) / 2.0, (messages.south + messages.north) / 2.0
    return Contents(messages.seq, lon, lat, messages.term_offsets, messages.terms)


def held_nothing(rows: int) -> Held:
    """So many empty skylines."""
    return Held(np.zeros(rows + 1, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


def take_held(held: Held, rows: Int64) -> Held:
    """The skylines at `rows`. O(their entries)."""
    offsets, picked = take_ragged(held.offsets, rows)
    return Held(offsets, held.seq[picked], held.spatial[picked], held.text[picked])


def join_held(parts: list[Held]) -> Held:
    """All rows of all parts; at least one part. O(entries)."""
    ends = np.cumsum([0, *(part.offsets[-1] for part in parts)])
    offsets = [np.zeros(1, np.int64), *(part.offsets[1:] + end for part, end in zip(parts, ends, strict=False))]
    return Held(
        np.concatenate(offsets),
        np.concatenate([part.seq for part in parts]),
        np.concatenate([part.spatial for part in parts]),
        np.concatenate([part.text for part in parts]),
    )
