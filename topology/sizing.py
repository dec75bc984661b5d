"""Sizes a topology by measured costs: how many tasks there are beside the query bolts, and a whole plan for a load.

`beside` chooses numbers of tasks where settings give none, by what the rows of the kinds say of their work
(`matching.kind_table.Kind.beside`, `python -m benchmarks.scaling`). `size` goes by a profile of a mix of kinds.

A profile (`python -m benchmarks.workloads.profile`, or `gateway.load.measuring`) has the microseconds that each part of
the work took a message, with all subscriptions on one query task. The matching of kinds divides among query tasks by
their subscriptions; each message is unpacked by all of them. The cost of a message that does not depend on
subscriptions is not separate in a profile, and neither is the cost of a parcel from each query task, so that sizes for
many query tasks err to the side of fewer cores.
"""

import json
from collections.abc import Iterable, Mapping
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from matching.errors import ConfigError
from matching.kind_table import Kind

#: A task may be busy for this share of the time; beyond it queues make latency long.
MOST_BUSY = 0.7
#: Component that does a part of a profile; parts that name a kind are below.
_COMPONENT_OF = {
    "spouts": "messages",
    "distribution": "distribution",
    "query bolt": "unpacking",
    "tuple bolt": "tuples",
    "message log": "tuples",
    "aggregation": "delivery",
    "delivery bolt": "delivery",
    "delivery digest": "delivery",
    "delivery names in results": "delivery",
    "delivery sink": "delivery",
    "framework": "framework",
    "other threads": "files",
}
_OF_A_KIND = {"match": "query", "close": "query", "window": "tuples", "refill": "tuples"}
#: Work of no task: calls between tasks, and threads that compress and write.
_NO_TASK = ("framework", "files")
_REMEDIES = {
    "messages": "publish less: the spout that numbers batches is a single task",
    "subscriptions": "change fewer subscriptions: the spout that numbers changes is a single task",
    "distribution": "take more --distribution-bolts, or another --router",
    "query": "take more --query-bolts, on more cores or nodes, so that each has fewer subscriptions",
    "tuples": "take more --tuple-bolts, each of which stores its share of the window",
    "aggregation": "take more aggregation bolts (--set topology.aggregation_bolts=2)",
    "delivery": "take more delivery bolts (--set topology.delivery_bolts=2)",
    "cores": "take more nodes or cores",
}
#: Components whose numbers of tasks are chosen beside the query bolts -> the setting that gives the number.
BESIDE = {
    "distribution": "distribution_bolts",
    "tuples": "tuple_bolts",
    "aggregation": "aggregation_bolts",
    "delivery": "delivery_bolts",
}
#: Query bolts for each distribution bolt that sends them different messages; one that sends all the same to each serves
#: more.
_ROUTED, _SENT_ALL = 16, 32
#: A component counts as overloaded from this share of the time on, where no task of another is busy for that one.
_OVERLOADED, _IDLE = 0.9, 0.6


def beside(query_bolts: int, kinds: Iterable[Kind], sends_all: bool) -> dict[str, int]:
    """How many tasks each component of `BESIDE` has where settings give no number, at most one a query bolt.

    Parameters
    ----------
    query_bolts : int
    kinds : iterable of Kind
        Those there may be subscriptions of. The work of a component divides among its tasks, as the subscriptions do
        among query bolts: with as many as these, times its share of their work, no task is busier than a query bolt.
    sends_all : bool
        Every message goes to every query bolt.
    """
    shares = {"distribution": 1 / (_SENT_ALL if sends_all else _ROUTED)}
    for kind in kinds:
        for name, share in kind.beside.items():
            shares[name] = max(share, shares.get(name, 0.0))
    return {name: min(query_bolts, max(1, ceil(query_bolts * shares.get(name, 0.0)))) for name in BESIDE}


def chosen(settings: Any, tasks: Mapping[str, int]) -> dict[str, int]:
    """Those of the tasks (component -> number) whose number no setting gives."""
    return {name: tasks[name] for name, setting in BESIDE.items() if getattr(settings, setting) is None}


def overloaded(busy: Mapping[str, float]) -> str | None:
    """What would help a run in which one component was hardly ever idle and no other was busy; None for any other.

    `busy`: the busiest task of each component, 0 to 1.
    """
    *others, busiest = sorted(busy, key=lambda name: busy[name])
    most = max((busy[name] for name in others), default=0.0)
    if busy[busiest] < _OVERLOADED or most > _IDLE:
        return None
    shares = f"{busiest} was busy for {busy[busiest]:.0%} of the time and no other for more than {most:.0%}"
    return f"{shares}: {_REMEDIES[busiest]}"


