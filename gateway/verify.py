"""A finished run against the oracle: `skyray verify RUN_DIR`.

What a run has delivered (its updates and its results at the end) is compared with what `matching.naive` says it must
be, over all its messages and all its boundaries, for all subscriptions or a sample of each kind. The messages and
subscriptions are read by the loaders of the run, since they define the numbering; batches are cut and floors worked
out here anew.

A run folder holds `run.json` (where messages and subscriptions are, window, world, projection, batch, limit,
boundaries), `updates/*.parquet` or `updates/*.jsonl`, and `results.parquet`. Subscriptions that replaced each other
share an external id, so ids are sampled and compared, not numbers. Read on in `matching.naive`.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.json as pj
import pyarrow.parquet as pq
from numpy.typing import NDArray

from matching.errors import ConfigError, InputError
from matching.model import CHANGES, DECAY, KINDS, LEAVE, MATCH, SKYLINE, Int64, MessageBatch, Removals, concatenate
from matching.naive import DecayModel, Extras, Oracle, Result, Update
from matching.space import Space
from matching.text import Vocabulary
from matching.window import NO_FLOOR, Boundary, Window, stream_time
from spouts.parquet import list_message_files, read_manifest, read_messages
from spouts.subscriptions import Changes, load_changes, load_vocabulary

#: How many missing and how many extra events are named.
NAMED = 5
#: Messages read at a time.
CHUNK = 20_000
#: Columns of an event as integers: as_of, subscription (row of the sampled ids), seq, change, bits of the score.
_AS_OF, _WHO, _SEQ, _CHANGE, _SCORE = range(5)

Progress = Callable[..., None]


@dataclass
class VerifyReport:
    """The verdict: `exact` if every update and every result row compared is the oracle's.

    The counts are by kind: subscriptions compared, updates of the oracle, updates delivered, and of those missing or
    extra. `vacuous` names the kinds with subscriptions but not one update of the oracle, of which a verdict says
    little. `faults` says in words what else is wrong; `examples` names the first missing and extra events.
    """

    exact: bool = False
    sampled: bool = False
    messages: int = 0
    boundaries: int = 0
    subscriptions: dict[str, int] = field(default_factory=dict)
    oracle_updates: dict[str, int] = field(default_factory=dict)
    delivered_updates: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    extra: dict[str, int] = field(default_factory=dict)
    oracle_results: int = 0
    missing_results: int = 0
    extra_results: int = 0
    vacuous: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """All fields, JSON-ready."""
        return dict(vars(self))

    def render(self) -> str:
        """The verdict for people, a few lines."""
        who = f"{sum(self.subscriptions.values()):,} {'sampled ' if self.sampled else ''}subscriptions"
        lines = [
            f"{'exact' if self.exact else 'NOT EXACT'}: {who} over {self.messages:,} messages and "
            f"{self.boundaries:,} boundaries, {sum(self.oracle_updates.values()):,} updates and "
            f"{self.oracle_results:,} results of the oracle"
        ]
        for kind, count in self.subscriptions.items():
            lines.append(
                f"  {kind}: {count:,} subscriptions, {self.oracle_updates[kind]:,} updates expected, "
                f"{self.delivered_updates[kind]:,} delivered, {self.missing[kind]:,} missing, {self.extra[kind]:,} extra"
            )
        if self.missing_results or self.extra_results:
            lines.append(f"  results at the end: {self.missing_results:,} missing, {self.extra_results:,} extra")
        lines += [f"  {fault}" for fault in self.faults]
        lines += [f"  {example}" for example in self.examples]
        if self.vacuous:
            lines.append(f"  nothing to compare for {', '.join(self.vacuous)}: the oracle has no updates there")
        return "\n".join(lines)


class _Run(NamedTuple):
    """What `run.json` says, and the inputs it names."""

    folder: Path
    etl: Path
    space: Space
    window: Window
    limit: int | None
    ends: Callable[[int], Int64]  # number of messages -> last seq of each boundary
    vocabulary: Vocabulary
    changes: Changes
    decay: DecayModel | None


class _Sample(NamedTuple):
    """The external ids to compare, the numbers that stand for them, and the first kind of each id."""

    ids: pa.Array
    everyone: pa.Array
    numbers: Int64
    who: Int64  # for each number of `numbers` the row of its id
    kind: NDArray[np.int8]


def verify_run(
    run_dir: str | os.PathLike[str],
    sample: int | None = None,
    all: bool = False,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> VerifyReport:
    """Compare a finished run with the oracle.

    Parameters
    ----------
    run_dir : path
        The `--out` of a finished `skyray run`.
    sample : int, optional
        Subscriptions of each kind to compare; None for all of them, as does `all`.
    seed : int
        Which ones are drawn.
    on_progress : callable, optional
        Called as `on_progress(messages=done, updates=so_far)`.

    Raises
    ------
    InputError
        If the folder holds no finished run, or something in it or in its inputs cannot be read.
    ConfigError
        For a sample below one, or a run without the settings that the comparison needs.

    Notes
    -----
    About a minute for 500 subscriptions over 100,000 messages; holds all events compared in memory.
    """
    if sample is not None and sample < 1:
        raise ConfigError(f"sample {sample}: compare at least one subscription of each kind, or all")
    run = _open(Path(run_dir))
    chosen = _choose(run.changes, None if all else sample, seed)
    report = VerifyReport(sampled=len(chosen.ids) < len(chosen.everyone))
    expected, results, message_ids = _ask_oracle(run, chosen, report, on_progress)
    _compare_updates(run, chosen, expected, message_ids, report)
    _compare_results(run, chosen, results, message_ids, report)
    report.exact = not (
        report.faults or sum(report.missing.values()) or sum(report.extra.values())
        or report.missing_results or report.extra_results
    )  # fmt: skip
    return report


# -------------------------------------------------------------------------------------------------- what was run


def _open(folder: Path) -> _Run:
    """Read `run.json` and load what it names."""
    path = folder / "run.json"
    try:
        facts = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError("no_run", f"{folder}: has no run.json; name the --out of a finished `skyray run`") from None
    except (OSError, ValueError) as error:
        raise InputError("broken_file", f"{path}: cannot be read ({error}); run again") from error
    try:
        etl, files = Path(facts["messages"]), facts["subscriptions"]
        extent = (read_manifest(etl) or {}).get("extent")
        space = Space.parse(facts["world"], tuple(extent) if extent else None, facts["projection"])
        window, limit, cuts = Window.parse(facts["window"]), facts.get("limit"), facts["boundaries"]
        vocabulary = load_vocabulary(etl)
        decay = facts.get("decay")
        if decay is not None:
            counts = dict(enumerate(np.asarray(vocabulary.collection_count).tolist()))
            epoch_us = int(decay.get("epoch_us", 0))
            rates = float(decay["log_base_per_s"]), float(decay["smoothing"])
            decay = DecayModel(*rates, counts, vocabulary.total_tokens, epoch_us)
        ends = _ends(folder, cuts)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("broken_file", f"{path}: lacks what a run says of itself ({error!r}); run again") from error
    return _Run(folder, etl, space, window, limit, ends, vocabulary, load_changes(files, vocabulary, space), decay)


def _ends(folder: Path, cuts: dict[str, Any]) -> Callable[[int], Int64]:
    """Where batches end: multiples of a size, or as the run has logged them."""
    if "batch" in cuts:
        size = int(cuts["batch"])
        if size < 1:
            raise ValueError(f"batches of {size}")
        return lambda messages: np.minimum(np.arange(size, messages + size, size), messages) - 1
    path = folder / "boundaries.parquet"
    table = _read_table(path, ["batch", "last_seq"]).sort_by("batch")
    last = table.column("last_seq").to_numpy()
    if (np.diff(last) < 0).any():
        raise InputError("bad_order", f"{path}: last_seq falls; the log of boundaries is damaged")
    return lambda messages: last


def _choose(changes: Changes, sample: int | None, seed: int) -> _Sample:
    """Draw external ids, so many of each kind, and find every number that any of them has had."""
    names = pa.array(changes.names.strings(), pa.string()).dictionary_encode()
    everyone, code = names.dictionary, names.indices.to_numpy().astype(np.int64)
    wanted = np.zeros(len(everyone), bool)
    rng = np.random.default_rng(seed)
    for kind in range(len(KINDS)):
        of_kind = np.unique(code[changes.table.kind == kind])
        if sample is not None and sample < of_kind.shape[0]:
            of_kind = rng.choice(of_kind, sample, replace=False)
        wanted[of_kind] = True
    numbers = np.flatnonzero(wanted[code])
    row = np.cumsum(wanted) - 1
    who = row[code[numbers]]
    kind = np.zeros(int(wanted.sum()), np.int8)
    kind[who[::-1]] = changes.table.kind[numbers[::-1]]  # the first of several wins
    return _Sample(everyone.take(pa.array(np.flatnonzero(wanted))), everyone, numbers, who, kind)


# ------------------------------------------------------------------------------------------------ what must be


def _ask_oracle(
    run: _Run, chosen: _Sample, report: VerifyReport, on_progress: Progress | None
) -> tuple[Int64, list[Result], pa.ChunkedArray]:
    """The oracle's events and results for the sample, and all message ids by seq."""
    table = run.changes.table.take(chosen.numbers)
    ends = dict(zip(run.changes.removed.number.tolist(), run.changes.removed.at.tolist(), strict=True))
    removed_numbers = np.array([one for one in chosen.numbers.tolist() if one in ends], np.int64)
    removed_at = np.array([ends[one] for one in removed_numbers.tolist()], np.int64)
    order = np.argsort(removed_at, kind="stable")
    removed_numbers, removed_at = removed_numbers[order], removed_at[order]
    kinds = set(table.kind.tolist())
    if DECAY in kinds and run.decay is None:
        raise ConfigError(f"{run.folder / 'run.json'}: says nothing under 'decay', and the run had such subscriptions")
    extras = _Extras(run.etl, kinds)
    relevant = np.zeros(len(run.vocabulary) + 1, bool)
    known = table.terms[table.terms < len(run.vocabulary)]
    relevant[known] = True
    oracle = Oracle(run.window, run.space.max_distance, run.decay)
    who_of = dict(zip(chosen.numbers.tolist(), chosen.who.tolist(), strict=True))
    kind_of = dict(zip(table.number.tolist(), table.kind.tolist(), strict=True))
    events: list[Int64] = []
    names: list[pa.Array] = []
    added_sent = removed_sent = told = 0
    counts = np.zeros(len(KINDS), np.int64)
    for boundary, messages in _boundaries(run, names):
        rows = np.arange(len(messages)) if extras.all_rows else _relevant_rows(messages, relevant)
        added = slice(added_sent, int(np.searchsorted(table.at, boundary.last_seq, "right")))
        removed = slice(removed_sent, int(np.searchsorted(removed_at, boundary.last_seq, "right")))
        added_sent, removed_sent = added.stop, removed.stop
        updates = oracle.advance(
            boundary,
            messages.take(rows),
            table.take(np.arange(added.start, added.stop)),
            Removals(removed_numbers[removed], np.zeros(removed.stop - removed.start, np.int8), removed_at[removed]),
            extras.take(messages, rows),
        )
        events.append(_as_rows(updates, who_of))
        for update in updates:
            counts[kind_of[update.number]] += 1
        told += len(updates)
        report.boundaries += 1
        report.messages = boundary.last_seq + 1
        if on_progress is not None:
            on_progress(messages=report.messages, updates=told)
    for kind in sorted(kinds):
        report.subscriptions[KINDS[kind]] = int((table.kind == kind).sum())
        report.oracle_updates[KINDS[kind]] = int(counts[kind])
        if not counts[kind]:
            report.vacuous.append(KINDS[kind])
    return np.concatenate([np.zeros((0, 5), np.int64), *events]), oracle.results(), pa.chunked_array(names, pa.string())


