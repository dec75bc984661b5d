"""From released updates to a sink: order, places, what is lost, and a receiver that is away, refuses, or lags.

The receiver is a list; real ones are in `tests/support/sink_contract.py`.
"""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bolts.sinks import UPDATE_SCHEMA
from gateway.live.update_listener import MessageText
from gateway.serve.released import RANKS
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import BEGINNING, Parts, Position
from gateway.sinks import pump as pumps
from gateway.sinks.committed import CommittedUpdates
from gateway.sinks.pump import FILE, Positions, Pump
from gateway.sinks.stream import SinkAway
from matching.errors import ConfigError, DeliveryError, InputError
from tests.support.hooking import await_that
from tests.support.log_events import log_events
from tests.support.releasing import RawUpdate, released_of, updates_of

#: Last seqs of boundaries, and how many updates each has.
ENDS = list(range(4, 200, 5))
SIZES = [(end * 7) % 11 for end in ENDS]


def raw_of(end, size):
    return [RawUpdate(f"s{n}", RANKS["match"], end, end, None) for n in range(size)]


def texts(seqs):
    return {seq: MessageText(f"m{seq}", "text", 1.0, 2.0) for seq in seqs}


RELEASED = [released_of(end, raw_of(end, size)) for end, size in zip(ENDS, SIZES, strict=True)]
POSITIONS = [[one.position for one in updates_of(each, None, texts)] for each in RELEASED]
EVERY = [one for some in POSITIONS for one in some]


def write_part(folder, number, boundaries):
    folder.mkdir(exist_ok=True)
    rows = [(one.as_of, one.subscription_id, f"m{one.seq}", one.seq, "match", None)
            for place in boundaries for one in raw_of(ENDS[place], SIZES[place])]  # fmt: skip
    table = pa.table(dict(zip(UPDATE_SCHEMA.names, zip(*rows, strict=True), strict=True)), UPDATE_SCHEMA)
    pq.write_table(table, folder / ".tmp")
    (folder / ".tmp").rename(folder / f"part-{number:05d}.parquet")  # as checkpoints name them


class Stream:
    """A history of which the first 30 boundaries are in three parts, and the later ones in memory."""

    def __init__(self, folder, in_memory=True):
        self.folder, updates = folder, folder / "updates"
        for number in range(3):
            write_part(updates, number, range(10 * number, 10 * number + 10))
        self.history = UpdateLog(Parts(updates, ENDS, texts))
        self.supply = self.history
        self.history.append(RELEASED[:30], ENDS[29])
        self.history.trim(ENDS[29])
        assert self.history.floor < ENDS[29]  # half of what may be in memory is not reached
        self.history._most_bytes = 0
        self.history.trim(ENDS[29])
        self.release(30, 40 if in_memory else 30)

    def release(self, first, last):
        if first == last:
            return
        self.history.append(RELEASED[first:last], ENDS[last - 1])

    def pump(self, sink, stream="one", logged=200):
        return Pump(sink, stream, self.supply, Positions(self.folder, stream), lambda: logged)


@pytest.fixture
def stream(tmp_path):
    return Stream(tmp_path)


class Remembering:
    """A receiver that keeps what it gets; `acts` are what the next calls do besides.

    Attributes
    ----------
    ids : list of str
    position : Position or None    behind the last boundary that ended
    """

    extra = "none"

    def __init__(self, name="memory/a", exactly_once=True):
        self.name, self.exactly_once = name, exactly_once
        self.ids, self.open_ids, self.chunks = [], [], []
        self.position = None
        self.on_open, self.on_deliver, self.on_check = [], [], []

    def open(self, stream):
        self.open_ids = []
        if self.on_open and (error := self.on_open.pop(0)):
            raise error
        return self.position if self.exactly_once else None

    def deliver(self, chunk):
        if self.on_deliver and (error := self.on_deliver.pop(0)):
            raise error
        self.chunks.append(chunk)
        self.open_ids += [one.position for one in chunk.updates]
        if chunk.ends_boundary:
            self.ids += self.open_ids
            self.open_ids, self.position = [], chunk.behind
        return self.position or BEGINNING

    def check(self):
        if self.on_check and (error := self.on_check.pop(0)):
            raise error

    def close(self):
        self.open_ids = []


def through(pump):
    pump.begin()
    pump.finish()
    pump.join(30)
    if pump.failure is not None:
        raise pump.failure
    assert pump.state == "ended"
    return pump.figures()


def adds_up(figures):
    return figures["released"] == figures["delivered"] + figures["waiting"] + figures["lost"]


