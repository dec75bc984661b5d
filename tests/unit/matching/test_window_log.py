"""The log of the window: what it gives back is what lives, however it is cut; and it keeps little more than that."""

import numpy as np
import pytest

from matching.model import NO_MESSAGES, MessageBatch
from matching.storage import message_log as window_log
from matching.storage.message_log import WindowLog
from matching.window import NO_FLOOR, Boundary

NOBODY = np.zeros(0, np.int64)


def messages(seq: np.ndarray, life: np.ndarray | None = None) -> MessageBatch:
    """Messages at their seq, which is also their only term; every third is a rectangle."""
    place, lengths = seq.astype(float), np.arange(seq.size + 1, dtype=np.int64)
    east = place + (seq % 3 == 0)
    lives = seq if life is None else life
    return MessageBatch(
        seq, place, place, place, place, east, east, lives, lengths, seq.astype(np.int32), np.ones(seq.size, np.float32)
    )  # fmt: skip


def given_back(log: WindowLog) -> tuple[list[int], list[int]]:
    """Seqs of what is alive, whose other columns are looked at, and of those ended."""
    alive, ended = log.alive()
    for got, wanted in zip(alive, messages(alive.seq, alive.life), strict=True):
        assert np.array_equal(got, wanted)
    return alive.seq.tolist(), ended.tolist()


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(window_log, "_FEWEST", 40)


@pytest.mark.parametrize("batch", [1, 7, 39, 40, 130])
@pytest.mark.parametrize("late", [0, 25])
def test_window_log_of_any_batches_gives_back_what_lives(batch, late, small_chunks):
    rng = np.random.default_rng([batch, late])
    log, lives, ends, newest, told = WindowLog(), {}, set(), NO_FLOOR, 0
    for number in range(600 // batch):
        first = number * batch
        seq = first + np.flatnonzero(rng.random(batch) < 0.9)
        life = seq - rng.integers(0, late + 1, seq.size)
        newest = max(newest, int(life.max(initial=NO_FLOOR)))
        boundary = Boundary(number, first, first + batch - 1, max(NO_FLOOR, newest - 90))
        before = [one for one in lives if one > first - 150]
        ended = rng.choice(before, min(len(before), int(rng.integers(0, 4))), replace=False) if before else NOBODY
        lives |= dict(zip(seq.tolist(), life.tolist(), strict=True))
        ended = np.unique(np.concatenate([ended, seq[seq % 11 == 0]]))  # some of them are deletions
        ends |= set(ended.tolist())
        log.store(boundary, messages(seq, life), ended)
        alive = [one for one, until in lives.items() if until > boundary.floor]
        assert given_back(log) == (alive, sorted(ends & set(alive))), number
        told += len(alive)
    assert told > 300 and log.boundary == boundary


def test_window_log_without_messages_gives_back_none():
    log = WindowLog()
    assert len(log) == 0 and log.boundary.number == -1
    assert given_back(log) == ([], [])
    log.store(Boundary(0, 0, -1, NO_FLOOR), NO_MESSAGES, NOBODY)
    assert len(log) == 0 and given_back(log) == ([], [])


def test_window_log_ended_ones_are_not_forgotten_with_the_chunk_before_them(small_chunks):
    """The chunk dies while what came after it is still too little for one."""
    log = WindowLog()
    log.store(Boundary(0, 0, 39, -11), messages(np.arange(40)), np.array([3]))
    log.store(Boundary(1, 40, 49, -1), messages(np.arange(40, 50)), np.array([45]))
    log.store(Boundary(2, 50, 59, 39), messages(np.arange(50, 60)), NOBODY)
    assert given_back(log) == (list(range(40, 60)), [45])


def test_window_log_small_batches_are_joined_and_large_ones_are_not_copied(small_chunks):
    log, large = WindowLog(), messages(np.arange(100))
    log.store(Boundary(0, 0, 99, NO_FLOOR), large, NOBODY)
    assert np.shares_memory(log._chunks[0][1].seq, large.seq)
    for number in range(1, 301):
        log.store(Boundary(number, 99 + number, 99 + number, NO_FLOOR), messages(np.array([99 + number])), NOBODY)
    assert len(log) == 400 and len(log._chunks) == 1 + 300 // 40 and len(log._tail) == 300 % 40


@pytest.mark.parametrize("batch", [3, 50])
def test_window_log_of_a_thousand_batches_keeps_little_more_than_the_window(batch, small_chunks):
    log, window, sizes = WindowLog(), 120, []
    for number in range(1000):
        seq = np.arange(number * batch, (number + 1) * batch)
        boundary = Boundary(number, int(seq[0]), int(seq[-1]), int(seq[-1]) - window)
        log.store(boundary, messages(seq), seq[::2] - batch)
        assert len(log) <= window + 2 * max(batch, 40)
        assert sum(map(len, log._ended)) <= len(log), "ends of messages that have gone"
        sizes.append(log.size_bytes())
    assert max(sizes[500:]) <= max(sizes[:500])
    assert given_back(log)[0] == list(range(1000 * batch - window, 1000 * batch))


def test_window_log_that_drops_what_has_ended_keeps_little_more_than_what_lives(small_chunks):
    """Of a stream of objects without an end, of which none expires."""
    rng, log, living, most = np.random.default_rng(1), WindowLog(drops_ended=True), [], 0
    for number in range(300):
        seq = np.arange(number * 9, number * 9 + 9)
        gone = rng.choice(living, min(len(living), 9), replace=False) if len(living) > 60 else NOBODY
        gone = np.sort(np.concatenate([gone, seq[-1:]]).astype(np.int64))
        living = [one for one in living + seq.tolist() if one not in set(gone.tolist())]
        log.store(Boundary(number, int(seq[0]), int(seq[-1]), NO_FLOOR), messages(seq), gone)
        alive, ended = given_back(log)
        assert [one for one in alive if one not in set(ended)] == living
        most = max(most, len(log))
    assert len(living) > 50 and 80 < most < 3 * 80