def _boundaries(run: _Run, names: list[pa.Array]) -> Iterator[tuple[Boundary, MessageBatch]]:
    """The batches of the run, cut and bounded here; message ids go to `names` on the way."""
    held: list[MessageBatch] = []
    ends: Int64 | None = None
    number, first, clock = 0, 0, NO_FLOOR

    def cut(last: int) -> tuple[Boundary, MessageBatch]:
        nonlocal number, first, clock, held
        whole = concatenate(held) if held else None
        assert whole is not None
        size = last - first + 1
        messages = whole.take(np.arange(size))
        held = [whole.take(np.arange(size, len(whole)))]
        clock = stream_time(messages.life, clock)
        boundary = Boundary(number, first, last, run.window.floor(last, clock))
        number, first = number + 1, last + 1
        return boundary, messages

    limit = run.limit
    manifest = read_manifest(run.etl) or {}
    total = min(int(manifest["kept"]), limit or int(manifest["kept"]))
    ends = run.ends(total)
    for _, messages, ids in read_messages(run.etl, run.window, run.space, CHUNK, limit):
        held.append(messages)
        names.append(pa.array(ids.strings(), pa.string()))
        while number < ends.shape[0] and ends[number] < int(messages.seq[-1]) + 1:
            yield cut(int(ends[number]))


