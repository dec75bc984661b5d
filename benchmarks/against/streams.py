"""Adapter of a checkout from before rooms, as of commit acb847a: streams, and a home for `skyline`.

They are driven as the query and tuple bolts of that checkout drove them: a batch is stored, matched and closed, and
what is asked is answered and installed at once. Its modules are not there any more, so they are imported by name. See
`benchmarks.against.driver`.
"""

import shutil
import tempfile
from importlib import import_module
from typing import Any

import numpy as np

_CREDITS = 4


def open_room(case: dict[str, Any]) -> Any:
    """A function that processes a batch and returns what is told."""
    registry, space = import_module("matching.registry"), import_module("matching.space")
    warm = import_module("matching.warmup")
    warm.warmup(warm.defaults())
    world = space.Space(*space.EARTH)
    engine = registry.factory(case["kind"])(world)
    window = import_module("matching.window").Window("count", case["span"])
    return {"boolean": _boolean, "topk": _topk, "skyline": _skyline}[case["kind"]](engine, window)


def _boolean(engine: Any, window: Any) -> Any:
    stream, nothing = import_module("matching.boolean.stream").BooleanStream(engine), _no_removals()
    return lambda batch: stream.process(batch.boundary, batch.messages, batch.added, nothing)


def _topk(engine: Any, window: Any) -> Any:
    local, nothing = import_module("matching.topk.local").LocalTopk(engine, window), _no_removals()
    return lambda batch: local.process(batch.boundary, batch.messages, batch.added, nothing).updates


def _skyline(engine: Any, window: Any) -> Any:
    home = import_module("matching.skyline.home").SkylineHome(engine, 0)
    share = import_module("matching.skyline.windows.inverted").InvertedWindow()
    answers, concatenate = import_module("matching.skyline.answers"), import_module("matching.model").concatenate
    empty, update_batch = import_module("matching.model").empty, import_module("matching.model").UpdateBatch
    nobody = np.zeros(0, np.int64)

    def process(batch: Any) -> Any:
        share.store(batch.boundary, batch.messages, batch.ended.seq)
        if not len(home) and not len(batch.added):
            home.pass_over(batch.boundary)
            return empty(update_batch)
        at_home = np.zeros(len(batch.added), np.int64)
        matched, _ = home.match(batch.boundary, batch.messages, batch.ended, batch.added, at_home, nobody, 1)
        steps = [home.close(matched, [])]
        asks = list(steps[0].asks)
        while asks:
            steps.append(home.install(answers.merge_answers([answers.answer(share, asks.pop(0))])))
            asks += steps[-1].asks
        return concatenate([step.updates for step in steps])

    return process


def run_topology(case: dict[str, Any], batches: Any, table: Any) -> dict[str, Any]:
    """The topology on Ray, from the end of the first batch on: as its own `benchmarks.topology_cost` does."""
    cost = import_module("benchmarks.topology_cost")
    names = import_module("matching.model").Names
    window = import_module("matching.window").Window("count", case["span"])
    named = [(boundary, part, names.of([f"m{seq}" for seq in part.seq])) for boundary, part in batches]
    folder = tempfile.mkdtemp(prefix="skyray-against-")
    try:
        plan = cost.wire(
            cost.ArraySpout(named),
            cost.TableSpout(table),
            cost.HashingRouter(1),
            cost.WORLD,
            window,
            cost.DeliveryBolt(folder, window, _CREDITS, sink="count"),
            credits=_CREDITS,
        )
        report = cost.run_ray(plan, together=(cost.LIGHT,))
    finally:
        shutil.rmtree(folder)
    told = report.components["delivery"].tasks[0].figures
    seconds = report.elapsed_s - report.components["messages"].tasks[0].figures["loaded_s"]
    return {"seconds": seconds, "digest": told["digest"], "updates": sum(told["updates"].values())}


def _no_removals() -> Any:
    nobody = np.zeros(0, np.int64)
    return import_module("matching.model").Removals(nobody, nobody.astype(np.int8), nobody)
