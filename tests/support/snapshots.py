"""The arrays of a component's snapshot."""

from collections.abc import Mapping

import numpy as np

from topology.core.api.component import Component, Fragment


def arrays_of(fragments: Mapping[str, Fragment]) -> dict[str, np.ndarray]:
    """The arrays of all fragments, by name."""
    return {name: values for fragment in fragments.values() for name, values in fragment.arrays().items()}


def saved_by(component: Component) -> dict[str, np.ndarray]:
    """What a checkpoint would have of a task."""
    return arrays_of(component.snapshot({}))
