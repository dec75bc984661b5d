"""From when on thresholds count: with the stream, never with what has no time, and not for every far step."""

import numpy as np

from matching.decay.reference import Reference
from matching.half_life import DecayParameters
from matching.model import MessageBatch, empty
from matching.window import NO_FLOOR

FADING = DecayParameters.of(1.0, 0.2, np.array([1, 1]), 2, 0)


def batch_at(*seconds) -> MessageBatch:
    times = [NO_FLOOR if each is None else int(each * 1e6) for each in seconds]
    columns = empty(MessageBatch)._asdict() | {"seq": np.arange(len(times)), "event_time_us": np.array(times, np.int64)}
    return MessageBatch(**columns)


def test_reference_begins_at_the_first_message_and_moves_when_the_stream_has_gone_far():
    reference = Reference()
    assert reference.follow(batch_at(), FADING, 0) is None and reference.at is None
    begun = reference.follow(batch_at(5.0, 7.0, 6.0), FADING, 10)
    assert begun == reference.at == 7.0 * FADING.log_base_per_s
    assert reference.follow(batch_at(70.0), FADING, 10) is None  # 63 half-lives: less than e ** 50
    assert reference.follow(batch_at(90.0), FADING, 10) == begun
    assert reference.at == 90.0 * FADING.log_base_per_s


def test_reference_is_not_moved_by_what_has_no_time():
    reference = Reference()
    assert reference.follow(batch_at(None, None), FADING, 1) is None and reference.at is None
    reference.follow(batch_at(3.0, None), FADING, 1)
    assert reference.at == 3.0 * FADING.log_base_per_s
    assert reference.follow(batch_at(None), FADING, 1) is None and reference.at == 3.0 * FADING.log_base_per_s


def test_reference_of_many_subscriptions_moves_only_after_many_messages():
    reference = Reference()
    reference.follow(batch_at(0.0), FADING, 1000)
    moves = [reference.follow(batch_at(1000.0 * step), FADING, 1000) is not None for step in range(1, 40)]
    assert moves.index(True) == 1000 // 64 and sum(moves) == 2
