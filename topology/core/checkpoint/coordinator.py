"""The driver's part of a checkpoint: once all tasks have written, write the manifest, then rename the files it covers.

Only the driver gives files the names that readers see, when a checkpoint covers them or the run has ended. Updates
emitted since the last checkpoint have temporary names; if the run goes back, they are dropped and emitted again.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from matching.errors import CheckpointError, DeliveryError
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.storage import Output, commit_objects, is_stored, open_disk, publish, split
from topology.core.checkpoint.store import CheckpointStore, Manifest, SavedFile
from topology.core.checkpoint.writer import Written
from topology.core.executors.logs import driver_log


class Checkpoints(NamedTuple):
    """Settings of a run's checkpoints.

    Parameters
    ----------
    store : CheckpointStore
    cadence : Cadence
    root : str
        Folder of the run; names of outputs are kept relative to it.
    facts : callable
        Returns JSON values that a resumed run needs; kept in every manifest.
    incarnation : int
        Number of this start of the tasks: larger each time.
    restarts : int
        Recoveries from the same failure, at most, without a checkpoint in between.
    resume : Manifest, optional
        The checkpoint to resume from.
    """

    store: CheckpointStore
    cadence: Cadence
    root: str
    facts: Callable[[], Mapping[str, Any]] = dict
    incarnation: int = 0
    restarts: int = 5
    resume: Manifest | None = None


class CheckpointCoordinator:
    """Collects what tasks have written, epoch by epoch.

    Parameters
    ----------
    addresses : collection of int
        The tasks that take part.

    Attributes
    ----------
    incarnation : int
        The one the run is in.
    committed, number : int
        The newest committed epoch and the last batch it covers, -1 if none.
    figures : list of dict
        Of every epoch: size, longest copy, time from the first copy to the manifest, or why there is none.
    """

    def __init__(self, settings: Checkpoints, addresses: Collection[int]):
        self._settings = settings
        self._addresses = frozenset(addresses)
        self.figures: list[dict[str, Any]] = []
        self.go_back(settings.resume, settings.incarnation)

    def take(self, written: Iterable[Written]) -> list[int]:
        """Take written snapshots; returns the epochs that are now committed or abandoned.

        Raises
        ------
        DeliveryError
            If an output could not be finished, or cannot be given its name.
        """
        settled = []
        for part in written:
            if part.fatal:
                raise DeliveryError(part.fatal)
            mine = self._parts.setdefault(part.epoch, {})
            mine[part.address] = part
            self._unnamed += [(part.epoch, part.address, output) for output in part.outputs]
            if mine.keys() == self._addresses:
                del self._parts[part.epoch]
                self._commit(part.epoch, list(mine.values()))
                settled.append(part.epoch)
        return settled

    def finish(self, outputs: Sequence[Output]) -> None:
        """Publish all files of a run that has ended without error, those of first tasks last. Raises DeliveryError."""
        publish_all([*self._take_unnamed(), *outputs])

    def go_back(self, manifest: Manifest | None, incarnation: int) -> None:
        """Go back to a checkpoint: drop the outputs since, and publish those that it covers."""
        self.incarnation = incarnation
        self._parts: dict[int, dict[int, Written]] = {}
        self._unnamed: list[tuple[int, int, Output]] = []  # with epoch and address
        self.committed, self.number = (-1, -1) if manifest is None else (manifest.epoch, manifest.number)
        if manifest is not None:
            complete(self._settings.root, manifest)

    def _commit(self, epoch: int, parts: list[Written]) -> None:
        settings = self._settings
        files: list[SavedFile] = [part.file for part in parts if part.file is not None]
        number = parts[0].number
        figure: dict[str, Any] = {
            "epoch": epoch,
            "number": number,
            "size_bytes": sum(file.total_bytes for file in files),
            "written_bytes": sum(part.written_bytes for part in parts),
            "longest_copy_s": max(part.pause_s for part in parts),
            "copies_s": {part.task: round(part.pause_s, 4) for part in parts},
            "longest_write_s": max(part.write_s for part in parts),
        }
        errors = [part.error for part in parts if part.file is None]
        try:
            if errors:
                raise CheckpointError(errors[0])
            files.sort(key=lambda file: (file.component, file.task))
            outputs = [output for *_, output in self._in_order()]
            names = tuple(_relative(output, settings.root) for output in outputs)
            listed = {name: output.facts for (_, name), output in zip(names, outputs, strict=True) if output.facts}
            manifest = Manifest(epoch, number, self.incarnation, tuple(files), names, settings.facts(), listed)
            settings.store.commit(manifest)
        except CheckpointError as error:
            self.figures.append(figure | {"failed": str(error)})
            driver_log().warning("checkpoint_failed", checkpoint=epoch, why=str(error))
            if errors:  # free the space that the other tasks' files take
                with suppress(CheckpointError):
                    settings.store.clear_above(epoch - 1)
            return
        self.committed, self.number = epoch, number
        self.figures.append(figure)
        publish_all(self._take_unnamed())
        try:
            settings.store.prune()
        except CheckpointError as error:
            figure["not_removed"] = str(error)

    def _in_order(self) -> list[tuple[int, int, Output]]:
        """Outputs in the order in which they get their names: of an epoch those of a component's first task last.

        So a reader who sees the first task's file of an epoch sees those of all tasks.
        """
        return sorted(self._unnamed, key=lambda named: (named[0], -named[1]))

    def _take_unnamed(self) -> list[Output]:
        outputs, self._unnamed = [output for *_, output in self._in_order()], []
        return outputs


def complete(root: str, manifest: Manifest) -> None:
    """Publish the outputs of a checkpoint that still have temporary names, and force the names of the others to disk:
    a process may have died between the two. Raises DeliveryError.

    An output under neither name was read and removed by its reader.
    """
    if is_stored(root):
        return  # they were committed with the checkpoint
    for temporary, name in manifest.outputs:
        facts = manifest.parts.get(name, {})
        output = Output(os.path.join(root, temporary), os.path.join(root, name), facts)
        folder, short = split(output.temporary)
        names = open_disk(folder).names()
        if short in names or split(output.name)[1] in names:
            _publish(output)


def publish_all(outputs: Iterable[Output]) -> None:
    """Publish outputs. Raises DeliveryError, or InUseError if another process has claimed the run."""
    stored = []
    for output in outputs:
        if is_stored(output.name):
            stored.append(output)
        else:
            _publish(output)
    try:
        commit_objects(stored)
    except OSError as error:
        raise DeliveryError(f"{stored[0].name}: cannot be committed ({error.strerror or error})") from error


def _publish(output: Output) -> None:
    try:
        publish(output)
    except OSError as error:
        raise DeliveryError(f"{output.name}: cannot be given its name ({error.strerror or error})") from error


def _relative(output: Output, root: str) -> tuple[str, str]:
    prefix = root.rstrip("/") + "/"
    return output.temporary.removeprefix(prefix), output.name.removeprefix(prefix)
