"""What may travel on a stream, how it is made safe to share, and how it is packed between processes.

A payload is a NamedTuple of numpy arrays and scalars, or of such NamedTuples. Checking that here, in every executor,
makes a payload that could not travel between processes fail in one process too; handing out read-only views makes a
receiver that writes into its input fail in one process as it would between processes.

Between processes a payload is a few pieces of bytes, packed once for all receivers (`pack`, `unpack`). Ray can carry
the arrays of a payload itself, but takes twice as long over a small payload, and over a large one it goes through
its object store, whose round trips cost a batch of 5,000 messages more than the copies saved. Read on in
`topology.core.task`.
"""

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

#: Every array starts at a multiple of this in the packed bytes: kernels are compiled for aligned arrays only.
_ALIGNMENT = 16
_LENGTH_BYTES = 8
#: By how far a part goes beyond the last such multiple.
_PADDING = [memoryview(bytes(-length % _ALIGNMENT)) for length in range(_ALIGNMENT)]

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
    try:
        sealed = _seal(payload, views)
    except _UnfitError as unfit:
        raise TypeError(f"{'.'.join(['payload', *reversed(unfit.path)])} is {unfit.what}") from None
    return sealed, sum(view.nbytes for view in views.values())


class _UnfitError(Exception):
    """Something that cannot travel; the fields that lead to it are added on the way up, innermost first."""

    def __init__(self, what: str):
        super().__init__(what)
        self.what, self.path = what, list[str]()


def _seal(value: Any, views: dict[int, np.ndarray]) -> Any:
    # a small batch spends a tenth of its time here, so names of fields are looked up for those that need them alone
    if isinstance(value, np.ndarray):
        view = views.get(id(value))
        if view is None:
            if value.dtype.hasobject:
                raise _UnfitError("an array of Python objects: use a number or byte dtype")
            view = value
            if value.flags.writeable:
                view = value.view()
                view.setflags(write=False)
            views[id(value)] = view
        return view
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, tuple):
        fields = []
        try:
            for field in value:
                fields.append(_seal(field, views))
        except _UnfitError as unfit:
            names = getattr(type(value), "_fields", None) or range(tuple.__len__(value))
            unfit.path.append(str(names[len(fields)]))
            raise
        # not _make(): that counts by len(), which a table type may define as its number of rows
        return tuple.__new__(type(value), fields)
    name = type(value).__qualname__
    raise _UnfitError(f"a {name}: a payload is a NamedTuple of numpy arrays and scalars, or of such")


def pack(payload: Any, piece_bytes: int) -> list[bytes]:
    """The bytes of a sealed payload, in pieces of at most `piece_bytes`. One copy of every distinct array.

    First how many parts follow and the length of each (int64), then the parts, each aligned: a pickle that leaves the
    arrays out, and the arrays.
    """
    arrays: list[pickle.PickleBuffer] = []
    head = pickle.dumps(payload, protocol=5, buffer_callback=arrays.append)
    buffers = [array.raw() for array in arrays]
    lengths = np.array([len(head), *(buffer.nbytes for buffer in buffers)], np.int64)
    prefix = np.array([lengths.shape[0]], np.int64).tobytes() + lengths.tobytes()
    parts: list[memoryview] = []
    for part in (memoryview(prefix), memoryview(head), *buffers):
        parts += (part, _PADDING[part.nbytes % _ALIGNMENT])
    if sum(part.nbytes for part in parts) <= piece_bytes:
        return [b"".join(parts)]
    pieces: list[bytes] = []
    piece: list[memoryview] = []
    room = piece_bytes
    for part in parts:
        while part.nbytes:
            piece.append(part[:room])
            room -= piece[-1].nbytes
            part = part[piece[-1].nbytes :]
            if not room:
                pieces.append(b"".join(piece))
                piece, room = [], piece_bytes
    if piece:
        pieces.append(b"".join(piece))
    return pieces


def unpack(pieces: Sequence[Any]) -> Any:
    """The payload that `pack` made the pieces (bytes, or arrays of them) of; its arrays are read-only.

    One copy, none if there is one piece.
    """
    # an array with gaps (a column of a table, say) travels inside the head and comes out writeable: hence `seal`
    data = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces)).toreadonly()
    count = int.from_bytes(data[:_LENGTH_BYTES], "little")
    lengths = np.frombuffer(data, np.int64, count, _LENGTH_BYTES).tolist()
    position = _LENGTH_BYTES * (1 + count)
    parts = []
    for length in lengths:
        position += -position % _ALIGNMENT
        parts.append(data[position : position + length])
        position += length
    payload = pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301 - made by `pack` in a task of the same run
    return seal(payload)[0]


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
