"""Writes the snapshots of the tasks of one process, and finds out which fragments of them files have already.

A fragment that has not changed (`topology.core.api.component.Fragment`) is not made again. A checkpoint never has a
file in common with the one before it, but with the one before that: if the newest is damaged, the other is not. So a
fragment has two files, of which checkpoints name one and the other in turn; the second is a copy of the first.

A process that was resumed knows no versions. Before the stream continues it compares, once for each fragment, with what
the checkpoints that are kept have: of the same bytes it names their files. So its first checkpoint copies and writes no
more than later ones, and memory for copies has been used once.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from matching.errors import CheckpointError
from topology.core.checkpoint.fence import KEPT
from topology.core.checkpoint.storage import Output
from topology.core.checkpoint.store import CheckpointStore, Manifest, SavedFile, SavedFragment
from topology.core.checkpoint.task_states import Copied, TaskState

#: Bytes of arrays from which on a fragment has a file of its own.
SMALL_FRAGMENT_BYTES = 1 << 18


class _Epoch(NamedTuple):
    """The fragments of a task in a checkpoint, by name, with their versions; None: of a process before this one."""

    number: int
    fragments: dict[str, tuple[int | None, SavedFragment]]


class Written(NamedTuple):
    """Outcome of one task's snapshot; seconds of copying and writing.

    `file` is None, and `error` says why, if it failed; `fatal` says why the run must end or go back. `written_bytes`:
    of its files, those that were not there before.
    """

    address: int
    task: str
    epoch: int
    number: int
    file: SavedFile | None
    outputs: tuple[Output, ...]
    pause_s: float
    write_s: float
    error: str
    fatal: str = ""
    written_bytes: int = 0


class Writer:
    """Writes the snapshots of the tasks of one process, one after the other; `fetch` returns the outcomes.

    Parameters
    ----------
    behind : bool
        Whether a thread writes, while the stream continues.
    kept : iterable of Manifest
        The checkpoints of earlier processes that are kept, ascending.
    """

    def __init__(self, store: CheckpointStore, incarnation: int, behind: bool = True, kept: Iterable[Manifest] = ()):
        from concurrent.futures import ThreadPoolExecutor

        self._store = store
        self._incarnation = incarnation
        self._threads = ThreadPoolExecutor(1, "checkpoint") if behind else None
        self._done: deque[Written] = deque()
        self._kept = tuple(kept)
        self._kept_epoch = max((manifest.epoch for manifest in self._kept), default=-1)
        self._written: dict[int, list[_Epoch]] = {}  # by address, the last epochs

    def stored(self, address: int, committed: int) -> dict[str, int]:
        """Versions of fragments of a task's next snapshot that are in files; `committed` is the newest epoch that is.

        Called while none of this task is being written.
        """
        if address not in self._written:
            return {}  # before its first checkpoint here no version is known
        committed = max(committed, self._kept_epoch)
        done = [epoch for epoch in self._written[address] if epoch.number <= committed][-KEPT:]
        self._written[address] = done
        newest = done[-1].fragments if done else {}
        return {name: version for name, (version, _) in newest.items() if version is not None}

    def recognise(self, copied: Copied) -> None:
        """Compare the fragments of a task that was just restored with the files of the checkpoints that are kept.

        Returns at once if a thread does that. Until it has, the next snapshot copies everything.
        """
        if self._threads is None:
            self._recognise(copied)
        else:
            self._threads.submit(self._recognise, copied)

    def write(self, copied: Copied) -> None:
        """Finish one task's outputs and write its snapshot; returns at once if a thread does that."""
        if self._threads is None:
            self._write(copied)
        else:
            self._threads.submit(self._write, copied)

    @property
    def has_written(self) -> bool:
        """Whether `fetch` has an outcome."""
        return bool(self._done)

    def fetch(self) -> list[Written]:
        """Outcomes since the last call."""
        done = []
        while self._done:
            done.append(self._done.popleft())
        return done

    def drain(self) -> None:
        """Wait for pending writes."""
        if self._threads is not None:
            self._threads.submit(int).result()

    def close(self) -> None:
        """Wait for pending writes, and accept no more."""
        if self._threads is not None:
            self._threads.shutdown(wait=True)

    def _write(self, copied: Copied) -> None:
        address, epoch, state, closings, pause_s, _ = copied
        began = time.perf_counter()
        outputs: list[Output] = []
        file, error, fatal, written_bytes = None, "", "", 0
        try:
            outputs += [close() for close in closings]
        except Exception as cause:  # updates are lost: the run must go back and emit them again
            fatal = str(cause) or repr(cause)
        if not fatal:
            try:
                file, written_bytes = self._write_fragments(copied)
            except Exception as cause:  # a checkpoint that fails must not end the run
                error = str(cause) or repr(cause)
        took_s = time.perf_counter() - began
        name = f"{state.component}:{state.task}"
        self._done.append(
            Written(
                address, name, epoch, state.number, file, tuple(outputs), pause_s, took_s, error, fatal, written_bytes
            )
        )

    def _recognise(self, copied: Copied) -> None:
        before = self._of_earlier(copied.state)
        turn = _Turn(self._store, self._incarnation, copied, before[-KEPT:])
        for name, (make, version) in copied.fragments.items():
            if version is not None:
                turn.recognise(name, version, make())
        self._written[copied.address] = before  # whole, since `stored` may be called meanwhile

    def _write_fragments(self, copied: Copied) -> tuple[SavedFile, int]:
        """Write what no file has. Returns what a manifest needs, and the bytes that were written."""
        state, made = copied.state, dict(copied.state.arrays)
        if copied.address not in self._written:
            self._written[copied.address] = self._of_earlier(state)
        done = self._written[copied.address]
        turn = _Turn(self._store, self._incarnation, copied, done[-KEPT:])
        for name, (make, version) in copied.fragments.items():
            made |= make() if version is None else turn.save(name, version, make)
        fragments = tuple(fragment for _, fragment in turn.fragments.values())
        file = self._store.write_task(state._replace(arrays=made), copied.epoch, self._incarnation, fragments)
        done.append(_Epoch(copied.epoch, turn.fragments))
        return file, turn.written_bytes + file.size_bytes

    def _of_earlier(self, state: TaskState) -> list[_Epoch]:
        """The fragments of the same task in the checkpoints that are kept."""
        epochs = []
        for manifest in self._kept:
            mine = (file for file in manifest.files if file[:3] == state[:3])
            fragments: dict[str, tuple[int | None, SavedFragment]] = {}
            for fragment in (fragment for file in mine for fragment in file.fragments):
                fragments[_name_of(fragment)] = None, fragment
            epochs.append(_Epoch(manifest.epoch, fragments))
        return epochs


