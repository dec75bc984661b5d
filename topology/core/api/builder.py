"""Declaring a topology: components, edges, who acknowledges; `build` checks it all and returns a plan.

    plan = (
        TopologyBuilder("words")
        .spout("lines", LinesSpout(path), clock=True)
        .bolt("count", CountBolt(), tasks=4)
        .edge("lines", "words", "count", "fields")
        .acknowledged_by("count")
        .build(credits=4)
    )

A wrong topology fails here and not while it runs: one error lists every fault, each with its component and remedy.
"""

import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from matching.errors import TopologyError
from topology.core.api.component import Bolt, Spout
from topology.core.api.grouping import GROUPINGS
from topology.core.api.plan import BOLT, SPOUT, Edge, Plan, PlannedComponent


@dataclass(frozen=True)
class _Declared:
    name: str
    kind: str
    component: Any
    tasks: int
    clock: bool


class TopologyBuilder:
    """Collects the parts of a topology; nothing is checked before `build`. All other methods return the builder."""

    def __init__(self, name: str = "topology"):
        self._name = name
        self._declared: list[_Declared] = []
        self._edges: list[Edge] = []
        self._acknowledging: list[str] = []
        self._warm_up: Callable[[], Any] | None = None

    def spout(self, name: str, spout: Spout, clock: bool = False) -> "TopologyBuilder":
        """Add a source of one task; exactly one of a topology is the clock."""
        self._declared.append(_Declared(name, SPOUT, spout, 1, clock))
        return self

    def bolt(self, name: str, bolt: Bolt, tasks: int = 1) -> "TopologyBuilder":
        """Add a bolt that runs as `tasks` tasks, each with its own copy of `bolt`."""
        self._declared.append(_Declared(name, BOLT, bolt, tasks, False))
        return self

    def edge(self, source: str, stream: str, target: str, grouping: str, feedback: bool = False) -> "TopologyBuilder":
        """Send what `source` emits on `stream` to `target`, by one of `topology.core.api.grouping.GROUPINGS`."""
        self._edges.append(Edge(source, stream, target, grouping, feedback))
        return self

    def acknowledged_by(self, *components: str) -> "TopologyBuilder":
        """Name a bolt whose tasks acknowledge each batch by `Context.acknowledge` (all of them must)."""
        self._acknowledging += components
        return self

    def warmed_by(self, warm_up: Callable[[], Any]) -> "TopologyBuilder":
        """Name a function to call once on every node before anything opens (compiling kernels, say)."""
        self._warm_up = warm_up
        return self

    def build(self, credits: int = 4) -> Plan:
        """Check everything and freeze it.

        Parameters
        ----------
        credits : int
            How many batches may be published and not yet acknowledged.

        Raises
        ------
        TopologyError
            Listing every fault, each with component and remedy.
        """
        faults = self._faults(credits)
        templates: dict[str, bytes] = {}
        for part in self._declared:
            try:
                templates[part.name] = pickle.dumps(part.component, protocol=5)
            except Exception as cause:
                where = "open()" if part.kind == SPOUT else "prepare()"
                faults.append(f"{part.kind} {part.name!r} cannot be pickled ({cause}): make what cannot in {where}")
        if faults:
            lead = f"topology {self._name!r} cannot be built: "
            raise TopologyError(lead + (faults[0] if len(faults) == 1 else "".join(f"\n- {fault}" for fault in faults)))
        ordered = sorted(self._declared, key=lambda declared: declared.kind == BOLT)
        components = tuple(
            PlannedComponent(
                part.name,
                part.kind,
                int(part.tasks),
                templates[part.name],
                f"{type(part.component).__module__}.{type(part.component).__qualname__}",
                part.clock,
                part.clock and part.component.patient,
            )
            for part in ordered
        )
        return Plan(
            self._name,
            components,
            tuple(self._edges),
            tuple(dict.fromkeys(self._acknowledging)),
            int(credits),
            self._warm_up,
        )

    def _faults(self, credits: int) -> list[str]:
        """What could not run, a line each, with its remedy."""
        faults, kinds = [], {part.name: part.kind for part in self._declared}
        for part in self._declared:
            wanted = Spout if part.kind == SPOUT else Bolt
            if not isinstance(part.component, wanted):
                faults.append(
                    f"{part.kind} {part.name!r} is {part.component!r}: pass an instance of a {wanted.__name__}"
                )
            if not isinstance(part.tasks, int) or part.tasks < 1:
                faults.append(f"bolt {part.name!r} has tasks={part.tasks!r}: use a whole number of at least 1")
        for name, times in Counter(part.name for part in self._declared).items():
            if times > 1:
                faults.append(f"component {name!r} is declared twice: give each its own name, or raise tasks=")
        clocks = [part.name for part in self._declared if part.clock]
        if len(clocks) != 1:
            faults.append(f"{len(clocks)} spouts are the clock: declare one spout with clock=True")
        for (source, stream, target), times in Counter(
            (one.source, one.stream, one.target) for one in self._edges
        ).items():
            if times > 1:
                faults.append(
                    f"edge {source!r} -{stream}-> {target!r} is declared twice: keep one, or emit on two streams"
                )
        for edge in self._edges:
            what = f"edge {edge.source!r} -{edge.stream}-> {edge.target!r}"
            if edge.source not in kinds or kinds.get(edge.target) != BOLT:
                faults.append(f"{what}: leads from a component to a bolt; there is {', '.join(map(repr, kinds))}")
            if edge.grouping not in GROUPINGS:
                faults.append(f"{what}: no grouping {edge.grouping!r}; there is {', '.join(GROUPINGS)}")
        forward: dict[str, set[str]] = {}
        for edge in self._edges:
            if not edge.feedback:
                forward.setdefault(edge.target, set()).add(edge.source)
        try:
            TopologicalSorter(forward).prepare()
        except CycleError as error:
            cycle = " -> ".join(error.args[1])
            faults.append(f"forward edges form a cycle {cycle}: declare the edge that answers with feedback=True")
        for part in self._declared:
            if part.kind == BOLT and part.name not in forward and any(part.name in own for own in forward.values()):
                faults.append(
                    f"bolt {part.name!r} has feedback inputs only, so its forward edges never end: feed it by one"
                )
        if not self._acknowledging or any(kinds.get(name) != BOLT for name in self._acknowledging):
            faults.append(
                "no bolt acknowledges batches, or something else does: name bolts with .acknowledged_by(BOLT)"
            )
        if not isinstance(credits, int) or credits < 1:
            faults.append(f"credits={credits!r}: use a whole number of at least 1, or no batch can ever leave")
        return faults
