"""The byte format: what goes in comes out, and nothing else comes out."""

import struct

import msgpack
import numpy as np
import pytest
import xxhash

from matching.errors import CheckpointError
from topology.core import frames

HEADER = {
    "epoch": 7,
    "name": "query:3",
    "ratio": 0.5,
    "none": None,
    "nested": {"list": [1, -2, "drei"], "raw": b"\0\1"},
}
ARRAYS = {
    "seq": np.arange(5, dtype=np.int64),
    "region": np.linspace(-180, 180, 12).reshape(3, 4),
    "weights": np.array([0.5, np.nan, -np.inf], np.float32),
    "empty": np.zeros((0, 4)),
    "flags": np.array([True, False]),
    "scalar": np.array(3, np.int32),
    "bytes": np.frombuffer(b"raw", np.uint8),
}


def seal(header: object, body: bytes = b"", version: int = frames.VERSION) -> bytes:
    """A frame with a right checksum around any header: what a forger could write."""
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    total = 32 + len(packed) + len(body)
    prefix = struct.pack("<8sIIQ", frames.MAGIC, version, len(packed), total)
    checksum = xxhash.xxh3_64_intdigest(prefix + packed + body)
    return prefix + struct.pack("<Q", checksum) + packed + body


def test_frames_round_trip_keeps_header_and_arrays():
    frame = frames.encode(HEADER, ARRAYS)
    header, arrays = frames.decode(frame)
    assert header == HEADER
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype and arrays[name].shape == array.shape
        np.testing.assert_array_equal(arrays[name], array)
        assert not arrays[name].flags.writeable
        assert arrays[name].flags.aligned and arrays[name].flags.c_contiguous


def test_frames_views_share_the_buffer_and_start_aligned():
    frame = bytearray(frames.encode({}, ARRAYS))
    whole = np.frombuffer(frame, np.uint8)
    _, arrays = frames.decode(frame)
    for array in arrays.values():
        if array.nbytes:
            assert (array.ctypes.data - whole.ctypes.data) % frames.ALIGNMENT == 0
            assert np.shares_memory(whole, array)
            assert not array.flags.writeable


def test_frames_unaligned_buffer_is_copied_once():
    frame = frames.encode({}, ARRAYS)
    shifted = memoryview(b"x" + frame)[1:]
    _, arrays = frames.decode(shifted)
    assert all(array.flags.aligned for array in arrays.values())
    np.testing.assert_array_equal(arrays["region"], ARRAYS["region"])


def test_frames_same_input_gives_same_bytes():
    assert frames.encode(HEADER, ARRAYS) == frames.encode(dict(HEADER), {k: v.copy() for k, v in ARRAYS.items()})


def test_frames_strided_input_is_stored_contiguous():
    source = np.arange(24).reshape(4, 6)
    _, arrays = frames.decode(frames.encode({}, {"t": source.T, "s": source[:, ::2]}))
    np.testing.assert_array_equal(arrays["t"], source.T)
    np.testing.assert_array_equal(arrays["s"], source[:, ::2])


def test_frames_many_arrays_whose_header_grows_with_its_offsets_round_trip():
    # Offsets cross the sizes at which msgpack writes an integer longer.
    for count in (1, 3, 7, 40, 700):
        arrays = {f"a{i}": np.full(90, i, np.int64) for i in range(count)}
        _, back = frames.decode(frames.encode({}, arrays))
        assert list(back) == list(arrays)


@pytest.mark.parametrize(
    "array",
    [
        np.array(["text"], object),
        np.array([1], ">i8"),
        np.array(["abc"]),
        np.array([1j]),
        np.array(["2020"], "M8[us]"),
        np.zeros(1, [("a", "<i4")]),
        np.zeros(1, np.float16),
        np.zeros((1,) * 9),
        [1, 2],
    ],
    ids=lambda a: str(getattr(a, "dtype", "list")),
)
def test_frames_encode_foreign_array_is_refused_by_name(array):
    with pytest.raises(CheckpointError, match="array 'state'"):
        frames.encode({}, {"state": array})


def deep(levels: int) -> list:
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "header",
    [
        {"x": object()},
        {"x": 2**70},
        {1: 2},
        {"x": deep(5000)},
        {"x": [0] * 20_000},
        {"x": np.float64(1)},
        {"x": "\ud800"},
    ],
    ids=["object", "int70", "key", "deep", "long", "numpy", "surrogate"],
)
def test_frames_encode_foreign_header_is_refused(header):
    with pytest.raises(CheckpointError):
        frames.encode(header, {})


def test_frames_every_bit_flip_is_detected():
    frame = frames.encode({"epoch": 1}, {"a": np.arange(3, dtype=np.int32), "b": np.ones(2)})
    for position in range(len(frame) * 8):
        damaged = bytearray(frame)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(CheckpointError):
            frames.decode(bytes(damaged))


