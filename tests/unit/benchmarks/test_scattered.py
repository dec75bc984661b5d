"""Messages that lie unlike subscriptions, and copies that keyword routers make."""

import numpy as np

from benchmarks.copies import bench
from benchmarks.workload import make_messages, scattered


def test_scattered_moves_a_share_and_keeps_all_else():
    batch = make_messages(4_000, 1).batch
    moved = scattered(batch, 0.5, 1)
    apart = moved.west != batch.west
    assert 0.45 < apart.mean() < 0.55 and np.array_equal(moved.terms, batch.terms)
    assert np.array_equal(moved.west, moved.east) and np.array_equal(moved.x != batch.x, apart)
    assert moved.east is moved.west and moved.north is moved.south, "points stay points, as routers see them"
    assert np.array_equal(scattered(batch, 0.0, 1).north, batch.north)


def test_copies_grow_with_the_bolts_and_prefix_makes_no_more_than_keyword():
    report = bench(500, 300, 400, (1, 8), 1, lambda _: None)
    copies = {(row["router"], row["query_bolts"]): row["copies"] for row in report["rows"]}
    assert copies["keyword", 1] == 1.0 < copies["prefix", 8] <= copies["keyword", 8] < 3.5
    assert copies["hashing", 8] == 1.0 and report["compared"] > 500
