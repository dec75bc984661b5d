"""Subscriptions from files: which change belongs to which batch.

`load_changes` reads all files once, checks every row by `matching.validate`, and finds where each subscription begins
and ends: a later row of the same id replaces the earlier one, `until` and `{"unsubscribe": id, "at": seq}` end it.
`SubscriptionSpout` follows the clock and emits the changes of each batch; the verifier uses the same loader, so both
assign the same numbers. A resumed run takes what is still to come from the checkpoint (`spouts.changes`).
"""

import contextlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from matching.attributes import AttributeSchema
from matching.errors import CheckpointError, DeliveryError, InputError
from matching.fields import Refusal, encodes, identifier, whole_number
from matching.filter_programs import USUAL, asked_in
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import Int64, Names, SubscriptionTable, concatenate, empty
from matching.reasons import explain
from matching.space import Space
from matching.subscription_words import refused_when_new, words_of_row
from matching.validate import ParsedSubscription, build_table, subscription_row
from matching.vocabulary import Vocabulary
from spouts.changes import NEVER, SubscriptionChanges, facts_of
from spouts.history import History, history_of
from spouts.lines import read_rows
from spouts.manifest import read_manifest
from spouts.quarantine import EMPTY_QUARANTINE, Quarantine, make_unmatchable
from topology.core.api.component import Context, Fragment, Saved, Spout, Tick
from topology.core.places import arrow_file, checksum, place

#: Reasons that depend on other rows or on the run, besides those of `matching.reasons`.
FILE_REASONS = {
    "unknown_subscription": "no subscription has this id at that seq",
    "kind_without_engine": "no engine matches this kind yet; leave it out, or use another kind",
}
#: Most characters of a rejected row that are quoted.
MAX_QUOTED_CHARACTERS = 200
#: Rows whose columns are built at a time: parsed rows take 20 times the memory of their columns.
_CHUNK_ROWS = 20_000
#: Refused rows that a report has.
FIRST_REJECTED = 5
#: Bytes of refused rows that a checkpoint has at most; a run with more of them reads its files again when it resumes.
_SAVED_REJECTS_BYTES = 1 << 20


def meaning_of(reason: str, kinds: Kinds, detail: str = "") -> str:
    """Why a run refuses a row, for people; `detail` as of `matching.fields.Refusal`."""
    return FILE_REASONS[reason] if reason in FILE_REASONS else explain(reason, kinds, detail)


def load_changes(
    paths: Sequence[str | os.PathLike[str]],
    vocabulary: Vocabulary,
    space: Space,
    rejects: str | os.PathLike[str] | None = None,
    kinds: Kinds = KINDS,
    quarantine: Quarantine = EMPTY_QUARANTINE,
) -> SubscriptionChanges:
    """Read subscription files, in the given order.

    Parameters
    ----------
    paths : sequence of path
        JSON Lines or CSV (plain, gzip, zstd) or Parquet, distinguished by their first bytes.
    vocabulary : Vocabulary
        Of the ETL whose messages will be matched (`load_vocabulary`).
    space : Space
        The world box of the run.
    rejects : path, optional
        JSON Lines of refused rows: file, line, reason code, its meaning, the start of the row. Written only if there
        are any; an older file of that name is deleted.
    kinds : Kinds
        Rows of a kind without an operator are refused.
    quarantine : Quarantine
        Subscriptions that match nothing.

    Raises
    ------
    InputError
        If a file is missing or cannot be read to its end. A bad row never raises.
    DeliveryError
        If the rejects cannot be written.

    Notes
    -----
    About 30 us and 150 bytes a row.
    """
    with _Rejects(rejects, kinds) as refused:
        loader = _Loader(vocabulary, space, refused, kinds, quarantine)
        for path in paths:
            logged = history_of(path) is not None
            for line, row in read_rows(path):
                loader.add_row(str(path), line, row, logged)
        return loader.changes()


