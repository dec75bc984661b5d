"""Parts of a saved state: arrays of several owners in one mapping, each under `OWNER:ARRAY`."""

from collections.abc import Mapping

import numpy as np


def named(owner: str, part: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of an owner, named as in the state of several owners. O(arrays)."""
    return {f"{owner}:{name}": values for name, values in part.items()}


def part_of(state: Mapping[str, np.ndarray], owner: str) -> dict[str, np.ndarray]:
    """The arrays of an owner under their own names. O(arrays)."""
    prefix = f"{owner}:"
    return {path.removeprefix(prefix): values for path, values in state.items() if path.startswith(prefix)}
