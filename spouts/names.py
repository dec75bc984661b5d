"""Parts and joins of columns of external ids."""

import numpy as np

from matching.model import Int64, Names, take_ragged


def take_names(names: Names, rows: Int64) -> Names:
    """Some of the names. O(their bytes)."""
    offsets, picked = take_ragged(names.offsets, rows)
    return Names(offsets, names.data[picked])


def cut_names(names: Names, first: int, last: int) -> Names:
    """Names `first` to `last` (exclusive); the bytes are a view. O(last - first)."""
    offsets = names.offsets[first : last + 1]
    return Names(offsets - offsets[0], names.data[offsets[0] : offsets[-1]])


def join_names(parts: list[Names]) -> Names:
    """All names of all parts, in order. O(total bytes)."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0] + [part.offsets[-1] for part in parts[:-1]])
    offsets = [part.offsets[1:] + start for part, start in zip(parts, starts, strict=True)]
    return Names(
        np.concatenate([np.zeros(1, np.int64), *offsets]),
        np.concatenate([part.data[: part.offsets[-1]] for part in parts]),
    )
