"""Running the topology over files: the output folder, the executor, and what is left when it has ended.

Read on in `topology.wiring` for what is run, in `topology.folder` for the output folder, in `topology.summary` for
the report.
"""

import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from matching.errors import CheckpointError, ConfigError, EngineError, InputError, TopologyError
from spouts.parquet import read_manifest
from spouts.quarantine import EMPTY_QUARANTINE, Quarantine
from topology.core.api.plan import Plan
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import Checkpoints, complete
from topology.core.checkpoint.storage import LocalDisk
from topology.core.checkpoint.store import CheckpointStore, Manifest
from topology.core.executors.balancing import Balance
from topology.core.executors.local import run_local
from topology.core.executors.logs import driver_log
from topology.core.executors.orphan_reaper import outliving_ray
from topology.core.failures import ComponentFailed
from topology.core.metrics import RunReport, Snapshot
from topology.folder import (
    CHECKPOINTS,
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    RunFolder,
    check_out,
    checksums,
    input_files,
    now_text,
    refuse_changed,
)
from topology.poison import Poison, find
from topology.settings import RunConfig
from topology.summary import began_with, summarise
from topology.wiring import build_plan

#: Components that are light beside the query bolts: one process can run all of them (see
#: `topology.core.tasks.worker`).
LIGHT = ("messages", "subscriptions", "distribution", "tuples", "aggregation", "delivery")


#: Seconds between two looks for a folder that does not exist yet.
_LOOK_S = 0.25
#: More incarnations than a run has that recovers by itself.
_BY_ITSELF = 1_000_000


def run(
    config: RunConfig,
    on_progress: Callable[[Snapshot], None] | None = None,
    stop: Callable[[], bool] | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Run the topology over the files of the settings, to the end of the stream.

    Parameters
    ----------
    config : RunConfig
    on_progress : callable, optional
        Called with a snapshot of the running topology a few times a second (`topology.core.metrics.Snapshot`).
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
    if config.follow:
        _await_messages(config.messages, stop)
    for path in config.subscriptions:
        if not path.exists():  # before Ray is started
            raise InputError("missing_file", f"{path} does not exist: name a file of subscriptions")
    if config.executor == "local":
        return _run(config, on_progress, stop, resume)
    with outliving_ray():
        from topology.core.executors.connection import connected  # it takes a second: only for those who use it

    # A cluster is joined first, so that one that does not answer is values at once and leaves the output folder as it
    # was; a Ray of our own is started last, by `run_ray`.
    with nullcontext() if config.address is None else connected(config.address):
        return _run(config, on_progress, stop, resume)


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
    on_progress: Callable[[Snapshot], None] | None,
    stop: Callable[[], bool] | None,
    resume: bool,
) -> dict[str, Any]:
    plan = build_plan(config)  # errors are raised before the folder is touched
    if not resume:
        check_out(config.out, config.overwrite)
    folder = RunFolder(config.out.absolute())
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
    on_progress: Callable[[Snapshot], None] | None,
    stop: Callable[[], bool] | None,
    resume: bool,
    on_opened: Callable[[], None],
) -> dict[str, Any]:
    began = time.perf_counter()  # how long people wait; no result depends on it
    sums = checksums(input_files(config.messages, config.subscriptions))
    if resume:
        store, manifest, incarnation, aside, name = _prepare_resume(config, folder, sums)
        if aside != EMPTY_QUARANTINE:
            plan = build_plan(config, aside)
    else:
        manifest, incarnation, aside, name = None, 0, EMPTY_QUARANTINE, uuid.uuid4().hex
        store = CheckpointStore(_checkpoint_folder(config, name))
    values = began_with(config) | {"began": now_text(), "process": os.getpid(), "run": name}
    poisons: list[Poison] = []
    try:
        while True:
            values |= {"incarnation": incarnation, "aside": aside.as_json()}
            folder.write_report(RUNNING, values)
            checkpoints = _checkpoints(config, store, folder, sums, values)
            try:
                report = execute(config, plan, on_progress, stop, checkpoints, manifest, on_opened)
                break
            except ComponentFailed as failed:
                if checkpoints is None or config.strict:
                    raise
                manifest = go_back(folder, checkpoints.store)
                poison = find_poison(config, build_plan, aside, checkpoints.store, manifest, failed)
                if poison is None:
                    raise
                poisons.append(poison)
                aside = without(aside, poison)
                plan, incarnation = build_plan(config, aside), behind(incarnation)
        note_rejects(folder, poisons)
    except KeyboardInterrupt:
        folder.write_report(INTERRUPTED, values | {"error": "stopped before what was in flight had drained"})
        raise
    except EngineError as error:
        folder.write_report(FAILED, values | {"error": str(error).splitlines()[0]})
        raise
    summary = values | summarise(config, report, time.perf_counter() - began)
    state = INTERRUPTED if report.stopped else FINISHED
    if state == INTERRUPTED:
        summary["limit"] = summary["spouts"]["messages"]["messages"]
    folder.write_report(state, summary)
    if checkpoints is not None and state == FINISHED:
        _clear(store)
    folder.clear_hidden()
    return {"state": state, **summary}


