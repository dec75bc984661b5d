"""The byte format under random and mutated input: a frame or a CheckpointError, nothing else."""

import struct

import numpy as np
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from matching.errors import CheckpointError
from tests.support.examples import examples
from topology.core import frames

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
headers = st.dictionaries(
    st.text(),
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3)),
    max_size=4,
)
dtypes = st.sampled_from(["?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8"])
arrays_of_any = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
tables = st.dictionaries(st.text(max_size=8), arrays_of_any, max_size=4)

FRAMES = [
    frames.encode({}, {}),
    frames.encode({"epoch": 3}, {"a": np.arange(4), "b": np.zeros((0, 4)), "c": np.array([True, False])}),
]


def reseal(frame: bytes) -> bytes:
    """Give a mutated frame the size and checksum it would need to be believed."""
    if len(frame) < 32:
        return frame
    prefix = frame[:16] + struct.pack("<Q", len(frame))
    return prefix + struct.pack("<Q", xxhash.xxh3_64_intdigest(prefix + frame[32:])) + frame[32:]


def decodes(frame: bytes) -> bool:
    try:
        header, arrays = frames.decode(frame)
    except CheckpointError:
        return False
    # Whatever was accepted lies inside the frame and can be written again.
    assert sum(array.nbytes for array in arrays.values()) <= len(frame)
    frames.decode(frames.encode(header, arrays))
    return True


@given(headers, tables)
@settings(max_examples=150, deadline=None)
def test_frames_any_header_and_arrays_come_back(header, arrays):
    back_header, back = frames.decode(frames.encode(header, arrays))
    assert back_header == header
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape
        assert back[name].tobytes() == array.tobytes()


@given(st.binary(max_size=300))
@example(frames.MAGIC)
@settings(max_examples=examples(100, 300), deadline=None)
def test_frames_random_bytes_are_refused(data):
    assert not decodes(data)
    assert not decodes(frames.MAGIC + data)


@given(st.binary(max_size=200))
@settings(max_examples=examples(150, 400), deadline=None)
def test_frames_random_header_with_right_checksum_never_fails_otherwise(data):
    decodes(reseal(struct.pack("<8sIIQQ", frames.MAGIC, frames.VERSION, len(data), 0, 0) + data))


@given(
    st.sampled_from(FRAMES),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), min_size=1, max_size=4),
    st.integers(0, 40),
    st.booleans(),
)
@settings(max_examples=examples(250, 600), deadline=None)
def test_frames_mutated_frame_is_refused_and_resealed_never_fails_otherwise(frame, flips, cut, grow):
    mutated = bytearray(frame)
    for position, mask in flips:
        mutated[position % len(mutated)] ^= mask
    mutated = mutated + bytes(cut) if grow else mutated[: len(mutated) - cut]
    if bytes(mutated) != frame:
        assert not decodes(bytes(mutated))
    decodes(reseal(bytes(mutated)))
