"""Reads the folder of a run in any state: facts, updates, results, subscriptions and messages.

A running run has published some parts of `updates/`, which are whole and final; a finished or interrupted one has
`results.parquet` as well. Of a live stream that has not ended a copy is read (`gateway.live.checkpointed`). Updates and
results are read in pieces, so that memory does not grow with them. `topology.folder` writes the folder.
"""

import difflib
import os
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute

from bolts.sinks import RESULT_SCHEMA, UPDATE_SCHEMA, read_pieces
from bolts.standing import base_facts, standing_of
from gateway.live.checkpointed import copy_checkpointed, has_not_ended
from gateway.live.recording import paths_of
from gateway.live.update_listener import MessageText
from gateway.runs.distance import distance_km
from gateway.runs.message_rows import MessageRows, Row, broken_file
from matching.errors import CheckpointError, ConfigError, InputError
from matching.fields import Refusal, identifier, point_of
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import CHANGES, MATCH
from matching.naive_rows import DecayModel
from matching.validate import CONDITION_COLUMNS, SUBSCRIPTION_COLUMNS, ParsedSubscription, subscription_row
from matching.vocabulary import Vocabulary
from matching.window import Window
from spouts.history import history_of
from spouts.lines import read_rows
from spouts.manifest import read_manifest, world_of
from spouts.quarantine import Quarantine
from spouts.subscriptions import SubscriptionChanges, load_changes, load_vocabulary
from topology.core.checkpoint.fence import fetch_committed
from topology.core.checkpoint.storage import parts_list
from topology.core.places import is_remote, place
from topology.folder import FINISHED, REPORT, RUNNING, RunFolder
from topology.store_folder import run_folder

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see

COUNT_SCHEMA = pa.schema([("subscription_id", pa.string()), ("change", pa.string()), ("count", pa.int64())])
#: Columns joined to updates and results for the Python API.
_MESSAGE_COLUMNS = {
    "kind": pa.string(),
    "words": pa.list_(pa.string()),
    "text": pa.string(),
    "lon": pa.float64(),
    "lat": pa.float64(),
    "event_time": pa.string(),
    "distance_km": pa.float64(),
}
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Finite = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]


class _Fading(msgspec.Struct):
    log_base_per_s: _Finite
    smoothing: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
    epoch_us: int = 0


class _Facts(msgspec.Struct):
    """The fields of `run.json` that are needed; `topology.summary` writes it."""

    messages: str
    subscriptions: list[str]
    window: str
    world: str
    projection: str
    boundaries: dict[str, _Count | str | None]
    distance: str = "plane"
    state: str = FINISHED
    digest: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    latest_us: Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)] | None = None
    kind_columns: list[str] = []
    fading: _Fading | None = None
    quarantined: dict[str, list[tuple[_Count, _Count]]] = {}
    objects: bool = False


class Subscriber(NamedTuple):
    """A subscription as its owner wrote it.

    words : tuple of str       the terms of its keywords
    lon, lat : float or None   degrees, of kinds with a point
    region : list or None      west, south, east, north in degrees, of kinds with a region
    k, alpha                   None where the kind has none
    at : int                   the seq before which it takes effect
    more : dict                its free columns: name, note, ...
    conditions : dict          its columns that a message must satisfy beside: where, circle, not_keywords, ...
    """

    subscription_id: str
    kind: str
    words: tuple[str, ...]
    lon: float | None
    lat: float | None
    region: list[float] | None
    k: int | None
    alpha: float | None
    at: int
    more: dict[str, Any]
    conditions: dict[str, Any]

    def kilometres(self, lon: float, lat: float) -> float | None:
        """From its point to a place, in degrees; None where it has a region."""
        return None if self.lon is None or self.lat is None else distance_km(self.lon, self.lat, lon, lat)


