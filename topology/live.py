"""Running the topology over a log that grows: what is other than over files (`topology.running`), which have an end.

Whoever drives it appends to the log, is told of updates by a socket, and says when to stop: once everything that was
logged has been told. A stop is a checkpoint, so that the stream can be gone on with from there. The log is all that
there is to read: where no checkpoint can be used, it is matched from its beginning.
"""

import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from matching.errors import EngineError
from spouts.quarantine import Quarantine
from topology.core.api.plan import Plan
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import Checkpoints
from topology.core.checkpoint.store import CheckpointStore, Manifest
from topology.core.failures import ComponentFailed
from topology.core.metrics import Snapshot
from topology.folder import CHECKPOINTS, FAILED, INTERRUPTED, RUNNING, RunFolder, now_text
from topology.running import behind, execute, find_poison, go_back, note_rejects, without
from topology.settings import RunConfig
from topology.summary import began_with, summarise
from topology.wiring import build_live_plan


class LiveRun:
    """A live stream of one folder, held by this process.

    Parameters
    ----------
    config : RunConfig
        See `topology.wiring.build_live_plan`. Without checkpoints nothing can be gone on with.
    folder : RunFolder
    log, listener : str
        As in `topology.wiring.build_live_plan`.
    facts : mapping
        What else `run.json` is to say.
    before : mapping
        What `run.json` said, where there is something to go on with.

    Attributes
    ----------
    from_checkpoint : bool
        Whether it goes on from one; else the log is matched from its beginning.
    incarnation : int
        What was told by an earlier one counts no more.

    Raises
    ------
    ConfigError, InputError, TopologyError
        For settings that cannot be.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        log: str,
        listener: str,
        facts: Mapping[str, Any],
        before: Mapping[str, Any],
    ):
        self._config = config
        self._folder = folder
        self._log, self._listener = log, listener
        self._aside = Quarantine.of(before.get("aside") or {})
        self._plan = build_live_plan(config, log, listener, self._aside)
        self._facts = {**facts, "run": str(before.get("run") or uuid.uuid4().hex), "began": now_text()}
        self.incarnation = behind(int(before.get("incarnation", 0))) if before and config.checkpoint_every else 0
        self._store = CheckpointStore(str(folder.path / CHECKPOINTS)) if config.checkpoint_every else None
        self._manifest = self._newest() if before else None
        self.from_checkpoint = self._manifest is not None
        if not self.from_checkpoint:
            self._begin_anew()
        self._begin()

    def run(
        self,
        stop: Callable[[], bool],
        logged: Callable[[], int],
        on_progress: Callable[[Snapshot], None] | None = None,
    ) -> dict[str, Any]:
        """Match what the log has and will have, until `stop` says so; what there is to tell of it.

        Parameters
        ----------
        stop : callable
            Asked a few times a second; what it raises ends the run.
        logged : callable
            How many messages the log has, asked once all have been told.
        on_progress : callable, optional
            As in `topology.running.run`.

        Returns
        -------
        dict
            As JSON; `run.json` is left to the caller.

        Raises
        ------
        EngineError
            With what is wrong, where, and what to do; `run.json` says so too.
        """
        try:
            while True:
                try:
                    report = execute(self._config, self._plan, on_progress, stop, self._checkpoints(), self._manifest)
                except ComponentFailed as failed:
                    self._set_aside(failed)
                    continue
                summary = summarise(self._config, report, report.elapsed_s)
                if self._store is None or summary["spouts"]["messages"]["messages"] >= logged():
                    break
                # somebody died when all had been told: it went back, and was at its end there
                self._go_on(self._newest())
        except KeyboardInterrupt:
            self._folder.write_report(INTERRUPTED, self._told() | {"error": "stopped before all had been told"})
            raise
        except EngineError as error:
            self.fail(error)
            raise
        self._folder.clear_hidden()
        return {**began_with(self._config), **self._told(), **summary}

    def fail(self, error: EngineError) -> None:
        """Say in `run.json` why it ended; it can be gone on with all the same."""
        with suppress(OSError):  # the disk may be full, which is then the error
            self._folder.write_report(FAILED, self._told() | {"error": str(error).splitlines()[0]})

    def _told(self) -> dict[str, Any]:
        own = {"process": os.getpid(), "incarnation": self.incarnation, "aside": self._aside.as_json()}
        return {**self._facts, **own}

    def _checkpoints(self) -> Checkpoints | None:
        if self._store is None:
            return None
        cadence, name = Cadence(seconds=self._config.checkpoint_every), self._facts["run"]
        root, restarts = str(self._folder.path), self._config.restarts
        return Checkpoints(self._store, cadence, root, lambda: {"run": name}, self.incarnation, restarts)

    def _newest(self) -> Manifest | None:
        """The checkpoint to go on from, with the folder as it says; None if the log must be read from its beginning."""
        manifest = None if self._store is None else self._store.newest()
        if manifest is None or self._store is None or manifest.facts.get("run") != self._facts["run"]:
            return None
        return go_back(self._folder, self._store)

    def _set_aside(self, failed: ComponentFailed) -> None:
        """Go back, to go on without whom a component has failed on. Raises what it failed by, if that is nobody."""
        if self._store is None or self._config.strict:
            raise failed
        manifest = self._newest()

        def build(config: RunConfig, aside: Quarantine) -> Plan:
            return build_live_plan(config, self._log, None, aside)

        poison = find_poison(self._config, build, self._aside, self._store, manifest, failed)
        if poison is None:
            raise failed
        self._aside = without(self._aside, poison)
        self._plan = build_live_plan(self._config, self._log, self._listener, self._aside)
        note_rejects(self._folder, [poison])
        self._go_on(manifest)

    def _go_on(self, manifest: Manifest | None) -> None:
        self.incarnation, self._manifest = behind(self.incarnation), manifest
        if manifest is None:
            self._begin_anew()
        self._begin()

    def _begin(self) -> None:
        (self._folder.path / "results.parquet").unlink(missing_ok=True)
        self._folder.write_report(RUNNING, self._told())

    def _begin_anew(self) -> None:
        """See that what an earlier process told is not told twice."""
        if self._store is not None:
            self._store.clear_above(-1)
        for part in (self._folder.path / "updates").glob("part-*"):
            part.unlink()