@pytest.mark.parametrize("most", [1, 4, 5_000])
def test_every_update_comes_once_in_order_and_boundaries_end_where_they_do(stream, monkeypatch, most):
    monkeypatch.setattr(pumps, "MOST", most)
    sink = Remembering()
    figures = through(stream.pump(sink))
    assert sink.ids == EVERY and adds_up(figures)
    assert figures["delivered"] == len(EVERY) and figures["waiting"] == figures["lost"] == 0
    last_places = {ENDS[n]: SIZES[n] - 1 for n in range(40)}
    for chunk in sink.chunks:
        assert len(chunk.updates) <= max(most, 1) and chunk.through_seq == chunk.behind.boundary
        if chunk.updates:
            assert chunk.behind >= Position.of(chunk.updates[-1].position)
            last = Position.of(chunk.updates[-1].position)
            assert chunk.ends_boundary == (last.index == last_places[last.boundary])
    assert sink.position is not None and sink.position.boundary == ENDS[-1]


def test_sink_that_keeps_no_position_continues_behind_the_one_in_the_folder(stream, tmp_path):
    first = Remembering(exactly_once=False)
    through(stream.pump(first))
    later = Remembering(exactly_once=False)
    assert through(stream.pump(later))["delivered"] == len(EVERY) and later.ids == []
    (tmp_path / FILE).unlink()
    through(stream.pump(later))
    assert later.ids == first.ids == EVERY


def test_receiver_decides_over_the_file_where_it_keeps_its_position(stream, tmp_path):
    sink = Remembering()
    through(stream.pump(sink))
    sink.ids, sink.position = [], None  # somebody has emptied it
    assert adds_up(through(stream.pump(sink))) and sink.ids == EVERY
    (tmp_path / FILE).unlink()
    sink.ids, sink.position = [], Position.of(EVERY[40])
    figures = through(stream.pump(sink))
    assert sink.ids == EVERY[41:] and figures["delivered"] == figures["released"] == len(EVERY) and not figures["lost"]


@pytest.mark.parametrize(
    ("gone", "lacks"), [([0], range(10)), ([1], range(10, 20)), ([2], range(20, 30)), ([0, 1, 2], range(30)),
                        ([0, 2], [*range(10), *range(20, 30)])]
)  # fmt: skip
def test_updates_whose_files_are_gone_are_counted_and_said(stream, gone, lacks):
    for number in gone:
        (stream.folder / "updates" / f"part-{number:05d}.parquet").unlink()
    sink = Remembering()
    with log_events() as logged:
        figures = through(stream.pump(sink))
    absent = {one for place in lacks for one in POSITIONS[place]}
    assert sink.ids == [one for one in EVERY if one not in absent]
    assert figures["lost"] == len(absent) and figures["released"] == len(EVERY) and adds_up(figures)
    assert figures["delivered"] == len(sink.ids)
    assert [one["count"] for one in logged if one["event"] == "sink_lost_updates"]
    # the next life knows it from the file
    again = through(stream.pump(sink))
    assert again["lost"] == len(absent) and again["delivered"] == len(sink.ids)


def test_files_that_were_delivered_before_they_went_lose_nothing(stream):
    sink = Remembering()
    through(stream.pump(sink))
    for number in range(3):
        (stream.folder / "updates" / f"part-{number:05d}.parquet").unlink()
    assert through(stream.pump(sink))["lost"] == 0 and sink.ids == EVERY


def test_receiver_that_is_away_delays_no_other_and_gets_all_when_it_is_back(stream, monkeypatch):
    monkeypatch.setattr(pumps, "LEAST_PAUSE_S", 0.001)
    away, other = Remembering("memory/away"), Remembering("memory/other")
    away.on_open = [SinkAway("not now")] * 5
    away.on_deliver = [None, SinkAway("cut off"), None, SinkAway("cut off")]
    monkeypatch.setattr(pumps, "MOST", 50)
    positions = Positions(stream.folder, "one")
    both = [Pump(one, "one", stream.supply, positions, lambda: 200) for one in (away, other)]
    with log_events() as logged:
        for one in both:
            one.begin()
        await_that(lambda: other.ids == EVERY)
        await_that(lambda: away.ids == EVERY)
        assert both[0].reconnects == 7 and both[1].reconnects == 0
        await_that(lambda: both[0].figures()["waiting"] == 0)
        for one in both:
            one.close()
    for one in both:
        assert adds_up(one.figures()) and one.figures()["delivered"] == len(EVERY)
    saved = json.loads((stream.folder / FILE).read_text())["sinks"]
    assert {name: row["updates"] for name, row in saved.items()} == dict.fromkeys(saved, len(EVERY)) and len(saved) == 2
    assert 1 <= [one["event"] for one in logged].count("sink_away") <= 3


