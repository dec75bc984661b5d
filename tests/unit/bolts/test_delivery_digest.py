"""What the delivery bolt sums up and names by: the digest of updates, whatever their order, and columns of ids."""

import itertools
import struct

import numpy as np
import pytest
import xxhash

from bolts.names import Digest, IdColumn, hash_names
from distribution import name_hash
from matching.errors import TopologyError
from matching.model import ENTER, LEAVE, MATCH, Names, UpdateBatch
from tests.support.deliveries import updates


def digest_of(rows, **changes):
    columns = updates(*rows)._asdict() | changes
    batch = UpdateBatch(**columns)
    digest = Digest()
    digest.add(
        batch, hash_names(Names.of([f"s{n}" for n in batch.number])), hash_names(Names.of([f"m{s}" for s in batch.seq]))
    )
    return digest.hex()


def test_delivery_digest_ignores_order_and_notices_everything_else():
    rows = [(5, 1, 2, ENTER, 0.5), (5, 2, 1, ENTER, 0.5), (8, 1, 2, LEAVE, np.nan), (8, 2, 2, MATCH, 0.0)]
    whole = digest_of(rows)
    assert {digest_of(order) for order in itertools.permutations(rows)} == {whole}
    different = [rows[:-1], rows + rows[:1], []]
    for row, column, value in [
        (0, 0, 6),
        (0, 1, 2),
        (0, 2, 1),
        (0, 3, LEAVE),
        (0, 4, np.nextafter(0.5, 1)),
        (2, 4, 0.0),
    ]:
        changed = [list(r) for r in rows]
        changed[row][column] = value
        different.append([tuple(r) for r in changed])
    swapped = [(5, 1, 1, ENTER, 0.5), (5, 2, 2, ENTER, 0.5), *rows[2:]]
    digests = [digest_of(other) for other in [*different, swapped]]
    assert whole not in digests and len(set(digests)) == len(digests)
    assert digest_of([(8, 2, 2, MATCH, -0.0)]) == digest_of([(8, 2, 2, MATCH, 0.0)])
    negative_nan = np.array([-np.nan])
    assert digest_of([(1, 1, 1, MATCH, np.nan)]) == digest_of([(1, 1, 1, MATCH, 0.0)], score=negative_nan)


def plain_digest(rows):
    """The digest in plain Python: mix the six columns into each lane, one after another, and add up the rows."""
    mask = 2**64 - 1
    lanes = [0, 0]
    seeds = (0x243F6A8885A308D3, 0x13198A2E03707344)
    odd, final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F), (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
    for as_of, number, seq, change, score in rows:
        bits = struct.unpack("<Q", struct.pack("<d", score))[0]
        names = [xxhash.xxh64_intdigest(text.encode()) for text in (f"s{number}", f"m{seq}")]
        for lane in (0, 1):
            mixed = seeds[lane]
            for column in (as_of, names[0], seq, names[1], change, bits):
                mixed = (mixed ^ column) * odd[lane] & mask
                mixed ^= mixed >> 29
            mixed = mixed * final[lane] & mask
            lanes[lane] = (lanes[lane] + (mixed ^ (mixed >> 32))) & mask
    return "".join(f"{lane:016x}" for lane in lanes)


def test_delivery_digest_is_the_same_in_every_release_and_however_cut(monkeypatch):
    rows = [(5, 1, 2, ENTER, 0.5), (8, 2, 2, MATCH, np.nan)]
    # A change of this value makes the digests of old runs worthless: it is a breaking change.
    assert digest_of(rows) == plain_digest(rows) == "06b86f27aba16e2e9ac4076e3b106c2d"
    rng = np.random.default_rng(0)
    many = [(int(a), int(a) % 7, int(a) % 11, ENTER, float(a)) for a in rng.integers(0, 10**6, 40_000)]
    lanes = [int(digest_of(part)[i : i + 16], 16) for part in (many[:17], many[17:]) for i in (0, 16)]
    total = "".join(f"{(lanes[i] + lanes[i + 2]) % 2**64:016x}" for i in (0, 1))
    assert digest_of(many) == total
    assert digest_of(many[:5_000]) == plain_digest(many[:5_000]), "by the kernel"
    monkeypatch.setattr(name_hash, "_WARM", [])
    assert digest_of(many[:500]) == plain_digest(many[:500]), "by NumPy"
    monkeypatch.setattr(name_hash, "_WARM", [True])
    assert digest_of(many[:500]) == plain_digest(many[:500]), "few, by the kernel"
    odd = [(-1, 3, -2, LEAVE, -np.nan), (2**40, 1, 7, MATCH, -0.0), (6, 2, 2**52, ENTER, -1e300), *rows]
    assert Digest.sum_of([digest_of([row]) for row in odd]) == digest_of(odd), "one by one, or together"


def test_delivery_id_column_grows_drops_and_keeps_what_is_needed():
    column, strings = IdColumn("message"), []
    rng = np.random.default_rng(3)
    for step in range(60):
        fresh = [f"{'é' * int(rng.integers(0, 4))}{len(strings) + i}" for i in range(int(rng.integers(0, 90)))]
        column.append(Names.of(fresh))
        strings += fresh
        if step % 7 == 6:
            needed = np.unique(np.concatenate([column._kept_numbers[::2], rng.integers(column.first, column.end, 5)]))
            column.drop_before(int(rng.integers(column.first, column.end)), needed)
        known = np.concatenate([column._kept_numbers, np.arange(column.first, column.end)])
        assert column.names(known).to_pylist() == [strings[n] for n in known]
        np.testing.assert_array_equal(column.hashes(known), hash_names(Names.of([strings[n] for n in known])))
        recent = known[known >= column.first]
        for wanted in (known, recent, recent[2:9], recent[1:2], known[:0]):
            assert column.packed(wanted).strings() == [strings[n] for n in wanted]
        some = rng.choice(known, 30) if known.size else known
        assert column.encode(some).to_pylist() == [strings[n] for n in some]
        for unknown in (-1, column.end, column.first - 1):
            if unknown not in known:
                for lookup in (column.names, column.hashes, column.encode, column.packed):
                    with pytest.raises(TopologyError, match=f"message {unknown} is named"):
                        lookup(np.array([unknown]))