def test_frames_every_truncation_and_any_trailing_junk_is_detected():
    frame = frames.encode({"epoch": 1}, {"a": np.arange(3, dtype=np.int32)})
    for size in range(len(frame)):
        with pytest.raises(CheckpointError):
            frames.decode(frame[:size])
    for junk in (b"\0", frame, b"\0" * 64):
        with pytest.raises(CheckpointError, match="claims"):
            frames.decode(frame + junk)


def test_frames_newer_version_is_named():
    with pytest.raises(CheckpointError, match="format 2, this release reads format 1"):
        frames.decode(seal([{}, []], version=2))


def test_frames_forger_helpers_write_what_the_reader_accepts():
    header, arrays = frames.decode(seal([{"a": 1}, []]))
    assert header == {"a": 1} and arrays == {}


FORGED = {
    "no list": seal({}),
    "three parts": seal([{}, [], []]),
    "header no dict": seal([[], []]),
    "key no string": seal(b"\x92\x81\x01\x02\x90"),
    "extension": seal([msgpack.ExtType(4, b"x"), []]),
    "timestamp": seal([{"t": msgpack.Timestamp(1, 0)}, []]),
    "second value": seal(msgpack.packb([{}, []]) + b"\x00"),
    "claimed list": seal(b"\xdd\xff\xff\xff\xff"),
    "claimed text": seal(b"\xdb\xff\xff\xff\xff"),
    "nested lists": seal(b"\x91" * 100_000),
    "nested claims": seal(b"\xdc\x3f\xff" * 30_000),
    "bad text": seal(b"\x92\x81\xa1\xff\x01\x90"),
    "row no list": seal([{}, [1]]),
    "row short": seal([{}, [["a"]]]),
    "object dtype": seal([{}, [["a", "|O", [0], 64, 0]]]),
    "big endian": seal([{}, [["a", ">i8", [0], 64, 0]]]),
    "structured": seal([{}, [["a", "<i8,<i8", [0], 64, 0]]]),
    "dtype no text": seal([{}, [["a", 7, [0], 64, 0]]]),
    "shape no list": seal([{}, [["a", "<i8", 0, 64, 0]]]),
    "negative": seal([{}, [["a", "<i8", [-1], 64, -8]]]),
    "bool size": seal([{}, [["a", "<i8", [False], 64, 0]]]),
    "float size": seal([{}, [["a", "<i8", [0.0], 64, 0]]]),
    "huge": seal([{}, [["a", "<i8", [2**60], 64, 2**63]]]),
    "huge by zero": seal([{}, [["a", "<i8", [0, 2**63, 2**63], 64, 0]]], bytes(64)),
    "two huge": seal([{}, [["a", "<i8", [2**40, 2**40], 64, 2**63]]]),
    "many dimensions": seal([{}, [["a", "<i8", [0] * 40, 64, 0]]]),
    "beyond the end": seal([{}, [["a", "<i8", [2], 64, 16]]]),
}


@pytest.mark.parametrize("name", FORGED)
def test_frames_forged_frame_is_refused(name):
    with pytest.raises(CheckpointError):
        frames.decode(FORGED[name])


def forged_table(rows: list[list], size: int) -> bytes:
    """A sealed frame with several claimed arrays over `size` zero bytes that start at byte 192."""
    packed = msgpack.packb([{}, rows])
    return seal(packed, bytes(192 - 32 - len(packed) + size))


def test_frames_arrays_out_of_place_are_refused():
    first, second = ["a", "<i8", [8], 192, 64], ["b", "<i8", [8], 256, 64]

    def rows(*changes):
        return [first, [*changes]]

    # The header must end within (128, 192] for 192 to be the right place; a long name sees to that.
    long = "n" * 90
    first[0] = long
    _, arrays = frames.decode(forged_table([first, second], 128))
    assert list(arrays) == [long, "b"]
    for name, table in {
        "overlap": rows("b", "<i8", [8], 192, 64),
        "unaligned": rows("b", "<i8", [8], 255, 64),
        "gap": rows("b", "<i8", [8], 320, 64),
        "same name": rows(long, "<i8", [8], 256, 64),
        "short": rows("b", "<i8", [7], 256, 56),
        "size differs": rows("b", "<i8", [7], 256, 64),
        "before": rows("b", "<i8", [8], 0, 64),
        "long": rows("b", "<i8", [9], 256, 72),
    }.items():
        with pytest.raises(CheckpointError):
            frames.decode(forged_table(table, 128))
            pytest.fail(name)


def test_frames_padding_and_bools_are_checked():
    frame = frames.encode({}, {"a": np.array([True, False])})
    packed_size = struct.unpack_from("<I", frame, 12)[0]
    packed, body = frame[32 : 32 + packed_size], bytearray(frame[32 + packed_size :])
    assert frames.decode(seal(packed, bytes(body)))[1]["a"].tolist() == [True, False]
    body[-1] = 2
    with pytest.raises(CheckpointError, match="neither 0 nor 1"):
        frames.decode(seal(packed, bytes(body)))
    body[-1], body[0] = 0, 1
    with pytest.raises(CheckpointError, match="wrong place"):
        frames.decode(seal(packed, bytes(body)))
