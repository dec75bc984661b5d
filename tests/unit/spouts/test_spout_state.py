"""Spouts that are saved behind a batch: a new one emits what the old one would have, array by array."""

import json
from typing import Any

import numpy as np
import pytest

from matching.errors import CheckpointError, InputError
from matching.window import Window
from spouts.generated import MessageRecipe
from spouts.paced import GeneratedSubscriptions, PacedSpout
from spouts.parquet import ParquetSpout
from spouts.quarantine import Quarantine
from spouts.subscriptions import SubscriptionSpout
from tests.support.clocks import FakeClock
from tests.support.generated import GeneratedSpout
from tests.support.message_files import COUNT, EARTH, RecordingContext, message, write, write_manifest
from tests.support.saving import through_frames
from tests.support.subscription_rows import WORDS, boolean, gone, topk
from topology.core.api.component import Tick

ROWS = 61


class ClockedContext(RecordingContext):
    """Time goes on at every look, as it must for a spout that waits for it."""

    def __init__(self):
        super().__init__()
        self.clock = FakeClock(step_s=0.01)

    def now(self):
        return self.clock.now()


def opened(spout: Any, context: Any = None) -> Any:
    """An open spout that keeps what it emits in `emitted`."""
    context = context or RecordingContext()
    spout.open(context)
    spout.emitted = context.emitted
    return spout


def run_on(spout, number, ticks=None):
    """Let a spout emit batches from `number` on; all payloads as plain values."""
    first = len(spout.emitted)
    while spout.next_batch(number, None if ticks is None else next(ticks, None)) is not None:
        number += 1
        if ticks is not None and number == LAST_TICK:
            break
    return [as_values(payload) for _, payload, _ in spout.emitted[first:]], [to for _, _, to in spout.emitted[first:]]


