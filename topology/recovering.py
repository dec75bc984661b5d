"""The loop of a run: execute the plan, and after a failure resume without the rows that a component fails on.

`topology.running` (files, which have an end) and `topology.live` (a log, which grows) subclass `RecoveringRun`. What
the executor recovers from by itself, such as the death of a process, is not seen here.
"""

import json
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from matching.errors import EngineError, InUseError, TopologyError
from spouts.quarantine import Quarantine
from topology.core.api.component import Saved
from topology.core.api.plan import Plan
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import Checkpoints, complete
from topology.core.checkpoint.fence import INCARNATION_STEP
from topology.core.checkpoint.store import CheckpointStore, Manifest
from topology.core.executors.balancing import Balance
from topology.core.executors.local import run_local
from topology.core.executors.logs import driver_log
from topology.core.executors.orphan_reaper import outliving_ray
from topology.core.failures import ComponentFailed
from topology.core.metrics import RunReport, RunSnapshot
from topology.folder import FAILED, INTERRUPTED, RUNNING, RunFolder
from topology.placement import needs_of, together_of
from topology.poison import Poison, find
from topology.settings import RunConfig


class RecoveringRun(ABC):
    """The run of one folder, by this process.

    Parameters
    ----------
    facts : mapping
        Values for `run.json`; `run` is the name of the run.
    store : CheckpointStore, optional
        Without it a failure ends the run.
    quarantine : Quarantine
        Rows that `plan` leaves out.

    Attributes
    ----------
    incarnation : int
        Updates of earlier ones are void.
    manifest : Manifest or None
        The checkpoint to resume from; None: the start of the stream.
    store : CheckpointStore or None
    """

    def __init__(
        self,
        config: RunConfig,
        plan: Plan,
        folder: RunFolder,
        facts: Mapping[str, Any],
        store: CheckpointStore | None,
        incarnation: int,
        quarantine: Quarantine,
    ):
        self._config = config
        self._plan = plan
        self._folder = folder
        self._facts = facts
        self.store = store
        self._quarantine = quarantine
        self.incarnation = incarnation
        self.manifest: Manifest | None = None
        self._poisons: list[Poison] = []

    @abstractmethod
    def _build(self, config: RunConfig, quarantine: Quarantine, replay: bool = False) -> Plan:
        """The topology without these rows; with `replay` its updates go nowhere."""

    @abstractmethod
    def _restore_folder(self) -> Manifest | None:
        """Take the folder back to the last checkpoint; None for the start of the stream."""

    @abstractmethod
    def _checkpoint_facts(self) -> dict[str, Any]:
        """Values for the manifest of each checkpoint of the run."""

    def execute(
        self,
        on_progress: Callable[[RunSnapshot], None] | None,
        stop: Callable[[], bool] | None,
        on_opened: Callable[[], None] = lambda: None,
        whole: Callable[[RunReport], bool] = lambda report: True,
    ) -> RunReport:
        """Execute until `whole` returns True of the report; resume after failures for which rows are to blame.

        Raises
        ------
        EngineError
            With what is wrong, where, and what to do; `run.json` says so too.
        """
        try:
            while True:
                try:
                    report = self._execute_once(on_progress=on_progress, stop=stop, on_opened=on_opened)
                except ComponentFailed as failed:
                    self._quarantine_poison(failed)
                    continue
                if whole(report):
                    self._note_rejects()
                    return report
                self._resume(self._restore_folder())
        except KeyboardInterrupt:
            why = "stopped before what was in flight had drained"
            self._folder.write_report(INTERRUPTED, self.values() | {"error": why})
            raise
        except EngineError as error:
            self.fail(error)
            raise

    def begin(self) -> None:
        """Write to `run.json` that it runs."""
        self._folder.drop_results()
        self._folder.write_report(RUNNING, self.values())

    def fail(self, error: EngineError) -> None:
        """Write to `run.json` why it ended; it can still be resumed."""
        with suppress(OSError, InUseError):  # the disk may be full, or the run another's, which is then the error
            self._folder.write_report(FAILED, self.values() | {"error": str(error).splitlines()[0]})

    def values(self) -> dict[str, Any]:
        """Values for `run.json`."""
        own = {"process": os.getpid(), "incarnation": self.incarnation, "quarantined": self._quarantine.as_json()}
        return {**self._facts, **own}

    def _execute_once(self, **calls: Any) -> RunReport:
        config, checkpoints = self._config, None
        if self.store is not None:
            cadence, root = Cadence(seconds=config.checkpoint_every), str(self._folder.path)
            facts, incarnation, restarts = self._checkpoint_facts, self.incarnation, config.restarts
            checkpoints = Checkpoints(self.store, cadence, root, facts, incarnation, restarts, self.manifest)
        if config.executor == "local":
            return run_local(self._plan, seed=config.seed, checkpoints=checkpoints, **calls)
        with outliving_ray():
            from topology.core.executors.ray import run_ray

        return run_ray(
            self._plan,
            address=config.address,
            together=together_of(config, self._plan),
            needs=needs_of(config),
            checkpoints=checkpoints,
            balance=Balance("query") if config.rebalance else None,
            **calls,
        )

    def _load(self, manifest: Manifest | None) -> Saved | None:
        return None if manifest is None or self.store is None else self.store.load(manifest)

    def _quarantine_poison(self, failed: ComponentFailed) -> None:
        """Resume without the rows that a component has failed on. Raises the failure if there are none."""
        if self.store is None or self._config.strict:
            raise failed
        manifest = self._restore_folder()
        poison = self._find_poison(self._load(manifest), failed)
        if poison is None:
            raise failed
        self._poisons.append(poison)
        messages, subscriptions = ([(one, one) for one in found] for found in (poison.messages, poison.subscriptions))
        self._quarantine = self._quarantine.with_more(messages, subscriptions)
        self._plan = self._build(self._config, self._quarantine)
        self._resume(manifest)

    def _find_poison(self, saved: Saved | None, failed: ComponentFailed) -> Poison | None:
        """The rows at fault; None if no row is."""
        if failed.exit_code not in (TopologyError.exit_code, EngineError.exit_code):
            return None  # input, disk, settings: no row is to blame
        driver_log().warning("looking_for_poison", why=str(failed).splitlines()[0])
        with tempfile.TemporaryDirectory(prefix="skyray-scratch-") as scratch:
            changed = {"executor": "local", "sink": "count", "out": Path(scratch), "rate": None, "rebalance": False}
            quiet = self._config.model_copy(update=changed)
            build = partial(self._build, quiet, replay=True)
            poison = find(build, self._quarantine, saved, failed.last_batch)
        if poison is not None:
            driver_log().warning(
                "quarantined", messages=poison.messages, subscriptions=poison.subscriptions, why=poison.cause
            )
        return poison

    def _resume(self, manifest: Manifest | None) -> None:
        self.incarnation, self.manifest = next_incarnation(self.incarnation), manifest
        self.begin()

    def _note_rejects(self) -> None:
        """Append quarantined rows to the rejected ones, with their cause."""
        rows = [
            {"reason": "poison", "what": poison.cause, "batch": poison.batch, name: number}
            for poison in self._poisons
            for name, numbers in (("seq", poison.messages), ("subscription", poison.subscriptions))
            for number in numbers
        ]
        self._poisons = []
        if rows:
            self._folder.append_rejects("".join(json.dumps(row) + "\n" for row in rows))


def restore_folder(folder: RunFolder, store: CheckpointStore) -> Manifest | None:
    """Take the folder back to the last checkpoint; None for the start of the stream."""
    manifest = store.newest()
    if manifest is None:
        folder.empty()
        return None
    store.force(manifest)
    store.clear_above(manifest.epoch)
    complete(str(folder.path), manifest)
    folder.clear_hidden()
    folder.drop_incomplete_parts()
    return manifest


def next_incarnation(incarnation: int) -> int:
    """The next multiple of `INCARNATION_STEP`: the numbers between are for restarts by the executor, unseen here."""
    return INCARNATION_STEP * (incarnation // INCARNATION_STEP + 1)