class RunReader:
    """A run folder, in any state; of a live stream that has not ended, as of its last checkpoint.

    Parameters
    ----------
    folder : path
    kinds : Kinds
        The kinds of the run.

    Attributes
    ----------
    report : dict
        `run.json`: state, settings, counts, digest, figures.
    state : str
        `running`, `finished`, `interrupted` or `failed`, or that its process died; as of the last look.
    etl : Path
        Folder of the messages.
    files : list of Path
        Of subscriptions.
    space, window, fading, quarantine
    limit, latest_us : int or None
        As the spout had them.
    columns : tuple of str
        Of messages, that the kinds of the run need.
    boundaries : dict
        How the stream was cut (`spouts.cuts.Cuts.as_json`).
    objects : bool
        The stream is one of objects.
    has_results : bool
        Whether it has ended, or drained on an interrupt.
    kept_after : int
        Updates up to this boundary are gone but for what stands by them; -1: none are.
    first_kept : int
        Messages before it are gone but for those that are named since.
    place : Path
        Where its files are: `folder`, or a temporary copy of a live stream that has not ended, or of a run in an
        object store.
    checkpoint : str
        Up to where such a copy goes, for people; otherwise empty.

    Raises
    ------
    InputError
        If the folder is no run's, or `run.json` is damaged or lacks a field.
    """

    def __init__(self, folder: str | os.PathLike[str], kinds: Kinds = KINDS):
        self.folder = self.place = place(folder)
        self.kinds = kinds
        self._run_folder = run_folder(self.folder)
        self.report: dict[str, Any] = self._run_folder.report()
        self.checkpoint = ""
        if "asked" in self.report:
            raise InputError(
                "broken_file",
                f"{self.folder / REPORT}: was written by an earlier version of Skyray, with other names; run again",
            )
        if is_remote(self.folder):
            self.place = self._new_place("skyray-run-")
            (self.place / "updates").mkdir()
            self._fetch()
        else:
            self._find_stream()
        try:
            facts = msgspec.convert(self.report, _Facts)
            self.etl = place(facts.messages)
            self.space = world_of(self.etl, facts.world, facts.projection, distance=facts.distance)
            self.window = Window.parse(facts.window)
        except (msgspec.ValidationError, ConfigError, TypeError, ValueError) as error:
            raise InputError(
                "broken_file", f"{self.folder / REPORT}: lacks what a run says of itself ({error}); run again"
            ) from error
        self.state = self._run_folder.state()
        self.has_results = facts.state == FINISHED or facts.digest is not None
        self.files = [place(path) for path in facts.subscriptions]
        self.fading, self.boundaries = facts.fading, facts.boundaries
        self.limit, self.latest_us, self.columns = facts.limit, facts.latest_us, tuple(facts.kind_columns)
        self.quarantine, self.objects = Quarantine.of(facts.quarantined), facts.objects
        self._message_rows = MessageRows(self.etl)
        bases = [base_facts(path)[0] for path in (self.place / "updates").glob("part-*-0000of0000.parquet")]
        history = history_of(self.etl)
        self.first_kept, kept_after = (0, -1) if history is None else (history.first_kept, history.kept_after)
        self.kept_after = max([kept_after, *bases])

    def _find_stream(self) -> None:
        """Read a live stream's folder for its messages, and one that has not ended as of its last checkpoint."""
        if not has_not_ended(self.folder, self.report):
            if "log_bytes" in self.report:
                self.report |= paths_of(self.folder)
            return
        self.place = self._new_place("skyray-checkpoint-")
        self.checkpoint = copy_checkpointed(self.folder, self.report, self.place).text
        self.report = RunFolder(self.place).report()

    def _new_place(self, prefix: str) -> Path:
        """A temporary folder, which goes with this object."""
        made = Path(tempfile.mkdtemp(prefix=prefix))
        weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        return made

    def _fetch(self) -> None:
        """Copy the committed files of a run in an object store that are not here yet."""
        try:
            fetch_committed(str(self.folder), self.place)
        except OSError as error:
            raise InputError("missing_file", str(error)) from error

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.state})"

    def is_running(self) -> bool:
        """Whether a process writes to the folder now; updates `state`."""
        self.state = self._run_folder.state()
        return self.state == RUNNING

    # --------------------------------------------------------------------------------------------- for the Python API

    def updates(self, *subscription_ids: str, with_messages: bool = False) -> pa.Table:
        """Updates of these subscriptions, or of all, in the order of the files. O(updates).

        Parameters
        ----------
        *subscription_ids : str
        with_messages : bool
            With `kind`, `words` found, `text`, `lon`, `lat`, `event_time` and `distance_km` (null for a region).

        Returns
        -------
        pyarrow.Table
            `as_of`, `subscription_id`, `message_id`, `seq`, `change`, `score`; `to_pandas()` makes a data frame.

        Raises
        ------
        ConfigError
            With messages, for a subscription that the run does not have.
        """
        table = pa.concat_tables([UPDATE_SCHEMA.empty_table(), *self.pieces(subscription_ids or None)])
        return self._with_messages(table) if with_messages else table

    def results(self, *subscription_ids: str) -> pa.Table:
        """Results of these subscriptions, or of all, best first.

        Returns
        -------
        pyarrow.Table
            `subscription_id`, `rank` (null while the run is running, and for matches), `message_id`, `seq`, `score`,
            `text_score`, and of the message `kind`, `words` found, `text`, `lon`, `lat`, `event_time`, `distance_km`.

        Raises
        ------
        ConfigError
            For a subscription that the run does not have.
        """
        self.known(subscription_ids)
        return self._with_messages(self.result_rows(subscription_ids or None))

    def _with_messages(self, table: pa.Table) -> pa.Table:
        known = self.known(sorted(set(table["subscription_id"].to_pylist())))
        rows = self.join(table.to_pylist(), known)
        for name, column_type in _MESSAGE_COLUMNS.items():
            table = table.append_column(name, pa.array([row.get(name) for row in rows], column_type))
        return table

    # ------------------------------------------------------------------------------------------------- updates, results

    def parts(self) -> list[Path]:
        """The published files of updates, in order."""
        if is_remote(self.folder):
            self._fetch()
        return _parts(self.place)

    def pieces(self, ids: Collection[str] | None = None, parts: Sequence[Path] | None = None) -> Iterator[pa.Table]:
        """Updates in the order of the files, of these subscriptions or of all, `PIECE_ROWS` of a file at a time; pieces
        without such updates are left out."""
        wanted = None if ids is None else pa.array(list(ids), pa.string())
        for path in self.parts() if parts is None else parts:
            for piece in _read_pieces(path):
                if wanted is not None:
                    piece = piece.filter(pc.is_in(piece["subscription_id"], wanted))
                if len(piece):
                    yield piece

    def counts(self) -> pa.Table:
        """Number of updates of each subscription: `subscription_id`, `change`, `count`, by id. O(updates)."""
        counts = COUNT_SCHEMA.empty_table()
        for piece in self.pieces():
            ones = piece.select(["subscription_id", "change"]).append_column("count", pa.repeat(1, len(piece)))
            both = pa.concat_tables([counts, ones])
            summed = both.group_by(["subscription_id", "change"]).aggregate([("count", "sum")])
            counts = summed.rename_columns({"count_sum": "count"}).select(COUNT_SCHEMA.names)
        return counts.sort_by("subscription_id")

    def ids_with_results(self, counts: pa.Table) -> list[str]:
        """Sorted ids of subscriptions with results; `counts` of all updates. O(updates)."""
        ids = set(counts.filter(pc.equal(counts["change"], CHANGES[MATCH]))["subscription_id"].to_pylist())
        for piece in self._standing():
            ids.update(pc.unique(piece["subscription_id"]).to_pylist())
        return sorted(ids)

    def result_rows(self, ids: Collection[str] | None = None) -> pa.Table:
        """Results: of kinds with standing results the messages that entered and have not left, best first; of the
        others all matches, in order. O(updates).

        Returns
        -------
        pa.Table
            Of `RESULT_SCHEMA`; `rank` is null where the run has not ended and for matches.
        """
        matched = (piece.filter(pc.equal(piece["change"], CHANGES[MATCH])) for piece in self.pieces(ids))
        return pa.concat_tables([RESULT_SCHEMA.empty_table(), *self._standing(ids), *map(_as_results, matched)])

    def _standing(self, ids: Collection[str] | None = None) -> Iterator[pa.Table]:
        """Standing results, in pieces."""
        path = self.place / "results.parquet"
        if not path.exists():
            yield _as_results(standing_of(self.pieces(ids)))
            return
        for piece in _read_pieces(path, RESULT_SCHEMA, ["score", "text_score"]):
            yield piece if ids is None else piece.filter(pc.is_in(piece["subscription_id"], pa.array(list(ids))))

    # -------------------------------------------------------------------------------------------------- subscriptions

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return load_vocabulary(self.etl)

    @cached_property
    def changes(self) -> SubscriptionChanges:
        """The subscriptions as the run numbered them."""
        kinds = self.kinds.of_objects() if self.objects else self.kinds
        return load_changes(self.files, self.vocabulary, self.space, kinds=kinds, quarantine=self.quarantine)

    def known(self, ids: Collection[str]) -> dict[str, list[Subscriber]]:
        """The subscriptions of these ids, several where one replaced another, in order of `at`.

        O(rows of the files), 2 us a row of another id. Raises ConfigError for an id that the run does not have.
        """
        found: dict[str, list[Subscriber]] = {}
        refused: dict[str, str] = {}
        wanted = set(ids)
        for row in self.subscription_rows():
            name = str(row.get("subscription_id"))
            if name not in wanted:
                continue
            parsed = subscription_row(row, self.vocabulary, self.space, self.kinds)
            if isinstance(parsed, Refusal):
                refused[name] = f"{parsed.reason}, {parsed.detail}" if parsed.detail else parsed.reason
            else:
                found.setdefault(name, []).append(subscriber(row, parsed, self.kinds))
        for name in ids:
            if name in found:
                found[name].sort(key=lambda one: one.at)
                continue
            if name in refused:
                raise ConfigError(f"subscription {name}: the run has rejected it ({refused[name]}); see rejected.jsonl")
            all_ids = filter(None, (identifier(row.get("subscription_id")) for row in self.subscription_rows()))
            near = difflib.get_close_matches(name, list(all_ids), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"subscription {name}: is in none of the files of {self.folder}{hint}")
        return found

    def free_columns(self, ids: Collection[str] | None = None) -> list[str]:
        """Free columns in the rows of these subscriptions, or of all. O(rows of the files)."""
        found: dict[str, None] = {}
        for row in self.subscription_rows():
            name = row.get("subscription_id")
            if name is not None and (ids is None or str(name) in ids):
                found |= {column: None for column, value in row.items() if value is not None}
        return [column for column in found if column not in SUBSCRIPTION_COLUMNS]

    def subscription_rows(self) -> Iterator[dict[str, Any]]:
        """Rows of the files of subscriptions, also of those that the run has rejected. O(rows of the files)."""
        return (row for path in self.files for _, row in read_rows(path) if isinstance(row, dict))

    # ------------------------------------------------------------------------------------------------------- messages

    def message_count(self) -> int:
        """Number of messages of the run. Raises InputError without a manifest."""
        kept = (read_manifest(self.etl) or {}).get("kept")
        if not isinstance(kept, int):
            raise InputError("missing_file", f"{self.etl}: has no manifest.json that says how many messages there are")
        return min(kept, self.limit or kept)

    def messages(self, seqs: Iterable[int]) -> dict[int, Row]:
        """These messages, by seq. Reads the row groups in which any of them lies, unless they are cached."""
        return self._message_rows.read(seqs)

    def texts(self, seqs: Iterable[int]) -> dict[int, MessageText]:
        """These messages as updates have them, by seq."""
        rows = self.messages(seqs)
        return {
            seq: MessageText(row.message_id, row.text, row.lon, row.lat, row.object_id if self.objects else "")
            for seq, row in rows.items()
        }

    def join(
        self, rows: Sequence[Mapping[str, Any]], known: Mapping[str, Sequence[Subscriber]]
    ) -> list[dict[str, Any]]:
        """Rows of results or updates with `words` found, `text`, `lon`, `lat`, `event_time`, `distance_km` (None for a
        region) and `subscription`."""
        messages = self.messages({row["seq"] for row in rows})
        joined = []
        for row in rows:
            subscription = active_at(known[row["subscription_id"]], row.get("as_of"))
            message = messages.get(row["seq"])
            more: dict[str, Any] = {"kind": subscription.kind, "subscription": subscription}
            if message is not None:
                there = [word for word in subscription.words if self.vocabulary.id_of(word) in message.terms]
                far = subscription.kilometres(message.lon, message.lat)
                time = None if message.event_time is None else message.event_time.isoformat()
                more |= {"words": there, "distance_km": far, "text": message.text}
                more |= {"lon": message.lon, "lat": message.lat, "event_time": time}
            joined.append({**row, **more})
        return joined

    @property
    def unit_degrees(self) -> float:
        """Degrees of longitude that the run takes for a distance of 1."""
        return 1.0 / float(self.space.project(np.float64(self.space.west + 1.0), np.float64(self.space.south))[0])  # type: ignore[arg-type]

    @cached_property
    def decay(self) -> DecayModel | None:
        """How scores fade, for the oracle; None if the run does not say."""
        if self.fading is None:
            return None
        return decay_model(self.fading, self.vocabulary, range(len(self.vocabulary)))


