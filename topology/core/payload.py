"""What may travel on a stream, how it is made safe to share, and how it is packed between processes of one run.

A payload is a NamedTuple of numpy arrays and scalars, or of such NamedTuples. Checking that here, in every executor,
makes a payload that could not travel between processes fail in one process too; handing out read-only views makes a
receiver that writes into its input fail in one process as it would between processes.

Between processes a payload is a few pieces of bytes, packed once for all receivers (`pack`, `unpack`). Ray can carry
the arrays of a payload itself, but takes twice as long over a small payload, and over a large one it goes through its
object store, whose round trips cost a batch of 5,000 messages more than the copies saved. Nothing is pickled: bytes
make numbers, text, arrays, and tuples of importable tuple classes, and nothing else. What outlives a run, or comes from
outside, has the checked format of `topology.core.frames`.
"""

import importlib
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgpack
import numpy as np
import xxhash

#: Every array starts at a multiple of this in the packed bytes: kernels are compiled for aligned arrays only.
_ALIGNMENT = 16
_LENGTH_BYTES = 8
#: By how far a part goes beyond the last such multiple.
_PADDING = [bytes(-length % _ALIGNMENT) for length in range(_ALIGNMENT)]

#: Arrays up to this are copied on the way into a piece: quicker than a view.
_COPIED_BYTES = 4_096
#: What a field is that is no tuple, for `_nesting_of`.
_ARRAY, _SCALAR = 0, 1
#: Extension types of msgpack.
_NUMPY_SCALAR, _LONG_INT = 0, 1
#: Parcels nest in a few hundred ways.
_remembered = lru_cache(maxsize=4_096)

_PLAIN_ARRAY, _SCALARS = np.ndarray, frozenset((type(None), bool, int, float, str, bytes))
Table = TypeVar("Table", bound=tuple[Any, ...])


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
        sealed = _seal((payload,), views)[0]
    except _UnfitError as unfit:
        names = ["payload", *reversed(unfit.path[:-1])]
        raise TypeError(f"{'.'.join(names)} is {unfit.what}") from None
    return sealed, sum([view.nbytes for view in views.values()])


def keep(table: Table, name: str) -> Table:
    """Seal a table for good, such as one without rows, which many payloads have: `seal` then takes it for sealed.

    Call it once when a module is loaded: the table is never freed, and must not be written to. Between processes its
    name travels in its place.

    Parameters
    ----------
    name : str
        `MODULE:NAME`, of the module that calls, and different in each call.

    Returns
    -------
    Table
        The sealed table, which `seal` puts in the place of `table`, too.
    """
    views: dict[int, np.ndarray] = {}
    sealed: Any = _seal(table, views)
    distinct = {id(array): array for array in views.values() if array.nbytes}
    _kept_kinds.add(type(table))
    for each in (table, sealed):
        _KEPT[id(each)] = each, sealed, distinct
    _NAMES[id(sealed)], _NAMED[name] = name, sealed
    return sealed


#: What `keep` has sealed: by identity the table, its sealed form, and the distinct arrays of that with any bytes.
_KEPT: dict[int, tuple[tuple[Any, ...], tuple[Any, ...], dict[int, np.ndarray]]] = {}
#: Their names by identity of the sealed form, and the sealed forms by name.
_NAMES: dict[int, str] = {}
_NAMED: dict[str, tuple[Any, ...]] = {}
#: Their classes.
_kept_kinds: set[type] = set()
#: The last large table of arrays that was sealed, with the same; replaced as one, since several threads may seal.
_last: tuple[tuple[Any, ...], dict[int, np.ndarray]] = ((), {})
#: The tuple classes that were met, and whether they have more than `_LARGE` fields.
_tables: dict[type, bool] = {}
_LARGE = 8


class _UnfitError(Exception):
    """A value that cannot travel; the path of fields to it is added on the way up, innermost first."""

    def __init__(self, what: str, value: tuple[Any, ...], place: int):
        super().__init__(what)
        self.what, self.path = what, list[str]()
        self.add(value, place)

    def add(self, value: tuple[Any, ...], place: int) -> None:
        """Say which field of a tuple it is in."""
        names = getattr(type(value), "_fields", None) or range(tuple.__len__(value))
        self.path.append(str(names[place]))


