"""Result buffers: packing the pool, and seqs far beyond what 32 bits hold."""

import numpy as np
import pytest

from matching.errors import EngineError
from matching.topk import skyband
from matching.topk.skyband import SkybandBuffers


def offer(buffers: SkybandBuffers, slot: int, seqs: list[int], scores: list[float], k: int = 3) -> None:
    n = len(seqs)
    seq = np.array(seqs, np.int64)
    slots, ks = np.full(n, slot, np.int32), np.full(slot + 1, k, np.int32)
    buffers.offer(slots, seq, seq, np.array(scores), ks)


def held(buffers: SkybandBuffers, slot: int, k: int = 3) -> list[int]:
    return buffers.held(np.array([slot], np.int32), np.full(slot + 1, k, np.int32)).seq.tolist()


@pytest.mark.parametrize("seq_is_life", [True, False])
def test_buffers_keep_seqs_apart_across_many_times_two_to_the_thirty(seq_is_life):
    buffers = SkybandBuffers(seq_is_life)
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
    buffers = SkybandBuffers(seq_is_life=False)
    buffers.ensure_slots(1)
    offer(buffers, 0, [0], [1.0])
    with pytest.raises(EngineError, match="window is too long"):
        offer(buffers, 0, [2**32], [1.0])


def test_buffers_pack_what_came_and_went_and_keep_every_entry(monkeypatch):
    monkeypatch.setattr(skyband, "_FREE_SHARE", 0.01)
    rng = np.random.default_rng(0)
    buffers = SkybandBuffers(seq_is_life=True)
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
