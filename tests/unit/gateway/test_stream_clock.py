"""On a quiet stream what has expired leaves: by marks of a clock, which whoever reads the log comes to as well."""

import json
import os
from collections import Counter

import numpy as np
import pytest

from gateway.live.status import read_status
from gateway.live.stream_clock import StreamClock
from gateway.runs.verify import verify_run
from matching.fields import LAST_US
from matching.window import NO_FLOOR, Window
from spouts.log import Record, encode_record, read_records
from spouts.subscriptions import load_vocabulary
from tests.support.beside import Beside, random_message, random_subscription
from tests.support.covering import tiered
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream, counted, digest_of_run, read_table
from tests.support.processes import Command
from topology.core.failures import ComponentFailed

WINDOW = "time:1500"
BEGAN_S = 1_577_836_800
US = 1_000_000


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("clock") / "words", random_rows(200))


# ------------------------------------------------------------------------------------------------------ when it ticks


def test_clock_goes_on_from_the_newest_message_however_long_ago_that_was_written():
    clock = StreamClock(Window.parse("time:100"))
    assert clock.step_s == 1.0 and clock.due(1e9) is None
    clock.take(5 * US, 1000.0)
    assert clock.due(1000.9) is None
    assert clock.due(1002.5) == 7_500_000
    clock.mark(7_500_000, 1002.5)
    assert clock.due(1003.0) is None and clock.due(1003.5) == 8_500_000


def test_clock_never_goes_back_and_older_messages_change_nothing():
    clock = StreamClock(Window.parse("time:100"))
    clock.take(50 * US, 0.0)
    clock.mark(60 * US, 10.0)
    clock.take(40 * US, 10.5)
    assert clock.time_us == 60 * US and clock.due(12.0) == 62 * US
    clock.take(55 * US, 13.0)  # newer than any message, and older than the clock
    assert clock.time_us == 60 * US and clock.due(15.0) == 65 * US
    clock.take(70 * US, 15.0)
    assert clock.time_us == 70 * US and clock.due(17.0) == 72 * US
    clock.take(None, 17.0)  # without a time
    assert clock.time_us == 70 * US and clock.due(17.5) is None


def test_clock_stops_once_nothing_can_be_in_the_window():
    clock, now_s, marks = StreamClock(Window.parse("time:10")), 0.0, []
    clock.take(0, 0.0)
    for _ in range(10_000):
        now_s += 0.05
        if (time_us := clock.due(now_s)) is not None:
            clock.mark(time_us, now_s)
            marks.append(time_us)
    assert 10 * US <= marks[-1] <= 10 * US + 300_000 and len(marks) <= 41
    assert (np.diff(marks) >= 250_000).all()


def test_clock_after_a_restart_counts_from_then_on():
    clock = StreamClock(Window.parse("time:100"))
    clock.resume(5 * US, 8 * US, 5000.0)
    assert clock.due(5000.5) is None and clock.due(5002.0) == 10 * US


def test_clock_ticks_soon_for_changes_of_subscriptions_that_wait():
    clock = StreamClock(Window.parse("time:1000"))
    clock.take(5 * US, 0.0)
    clock.note_changes(True, 0.05)
    assert clock.due(0.15) is None
    clock.note_changes(True, 0.15)
    assert clock.due(0.3) is None and clock.due(0.4) == 5_400_000
    clock.mark(5_400_000, 0.4)
    assert clock.due(5.0) is None and clock.due(10.5) == 15_500_000
    clock.note_changes(True, 10.0)
    clock.take(None, 10.1)
    clock.note_changes(False, 10.1)
    assert clock.due(11.0) is None, "the message has taken them along"
    clock.resume(5 * US, 16 * US, 20.0, changes_wait=True)
    assert clock.due(20.1) is None and clock.due(20.25) == 16_250_000
    clock.resume(5 * US, 1_006 * US, 20.0, changes_wait=True)
    assert clock.due(25.0) is None, "there is nothing in the window"


