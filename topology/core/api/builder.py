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
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from typing import Any

from matching.errors import TopologyError
from topology.core.api.component import Bolt, Spout
from topology.core.api.grouping import GROUPINGS
from topology.core.api.plan import BOLT, SPOUT, Edge, Plan, PlannedComponent

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


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
        faults = [*self._component_faults(), *self._edge_faults()]
        if not faults:  # the shape of the graph can only be judged once every name is known
            faults = self._shape_faults()
        faults += self._credit_faults(credits)
        templates: dict[str, bytes] = {}
        for declared in self._declared:
            if isinstance(declared.component, (Spout, Bolt)):
                try:
                    templates[declared.name] = _pickled(declared)
                except TopologyError as fault:
                    faults.append(str(fault))
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
        return Plan(self._name, components, tuple(self._edges), tuple(self._acknowledging), int(credits), self._warm_up)

    def _component_faults(self) -> list[str]:
        faults = []
        seen: set[str] = set()
        for part in self._declared:
            if not isinstance(part.name, str) or not _NAME.fullmatch(part.name):
                faults.append(f"component name {part.name!r}: use a letter, then letters, digits, - and _")
            if part.name in seen:
                faults.append(f"component {part.name!r} is declared twice: give each its own name, or raise tasks=")
            seen.add(part.name)
            wanted = Spout if part.kind == SPOUT else Bolt
            if not isinstance(part.component, wanted):
                got = part.component
                what = f"the class {got.__name__}" if isinstance(got, type) else f"a {type(got).__name__}"
                faults.append(
                    f"{part.kind} {part.name!r} is {what}: pass an instance of a subclass of "
                    f"topology.core.api.component.{wanted.__name__}"
                )
            if not isinstance(part.tasks, int) or part.tasks < 1:
                faults.append(f"bolt {part.name!r} has tasks={part.tasks!r}: use a whole number of at least 1")
        clocks = [part.name for part in self._declared if part.clock]
        spouts = [part.name for part in self._declared if part.kind == SPOUT]
        if not clocks:
            which = f"one of {', '.join(map(repr, spouts))}" if spouts else "a spout"
            faults.append(f"no spout is the clock: declare {which} with clock=True")
        if len(clocks) > 1:
            faults.append(f"spouts {', '.join(map(repr, clocks))} are all the clock: keep clock=True on one only")
        return faults

    def _edge_faults(self) -> list[str]:
        faults = []
        kinds = {part.name: part.kind for part in self._declared}
        seen: dict[tuple[str, str, str], Edge] = {}
        for edge in self._edges:
            what = f"edge {edge.source!r} -{edge.stream}-> {edge.target!r}"
            for end in (edge.source, edge.target):
                if end not in kinds:
                    faults.append(f"{what}: no component is called {end!r}{_did_you_mean(end, kinds)}")
            if kinds.get(edge.target) == SPOUT:
                faults.append(f"{what}: spout {edge.target!r} takes no input: make it a bolt, or turn the edge round")
            if edge.grouping not in GROUPINGS:
                faults.append(f"{what}: no grouping {edge.grouping!r}{_did_you_mean(edge.grouping, GROUPINGS)}")
            key = (edge.source, edge.stream, edge.target)
            if key in seen:
                faults.append(
                    f"{what} is declared twice ({seen[key].grouping} and {edge.grouping}): keep one, "
                    "or emit on two streams"
                )
            seen[key] = edge
        return faults

    def _shape_faults(self) -> list[str]:
        faults = []
        forward = _successors(edge for edge in self._edges if not edge.feedback)
        every = _successors(self._edges)
        try:
            TopologicalSorter(forward).prepare()
        except CycleError as error:
            cycle = " -> ".join(reversed(error.args[1]))  # of predecessors, which the successors are given as
            faults.append(
                f"forward edges form a cycle {cycle}: no end could ever pass; "
                "declare the edge that answers with feedback=True"
            )
        reached = _reachable(every, [part.name for part in self._declared if part.kind == SPOUT])
        fed = {edge.target for edge in self._edges if not edge.feedback}
        for part in self._declared:
            if part.kind == SPOUT and part.name not in every:
                faults.append(
                    f"spout {part.name!r} has no edges, so no task gets what it emits: add .edge({part.name!r}, ...)"
                )
            elif part.kind == BOLT and part.name not in reached:
                faults.append(f"bolt {part.name!r} cannot be reached from any spout: add an edge to it, or drop it")
            elif part.kind == BOLT and part.name not in fed and part.name in forward:
                targets = ", ".join(map(repr, sorted(forward[part.name])))
                faults.append(
                    f"bolt {part.name!r} has feedback inputs only but a forward edge to {targets}, whose end could "
                    "never come: declare that edge with feedback=True, or feed the bolt by a forward edge"
                )
        return faults

    def _credit_faults(self, credits: int) -> list[str]:
        faults = []
        bolts = [part.name for part in self._declared if part.kind == BOLT]
        if not self._acknowledging:
            faults.append("no component acknowledges batches: name the last bolt with .acknowledged_by(BOLT)")
        for name in sorted({name for name in self._acknowledging if self._acknowledging.count(name) > 1}):
            faults.append(f"acknowledged_by names {name!r} {self._acknowledging.count(name)} times: once is enough")
        for name in self._acknowledging:
            if name not in bolts:
                faults.append(f"acknowledged_by({name!r}): no bolt is called that{_did_you_mean(name, bolts)}")
        if not isinstance(credits, int) or credits < 1:
            faults.append(f"credits={credits!r}: use a whole number of at least 1, or no batch can ever leave")
        return faults


def _did_you_mean(name: object, choices: Iterable[str]) -> str:
    known = list(choices)
    close = get_close_matches(str(name), known, n=2, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    return f"; there is {', '.join(map(repr, known))}" if known else "; none is declared"


def _successors(edges: Iterable[Edge]) -> dict[str, set[str]]:
    successors: dict[str, set[str]] = {}
    for edge in edges:
        successors.setdefault(edge.source, set()).add(edge.target)
    return successors


def _reachable(successors: dict[str, set[str]], starts: list[str]) -> set[str]:
    reached, todo = set(starts), list(starts)
    while todo:
        fresh = successors.get(todo.pop(), set()) - reached
        reached |= fresh
        todo += fresh
    return reached


def _pickled(declared: _Declared) -> bytes:
    """The component as bytes, or a TopologyError that names the field that cannot be pickled."""
    try:
        return pickle.dumps(declared.component, protocol=5)
    except Exception as cause:
        where = f"{declared.kind} {declared.name!r} ({type(declared.component).__qualname__})"
        method = "open()" if declared.kind == SPOUT else "prepare()"
        path, value = _unpicklable_field(declared.component)
        if path:
            raise TopologyError(
                f"{where} cannot be pickled because of its field {path!r}, a {type(value).__qualname__}: "
                f"make it in {method}, where the task runs, not in __init__"
            ) from cause
        raise TopologyError(
            f"{where} cannot be pickled ({cause}): its class must be at the top of an importable module"
        ) from cause


def _unpicklable_field(value: Any) -> tuple[str, Any]:
    """Dotted path to the innermost attribute that cannot be pickled, and that attribute; ("", value) if none."""
    fields = getattr(value, "__dict__", None)
    for name, field in (fields or {}).items():
        try:
            pickle.dumps(field, protocol=5)
        except Exception:
            inner, culprit = _unpicklable_field(field)
            return (f"{name}.{inner}" if inner else name), culprit
    return "", value
