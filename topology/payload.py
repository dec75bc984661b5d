"""What may travel on a stream, and how it is made safe to share.

A payload is a NamedTuple of numpy arrays and scalars, or of such NamedTuples. Checking that here, in every executor,
makes a payload that could not travel between processes fail in one process too; handing out read-only views makes a
receiver that writes into its input fail in one process as it would between processes. Read on in `topology.task`.
"""

from typing import Any

import numpy as np
import xxhash

_SCALARS = (type(None), bool, int, float, str, bytes, np.generic)


def seal(payload: Any) -> tuple[Any, int]:
    """Check a payload and replace its arrays by read-only views of the same memory.

    Two fields that are the same array stay the same object. O(number of fields), no array is copied.

    Returns
    -------
    sealed : as `payload`
    size_bytes : int
        Bytes of all distinct arrays.

    Raises
    ------
    TypeError
        Naming the first field that is neither array, scalar nor tuple of such.
    """
    views: dict[int, np.ndarray] = {}
    sealed = _seal(payload, "payload", views)
    return sealed, sum(view.nbytes for view in views.values())


def _seal(value: Any, path: str, views: dict[int, np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError(f"{path} is an array of Python objects: use a number or byte dtype")
        view = views.get(id(value))
        if view is None:
            view = value.view()
            view.flags.writeable = False
            views[id(value)] = view
        return view
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, tuple):
        names = getattr(type(value), "_fields", None) or range(tuple.__len__(value))
        fields = [_seal(field, f"{path}.{name}", views) for name, field in zip(names, value, strict=True)]
        # not _make(): that counts by len(), which a table type may define as its number of rows
        return tuple.__new__(type(value), fields)
    raise TypeError(
        f"{path} is a {type(value).__qualname__}: a payload is a NamedTuple of numpy arrays and scalars, or of such"
    )


def fingerprint(payload: Any) -> int:
    """Hash of every byte of a payload's arrays, to notice that one was written to after it was sent."""
    digest = xxhash.xxh3_64()
    _digest(payload, digest)
    return digest.intdigest()


def _digest(value: Any, digest: xxhash.xxh3_64) -> None:
    if isinstance(value, np.ndarray):
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, tuple):
        for field in value:
            _digest(field, digest)
