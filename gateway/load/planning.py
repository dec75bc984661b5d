"""The model behind `skyray plan`: memory, cores, bytes between nodes and latency of a load, from measured constants.

A message costs a task of each component a fixed time, and more for each query task (copies, packing) or each
subscription; `BASES` says which. The task of a component that is busiest bounds the rate, since one message stream goes
through all of them. Constants come from `gateway.load.measuring`; those that are shipped name their machine.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from matching.errors import ConfigError

COMPONENTS = ("messages", "distribution", "query", "tuples", "delivery")
#: Factors of a component's microseconds a message, of N subscriptions on Q query tasks.
BASES: dict[str, Callable[[int, int], tuple[float, ...]]] = {
    "messages": lambda n, q: (1.0,),
    "distribution": lambda n, q: (1.0, float(q)),
    "query": lambda n, q: (1.0, n / q),
    "tuples": lambda n, q: (1.0, float(n)),
    "delivery": lambda n, q: (1.0, float(q), float(n)),
}
#: A task may be busy for this share of the time; beyond it queues make latency long.
MOST_BUSY = 0.7
#: Where constants are looked for before those that are shipped.
SHIPPED = Path(__file__).parent / "constants.json"
#: A plan for this many times the measured subscriptions on a task, or more, is marked as an extrapolation.
FAR = 10.0
#: Times that were measured at a higher load average are marked as rough.
BUSY_MACHINE = 1.0

_REMEDIES = {
    "messages": "publish less: the spout that numbers batches is a single task",
    "distribution": "take fewer query tasks or a lower rate: distribution is a single task by default",
    "query": "take more cores or more nodes, so that each query task has fewer subscriptions",
    "tuples": "take fewer subscriptions, or a lower rate: the window is a single task by default",
    "delivery": "take fewer subscriptions or a lower rate: delivery is a single task",
}


class Work(NamedTuple):
    """One measurement: `busy_s` and `bytes_moved` for a message, `bytes_each` of memory for a subscription,
    `window_bytes_each` for a message of the window, and the `digest` of all updates."""

    subscriptions: int
    query_tasks: int
    busy_s: dict[str, float]
    bytes_moved: float
    bytes_each: float
    window_bytes_each: float
    digest: str = ""


class Constants(NamedTuple):
    """Measured constants of one kind.

    Factors of `BASES` in microseconds a message, by component; factors of the bytes between tasks a message (of 1,
    query tasks, subscriptions); bytes of memory; the most subscriptions measured on one task.
    """

    busy_us: dict[str, list[float]]
    bytes_moved: list[float]
    bytes_each: float
    window_bytes_each: float
    worker_bytes: float
    measured_subscriptions: int

    def busy(self, component: str, subscriptions: int, tasks: int) -> float:
        """Microseconds that a message costs a task of a component."""
        base = BASES[component](subscriptions, tasks)
        return sum(factor * value for factor, value in zip(self.busy_us[component], base, strict=True))

    def moved(self, subscriptions: int, tasks: int) -> float:
        """Bytes between tasks a message."""
        return sum(f * v for f, v in zip(self.bytes_moved, (1.0, tasks, subscriptions), strict=True))


class Load(NamedTuple):
    """Input of a plan; `window` in messages, `linger_s` until a batch closes, `hop_s` between two tasks."""

    subscriptions: int
    rate: float
    kind: str
    nodes: int = 1
    cores: int = 8
    window: int = 1_000_000
    linger_s: float = 0.01
    hop_s: float = 0.001


def user_constants() -> Path:
    """Where `skyray plan --measure` writes by default."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home) / "skyray" / "constants.json"


def read_constants(file: Path | None = None) -> tuple[dict[str, Any], Path]:
    """Constants of a file, else of the user's configuration folder, else those that are shipped; and where they were.

    Raises
    ------
    ConfigError
        If the file cannot be read or is not one of constants.
    """
    path = file or (user_constants() if user_constants().is_file() else SHIPPED)
    try:
        read = json.loads(path.read_text())
        read["kinds"] = {kind: Constants(**values) for kind, values in read["kinds"].items()}
        return read, path
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: no constants ({error}); `skyray plan --measure` writes some") from error