def load_vocabulary(directory: str | os.PathLike[str], most_terms: int = 0) -> Vocabulary:
    """The vocabulary of an ETL output directory, with what its manifest says about stop terms, stems and accents.

    `most_terms` may be admitted later. Of the folder of a live stream: the vocabulary that it began with and the terms
    that it has admitted, those of changes behind its last batch as well, which its next one would admit.

    Raises
    ------
    InputError
        If a file is missing, damaged, or not what the ETL writes.
    """
    if history := history_of(directory):
        return logged_vocabulary(history).settled(history.messages, most_terms)
    path = place(directory, "vocabulary.parquet")
    manifest = read_manifest(directory)
    if manifest is None:
        raise InputError("missing_file", f"{directory}: has no manifest.json; give a directory that `skyray etl` wrote")
    try:
        columns = ["term_id", "term", "document_frequency", "collection_count", "idf"]
        table = pq.read_table(arrow_file(path), columns=columns, use_threads=False)
        term_id, frequency, count, idf = (table.column(name).to_numpy() for name in columns if name != "term")
        options = manifest.get("options")
        options = options if isinstance(options, dict) else {}
        vocabulary = Vocabulary(
            table.column("term").to_pylist(),
            frequency,
            count,
            idf,
            messages=int(manifest["kept"]),
            total_tokens=int(manifest["total_tokens"]),
            stop_terms=manifest.get("stop_terms") or (),
            stem_language=options.get("stem_language", ""),
            folds_accents=options.get("fold_accents", False),
            attributes=AttributeSchema.parse(options.get("attribute") or ()),
            most_terms=most_terms,
            keeps_order=most_terms > 0 or bool(manifest.get("word_order")),  # a live stream keeps it itself
        )
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise InputError(
            "broken_file", f"{path}: not the vocabulary of an ETL run ({error}); run the ETL again"
        ) from error
    if not np.array_equal(term_id, np.arange(len(vocabulary))):
        raise InputError("broken_file", f"{path}: term ids are not 0, 1, 2, ...; run the ETL again")
    return vocabulary


def logged_vocabulary(history: History) -> Vocabulary:
    """The vocabulary of a live stream, with the ids of its log. Raises as `load_vocabulary`."""
    vocabulary = load_vocabulary(history.start, history.most_terms)
    for admitted in history.admitted:
        vocabulary.admit(*admitted)
    if history.most_terms:
        new = {term for row in history.last_changes() for term in words_of_row(row, vocabulary)} - vocabulary.stop_terms
        new = sorted(term for term in new if vocabulary.id_of(term) is None)
        vocabulary.admit(new, vocabulary.messages + history.messages - history.marks)
    return vocabulary


