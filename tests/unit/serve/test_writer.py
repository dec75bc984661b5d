"""Requests and the log: many share one write, and none is answered before it is on disk."""

import threading
from collections import Counter
from contextlib import ExitStack

import pytest

from gateway.live import admission as admissions
from gateway.runs.reader import subscriber
from gateway.serve import writer as writers
from gateway.serve.etags import Conditions
from gateway.serve.writer import PublishedRow, Subscribe, Unsubscribe
from matching.errors import DeliveryError
from matching.kinds import KINDS
from matching.subscription_rows import SubscriptionRows
from matching.words.message_words import MessageWords
from spouts.change_block import ChangeBlock, checked_changes
from spouts.handover import handover_of
from spouts.log import read_records
from tests.support.serving import lines_of
from tests.support.writing import DEADLINE_S, WriterStream, await_
from topology.preparing import Preparing
from topology.warmup import WORDS


class Held(Preparing):
    """Prepares nothing before it may."""

    def __init__(self):
        super().__init__(KINDS, {}, {}, load=False, ready=["boolean", WORDS])
        self.may = threading.Event()

    def _prepare(self, name):
        assert self.may.wait(DEADLINE_S)


@pytest.fixture
def stack():
    with ExitStack() as one:
        yield one


def message(name, text="tea"):
    return PublishedRow(lines_of([{"id": name, "text": text, "lon": 1, "lat": 1}]).strip())


def tea(name, **more):
    return {"subscription_id": name, "kind": "boolean", "keywords": "tea", "region": [0, 0, 2, 2], **more}


def test_writer_many_requests_are_one_batch_and_one_write_to_disk(stack, tmp_path, monkeypatch):
    stream, forced = stack.enter_context(WriterStream(tmp_path / "out")), []
    monkeypatch.setattr("gateway.live.write_ahead_log.os.fsync", forced.append)
    found = [stream.submit(message(f"m{number}"), Subscribe(tea(f"s{number}"))) for number in range(200)]
    stream.writer.begin()
    stream.end()
    assert [[one["status"] for one in outcomes] for outcomes in found] == [["accepted", "created"]] * 200
    assert [outcomes[0]["seq"] for outcomes in found] == list(range(200))
    assert [outcomes[1]["from_seq"] for outcomes in found] == list(range(1, 201))
    assert len(stream.records()) == 1 and len(forced) == 1


def test_writer_answers_nothing_before_it_is_on_disk(stack, tmp_path, monkeypatch):
    stream = stack.enter_context(WriterStream(tmp_path / "out"))
    at_disk, go_on = threading.Event(), threading.Event()

    def force(descriptor):
        at_disk.set()
        assert go_on.wait(DEADLINE_S)

    monkeypatch.setattr("gateway.live.write_ahead_log.os.fsync", force)
    found = stream.submit(message("m"), message("m"), Subscribe(tea("s")), message("n", 7))
    stream.writer.begin()
    assert at_disk.wait(DEADLINE_S) and found == []
    go_on.set()
    stream.end()
    assert [one["status"] for one in found] == ["accepted", "duplicate", "created", "refused"]


def test_writer_rows_wait_for_others_only_while_the_topology_is_busy(stack, tmp_path):
    stream = stack.enter_context(WriterStream(tmp_path / "out", linger_s=10 * DEADLINE_S))
    stream.writer.begin()
    first = stream.submit(message("m0"))
    await_(lambda: first)
    found = [stream.submit(message(f"m{number}")) for number in (1, 2)]
    await_(lambda: stream.writer.waiting == 0)
    assert found == [[], []], "the first is in flight"
    stream.in_flight.advance(0)
    await_(lambda: all(found))
    assert [record.messages for record in stream.records()] == [1, 2]