def decay_model(fading: Any, vocabulary: Vocabulary, terms: Iterable[int]) -> DecayModel:
    """How scores fade, for the oracle, with the counts of these terms; `fading` as of `matching.half_life`."""
    known = vocabulary.collection_count
    counts = {term: int(known[term]) for term in terms if term < known.shape[0]}
    return DecayModel(fading.log_base_per_s, fading.smoothing, counts, vocabulary.total_tokens, fading.epoch_us)


def active_at(several: Sequence[Subscriber], as_of: int | None) -> Subscriber:
    """Of the subscriptions under one id, the one that was active as of a message."""
    begun = [one for one in several if as_of is None or one.at <= as_of]
    return begun[-1] if begun else several[0]


def subscriber(row: dict[str, Any], parsed: ParsedSubscription, kinds: Kinds) -> Subscriber:
    """A `Subscriber` of a row of a file and its parsed form."""
    kind = kinds[parsed.kind]
    lon, lat = point_of(row) if kind.place == "point" else (None, None)
    return Subscriber(
        parsed.subscription_id,
        kind.name,
        parsed.words,
        lon,
        lat,
        list(parsed.region) if lon is None else None,
        parsed.k if "k" in kind.fields else None,
        parsed.alpha if "alpha" in kind.fields else None,
        parsed.at,
        {name: value for name, value in row.items() if name not in SUBSCRIPTION_COLUMNS and value is not None},
        {name: row[name] for name in CONDITION_COLUMNS if row.get(name) is not None},
    )


