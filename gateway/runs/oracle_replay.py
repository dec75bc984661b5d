"""Replays a finished run through an oracle: the updates and results that it must have delivered.

Messages and subscriptions are read by the loaders of the run, since they define the numbering; batches and window
floors are computed here independently. `gateway.runs.verify` compares the outcome with the delivered updates.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from gateway.runs.match_rules import Lives
from gateway.runs.oracles import BulkRun, PlainRun
from gateway.runs.reader import RunReader
from matching.backfill import MOST
from matching.bulk_oracle import NEVER
from matching.errors import ConfigError, InputError
from matching.kind_table import Kind
from matching.model import MATCH, Int64, MessageBatch, ResultBatch, UpdateBatch, concatenate, empty
from matching.naive import boolean_match, passes
from matching.naive_rows import Extras, NaiveSubscription, messages_of, subscriptions_of
from matching.validate import DELETE
from matching.window import NO_FLOOR, Boundary, Floors, stream_time
from spouts.columns import AHEAD
from spouts.cuts import read_ends
from spouts.history import history_of
from spouts.parquet import read_columns, read_messages
from spouts.quarantine import in_ranges, without_terms
from spouts.subscriptions import SubscriptionChanges
from topology.folder import REPORT

#: Messages of a batch at most, where only time ends it.
_MOST_AT_ONCE = 1_000_000
#: Messages read at a time.
CHUNK = 20_000
#: Columns of an event as integers: as_of, subscription (row of the sampled ids), seq, change, bits of the score.
AS_OF, ID_ROW, SEQ, CHANGE, SCORE = range(5)

#: Called as `on_progress(messages=done, of=all, updates=so_far)`.
Progress = Callable[..., None]

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see


class Sample(NamedTuple):
    """The external ids to compare, and their subscription numbers."""

    ids: pa.Array
    all_ids: pa.Array
    numbers: Int64
    id_row: Int64  # position in `ids` for each of `numbers`


class Truth(NamedTuple):
    """The oracle's events (int64[n, 5], see `AS_OF`...) and results, all message ids by seq, and counts by kind."""

    events: Int64
    results: ResultBatch
    message_ids: pa.ChunkedArray
    subscriptions: dict[str, int]
    updates: dict[str, int]
    messages: int
    boundaries: int
    oracle: str  # its name


# -------------------------------------------------------------------------------------------------- what was run