def test_writer_while_the_topology_has_no_room_gathers_and_then_refuses(stack, tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "MOST_WAITING", 20)
    stream = stack.enter_context(WriterStream(tmp_path / "out", most=1, batch=5))
    stream.writer.begin()
    first = stream.submit(message("m0"))
    await_(lambda: first)
    found = [stream.submit(message(f"m{number}")) for number in range(1, 6)]
    await_(lambda: stream.writer.waiting == 0)  # the open batch is full
    found += [stream.submit(message(f"m{number}")) for number in range(6, 16)]
    assert stream.writer.waiting == 10
    assert stream.writer.submit([message("x")] * 2, 1, print) is False and not any(found)
    stream.in_flight.advance(0)
    await_(lambda: all(found[:5]))

    def matched():
        stream.in_flight.advance(stream.wal.next_seq - 1)
        return all(found)

    await_(matched)
    stream.end()
    assert [one[0]["seq"] for one in found] == list(range(1, 16))


def test_writer_changes_alone_are_logged_though_there_is_no_room(stack, tmp_path):
    stream = stack.enter_context(WriterStream(tmp_path / "out", most=0))
    stream.writer.begin()
    found = stream.submit(Subscribe(tea("s")), Unsubscribe("s"), Unsubscribe("s"))
    await_(lambda: found)
    assert [one["status"] for one in found] == ["created", "deleted", "refused"] and found[2][
        "reason"
    ] == "unknown_subscription"
    stream.end()


def test_writer_ids_and_subscriptions_are_known_after_a_restart(stack, tmp_path):
    with ExitStack() as life:
        stream = life.enter_context(WriterStream(tmp_path / "out"))
        stream.writer.begin()
        first = stream.submit(
            *(message(f"m{number}") for number in range(50)), Subscribe(tea("s", expires_at="2100-01-01"))
        )
        stream.end()
        before = stream.registry.get("s")
        assert before.at == 50
    stream = stack.enter_context(WriterStream(tmp_path / "out", remembered=20))
    stream.writer.begin()
    again = stream.submit(
        message("m30"), message("m49"), message("m49", "coffee"), Subscribe(tea("s", expires_at="2100-01-01"))
    )
    stream.end()
    assert [one["status"] for one in again] == ["duplicate", "duplicate", "refused", "unchanged"]
    assert [again[0]["seq"], again[1]["seq"]] == [first[30]["seq"], first[49]["seq"]]
    assert stream.registry.get("s") == before and before.expires_us is not None


def test_writer_ends_subscriptions_whose_time_is_over_also_after_a_restart(stack, tmp_path):
    rows = [
        Subscribe(tea("early", expires_at=1_000)),
        Subscribe(tea("late", expires_at=5_000)),
        Subscribe(tea("never")),
    ]
    with ExitStack() as life:
        stream = life.enter_context(WriterStream(tmp_path / "out", now=lambda: 0.0))
        stream.submit(*rows)
        stream.submit(Subscribe(tea("early", expires_at=3_000), replace=True))
        stream.writer.begin()
        stream.end()
        assert len(stream.registry) == 3
    now = [2_000.0]
    stream = stack.enter_context(WriterStream(tmp_path / "out", now=lambda: now[0]))
    stream.writer.begin()
    assert stream.submit(message("m")) is not None
    await_(lambda: stream.wal.next_seq == 1)
    assert set(stream.registry) == {"early", "late", "never"}, "its time was replaced"
    now[0] = 5_000.0
    await_(lambda: set(stream.registry) == {"never"})
    stream.end()
    assert [line for record in stream.records() for _, line in record.changes_from(0)][-2:] == [
        b'{"unsubscribe":"early"}',
        b'{"unsubscribe":"late"}',
    ]
    assert stream.writer.expired == 2


def test_writer_whose_disk_is_full_says_so_to_all_who_wait(stack, tmp_path, monkeypatch):
    stream = stack.enter_context(WriterStream(tmp_path / "out"))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gateway.live.write_ahead_log.os.fsync", full)
    found = [stream.submit(message("m0")), stream.submit(message("m1"), Subscribe(tea("s")))]
    stream.writer.begin()
    with pytest.raises(DeliveryError, match="No space left"):
        stream.end()
    assert [[one["status"] for one in outcomes] for outcomes in found] == [["failed"], ["failed"] * 2]
    assert "No space left" in found[0][0]["detail"]
    assert stream.writer.submit([message("m2")], 1, print) is False


