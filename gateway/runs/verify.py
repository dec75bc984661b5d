"""A finished run, or a live stream up to its last checkpoint, against the oracle: `skyray verify RUN_DIR`.

The updates and final results of a run are compared with those of the bulk oracle (`matching.bulk_oracle`) or, with
`--plain`, of the plain one (`matching.naive`), over all messages and boundaries, for all subscriptions or a sample of
each kind. Then the updates are applied in the order of the files, as a subscriber would do: right updates in a wrong
order end in a wrong result.

A run folder has `run.json` (where messages and subscriptions are, window, world, projection, batch, limit, boundaries),
`updates/*.parquet` or `updates/*.jsonl`, and `results.parquet`. Subscriptions that replaced each other share an
external id, so ids are sampled and compared, not numbers.
"""

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from rich.text import Text

from gateway.runs.oracle_replay import (
    AS_OF,
    CHANGE,
    ID_ROW,
    SEQ,
    Progress,
    Sample,
    Truth,
    boundary_ends,
    choose,
    read_objects,
    replay_oracle,
    score_bits,
)
from gateway.runs.reader import RunReader, read_results, read_updates
from gateway.runs.update_order import follow, owners
from gateway.shell.terminal import shown
from matching.errors import ConfigError, InputError
from matching.model import CHANGES, MATCH, Int64

#: How many missing and how many extra events are named.
NAMED = 5
pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see


@dataclass
class VerifyReport:
    """The verdict: `exact` if every update and result row compared is the oracle's, and updates are in order.

    The counts are by kind: subscriptions compared, updates of the oracle, updates delivered, and of those missing or
    extra. `since` is the last boundary whose updates are no longer kept (-1: all are), up to which nothing is
    compared. `vacuous` names kinds with subscriptions for which the oracle has no update, so that a verdict says
    little. `judge` is the oracle's name. `faults` has other errors in words; `examples` the first missing and extra
    events. `checkpoint` says of a live stream that has not ended up to where it was compared.
    """

    exact: bool = False
    sampled: bool = False
    judge: str = ""
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
    checkpoint: str = ""
    since: int = -1

    def as_json(self) -> dict[str, Any]:
        """All fields, JSON-ready."""
        return dict(vars(self))

    def render(self) -> Text:
        """The verdict in a few lines; ids are escaped."""
        compared = f"{sum(self.subscriptions.values()):,} {'sampled ' if self.sampled else ''}subscriptions"
        lines = [
            f"{'exact' if self.exact else 'NOT EXACT'}: {compared} over {self.messages:,} messages and "
            f"{self.boundaries:,} boundaries, {sum(self.oracle_updates.values()):,} updates and "
            f"{self.oracle_results:,} results of the {self.judge}"
        ]
        if self.checkpoint:
            lines.append(f"  {self.checkpoint}")
        if self.since >= 0:
            lines.append(f"  updates up to message {self.since:,} are no longer kept: compared is what followed")
        for kind, count in self.subscriptions.items():
            lines.append(
                f"  {kind}: {count:,} subscriptions, {self.oracle_updates[kind]:,} updates expected, "
                f"{self.delivered_updates[kind]:,} delivered, {self.missing[kind]:,} missing, "
                f"{self.extra[kind]:,} extra"
            )
        if self.missing_results or self.extra_results:
            lines.append(f"  results at the end: {self.missing_results:,} missing, {self.extra_results:,} extra")
        lines += [f"  {fault}" for fault in self.faults]
        lines += [f"  {example}" for example in self.examples]
        if self.vacuous:
            lines.append(f"  nothing to compare for {', '.join(self.vacuous)}: the oracle has no updates there")
        return Text("\n".join(map(shown, lines)))


def verify_run(
    run_dir: str | os.PathLike[str],
    sample: int | None = None,
    seed: int = 0,
    on_progress: Progress | None = None,
    plain: bool = False,
) -> VerifyReport:
    """Compare a finished run with the oracle, or a live stream that has not ended up to its last checkpoint.

    Parameters
    ----------
    run_dir : path
        The `--out` of a finished `skyray run`, or of a live stream.
    sample : int, optional
        Subscriptions of each kind to compare; None for all of them.
    seed : int
        Of the sample.
    on_progress : callable, optional
        Called as `on_progress(messages=done, of=all, updates=so_far)`.
    plain : bool
        Use the oracle in plain Python (`matching.naive`) instead of the bulk oracle (`matching.bulk_oracle`).

    Raises
    ------
    InputError
        If the folder has no finished run, or a file of it or of its inputs cannot be read.
    ConfigError
        For a sample below one, or a run without the settings that the comparison needs.

    Notes
    -----
    A few seconds for 500 subscriptions over 100,000 messages; memory for all compared events. The updates of an
    external id, by file and row, are in order if boundaries ascend, leaves come before enters and a replaced
    subscription before its successor, no message enters twice or leaves without having entered, and the messages that
    remain are those of `results.parquet`; without that file, those of the oracle.
    """
    if sample is not None and sample < 1:
        raise ConfigError(f"sample {sample}: compare at least one subscription of each kind, or all")
    run = RunReader(run_dir)
    if not run.has_results and not run.checkpoint:
        raise InputError(
            "no_run",
            f"{run.folder}: this run is {run.state} and has no results to compare; let it end, or "
            f"resume it: skyray run --resume {run.folder}",
        )
    chosen = choose(run.changes, sample, seed)
    truth = replay_oracle(run, chosen, on_progress, plain)
    truth = truth._replace(events=_kept(run, truth.events))
    report = VerifyReport(
        sampled=len(chosen.ids) < len(chosen.all_ids),
        messages=truth.messages,
        boundaries=truth.boundaries,
        subscriptions=truth.subscriptions,
        oracle_updates=truth.updates,
        oracle_results=len(truth.results),
        judge=truth.oracle,
        vacuous=[kind for kind, count in truth.updates.items() if not count],
        checkpoint=run.checkpoint,
        since=run.kept_after,
    )
    _compare_updates(run, chosen, truth, report)
    if run.has_results:
        _compare_results(run, chosen, truth, report)
    wrong = sum(report.missing.values()) + sum(report.extra.values()) + report.missing_results + report.extra_results
    report.exact = not wrong and not report.faults
    return report


