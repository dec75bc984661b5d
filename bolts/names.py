"""Names of subscriptions and messages, and the digest of a run, which is computed from names.

Inside the topology an update names its subscription by number and its message by seq; files have ids. `IdColumn` maps
the numbers of one of the two to ids, as flat arrays that Arrow takes without a copy, and to a 64-bit hash of each id
for the digest. The hashes and `Digest` decide the digest in every `run.json`: a change breaks the comparison with older
runs.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from distribution.name_hash import add_rows, hashes_of, is_ready
from matching.errors import CheckpointError, TopologyError
from matching.model import Int64, Names, UpdateBatch
from matching.storage.slots import as_input

UInt64 = NDArray[np.uint64]

_MASK = (1 << 64) - 1
#: Constants of the digest's two lanes, uint64[2, 1] each: start, multiplier of a round, last multiplier.
_LANE_SEEDS = np.array([[0x243F6A8885A308D3], [0x13198A2E03707344]], np.uint64)
_ODD = np.array([[0x9E3779B97F4A7C15], [0xC2B2AE3D27D4EB4F]], np.uint64)
_FINAL = np.array([[0xBF58476D1CE4E5B9], [0x94D049BB133111EB]], np.uint64)
#: The same of each lane, for one row.
_LANES = np.hstack([_LANE_SEEDS, _ODD, _FINAL]).tolist()
_BITS, _FLOAT = struct.Struct("<Q"), struct.Struct("<d")
#: Up to this number of names `xxhash` hashes them one by one, and up to as many updates NumPy does, which needs no
#: compiled kernel; and where the kernels are there.
_FEW, _FEW_IF_READY = 4_096, 32


def hash_names(names: Names) -> UInt64:
    """xxh64 of each name's UTF-8 bytes, uint64[n]. O(total bytes); 6 ns a name by the kernel, else 0.1 us."""
    if _are_many(len(names.offsets)):
        return hashes_of(names.offsets, names.data)
    data, cuts = names.data.tobytes(), names.offsets.tolist()
    digest = xxhash.xxh64_intdigest
    hashes = [digest(data[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
    return np.array(hashes, np.uint64)


def _are_many(rows: int) -> bool:
    """Whether so many rows are for the kernels."""
    return rows > _FEW or (rows > _FEW_IF_READY and is_ready())


_NO_NAMES = Names.of(())


class Digest:
    """Order-independent digest of updates: runs with equal updates have equal digests.

    Every update is hashed into two 64-bit lanes, and the lanes are summed over all updates. So the digest of a stream
    is the sum of the digests of its parts, and a duplicate update changes it.
    """

    def __init__(self) -> None:
        self.lanes = [0, 0]

    def add(self, updates: UpdateBatch, subscription_hash: UInt64, message_hash: UInt64) -> None:
        """Add updates whose names have these hashes (`hash_names`, one for each update).

        O(n); 3 ns a row by the kernel, else 25.
        """
        if len(updates) == 1:  # as in most small batches
            columns = (updates.as_of, updates.seq, updates.change, updates.score, subscription_hash, message_hash)
            values: list[Any] = [column.item() for column in columns]
            return self._add_one(*values)
        columns = (updates.as_of.view(np.uint64), subscription_hash, updates.seq.view(np.uint64), message_hash)
        if _are_many(len(updates)):
            sums = np.zeros(2, np.uint64)
            numbers = tuple(as_input(column, np.uint64) for column in columns)
            change, score = as_input(updates.change.view(np.uint8), np.uint8), updates.score.view(np.uint64)
            seeds = _LANE_SEEDS.ravel(), _ODD.ravel(), _FINAL.ravel()
            add_rows(numbers, change, as_input(score, np.uint64), *seeds, sums)
        else:
            score = updates.score + 0.0  # minus zero is zero
            score[np.isnan(score)] = np.nan
            # both lanes in one array: for a small batch the call overhead of NumPy dominates
            mixed = np.repeat(_LANE_SEEDS, len(updates), axis=1)
            for column in (*columns, updates.change.astype(np.uint64), score.view(np.uint64)):
                mixed ^= column
                mixed *= _ODD
                mixed ^= mixed >> np.uint64(29)
            mixed *= _FINAL
            mixed ^= mixed >> np.uint64(32)
            sums = mixed.sum(axis=1, dtype=np.uint64)
        self.lanes = [(lane + more) & _MASK for lane, more in zip(self.lanes, sums.tolist(), strict=True)]

    def _add_one(
        self, as_of: int, seq: int, change: int, score: float, subscription_hash: int, message_hash: int
    ) -> None:
        """As `add`; a tenth of the time that NumPy takes for one row."""
        (bits,) = _BITS.unpack(_FLOAT.pack(math.nan if math.isnan(score) else score + 0.0))
        for lane, (seed, odd, final) in enumerate(_LANES):
            mixed = seed
            for column in (as_of, subscription_hash, seq, message_hash, change, bits):
                mixed = (mixed ^ column) * odd & _MASK
                mixed ^= mixed >> 29
            mixed = mixed * final & _MASK
            self.lanes[lane] = (self.lanes[lane] + (mixed ^ (mixed >> 32))) & _MASK

    def hex(self) -> str:
        """32 hexadecimal digits."""
        return "".join(f"{lane:016x}" for lane in self.lanes)

    @classmethod
    def sum_of(cls, parts: Sequence[str]) -> str:
        """The digest of a whole from those of its parts, in hexadecimal digits as `hex`."""
        whole = cls()
        lanes = ([int(part[:16], 16), int(part[16:], 16)] for part in parts)
        whole.lanes = [sum(column) & _MASK for column in zip(*lanes, strict=True)]
        return whole.hex()


class IdColumn:
    """Names by consecutive numbers; names are appended at the end and dropped at the front.

    Parameters
    ----------
    what : str
        What the names belong to, for error messages.
    keep_names : bool
        False keeps only the hashes, for a sink that writes nothing.

    Notes
    -----
    A side table has the names before the front that are still needed (`drop_before`). Memory: 8 bytes a name for the
    hash, 8 and its UTF-8 bytes for the name. Amortised O(1) a name.
    """

    def __init__(self, what: str, keep_names: bool = True):
        self.what = what
        self.keep_names = keep_names
        self.first = 0  # number of the first name in the arrays
        self.end = 0  # number of the next name
        self._hashes = np.zeros(1024, np.uint64)
        self._offsets = np.zeros(1025, np.int64)
        self._data = np.zeros(1024, np.uint8)
        self._kept_numbers = np.zeros(0, np.int64)
        self._kept_hashes = np.zeros(0, np.uint64)
        self._kept_names: pa.Array = pa.array([], pa.large_string())

    def append(self, names: Names, hashes: UInt64 | None = None) -> None:
        """Add names under the next numbers; pass the result of `hash_names` as `hashes` if it is known already."""
        count, used = len(names.offsets) - 1, self.end - self.first
        self._hashes = grown(self._hashes, used, used + count)
        self._hashes[used : used + count] = hash_names(names) if hashes is None else hashes
        if self.keep_names:
            filled, fresh = int(self._offsets[used]), int(names.offsets[-1] - names.offsets[0])
            self._offsets = grown(self._offsets, used + 1, used + count + 1)
            self._data = grown(self._data, filled, filled + fresh)
            self._offsets[used + 1 : used + count + 1] = names.offsets[1:] + (filled - names.offsets[0])
            self._data[filled : filled + fresh] = names.data[names.offsets[0] : names.offsets[-1]]
        self.end += count

    def has(self, numbers: Int64) -> NDArray[np.bool_]:
        """bool[n]: which numbers were given to a name."""
        return (numbers >= 0) & (numbers < self.end)

    def hashes(self, numbers: Int64) -> UInt64:
        """Hash of the name of each number, uint64[n]. Raises TopologyError for a number without a name."""
        if numbers.shape[0] == 0:
            return np.zeros(0, np.uint64)
        # a small batch mostly has one number: NumPy's call for the least would cost more than the rest
        lowest, highest = (numbers[0],) * 2 if numbers.shape[0] == 1 else (numbers.min(), numbers.max())
        if highest >= self.end or lowest < 0:
            raise self._unknown(numbers[(numbers >= self.end) | (numbers < 0)])
        if lowest >= self.first:
            # `take` is twice as fast as an index; that all are inside is known
            return self._hashes.take(numbers - self.first if self.first else numbers)
        recent = numbers >= self.first
        hashes = np.empty(numbers.shape[0], np.uint64)
        hashes[recent] = self._hashes[numbers[recent] - self.first]
        hashes[~recent] = self._kept_hashes[self._kept_rows(numbers[~recent])]
        return hashes

    def encode(self, numbers: Int64) -> pa.DictionaryArray:
        """Names of numbers (int64[n]), as int32 codes into a dictionary of the names that occur. O(n + span)."""
        lowest = int(numbers.min()) if numbers.shape[0] else 0
        span = (int(numbers.max()) - lowest + 1) if numbers.shape[0] else 0
        if span <= 8 * numbers.shape[0] + 65_536:
            # The numbers are nearly dense: a bitmap of the span is faster than a sort.
            occurs = np.zeros(span, bool)
            occurs[numbers - lowest] = True
            distinct = np.flatnonzero(occurs) + lowest
            codes = np.cumsum(occurs, dtype=np.int32)[numbers - lowest] - np.int32(1)
        else:
            distinct, inverse = np.unique(numbers, return_inverse=True)
            codes = inverse.astype(np.int32)
        return pa.DictionaryArray.from_arrays(pa.array(codes), self.names(distinct).cast(pa.string()))

    def names(self, numbers: Int64) -> pa.Array:
        """Names of ascending numbers, as a large string array. Raises TopologyError for a number without a name."""
        split = int(np.searchsorted(numbers, self.first))
        if numbers.shape[0] and (numbers[-1] >= self.end or numbers[0] < 0):
            raise self._unknown(numbers[(numbers >= self.end) | (numbers < 0)])
        used = self.end - self.first
        view = pa.LargeStringArray.from_buffers(used, pa.py_buffer(self._offsets), pa.py_buffer(self._data))
        recent = view.take(pa.array(numbers[split:] - self.first))
        if not split:
            return recent
        return pa.concat_arrays([self._kept_names.take(pa.array(self._kept_rows(numbers[:split]))), recent])

    def packed(self, numbers: Int64) -> Names:
        """Names of ascending numbers, as flat arrays. Raises TopologyError for a number without a name."""
        if not numbers.shape[0]:
            return _NO_NAMES
        if numbers.shape[0] == 1 and self.first <= numbers[0] < self.end:  # as in most small batches
            return Names(self._offsets, self._data).take(numbers - self.first)
        return flat_names(self.names(numbers))

    def columns(self, numbers: Int64) -> dict[str, np.ndarray]:
        """What a checkpoint saves of ascending numbers: `offsets` and `data`, or `hashes` if no names are kept."""
        return self.packed(numbers)._asdict() if self.keep_names else {"hashes": self.hashes(numbers)}

    def drop_before(self, number: int, still_needed: Int64) -> None:
        """Drop the names of numbers below `number`, except of `still_needed` (ascending). O(names that remain)."""
        kept = still_needed[still_needed < number]
        kept_hashes = self.hashes(kept)
        if self.keep_names:
            self._kept_names = self.names(kept)
        self._kept_numbers, self._kept_hashes = kept, kept_hashes
        dropped, used = number - self.first, self.end - self.first
        if dropped <= 0:
            return
        self._hashes = self._hashes[dropped:used].copy()
        if self.keep_names:
            start = self._offsets[dropped]
            self._data = self._data[start : self._offsets[used]].copy()
            self._offsets = self._offsets[dropped : used + 1] - start
        self.first = number

    def keep(self, numbers: Int64, names: Names) -> None:
        """Take names before the front again, until the next `drop_before`; those that are here stay as they are.

        O(names)."""
        fresh, first = np.unique(numbers, return_index=True)
        fresh, first = fresh[fresh < self.first], first[fresh < self.first]
        new = ~np.isin(fresh, self._kept_numbers)
        whole = np.concatenate([self._kept_numbers, fresh[new]])
        some, order = names.take(first[new]), np.argsort(whole)
        self._kept_hashes = np.concatenate([self._kept_hashes, hash_names(some)])[order]
        if self.keep_names and new.any():
            self._kept_names = pa.concat_arrays([self._kept_names, _arrow(some)]).take(pa.array(order))
        self._kept_numbers = whole[order]

    def snapshot(self) -> "IdColumn":
        """A read-only view of the column's present state; later calls do not change it. O(1).

        It shares the arrays: `append` writes behind the last name only, and the other methods replace arrays.
        """
        return copy(self)

    def state(self, first: int, needed: Int64) -> dict[str, np.ndarray]:
        """Arrays of a snapshot: names of the numbers from `first` on, and of `needed` (ascending) before `first`.

        O(needed names): the names from `first` on are a view, which later calls do not change. The state has hashes
        only if the column keeps no names; else `restore` computes them.
        """
        kept = needed[needed < first]
        apart = np.concatenate([kept, np.arange(first, self.first)])  # not in the arrays
        start, used = max(first - self.first, 0), self.end - self.first
        state = {"first": np.array(first, np.int64), "end": np.array(self.end, np.int64), "kept": kept}
        if not self.keep_names:
            return state | {"hashes": np.concatenate([self.hashes(apart), self._hashes[start:used]])}
        offsets = self._offsets[start : used + 1]
        data = self._data[offsets[0] : offsets[-1]]
        if not apart.shape[0]:
            return state | {"offsets": offsets - offsets[0], "data": data}
        before = flat_names(self.names(apart))
        behind = offsets[1:] - offsets[0] + before.offsets[-1]
        joined = np.concatenate([before.offsets, behind]), np.concatenate([before.data, data])
        return state | dict(zip(("offsets", "data"), joined, strict=True))

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Replace the column by `state`.

        Raises
        ------
        CheckpointError
            If the column keeps names and `state` has only hashes.
        """
        names = Names(state["offsets"], state["data"]) if "data" in state else None
        if self.keep_names and names is None:
            raise CheckpointError(
                f'delivery: no {self.what} ids were saved, since the run wrote no updates; resume it by sink "count"'
            )
        hashes = state["hashes"] if names is None else hash_names(names)
        self.first, self.end = int(state["first"]), int(state["end"])
        self._kept_numbers = state["kept"].copy()
        kept = self._kept_numbers.shape[0]
        self._kept_hashes, self._hashes = hashes[:kept].copy(), hashes[kept:].copy()
        if self.keep_names and names is not None:
            cut = int(names.offsets[kept])
            self._offsets, self._data = names.offsets[kept:] - cut, names.data[cut:].copy()
            before = names.offsets[: kept + 1].copy(), names.data[:cut].copy()
            self._kept_names = pa.LargeStringArray.from_buffers(kept, *map(pa.py_buffer, before))

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the names and hashes."""
        kept = self._kept_numbers.nbytes + self._kept_hashes.nbytes + self._kept_names.nbytes
        return self._hashes.nbytes + self._offsets.nbytes + self._data.nbytes + kept

    def _kept_rows(self, numbers: Int64) -> Int64:
        """Rows of the side table for these numbers. Raises TopologyError for a number that is not in it."""
        rows = np.searchsorted(self._kept_numbers, numbers)
        inside = rows < self._kept_numbers.shape[0]
        found = inside.copy()
        found[inside] = self._kept_numbers[rows[inside]] == numbers[inside]
        if not found.all():
            raise self._unknown(numbers[~found])
        return rows

    def _unknown(self, numbers: Int64) -> TopologyError:
        return TopologyError(
            f"delivery: {self.what} {int(numbers[0])} is named, but its id is not known (known: {self.first} to "
            f"{self.end - 1}); it was never sent, or dropped because no update should name it any more"
        )


def _arrow(names: Names) -> pa.Array:
    buffers = map(pa.py_buffer, (names.offsets, names.data))
    return pa.LargeStringArray.from_buffers(len(names.offsets) - 1, *buffers)


def flat_names(names: pa.Array) -> Names:
    """The names of a large string array, as a view; the array must have offset 0 and at least one name."""
    _, cuts, text = names.buffers()
    offsets = np.frombuffer(cuts, np.int64, len(names) + 1)
    return Names(offsets, np.frombuffer(text or b"", np.uint8, int(offsets[-1])))


def grown(array: np.ndarray, used: int, wanted: int) -> np.ndarray:
    """The array, or a copy of its first `used` entries with capacity for `wanted`, at least doubled."""
    if wanted <= array.shape[0]:
        return array
    larger = np.zeros(max(wanted, 2 * array.shape[0]), array.dtype)
    larger[:used] = array[:used]
    return larger