def _as_results(updates: pa.Table) -> pa.Table:
    """Updates as rows of results without rank."""
    nothing = {"rank": pa.int32(), "text_score": pa.float64()}
    columns = [
        pa.nulls(len(updates), nothing[name]) if name in nothing else updates[name] for name in RESULT_SCHEMA.names
    ]
    return pa.Table.from_arrays(columns, schema=RESULT_SCHEMA)


# ----------------------------------------------------------------------------------------------- files of a run


def _parts(folder: Path) -> list[Path]:
    """The files of updates, in order. Raises InputError if one of the list of parts is gone."""
    directory = folder / "updates"
    listed = parts_list(directory)  # first: a run that runs lists a file behind its name
    gone = [name for name in sorted(listed) if not (directory / name).exists()]
    if gone:
        rows = sum(listed[name].rows for name in gone)
        raise InputError("missing_file", f"{directory / gone[0]}: is gone, and {rows:,} updates; restore a backup")
    return sorted(path for path in directory.glob("*") if not path.name.startswith("."))


def _read_pieces(
    path: Path, schema: pa.Schema = UPDATE_SCHEMA, nullable: Collection[str] = ("score",)
) -> Iterator[pa.Table]:
    """A file of updates, or of results, `PIECE_ROWS` rows at a time. Raises InputError, after what could be read."""
    try:
        yield from read_pieces(path, parts_list(path.parent).get(path.name), schema, nullable)
    except CheckpointError as error:
        raise InputError("broken_file", str(error)) from error
    except FileNotFoundError as error:
        raise broken_file(path, error) from error


def read_updates(folder: Path) -> Iterator[pa.Table]:
    """The delivered updates, `PIECE_ROWS` rows of a file at a time. Raises InputError if there is no folder of them."""
    if not (folder / "updates").is_dir():
        raise InputError("missing_file", f"{folder / 'updates'}: is not there; run with a sink that keeps updates")
    for path in _parts(folder):
        yield from _read_pieces(path)


def read_results(folder: Path) -> pa.Table:
    """`results.parquet`. Raises InputError if it is not what a run writes."""
    pieces = _read_pieces(folder / "results.parquet", RESULT_SCHEMA, ["score", "text_score"])
    return pa.concat_tables([RESULT_SCHEMA.empty_table(), *pieces])