def test_clock_of_a_window_that_goes_by_count_never_ticks():
    clock = StreamClock(Window.parse("count:10"))
    clock.take(5 * US, 0.0)
    assert clock.due(1e9) is None and clock.time_us == NO_FLOOR


def test_clock_ends_with_the_times_that_messages_may_have():
    clock = StreamClock(Window.parse("time:100"))
    clock.take(LAST_US - 1, 0.0)
    assert clock.due(5.0) is None


# ------------------------------------------------------------------------------------------------- exact, as logged


class Quiet:
    """A random story with quiet times, told to the oracle too; the clock is the story's.

    Attributes
    ----------
    expected : Counter
    """

    def __init__(self, seed, words):
        self.rng = np.random.default_rng(seed)
        self.beside = Beside(WINDOW, load_vocabulary(words))
        self.expected = Counter()
        self.now_s, self.number, self.left = 0.0, 0, 0

    def tell(self, stream, steps):
        for _ in range(steps):
            self.now_s += 15.0
            chance = self.rng.random()
            if self.number < 12 or chance < 0.1:
                row = random_subscription(self.rng, int(self.rng.integers(100)))
                self.beside.subscribe(row)
                stream.take({"subscribe": row}, self.now_s)
            elif chance < 0.5:
                row = random_message(self.rng, self.number) | {"time": BEGAN_S + int(self.now_s)}
                row["time"] -= int(self.rng.choice([0, 0, 20, 400, 1_600]))  # some come late, some too late
                self.beside.offer(row)
                stream.take(row, self.now_s)
            self.number += 1
            if self.rng.random() < 0.5:
                self.close(stream)
                if self.rng.random() < 0.3:
                    self.be_quiet(stream)
        self.close(stream)

    def close(self, stream):
        if self.beside.waiting:
            self.expected += self.beside.publish(by_seq=True)
        stream.pipe.close_batch()

    def be_quiet(self, stream):
        """Nothing comes for a while; what the clock says must be told to the oracle as it was logged."""
        for _ in range(int(self.rng.integers(1, 40))):
            self.now_s += float(self.rng.choice([5.0, 15.0, 60.0]))
            before = len(stream.journal.marks)
            stream.pipe.batching.pass_time(self.now_s)
            for seq, time_us in list(stream.journal.marks.items())[before:]:
                assert time_us % US == 0 and seq == self.beside.seq
                mark = {"id": f"mark {seq}", "text": "", "time": time_us // US, "lon": 0.0, "lat": 0.0}
                self.beside.offer(mark, mark=True)
                told = self.beside.publish(by_seq=True)
                self.left += sum(count for row, count in told.items() if row[0] == "leave")
                self.expected += told


@pytest.mark.parametrize("seed", tiered(range(4), 4))
def test_quiet_stream_tells_what_the_oracle_does_and_a_run_over_its_folder_the_same(words, tmp_path, seed):
    story, stream = Quiet(seed, words), Stream(words, tmp_path / "out", window=WINDOW, query_bolts=2)
    story.tell(stream, 150)
    story.be_quiet(stream)
    assert len(stream.journal.marks) > 20 and story.left > 3, "the clock must have had something to do"
    digest = stream.finish(stream.match())
    assert counted(stream.told) == story.expected
    verdict = verify_run(tmp_path / "out")
    assert verdict.exact and sum(verdict.delivered_updates.values()) == sum(story.expected.values()), verdict
    assert digest_of_run(tmp_path / "out", tmp_path / "run") == digest
    rows = read_table(tmp_path / "out", "message_id", "seq", "event_time").to_pylist()
    clocks = {row["seq"]: row["event_time"] for row in rows if row["message_id"].startswith("skyray clock mark")}
    assert {seq: round(time.timestamp() * 1e6) for seq, time in clocks.items()} == stream.journal.marks
    report = json.loads((tmp_path / "out" / "run.json").read_text())
    assert report["clock_marks"] == len(clocks)
    assert report["messages_taken"] + len(clocks) == stream.journal.next_seq
    assert read_status(tmp_path / "out")["messages"] == report["messages_taken"]


@pytest.mark.parametrize("checkpoint_every", [0.01, 0.0])
def test_quiet_stream_that_is_gone_on_with_takes_marks_from_the_log(words, tmp_path, checkpoint_every):
    """It ends in the middle, once while quiet, and begins again twice; marks that were logged count as they were."""
    out, story = tmp_path / "out", Quiet(7, words)
    settings = {"window": WINDOW, "checkpoint_every": checkpoint_every}
    for life in range(3):
        stream = Stream(words, out, **settings)
        logged = dict(stream.journal.marks)
        # the command measures from when it begins; here the story's clock is all there is
        times = [record.time_us for record, _, _ in read_records(stream.journal.log) if record.time_us is not None]
        if life:
            assert stream.journal._clock.time_us == times[-1] and len(logged) > 5
            stream.journal._clock.resume(times[-1], times[-1], story.now_s)
        story.tell(stream, 60)
        story.be_quiet(stream)
        if life == 1:
            stream.journal.close()  # killed before any of it is matched
            continue
        report = stream.match()
    digest = stream.finish(report)
    assert story.left > 3
    assert verify_run(out).exact
    assert digest_of_run(out, tmp_path / "run") == digest
    assert sum(story.expected.values()) == sum(report["delivery"]["updates"].values())


def test_mark_without_a_time_is_damage(words, tmp_path):
    stream = Stream(words, tmp_path / "out", window=WINDOW)
    stream.take(random_message(np.random.default_rng(1), 0))
    stream.pipe.close_batch()
    stream.journal._file.write(encode_record(Record(1, 1, 1, mark=True)))
    stream.journal._file.flush()
    stream.journal._handover.end = stream.journal._file.tell()
    stream.journal.ends.append(1)
    with pytest.raises(ComponentFailed, match="CheckpointError.*says no time"):
        stream.match()


def test_command_lets_what_has_expired_leave_while_nothing_comes(words, tmp_path):
    out, mine = tmp_path / "out", tmp_path / "mine.jsonl"
    mine.write_text(
        '{"subscription_id": "s1", "kind": "topk", "keywords": "w1", "lon": 0, "lat": 0, "k": 3, "alpha": 0.5}\n'
        '{"subscription_id": "s2", "kind": "skyline", "keywords": "w1", "region": [-10, -10, 10, 10]}\n'
    )
    read, write = os.pipe()
    arguments = ["live", "--vocabulary", words, "--subscriptions", mine, "--world", "earth", "--out", out]
    more = ["--window", "time:2", "--set", "stream.linger_ms=5"]
    with Command([*arguments, *more], source=read) as command, os.fdopen(write, "w") as end:
        os.close(read)
        for number in range(2):  # of a time long ago
            message = {"id": f"m{number}", "text": "w1", "lon": 1, "lat": 1, "time": "2018-10-10T20:19:24Z"}
            end.write(json.dumps(message | {"time": f"2018-10-10T20:19:2{number * 5}Z"}) + "\n")
            end.flush()
            command.await_(lambda most=2 * (number + 1): command.read()[0].count('"leave"') >= most)
        end.close()
        code, told, said = command.finish(60)
    assert code == 0 and " messages=2 " in said, said
    rows = [json.loads(line) for line in told.splitlines()]
    changes = Counter((row["change"], row["subscription_id"], row["message_id"]) for row in rows if "change" in row)
    assert changes == Counter(
        (change, name, f"m{number}") for change in ("enter", "leave") for name in ("s1", "s2") for number in range(2)
    )
    verdict = verify_run(out)
    assert verdict.exact and sum(verdict.delivered_updates.values()) == 8, verdict
    assert read_status(out)["messages"] == 2
