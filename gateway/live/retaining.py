"""How much of a live stream is kept: what may go, when, and a thread that removes it while the stream runs.

First the log says from which message on later changes may ask for messages (`spouts.log.Record.floor`); once both
checkpoints that are kept are behind that record, no replay can ask for more, and the rest is removed
(`gateway.live.pruning`).
"""

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bolts.delivery import undelivered
from bolts.shares import joined
from bolts.sinks import last_as_of
from gateway.live.pruning import Horizon, base_part, finish, prune, refuse_unpunchable
from gateway.live.retain_settings import RetainSettings
from gateway.live.write_ahead_log import WriteAheadLog
from matching.errors import CheckpointError, ConfigError
from matching.part_names import PartName, whole_parts
from matching.window import Window
from spouts.history import LOG
from spouts.log import BASE, LogReader
from spouts.message_index import FOLDER as INDEX
from spouts.message_index import cuts_of
from topology.core.checkpoint.storage import parts_list
from topology.core.checkpoint.store import CheckpointStore
from topology.core.executors.logs import driver_log
from topology.folder import CHECKPOINTS

#: Seconds between two looks whether there is a new checkpoint.
_LOOK_S = 0.5
#: What goes is at least this share of what stays: a prune reads the seqs of all updates.
_SHARE = 16
#: Behind all boundaries.
_NEVER = 2**62


class _Checkpoints(NamedTuple):
    """What the checkpoints that are kept need.

    seq, offset : int    of messages and changes from here on are read again
    part : int           the number of the next part of the older one
    unwritten : list of pa.Table    updates that no part has
    """

    seq: int
    offset: int
    part: int
    unwritten: list[pa.Table]

    @classmethod
    def of(cls, folder: Path) -> "_Checkpoints | None":
        """None without any, and where one was replaced while it was read, or is damaged: the next may be whole."""
        store = CheckpointStore(str(folder / CHECKPOINTS))
        seqs, offsets, parts, unwritten = list[int](), list[int](), list[int](), list[pa.Table]()
        try:
            for manifest in store.kept():
                saved = store.load(manifest)
                for name in ("messages", "subscriptions"):
                    state = saved.single(name)
                    seq, offset = state["place"].tolist()
                    seqs.append(min(seq, int(state.get("first_kept", seq))))
                    offsets.append(offset)
                delivery = joined(saved.tasks("delivery"))
                parts.append(int(delivery.get("sink:part", 0)))
                unwritten.append(undelivered(delivery))
        except (CheckpointError, FileNotFoundError):
            return None
        return cls(min(seqs), min(offsets), min(parts), unwritten) if seqs else None


class _Part(NamedTuple):
    number: int
    last: int  # boundary
    size_bytes: int
    names: list[str]