def execute(
    config: RunConfig,
    plan: Plan,
    on_progress: Callable[[Snapshot], None] | None,
    stop: Callable[[], bool] | None,
    checkpoints: Checkpoints | None,
    manifest: Manifest | None,
    on_opened: Callable[[], None] = lambda: None,
) -> RunReport:
    if config.executor == "local":
        resume = None if manifest is None or checkpoints is None else checkpoints.store.load(manifest)
        return run_local(
            plan,
            seed=config.seed,
            on_progress=on_progress,
            stop=stop,
            resume=resume,
            checkpoints=checkpoints,
            on_opened=on_opened,
        )
    with outliving_ray():
        from topology.core.executors.ray import run_ray

    return run_ray(
        plan,
        address=config.address,
        on_progress=on_progress,
        together=together_of(config, plan),
        stop=stop,
        checkpoints=checkpoints,
        resume=manifest,
        balance=Balance("query") if config.rebalance else None,
        on_opened=on_opened,
    )


def go_back(folder: RunFolder, store: CheckpointStore) -> Manifest | None:
    """Take the folder back to the last checkpoint; None for the start of the stream."""
    manifest = store.newest()
    if manifest is None:
        folder.empty()
        return None
    store.clear_above(manifest.epoch)
    complete(str(folder.path), manifest)
    folder.clear_hidden()
    return manifest


