"""The edges that leave a task: which tasks get what it emits."""

from typing import NamedTuple

from matching.errors import TopologyError
from topology.core.api.grouping import ALL, DIRECT, FIELDS, Chooser
from topology.core.api.plan import Plan, TaskId


class _Route(NamedTuple):
    """One edge as its sending task sees it."""

    edge: int
    feedback: bool
    target: str
    addresses: tuple[int, ...]
    chooser: Chooser


class OutputRouter:
    """Every edge that leaves one task, by stream."""

    def __init__(self, plan: Plan, task: TaskId):
        self._task = task
        self._fixed: dict[tuple[str, int | None], list[tuple[int, int]]] = {}  # receivers that are always the same
        self._routes: dict[str, list[_Route]] = {}
        for number, edge in enumerate(plan.edges):
            if edge.source == task.component:
                addresses = plan.addresses_of(edge.target)
                chooser = Chooser(edge.grouping, len(addresses), task.task)
                route = _Route(number, edge.feedback, edge.target, addresses, chooser)
                self._routes.setdefault(edge.stream, []).append(route)

    def receivers(self, stream: str, to: int | None, key: int | None, ended: bool) -> list[tuple[int, int]] | None:
        """Address and edge of each receiver of a payload, not to be changed; None for a stream without edges.

        Raises
        ------
        TopologyError
            If `to` or `key` does not fit the edges, or the task has ended and the edge is no feedback.
        """
        if not ended and key is None and (fixed := self._fixed.get((stream, to))) is not None:
            return fixed
        routes = self._routes.get(stream)
        if routes is None:
            return None
        receivers: list[tuple[int, int]] = []
        groupings = set()
        for route in routes:
            if ended and not route.feedback:
                raise TopologyError(
                    f"{self._task} emitted on {stream!r} to {route.target!r} after its end was passed on: "
                    "idle() must say False while more may come"
                )
            try:
                chosen = route.chooser.choose(to, key)
            except ValueError as fault:
                raise TopologyError(f"{self._task} emitted on {stream!r} to {route.target!r}: {fault}") from None
            groupings.add(route.chooser.grouping)
            receivers += [(route.addresses[task], route.edge) for task in chosen]
        if (to is not None and DIRECT not in groupings) or (key is not None and FIELDS not in groupings):
            given = "to=" if to is not None and DIRECT not in groupings else "key="
            raise TopologyError(
                f"{self._task} emitted on {stream!r} with {given}, but no edge of that stream uses it: "
                f"it is grouped {', '.join(sorted(groupings))}"
            )
        if groupings <= {ALL, DIRECT}:
            self._fixed[stream, to] = receivers
        return receivers
