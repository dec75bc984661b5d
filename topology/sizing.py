"""Sizes a topology by measured costs: how many tasks there are beside the query bolts, and a whole plan for a load.

`beside` chooses numbers of tasks where settings give none, by what the rows of the kinds say of their work
(`matching.kind_table.Kind.beside`, `python -m benchmarks.scaling`). `size` goes by `gateway.load.measuring`: the
microseconds that a message takes each component, with all subscriptions on one query task. Matching divides among query
tasks by their subscriptions; each message is unpacked by all of them. The cost of a message that does not depend on
subscriptions is not separate, and neither is the cost of a parcel from each query task, so that sizes for many query
tasks err to the side of fewer cores.
"""

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any, NamedTuple

from matching.errors import ConfigError
from matching.kind_table import Kind

#: A task may be busy for this share of the time; beyond it queues make latency long.
MOST_BUSY = 0.7
#: What would help where a component, or all cores, bound the rate.
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


def require_positive(load: Load, query_bolts: int | None) -> None:
    """Raises ConfigError for a number that is not positive."""
    if not all(value > 0 for value in (*load, 1 if query_bolts is None else query_bolts)):
        raise ConfigError("--rate, --nodes, --cores and --query-bolts: give positive numbers")


def size(load: Load, costs: Mapping[str, Any], query_bolts: int | None = None) -> dict[str, Any]:
    """Size the topology of a load, JSON-ready.

    Parameters
    ----------
    costs : mapping
        As `gateway.load.measuring.measure` gives them.
    query_bolts : int, optional
        Else the fewest that are no busier than `MOST_BUSY`, at most the cores there are.

    Returns
    -------
    dict
        `fits`; `bound_by`: the busiest `component` or `cores`, the messages a second that it takes at most
        (`most_per_s`), and the `remedy`; `query_bolts`; `us_per_message` by component; `busy` (share of a task, by
        component); `cores` (busy ones), `cores_needed` (with which they are busy for `MOST_BUSY` of the time),
        `cores_per_node`; `memory_bytes`, as of the one process that was measured.

    Raises
    ------
    ConfigError
        For numbers that are not positive.
    """
    require_positive(load, query_bolts)
    us = dict(costs["us_per_message"])
    query, unpacking, available = us.pop("query"), us.pop("unpacking"), load.nodes * load.cores
    a_second = load.rate * 1e-6
    # with the last candidate, if no number of tasks is enough
    candidates = (query_bolts,) if query_bolts else range(1, available + 1)
    tasks = next((n for n in candidates if a_second * (unpacking + query / n) <= MOST_BUSY), candidates[-1])
    each = {**us, "query": unpacking + query / tasks}
    busy = {name: a_second * spent for name, spent in each.items()}
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
        "memory_bytes": costs["memory_bytes"],
        "subscriptions": costs["subscriptions"],
        "load": load._asdict(),
    }  # fmt: skip
