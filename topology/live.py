"""Runs the topology over a write-ahead log, which grows; for files, which have an end, see `topology.running`.

The caller appends to the log, reads updates from a socket, and stops the run once the updates of all logged messages
are published. A stop takes a checkpoint, from which the stream can be resumed. Without a usable checkpoint a resumed
stream matches the log from its beginning.
"""

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bolts.saved import delivered_of
from matching.errors import CheckpointError
from matching.window import Boundary
from spouts.log import BASE
from spouts.quarantine import Quarantine
from topology.core.api.plan import Plan
from topology.core.checkpoint.storage import parts_list, remove_parts
from topology.core.checkpoint.store import CheckpointStore, Manifest
from topology.core.metrics import RunReport, RunSnapshot
from topology.folder import CHECKPOINTS, RunFolder, now_text
from topology.recovering import RecoveringRun, next_incarnation, restore_folder
from topology.settings import LiveConfig, RunConfig
from topology.summary import began_with, summarise
from topology.wiring import build_live_plan

#: Fact of a checkpoint: bytes of the log that were on disk.
LOG_BYTES = "log_bytes"


def last_seq_of(saved: Mapping[str, np.ndarray]) -> int:
    """The last seq that the saved state of the delivery bolt covers; -1 if it has no boundary yet."""
    boundaries = saved["boundary"]
    return int(Boundary(*boundaries[-1].tolist()).last_seq) if boundaries.shape[0] else -1


class LiveRun(RecoveringRun):
    """A live stream of one folder, run by this process.

    Parameters
    ----------
    config : LiveConfig
        See `topology.wiring.build_live_plan`. Without checkpoints the stream cannot be resumed.
    log, listener : str
        As in `topology.wiring.build_live_plan`.
    facts : mapping
        Further values for `run.json`.
    before : mapping
        `run.json` of the stream to resume; empty for a new stream.
    durable_bytes : callable
        Returns the bytes of the log that are on disk; each checkpoint has them (`gateway.live.acknowledged`).

    Attributes
    ----------
    from_checkpoint : bool
        Whether the run resumes from a checkpoint; else it matches the log from its beginning.
    incarnation : int
        Number of this start; readers discard updates of lower ones.

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
        durable_bytes: Callable[[], int] = lambda: 0,
    ):
        self._log, self._listener = log, listener
        self._durable_bytes = durable_bytes
        quarantine = Quarantine.of(before.get("quarantined") or {})
        facts = {**facts, "run": str(before.get("run") or uuid.uuid4().hex), "began": now_text()}
        store = CheckpointStore(str(folder.path / CHECKPOINTS)) if config.checkpoint_every else None
        incarnation = next_incarnation(int(before.get("incarnation", 0))) if before and store is not None else 0
        super().__init__(config, self._build(config, quarantine), folder, facts, store, incarnation, quarantine)
        self.manifest = self._restore_folder()
        self.from_checkpoint = self.manifest is not None
        self.begin()

    def run(
        self,
        stop: Callable[[], bool],
        logged: Callable[[], int],
        on_progress: Callable[[RunSnapshot], None] | None = None,
    ) -> dict[str, Any]:
        """Match the log as it grows, until `stop` returns True; returns the report.

        Parameters
        ----------
        stop : callable
            Called a few times a second; an exception that it raises ends the run.
        logged : callable
            Returns the number of messages in the log; called at the end of the stream.
        on_progress : callable, optional
            As in `topology.running.run`.

        Returns
        -------
        dict
            The report, JSON-ready; the caller writes it to `run.json`.

        Raises
        ------
        EngineError
            If the run fails; `run.json` then has the message.
        """
        summary: dict[str, Any] = {}

        def whole(report: RunReport) -> bool:
            nonlocal summary
            summary = summarise(self._config, report, report.elapsed_s)
            # fewer: a worker died after the last update, and the run resumed from a checkpoint and ended there
            return self.store is None or summary["spouts"]["messages"]["messages"] >= logged()

        self.execute(on_progress, stop, whole=whole)
        self._folder.clear_hidden()
        return {**began_with(self._config), **self.values(), **summary}

    @property
    def identity(self) -> str:
        """Id of the stream: the same after every resume, and different from that of any other stream."""
        return str(self._facts["run"])

    def saved_delivery(self) -> Mapping[str, np.ndarray] | None:
        """State of the delivery tasks, joined, in the checkpoint to resume from; None without a checkpoint."""
        saved = self._load(self.manifest)
        return None if saved is None else delivered_of(saved)

    def resumes_after(self) -> int:
        """The last seq that the checkpoint to resume from covers; -1 without one."""
        saved = self.saved_delivery()
        return -1 if saved is None else last_seq_of(saved)

    def _build(self, config: RunConfig, quarantine: Quarantine, replay: bool = False) -> Plan:
        assert isinstance(config, LiveConfig), "it is a copy of this stream's"
        return build_live_plan(config, self._log, None if replay else self._listener, quarantine)

    def _resume(self, manifest: Manifest | None) -> None:
        self._note_rejects()  # the end may be far
        super()._resume(manifest)

    def _restore_folder(self) -> Manifest | None:
        """Remove files newer than the checkpoint to resume from; without a checkpoint all updates."""
        if self.store is not None:
            manifest = self.store.newest()
            if manifest is not None and manifest.facts.get("run") == self._facts["run"]:
                return restore_folder(self._folder, self.store)
        if Path(self._log).with_name(BASE).exists():
            raise CheckpointError(
                f"{self._folder.path / CHECKPOINTS}: no checkpoint can be read, and the beginning of the log is gone "
                "(retention), so that it cannot be matched anew: restore a backup"
            )
        if self.store is not None:
            self.store.clear_above(-1)
        updates = self._folder.path / "updates"
        remove_parts(updates, {*parts_list(updates), *(path.name for path in updates.glob("part-*"))})
        self._folder.clear_hidden()
        return None

    def _checkpoint_facts(self) -> dict[str, Any]:
        return {"run": self._facts["run"], LOG_BYTES: self._durable_bytes()}