def nearest(name):
    return {"subscription_id": name, "kind": "knn", "keywords": "tea", "lon": 1, "lat": 1, "k": 2}


def test_writer_first_subscription_of_a_kind_waits_for_its_kernels_and_nothing_else_does(stack, tmp_path):
    preparing = Held()
    stream = stack.enter_context(WriterStream(tmp_path / "out", preparing=preparing))
    stream.writer.begin()
    waiting = stream.submit(Subscribe(nearest("n")))
    others = stream.submit(message("m0"), Subscribe(tea("s")), message("m1"))
    await_(lambda: others)
    assert [one["status"] for one in others] == ["accepted", "created", "accepted"]
    assert not waiting and "n" not in stream.registry
    assert stream.writer.preparing == ["knn"] and stream.writer.waiting == 1
    preparing.may.set()
    await_(lambda: waiting)
    assert (waiting[0]["status"], waiting[0]["from_seq"]) == ("created", 2)
    assert stream.writer.preparing == [] and stream.writer.waiting == 0
    stream.end()


def test_writer_that_ends_answers_what_waits_for_kernels_that_nothing_of_it_is_logged(stack, tmp_path):
    preparing = Held()
    stream = stack.enter_context(WriterStream(tmp_path / "out", preparing=preparing))
    stream.writer.begin()
    waiting = stream.submit(Subscribe(nearest("n")))
    stream.end()
    assert [one["status"] for one in waiting] == ["failed"] and not stream.records()
    preparing.may.set()


def test_writer_too_much_that_waits_for_kernels_is_refused(stack, tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "MOST_WAITING", 6)
    preparing = Held()
    stream = stack.enter_context(WriterStream(tmp_path / "out", preparing=preparing))
    stream.writer.begin()
    found = [stream.submit(Subscribe(nearest(f"n{number}"))) for number in range(3)]
    assert not stream.writer.submit([Subscribe(nearest("n3"))], 1, print)
    others = stream.submit(message("m"))
    await_(lambda: others)
    preparing.may.set()
    await_(lambda: all(found))
    stream.end()


def test_writer_callers_take_turns_however_much_the_others_have_sent(stack, tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "TURN_ROWS", 10)
    stream = stack.enter_context(WriterStream(tmp_path / "out"))
    floods = {f"flood {number}": [message(f"f{number}-{row}") for row in range(400)] for number in range(3)}
    found: dict = {name: [] for name in [*floods, "polite"]}
    for name, rows in floods.items():
        assert stream.writer.submit(rows, 100, found[name].extend, name)
    for number in range(3):
        assert stream.writer.submit([message(f"p{number}")], 100, found["polite"].extend, "polite")
    stream.writer.begin()
    stream.end()
    assert [one["seq"] for one in found["polite"]] == [30, 61, 92]
    for name, rows in floods.items():
        assert [one["id"] for one in found[name]] == [f"f{name[-1]}-{row}" for row in range(len(rows))]
        assert sorted(one["seq"] for one in found[name]) == [one["seq"] for one in found[name]]
    assert stream.writer.waiting == 0 and stream.writer._room.used == (0, 0)


def test_writer_small_request_does_not_wait_for_a_long_one_of_the_same_caller(stack, tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "TURN_ROWS", 10)
    stream, found, own = stack.enter_context(WriterStream(tmp_path / "out")), [], []
    for caller, first in (("a", found), ("", own)):
        for name, count in (("long", 100), ("short", 1)):
            rows = [message(f"{caller} {name} {row}") for row in range(count)]
            assert stream.writer.submit(rows, 100, first.extend if name == "short" else print, caller)
    stream.writer.begin()
    stream.end()
    assert found[0]["seq"] == 20, "behind a turn of each caller"
    assert own[0]["seq"] == 201, "rows of a source keep their order: its positions go forward"


