"""The byte format of named arrays that outlive a run or come from outside it: state files, control messages, sockets.

What one task of a run sends another is packed more tersely (`topology.core.payload`).

A frame is a fixed prefix, a msgpack header, and the raw bytes of each array, every one starting at a multiple of
64 bytes:

    offset  bytes  what
    0       8      magic, b"SKYFRAME"
    8       4      format version, little-endian unsigned
    12      4      size of the msgpack header in bytes
    16      8      size of the whole frame in bytes
    24      8      xxh3-64 of all other bytes of the frame
    32      ...    msgpack: [user header, [[array name, dtype, shape, offset, bytes], ...]]
    ...     ...    zero bytes up to the next multiple of 64, then the arrays, the same between them

There is exactly one way to write given arrays, and a reader accepts nothing else: offsets must be the ones the
writer would have chosen, padding must be zero. So arrays cannot overlap or leave the frame, and nothing is ever
allocated by a size that a damaged frame claims. Nothing is pickled: a frame from an
untrusted source is only data.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import msgpack
import numpy as np
import xxhash

from matching.errors import CheckpointError

MAGIC = b"SKYFRAME"
VERSION = 1
ALIGNMENT = 64
#: Headers are a few names and numbers; data belongs in arrays.
MAX_HEADER_BYTES = 1 << 24
#: msgpack allocates a list by the length it claims, at every level of nesting: this bounds what that can cost.
MAX_LIST_ITEMS = 1 << 14
MAX_DIMENSIONS = 8

_PREFIX = struct.Struct("<8sIIQQ")
_HASHED_PREFIX_BYTES = 24
_DTYPES = {
    name: np.dtype(name) for name in ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8")
}
Buffer = bytes | bytearray | memoryview


def encode(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Write a header and named arrays as one frame.

    Parameters
    ----------
    header : dict
        JSON-like: string keys; None, bool, int of 64 bits, float, str, bytes, lists and dicts of such.
    arrays : dict of str to ndarray
        bool, integers of 8 to 64 bits, float32 or float64, little-endian, any shape up to 8 dimensions. Those that
        are not C-contiguous are copied.

    Raises
    ------
    CheckpointError
        For a header or an array that the format cannot hold; names it.

    Notes
    -----
    One copy of every array. The same input gives the same bytes.
    """
    return b"".join(encode_parts(header, arrays))


def checksum_of(frame: Buffer) -> int:
    """The checksum in a frame's prefix; `decode` verifies it."""
    return _PREFIX.unpack_from(memoryview(frame))[4] if len(frame) >= _PREFIX.size else 0


