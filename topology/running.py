"""Running the topology over files: the output folder, the executor, and what is left when it has ended.

Read on in `topology.wiring` for what is run, and in `topology.summary` for what is told of it.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from matching.errors import ConfigError, InputError
from topology.core.local import run_local
from topology.core.metrics import Snapshot
from topology.core.plan import Plan
from topology.settings import RunConfig
from topology.summary import summarise
from topology.wiring import build_plan

#: Components that are light beside the query bolts: one process has room for all of them (see `topology.core.worker`).
LIGHT = ("messages", "subscriptions", "distribution", "tuples", "aggregation", "delivery")
#: Stands in the output folder until the run has ended well, so that a failed run's folder is known for one of ours.
_UNFINISHED = ".unfinished"


def run(config: RunConfig, on_progress: Callable[[Snapshot], None] | None = None) -> dict[str, Any]:
    """Run the topology over the files of the settings, to the end of the stream.

    Parameters
    ----------
    config : RunConfig
    on_progress : callable, optional
        Called with a snapshot of the running topology a few times a second (`topology.core.metrics.Snapshot`).

    Returns
    -------
    dict
        The report, also written to `run.json` in the output folder: settings, counts, digest, routing, metrics.
    """
    for path in config.subscriptions:
        if not path.exists():  # found out before Ray has been started for nothing
            raise InputError("missing_file", f"{path} does not exist: name a file of subscriptions")
    if config.executor == "local":
        return _run(config, on_progress)
    from topology.core.connection import connected  # Ray takes a second to import: only for those who use it

    # A cluster is joined first, so that one that does not answer is told at once and leaves the output folder as it
    # was; a Ray of our own is started last, by `run_ray`.
    with nullcontext() if config.address is None else connected(config.address):
        return _run(config, on_progress)


def _run(config: RunConfig, on_progress: Callable[[Snapshot], None] | None) -> dict[str, Any]:
    plan = build_plan(config)
    prepare_out(config.out, config.overwrite)
    began = time.perf_counter()  # how long people wait; no result depends on it
    if config.executor == "local":
        report = run_local(plan, seed=config.seed, on_progress=on_progress)
    else:
        from topology.core.runner import run_ray

        together = together_of(config, plan)
        report = run_ray(plan, address=config.address, on_progress=on_progress, together=together)
    summary = summarise(config, report, time.perf_counter() - began)
    partial = config.out / ".run.json.tmp"
    partial.write_text(json.dumps(summary, indent=1, sort_keys=True))
    os.replace(partial, config.out / "run.json")
    (config.out / _UNFINISHED).unlink()
    return summary


def together_of(config: RunConfig, plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Components whose tasks share an actor; no result depends on it.

    By default the light ones do where this machine has fewer cores than the plan has tasks, unless the run joins a
    cluster, or follows a stream: a spout that waits for messages would keep the others of its process waiting.
    """
    shared = config.placement == "shared"
    if config.placement == "auto" and config.address is None and not config.follow:
        shared = (os.cpu_count() or 1) < len(plan.tasks)
    return (LIGHT,) if shared else ()


def prepare_out(out: Path, overwrite: bool) -> None:
    """Make the output folder; an earlier run's is kept unless it may be replaced.

    Raises
    ------
    ConfigError
        If the folder holds anything and `overwrite` is not set, or holds what no run has left there.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not overwrite:
            raise ConfigError(f"output folder {out} is in use: name another, or add --overwrite to replace it")
        if not out.is_dir() or not any((out / name).exists() for name in ("run.json", _UNFINISHED)):
            raise ConfigError(f"output folder {out} holds something that is no run of skyray: remove it yourself")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / _UNFINISHED).touch()