def _relevant_rows(messages: MessageBatch, relevant: NDArray[np.bool_]) -> Int64:
    """Messages with a term that anybody in the sample asks for; the others cannot matter to the oracle."""
    hits = np.concatenate([np.zeros(1, np.int64), np.cumsum(relevant[messages.terms])])
    return np.flatnonzero(hits[messages.term_offsets[1:]] > hits[messages.term_offsets[:-1]])


class _Extras:
    """Columns of the messages that only `decay` and `skyline` ask for, read when one of them is there."""

    def __init__(self, etl: Path, kinds: set[int]):
        self.event_time_us: Int64 | None = None
        self.counts: pa.ChunkedArray | None = None
        self.object_id: list[str] | None = None
        self.op: list[int] | None = None
        if DECAY in kinds:
            table = _read_messages(etl, ["event_time", "counts"])
            times = table.column("event_time")
            if times.null_count:
                raise InputError("null_times", f"{etl}: {times.null_count:,} messages have no time, which decay needs")
            self.event_time_us = times.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
            self.counts = table.column("counts")
        if SKYLINE in kinds:
            table = _read_messages(etl, ["message_id", "object_id", "op"])
            versions = pc.any(pc.not_equal(table.column("object_id"), table.column("message_id"))).as_py()
            if versions or pc.any(pc.not_equal(table.column("op"), 0)).as_py():
                self.object_id = table.column("object_id").to_pylist()
                self.op = table.column("op").to_pylist()

    @property
    def all_rows(self) -> bool:
        """Whether a message without any term of interest may matter: it may replace or delete one that has."""
        return self.object_id is not None

    def take(self, messages: MessageBatch, rows: Int64) -> Extras:
        """The extras of some rows of a batch."""
        seqs = messages.seq[rows]
        counts = times = objects = ops = None
        if self.event_time_us is not None and self.counts is not None:
            times = self.event_time_us[seqs].tolist()
            counts = [count for row in self.counts.take(pa.array(seqs)).to_pylist() for count in row]
        if self.object_id is not None and self.op is not None:
            objects = [self.object_id[seq] for seq in seqs.tolist()]
            ops = [self.op[seq] for seq in seqs.tolist()]
        return Extras(times, counts, objects, ops)


