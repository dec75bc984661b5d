"""The small parts both executors stand on: credits, payloads, histograms, clocks, logs."""

import json
import threading
from typing import NamedTuple

import numpy as np
import pytest

from matching.errors import OverloadError, TopologyError
from matching.model import MessageBatch, empty
from tests.support.clocks import FakeClock
from topology.core.executors import logs
from topology.core.executors.logs import LogBuffer, LogEvent, NodeLog, show
from topology.core.metrics import LatencyHistogram
from topology.core.payload import fingerprint, keep, seal
from topology.core.tasks.backpressure import Credits


class Color(str):
    """No plain string."""


class Pair(NamedTuple):
    number: int
    batch: object


class Inner(NamedTuple):
    values: np.ndarray
    weight: float


def test_credits_are_spent_and_come_back_when_all_tasks_have_said_so():
    credits = Credits(limit=2, tasks=2)
    assert [credits.publish(), credits.publish()] == [0, 1]
    assert not credits.available
    credits.acknowledge(1, 0)
    assert not credits.available and credits.missing() == {0: [0, 1], 1: [1]}
    credits.acknowledge(1, 1)
    assert credits.available and (credits.published, credits.acknowledged, credits.peak) == (2, 1, 2)


def test_credits_behind_an_earlier_run_go_on_with_its_numbers():
    credits = Credits(limit=2, tasks=1, first=7)
    assert [credits.publish(), credits.publish()] == [7, 8]
    credits.acknowledge(7, 0)
    assert (credits.next_number, credits.published, credits.acknowledged) == (9, 2, 1)
    with pytest.raises(TopologyError, match="batch 9, which was never published"):
        credits.acknowledge(9, 0)


@pytest.mark.parametrize(
    ("said", "words"), [([(5, 0)], "never published"), ([(0, 0), (0, 0)], "already"), ([(1, 0), (1, 0)], "already")]
)
def test_credits_wrong_acknowledgement_raises(said, words):
    credits = Credits(limit=4, tasks=1)
    for _ in range(2):
        credits.publish()
    with pytest.raises(TopologyError, match=words):
        for batch, task in said:
            credits.acknowledge(batch, task)


def test_credits_same_task_twice_raises():
    credits = Credits(limit=1, tasks=2)
    credits.publish()
    credits.acknowledge(0, 1)
    with pytest.raises(TopologyError, match="task 1 acknowledged batch 0 twice"):
        credits.acknowledge(0, 1)


def test_credits_batches_in_flight_fit_in_the_store():
    credits = Credits(limit=4, tasks=1, store_bytes=100)  # 80 bytes for four copies: 20 bytes of batches at once
    credits.publish(9)
    assert credits.available, "one like it has room"
    credits.publish(11)
    assert not credits.available and credits.in_flight == 2
    credits.acknowledge(0, 0)
    assert not credits.available, "the largest so far would not"
    credits.acknowledge(1, 0)
    assert credits.available
    with pytest.raises(OverloadError, match="batch 2 has .* make batches smaller .--batch.*--object-store-memory"):
        credits.publish(21)


def test_seal_gives_read_only_views_and_counts_shared_arrays_once():
    column = np.arange(10.0)
    messages = empty(MessageBatch)._asdict() | {"west": column, "east": column}
    payload = Pair(3, MessageBatch(**messages))
    sealed, size_bytes = seal(payload)
    assert sealed.number == 3 and type(sealed.batch) is MessageBatch
    assert sealed.batch.east is sealed.batch.west, "one array must stay one: receivers test for it"
    assert np.shares_memory(sealed.batch.west, column)
    with pytest.raises(ValueError, match="read-only"):
        sealed.batch.west[0] = 1.0
    column[0] = 1.0  # the sender's own array stays writable
    assert size_bytes == 80 + 8  # the column, and the offsets of an empty ragged column
    for _ in range(2):  # as the last table that was sealed, and behind another one
        passed_on, size_bytes = seal(Pair(3, (sealed.batch, sealed.batch.west, np.zeros(1))))
        assert passed_on[1][0] is sealed.batch and size_bytes == 80 + 8 + 8
        seal(Pair(3, MessageBatch(**messages)))


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (Pair(1, threading.Lock()), "payload.batch is a lock"),
        (Pair(1, (0, [1])), "payload.batch.1 is a list"),
        ({"a": 1}, "payload is a dict"),
        (Pair(1, np.array([object()])), "array of Python objects"),
        (Pair(1, np.zeros(2, [("a", "i4"), ("b", "f8")])), "payload.batch is an array of .* records"),
        (Pair(Color("red"), 1), "payload.number is a Color: a payload is"),
    ],
)
def test_seal_what_cannot_travel_raises_naming_the_field(payload, words):
    with pytest.raises(TypeError, match=words):
        seal(payload)


def test_kept_table_is_sealed_once_and_counted_in_each_payload():
    table = Inner(np.zeros(3), 1.0)
    sealed = keep(table, f"{__name__}:TABLE")
    assert (
        not sealed.values.flags.writeable
        and table.values.flags.writeable
        and keep(sealed, f"{__name__}:TABLE") is sealed
    )
    for given in (table, sealed):
        payload, size_bytes = seal(Pair(1, (given, given)))
        assert payload[1][0] is payload[1][1] is sealed and size_bytes == 24
    payload, size_bytes = seal(Pair(1, (table, sealed.values, np.zeros(1))))
    assert payload[1][1] is sealed.values and size_bytes == 32


