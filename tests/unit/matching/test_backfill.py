"""How far back a subscription begins, and the matches that it gets, against a plain loop."""

import numpy as np
import pytest

from matching.backfill import backfilled, is_backfill, start_of
from matching.errors import EngineError
from matching.fields import Refusal
from matching.filter_fields import ALL_EARLIER, backfill_of
from matching.kinds import KINDS
from matching.message_segments import MessageSegment, SegmentConditions
from matching.model import ENTER, MATCH, NO_WORDS, Names
from matching.space import Space
from matching.validate import subscription_row
from matching.vocabulary import Vocabulary
from matching.window import NO_FLOOR

BOOLEAN, VOCABULARY = KINDS.named("boolean"), Vocabulary(["tea"], [1], [1], [1.0], messages=1)
DAY_US = 86_400_000_000


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, None), (False, None), ("", None), ("false", None), (True, ALL_EARLIER), ("true", ALL_EARLIER),
        (5, 5), ("5", 5), ("7d", -7 * DAY_US), ("30m", -1_800_000_000), ("1s", -1_000_000), (" 12h ", -DAY_US // 2),
    ],
)  # fmt: skip
def test_backfill_is_read_as_people_write_it(value, wanted):
    assert backfill_of(value, BOOLEAN) == wanted


@pytest.mark.parametrize("value", [0, -1, 1.5, "0d", "7 days", "d", [], {}, 2**62, "1e999", float("nan")])
def test_backfill_that_says_no_beginning_is_refused(value):
    assert backfill_of(value, BOOLEAN) == Refusal("bad_backfill")


def test_backfill_of_a_kind_with_a_result_is_refused_by_name():
    for kind in KINDS.run:
        found = backfill_of(True, kind)
        if not kind.standing:
            assert found == ALL_EARLIER
            continue
        assert isinstance(found, Refusal) and found.reason == "backfill_of_results" and kind.name in found.detail


def segments_of(times, has_word, cuts):
    found = []
    for first, last in zip([0, *cuts], [*cuts, len(times)], strict=True):
        count = last - first
        rows = np.flatnonzero(has_word[first:last])
        words = rows, np.full(rows.shape[0], VOCABULARY.id_of("tea"))
        place, none = np.zeros(count), (NO_WORDS, np.zeros(0, np.int32))
        found.append(
            MessageSegment.of(
                first, Names.of([f"m{seq}" for seq in range(first, last)]), place, place, np.zeros((0, 4)),
                times[first:last], np.zeros((count, 0), np.int64), none, words, np.ones(count, bool),
                VOCABULARY.reserved,
            )
        )  # fmt: skip
    return found


@pytest.mark.parametrize("seed", range(20))
def test_backfill_finds_the_newest_matches_of_its_time_before_the_subscription(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 60))
    times = rng.integers(0, 20, count) * DAY_US
    times[rng.random(count) < 0.3] = NO_FLOOR
    has_word = rng.random(count) < 0.6
    segments = segments_of(times, has_word, sorted(rng.integers(0, count + 1, 3).tolist()))
    row = {"subscription_id": "s", "kind": "boolean", "keywords": "tea", "region": [-1, -1, 1, 1]}
    conditions = SegmentConditions(
        subscription_row(row, VOCABULARY, Space(-180, -90, 180, 90), KINDS), BOOLEAN, VOCABULARY
    )
    for at in rng.integers(0, count + 1, 4).tolist():
        for backfill in (ALL_EARLIER, int(rng.integers(1, 40)), -int(rng.integers(1, 15)) * DAY_US):
            most = int(rng.integers(1, 30))
            aside = [(3, 5)] if rng.random() < 0.5 else []
            earlier = [time for time in times[:at].tolist() if time != NO_FLOOR]
            if backfill == ALL_EARLIER:
                start = 0
            elif backfill > 0:
                start = max(0, at - backfill)
            else:
                late = [seq for seq in range(at) if times[seq] != NO_FLOOR and times[seq] > max(earlier) + backfill]
                start = min(late, default=at)
            wanted = [seq for seq in range(start, at) if has_word[seq] and not (aside and 3 <= seq <= 5)]
            assert start_of(backfill, at, segments) == start
            found, truncated = backfilled(conditions, backfill, at, segments, most, aside)
            assert (found.tolist(), truncated) == (wanted[-most:], len(wanted) > most)


def test_backfill_without_all_earlier_messages_raises():
    segments = segments_of(np.zeros(3, np.int64), np.ones(3, bool), [])
    with pytest.raises(EngineError, match="fewer messages"):
        backfilled(None, ALL_EARLIER, 4, segments)


def test_update_of_a_backfill_is_a_match_as_of_a_later_message():
    change, seq, as_of = np.array([MATCH, MATCH, ENTER], np.int8), np.array([3, 2, 2]), np.array([3, 3, 3])
    assert is_backfill(change, seq, as_of).tolist() == [False, True, False]