def _as_rows(updates: list[Update], who_of: dict[int, int]) -> Int64:
    """Events as int64[n, 5]."""
    rows = np.empty((len(updates), 5), np.int64)
    if updates:
        as_of, number, seq, change, score = zip(*updates, strict=True)
        rows[:, _AS_OF], rows[:, _WHO] = as_of, [who_of[one] for one in number]
        rows[:, _SEQ], rows[:, _CHANGE], rows[:, _SCORE] = seq, change, _bits(np.array(score, np.float64))
    return rows


def _bits(score: NDArray[np.float64]) -> Int64:
    """Scores as integers that are equal when the scores are; every NaN is one, both zeros are one."""
    clean = np.where(np.isnan(score), np.nan, score + 0.0)
    return np.ascontiguousarray(clean).view(np.int64)


# --------------------------------------------------------------------------------------------- what was delivered


def _compare_updates(
    run: _Run, chosen: _Sample, expected: Int64, message_ids: pa.ChunkedArray, report: VerifyReport
) -> None:
    """Compare as multisets of (as_of, subscription, message, change, score); message ids by seq."""
    parts = [np.zeros((0, 5), np.int64)]
    strangers = misnamed = beyond = 0
    for table in _update_tables(run.folder):
        strangers += len(table) - (pc.sum(pc.is_in(table["subscription_id"], chosen.everyone)).as_py() or 0)
        table = table.filter(pc.is_in(table["subscription_id"], chosen.ids))
        who = pc.index_in(table["subscription_id"], chosen.ids).to_numpy()
        seq = table["seq"].to_numpy()
        inside = (seq >= 0) & (seq < len(message_ids))
        beyond += int((~inside).sum())
        names = message_ids.take(pa.array(seq[inside]))
        same = pc.equal(names, table["message_id"].filter(pa.array(inside)).cast(pa.string()))
        misnamed += int(inside.sum()) - (pc.sum(same).as_py() or 0)
        change = pc.index_in(table["change"].cast(pa.string()), pa.array(CHANGES)).fill_null(-1).to_numpy()
        score = table["score"].cast(pa.float64()).fill_null(np.nan).to_numpy()
        parts.append(np.stack([table["as_of"].to_numpy(), who, seq, change, _bits(score)], axis=1).astype(np.int64))
    delivered = np.concatenate(parts)
    for count, what in (
        (strangers, "updates delivered to subscription ids that the subscription files do not have"),
        (misnamed, "updates delivered with the id of another message than that of their seq"),
        (beyond, "updates delivered with a seq beyond the stream"),
    ):
        if count:
            report.faults.append(f"{count:,} {what}")
    kind_of = np.where(delivered[:, _CHANGE] == MATCH, 0, chosen.kind[delivered[:, _WHO]])
    surplus, difference = _difference(delivered, expected)
    lost = difference < 0
    for kind in report.subscriptions:
        code = KINDS.index(kind)
        of_kind = np.where(surplus[:, _CHANGE] == MATCH, 0, chosen.kind[surplus[:, _WHO]]) == code
        report.delivered_updates[kind] = int((kind_of == code).sum())
        report.missing[kind] = int(-difference[lost & of_kind].sum())
        report.extra[kind] = int(difference[~lost & of_kind].sum())
    for rows, label in ((surplus[lost], "missing"), (surplus[~lost], "extra")):
        report.examples += [f"{label}: {_name(row, chosen, message_ids)}" for row in rows[:NAMED].tolist()]
    report.faults += _compare_replay(run, chosen, delivered)