def as_values(value: Any) -> Any:
    """A payload without the time of its publication, with the type of each array."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes(), value.shape
    if isinstance(value, tuple):
        names = getattr(type(value), "_fields", None) or tuple(map(str, range(len(value))))
        return {name: as_values(field) for name, field in zip(names, value, strict=True) if name != "published_s"}
    return value


def write_stream(tmp_path, late_s=0, objects=False, manifest=True):
    """Two files whose row groups begin and end inside batches."""
    rng = np.random.default_rng(4)
    rows = [message(seq) for seq in range(ROWS)]
    for seq, row in enumerate(rows):
        row["message_id"] = f"m{seq}"
        if late_s:
            row["event_time"] = message(seq - int(rng.integers(0, late_s)))["event_time"]
        if objects:
            row["object_id"] = f"o{rng.integers(0, 9)}"
            row["op"] = int(rng.random() < 0.15)
        else:
            row["object_id"] = row["message_id"]
        row["lon"] = 200.0 if seq % 11 == 5 else row["lon"]
    write(tmp_path, rows[:26], "part-00000.parquet", row_group_size=9)
    write(tmp_path, rows[26:], "part-00001.parquet", row_group_size=8)
    if manifest:
        write_manifest(tmp_path, ROWS, deletes=sum(row["op"] for row in rows))


STREAMS = {
    "plain": (COUNT, {}),
    "objects": (Window.parse("count:20"), {"objects": True}),
    "time": (Window.parse("time:12"), {"late_s": 9}),
    "time and objects": (Window.parse("time:12"), {"late_s": 9, "objects": True}),
    "narrow objects": (Window.parse("count:2"), {"objects": True}),
}


@pytest.mark.parametrize("batch", [1, 4, 10, 100])
@pytest.mark.parametrize("name", STREAMS)
def test_spout_parquet_saved_behind_every_batch_goes_on_the_same(tmp_path, name, batch):
    window, how = STREAMS[name]
    write_stream(tmp_path, **how)
    whole = opened(ParquetSpout(tmp_path, window, EARTH, batch))
    expected, receivers = run_on(whole, 0)
    assert len(expected) == -(-ROWS // batch)
    if "objects" in name and batch < 100:
        assert any(payload["ended"]["seq"][1] for payload in expected), "nothing was ever replaced"
    running = opened(ParquetSpout(tmp_path, window, EARTH, batch))
    for number in range(-1, len(expected)):
        if number >= 0:
            running.next_batch(number, None)
        saved = through_frames(number, messages=running)
        resumed = opened(ParquetSpout(tmp_path, window, EARTH, batch))
        resumed.restore(saved)
        assert through_frames(number, messages=resumed).parts["messages"][0].keys() == saved.parts["messages"][0].keys()
        assert run_on(resumed, number + 1) == (expected[number + 1 :], receivers[number + 1 :]), number
        assert resumed.report() == whole.report()
        resumed.close()
    running.close()
    whole.close()


def test_spout_parquet_saved_again_and_again_goes_on_the_same(tmp_path):
    window, how = STREAMS["time and objects"]
    write_stream(tmp_path, **how)
    whole = opened(ParquetSpout(tmp_path, window, EARTH, 7))
    expected, _ = run_on(whole, 0)
    spout, emitted = opened(ParquetSpout(tmp_path, window, EARTH, 7)), []
    for number in range(len(expected)):
        spout.next_batch(number, None)
        emitted.append(as_values(spout.emitted[-1][1]))
        saved = through_frames(number, messages=spout)
        spout.close()
        spout = opened(ParquetSpout(tmp_path, window, EARTH, 7))
        spout.restore(saved)
    assert emitted == expected and spout.report() == whole.report()
    spout.close()
    whole.close()


def test_spout_parquet_reads_no_more_again_than_the_window_needs(tmp_path, monkeypatch):
    write_stream(tmp_path, objects=True)
    spout = opened(ParquetSpout(tmp_path, Window.parse("count:4"), EARTH, 10))
    for number in range(5):
        spout.next_batch(number, None)
    saved = through_frames(4, messages=spout)
    spout.close()
    resumed = opened(ParquetSpout(tmp_path, Window.parse("count:4"), EARTH, 10))
    read = []
    source, read_group = resumed._source, resumed._source._read_group

    def noted():
        rows = read_group()
        if rows is not None:
            read.append(int(rows.messages.seq[0]))
        return rows

    monkeypatch.setattr(source, "_read_group", noted)
    resumed.restore(saved)
    resumed.next_batch(5, None)
    resumed.close()
    assert read and min(read) == 42, "the row group with the first message that may still be replaced"


@pytest.mark.parametrize("objects", [False, True])
def test_spout_parquet_following_goes_on_where_files_are_still_written(tmp_path, objects):
    write_stream(tmp_path / "all", objects=objects)
    whole = opened(ParquetSpout(tmp_path / "all", COUNT, EARTH, 10, follow=True))
    expected, _ = run_on(whole, 0)
    whole.close()
    write_stream(tmp_path / "now", objects=objects, manifest=False)
    second = tmp_path / "now" / "messages" / "part-00001.parquet"
    later = second.rename(tmp_path / "later")
    spout = opened(ParquetSpout(tmp_path / "now", COUNT, EARTH, 10, follow=True, poll_s=0.001))
    for number in range(2):
        spout.next_batch(number, None)
    assert spout.next_batch(2, None) == Tick(2, 20, 19), "nothing whole has come"
    saved = through_frames(2, messages=spout)
    spout.close()
    resumed = opened(ParquetSpout(tmp_path / "now", COUNT, EARTH, 10, follow=True, poll_s=0.001))
    resumed.restore(saved)
    assert resumed.next_batch(3, None) == Tick(3, 20, 19)
    later.rename(second)
    (tmp_path / "now" / "manifest.json").write_text((tmp_path / "all" / "manifest.json").read_text())
    rest, _ = run_on(resumed, 4)
    resumed.close()

    def unnumbered(payloads):
        return [{**payload, "boundary": {**payload["boundary"], "number": 0}} for payload in payloads]

    assert unnumbered(rest) == unnumbered(expected[2:])


def test_spout_parquet_with_fewer_messages_than_were_published_is_refused(tmp_path):
    write_stream(tmp_path)
    spout = opened(ParquetSpout(tmp_path, COUNT, EARTH, 10))
    run_on(spout, 0)
    saved = through_frames(6, messages=spout)
    spout.close()
    (tmp_path / "messages" / "part-00001.parquet").unlink()
    write_manifest(tmp_path, 26)
    resumed = opened(ParquetSpout(tmp_path, COUNT, EARTH, 10))
    with pytest.raises(InputError, match="26 messages, where at least 61 had been read"):
        resumed.restore(saved)
    resumed.close()


def test_spout_parquet_objects_with_fewer_messages_are_refused(tmp_path):
    write_stream(tmp_path, objects=True)
    spout = opened(ParquetSpout(tmp_path, Window.parse("count:50"), EARTH, 10))
    run_on(spout, 0)
    saved = through_frames(6, messages=spout)
    spout.close()
    (tmp_path / "messages" / "part-00001.parquet").unlink()
    (tmp_path / "manifest.json").unlink()
    resumed = opened(ParquetSpout(tmp_path, Window.parse("count:50"), EARTH, 10))
    with pytest.raises(InputError, match="messages: there are 26 messages, and 61 were published"):
        resumed.restore(saved)
    resumed.close()


def test_spout_parquet_goes_on_to_another_limit(tmp_path):
    write_stream(tmp_path)
    spout = opened(ParquetSpout(tmp_path, COUNT, EARTH, 10, limit=30))
    assert len(run_on(spout, 0)[0]) == 3
    saved = through_frames(2, messages=spout)
    spout.close()
    for limit, batches in ((45, 2), (30, 0), (12, 0), (None, 4)):
        resumed = opened(ParquetSpout(tmp_path, COUNT, EARTH, 10, limit=limit))
        resumed.restore(saved)
        assert len(run_on(resumed, 3)[0]) == batches
        resumed.close()


RECIPE = MessageRecipe(seed=3, vocabulary=300, clusters=10)


@pytest.mark.parametrize("window", [Window.parse("count:5000"), Window.parse("time:2")])
@pytest.mark.parametrize("after", [-1, 0, 2, 4])
def test_spout_generated_goes_on_the_same(window, after):
    def spout():
        return opened(GeneratedSpout(RECIPE, window, EARTH, 7_000, limit=40_000))

    expected = run_on(spout(), 0)
    running = spout()
    for number in range(after + 1):
        running.next_batch(number, None)
    resumed = spout()
    resumed.restore(through_frames(after, messages=running))
    assert run_on(resumed, after + 1) == tuple(column[after + 1 :] for column in expected)


def test_spout_paced_goes_on_the_same_and_its_schedule_starts_anew():
    def spout():
        return opened(
            PacedSpout(RECIPE, COUNT, EARTH, 100, 1000, rate=2000.0, watched=range(250, 600)), ClockedContext()
        )

    whole = spout()
    expected = run_on(whole, 0)
    running = spout()
    for number in range(4):
        running.next_batch(number, None)
    running._latest_start_s = 7.5
    saved = through_frames(3, messages=running)
    resumed = spout()
    resumed._context.clock.advance(3600.0)
    resumed.restore(saved)
    before = resumed._context.now()
    assert run_on(resumed, 4) == tuple(column[4:] for column in expected)
    took_s = resumed._context.now() - before
    assert 0.3 <= took_s < 0.6, "600 messages at 2,000 a second: neither all at once nor an hour late"
    published = [payload.published_s for _, payload, _ in resumed.emitted]
    assert published[0] == pytest.approx(before, abs=0.05) and np.diff(published) == pytest.approx(0.05, abs=1e-5)
    report = resumed.report()
    assert report["furthest_behind_s"] == 7.5 and report["messages"] == 1000
    assert report["reached_rate"] == pytest.approx(2000.0, rel=0.1)
    assert report["ends"] == [299, 399, 499, 599]


def test_generated_subscriptions_are_not_made_again():
    def spout():
        return opened(GeneratedSubscriptions(RECIPE, COUNT, EARTH, {"boolean": 20, "topk": 20, "skyline": 20}))

    running, resumed = spout(), spout()
    running.next_batch(0, Tick(0, 0, 9))
    assert len(running.emitted[0][1].added) == 60
    resumed.restore(through_frames(0, messages=running))
    resumed.next_batch(1, Tick(1, 10, 19))
    assert len(resumed.emitted[0][1].added) == 0 and resumed.report() == running.report()


CHANGES = [topk(f"s{n % 7}", at=n * 3, until=n * 3 + 40 if n % 3 else None) for n in range(30)]
CHANGES += [boolean(f"b{n}", at=n % 50) for n in range(20)] + [gone(f"b{n}", 20 + n * 3) for n in range(20)]
LAST_TICK = 12


class ResumingContext(RecordingContext):
    """Of a task that is restored before its first batch."""

    component = "messages"
    resumes = True


def to_resume(path, *arguments, **options):
    """An open spout that waits for its state."""
    return opened(SubscriptionSpout([path], WORDS, EARTH, *arguments, **options), ResumingContext())


def test_spout_subscriptions_saved_behind_every_batch_goes_on_the_same(tmp_path):
    path = tmp_path / "subscriptions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CHANGES))

    def spout():
        return opened(SubscriptionSpout([path], WORDS, EARTH))

    ticks = [Tick(number, number * 8, number * 8 + 7) for number in range(LAST_TICK)]
    whole = spout()
    expected, _ = run_on(whole, 0, iter(ticks))
    assert len(expected) == LAST_TICK
    assert sum(len(one["added"]["number"][1]) > 0 and len(one["removed"]["at"][1]) > 0 for one in expected) > 5
    running = again = spout()
    firsts = []
    for number in range(-1, LAST_TICK - 1):
        if number >= 0:
            running.next_batch(number, ticks[number])
            again.next_batch(number, ticks[number])
        saved = through_frames(number, messages=running)
        reading, resumed = spout(), to_resume(path)
        for each in (reading, resumed):
            each.restore(saved)
            assert run_on(each, number + 1, iter(ticks[number + 1 :]))[0] == expected[number + 1 :]
            assert each.report() == whole.report()
        firsts.append(sum(resumed.changes.first))
        again, before = to_resume(path), again  # one that is resumed behind every batch
        again.restore(through_frames(number, messages=before))
    assert firsts == sorted(firsts) and firsts[-1] > len(CHANGES) // 2, "what was emitted is not read again"
    assert len(set(firsts)) < 7, "the changes to come are saved again once half of them were emitted"


def test_spout_subscriptions_rewinds_no_further_than_to_where_it_was_resumed(tmp_path):
    path = tmp_path / "subscriptions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CHANGES))
    running = opened(SubscriptionSpout([path], WORDS, EARTH))
    before = through_frames(0, messages=running)
    for number in range(8):
        running.next_batch(number, Tick(number, number * 8, number * 8 + 7))
    saved = through_frames(7, messages=running)
    resumed = to_resume(path)
    resumed.restore(saved)
    assert resumed.rewind(saved) and not resumed.rewind(before) and running.rewind(before)


def test_spout_subscriptions_resumed_has_the_same_rejected_rows(tmp_path):
    path, rejects = tmp_path / "subscriptions.jsonl", tmp_path / "rejected.jsonl"
    rows = [topk("a"), topk("b", k=0), topk("c", alpha=3), topk("d", at=40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    running = opened(SubscriptionSpout([path], WORDS, EARTH, rejects))
    running.next_batch(0, Tick(0, 0, 9))
    saved, told = through_frames(0, messages=running), rejects.read_bytes()
    assert told.count(b"\n") == 2
    for left in (b"", told + b"of a later process", None):
        rejects.unlink(missing_ok=True) if left is None else rejects.write_bytes(left)
        resumed = to_resume(path, rejects)
        resumed.restore(saved)
        assert rejects.read_bytes() == told and resumed.report() == running.report()
        assert resumed.changes.first == (1, 0), "the files were not parsed"


def test_spout_subscriptions_of_another_quarantine_reads_its_files_again(tmp_path):
    path = tmp_path / "subscriptions.jsonl"
    path.write_text("".join(json.dumps(topk(f"s{n}", at=10 * (n % 2))) + "\n" for n in range(8)))
    running = opened(SubscriptionSpout([path], WORDS, EARTH))
    running.next_batch(0, Tick(0, 0, 4))
    saved = through_frames(0, messages=running)
    quarantine = Quarantine(subscriptions=((1, 1), (6, 6)))
    fresh, resumed = opened(SubscriptionSpout([path], WORDS, EARTH, quarantine=quarantine)), None
    fresh.next_batch(0, Tick(0, 0, 4))
    resumed = to_resume(path, quarantine=quarantine)
    resumed.restore(saved)
    assert resumed.changes.first == (0, 0) and resumed.report() == fresh.report() != running.report()
    for each in (fresh, resumed):
        each.next_batch(1, Tick(1, 5, 20))
    left, right = (as_values(each.emitted[-1][1]) for each in (fresh, resumed))
    assert left == right and resumed.emitted[-1][1].added.number.tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("context", [RecordingContext, ResumingContext])
@pytest.mark.parametrize("change", [CHANGES[:-1], CHANGES[1:], [*CHANGES, topk("more")]])
def test_spout_subscriptions_of_other_files_are_refused(tmp_path, change, context):
    path = tmp_path / "subscriptions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CHANGES))
    running = opened(SubscriptionSpout([path], WORDS, EARTH))
    running.next_batch(0, Tick(0, 0, 9))
    saved = through_frames(0, messages=running)
    path.write_text("".join(json.dumps(row) + "\n" for row in change))
    resumed = opened(SubscriptionSpout([path], WORDS, EARTH), context())
    with pytest.raises(CheckpointError, match="give the same files"):
        resumed.restore(saved)