def test_receiver_that_goes_away_while_there_is_nothing_is_noticed_and_opened_again(stream, monkeypatch):
    monkeypatch.setattr(pumps, "CHECK_S", 0.0)
    sink = Remembering()
    pump = stream.pump(sink)
    with log_events() as logged:
        pump.begin()
        await_that(lambda: sink.ids == EVERY)
        sink.on_open, sink.on_check = [SinkAway("still gone")], [SinkAway("gone")]
        await_that(lambda: pump.reconnects == 2 and pump.state == "delivering")
        pump.close()
    assert [(one["event"], one["sink"]) for one in logged] == [("sink_away", pump.name), ("sink_back", pump.name)]
    assert sink.ids == EVERY and adds_up(pump.figures())


def test_refusal_at_the_first_attempt_is_a_failure_and_a_later_one_stops_this_sink(stream, monkeypatch):
    sink = Remembering()
    sink.on_open = [ConfigError("wrong password")]
    with pytest.raises(ConfigError, match="wrong password"):
        through(stream.pump(sink))
    monkeypatch.setattr(pumps, "MOST", 20)
    sink.on_deliver = [None, DeliveryError("another process")]
    pump = stream.pump(sink)
    with log_events() as logged:
        pump.begin()
        await_that(lambda: pump.ended)
        pump.join(5)
    figures = pump.figures()
    assert pump.failure is None and figures["state"] == "stopped" and "another process" in figures["error"]
    assert ["another process" in one["why"] for one in logged if one["event"] == "sink_stopped"] == [True]
    assert figures["waiting"] > 0 and adds_up(figures)


def test_file_that_cannot_be_read_stops_the_sink_and_nothing_else(stream, monkeypatch):
    monkeypatch.setattr(pumps, "MOST", 20)
    (stream.folder / "updates" / "part-00001.parquet").write_bytes(b"damaged")
    stream.history.parts._last[("part-00001.parquet",)] = ENDS[19]
    sink = Remembering()
    pump = stream.pump(sink)
    with log_events() as logged:
        pump.begin()
        await_that(lambda: pump.ended)
        pump.join(5)
    assert pump.failure is None and pump.state == "stopped" and "Parquet" in pump.error
    assert sink.ids == EVERY[: sum(SIZES[:10])] and logged[-1]["event"] == "sink_stopped"


def test_position_beyond_the_log_is_refused_and_one_that_is_matched_again_is_waited_for(tmp_path):
    stream = Stream(tmp_path, in_memory=False)
    sink = Remembering()
    sink.position = Position(ENDS[34], END_INDEX)
    with pytest.raises(ConfigError, match="older copy"):
        through(stream.pump(sink, logged=ENDS[34]))
    pump = stream.pump(sink)
    pump.begin()
    stream.release(30, 33)
    pump.wake()
    stream.release(33, 40)
    pump.wake()
    await_that(lambda: pump.figures()["waiting"] == 0 and sink.ids)
    pump.close()
    assert sink.ids == [one for some in POSITIONS[35:] for one in some]
    assert pump.figures()["lost"] == 0 and pump.figures()["delivered"] == len(EVERY)


END_INDEX = 2**62


def test_boundaries_without_updates_are_said(tmp_path):
    stream = Stream(tmp_path, in_memory=False)
    sink = Remembering()
    pump = stream.pump(sink)
    pump.begin()
    await_that(lambda: pump.figures()["waiting"] == 0)
    stream.history.append([], 199)
    pump.wake()
    await_that(lambda: sink.position == Position(199, 0))
    pump.close()
    assert sink.chunks[-1] == ([], Position(199, 0), True, 199)


def test_file_of_positions_of_another_stream_counts_for_nothing_and_a_damaged_one_is_refused(stream, tmp_path):
    through(stream.pump(Remembering(exactly_once=False)))
    again = Remembering(exactly_once=False)
    through(stream.pump(again, "two"))
    assert again.ids == EVERY
    (tmp_path / FILE).write_text("{")
    with pytest.raises(InputError, match="remove it"):
        Positions(tmp_path, "one")


def test_committed_parts_are_delivered_as_they_come_and_a_gap_stops_the_sink(tmp_path):
    updates, sink = tmp_path / "updates", Remembering()
    write_part(updates, 0, range(10))
    supply = CommittedUpdates(updates, Parts(updates, ENDS, texts))
    pump = Pump(sink, "one", supply, Positions(tmp_path, "one"), lambda: 200)
    pump.begin()
    wanted = [one for some in POSITIONS[:20] for one in some]
    await_that(lambda: sink.ids == wanted[: len(sink.ids)] and len(sink.ids) == sum(SIZES[:10]))
    write_part(updates, 1, range(10, 20))
    await_that(lambda: sink.ids == wanted)
    await_that(lambda: pump.figures()["waiting"] == 0)
    assert pump.figures()["delivered"] == len(wanted)
    write_part(updates, 3, range(30, 40))
    await_that(lambda: pump.ended)
    assert "are gone" in pump.error and sink.ids == wanted and pump.state == "stopped"