def _compare_replay(run: _Run, chosen: _Sample, delivered: Int64) -> list[str]:
    """What a subscriber holds who has followed all delivered updates must be what `results.parquet` says."""
    held = delivered[delivered[:, _CHANGE] != MATCH]
    pairs, place = np.unique(held[:, [_WHO, _SEQ]], axis=0, return_inverse=True)
    balance = np.bincount(place.ravel(), np.where(held[:, _CHANGE] == LEAVE, -1, 1), pairs.shape[0]).astype(int)
    results = _result_table(run.folder, chosen)
    who = pc.index_in(results["subscription_id"], chosen.ids).to_numpy()
    standing = np.stack([who, results["seq"].to_numpy()], axis=1).astype(np.int64)
    repeated = int((np.abs(balance) > 1).sum() + (balance < 0).sum())
    faults = [f"{repeated:,} messages enter or leave a result twice in a row"] if repeated else []
    rows, difference = _difference(standing, pairs[balance > 0])
    if rows.shape[0]:
        faults.append(
            f"following the updates ends elsewhere than results.parquet: {int((difference < 0).sum()):,} messages only "
            f"by the updates, {int((difference > 0).sum()):,} only in the file"
        )
    return faults


def _compare_results(
    run: _Run, chosen: _Sample, results: list[Result], message_ids: pa.ChunkedArray, report: VerifyReport
) -> None:
    """Compare `results.parquet` row by row: subscription, rank, message, score and text score."""
    who_of = dict(zip(chosen.numbers.tolist(), chosen.who.tolist(), strict=True))
    expected = np.zeros((len(results), 5), np.int64)
    if results:
        number, rank, seq, score, text = zip(*results, strict=True)
        expected[:, 0], expected[:, 1], expected[:, 2] = [who_of[one] for one in number], rank, seq
        expected[:, 3], expected[:, 4] = _bits(np.array(score)), _bits(np.array(text))
    table = _result_table(run.folder, chosen)
    columns = [pc.index_in(table["subscription_id"], chosen.ids), table["rank"], table["seq"]]
    scores = [_bits(table[name].cast(pa.float64()).fill_null(np.nan).to_numpy()) for name in ("score", "text_score")]
    found = np.stack([*(column.to_numpy() for column in columns), *scores], axis=1).astype(np.int64)
    rows, difference = _difference(found, expected)
    report.oracle_results = len(results)
    report.missing_results = int(-difference[difference < 0].sum())
    report.extra_results = int(difference[difference > 0].sum())
    for label, some in (("missing result", rows[difference < 0]), ("extra result", rows[difference > 0])):
        for who, rank, seq, score, _ in some[:NAMED].tolist():
            report.examples.append(f"{label}: {chosen.ids[who]} has {_message(seq, message_ids)} at rank {rank}, "
                                   f"score {_score(score)}")  # fmt: skip
    inside = pc.and_(pc.greater_equal(table["seq"], 0), pc.less(table["seq"], len(message_ids)))
    table = table.filter(inside)
    same = pc.equal(message_ids.take(table["seq"]), table["message_id"])
    if misnamed := len(table) - (pc.sum(same).as_py() or 0):
        report.faults.append(f"{misnamed:,} results with the id of another message than that of their seq")