def test_writer_limits_count_bytes_and_subscriptions_also_while_nothing_waits(stack, tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "MOST_WAITING", 20)
    monkeypatch.setattr(writers, "MOST_WAITING_BYTES", 1_000)
    preparing = Held()
    stream = stack.enter_context(WriterStream(tmp_path / "out", preparing=preparing))
    preparing.may.set()
    for rows in ([message("m")], [Subscribe(tea("s"))], [Subscribe(nearest("n"))], [Unsubscribe("s")]):
        assert not stream.writer.submit(rows * 11, 1, print), rows
        assert not stream.writer.submit(rows, 501, print), rows
    assert stream.writer.waiting == 0


def test_writer_batch_is_closed_behind_many_refused_rows(stack, tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "TURN_ROWS", 10)
    monkeypatch.setattr(writers, "_MOST_TAKEN", 50)
    stream, order = stack.enter_context(WriterStream(tmp_path / "out", batch=5)), []
    bad = [message("bad", 7)] * 500
    assert stream.writer.submit(bad, 1, lambda outcomes: order.append("flood"), "flood")
    assert stream.writer.submit([message("m")], 1, lambda outcomes: order.append("polite"), "polite")
    stream.writer.begin()
    stream.end()
    assert order == ["polite", "flood"] and stream.writer.refused["wrong_type"] == 500


def test_writer_takes_a_point_in_every_form_that_coordinates_have(stack, tmp_path):
    stream = stack.enter_context(WriterStream(tmp_path / "out"))
    stream.writer.begin()
    forms = [("1,5", "2.5"), (" 1.5 ", "25e-1"), (1.5, 2.5)]
    rows = [Subscribe(nearest(f"n{number}") | {"lon": lon, "lat": lat}) for number, (lon, lat) in enumerate(forms)]
    found = stream.submit(*rows)
    await_(lambda: found or stream.writer.ended)
    assert [one["status"] for one in found] == ["created"] * 3
    assert {stream.registry.get(f"n{number}").box for number in range(3)} == {(1.5, 2.5, 1.5, 2.5)}
    for number in range(3):
        columns = stream.registry.get(f"n{number}").columns
        parsed = stream.admission.rows.row(columns)
        assert subscriber(columns, parsed, KINDS).kilometres(1.5, 2.5) == 0.0


@pytest.mark.parametrize("size", [1, 2, 7, 1_000])
@pytest.mark.parametrize("together", [True, False])
def test_registry_of_a_log_is_that_of_the_requests_however_many_come_together(tmp_path, monkeypatch, size, together):
    monkeypatch.setattr(admissions, "_MANY", 1 if together else 10**9)
    rows = [Subscribe(nearest(f"n{number}") | {"keywords": ["tea", f"w{number % 7}"]}) for number in range(120)]
    rows += [Subscribe(tea("s", owner="me"), replace=True), Subscribe(tea("bad") | {"region": [3, 0, 2]})]
    rows += [Subscribe(nearest("n5") | {"lon": 7}), Subscribe(nearest("n5") | {"lon": "7,5"}, replace=True)]
    rows += [Unsubscribe("n6"), Unsubscribe("n6"), Subscribe(tea("n6", expires_at="2100-01-01")), Unsubscribe("s")]
    rows += [
        Subscribe(nearest("n8") | {"keywords": "tea w1", "match": 2, "not_keywords": "late"}, replace=True),
        message("m"),
    ]
    with WriterStream(tmp_path / "out") as stream:
        stream.writer.begin()
        found = [stream.submit(*rows[first : first + size]) for first in range(0, len(rows), size)]
        await_(lambda: sum(map(len, found)) == len(rows))
        counts = Counter((one["status"], one.get("reason")) for each in found for one in each)
        stream.end()
        before, last, admitted = stream.registry.listed(), stream.registry.last, stream.admission.vocabulary.admitted
    assert counts == {
        ("created", None): 122, ("replaced", None): 2, ("deleted", None): 2, ("accepted", None): 1,
        ("refused", "bad_region"): 1, ("refused", "subscription_exists"): 1, ("refused", "unknown_subscription"): 1,
    }  # fmt: skip
    with WriterStream(tmp_path / "out") as again:
        assert again.registry.listed() == before and again.registry.last == last
        assert list(again.registry.last) == list(last) and again.registry.owner_of("s") == "me"
        assert again.admission.vocabulary.admitted == admitted and {"tea", "w6", "late"} <= set(admitted)


