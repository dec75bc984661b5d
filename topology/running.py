"""Running the topology over files: the output folder, the executor, and what is left when it has ended."""

import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from matching.errors import CheckpointError, ConfigError, EngineError, InputError
from matching.extras import require_ray
from spouts.manifest import read_manifest
from spouts.quarantine import EMPTY_QUARANTINE, Quarantine
from topology.core.api.plan import Plan
from topology.core.checkpoint.storage import LocalDisk
from topology.core.checkpoint.store import CheckpointStore, Manifest
from topology.core.executors.logs import driver_log
from topology.core.executors.orphan_reaper import outliving_ray
from topology.core.metrics import RunSnapshot
from topology.core.places import is_remote
from topology.folder import (
    CHECKPOINTS,
    FINISHED,
    INTERRUPTED,
    REPORT,
    RUNNING,
    RunFolder,
    checksums,
    input_files,
    now_text,
    refuse_changed,
)
from topology.recovering import RecoveringRun, next_incarnation, restore_folder
from topology.scaling import ScaleRequest, drop_request, is_requested, take_request
from topology.settings import CHANGEABLE, RunConfig, resumed
from topology.store_folder import run_folder
from topology.summary import began_with, summarise
from topology.wiring import build_plan

#: Seconds between two looks for a folder that does not exist yet.
_LOOK_S = 0.25