class Load(NamedTuple):
    """Input of a size: messages a second, machines, cores of each."""

    rate: float
    nodes: int = 1
    cores: int = 8


def read_profile(path: Path) -> dict[str, Any]:
    """A profile that was written by `python -m benchmarks.workloads.profile`.

    Raises
    ------
    ConfigError
        If the file cannot be read, is no profile, or its updates were not those of the oracle.
    """
    try:
        read = json.loads(path.read_text())
        parts = {str(part): float(us) for part, us in read["parts_us"].items()}
        found = {"parts_us": parts, "memory_bytes": int(read["memory_bytes"]), "exact": bool(read["exact"])}
        found |= {"subscriptions": {str(kind): int(count) for kind, count in read["subscriptions"].items()}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: no profile ({error}); `python -m benchmarks.workloads.profile FOLDER` writes one"
        ) from error
    if not found["exact"]:
        raise ConfigError(f"{path}: of a run whose updates were not the oracle's, or too few; profile again")
    return found


def microseconds(parts: Mapping[str, float]) -> dict[str, float]:
    """Microseconds a message by component; `unpacking` is each query task's own. Raises ConfigError for others."""
    found: dict[str, float] = {}
    for part, us in parts.items():
        component = _COMPONENT_OF.get(part) or _OF_A_KIND.get(part.rpartition(" ")[2])
        if component is None:
            raise ConfigError(f"part {part!r} of the profile: no component does it; profile again with this version")
        found[component] = found.get(component, 0.0) + us
    return found


def require_positive(load: Load, query_bolts: int | None) -> None:
    """Raises ConfigError for a number that is not positive."""
    if not all(value > 0 for value in (*load, 1 if query_bolts is None else query_bolts)):
        raise ConfigError("--rate, --nodes, --cores and --query-bolts: give positive numbers")


def size(load: Load, profile: Mapping[str, Any], query_bolts: int | None = None) -> dict[str, Any]:
    """Size the topology of a load, JSON-ready.

    Parameters
    ----------
    load : Load
    profile : mapping
        As `read_profile` gives it.
    query_bolts : int, optional
        Else the fewest that are no busier than `MOST_BUSY`, at most the cores there are.

    Returns
    -------
    dict
        `fits`; `bound_by`: the busiest `component` or `cores`, the messages a second that it takes at most
        (`most_per_s`), and the `remedy`; `query_bolts`; `us_per_message` by component; `busy` (share of a task, by
        component); `cores` (busy ones), `cores_needed` (with which they are busy for `MOST_BUSY` of the time),
        `cores_per_node`; `memory_bytes`, as of the one process that was profiled.

    Raises
    ------
    ConfigError
        For numbers that are not positive, and as `microseconds`.
    """
    require_positive(load, query_bolts)
    us = microseconds(profile["parts_us"])
    query, unpacking, available = us.pop("query", 0.0), us.pop("unpacking", 0.0), load.nodes * load.cores
    a_second = load.rate * 1e-6
    # with the last candidate, if no number of tasks is enough
    candidates = (query_bolts,) if query_bolts else range(1, available + 1)
    tasks = next((n for n in candidates if a_second * (unpacking + query / n) <= MOST_BUSY), candidates[-1])
    each = {**us, "query": unpacking + query / tasks}
    busy = {name: a_second * spent for name, spent in each.items() if name not in _NO_TASK}
    cores = a_second * (sum(us.values()) + query + unpacking * tasks)
    busiest = max(busy, key=lambda name: busy[name])
    bound = "cores" if cores / available > busy[busiest] else busiest
    highest = max(busy[busiest], cores / available)  # of all shares, which may be MOST_BUSY
    return {
        "fits": highest <= MOST_BUSY,
        "bound_by": {
            "component": bound, "most_per_s": load.rate * MOST_BUSY / max(highest, 1e-12), "remedy": _REMEDIES[bound],
        },
        "query_bolts": tasks,
        "us_per_message": each,
        "busy": busy,
        "cores": cores,
        "cores_needed": cores / MOST_BUSY,
        "cores_per_node": cores / load.nodes,
        "memory_bytes": profile["memory_bytes"],
        "subscriptions": profile["subscriptions"],
        "load": load._asdict(),
    }  # fmt: skip
