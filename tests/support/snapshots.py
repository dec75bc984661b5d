"""The arrays of a component's snapshot."""

from collections.abc import Mapping

import numpy as np

from topology.core.api.component import Component, Piece


def arrays_of(pieces: Mapping[str, Piece]) -> dict[str, np.ndarray]:
    """The arrays of all pieces, by name."""
    return {name: values for piece in pieces.values() for name, values in piece.arrays().items()}


def saved_by(component: Component) -> dict[str, np.ndarray]:
    """What a checkpoint would have of a task."""
    return arrays_of(component.snapshot({}))
