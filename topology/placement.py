"""Placement of a run's components on Ray processes (`topology.core.tasks.worker`), and the resources they reserve."""

import os

from topology.core.api.plan import Plan
from topology.core.api.resources import Needs, Resources
from topology.settings import RunConfig

#: Components that are light beside the query bolts: one process can run all of them.
LIGHT = ("messages", "subscriptions", "distribution", "tuples", "aggregation", "delivery")

#: First word of the settings of what a component reserves -> the components.
RESERVING = {
    "query": ("query",),
    "tuple": ("tuples",),
    "distribution": ("distribution",),
    "aggregation": ("aggregation",),
    "delivery": ("delivery",),
    "spout": ("messages", "subscriptions"),
}


def needs_of(config: RunConfig) -> Needs:
    """What the tasks of a run reserve on Ray."""
    of, lower = {}, []
    for word, names in RESERVING.items():
        resources = Resources(getattr(config, f"{word}_cpus"), getattr(config, f"{word}_memory_mib"))
        of |= dict.fromkeys(names, resources) if any(resources) else {}
        lower += [f"reservations.{word}_cpus"] * bool(resources.cpus)
        lower += [f"reservations.{word}_memory_mib"] * bool(resources.memory_mib)
    return Needs(of, config.reserve_wait, " or ".join(lower))


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
