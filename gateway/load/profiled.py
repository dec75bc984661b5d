"""The model behind `skyray plan --profile`: cores for several kinds, from where the time of a message was seen to go.

A profile (`python -m benchmarks.workloads.profile`) has microseconds of a message by part, of all subscriptions on one
query task. A plan gives each part to the component that does it. What kinds match divides among query tasks by their
subscriptions; each message is unpacked by all of them. What a kind does for a message whatever its subscriptions are is
not apart in a profile, so that plans of many query tasks err to the side of fewer cores.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gateway.load.planning import MOST_BUSY, limits_of
from matching.errors import ConfigError

#: Parts of a profile that are a component's; those that name a kind are below.
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
#: What no task does: calls between tasks, and threads that compress and write.
_NO_TASK = ("framework", "files")


class ProfiledLoad(NamedTuple):
    """Input of a plan: messages a second, machines, cores of each."""

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


def plan_of_profile(load: ProfiledLoad, profile: Mapping[str, Any], query_bolts: int | None = None) -> dict[str, Any]:
    """What a load needs, JSON-ready.

    Parameters
    ----------
    load : ProfiledLoad
    profile : mapping
        As `read_profile` gives it.
    query_bolts : int, optional
        Else the fewest that are no busier than `MOST_BUSY`, at most the cores there are.

    Returns
    -------
    dict
        `fits`; `query_bolts`; `us_per_message` by component; `busy` (share of a task, by component); `bound_by`;
        `cores` (busy ones), `cores_needed` (with which they are busy for `MOST_BUSY` of the time), `cores_per_node`;
        `memory_bytes`, as of the one process that was profiled.

    Raises
    ------
    ConfigError
        For numbers that are not positive, and as `microseconds`.
    """
    if not all(value > 0 for value in (*load, query_bolts or 1)):
        raise ConfigError("--rate, --nodes, --cores and --query-bolts: give positive numbers")
    us = microseconds(profile["parts_us"])
    query, unpacking, available = us.pop("query", 0.0), us.pop("unpacking", 0.0), load.nodes * load.cores
    a_second = load.rate * 1e-6
    # with the last candidate, if no number of tasks is enough
    candidates = (query_bolts,) if query_bolts else range(1, available + 1)
    tasks = next((n for n in candidates if a_second * (unpacking + query / n) <= MOST_BUSY), candidates[-1])
    each = {**us, "query": unpacking + query / tasks}
    busy = {name: a_second * spent for name, spent in each.items() if name not in _NO_TASK}
    cores = a_second * (sum(us.values()) + query + unpacking * tasks)
    return {
        **limits_of(load.rate, busy, cores, available),
        "query_bolts": tasks,
        "us_per_message": each,
        "busy": busy,
        "cores": cores,
        "cores_needed": cores / MOST_BUSY,
        "cores_per_node": cores / load.nodes,
        "memory_bytes": profile["memory_bytes"],
        "subscriptions": profile["subscriptions"],
        "load": load._asdict(),
    }
