"""The parts of a checkpoint of this topology, by meaning, for components that read the state of others.

No component reads the snapshot of another by its name; who saves what stands here alone.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from bolts.shares import joined
from distribution.router import Router
from matching.kind_table import Kinds
from matching.storage.state import State
from topology.core.api.component import Saved

AnyRouter = TypeVar("AnyRouter", bound=Router)


def subscriptions_of(saved: Saved, kinds: Kinds) -> dict[int, State]:
    """All subscriptions with their thresholds and results, joined, by code of kind. O(total log rows)."""
    return kinds.saved_states(saved.tasks("query"))


def router_of(saved: Saved, router: AnyRouter) -> AnyRouter:
    """The router as it was, or rebalanced by the work of the query tasks; the same on all tasks."""
    restored: Any = router.restored(saved.tasks("distribution"), saved.work.get("query", ()))
    return restored


def placement_of(saved: Saved) -> Mapping[str, np.ndarray]:
    """The router's saved arrays: with a router that places by cost, the task of each subscription."""
    return saved.parts.get("subscriptions", ({},))[0]


def delivered_of(saved: Saved) -> Mapping[str, np.ndarray]:
    """Ids, digest and counts of all delivery tasks, as one task would have saved them."""
    return joined(saved.tasks("delivery"))
