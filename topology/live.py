"""Running the topology over a write-ahead log, which grows; over files, which have an end, see `topology.running`.

The caller appends to the log, reads updates from a socket, and stops the run once the updates of all logged messages
are published. A stop takes a checkpoint, from which the stream can be resumed. Without a usable checkpoint the log is
matched from its beginning.
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
from topology.settings import LiveConfig, RunConfig
from topology.summary import began_with, summarise
from topology.wiring import build_live_plan


class LiveRun:
    """A live stream of one folder, run by this process.

    Parameters
    ----------
    config : LiveConfig
        See `topology.wiring.build_live_plan`. Without checkpoints the stream cannot be resumed.
    folder : RunFolder
    log, listener : str
        As in `topology.wiring.build_live_plan`.
    facts : mapping
        Further values for `run.json`.
    before : mapping
        `run.json` of the stream to resume, else empty.

    Attributes
    ----------
    from_checkpoint : bool
        Whether it resumes from one; else the log is matched from its beginning.
    incarnation : int
        Updates of earlier ones are void.

    Raises
    ------
    ConfigError, InputError, TopologyError
        For invalid settings.
    """

    def __init__(
        self,
        config: LiveConfig,
        folder: RunFolder,
        log: str,
        listener: str,
        facts: Mapping[str, Any],
        before: Mapping[str, Any],
    ):
        self._config = config
        self._folder = folder
        self._log, self._listener = log, listener
        self._quarantine = Quarantine.of(before.get("aside") or {})
        self._plan = build_live_plan(config, log, listener, self._quarantine)
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
        """Match the log as it grows, until `stop` returns True; returns the report.

        Parameters
        ----------
        stop : callable
            Called a few times a second; what it raises ends the run.
        logged : callable
            Returns how many messages the log has; called at the end of the stream.
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
                    self._quarantine_poison(failed)
                    continue
                summary = summarise(self._config, report, report.elapsed_s)
                if self._store is None or summary["spouts"]["messages"]["messages"] >= logged():
                    break
                # a worker died after the last update: the run went back, and ended at the checkpoint
                self._resume(self._newest())
        except KeyboardInterrupt:
            self._folder.write_report(
                INTERRUPTED, self._values() | {"error": "stopped before all updates were published"}
            )
            raise
        except EngineError as error:
            self.fail(error)
            raise
        self._folder.clear_hidden()
        return {**began_with(self._config), **self._values(), **summary}

    def fail(self, error: EngineError) -> None:
        """Write to `run.json` why it ended; it can still be resumed."""
        with suppress(OSError):  # the disk may be full, which is then the error
            self._folder.write_report(FAILED, self._values() | {"error": str(error).splitlines()[0]})

    def _values(self) -> dict[str, Any]:
        own = {"process": os.getpid(), "incarnation": self.incarnation, "aside": self._quarantine.as_json()}
        return {**self._facts, **own}

    def _checkpoints(self) -> Checkpoints | None:
        if self._store is None:
            return None
        cadence, name = Cadence(seconds=self._config.checkpoint_every), self._facts["run"]
        root, restarts = str(self._folder.path), self._config.restarts
        return Checkpoints(self._store, cadence, root, lambda: {"run": name}, self.incarnation, restarts)

    def _newest(self) -> Manifest | None:
        """The checkpoint to resume from, with the folder taken back to it; None: read the log from its beginning."""
        manifest = None if self._store is None else self._store.newest()
        if manifest is None or self._store is None or manifest.facts.get("run") != self._facts["run"]:
            return None
        return go_back(self._folder, self._store)

    def _quarantine_poison(self, failed: ComponentFailed) -> None:
        """Go back, and resume without the rows that a component has failed on. Raises the failure if there are none."""
        if self._store is None or self._config.strict:
            raise failed
        manifest = self._newest()

        def build(config: RunConfig, quarantine: Quarantine) -> Plan:
            assert isinstance(config, LiveConfig), "it is a copy of this stream's"
            return build_live_plan(config, self._log, None, quarantine)

        poison = find_poison(self._config, build, self._quarantine, self._store, manifest, failed)
        if poison is None:
            raise failed
        self._quarantine = without(self._quarantine, poison)
        self._plan = build_live_plan(self._config, self._log, self._listener, self._quarantine)
        note_rejects(self._folder, [poison])
        self._resume(manifest)

    def _resume(self, manifest: Manifest | None) -> None:
        self.incarnation, self._manifest = behind(self.incarnation), manifest
        if manifest is None:
            self._begin_anew()
        self._begin()

    def _begin(self) -> None:
        (self._folder.path / "results.parquet").unlink(missing_ok=True)
        self._folder.write_report(RUNNING, self._values())

    def _begin_anew(self) -> None:
        """Remove checkpoints and updates of earlier incarnations."""
        if self._store is not None:
            self._store.clear_above(-1)
        for part in (self._folder.path / "updates").glob("part-*"):
            part.unlink()