def plan_for(load: Load, constants: dict[str, Any], query_bolts: int | None = None) -> dict[str, Any]:
    """What a load needs, JSON-ready.

    Parameters
    ----------
    load : Load
    constants : dict
        As `read_constants` gives it.
    query_bolts : int, optional
        Else the fewest that no component is busier with than `MOST_BUSY`, or those that bound the rate least.

    Returns
    -------
    dict
        `fits`; `query_bolts`; `busy` (share of a task, by component); `bound_by` (`component`, `most_per_s`, `remedy`);
        `cores`, `cores_per_node`; `memory_bytes`, `memory_bytes_per_node`; `between_nodes_bytes_per_s`; `latency`
        (`p50_s` and `p99_s`, None if it does not fit); `far`: how many times the measured subscriptions a task has.

    Raises
    ------
    ConfigError
        For a kind without constants, and for numbers that are not positive.
    """
    known = constants["kinds"]
    if load.kind not in known:
        raise ConfigError(f"kind {load.kind!r}: constants are known of {', '.join(known)}; measure with --measure")
    if not all(value > 0 for value in (load.subscriptions, load.rate, load.nodes, load.cores, query_bolts or 1)):
        raise ConfigError("--subscriptions, --rate, --nodes, --cores and --query-bolts: give positive numbers")
    one: Constants = known[load.kind]
    tasks = query_bolts or _tasks_for(load, one)
    busy = {name: load.rate * 1e-6 * one.busy(name, load.subscriptions, tasks) for name in COMPONENTS}
    cores = sum(share * (tasks if name == "query" else 1) for name, share in busy.items())
    available = load.nodes * load.cores
    apart = (load.nodes - 1) / load.nodes
    memory = (
        load.subscriptions * one.bytes_each
        + load.window * one.window_bytes_each
        + (tasks + load.nodes) * one.worker_bytes
    )
    limits = limits_of(load.rate, busy, cores, available)
    return {
        **limits,
        "query_bolts": tasks,
        "busy": busy,
        "cores": cores,
        "cores_per_node": cores / load.nodes,
        "memory_bytes": memory,
        "memory_bytes_per_node": memory / load.nodes,
        "between_nodes_bytes_per_s": load.rate * apart * one.moved(load.subscriptions, tasks),
        "latency": _latency(load, busy) if limits["fits"] else {"p50_s": None, "p99_s": None},
        "far": load.subscriptions / tasks / one.measured_subscriptions,
        "load": load._asdict(),
    }


def limits_of(rate: float, busy: Mapping[str, float], cores: float, available: int) -> dict[str, Any]:
    """Whether a plan `fits`, and what it is `bound_by`: the busiest component or all cores, how many messages a second
    that takes at most, and the remedy.

    Parameters
    ----------
    rate : float
        Messages a second.
    busy : mapping of str to float
        Share of the time that a task of each component is busy at that rate.
    cores : float
        Busy ones, of all tasks together.
    available : int
    """
    busiest = max(busy, key=lambda name: busy[name])
    by_cores = cores / available > busy[busiest]
    most = rate * min(MOST_BUSY / max(busy[busiest], 1e-12), MOST_BUSY * available / max(cores, 1e-12))
    bound = ("cores", "take more nodes or cores") if by_cores else (busiest, _REMEDIES[busiest])
    return {
        "fits": busy[busiest] <= MOST_BUSY and cores <= MOST_BUSY * available,
        "bound_by": {"component": bound[0], "most_per_s": most, "remedy": bound[1]},
    }


def _tasks_for(load: Load, one: Constants) -> int:
    """The fewest query tasks with which no task is too busy; where there are none, those that bound the rate least."""

    def busiest(tasks: int) -> float:
        return load.rate * 1e-6 * max(one.busy(name, load.subscriptions, tasks) for name in COMPONENTS)

    candidates = range(1, load.nodes * load.cores + 1)
    return next((tasks for tasks in candidates if busiest(tasks) <= MOST_BUSY), min(candidates, key=busiest))


def _latency(load: Load, busy: dict[str, float]) -> dict[str, float]:
    """Seconds from due time to update: lingering, a batch through each component in turn, waiting, and hops.

    A component is a server with a constant service time and arrivals at random (M/D/1): with a share b of its time used
    and a batch that takes it s seconds, the mean wait is s * b / (2 * (1 - b)). The 99th percentile of the longest wait
    is taken as -ln(0.01) times its mean.
    """
    on_way = [name for name in COMPONENTS if name != "tuples"]
    service = {name: load.linger_s * busy[name] for name in on_way}
    wait = {name: service[name] * busy[name] / (2 * (1 - busy[name])) for name in on_way}
    base = sum(service.values()) + load.hop_s * (len(on_way) - 1)
    return {
        "p50_s": load.linger_s / 2 + base + sum(wait.values()),
        "p99_s": load.linger_s + base + sum(wait.values()) + (-math.log(0.01) - 1) * max(wait.values()),
    }
