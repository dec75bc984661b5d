"""CPUs and memory that the tasks of a plan reserve: given by component, summed over the tasks of a worker.

`topology.placement` makes the `Needs` from the settings; `topology.core.executors.reservation` reserves the bundles on
Ray. The local executor has one process and reserves nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from topology.core.api.plan import Plan

MIB = 1 << 20
#: Ray's names of the resources.
CPU, MEMORY = "CPU", "memory"


class Resources(NamedTuple):
    """Resources that one task reserves; memory in MiB."""

    cpus: float = 0.0
    memory_mib: float = 0.0


@dataclass(frozen=True)
class Needs:
    """Resources that the tasks of a run reserve.

    Attributes
    ----------
    of : mapping of str to Resources
        Resources of one task, by component; tasks of other components reserve nothing.
    wait_s : float
        Seconds that the start may wait for the resources.
    lower : str
        Names the settings that a user can lower to reserve less; for error messages.
    """

    of: Mapping[str, Resources] = field(default_factory=dict)
    wait_s: float = 600.0
    lower: str = "what the tasks reserve"


NO_NEEDS = Needs()


def bundles_of(plan: Plan, placement: Sequence[Sequence[int]], needs: Needs) -> list[dict[str, float]]:
    """One bundle a worker: amounts by Ray's names of resources, memory in bytes; {} for one that reserves nothing."""
    bundles = []
    for addresses in placement:
        tasks = [needs.of.get(plan.tasks[address].component, Resources()) for address in addresses]
        cpus, memory = sum(task.cpus for task in tasks), sum(task.memory_mib for task in tasks)
        # Ray takes four decimals, and whole bytes
        sums = {CPU: round(cpus, 4), MEMORY: float(round(memory * MIB))}
        bundles.append({name: amount for name, amount in sums.items() if amount})
    return bundles


def shortfall(
    bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, float]], free: Mapping[str, float]
) -> str:
    """The resources that a start waits for, and why it has to wait, as one line for people.

    Parameters
    ----------
    bundles : sequence of mapping
        Of `bundles_of`.
    nodes : sequence of mapping
        Resources of each node, free or not.
    free : mapping
        Free resources of all nodes together.
    """
    names = [name for name in (CPU, MEMORY) if any(name in bundle for bundle in bundles)]
    wanted = {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in names}
    parts = []
    for name in names:
        there, largest = (reduce(node.get(name, 0.0) for node in nodes) if nodes else 0.0 for reduce in (sum, max))
        widest = max(bundle.get(name, 0.0) for bundle in bundles)
        if widest > largest:
            parts.append(f"one process wants {amount(name, widest)}, and no node has more than {amount(name, largest)}")
        elif wanted[name] > free.get(name, 0.0):
            parts.append(f"{amount(name, there)} are there, {amount(name, free.get(name, 0.0))} free")
    why = "; ".join(parts) or "what is free is in pieces that are too small"
    return f"{' and '.join(amount(name, wanted[name]) for name in names)}: {why}"


def exceeds(bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, float]]) -> bool:
    """Whether the bundles do not fit even on idle nodes: their sum is too large, or one is for the largest node."""
    for name in (CPU, MEMORY):
        amounts, sizes = [bundle.get(name, 0.0) for bundle in bundles], [node.get(name, 0.0) for node in nodes]
        if sum(amounts) > sum(sizes) or max(amounts, default=0.0) > max(sizes, default=0.0):
            return True
    return False


def amount(name: str, value: float) -> str:
    """An amount of a resource, for people."""
    if name == MEMORY:
        return f"{value / MIB:,.0f} MiB of memory"
    return f"{value:g} CPU{'' if value == 1 else 's'}"