def _difference(found: Int64, expected: Int64) -> tuple[Int64, Int64]:
    """Rows that do not occur equally often in both, and how much more often they were found (negative: missing)."""
    both = np.concatenate([found, expected])
    sign = np.concatenate([np.ones(found.shape[0], np.int64), np.full(expected.shape[0], -1)])
    if not both.shape[0]:
        return both, sign
    order = np.lexsort(both.T[::-1])
    both, sign = both[order], sign[order]
    starts = np.flatnonzero(np.concatenate([[True], (both[1:] != both[:-1]).any(axis=1)]))
    total = np.add.reduceat(sign, starts)
    return both[starts[total != 0]], total[total != 0]


def _update_tables(folder: Path) -> Iterator[pa.Table]:
    """The delivered updates, a few hundred thousand rows at a time."""
    files = sorted((folder / "updates").glob("[!.]*"))
    if not files:
        raise InputError(
            "missing_file", f"{folder}: has no updates; run with a sink that keeps them (parquet or jsonl)"
        )
    names = ["as_of", "subscription_id", "message_id", "seq", "change", "score"]
    for path in files:
        try:
            if path.suffix == ".jsonl":
                kinds = [pa.int64(), pa.string(), pa.string(), pa.int64(), pa.string(), pa.float64()]
                if path.stat().st_size:
                    options = pj.ParseOptions(explicit_schema=pa.schema(zip(names, kinds, strict=True)))
                    yield pj.read_json(path, parse_options=options)
                continue
            for batch in ds.dataset(path, format="parquet").to_batches(columns=names):
                yield pa.Table.from_batches([batch])
        except (OSError, pa.ArrowException) as error:
            raise _broken(path, error) from error


def _result_table(folder: Path, chosen: _Sample) -> pa.Table:
    path = folder / "results.parquet"
    names = ["subscription_id", "rank", "message_id", "seq", "score", "text_score"]
    table = _read_table(path, names)
    return table.filter(pc.is_in(table["subscription_id"], chosen.ids))


def _read_table(path: Path, columns: list[str]) -> pa.Table:
    try:
        return pq.read_table(path, columns=columns)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise _broken(path, error) from error


def _read_messages(etl: Path, columns: list[str]) -> pa.Table:
    return pa.concat_tables([_read_table(path, columns) for path in list_message_files(etl)])


def _broken(path: Path, error: Exception) -> InputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError("broken_file", f"{path}: cannot be read ({reason}); run again")


# ------------------------------------------------------------------------------------------------------ in words


def _name(row: list[int], chosen: _Sample, message_ids: pa.ChunkedArray) -> str:
    """An event as people read it."""
    as_of, who, seq, change, score = row
    word = CHANGES[change] if 0 <= change < len(CHANGES) else "unknown change"
    told = f"as of {as_of}: {word} of {_message(seq, message_ids)} for {chosen.ids[who]}"
    return told if change == MATCH else f"{told}, score {_score(score)}"


def _message(seq: int, message_ids: pa.ChunkedArray) -> str:
    return f"message {message_ids[seq] if 0 <= seq < len(message_ids) else '?'} (seq {seq})"


def _score(bits: int) -> str:
    return repr(float(np.int64(bits).view(np.float64)))