def test_fingerprint_changes_with_any_array():
    first = Pair(1, (np.zeros(4), np.zeros(3, np.int8)))
    second = Pair(1, (np.zeros(4), np.array([0, 0, 1], np.int8)))
    assert fingerprint(first) == fingerprint(Pair(1, (np.zeros(4), np.zeros(3, np.int8)))) != fingerprint(second)


def test_histogram_cumulative_counts_and_sum_are_those_of_the_latencies():
    seconds = np.random.default_rng(4).lognormal(-5, 2, 5_000)
    histogram = LatencyHistogram()
    histogram.record(seconds)
    for edge_s, count in histogram.cumulative(range(9, 27)):
        assert count == (seconds < edge_s).sum()
    assert seconds.sum() <= histogram.total_s() <= seconds.sum() * 1.05


def test_histogram_quantiles_are_within_a_bucket_of_the_truth():
    seconds = np.exp(np.random.default_rng(1).normal(-5.0, 2.0, 20_000))
    histogram = LatencyHistogram()
    histogram.record(seconds)
    for share in (0.01, 0.5, 0.9, 0.99, 0.999):
        exact = float(np.quantile(seconds, share, method="inverted_cdf"))
        told = histogram.quantile(share)
        assert told is not None and exact <= told <= exact * 1.045
    assert histogram.summary()["max_s"] == seconds.max()


def test_histogram_merged_equals_recorded_together():
    seconds = np.random.default_rng(2).exponential(0.01, 1000)
    whole, left, right = LatencyHistogram(), LatencyHistogram(), LatencyHistogram()
    whole.record(seconds)
    left.record(seconds[:300])
    right.record(seconds[300:])
    left.merge(right)
    assert left.counts.tolist() == whole.counts.tolist() and left.summary() == whole.summary()


def test_histogram_of_latencies_that_come_one_by_one_equals_that_of_all_at_once():
    seconds = np.concatenate([np.random.default_rng(3).exponential(0.01, 500), [0.0, -1.0, 2.0**-20, 1e9]])
    counts = np.arange(504) % 3
    whole, few, single = LatencyHistogram(), LatencyHistogram(), LatencyHistogram()
    whole.record(seconds, counts)
    for first in range(0, 504, 3):
        few.record(seconds[first : first + 3], counts[first : first + 3])
    for second, count in zip(seconds.tolist(), counts.tolist(), strict=True):
        single.record(second, count)
    assert whole.counts.tolist() == few.counts.tolist() == single.counts.tolist()
    assert whole.max_s == few.max_s == single.max_s


def test_histogram_counts_weigh_and_extremes_stay_inside():
    histogram = LatencyHistogram()
    histogram.record(np.array([1.0, 2.0]), np.array([99, 1]))
    assert histogram.quantile(0.99) == pytest.approx(1.02, abs=0.025) and histogram.quantile(1.0) == 2.0
    histogram.record(np.array([-1.0, 0.0, 1e9]), 1)
    assert histogram.summary()["count"] == 103 and histogram.summary()["max_s"] == 1e9
    assert LatencyHistogram().summary() == dict.fromkeys(("p50_s", "p99_s", "p999_s", "max_s")) | {"count": 0}


def test_fake_clock_steps_and_advances():
    clock = FakeClock(10.0, step_s=0.5)
    assert [clock.now(), clock.now()] == [10.0, 10.5]
    clock.advance(-5.0)
    assert clock.now() == 6.0


def test_log_buffer_keeps_plain_values_and_counts_what_it_drops():
    buffer = LogBuffer()
    log = buffer.logger.bind(index="grid")
    log.warning("slow_batch", rows=3, box=(1, 2))
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("broken")
    events = buffer.fetch()
    assert events[0] == ("warning", "slow_batch", {"index": "grid", "rows": 3, "box": "(1, 2)"})
    assert events[1].level == "error" and "ValueError: why" in events[1].values["exception"]
    assert buffer.fetch() == []
    for number in range(1005):
        log.info("flood", number=number)
    assert buffer.fetch()[-1] == ("warning", "log_events_dropped", {"count": 5})


def test_show_names_the_task():
    lines = []

    class Log:
        def info(self, event, **values):
            lines.append((event, values))

    buffer = LogBuffer()
    buffer.logger.info("prepared", rows=1)
    show(Log(), "query:3", buffer.fetch())
    assert lines == [("prepared", {"rows": 1, "task": "query:3"})]


def test_node_log_is_lines_of_json_of_which_the_last_two_files_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_FILE_BYTES", 2_000)
    log = NodeLog(tmp_path, "query:3, tuples:0", lambda: 0.5)
    buffer = LogBuffer(lambda event: log.write("query:3", event))
    for number in range(100):
        buffer.logger.warning("slow_batch", rows=number, box=(1, 2))
    assert len(buffer.fetch()) == 100, "the driver gets them as well"
    files = sorted(file.name for file in tmp_path.iterdir())
    assert files == [log.path.name, f"{log.path.name}.1"] and "query_3__tuples_0" in log.path.name
    row = json.loads(log.path.read_text().splitlines()[-1])
    assert row.pop("time") == "1970-01-01T00:00:00.500000+00:00"
    expected = {"level": "warning", "event": "slow_batch", "task": "query:3", "rows": 99, "box": "(1, 2)"}
    assert row == expected
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2 * 2_300


def test_node_log_that_cannot_be_written_ends_nothing(tmp_path):
    log = NodeLog(tmp_path / "nowhere", "query:3", lambda: 0.5)
    log.write("query:3", LogEvent("info", "opened", {}))
    (tmp_path / "nowhere").mkdir()
    log.write("query:3", LogEvent("info", "opened", {}))
    assert log.path.read_text().count("opened") == 1