class SubscriptionSpout(Spout):
    """Follows the clock: one `ChangeList` for every batch on the stream "changes", also when nothing changes.

    A change at seq q belongs to the batch that contains q. Parameters as in `load_changes`.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        vocabulary: Vocabulary,
        space: Space,
        rejects: str | os.PathLike[str] | None = None,
        kinds: Kinds = KINDS,
        quarantine: Quarantine = EMPTY_QUARANTINE,
    ):
        self.quarantine = quarantine
        self.paths = [str(path) for path in paths]
        self.vocabulary: Vocabulary | None = vocabulary
        self.space = space
        self.rejects = str(rejects) if rejects is not None else None
        self.kinds = kinds
        self.changes: SubscriptionChanges | None = None

    def open(self, context: Context) -> None:
        """Load all files, unless `restore` follows. Raises InputError if one cannot be read."""
        self._context = context
        if not context.resumes:
            self._read()

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        """Emit the changes that take effect up to the last seq of the clock's batch."""
        assert self.changes is not None and tick is not None, "a following spout is opened and gets the clock's tick"
        changes = self.changes.changes_through(tick.last_seq, number)
        self._context.emit("changes", changes)
        self._context.count("added", len(changes.added))
        self._context.count("removed", changes.removed.number.shape[0])
        return tick

    def snapshot(self, stored: Mapping[str, int]) -> Mapping[str, Fragment]:
        """Position in the list of changes, and the changes to come, which are a fragment of their own.

        That fragment begins anew behind what was emitted once half of it was: so all of them together are at most twice
        the changes, whatever the number of checkpoints.
        """
        changes = self.changes
        assert changes is not None, "open() comes first"
        position = {"emitted": np.array(changes.emitted, np.int64), "sizes": np.array(changes.sizes, np.int64)}
        left, before = (sum(changes.sizes) - sum(place) for place in (changes.emitted, self._saved_from))
        if 2 * left <= before:
            self._saved_from = changes.emitted
        first, facts = self._saved_from, self._facts

        def to_come() -> dict[str, np.ndarray]:
            return changes.behind(*first).to_arrays(**facts) | self._saved_rejects

        return {"": Fragment(lambda: position), "to_come": Fragment(to_come, sum(first))}

    def restore(self, saved: Saved) -> None:
        """Resume after a batch, with the changes to come as they were saved, if the files are still the same.

        Raises
        ------
        InputError
            If a file cannot be read.
        CheckpointError
            If the files have another number of changes than before.
        """
        state = saved.single(self._context.component)
        if self.changes is None and not self._take_saved(state):
            self._read()
        assert self.changes is not None
        before, now = state["sizes"].tolist(), [*self.changes.sizes]
        if now != before:
            raise CheckpointError(
                f"{self._context.component}: {now[0]:,} subscriptions and {now[1]:,} ends in {', '.join(self.paths)}, "
                f"where {before[0]:,} and {before[1]:,} were read before the run was interrupted; give the same files"
            )
        self._go_to(state)

    def rewind(self, saved: Saved) -> bool:
        """Restore in place: what was loaded stays; not to before what this run was resumed with."""
        assert self.changes is not None, "open() comes first"
        state = saved.single(self._context.component)
        if any(at < first for at, first in zip(state["emitted"].tolist(), self.changes.first, strict=True)):
            return False
        self._go_to(state)
        return True

    def report(self) -> dict[str, Any]:
        """Counts of the loader, and under `not_reached` the changes beyond the end of the stream."""
        return self.changes.report() if self.changes is not None else {}

    def _load(self) -> SubscriptionChanges:
        assert self.vocabulary is not None
        return load_changes(self.paths, self.vocabulary, self.space, self.rejects, self.kinds, self.quarantine)

    def _read(self) -> None:
        """Load all files; none of their changes was emitted."""
        self._facts: dict[str, Any] = {}
        with contextlib.suppress(InputError):  # which loading raises too, with more of a reason
            self._facts = self._facts_now()
        self._take(self._load())
        self._saved_rejects = self._rejects_now()

    def _take_saved(self, state: Mapping[str, np.ndarray]) -> bool:
        """Take the changes to come from a state; False if it is of other files, or lacks refused rows."""
        facts = facts_of(state)
        self._facts = self._facts_now()
        if any(facts.get(name) != value for name, value in self._facts.items()):
            return False
        changes = SubscriptionChanges.from_arrays(state, self.kinds)
        if self.rejects is not None:
            rejects = state.get("rejects")
            if rejects is None:
                return False
            _replace_file(self.rejects, rejects.tobytes())
        self._take(changes)
        self._saved_rejects = {name: state[name] for name in ("rejects",) if name in state}
        return True

    def _take(self, changes: SubscriptionChanges) -> None:
        self.changes, self._saved_from = changes, changes.first
        self.vocabulary = None  # only rows needed it
        self._context.count("rejected", changes.counts["rejected"])

    def _go_to(self, state: Mapping[str, np.ndarray]) -> None:
        assert self.changes is not None
        self.changes.resume_after(*state["emitted"].tolist())
        self._saved_from = self.changes.first

    def _facts_now(self) -> dict[str, Any]:
        """On what the changes depend beside settings that stay: contents of the files, and the quarantine."""
        return {
            "files": [checksum(place(path)) for path in self.paths],
            "quarantined": [list(each) for each in self.quarantine.subscriptions],
        }

    def _rejects_now(self) -> dict[str, np.ndarray]:
        """The refused rows as an array of a state; nothing if there are too many, or they have no file."""
        if self.rejects is None:
            return {}
        path = place(self.rejects)
        rows = path.read_bytes() if path.exists() else b""
        return {"rejects": np.frombuffer(rows, np.uint8)} if len(rows) <= _SAVED_REJECTS_BYTES else {}


def _replace_file(name: str, rows: bytes) -> None:
    """Write refused rows; without any there is no file. Raises DeliveryError."""
    path = place(name)
    try:
        path.unlink(missing_ok=True)
        if rows:
            with path.open("wb") as file:
                file.write(rows)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Any, error: OSError) -> DeliveryError:
    return DeliveryError(
        f"{path}: rejected rows cannot be written ({error.strerror}); free space or choose another place"
    )


