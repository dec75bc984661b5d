"""What both checkouts are timed on: arrays in a folder, which neither of them has drawn.

A case is a stream that is cut into rounds, the subscriptions, and the settings of a run. It is written once, so that
both sides take the same batches whatever has become of the workloads since. Read on in `benchmarks.against.driver`,
which reads it.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cases import make_case
from benchmarks.topology_cost import stream_over
from benchmarks.workload import PLAIN
from matching.kinds import KINDS
from matching.model import MessageBatch, SubscriptionTable


class Plan(NamedTuple):
    """The size of a case.

    kind : str             of the subscriptions
    subscriptions : int
    window : int           messages in it; 0 for a kind that has none
    part : int             messages a round
    batch : int
    passes : int           a round goes so many times over its messages; only without a window
    topology : bool        the whole topology on Ray, with a sink that counts, instead of one room
    k : int                of subscriptions to points; 0 for that of the plain workload
    """

    kind: str
    subscriptions: int
    window: int
    part: int
    batch: int = 5_000
    passes: int = 1
    topology: bool = False
    k: int = 0


#: By name; sizes are such that a round takes 5 to 15 seconds on one core of a plain machine.
PLANS: dict[str, Plan] = {
    "boolean-1M": Plan("boolean", 1_000_000, 0, 200_000, passes=4),
    "topk-1M-window-1M": Plan("topk", 1_000_000, 1_000_000, 80_000),
    "topk-1M-window-100k": Plan("topk", 1_000_000, 100_000, 10_000),
    # what an hour of a quiet city is to a batch: most of it has gone at its end
    "topk-5k-window-100": Plan("topk", 5_000, 100, 20_000),
    "topk-100k-k-10": Plan("topk", 100_000, 20_000, 10_000, k=10),
    "topk-100k-k-100": Plan("topk", 100_000, 20_000, 10_000, k=100),
    "skyline-real-window": Plan("skyline", 100_000, 100_000, 20_000),
    "topology-boolean-1M": Plan("boolean", 1_000_000, 0, 500_000, topology=True),
}


def write_case(folder: Path, name: str, rounds: int, scale: float = 1.0, seed: int = 0) -> dict[str, Any]:
    """Draw a case and write it into an empty folder; returns its settings, which stand in `case.json`.

    Parameters
    ----------
    folder : Path
    name : str       of `PLANS`
    rounds : int     of each side, the first one untimed
    scale : float    of subscriptions, window and messages: a small one checks that all is well
    """
    plan = PLANS[name]
    sized = {key: max(50, round(getattr(plan, key) * scale)) for key in ("subscriptions", "part", "batch")}
    plan = plan._replace(**sized, window=max(100, round(plan.window * scale)) if plan.window else 0)
    kind = KINDS.named(plan.kind)
    settings: dict[str, Any] = {"name": name, **plan._asdict(), "rounds": rounds, "seed": seed}
    if plan.topology:
        load = stream_over(plan.kind, plan.subscriptions, plan.part, plan.batch, seed)
        messages, table, ends = load.case.messages, load.case.table, None
        settings |= {"filled": 0, "span": 4 * plan.batch}
    else:
        timed = plan.part * (rounds if kind.windowed else 1)
        recipe = PLAIN._replace(k=(plan.k, plan.k)) if plan.k else None
        case = make_case(kind, plan.subscriptions, timed, plan.window or None, 1, seed, recipe=recipe)
        messages, table, ends = case.messages, case.table, case.ends
        settings |= {"filled": case.filled, "span": case.window.length}
    _write(folder, "messages", messages)
    _write(folder, "table", table)
    np.save(folder / "ends.npy", np.full(len(messages), -1, np.int64) if ends is None else ends)
    (folder / "case.json").write_text(json.dumps(settings))
    return settings


def _write(folder: Path, name: str, rows: MessageBatch | SubscriptionTable) -> None:
    for column, values in rows._asdict().items():
        np.save(folder / f"{name}.{column}.npy", values)
