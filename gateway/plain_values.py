"""Values of NumPy and pandas as Python's own, for rows that programs hand over.

Neither library is imported: their values are known by their methods.
"""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

_PLAIN = frozenset((str, int, bool, type(None)))
#: Marks of a missing value: of pandas, and of NumPy's masked arrays, where `item` would give 0.
_MISSING = frozenset(("NaTType", "NAType", "MaskedConstant"))
#: NumPy's moments of more digits than Python's.
_FINER = frozenset(f"datetime64[{unit}]" for unit in ("ns", "ps", "fs", "as"))


def plain_value(value: Any, depth: float = math.inf) -> Any:
    """A value as Python's own, within lists and mappings too; any other value as it is.

    None for a missing value: NaT, NA, NaN, and a masked one. Moments have microseconds. Raises RecursionError if lists
    and mappings are nested more than `depth` deep.
    """
    if type(value) in _PLAIN or isinstance(value, type):
        return value
    if type(value).__name__ in _MISSING:
        return None
    if isinstance(value, Mapping | list | tuple) or getattr(value, "shape", ()):
        if depth == 0:
            raise RecursionError
        if isinstance(value, Mapping):
            return {name: plain_value(part, depth - 1) for name, part in value.items()}
        return [plain_value(part, depth - 1) for part in value]
    if isinstance(value, datetime):
        return value.to_pydatetime(warn=False) if hasattr(value, "to_pydatetime") else value  # type: ignore[attr-defined]
    if hasattr(value, "dtype") and hasattr(value, "item"):
        return _scalar(value)
    return None if isinstance(value, float) and value != value else value


def _scalar(value: Any) -> Any:
    """A scalar of NumPy; a moment that Python does not have as text, which nothing reads as a time."""
    if not str(value.dtype).startswith("datetime64"):
        found = value.item()
        return plain_value(float(found) if hasattr(found, "dtype") else found)  # a long double stays one
    if str(value.dtype) in _FINER:
        value = value.astype("datetime64[us]")
    found = value.item()
    return str(value) if isinstance(found, int) else found


def table_name(value: Any) -> str | None:
    """The type of a table of any library (pandas, polars, Arrow), whose rows are not what it iterates over; or None."""
    tabular = hasattr(value, "__dataframe__") or hasattr(value, "__arrow_c_stream__")
    return type(value).__name__ if tabular else None