# --------------------------------------------------------------------------------------------- what was delivered


def _compare_updates(run: RunReader, chosen: Sample, truth: Truth, report: VerifyReport) -> None:
    """Compare as multisets of (as_of, subscription, message, change, score); message ids by seq."""
    message_ids = truth.message_ids
    parts = [np.zeros((0, 5), np.int64)]
    strangers = misnamed = beyond = 0
    for table in read_updates(run.place):
        strangers += len(table) - (pc.sum(pc.is_in(table["subscription_id"], chosen.all_ids)).as_py() or 0)
        table = table.filter(pc.is_in(table["subscription_id"], chosen.ids))
        id_row = pc.index_in(table["subscription_id"], chosen.ids).to_numpy()
        seq = table["seq"].to_numpy()
        inside = (seq >= 0) & (seq < len(message_ids))
        beyond += int((~inside).sum())
        names = message_ids.take(pa.array(seq[inside]))
        same = pc.equal(names, table["message_id"].filter(pa.array(inside)).cast(pa.string()))
        misnamed += int(inside.sum()) - (pc.sum(same).as_py() or 0)
        change = pc.index_in(table["change"].cast(pa.string()), pa.array(CHANGES)).fill_null(-1).to_numpy()
        score = table["score"].cast(pa.float64()).fill_null(np.nan).to_numpy()
        parts.append(
            np.stack([table["as_of"].to_numpy(), id_row, seq, change, score_bits(score)], axis=1).astype(np.int64)
        )
    delivered = np.concatenate(parts)
    for count, what in (
        (strangers, "updates delivered to subscription ids that the subscription files do not have"),
        (misnamed, "updates delivered with the id of another message than that of their seq"),
        (beyond, "updates delivered with a seq beyond the stream"),
    ):
        if count:
            report.faults.append(f"{count:,} {what}")
    compared = _kept(run, delivered)
    surplus, difference = _difference(compared, truth.events)
    lost = difference < 0
    ends, table = boundary_ends(run, truth.messages), run.changes.table.take(chosen.numbers)
    of_oracle, of_delivered, of_surplus = (
        table.kind[owners(rows, ends, chosen.id_row, table.at)] for rows in (truth.events, compared, surplus)
    )
    for code, kind in enumerate(run.changes.kinds.names):
        if kind in report.subscriptions:
            of_kind = of_surplus == code
            report.oracle_updates[kind] = int((of_oracle == code).sum())
            report.delivered_updates[kind] = int((of_delivered == code).sum())
            report.missing[kind] = int(-difference[lost & of_kind].sum())
            report.extra[kind] = int(difference[~lost & of_kind].sum())
    for rows, label in ((surplus[lost], "missing"), (surplus[~lost], "extra")):
        report.examples += [f"{label}: {_name(row, chosen, message_ids)}" for row in rows[:NAMED].tolist()]
    report.faults += _compare_replay(run, chosen, truth, delivered)


def _kept(run: RunReader, rows: Int64) -> Int64:
    """The updates that can be judged: not those that are no longer kept, of which a base has some, nor what backfills
    found of messages that are no longer kept."""
    early = (rows[:, CHANGE] == MATCH) & (rows[:, SEQ] < run.first_kept)
    return rows[(rows[:, AS_OF] > run.kept_after) & ~early]