def _seal(value: tuple[Any, ...], views: dict[int, np.ndarray]) -> tuple[Any, ...]:
    """The tuple with its arrays sealed, or itself if all of them are.

    A small batch has some hundred fields, most of them empty columns: all checks
    of a field are in this loop, by exact type first, and a tuple all of whose arrays are read-only stays as it is.
    The messages of a batch go on from task to task: the last such table is known again.
    """
    global _last
    fields: list[Any] | None = None
    for place, field in enumerate(value):
        kind, sealed = type(field), field
        if kind in _SCALARS:
            continue
        if kind is _PLAIN_ARRAY or (kind not in _tables and isinstance(field, np.ndarray)):
            number = id(field)
            if number in views:
                sealed = views[number]
            else:
                if field.dtype.kind in "OV":
                    raise _UnfitError("an array of Python objects or records: use a number dtype", value, place)
                if field.flags.writeable:
                    sealed = field.view()
                    sealed.setflags(write=False)
                views[number] = sealed
        elif kind in _tables or isinstance(field, tuple):
            if kind not in _tables:
                _tables[kind] = tuple.__len__(field) > _LARGE
            if field is (last := _last)[0]:
                views.update(last[1])
            elif kind in _kept_kinds and (kept := _KEPT.get(id(field))) is not None:
                sealed = kept[1]
                views.update(kept[2])
            else:
                try:
                    sealed = _seal(field, views)
                except _UnfitError as unfit:
                    unfit.add(value, place)
                    raise
                if _tables[kind] and set(map(type, sealed)) == {_PLAIN_ARRAY}:
                    _last = sealed, {id(array): array for array in sealed if array.nbytes}
        elif isinstance(field, np.generic):
            continue
        else:
            name = type(field).__qualname__
            what = f"a {name}: a payload is a NamedTuple of numpy arrays and scalars, or of such"
            raise _UnfitError(what, value, place)
        if sealed is not field:
            fields = list(value) if fields is None else fields
            fields[place] = sealed
    # not _make(): that counts by len(), which a table type may define as its number of rows
    return value if fields is None else tuple.__new__(type(value), fields)


def pack(payload: Any, piece_bytes: int) -> list[bytes]:
    """The bytes of a sealed payload, in pieces of at most `piece_bytes`. One copy of every distinct array.

    First the length of the head (int64), then the head, then the arrays, each aligned. The head is msgpack: how tuples
    nest, their scalars, which of the arrays each array field is, and dtypes and shapes. How tuples nest, with the names
    of their classes, is packed once for all payloads that do so alike.
    A long column of one value, as three of five are in the updates of a batch, travels as that value; its shape is the
    negative length.
    """
    packed = _Packed([], [], {}, [])
    nested = _nesting_packed(_nesting_of((payload,), packed))
    dtypes, shapes, parts = [], [], []
    for array in packed.arrays:
        dtypes.append(array.dtype.str)
        if _is_constant(array):
            shapes.append(-array.shape[0])
            array = array[:1]
        else:
            shapes.append(list(array.shape) if array.ndim != 1 else array.shape[0])
        data = array.tobytes() if array.nbytes <= _COPIED_BYTES or not array.flags.c_contiguous else _bytes_of(array)
        parts += (data, _PADDING[array.nbytes % _ALIGNMENT])
    head = _packb([nested, packed.scalars, packed.places, dtypes, shapes])
    begin = len(head) + _LENGTH_BYTES
    parts = [len(head).to_bytes(_LENGTH_BYTES, "little"), head, _PADDING[begin % _ALIGNMENT], *parts]
    if sum(map(len, parts)) <= piece_bytes:
        return [b"".join(parts)]
    pieces: list[bytes] = []
    piece: list[memoryview] = []
    left_bytes = piece_bytes
    for part in map(memoryview, parts):
        while part.nbytes:
            piece.append(part[:left_bytes])
            left_bytes -= piece[-1].nbytes
            part = part[piece[-1].nbytes :]
            if not left_bytes:
                pieces.append(b"".join(piece))
                piece, left_bytes = [], piece_bytes
    if piece:
        pieces.append(b"".join(piece))
    return pieces


def unpack(pieces: Sequence[Any]) -> Any:
    """The payload that `pack` made the pieces (bytes, or arrays of them) of; its arrays are read-only.

    Tuples are made of their fields alone, by no code of their classes. One copy, none if there is one piece.

    Raises
    ------
    TypeError
        If a class is no tuple's.
    """
    data = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces)).toreadonly()
    position = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    nested, scalars, places, dtypes, shapes = _unpackb(data[_LENGTH_BYTES:position])
    arrays = []
    for name, shape in zip(dtypes, shapes, strict=True):
        dtype = _dtype_of(name)
        position += -position % _ALIGNMENT
        if isinstance(shape, int) and shape < 0:
            array = np.full(-shape, np.ndarray(1, dtype, data, position), dtype)
            array.setflags(write=False)
            position += dtype.itemsize
        else:
            array = np.ndarray(shape, dtype, data, position)
            position += array.nbytes
        arrays.append(array)
    return _nested_again(_nesting_unpacked(nested), iter(scalars), iter([arrays[place] for place in places]))[0]


