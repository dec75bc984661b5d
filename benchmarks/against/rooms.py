"""Adapter of a checkout that has `matching.alone`: rooms and shares. See `benchmarks.against.driver`."""

from typing import Any

import numpy as np

from matching.alone import Alone
from matching.kinds import KINDS
from matching.model import Names, Removals
from matching.space import EARTH, Space
from matching.warmup import warmup
from matching.window import Window


def open_room(case: dict[str, Any]) -> Any:
    """A function that processes a batch and returns what is told."""
    warmup()
    kind = KINDS.named(case["kind"])
    alone = Alone([kind], Space(*EARTH), Window("count", case["span"]))
    nobody = np.zeros(0, np.int64)
    nothing = Removals(nobody, nobody.astype(np.int8), nobody)

    def process(batch: Any) -> Any:
        return alone.process(batch.boundary, batch.messages, batch.added, nothing, batch.ended).updates

    return process


def run_topology(case: dict[str, Any], batches: Any, table: Any) -> dict[str, Any]:
    """The topology on Ray, from the end of the first batch on."""
    from benchmarks.topology_cost import run_over, seconds_of

    named = [(boundary, part, Names.of([f"m{seq}" for seq in part.seq])) for boundary, part in batches]
    report = run_over(named, table, Window("count", case["span"]), "count")
    told = report.components["delivery"].tasks[0].figures
    return {"seconds": seconds_of(report), "digest": told["digest"], "updates": sum(told["updates"].values())}