def _compare_replay(run: RunReader, chosen: Sample, truth: Truth, delivered: Int64) -> list[str]:
    """Apply the delivered updates in order; the outcome must be the results. Returns faults in words."""
    registered_at = run.changes.table.at[chosen.numbers]
    faults, kinds = [], run.changes.table.kind[chosen.numbers]
    if run.objects:  # of kinds without results the updates of an id are in the order of the messages that cause them
        standing = np.isin(np.arange(len(chosen.ids)), chosen.id_row[run.changes.kinds.traits.standing[kinds]])
        at_once, delivered = (delivered[standing[delivered[:, ID_ROW]] == which] for which in (False, True))
        order = np.argsort(at_once[:, ID_ROW], kind="stable")
        steps = np.diff(at_once[order][:, [ID_ROW, AS_OF]], axis=0)
        if back := int(np.count_nonzero((steps[:, 0] == 0) & (steps[:, 1] < 0))):
            faults.append(f"{back:,} updates go back to a message before that of the update before them")
    # of a stream of objects, results are of objects: an update may name another version than the one before it
    objects = _first_of_object(run) if run.objects else None
    followed = follow(
        _named_by(objects, delivered, SEQ), boundary_ends(run, truth.messages), chosen.id_row, registered_at
    )
    faults += [
        f"{rows.shape[0]:,} {what}; the first: {_name(delivered[rows.min()].tolist(), chosen, truth.message_ids)}"
        for rows, what in followed.faults
    ]
    if run.has_results:
        results = read_results(run.place)
        results = results.filter(pc.is_in(results["subscription_id"], chosen.ids))
        id_row, seq = pc.index_in(results["subscription_id"], chosen.ids).to_numpy(), results["seq"].to_numpy()
        whose, there = "results.parquet", "the file"
    else:
        id_row = chosen.id_row[np.searchsorted(chosen.numbers, truth.results.number)]
        seq, whose, there = truth.results.seq, "those of the oracle", "the oracle's"
    standing = np.stack([id_row, seq], axis=1).astype(np.int64)
    rows, difference = _difference(_named_by(objects, standing, 1), followed.standing)
    if rows.shape[0]:
        faults.append(
            f"applying the updates gives other results than {whose}: {int((difference < 0).sum()):,} messages "
            f"only by the updates, {int((difference > 0).sum()):,} only in {there}"
        )
    return faults


def _first_of_object(run: RunReader) -> Int64:
    """For each message the seq of the first version of its object, int64[messages]. O(messages)."""
    first: dict[str, int] = {}
    return np.array([first.setdefault(name, seq) for seq, name in enumerate(read_objects(run.etl)[0])], np.int64)


def _named_by(what: Int64 | None, rows: Int64, column: int) -> Int64:
    """The rows with what stands for each seq of a column in its place; None: with the seqs themselves."""
    if what is None or not what.shape[0]:
        return rows
    seq, named = rows[:, column], rows.copy()
    inside = (seq >= 0) & (seq < what.shape[0])
    named[inside, column] = what[seq[inside]]
    return named


def _compare_results(run: RunReader, chosen: Sample, truth: Truth, report: VerifyReport) -> None:
    """Compare `results.parquet` row by row: subscription, rank, message, score and text score."""
    results, message_ids = truth.results, truth.message_ids
    text = np.full(len(results), np.nan) if results.text_score is None else results.text_score
    id_row = chosen.id_row[np.searchsorted(chosen.numbers, results.number)]
    expected = np.stack([id_row, results.rank, results.seq, score_bits(results.score), score_bits(text)], axis=1)
    expected = expected.astype(np.int64)
    table = read_results(run.place)
    strangers = len(table) - (pc.sum(pc.is_in(table["subscription_id"], chosen.all_ids)).as_py() or 0)
    if strangers:
        report.faults.append(f"{strangers:,} results of subscription ids that the subscription files do not have")
    table = table.filter(pc.is_in(table["subscription_id"], chosen.ids))
    columns = [pc.index_in(table["subscription_id"], chosen.ids), table["rank"], table["seq"]]
    scores = [
        score_bits(table[name].cast(pa.float64()).fill_null(np.nan).to_numpy()) for name in ("score", "text_score")
    ]
    found = np.stack([*(column.to_numpy() for column in columns), *scores], axis=1).astype(np.int64)
    rows, difference = _difference(found, expected)
    report.missing_results = int(-difference[difference < 0].sum())
    report.extra_results = int(difference[difference > 0].sum())
    for label, some in (("missing result", rows[difference < 0]), ("extra result", rows[difference > 0])):
        for id_row, rank, seq, score, _ in some[:NAMED].tolist():
            report.examples.append(f"{label}: {chosen.ids[id_row]} has {_message(seq, message_ids)} at rank {rank}, "
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


# ------------------------------------------------------------------------------------------------------ in words


def _name(row: list[int], chosen: Sample, message_ids: pa.ChunkedArray) -> str:
    as_of, id_row, seq, change, score = row
    word = CHANGES[change] if 0 <= change < len(CHANGES) else "unknown change"
    words = f"as of {as_of}: {word} of {_message(seq, message_ids)} for {chosen.ids[id_row]}"
    return words if change == MATCH else f"{words}, score {_score(score)}"


def _message(seq: int, message_ids: pa.ChunkedArray) -> str:
    return f"message {message_ids[seq] if 0 <= seq < len(message_ids) else '?'} (seq {seq})"


def _score(bits: int) -> str:
    return repr(float(np.int64(bits).view(np.float64)))