class _Packed(NamedTuple):
    """The values of the fields of a payload, in their order.

    `places` has for each array field which of the distinct `arrays` it is, `number_of` that by the id of an array.
    """

    scalars: list[Any]
    places: list[int]
    number_of: dict[int, int]
    arrays: list[np.ndarray]


def _nesting_of(value: tuple[Any, ...], packed: _Packed) -> tuple[Any, ...]:
    """The class of a tuple, and for each field what it is: `_ARRAY`, `_SCALAR`, a kept table's name, or the same of a
    tuple."""
    nesting: list[Any] = [type(value)]
    for field in value:
        if isinstance(field, np.ndarray):
            number = packed.number_of.setdefault(id(field), len(packed.arrays))
            if number == len(packed.arrays):
                packed.arrays.append(field)
            packed.places.append(number)
            nesting.append(_ARRAY)
        elif isinstance(field, tuple):
            name = _NAMES.get(id(field))
            nesting.append(_nesting_of(field, packed) if name is None else name)
        else:
            packed.scalars.append(field)
            nesting.append(_SCALAR)
    return tuple(nesting)


def _nested_again(nesting: tuple[Any, ...], scalars: Iterator[Any], arrays: Iterator[np.ndarray]) -> tuple[Any, ...]:
    """The tuple with this nesting, the inverse of `_nesting_of`."""
    fields = [
        next(arrays)
        if what == _ARRAY
        else next(scalars)
        if what == _SCALAR
        else _NAMED[what]
        if type(what) is str
        else _nested_again(what, scalars, arrays)
        for what in islice(nesting, 1, None)
    ]
    return tuple.__new__(nesting[0], fields)


@_remembered
def _nesting_packed(nesting: tuple[Any, ...]) -> bytes:
    packed = _packb(_named(nesting))
    _nesting_unpacked(packed)  # refuse here what the receiver would
    return packed


def _named(nesting: tuple[Any, ...]) -> list[Any]:
    """The nesting with module and name of each class in its place."""
    kind, *fields = nesting
    return [kind.__module__, kind.__qualname__, *(_named(what) if type(what) is tuple else what for what in fields)]


@_remembered
def _nesting_unpacked(packed: bytes) -> tuple[Any, ...]:
    return _with_classes(_unpackb(packed))


def _with_classes(named: Sequence[Any]) -> tuple[Any, ...]:
    """The inverse of `_named`. Raises TypeError for a class that is no tuple's, and for a table that is not kept."""
    module, name, *fields = named
    kind = attrgetter(name)(importlib.import_module(module))
    if not (isinstance(kind, type) and issubclass(kind, tuple)):
        raise TypeError(f"{module}.{name}: not a class of tuples")
    for what in fields:
        if isinstance(what, str):
            importlib.import_module(what.partition(":")[0])  # which keeps it
            if what not in _NAMED:
                raise TypeError(f"{what}: no table that is kept")
    return (kind, *(_with_classes(what) if isinstance(what, list) else what for what in fields))


def _extension_of(scalar: Any) -> msgpack.ExtType:
    """A scalar that msgpack does not know: of numpy, or an int of more than 64 bits."""
    if isinstance(scalar, np.generic):
        return msgpack.ExtType(_NUMPY_SCALAR, scalar.dtype.str.encode() + b" " + scalar.tobytes())
    return msgpack.ExtType(_LONG_INT, b"%d" % scalar)


def _scalar_of(code: int, data: bytes) -> Any:
    """The inverse of `_extension_of`."""
    if code == _LONG_INT:
        return int(data)
    dtype, _, value = data.partition(b" ")
    return np.frombuffer(value, dtype.decode())[0]


_packb = msgpack.Packer(default=_extension_of, strict_types=True, unicode_errors="surrogatepass").pack
_unpackb = partial(msgpack.unpackb, ext_hook=_scalar_of, unicode_errors="surrogatepass")


@_remembered
def _dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(name)


def _is_constant(array: np.ndarray) -> bool:
    """Whether a long column has one value, bit for bit. O(1) if its ends differ, else O(bytes)."""
    if (
        array.nbytes <= _COPIED_BYTES
        or array.ndim != 1
        or not array.flags.c_contiguous
        or array.dtype.kind not in "biuf"
    ):
        return False
    bits = array.view(f"u{array.itemsize}")
    # most columns differ at their ends
    return bool(bits[0] == bits[-1]) and bool((bits == bits[0]).all())


def _bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of a contiguous array where they lie, whatever its dtype."""
    return array.reshape(-1).view(np.uint8).data


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