def boundary_ends(run: RunReader, messages: int) -> Int64:
    """Last seq of each boundary of a stream of `messages` messages: by size, by stream time, or as the run logged them.

    Raises InputError if `run.json` does not say.
    """
    cuts: dict[str, Any] = run.boundaries
    try:
        if "batch" in cuts:
            size, step_us = int(cuts["batch"]), int(cuts.get("time_us", 0))
            if size < 0 or step_us < 0 or not size + step_us:
                raise ValueError(f"batches of {size} messages and {step_us} us")
            if step_us:
                return _ends_by_time(run.etl, messages, size or _MOST_AT_ONCE, step_us, run.latest_us)
            return np.minimum(np.arange(size, messages + size, size), messages) - 1
        last = read_ends(run.place / str(cuts["logged"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "broken_file", f"{run.folder / REPORT}: lacks what a run says of itself ({error!r}); run again"
        ) from error
    return np.minimum(last[: np.searchsorted(last, messages - 1) + 1], messages - 1)


def _ends_by_time(etl: Path, messages: int, size: int, step_us: int, latest_us: int | None) -> Int64:
    """Last seqs of batches that end after `size` messages or before the first one of a later multiple of `step_us`."""
    ends, first, latest = [], 0, None
    for seq, time_us in enumerate(_times(etl)[:messages]):
        if latest_us is not None and time_us is not None and time_us > latest_us:
            time_us = None  # set aside: does not move stream time
        later = time_us is not None and latest is not None and time_us // step_us > latest // step_us
        if seq > first and (later or seq - first == size):
            ends.append(seq - 1)
            first = seq
        if time_us is not None:
            latest = time_us if latest is None else max(latest, time_us)
    return np.array([*ends, messages - 1] if messages else [], np.int64)


def choose(changes: SubscriptionChanges, sample: int | None, seed: int) -> Sample:
    """Draw `sample` external ids of each kind (None: all), and find all their subscription numbers."""
    names = pa.array(changes.names.strings(), pa.string()).dictionary_encode()
    all_ids, code = names.dictionary, names.indices.to_numpy().astype(np.int64)
    wanted = np.zeros(len(all_ids), bool)
    rng = np.random.default_rng(seed)
    for kind in range(len(changes.kinds)):
        of_kind = np.unique(code[changes.table.kind == kind])
        if sample is not None and sample < of_kind.shape[0]:
            of_kind = rng.choice(of_kind, sample, replace=False)
        wanted[of_kind] = True
    numbers = np.flatnonzero(wanted[code])
    row = np.cumsum(wanted) - 1
    return Sample(all_ids.take(pa.array(np.flatnonzero(wanted))), all_ids, numbers, row[code[numbers]])


# ------------------------------------------------------------------------------------------------ what must be


def replay_oracle(run: RunReader, chosen: Sample, on_progress: Progress | None, plain: bool = False) -> Truth:
    """Feed the whole stream and the changes of the sample to the bulk oracle, or to the plain one.

    A stream of objects goes to the plain one. O(eligible pairs of the sample).
    """
    table = run.changes.table.take(chosen.numbers)
    kinds = [run.changes.kinds[code] for code in np.unique(table.kind).tolist()]
    if run.decay is None and any(kind.fades for kind in kinds):
        raise ConfigError(f"{run.folder / 'run.json'}: has no 'fading', but the run had subscriptions that need it")
    needed = {*run.columns, *(column for kind in kinds for column in kind.columns)}
    extras = MessageExtras(run.etl, kinds, set_aside(run) if run.objects else None)
    relevant = np.zeros(len(run.vocabulary) + 1, bool)
    known = table.terms[table.terms <= run.vocabulary.reserved]
    relevant[known] = True
    kept = run.message_count()
    end, max_distance = run.changes.end[chosen.numbers], run.space.max_distance
    plain = plain or run.objects
    if plain:
        oracle = PlainRun(table, end, run.window, max_distance, run.decay, extras.of, run.objects)
    else:
        oracle = BulkRun(table, end, max_distance, run.decay, _alive_to(extras, kept))
    parts: list[UpdateBatch] = [empty(UpdateBatch)]
    names: list[pa.Array] = []
    reached = boundaries = 0

    def show(messages: int, updates: int) -> None:
        if on_progress is not None:
            on_progress(messages=messages, of=kept, updates=updates)

    asking = _Backfills(run, chosen)
    deletes = np.array(extras.op, np.bool_) if run.objects and extras.op is not None else np.zeros(0, np.bool_)
    for boundary, messages in _boundaries(run, names, needed, deletes):
        if not (plain and extras.all_rows):
            messages = messages.take(relevant_rows(messages, relevant))
        parts += [oracle.advance(boundary, messages, show), asking.advance(boundary, messages)]
        boundaries, reached = boundaries + 1, boundary.last_seq + 1
    parts.append(oracle.finish(show))
    updates = concatenate(parts)
    place = np.searchsorted(chosen.numbers, updates.number)
    counts = np.bincount(table.kind[place], minlength=len(run.changes.kinds))
    columns = (updates.as_of, chosen.id_row[place], updates.seq, updates.change, score_bits(updates.score))
    return Truth(
        np.stack(columns, axis=1).astype(np.int64),
        oracle.results(),
        pa.chunked_array(names, pa.string()),
        {kind.name: int((table.kind == kind.code).sum()) for kind in kinds},
        {kind.name: int(counts[kind.code]) for kind in kinds},
        reached,
        boundaries,
        oracle.name,
    )


class _Backfills:
    """What the backfills of a live stream must have found, message by message; a run over files gives none."""

    def __init__(self, run: RunReader, chosen: Sample):
        asking = (
            {number: one.backfill or 0 for number, one in run.changes.backfill.items()} if "live" in run.report else {}
        )
        mine = [number for number in chosen.numbers.tolist() if number in asking]
        self._floors = [] if (history := history_of(run.etl)) is None else history.floors
        times = _times(run.etl) if any(asking[number] < 0 for number in mine) else []
        self._found: list[tuple[NaiveSubscription, int, list[int]]] = []
        for one in subscriptions_of(run.changes.table.take(np.array(mine, np.int64))):
            first = _backfill_start(asking[one.number], one.at, times)
            self._found.append((one, max([first, *(seq for at, seq in self._floors if at <= one.at)]), []))

    def advance(self, boundary: Boundary, messages: MessageBatch) -> UpdateBatch:
        """Take the next batch; returns the updates of the backfills that it ends."""
        some = list(messages_of(messages)) if self._found else []
        updates: list[tuple[int, int, int, int, float]] = []
        for one, first, seqs in self._found:
            earlier = (each for each in some if first <= each.seq < one.at)
            seqs += [each.seq for each in earlier if boolean_match(one, each) and passes(one, each)]
            if boundary.first_seq <= one.at <= boundary.last_seq:
                updates += [(one.at, one.number, seq, MATCH, math.nan) for seq in seqs[-MOST:]]
        self._found = [each for each in self._found if each[0].at > boundary.last_seq]
        like = empty(UpdateBatch)
        columns = zip(*updates, strict=True) if updates else like
        return UpdateBatch(*(np.array(one, of.dtype) for one, of in zip(columns, like, strict=True)))


def _backfill_start(backfill: int, at: int, times: Sequence[int | None]) -> int:
    """The first message of a backfill, as `matching.filter_fields.backfill_of` says; `times` of all messages."""
    if backfill >= 0:
        return max(0, at - backfill) if backfill else 0
    latest = max((each for each in times[:at] if each is not None), default=None)
    if latest is None:
        return at
    return next(seq for seq, each in enumerate(times) if each is not None and each > latest + backfill)


def _times(etl: Path) -> list[int | None]:
    """The time of each message that is not dated too far ahead, in us."""
    times: list[int | None] = []
    for batch in read_columns(etl, ["event_time"], [AHEAD]):
        column = batch.column("event_time").cast(pa.int64())
        live = AHEAD in batch.schema.names
        times += (pc.if_else(batch.column(AHEAD), None, column) if live else column).to_pylist()
    return times


def _alive_to(extras: "MessageExtras", messages: int) -> Int64 | None:
    """By seq, the message that ends each one; None if no message ends."""
    ends = extras.ends(messages - 1)
    if not ends:
        return None
    alive_to = np.full(messages, NEVER)
    alive_to[np.array(list(ends))] = list(ends.values())
    return alive_to


def _boundaries(
    run: RunReader, names: list[pa.Array], columns: Collection[str], deletes: NDArray[np.bool_]
) -> Iterator[tuple[Boundary, MessageBatch]]:
    """The batches of the run, cut here; appends message ids to `names`. `deletes`: by seq, of a stream of objects."""
    ends, floors = boundary_ends(run, run.message_count()), Floors(run.window, run.objects)
    number, first, clock = 0, 0, NO_FLOOR
    pending: MessageBatch = empty(MessageBatch)
    for cut in read_messages(run.etl, run.window, run.space, CHUNK, run.limit, columns, run.latest_us):
        pending = concatenate([pending, without_terms(cut.messages, run.quarantine.messages)])
        names.append(pa.array(cut.names.strings(), pa.string()))
        start = first
        while number < ends.shape[0] and ends[number] <= pending.seq[-1]:
            last = int(ends[number])
            batch = pending.take(np.arange(first - start, last + 1 - start))
            clock = stream_time(batch.life, clock)
            gone = np.flatnonzero(deletes[first : last + 1]) + first
            yield Boundary(number, first, last, floors.at(last, clock, gone)), batch
            number, first = number + 1, last + 1
        pending = pending.take(np.arange(first - start, len(pending)))


def relevant_rows(messages: MessageBatch, relevant: NDArray[np.bool_]) -> Int64:
    """Rows of messages with a relevant term; the others cannot matter to the oracle."""
    hits = np.concatenate([np.zeros(1, np.int64), np.cumsum(relevant[messages.terms])])
    return np.flatnonzero(hits[messages.term_offsets[1:]] > hits[messages.term_offsets[:-1]])


class MessageExtras:
    """Input of the oracle besides the batch: objects and operations, read from the files.

    aside : bool[messages], optional    of a stream of objects: which messages are set aside, and delete nothing
    """

    def __init__(self, etl: Path, kinds: Sequence[Kind], aside: NDArray[np.bool_] | None = None):
        self.object_id: list[str] | None = None
        self.op: list[int] | None = None
        if aside is not None or any(kind.needs_ended for kind in kinds):
            objects, deletes = read_objects(etl)
            if aside is not None or any(deletes) or len(set(objects)) < len(objects):
                self.object_id, self.op = objects, deletes
        if aside is not None and self.op is not None:
            self.op = np.where(aside, 0, self.op).tolist()

    @property
    def all_rows(self) -> bool:
        """Whether a message without any term of interest may matter: it may replace or delete one that has."""
        return self.object_id is not None

    def ends(self, last_seq: int) -> dict[int, int]:
        """Seq of each message up to `last_seq` whose object has ended -> seq that ended it."""
        lives = Lives()
        for seq, (name, op) in enumerate(zip(self.object_id or (), self.op or (), strict=True)):
            if seq > last_seq:
                break
            lives.take(seq, name, op == DELETE)
        return lives.ends

    def of(self, messages: MessageBatch) -> Extras:
        objects = ops = None
        if self.object_id is not None and self.op is not None:
            objects = [self.object_id[seq] for seq in messages.seq.tolist()]
            ops = [self.op[seq] for seq in messages.seq.tolist()]
        times = messages.event_time_us.tolist() if messages.event_time_us.shape[0] else None
        counts = messages.counts.tolist() if messages.counts.shape[0] else None
        return Extras(times, counts, objects, ops)


def score_bits(score: NDArray[np.float64]) -> Int64:
    """Scores as integers that are equal when the scores are; every NaN is one, both zeros are one."""
    clean = np.where(np.isnan(score), np.nan, score + 0.0)
    return np.ascontiguousarray(clean).view(np.int64)


def set_aside(run: RunReader) -> NDArray[np.bool_]:
    """bool[messages]: which were dated too far ahead, or are quarantined."""
    timed = run.window.kind == "time" or "event_time_us" in run.columns or run.boundaries.get("time_us")
    parts = [np.zeros(0, np.bool_)]
    for batch in read_columns(run.etl, ["message_id"], ["event_time", AHEAD]):
        columns = {name: batch.column(name) for name in batch.schema.names}
        aside = np.zeros(batch.num_rows, np.bool_)
        if AHEAD in columns:
            aside |= columns[AHEAD].fill_null(False).to_numpy(zero_copy_only=False)
        if timed and run.latest_us is not None and "event_time" in columns:
            aside |= columns["event_time"].cast(pa.int64()).fill_null(NO_FLOOR).to_numpy() > run.latest_us
        parts.append(aside)
    aside = np.concatenate(parts)
    return aside | in_ranges(np.arange(aside.shape[0]), run.quarantine.messages)


def read_objects(etl: Path) -> tuple[list[str], list[int]]:
    """`object_id` and `op` of all messages; the message id and 0 by default."""
    objects, deletes = [], []
    for batch in read_columns(etl, ["message_id"], ("object_id", "op")):
        for row in batch.to_pylist():
            objects.append(row["message_id"] if row.get("object_id") is None else row["object_id"])
            deletes.append(row.get("op") or 0)
    return objects, deletes
