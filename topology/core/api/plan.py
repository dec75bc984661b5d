"""The plan of a topology: components, tasks and edges, checked and frozen.

A plan is made by `topology.core.api.builder.TopologyBuilder`, is the same for every executor
(`topology.core.executors.local`, `topology.core.executors.ray`), and can be shown to people before anything runs. Every
task has an *address*, its position in `Plan.tasks`; executors number tasks by it.
"""

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

SPOUT = "spout"
BOLT = "bolt"


class TaskId(NamedTuple):
    """One task of one component; written `query:3`."""

    component: str
    task: int

    def __str__(self) -> str:
        return f"{self.component}:{self.task}"


@dataclass(frozen=True)
class PlannedComponent:
    """One spout or bolt of a plan.

    `template` is the unprepared object, pickled; every task unpickles its own copy where it runs. `class_name` is
    the dotted name of its class, for people. `patient`: see `topology.core.api.component.Spout`.
    """

    name: str
    kind: str
    tasks: int
    template: bytes
    class_name: str
    clock: bool = False
    patient: bool = False

    @property
    def is_spout(self) -> bool:
        """Whether it is a source."""
        return self.kind == SPOUT


@dataclass(frozen=True)
class Edge:
    """A stream from one component to another. Feedback edges carry no end and no credit, and may close a cycle."""

    source: str
    stream: str
    target: str
    grouping: str
    feedback: bool = False


@dataclass(frozen=True)
class Plan:
    """A checked topology.

    Attributes
    ----------
    components : tuple of PlannedComponent
        Spouts first, then bolts, each as they were declared.
    edges : tuple of Edge
        As declared; the position of an edge is its number in every parcel.
    acknowledged_by : tuple of str
        The components whose tasks acknowledge a batch: all of them must.
    credits : int
        How many batches may be published and not yet acknowledged.
    warm_up : callable or None
        Called without arguments once on each node (or once in this process) before anything opens. It may be a
        generator of its progress: tuples in ascending order. A method `is_done` may say that this machine needs none.
    """

    name: str
    components: tuple[PlannedComponent, ...]
    edges: tuple[Edge, ...]
    acknowledged_by: tuple[str, ...]
    credits: int
    warm_up: Callable[[], Any] | None = None

    @cached_property
    def tasks(self) -> tuple[TaskId, ...]:
        """Every task; the position is its address."""
        return tuple(TaskId(part.name, task) for part in self.components for task in range(part.tasks))

    @cached_property
    def clock(self) -> PlannedComponent:
        """The spout that cuts the stream into batches."""
        return next(part for part in self.components if part.clock)

    @cached_property
    def clock_address(self) -> int:
        """Address of the clock spout's task."""
        return self.addresses_of(self.clock.name)[0]

    @cached_property
    def acknowledging(self) -> tuple[int, ...]:
        """Addresses of all tasks that must acknowledge a batch."""
        return tuple(address for name in self.acknowledged_by for address in self.addresses_of(name))

    @cached_property
    def followers(self) -> tuple[int, ...]:
        """Addresses of the spouts that follow the clock."""
        followers = {part.name for part in self.components if part.is_spout and not part.clock}
        return self._addresses_in(followers)

    def component(self, name: str) -> PlannedComponent:
        """The component of that name; KeyError if there is none."""
        for part in self.components:
            if part.name == name:
                return part
        raise KeyError(name)

    def addresses_of(self, name: str) -> tuple[int, ...]:
        """Addresses of all tasks of a component, in order of task."""
        return self._addresses_in({name})

    def _addresses_in(self, names: Collection[str]) -> tuple[int, ...]:
        return tuple(address for address, task in enumerate(self.tasks) if task.component in names)

    def end_targets(self, name: str) -> tuple[int, ...]:
        """Addresses to which each task of a component sends its end, ascending."""
        targets = {edge.target for edge in self.edges if edge.source == name and not edge.feedback}
        own = self._addresses_in(targets)
        return tuple(sorted({*own, *self.followers})) if self.component(name).clock else own

    def end_sources(self, name: str) -> tuple[int, ...]:
        """Addresses whose end each task of a component awaits, ascending; empty for feedback-only bolts."""
        part = self.component(name)
        sources = {edge.source for edge in self.edges if edge.target == name and not edge.feedback}
        if part.is_spout and not part.clock:
            sources = {self.clock.name}
        return self._addresses_in(sources)

    @cached_property
    def saved_addresses(self) -> tuple[int, ...]:
        """Addresses of tasks that checkpoints are made of: all but those with feedback inputs only."""
        return tuple(
            address
            for address, task in enumerate(self.tasks)
            if self.component(task.component).clock or self.end_sources(task.component)
        )

    def describe(self) -> dict[str, Any]:
        """The plan as JSON-ready values."""
        return {
            "name": self.name,
            "credits": self.credits,
            "acknowledged_by": list(self.acknowledged_by),
            "components": [
                {
                    "name": part.name,
                    "kind": part.kind,
                    "class": part.class_name,
                    "tasks": part.tasks,
                    "clock": part.clock,
                }
                for part in self.components
            ],
            "edges": [asdict(edge) for edge in self.edges],
        }

    def render(self) -> str:
        """The plan as text for a terminal: each component with the edges that leave it, feedback marked `~~>`."""
        roles = {part.name: _role(part) for part in self.components}
        wide = max(map(len, roles))
        stream_wide = max((len(edge.stream) for edge in self.edges), default=0)
        lines = [f"{self.name}: {len(self.tasks)} tasks, at most {self.credits} batches in flight,"]
        lines[0] += f" acknowledged by {' and '.join(self.acknowledged_by)}"
        for part in self.components:
            lines += ["", f"{part.name:<{wide}}  {roles[part.name]}  {part.class_name}"]
            for edge in self.edges:
                if edge.source == part.name:
                    arrow = "~~>" if edge.feedback else "-->"
                    note = f"{edge.grouping}, feedback" if edge.feedback else edge.grouping
                    lines.append(f"    {edge.stream:<{stream_wide}} {arrow} {edge.target:<{wide}}  {note}")
        return "\n".join(lines)


def _role(part: PlannedComponent) -> str:
    """`spout, clock` / `spout` / `bolt x 4`, padded to one width."""
    role = f"{part.kind}, clock" if part.clock else part.kind
    return f"{role} x {part.tasks}".ljust(18)