def run(
    config: RunConfig,
    on_progress: Callable[[RunSnapshot], None] | None = None,
    stop: Callable[[], bool] | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Run the topology over the files of the settings, to the end of the stream.

    Parameters
    ----------
    on_progress : callable, optional
        Called with a snapshot of the running topology a few times a second (`topology.core.metrics.RunSnapshot`).
    stop : callable, optional
        Called a few times a second; once it returns True the run drains, takes a checkpoint, and ends.
    resume : bool
        Resume the run of the output folder, whose process has ended.

    Returns
    -------
    dict
        The report, also written to `run.json` in the output folder: state, settings, counts, digest, routing, metrics.

    Raises
    ------
    EngineError
        With what is wrong, where, and what to do; `run.json` says so too.
    """
    _await_inputs(config, stop)
    with _joined(config):
        return _run(config, on_progress, stop, resume)


def run_or_resume(
    config: RunConfig,
    on_progress: Callable[[RunSnapshot], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> tuple[dict[str, Any], bool]:
    """Begin the run of the output folder, or resume it; one that has finished is left as it is.

    The folder is locked while this is decided, so of two processes one runs.

    Parameters
    ----------
    config, on_progress, stop
        As in `run`. Settings in `topology.settings.CHANGEABLE` may differ from those of the folder's run.

    Returns
    -------
    dict
        The report, as of `run`.
    bool
        Whether the run had finished before.

    Raises
    ------
    ConfigError
        If the folder has a run with other settings, naming them, or something that is no run, or with `overwrite`.
    InUseError
        If another process writes to the folder.
    EngineError
        As `run`.
    """
    if config.overwrite:
        raise ConfigError("--overwrite begins anew and --resume auto keeps what is there; leave one of them out")
    folder = run_folder(config.out.absolute())
    with folder.locked():
        before = _report_of_same(config, folder)
        if before is not None and before.get("state") == FINISHED:
            return before, True
        if before is not None and not (config.checkpoint_every or before.get("settings", {}).get("checkpoint_every")):
            folder.empty()  # without checkpoints there is only the start to resume from
            before = None
        _await_inputs(config, stop)
        with _joined(config):
            plan = build_plan(config)
            if before is not None:
                return _run_locked(config, plan, folder, on_progress, stop, True, lambda: None), False
            folder.clear_hidden()
            with folder.beginning(overwrite=False) as note_opened:
                return _run_locked(config, plan, folder, on_progress, stop, False, note_opened), False


def _report_of_same(config: RunConfig, folder: RunFolder) -> dict[str, Any] | None:
    """The report of the folder's run; None if there is none.

    Raises
    ------
    ConfigError
        If a setting on which results depend is another one, naming all of them.
    """
    if not (folder.path / REPORT).exists():
        return None
    values = folder.report()
    before = as_begun(values, config.out)
    inputs = {
        "messages": config.messages.resolve(),
        "subscriptions": tuple(path.resolve() for path in config.subscriptions),
    }
    now = config.model_copy(update=inputs).as_json()
    differing = [name for name in now if name not in CHANGEABLE and now[name] != before[name]]
    if differing:
        parts = [f"{name} was {before[name]!r}, is {now[name]!r}" for name in differing]
        raise ConfigError(
            f"{folder.path}: has a run with other settings: {'; '.join(parts)}; give those, or another --out"
        )
    return values


def _await_inputs(config: RunConfig, stop: Callable[[], bool] | None) -> None:
    """Wait for messages that are to be followed, and see that files of subscriptions are there."""
    if is_remote(config.out) and config.checkpoints is not None:
        raise ConfigError("recovery.checkpoints: a run in an object store keeps them in its own folder; leave it out")
    if config.follow:
        _await_messages(config.messages, stop)
    for path in config.subscriptions:
        try:
            there = path.exists()  # before Ray is started
        except OSError as error:
            raise InputError("missing_file", str(error)) from error
        if not there:
            raise InputError("missing_file", f"{path} does not exist: name a file of subscriptions")


def _joined(config: RunConfig) -> AbstractContextManager[Any]:
    """A block within which tasks can run.

    A cluster is joined first, so that one that does not answer is refused at once and leaves the output folder as it
    was; a Ray of our own is started last, by `run_ray`.
    """
    if config.executor == "local":
        return nullcontext()
    require_ray()
    with outliving_ray():
        from topology.core.executors.connection import connected  # it takes a second: only for those who use it

    return nullcontext() if config.address is None else connected(config.address)


def _await_messages(folder: Path, stop: Callable[[], bool] | None) -> None:
    """Return once the ETL has put its folder there. Raises KeyboardInterrupt if `stop` returns True before."""
    logged = False
    while read_manifest(folder) is None:
        if not logged:
            driver_log().info("waiting", until=f"{folder} is there, whole: skyray etl puts it there at its end")
            logged = True
        if stop is not None and stop():
            raise KeyboardInterrupt
        time.sleep(_LOOK_S)


def _run(
    config: RunConfig,
    on_progress: Callable[[RunSnapshot], None] | None,
    stop: Callable[[], bool] | None,
    resume: bool,
) -> dict[str, Any]:
    plan = build_plan(config)  # errors are raised before the folder is touched
    if not resume:
        run_folder(config.out).check(config.overwrite)
    folder = run_folder(config.out.absolute())
    with folder.locked():
        if resume:
            return _run_locked(config, plan, folder, on_progress, stop, True, lambda: None)
        replaced = _replaced(config, folder)
        with folder.beginning(config.overwrite) as note_opened:

            def opened() -> None:
                note_opened()
                if replaced is not None:
                    _clear(replaced)

            return _run_locked(config, plan, folder, on_progress, stop, False, opened)


def _run_locked(
    config: RunConfig,
    plan: Plan,
    folder: RunFolder,
    on_progress: Callable[[RunSnapshot], None] | None,
    stop: Callable[[], bool] | None,
    resume: bool,
    on_opened: Callable[[], None],
) -> dict[str, Any]:
    began = time.perf_counter()  # how long people wait; no result depends on it
    drop_request(folder.path)
    this = _FileRun(config, plan, folder, resume)
    scales = this.store is not None  # there are checkpoints to continue from

    def ends() -> bool:
        return _is_ended(stop) or (scales and is_requested(folder.path))

    try:
        while True:
            report = this.execute(on_progress, ends, on_opened)
            request = take_request(folder.path)
            if request is None or not report.stopped or _is_ended(stop):
                break
            this, on_opened = _scaled(config, folder, request)
            config = this.config
    finally:
        drop_request(folder.path)
    summary = this.values() | summarise(config, report, time.perf_counter() - began)
    state = INTERRUPTED if report.stopped else FINISHED
    if state == INTERRUPTED:
        summary["limit"] = summary["spouts"]["messages"]["messages"]
    folder.write_report(state, summary)
    if this.store is not None and state == FINISHED:
        _clear(this.store)
    folder.clear_hidden()
    return {"state": state, **summary}


def _is_ended(stop: Callable[[], bool] | None) -> bool:
    return stop is not None and stop()


def _scaled(config: RunConfig, folder: RunFolder, request: ScaleRequest) -> tuple["_FileRun", Callable[[], None]]:
    """The run, drained to a checkpoint, with other numbers of tasks, and what to call once it has opened.

    With settings that cannot be, it continues as it was.
    """
    refused = None
    try:
        changed = resumed(request.settings, config.as_json())
        plan = build_plan(changed)
    except EngineError as error:
        changed, plan, refused = config, build_plan(config), str(error)
    this = _FileRun(changed, plan, folder, True)
    log = driver_log()
    if refused is None:
        log.info("scaled", **request.settings)
    else:
        log.warning("scaling_refused", why=refused)
    return this, lambda: this.note({"scaled": {"request": request.request, "refused": refused}})


class _FileRun(RecoveringRun):
    """A run over files, from the start of the stream, or resumed."""

    def __init__(self, config: RunConfig, plan: Plan, folder: RunFolder, resume: bool):
        self._sums = checksums(input_files(config.messages, config.subscriptions))
        manifest, incarnation, quarantine, name = None, 0, EMPTY_QUARANTINE, uuid.uuid4().hex
        store = CheckpointStore(_checkpoint_folder(config, name))
        if resume:
            store, manifest, incarnation, quarantine, name = _prepare_resume(config, folder, self._sums)
            if quarantine != EMPTY_QUARANTINE:
                plan = build_plan(config, quarantine)
        else:
            incarnation = folder.claim_new()
        facts = began_with(config) | {"began": now_text(), "run": name}
        saving = store if config.checkpoint_every else None
        super().__init__(config, plan, folder, facts, saving, incarnation, quarantine)
        self.manifest = manifest
        self.begin()

    @property
    def config(self) -> RunConfig:
        """The settings it runs with."""
        return self._config

    def note(self, facts: Mapping[str, Any]) -> None:
        """Add values to `run.json`, which says that it runs."""
        self._facts = {**self._facts, **facts}
        self._folder.write_report(RUNNING, self.values())

    def _build(self, config: RunConfig, quarantine: Quarantine, replay: bool = False) -> Plan:
        return build_plan(config, quarantine)

    def _restore_folder(self) -> Manifest | None:
        assert self.store is not None
        return restore_folder(self._folder, self.store)

    def _checkpoint_facts(self) -> dict[str, Any]:
        values = self.values()
        settings, inputs = self._config.as_json(), self._sums.result()
        return {"settings": settings, "inputs": inputs, "quarantined": values["quarantined"], "run": values["run"]}


def _checkpoint_folder(config: RunConfig, name: str) -> str:
    """The folder of a run's checkpoints: in its own, else in one of its own below the one that the settings name,
    which other runs may share."""
    if config.checkpoints is None:
        return str(config.out.absolute() / CHECKPOINTS)
    return f"{config.checkpoints.rstrip('/')}/{name}"


def _replaced(config: RunConfig, folder: RunFolder) -> CheckpointStore | None:
    """The checkpoints of the run that is replaced, if they lie elsewhere than in its folder."""
    try:
        values = folder.report()
    except (CheckpointError, InputError):  # of a later release
        return None
    settings, name = values.get("settings"), values.get("run")
    place = settings.get("checkpoints") if isinstance(settings, dict) else None
    if not (place and name):
        return None
    return CheckpointStore(_checkpoint_folder(config.model_copy(update={"checkpoints": place}), name))


def _clear(store: CheckpointStore) -> None:
    """Remove the checkpoints of a run that is over, and their folder if that is a run's own."""
    store.clear_above(-1)
    if isinstance(store.disk, LocalDisk):
        with suppress(OSError):  # there may be none, or something else in it
            store.disk.folder.rmdir()


def _prepare_resume(
    config: RunConfig, folder: RunFolder, sums: Future
) -> tuple[CheckpointStore, Manifest | None, int, Quarantine, str]:
    """The run's checkpoints, the one to resume from (None: the start of the stream), the next incarnation, the
    quarantine, and the run's name.

    Raises
    ------
    ConfigError
        If the run has finished, or has no checkpoints.
    InputError
        If inputs have changed.
    """
    values = folder.report()
    if values.get("state") == FINISHED:
        raise ConfigError(f"{folder.path}: this run has finished; there is nothing to resume")
    if not config.checkpoint_every:
        raise ConfigError(f"{folder.path}: this run was made without checkpoints; run again, with --overwrite")
    incarnation = next_incarnation(int(values.get("incarnation", 0)))
    quarantine = Quarantine.of(values.get("quarantined", {}))
    name = str(values.get("run", ""))
    store = CheckpointStore(_checkpoint_folder(config, name))
    incarnation = folder.claim(incarnation)
    manifest = store.newest()
    if manifest is not None and manifest.facts.get("run") != name:
        raise CheckpointError(
            f"{store.folder}: holds checkpoints of another run than {folder.path}; give that one's folder back its own"
        )
    if manifest is None:
        if store.refused or folder.has_parts():
            why = "; ".join(store.refused) or "they are gone"
            raise CheckpointError(
                f"{folder.path}: none of its checkpoints can be used ({why}); run again, with --overwrite"
            )
        folder.empty()
        return store, None, incarnation, quarantine, name
    refuse_changed(manifest.facts["inputs"], sums.result(), config.follow)
    restore_folder(folder, store)
    return store, manifest, incarnation, quarantine, name


def as_begun(report: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """The settings with which the run of a report began, as JSON; its inputs by their whole paths.

    Those that a release did not have yet are at their defaults. Raises ConfigError if they are no settings of a run.
    """
    given = report.get("settings")
    settings = given if isinstance(given, dict) else {}
    fixed = {"messages": report.get("messages"), "subscriptions": report.get("subscriptions"), "out": out}
    return resumed({}, {**settings, **fixed, "overwrite": False}).as_json()


def settings_of(out: Path) -> Mapping[str, Any]:
    """The settings of the run in a folder. Raises InputError if there is none."""
    settings = run_folder(out).report().get("settings")
    if not isinstance(settings, dict):
        raise InputError("broken_file", f"{out / 'run.json'}: does not say how the run was made; run again")
    return settings