def choose(wal: WriteAheadLog, window: Window, settings: RetainSettings, held: int, now_s: float) -> Horizon | None:
    """What may go now; None for nothing, or too little to be worth it.

    Parameters
    ----------
    window : Window
        Its messages at the boundary of the cut are kept.
    held : int
        Boundary that webhooks and sinks have reached.
    now_s : float
        Seconds since 1970.

    Raises
    ------
    CheckpointError
        If a part is damaged.
    """
    folder, ends = wal.folder, wal.ends
    parts, before = _parts(folder, wal), base_part(folder)
    wanted = _wanted(wal, parts, settings, now_s)
    if wanted >= held:
        waits = sum(each.size_bytes for each in parts if held <= each.last <= wanted)
        wanted = held - 1 if waits <= settings.retain_hold_gb * 1e9 else wanted
    begins = 0 if not wal.first_seq else wal.place_of(wal.first_seq)[1]
    base_bytes = sum(path.stat().st_size for path in _base_files(folder, before))

    def gains(boundary: int) -> int:
        """Bytes that go."""
        end = min(boundary + 1, max(0, wal.next_seq - settings.retain_repeats))
        of_log = wal.place_of(end)[1] - begins if wal.first_seq < end < wal.next_seq else 0
        return max(0, of_log) + sum(each.size_bytes for each in parts if each.last <= boundary)

    stays = wal.size_bytes - begins + sum(each.size_bytes for each in parts)
    least = max(2 * base_bytes, stays // _SHARE, 1)
    if wanted < 0 or gains(wanted) < least:
        return None
    needs = _Checkpoints.of(folder)
    if needs is None:
        return None
    boundary, part = min(wanted, needs.seq - 1), -1 if before is None else before.number
    for each in parts:
        if each.number >= needs.part or each.last > boundary:
            boundary = min(boundary, _first_as_of(folder, each) - 1)
            break
        part = each.number
    for table in needs.unwritten:
        boundary = min(boundary, int(table["as_of"].to_numpy().min(initial=_NEVER)) - 1)
    batch = bisect_right(ends, boundary) - 1  # whole batches
    if batch < 0:
        return None
    boundary = ends[batch]
    # the batch before the first one that is read again stays: changes may stand between the two
    seq = min(boundary + 1, needs.seq - 1, _alive_from(wal, window, boundary), wal.next_seq - settings.retain_repeats)
    if (cuts := cuts_of(wal.log)) and seq < cuts[-1]:
        seq = max((each for each in cuts if each <= seq), default=0)  # whole segments of the index go
    seq, offset = wal.place_of(seq) if seq > wal.first_seq else (wal.first_seq, begins)
    gone = sum(each.size_bytes for each in parts if each.number <= part) + offset - begins
    return Horizon(boundary, part, seq, offset) if gone >= least else None


def _wanted(wal: WriteAheadLog, parts: list[_Part], settings: RetainSettings, now_s: float) -> int:
    """The last boundary that the settings do not keep."""
    wanted = -1
    if settings.retain_messages is not None:
        wanted = wal.next_seq - 1 - settings.retain_messages
    if settings.age_s is not None:
        old = [seq for seq, logged_s in list(wal.logged_s.items()) if logged_s <= now_s - settings.age_s]
        wanted = max([wanted, *(seq - 1 for seq in old)])
    if settings.retain_gb is not None:
        for boundary in (-1, *(each.last for each in parts)):
            wanted = max(wanted, boundary)
            if _bytes_after(wal, parts, boundary) <= settings.retain_gb * 1e9:
                break
    return wanted


def _bytes_after(wal: WriteAheadLog, parts: list[_Part], boundary: int) -> int:
    """Bytes of log, updates and index that are of messages behind a boundary."""
    first = max(boundary + 1, wal.first_seq)
    log = wal.size_bytes - wal.place_of(first)[1] if first < wal.next_seq else 0
    index = (wal.log.parent / INDEX).glob("[0-9]*")
    return (
        log
        + sum(each.size_bytes for each in parts if each.last > boundary)
        + sum(path.stat().st_size for path in index if int(path.name) > boundary)
    )


def _parts(folder: Path, wal: WriteAheadLog) -> list[_Part]:
    """The parts by number, without a base."""
    updates, found = folder / "updates", dict[int, _Part]()
    listed = parts_list(updates)
    for name in whole_parts(path.name for path in updates.glob("part-*.parquet")):
        if not name.is_base:
            path = updates / name.text
            as_of = last_as_of(path, listed.get(name.text))
            last = -1 if as_of < 0 else wal.ends[bisect_left(wal.ends, as_of)]
            _, most, size_bytes, names = found.get(name.number, (0, -1, 0, []))
            size_bytes += path.stat().st_size
            found[name.number] = _Part(name.number, max(most, last), size_bytes, [*names, name.text])
    return [found[number] for number in sorted(found)]


def _first_as_of(folder: Path, part: _Part) -> int:
    """The first boundary that may have updates in a part."""
    least = [_NEVER]
    for name in part.names:
        file = pq.ParquetFile(folder / "updates" / name)
        least += [int(batch["as_of"].to_numpy().min(initial=_NEVER)) for batch in file.iter_batches(columns=["as_of"])]
    return min(least)


def _base_files(folder: Path, part: PartName | None) -> list[Path]:
    found = [(folder / LOG).with_name(BASE), *([] if part is None else [folder / "updates" / part.text])]
    return [path for path in found if path.exists()]


def _alive_from(wal: WriteAheadLog, window: Window, boundary: int) -> int:
    """A message before which none is in the window at a boundary; of living objects the base has all."""
    if window.kind == "count":
        return max(0, boundary + 1 - window.length)
    if window.kind != "time":
        return boundary + 1
    ends = wal.ends

    def time_of(batch: int) -> int | None:
        return next(record for _, record in wal.records_from(ends[batch])).time_us

    now_us = time_of(bisect_left(ends, boundary))

    def is_late(time_us: int | None) -> bool:
        return now_us is None or time_us is None or time_us > now_us - window.length

    # stream time never goes back: batches after which it is at most the floor have none that lives
    begins = bisect_right(ends, wal.first_seq - 1)
    first = begins + bisect_left(range(begins, len(ends)), True, key=lambda batch: is_late(time_of(batch)))
    return ends[first - 1] + 1 if first else 0


class Retention:
    """Keeps the folder of a running stream as small as its settings say; for a `with` block.

    Parameters
    ----------
    held : sequence of callable
        Each returns the boundary that all webhooks, or all sinks, have reached.
    now : callable
        Seconds since 1970.

    Attributes
    ----------
    failure : Exception or None
        The error that ended it.

    Raises
    ------
    ConfigError
        If the disk cannot give back parts of a file.
    """

    def __init__(
        self,
        wal: WriteAheadLog,
        window: Window,
        settings: RetainSettings,
        held: Sequence[Callable[[], int]] = (),
        now: Callable[[], float] = time.time,
    ):
        self.failure: Exception | None = None
        self._wal, self._window, self._settings = wal, window, settings
        self._held, self._now = held, now
        self._next: Horizon | None = None
        self._epoch = -1
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def __enter__(self) -> "Retention":
        if not self._settings.keeps_all:
            refuse_unpunchable(self._wal.folder)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            store = CheckpointStore(str(self._wal.folder / CHECKPOINTS))
            while not self._ends.wait(_LOOK_S):
                kept = store.kept(1)
                if kept and kept[0].epoch != self._epoch:
                    self._epoch = kept[0].epoch
                    self.look()
        except Exception as error:
            self.failure = error

    def look(self) -> bool:
        """Say what goes next, or remove it, behind a new checkpoint; returns whether something was removed."""
        wal, cut = self._wal, self._next
        if cut is None:
            held = min((reached() for reached in self._held), default=_NEVER)
            self._next = choose(wal, self._window, self._settings, held, self._now())
            if self._next is not None:
                wal.announce(self._next.seq)
            return False
        needs = _Checkpoints.of(wal.folder)
        if needs is None or wal.floor[0] < cut.seq or needs.offset <= wal.floor[1]:
            return False
        self._next = None
        removed = _remove(wal, cut, needs.unwritten)
        driver_log().info("pruned", first_message=wal.first_seq, updates_after=cut.boundary, freed_bytes=removed)
        return True


def _remove(wal: WriteAheadLog, cut: Horizon, unwritten: list[pa.Table]) -> int:
    """Remove a cut, and read the log as it is then; returns the bytes that the disk got back."""
    before = _disk_bytes(wal.folder)
    prune(wal.folder, cut, wal.living is not None, unwritten)
    wal.run.stamp()
    wal.rebase()
    finish(wal.folder)
    return before - _disk_bytes(wal.folder)


def _disk_bytes(folder: Path) -> int:
    files = [path for place in ("journal", "updates") for path in (folder / place).rglob("*") if path.is_file()]
    return sum(path.stat().st_blocks * 512 for path in files)


def prune_ended(wal: WriteAheadLog, window: Window, settings: RetainSettings, now_s: float) -> int | None:
    """Remove what the settings do not keep of a stream that does not run; returns the bytes that the disk got back.

    None if nothing was to be removed.

    Raises
    ------
    ConfigError
        If it has changes to match that ask for earlier messages, or no checkpoint.
    CheckpointError
        If something is damaged.
    """
    refuse_unpunchable(wal.folder)
    needs = _Checkpoints.of(wal.folder)
    if needs is None:
        raise ConfigError(f"{wal.folder}: has no whole checkpoint, without which nothing can go; start the stream once")
    with closing(LogReader(wal.log, needs.offset)) as reader:
        while (record := reader.read_changes()) is not None:
            if any(b'"backfill"' in line for line in record.lines):
                raise ConfigError(f"{wal.folder}: a backfill is still to be matched; start the stream once")
    cut = choose(wal, window, settings, _NEVER, now_s)
    return None if cut is None else _remove(wal, cut, needs.unwritten)