def decode(buffer: Buffer, origin: str = "frame") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read a frame: its header, and its arrays as read-only views of `buffer`.

    Parameters
    ----------
    buffer : bytes-like
        Exactly one frame, from its first byte to its last. It must not be changed while the arrays are in use.
    origin : str
        What error messages call the frame, e.g. the path of its file.

    Raises
    ------
    CheckpointError
        For anything that `encode` does not write: damaged, cut off, with something after its end, of another
        version, with other types of array. Never another exception.

    Notes
    -----
    O(size) for the checksum; no copy unless the buffer starts at an address that is no multiple of 8.
    """
    view = memoryview(buffer).cast("B")
    if len(view) < _PREFIX.size:
        raise _damaged(origin, f"has {len(view)} bytes, fewer than the prefix of a frame")
    magic, version, header_bytes, total_bytes, checksum = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise _damaged(origin, "does not start like a frame")
    if version != VERSION:
        raise CheckpointError(
            f"{origin}: frame format {version}, this release reads format {VERSION}; "
            "read it with the release that wrote it, or start without it"
        )
    if total_bytes != len(view):
        raise _damaged(origin, f"has {len(view)} bytes and claims {total_bytes}")
    if _PREFIX.size + header_bytes > len(view) or header_bytes > MAX_HEADER_BYTES:
        raise _damaged(origin, f"claims a header of {header_bytes} bytes")
    if _checksum([view[:_HASHED_PREFIX_BYTES], view[_PREFIX.size :]]) != checksum:
        raise _damaged(origin, "has a wrong checksum")
    data = np.frombuffer(view, np.uint8)
    if data.ctypes.data % 8:  # numpy would read such views one byte at a time, and kernels refuse them
        data = data.copy()
    data.flags.writeable = False
    header, table = _unpack_header(view[_PREFIX.size : _PREFIX.size + header_bytes], origin)
    end = _PREFIX.size + header_bytes
    arrays: dict[str, np.ndarray] = {}
    for row in table:
        name, dtype, shape, start, size_bytes = _check_row(row, origin)
        if name in arrays:
            raise _damaged(origin, f"has two arrays {name!r}")
        if start != _aligned(end) or start + size_bytes > total_bytes or data[end:start].any():
            raise _damaged(origin, f"has array {name!r} at a wrong place")
        end = start + size_bytes
        arrays[name] = _view(data[start:end], dtype, shape, name, origin)
    if end != total_bytes:
        raise _damaged(origin, f"has {total_bytes - end} bytes after its last array")
    return header, arrays


def encode_parts(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[Buffer]:
    """As `encode`, but in pieces that share the memory of the arrays, which must not change while pieces are in use."""
    columns = {name: _storable(name, array) for name, array in arrays.items()}
    # Offsets depend on the size of the header, which has the offsets: sizes of msgpack integers vary, so the
    # header is written again until it keeps its size. Offsets only grow with it, so this ends.
    header_bytes = 0
    while True:
        table, end = [], _PREFIX.size + header_bytes
        for name, array in columns.items():
            start = _aligned(end)
            table.append([name, array.dtype.str, list(array.shape), start, array.nbytes])
            end = start + array.nbytes
        packed = _pack_header(dict(header), table)
        if len(packed) == header_bytes:
            break
        header_bytes = len(packed)
    parts: list[Buffer] = [packed]
    position = _PREFIX.size + len(packed)
    for (_, _, _, start, size_bytes), array in zip(table, columns.values(), strict=True):
        parts.append(bytes(start - position))
        parts.append(array.reshape(-1).view(np.uint8).data)
        position = start + size_bytes
    prefix = _PREFIX.pack(MAGIC, VERSION, len(packed), end, 0)[:_HASHED_PREFIX_BYTES]
    return [prefix, struct.pack("<Q", _checksum([prefix, *parts])), *parts]


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    if not isinstance(name, str):
        raise CheckpointError(f"array name {name!r}: must be a string")
    if not isinstance(array, np.ndarray) or array.dtype.str not in _DTYPES or array.ndim > MAX_DIMENSIONS:
        kind = (
            f"{array.dtype.str} of {array.ndim} dimensions" if isinstance(array, np.ndarray) else type(array).__name__
        )
        raise CheckpointError(
            f"array {name!r} ({kind}): a frame holds numpy arrays of {', '.join(_DTYPES)}, "
            f"up to {MAX_DIMENSIONS} dimensions"
        )
    return np.ascontiguousarray(array).reshape(array.shape)


def _pack_header(header: dict[str, Any], table: list[list[Any]]) -> bytes:
    try:
        packed: Any = msgpack.packb([header, table], use_bin_type=True, strict_types=True)
        _unpack_header(memoryview(packed), "header")  # refuse what `decode` would
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"header cannot be written as msgpack: {error}") from error
    if len(packed) > MAX_HEADER_BYTES:
        raise CheckpointError(f"header of {len(packed)} bytes: at most {MAX_HEADER_BYTES}; put the data into arrays")
    return packed


def _unpack_header(packed: memoryview, origin: str) -> tuple[dict[str, Any], list[Any]]:
    limit = min(len(packed), MAX_LIST_ITEMS)
    try:
        unpacked = msgpack.unpackb(
            packed, raw=False, strict_map_key=True, ext_hook=_refuse_extension, max_array_len=limit, max_map_len=limit
        )
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise _damaged(origin, f"has a header that is no msgpack ({error})") from error
    if not isinstance(unpacked, list) or len(unpacked) != 2:
        raise _damaged(origin, "has a header without its two parts")
    header, table = unpacked
    if not isinstance(header, dict) or not isinstance(table, list) or not all(isinstance(key, str) for key in header):
        raise _damaged(origin, "has a header of the wrong types")
    if not _is_plain(header):  # msgpack reads its own timestamps past `ext_hook`
        raise _damaged(origin, "has a header with an extension type")
    return header, table


def _is_plain(value: Any) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        elif not (item is None or isinstance(item, bool | int | float | str | bytes)):
            return False
    return True


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code}")


def _check_row(row: Any, origin: str) -> tuple[str, np.dtype, tuple[int, ...], int, int]:
    if not isinstance(row, list) or len(row) != 5:
        raise _damaged(origin, "has an array without its five properties")
    name, dtype_name, shape, start, size_bytes = row
    if not isinstance(name, str) or not isinstance(dtype_name, str) or not isinstance(shape, list):
        raise _damaged(origin, "has an array with properties of the wrong types")
    if dtype_name not in _DTYPES:
        raise _damaged(origin, f"has array {name!r} of dtype {dtype_name!r}")
    if len(shape) > MAX_DIMENSIONS or not all(type(size) is int and size >= 0 for size in (start, size_bytes, *shape)):
        raise _damaged(origin, f"has array {name!r} of impossible shape")
    dtype = _DTYPES[dtype_name]
    claimed_bytes = dtype.itemsize
    for size in shape:
        claimed_bytes *= size
    if claimed_bytes != size_bytes:
        raise _damaged(origin, f"has array {name!r} whose shape and size differ")
    return name, dtype, tuple(shape), start, size_bytes


def _view(data: np.ndarray, dtype: np.dtype, shape: tuple[int, ...], name: str, origin: str) -> np.ndarray:
    if dtype == np.bool_ and data.size and data.max() > 1:
        raise _damaged(origin, f"has array {name!r} with a bool that is neither 0 nor 1")
    try:
        # `reshape` refuses the empty array of an absurd other dimension, e.g. (0, 2**62).
        return data.view(dtype).reshape(shape)
    except (ValueError, OverflowError) as error:
        raise _damaged(origin, f"has array {name!r} of impossible shape") from error


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def _checksum(parts: Iterable[Buffer]) -> int:
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    return digest.intdigest()


def _damaged(origin: str, what: str) -> CheckpointError:
    return CheckpointError(f"{origin}: {what}; it is damaged or no frame, use an older one or start without it")