def nested(depth):
    return [nested(depth - 1)] if depth else []


def subscriptions_of_all_sorts():
    """Subscriptions, most of them plain, and each that is not between plain ones."""
    point = {"kind": "knn", "keywords": ["tea", "cup"], "lon": 1, "lat": -0.0, "k": 3}
    odd = [
        tea("again"), tea("again"), tea("again", region=[0, 0, 1, 1]), tea(7), tea("deep", free=[[]] * 3),
        tea("far too deep", free=nested(90)), tea("marks", keywords='"tea"'), tea("where", where={"x": 1}),
        tea("query", keywords=None, query="tea OR cup"), tea("not", not_keywords="milk"),
        tea("told", tell={"at": "08:00"}), tea("marked", not_keywords='"milk"'), tea("k", k=0),
        tea("mine", owner="me"), tea("bad owner", owner=3), tea("ends", expires_at="2030-01-01T00:00:00Z"), tea(""),
        tea("at", at=3), tea("include", include=["text"]), tea("back", backfill=3),
        tea("wide", keywords=None, everything=True), point,
        point | {"subscription_id": "p", "lon": 181}, {"kind": "boolean"},
        point | {"subscription_id": "minus"}, tea("東京"),
        tea("polygon", region=None, polygon={"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 0]]]}),
        tea("long", free="x" * 2**21), tea("later", keywords=["tea", "new words"]), tea("s3", keywords="other"),
    ]  # fmt: skip
    rows = []
    for number, one in enumerate(odd):
        rows += [*(tea(f"s{number}-{at}") for at in range(3)), one, point | {"subscription_id": f"s{number}"}]
    return rows


def handed(stream):
    """The changes that the spouts get of each record, columns as lists, and those that they would read from the log."""
    waiting, vocabulary = handover_of(stream.wal.log).records, stream.admission.vocabulary
    checks = SubscriptionRows(MessageWords(vocabulary), stream.admission.space, KINDS)
    found = []
    for record, offset, _ in read_records(stream.wal.log):
        block = waiting.take(offset).changes
        again = ChangeBlock.of(list(checked_changes(record.lines, checks)), record.lines, False)
        assert block.words and block.refiltered, "some wait for their words"
        for one, table in ((block, block.known_now(vocabulary, checks)), (again, again.table)):
            columns = [column.tolist() for column in table]
            found.append(repr((one.names, one.rows.tolist(), columns, one.stopped.tolist(), one.backfilled)))
        found.append((block.words, block.word_offsets.tolist(), block.refiltered, block.size_bytes))
        assert found[-3] == found[-2]
    return found


def test_subscriptions_taken_together_are_those_taken_one_by_one(stack, tmp_path):
    lives = []
    for name in ("together", "one by one"):
        stream = stack.enter_context(WriterStream(tmp_path / name))
        before = stream.submit(Subscribe(tea("ended")), Subscribe(tea("here")), Unsubscribe("ended"), message("m"))
        rows = [Subscribe(dict(columns)) for columns in [tea("ended"), tea("here"), *subscriptions_of_all_sorts()]]
        if name == "one by one":  # conditions that ask for nothing
            rows = [row._replace(conditions=Conditions(none_match=frozenset())) for row in rows]
        found = stream.submit(*rows)
        stream.writer.begin()
        stream.end()
        statuses = Counter(one["status"] for one in found)
        assert len(before) == 4 and len(found) == len(rows) and statuses["created"] > 100 and statuses["refused"] > 8
        registered = [(one, one.columns) for one in stream.registry.listed()]
        admission = stream.admission
        words = admission.vocabulary.admitted, admission.new_terms._open, admission.kinds_met
        logged = [(record.changes, record.lines, record.admitted) for record in stream.records()]
        lives.append((found, registered, stream.registry.last, stream.registry.owned, words, logged, handed(stream)))
    for together, alone in zip(*lives, strict=True):
        assert together == alone
