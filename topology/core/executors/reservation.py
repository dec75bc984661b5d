"""Reserves the CPUs and memory of a run on Ray: one placement group, so that a start gets all of them or waits.

A placement group belongs to the driver that makes it: Ray removes the group when that process ends or dies. Ray counts
reserved resources and does not enforce them; an autoscaler adds nodes for a group that waits.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from matching.errors import ConfigError, TopologyError
from topology.core.api.plan import Plan
from topology.core.api.resources import CPU, MEMORY, Needs, bundles_of, exceeds, shortfall
from topology.core.executors.logs import driver_log
from topology.core.tasks.worker import Placement

#: Seconds between two checks whether Ray has placed the group.
_LOOK_S = 0.25
#: Seconds after which a start that still waits is reported: a busy machine needs less where enough is free.
_PROMPT_S = 1.0


class Reservation:
    """What the workers of a run reserve.

    Parameters
    ----------
    may_grow : bool
        Whether nodes may join the cluster while the start waits. If not, a reservation that exceeds the cluster fails
        at once.
    on_wait : callable
        Called once, with a line that says what the start waits for.
    """

    def __init__(self, plan: Plan, placement: Placement, needs: Needs, may_grow: bool, on_wait: Callable[[str], None]):
        self._needs = needs
        self._may_grow = may_grow
        self._on_wait = on_wait
        self._bundles = bundles_of(plan, placement, needs)
        reserving = [worker for worker, bundle in enumerate(self._bundles) if bundle]
        self._place_of = {worker: place for place, worker in enumerate(reserving)}
        self._group: PlacementGroup | None = None

    def take(self, look: Callable[[], None]) -> None:
        """Reserve the resources of all workers, and wait until Ray has placed them; calls `look` meanwhile.

        Raises
        ------
        ConfigError
            If the cluster is too small and no node can join.
        TopologyError
            If Ray has not placed them after `Needs.wait_s`.
        """
        wanted = [self._bundles[worker] for worker in self._place_of]
        if not wanted:
            return
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not self._may_grow and exceeds(wanted, nodes):
            raise ConfigError(f"the run reserves {shortfall(wanted, nodes, _free())}; lower {self._needs.lower}")
        self._group = placement_group(wanted, strategy="SPREAD")
        began_s = time.monotonic()
        said = ""
        while not self._group.wait(min(_LOOK_S, self._needs.wait_s)):
            look()
            waited_s = time.monotonic() - began_s
            if waited_s < min(_PROMPT_S, self._needs.wait_s):
                continue
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            why = shortfall(wanted, nodes, _free())
            if not said:
                said = f"{why}; add nodes, or lower {self._needs.lower}"
                driver_log().warning("waiting_for_resources", wanted=said, at_most_s=self._needs.wait_s)
                self._on_wait(said)
            if waited_s >= self._needs.wait_s:
                raise TopologyError(
                    f"waited {self._needs.wait_s:g} s for {why}; add nodes, lower {self._needs.lower}, or raise "
                    "reservations.reserve_wait"
                )

    def options(self, worker: int) -> dict[str, Any]:
        """Ray options of a worker's actor; without a scheduling strategy for a worker that reserves nothing."""
        place = self._place_of.get(worker)
        if place is None or self._group is None:
            return {"num_cpus": 0}
        bundle = self._bundles[worker]
        where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place)
        options = {"num_cpus": bundle.get(CPU, 0), "scheduling_strategy": where}
        return options | ({"memory": bundle[MEMORY]} if MEMORY in bundle else {})

    def release(self) -> None:
        """Remove the placement group; workers must have ended."""
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None


def _free() -> Mapping[str, float]:
    """Free resources of all nodes together, by Ray's names; those of placement groups are not free."""
    return ray.available_resources()
