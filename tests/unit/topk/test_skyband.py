"""Result buffers: packing the pool, and seqs far beyond what 32 bits hold."""

import numpy as np
import pytest

from matching.errors import EngineError
from matching.model import ENTER
from matching.result_rows import result_updates, take_results
from matching.topk import results as skyband
from matching.topk.results import ResultBuffers
from matching.window import Boundary


def offer(buffers: ResultBuffers, slot: int, seqs: list[int], scores: list[float], k: int = 3) -> None:
    n = len(seqs)
    seq = np.array(seqs, np.int64)
    slots, ks = np.full(n, slot, np.int32), np.full(slot + 1, k, np.int32)
    buffers.offer(slots, seq, seq, np.array(scores), ks)


def held(buffers: ResultBuffers, slot: int, k: int = 3) -> list[int]:
    return buffers.results(np.array([slot], np.int32), np.full(slot + 1, k, np.int32)).seq.tolist()


@pytest.mark.parametrize("seq_is_life", [True, False])
def test_buffers_keep_seqs_apart_across_many_times_two_to_the_thirty(seq_is_life):
    buffers = ResultBuffers(seq_is_life)
    buffers.ensure_slots(2)
    step = 2**29
    for turn in range(12):
        offer(buffers, turn % 2, [turn * step, turn * step + 1], [0.5, 0.25])
        buffers.expire(np.array([0, 1], np.int32), (turn - 2) * step)
        expected = [seq for old in range(max(0, turn - 2), turn + 1) for seq in (old * step, old * step + 1)]
        for slot in (0, 1):
            mine = [seq for seq in expected if seq // step % 2 == slot and seq > (turn - 2) * step]
            assert sorted(held(buffers, slot, 9)) == mine[-9:]
    assert buffers.due(int(12 * step)).size == 2


def test_buffers_too_far_apart_for_one_run_are_refused():
    buffers = ResultBuffers(seq_is_life=False)
    buffers.ensure_slots(1)
    offer(buffers, 0, [0], [1.0])
    with pytest.raises(EngineError, match="window is too long"):
        offer(buffers, 0, [2**32], [1.0])


def test_buffers_pack_what_came_and_went_and_keep_every_entry(monkeypatch):
    monkeypatch.setattr(skyband, "_FREE_FRACTION", 0.01)
    rng = np.random.default_rng(0)
    buffers = ResultBuffers(seq_is_life=True)
    slots = 3000
    buffers.ensure_slots(slots)
    k = np.full(slots, 40, np.int32)
    seq, kept = 0, {}
    for turn in range(30):
        chosen = rng.choice(slots, 600, replace=False).astype(np.int32)
        if turn % 3 == 2:
            buffers.clear(chosen)
            for slot in chosen.tolist():
                kept[slot] = []
            continue
        lengths = rng.integers(1, 30, chosen.size)
        rows = np.repeat(chosen, lengths)
        seqs = np.arange(seq, seq + rows.size)
        seq += rows.size
        buffers.offer(rows.astype(np.int32), seqs, seqs, np.zeros(rows.size), k)
        for slot, one in zip(rows.tolist(), seqs.tolist(), strict=True):
            kept.setdefault(slot, []).append(one)
    for slot, seqs in kept.items():
        assert held(buffers, slot, 40) == sorted(seqs, reverse=True)[:40]
    live = int(skyband._SIZES[buffers.view.size_class[buffers.view.start >= 0]].sum())
    assert buffers.view.used[0] <= 1.4 * live


@pytest.mark.parametrize("seq_is_life", [True, False])
@pytest.mark.parametrize("largest_k", [3, 200])
def test_buffers_close_does_what_its_steps_do_one_after_the_other(seq_is_life, largest_k):
    rng = np.random.default_rng(largest_k)
    slots = 60
    k = rng.integers(1, largest_k + 1, slots).astype(np.int32)
    threshold = np.where(rng.random(slots) < 0.5, -np.inf, 0.0)
    passed_over = rng.random(slots) < 0.1
    whole, steps = ResultBuffers(seq_is_life), ResultBuffers(seq_is_life)
    for buffers in (whole, steps):
        buffers.ensure_slots(slots)
    seq, told, short = 0, 0, 0
    for _ in range(40):
        hits = int(rng.integers(0, 900)) if rng.random() < 0.7 else 0
        slot = np.sort(rng.choice(np.flatnonzero(~passed_over), hits)).astype(np.int32)
        rng.shuffle(slot)
        seqs = seq + np.arange(hits)
        seq += hits
        lives = seqs if seq_is_life else seqs + rng.integers(-20, 20, hits)
        scores = rng.integers(0, 30, hits) / 30.0
        floor = seq - int(rng.integers(20, 3000))
        closed = whole.close(slot, seqs, lives, scores, floor, k, k, threshold, passed_over)

        due = steps.due(floor)
        touched = np.union1d(slot, due[~passed_over[due]]).astype(np.int32)
        before = steps.results(touched, k)
        steps.offer(slot, seqs, lives, scores, k)
        steps.expire(touched, floor)
        # which slots are looked at for expiry depends on the order of the offers; what is left does not
        assert np.isin(slot, closed.touched).all() and not passed_over[closed.touched].any()
        assert closed.count.tolist() == whole.view.count[closed.touched].tolist()
        assert whole.view.count[~passed_over].tolist() == steps.view.count[~passed_over].tolist()
        is_short = (steps.view.count[touched] < k[touched]) & (threshold[touched] > -np.inf)
        assert closed.short.tolist() == touched[is_short].tolist()
        for got, wanted in zip(closed.before, take_results(before, np.flatnonzero(is_short)), strict=True):
            assert got.tolist() == wanted.tolist()
        rest = np.flatnonzero(~is_short)
        after = steps.results(touched[rest], k)
        updates = result_updates(Boundary(0, 0, 0, floor), touched[rest], take_results(before, rest), after)
        expected = zip(updates.number, updates.seq, updates.score, updates.change == ENTER, strict=True)
        got = zip(closed.slot, closed.seq, closed.score, closed.enters, strict=True)
        assert sorted(tuple(map(float, one)) for one in got) == sorted(tuple(map(float, one)) for one in expected)
        told, short = told + len(updates), short + closed.short.size
    everybody = np.arange(slots, dtype=np.int32)
    for got, wanted in zip(whole.results(everybody, k), steps.results(everybody, k), strict=True):
        assert got.tolist() == wanted.tolist()
    assert told > 1000 and short > 5, "worlds in which little happens test little"


def test_buffers_close_without_any_slot_tells_nothing():
    nobody, no_k = np.zeros(0, np.int64), np.zeros(0, np.int32)
    closed = ResultBuffers(True).close(no_k, nobody, nobody, np.zeros(0), 5, no_k, no_k, np.zeros(0), no_k > 0)
    assert [column.size for column in closed[:-1]] == [0] * 7 and closed.before.offsets.tolist() == [0]