class _Loader:
    """Converts rows to columns, chunk by chunk."""

    def __init__(self, vocabulary: Vocabulary, space: Space, rejects: "_Rejects", kinds: Kinds, quarantine: Quarantine):
        self.quarantine = quarantine
        self.vocabulary = vocabulary
        self.space = space
        self.rejects = rejects
        self.kinds = kinds
        self.ids: list[str] = []
        self.at: list[int] = []
        self.until: list[int] = []
        self.backfill: dict[int, ParsedSubscription] = {}  # by row
        self.chunk: list[ParsedSubscription] = []
        self.tables: list[SubscriptionTable] = []
        #: Unsubscribe events: number of subscriptions before it, at, id, file, line.
        self.endings: list[tuple[int, int, str, str, int]] = []
        self.counts = dict.fromkeys(("unknown_keywords", "stopped_keywords", "cannot_match"), 0)

    def add_row(self, path: str, line: int, row: dict[str, Any] | str, logged: bool) -> None:
        """Take a row: a dict, or the reason why it could not be decoded. One of a log was accepted."""
        if isinstance(row, str):
            self.rejects.add(path, line, row, None)
        elif row.get("unsubscribe") is not None:
            self._add_ending(path, line, row)
        else:
            if "unsubscribe" in row:
                row = {name: value for name, value in row.items() if name != "unsubscribe"}  # null in a table
            parsed = subscription_row(row, self.vocabulary, self.space, self.kinds)
            if not isinstance(parsed, Refusal) and not logged:
                parsed = refused_when_new(row, self.vocabulary) or parsed
            if isinstance(parsed, Refusal):
                self.rejects.add(path, line, parsed.reason, row, parsed.detail)
            elif not self.kinds[parsed.kind].runs:
                self.rejects.add(path, line, "kind_without_engine", row)
            elif parsed.backfill is not None and not logged:
                self.rejects.add(path, line, "backfill_needs_log", row)
            elif self.kinds.plain is self.kinds and not logged and asked_in(parsed.filter) != USUAL:
                self.rejects.add(path, line, "needs_objects", row)
            else:
                self._add_subscription(parsed)

    def changes(self) -> SubscriptionChanges:
        """Number the subscriptions that take effect and find where each ends."""
        self._build()
        rows = len(self.ids)
        at = np.array(self.at, np.int64)
        end = np.array(self.until, np.int64)
        replaced, unsubscribed, before = self._find_ends(at, end)
        lives = end > at
        order = np.argsort(at, kind="stable")
        order = order[lives[order]]
        number = np.full(rows + 1, -1, np.int64)  # by row; the last entry means no row
        number[order] = np.arange(order.shape[0])
        table = concatenate(self.tables) if self.tables else empty(SubscriptionTable)
        if not np.array_equal(order, np.arange(rows)):
            table = table.take(order)
        table = table.having(number=np.arange(order.shape[0], dtype=np.int64))
        counts = {
            "accepted": rows,
            "rejected": sum(self.rejects.counts.values()),
            "replaced": replaced,
            "replaced_at_once": rows - order.shape[0],
            "unsubscribed": unsubscribed,
            **self.counts,
        }
        names = Names.of([self.ids[row] for row in order.tolist()])
        follows = number[before[order]]
        made = make_unmatchable(table, self.quarantine.subscriptions, self.kinds)
        rejected = dict(sorted(self.rejects.counts.items()))
        found = SubscriptionChanges.of(
            made, names, end[order], follows, counts, rejected, self.rejects.first, self.kinds
        )
        found.backfill = {int(number[row]): one for row, one in self.backfill.items() if number[row] >= 0}
        return found

    def _add_subscription(self, parsed: ParsedSubscription) -> None:
        if parsed.backfill is not None:
            self.backfill[len(self.ids)] = parsed
        self.ids.append(parsed.subscription_id)
        self.at.append(parsed.at)
        self.until.append(NEVER if parsed.until is None else parsed.until)
        self.counts["unknown_keywords"] += parsed.unknown
        self.counts["stopped_keywords"] += parsed.stopped
        self.counts["cannot_match"] += not parsed.can_match
        self.chunk.append(parsed)
        if len(self.chunk) == _CHUNK_ROWS:
            self._build()

    def _add_ending(self, path: str, line: int, row: dict[str, Any]) -> None:
        reason, subscription_id = None, identifier(row["unsubscribe"])
        at = 0 if row.get("at") is None else whole_number(row["at"])
        if not subscription_id or not encodes(subscription_id):
            reason = "bad_id"
        elif at is None or not 0 <= at < NEVER:
            reason = "bad_span"
        elif any(value is not None for name, value in row.items() if name not in ("unsubscribe", "at")):
            reason = "unknown_column"
        if reason is not None:
            self.rejects.add(path, line, reason, row)
        else:
            assert at is not None and subscription_id is not None
            self.endings.append((len(self.ids), at, subscription_id, path, line))

    def _build(self) -> None:
        if self.chunk:
            self.tables.append(build_table(self.chunk, [0] * len(self.chunk), [row.at for row in self.chunk]))
            self.chunk = []

    def _find_ends(self, at: Int64, end: Int64) -> tuple[int, int, Int64]:
        """Lower `end` where a row is replaced or unsubscribed; events go by seq, then by their order in the input.

        Returns
        -------
        (int, int, int64[rows])
            Numbers of replaced and unsubscribed; the row of the same id that took effect before, -1 for none.
        """
        rows = at.shape[0]
        ids = self.ids
        before = np.full(rows, -1, np.int64)
        if not self.endings and len(set(ids)) == rows:
            return 0, 0, before
        # An unsubscribe event has a place between the last subscription before it and the next one.
        places = np.concatenate(
            [np.arange(rows) * 2, np.array([2 * ending[0] - 1 for ending in self.endings], np.int64)]
        )
        seqs = np.concatenate([at, np.array([ending[1] for ending in self.endings], np.int64)])
        latest: dict[str, int] = {}
        replaced = unsubscribed = 0
        for event in np.lexsort((places, seqs)).tolist():
            seq = int(seqs[event])
            if event < rows:
                old = latest.get(ids[event])
                if old is not None:
                    if end[old] > seq:
                        end[old] = seq
                        replaced += 1
                    before[event] = old if end[old] > at[old] else before[old]
                latest[ids[event]] = event
                continue
            _, _, subscription_id, path, line = self.endings[event - rows]
            old = latest.get(subscription_id)
            if old is None or end[old] <= seq:
                row = {"unsubscribe": subscription_id, "at": seq}
                self.rejects.add(path, line, "unknown_subscription", row)
            else:
                end[old] = seq
                unsubscribed += 1
        return replaced, unsubscribed, before