class _Turn:
    """The fragments of one snapshot: which of the files of the last checkpoints it names, and what is written."""

    def __init__(self, store: CheckpointStore, incarnation: int, copied: Copied, before: list[_Epoch]):
        self._store, self._incarnation = store, incarnation
        self._state, self._epoch = copied.state, copied.epoch
        self._before = before
        self.fragments: dict[str, tuple[int | None, SavedFragment]] = {}
        self.written_bytes = 0

    def save(self, name: str, version: int, make: Callable[[], Mapping[str, np.ndarray]]) -> Mapping[str, np.ndarray]:
        """Find a file for a fragment, or write one; returns the arrays of one that is too small for its own."""
        newest = self._before[-1].fragments.get(name, (None, None))[0] if self._before else None
        of_fragment = self._state
        if newest != version:
            made = make()
            if sum(values.nbytes for values in made.values()) < SMALL_FRAGMENT_BYTES:
                return made
            of_fragment = of_fragment._replace(arrays=made)
            self.recognise(name, version, made)
        fragment = self._file_of(name, version)
        self.fragments[name] = version, fragment or self._written(name, of_fragment)
        return {}

    def _file_of(self, name: str, version: int) -> SavedFragment | None:
        """The file with a fragment that this checkpoint names, None if there is none.

        Raises
        ------
        CheckpointError
            If it is gone, or damaged where it is copied: the next checkpoint writes the fragment anew.
        """
        known = [epoch.fragments.get(name, (None, None)) for epoch in self._before]
        try:
            fragment = self._chosen(name, [fragment if of == version else None for of, fragment in known])
            if fragment is not None and not self._store.has(fragment.name):
                raise CheckpointError(
                    f"{self._store.folder}/{fragment.name}: is not there any more; it is written anew"
                )
        except CheckpointError:
            for epoch in self._before:
                epoch.fragments.pop(name, None)
            raise
        return fragment

    def recognise(self, name: str, version: int, made: Mapping[str, np.ndarray]) -> None:
        """Note the version of files of an earlier process that have these arrays."""
        state = self._state._replace(arrays=made)
        for epoch in self._before:
            known, fragment = epoch.fragments.get(name, (version, None))
            if fragment is not None and known is None:
                if self._store.is_saved(fragment, state):
                    epoch.fragments[name] = version, fragment
                else:
                    del epoch.fragments[name]

    def _chosen(self, name: str, files: list[SavedFragment | None]) -> SavedFragment | None:
        """The file that this checkpoint names, of those of the checkpoints before it; None if it is to be written."""
        *older, newest = files or [None]
        before = older[0] if older else None
        if newest is None or (before is not None and before.name != newest.name):
            return before
        return self._written(name, self._store.read_fragment(newest, self._state))

    def _written(self, name: str, state: TaskState) -> SavedFragment:
        fragment = self._store.write_fragment(name, state, self._epoch, self._incarnation)
        self.written_bytes += fragment.size_bytes
        return fragment


def _name_of(fragment: SavedFragment) -> str:
    """The name of a fragment, of that of its file: `epoch-E.TASK.FRAGMENT.INCARNATION.frame`."""
    return fragment.name.split(".", 2)[2].rsplit(".", 2)[0]
