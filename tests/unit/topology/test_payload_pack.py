"""Packing payloads for the way between processes."""

import pickle
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest

from matching.model import MessageBatch, Names, UpdateBatch, empty
from topology.core.api.component import Tick
from topology.core.payload import keep, pack, seal, unpack


class Mixed(NamedTuple):
    """Everything a payload may hold."""

    number: int
    share: np.float64
    label: str
    nothing: None
    names: Names
    flags: np.ndarray
    table: np.ndarray
    again: np.ndarray


def mixed() -> Mixed:
    table = np.arange(30, dtype=np.float64).reshape(5, 6)
    names = Names.of(["é", "", "three"])
    return Mixed(7, np.float64(0.5), "label", None, names, np.array([True, False, True]), table[:, ::2], table)


@pytest.mark.parametrize("piece_bytes", [1, 16, 100, 1 << 20])
def test_pack_in_pieces_of_any_size_unpacks_to_the_same(piece_bytes):
    before, _ = seal(mixed())
    pieces = pack(before, piece_bytes)
    assert all(len(piece) == piece_bytes for piece in pieces[:-1]) and 0 < len(pieces[-1]) <= piece_bytes
    after = unpack(pieces)
    assert type(after) is Mixed and type(after.names) is Names
    assert (after.number, after.share, after.label, after.nothing) == (7, 0.5, "label", None)
    assert after.names.strings() == ["é", "", "three"]
    for name in ("flags", "table", "again"):
        one, other = getattr(before, name), getattr(after, name)
        assert one.dtype == other.dtype and np.array_equal(one, other)


KEPT = keep(Names.of(["kept"]), f"{__name__}:KEPT")


def test_kept_table_travels_by_its_name_and_one_that_is_not_kept_is_refused():
    before, _ = seal(mixed()._replace(names=KEPT))
    (packed,) = pack(before, 1 << 62)
    after = unpack([packed])
    assert (
        after.names is KEPT and np.array_equal(after.table, before.table) and np.array_equal(after.flags, before.flags)
    )
    assert len(packed) < len(pack(before._replace(names=Names.of(["kept"])), 1 << 62)[0])
    with pytest.raises(TypeError, match="KEP1: no table that is kept"):
        unpack([packed.replace(b":KEPT", b":KEP1")])


class Outer:
    class One(NamedTuple):
        """A scalar, in a class within another."""

        value: Any


@pytest.mark.parametrize(
    "value",
    [None, True, -1, 2**64 - 1, -(2**63), 2**80, -(2**200), 0.1, float("inf"), "", "\ud800", b"\x00", b" "]
    + [np.float32(0.1), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True), np.datetime64("2020-01-01", "us")],
    ids=repr,
)
def test_pack_keeps_value_and_type_of_a_scalar(value):
    after = unpack(pack(seal(Outer.One(value))[0], 10))
    assert type(after) is Outer.One and type(after.value) is type(value) and after.value == value


class Trap:
    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


def test_pack_refuses_a_class_that_its_receiver_could_not_import():
    class Hidden(NamedTuple):
        value: int

    with pytest.raises(AttributeError, match="<locals>"):
        pack(seal(Hidden(1))[0], 10)


def packed_with(head: bytes) -> list[bytes]:
    return [len(head).to_bytes(8, "little") + head]


def test_unpack_runs_no_code_that_bytes_name():
    pickled = pickle.dumps(([], [Trap()], [], [], []))
    assert pickle.loads(pickled) and Trap.sprung  # noqa: S301 - what a pickle would do
    Trap.sprung = False
    with pytest.raises((ValueError, msgpack.UnpackException)):
        unpack(packed_with(pickled))
    for module, name in (("os", "system"), ("builtins", "list"), (__name__, "Trap")):
        nested = msgpack.packb(["builtins", "tuple", [module, name, 1]])
        with pytest.raises(TypeError, match=f"{module}.{name}: not a class of tuples"):
            unpack(packed_with(msgpack.packb([nested, ["true"], [], [], []])))
    assert not Trap.sprung


def test_unpack_gives_aligned_arrays_that_cannot_be_written():
    after = unpack(pack(seal(mixed())[0], 64))
    for array in (after.names.offsets, after.names.data, after.flags, after.table, after.again):
        assert array.flags.aligned and not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_unpack_reads_a_stored_array_in_place():
    (whole,) = pack(seal(mixed())[0], 1 << 20)
    stored = np.frombuffer(bytearray(whole), np.uint8)
    after = unpack([stored])
    assert np.shares_memory(after.again, stored) and not after.again.flags.writeable


def test_pack_keeps_one_array_under_two_names_one_array():
    points = empty(MessageBatch)._asdict() | {"west": np.arange(1000.0), "seq": np.arange(1000)}
    batch, size_bytes = seal(MessageBatch(**{**points, "east": points["west"]}))
    pieces = pack(batch, 1 << 20)
    assert size_bytes < sum(map(len, pieces)) < size_bytes + 2_000, "the array travels once"
    after = unpack(pieces)
    assert after.west is after.east and len(after) == 1000


class Columns(NamedTuple):
    """Long columns."""

    whole: np.ndarray
    share: np.ndarray
    nowhere: np.ndarray
    flag: np.ndarray
    ends_alike: np.ndarray
    zeros: np.ndarray


def test_pack_of_a_long_column_with_one_value_sends_that_value():
    ends_alike, zeros = np.zeros(5_000, np.int64), np.zeros(5_000)
    ends_alike[17], zeros[17] = 1, -0.0
    before, _ = seal(
        Columns(
            np.full(5_000, 7), np.full(9_999, 0.5), np.full(5_000, np.nan), np.ones(5_000, np.bool_), ends_alike, zeros
        )
    )
    pieces = pack(before, 30_000)
    assert ends_alike.nbytes + zeros.nbytes < sum(map(len, pieces)) < ends_alike.nbytes + zeros.nbytes + 1_000
    after = unpack(pieces)
    for one, other in zip(before, after, strict=True):
        assert one.dtype == other.dtype and one.tobytes() == other.tobytes()
        assert not other.flags.writeable and other.flags.c_contiguous


@pytest.mark.parametrize("payload", [None, 5, Tick(1, 0, 9), empty(UpdateBatch)], ids=["none", "int", "tick", "empty"])
def test_pack_of_what_has_hardly_any_bytes_comes_back(payload):
    after = unpack(pack(seal(payload)[0], 100))
    assert type(after) is type(payload)
    if payload is None or isinstance(payload, int | Tick):
        assert after == payload
    else:
        assert [column.dtype for column in after] == [column.dtype for column in payload] and len(after) == 0