def behind(incarnation: int) -> int:
    """The next incarnation: a run that recovers by itself counts on by one, and does not say so here."""
    return _BY_ITSELF * (incarnation // _BY_ITSELF + 1)


def find_poison(
    config: RunConfig,
    build: Callable[[RunConfig, Quarantine], Plan],
    aside: Quarantine,
    store: CheckpointStore,
    manifest: Manifest | None,
    failed: ComponentFailed,
) -> Poison | None:
    """The rows at fault in the topology that `build` makes; None if no row is."""
    if failed.exit_code not in (TopologyError.exit_code, EngineError.exit_code):
        return None  # input, disk, settings: no row is to blame
    driver_log().warning("looking_for_poison", why=str(failed).splitlines()[0])
    with tempfile.TemporaryDirectory(prefix="skyray-scratch-") as scratch:
        changed = {"executor": "local", "sink": "count", "out": Path(scratch), "rate": None, "rebalance": False}
        quiet = config.model_copy(update=changed)
        poison = find(
            lambda aside: build(quiet, aside),
            aside,
            None if manifest is None else store.load(manifest),
            failed.last_batch,
        )
    if poison is not None:
        driver_log().warning(
            "set_aside", messages=poison.messages, subscriptions=poison.subscriptions, why=poison.cause
        )
    return poison


def without(aside: Quarantine, poison: Poison) -> Quarantine:
    """The quarantine with the rows of `poison`."""
    messages, subscriptions = ([(one, one) for one in found] for found in (poison.messages, poison.subscriptions))
    return aside.with_more(messages, subscriptions)


def note_rejects(folder: RunFolder, poisons: Sequence[Poison]) -> None:
    """Append quarantined rows to the rejected ones, with their cause."""
    rows = [
        {"reason": "poison", "what": poison.cause, "batch": poison.batch, name: number}
        for poison in poisons
        for name, numbers in (("seq", poison.messages), ("subscription", poison.subscriptions))
        for number in numbers
    ]
    if rows:
        with open(folder.path / "rejected.jsonl", "a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))


def _checkpoints(
    config: RunConfig,
    store: CheckpointStore,
    folder: RunFolder,
    sums: Future,
    values: Mapping[str, Any],
) -> Checkpoints | None:
    if not config.checkpoint_every:
        return None
    aside, name = values["aside"], values["run"]
    return Checkpoints(
        store=store,
        cadence=Cadence(seconds=config.checkpoint_every),
        root=str(folder.path),
        facts=lambda: {"settings": config.as_json(), "inputs": sums.result(), "aside": aside, "run": name},
        incarnation=values["incarnation"],
        restarts=config.restarts,
    )


def _checkpoint_folder(config: RunConfig, name: str) -> str:
    """The folder of a run's checkpoints: in its own, else in one of its own below the one that the settings name,
    which other runs may share."""
    if config.checkpoints is None:
        return str(config.out.absolute() / CHECKPOINTS)
    place, mark, options = config.checkpoints.partition("?" if "://" in config.checkpoints else "\0")
    return f"{place.rstrip('/')}/{name}{mark}{options}"


def _store_of(config: RunConfig, name: str) -> CheckpointStore:
    """The checkpoints that a run has left, perhaps as earlier releases did: not below its name."""
    store = CheckpointStore(_checkpoint_folder(config, name))
    if config.checkpoints is not None and store.last_epoch() < 0:
        flat = CheckpointStore(config.checkpoints)
        manifest = flat.newest()
        if manifest is not None and manifest.facts.get("run") == name:
            return flat
    return store


def _replaced(config: RunConfig, folder: RunFolder) -> CheckpointStore | None:
    """The checkpoints of the run that is replaced, if they lie elsewhere than in its folder."""
    try:
        values = folder.report()
    except InputError:
        return None
    settings, name = values.get("settings"), values.get("run")
    place = settings.get("checkpoints") if isinstance(settings, dict) else None
    return _store_of(config.model_copy(update={"checkpoints": place}), name) if place and name else None


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
    incarnation = behind(int(values.get("incarnation", 0)))
    aside = Quarantine.of(values.get("aside", {}))
    name = str(values.get("run", ""))
    store = _store_of(config, name)
    manifest = store.newest()
    if manifest is not None and manifest.facts.get("run") != name:
        raise CheckpointError(
            f"{store.folder}: holds checkpoints of another run than {folder.path}; give that one's folder back its own"
        )
    if manifest is None:
        if store.refused or any((folder.path / "updates").glob("part-*")):
            why = "; ".join(store.refused) or "they are gone"
            raise CheckpointError(
                f"{folder.path}: none of its checkpoints can be used ({why}); run again, with --overwrite"
            )
        folder.empty()
        return store, None, incarnation, aside, name
    refuse_changed(manifest.facts["inputs"], sums.result(), config.follow)
    go_back(folder, store)
    (folder.path / "results.parquet").unlink(missing_ok=True)
    return store, manifest, incarnation, aside, name


def settings_of(out: Path) -> Mapping[str, Any]:
    """The settings of the run in a folder. Raises InputError if there is none."""
    settings = RunFolder(out).report().get("settings")
    if not isinstance(settings, dict):
        raise InputError("broken_file", f"{out / 'run.json'}: does not say how the run was made; run again")
    return settings


def together_of(config: RunConfig, plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Components whose tasks share an actor; no result depends on it.

    By default the light ones do where this machine has fewer cores than the plan has tasks, unless the run joins a
    cluster, follows a stream or keeps to a rate: a spout that waits would keep the others of its process waiting.
    """
    waits = config.follow or config.rate is not None
    if config.placement == "auto" and not waits:
        return shared_by_default(plan, config.address)
    return _light(plan) if config.placement == "shared" else ()


def shared_by_default(plan: Plan, address: str | None) -> tuple[tuple[str, ...], ...]:
    """Components that share an actor by default; see `together_of`."""
    return _light(plan) if address is None and (os.cpu_count() or 1) < len(plan.tasks) else ()


def _light(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """The light components as one group, without a clock that is patient: it has a process to itself."""
    alone = plan.clock.name if plan.clock.patient else None
    return (tuple(name for name in LIGHT if name != alone),)