class _Rejects:
    """Counts refused rows by reason, keeps the first, and, given a path, writes all to a file."""

    def __init__(self, path: str | os.PathLike[str] | None, kinds: Kinds):
        self.kinds = kinds
        self.path = place(path) if path is not None else None
        self.counts: Counter[str] = Counter()
        self.first: list[dict[str, Any]] = []
        self._encoder = msgspec.json.Encoder()
        self._file: Any = None

    def __enter__(self) -> "_Rejects":
        if self.path is not None:
            with self._writing():
                self.path.unlink(missing_ok=True)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._file is not None:
            with self._writing():
                self._file.close()

    def add(self, path: str, line: int, reason: str, row: Mapping[str, Any] | None, detail: str = "") -> None:
        self.counts[reason] += 1
        if self.path is None and len(self.first) == FIRST_REJECTED:
            return
        name = None if row is None else identifier(row.get("subscription_id"))
        entry = {"file": path, "line": line, "subscription_id": name or None, "reason": reason}
        entry["what"] = meaning_of(reason, self.kinds, detail)
        if len(self.first) < FIRST_REJECTED:
            self.first.append(dict(entry))
        if self.path is None:
            return
        if row is not None:
            entry["row"] = repr(row)[:MAX_QUOTED_CHARACTERS].encode("utf-8", "replace").decode()
        with self._writing():
            if self._file is None:
                self._file = self.path.open("wb")
            self._file.write(self._encoder.encode(entry) + b"\n")

    @contextlib.contextmanager
    def _writing(self) -> Any:
        try:
            yield
        except OSError as error:
            raise _unwritable(self.path, error) from error
