"""Load tests of a server, without one: the recount finds each sort of wrong update, words and ids fit, and a generator
says how late it is and why."""

import numpy as np
import pytest

from gateway.load import posting
from gateway.load.check import ENOUGH, Sent, _stream, recount
from gateway.load.follower import Received, latencies
from gateway.load.lifetimes import Lifetimes
from gateway.load.loadtest import SHORT, render
from gateway.load.posting import PostingShare, Sending
from gateway.load.ramp import judge
from gateway.load.served import WORDS, ServedWorkload, idf_at, message_lines, subscription_rows, weighed
from matching.bulk_oracle import NEVER, BulkOracle
from matching.naive import Oracle
from matching.naive_rows import messages_of
from matching.space import EARTH, Space
from matching.window import Boundary, Window

COUNTS = {"boolean": 3_000, "topk": 60, "decay": 5, "knn": 40, "skyline": 10}
WINDOW = Window.parse("count:300")
LOAD = ServedWorkload("rabc", 5, COUNTS, 0.4, "price", Space(*EARTH, distance="sphere"))
MESSAGES, PRIMER, EACH = 1_200, 7, 40


@pytest.fixture(scope="module")
def truth():
    """A table, what was sent, and what a right server would have sent: by the plain oracle, boundary by boundary."""
    table = LOAD.subscribers().make()
    registered_at = np.full(len(table), PRIMER + 1)
    number = np.arange(MESSAGES)
    # another producer's messages lie between ours
    sent = Sent(PRIMER, number, PRIMER + 2 + number + number // 50)
    stream = _stream(LOAD, sent)
    mine = weighed(LOAD, table, registered_at, idf_at(PRIMER))
    mine = mine.take(np.flatnonzero(mine.kind != 2))
    ends = [int(stream.seq[at]) for at in range(EACH, len(stream), EACH)] + [int(stream.seq[-1])]
    boundaries = [
        Boundary(at, first, last, WINDOW.floor(last, 0))
        for at, (first, last) in enumerate(zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True))
    ]
    updates = BulkOracle(mine, np.full(len(mine), NEVER), LOAD.space.max_distance).advance(boundaries, stream)
    boundary = np.array(ends)[np.searchsorted(ends, updates.as_of)]
    place = np.searchsorted(stream.seq, updates.seq)
    message = np.concatenate([[-1], number])[place]
    received = Received(
        np.zeros(len(updates)), updates.number, message, updates.seq, updates.as_of, boundary, updates.change,
        updates.score,
    )  # fmt: skip
    return table, registered_at, sent, received, stream


def changed(received, rows, **columns):
    taken = Received(*(column[rows] for column in received))
    return taken._replace(**{name: change(getattr(taken, name)) for name, change in columns.items()})


def at_row(row, change):
    """Changes one row of a column."""

    def made(column):
        copy = column.copy()
        copy[row] = change(copy[row])
        return copy

    return made


def test_recount_of_right_updates_is_exact_and_says_what_it_leaves_out(truth):
    table, registered_at, sent, received, _ = truth
    report = recount(LOAD, WINDOW, Lifetimes(table, registered_at), sent, received)
    assert report["exact"] and report["compared"] == len(received.seq) > ENOUGH
    assert report["not_checked"] == ["decay"]
    assert all(one["compared"] > 1 for one in report["by_kind"].values()), report["by_kind"]
    assert report["compared_changed"] == report["changed_subscriptions"] == report["unanswered"] == 0
    assert not any(report[each] for each in ("missing", "extra", "repeated", "scores_off", "misnamed"))


def test_recount_that_is_nearly_empty_is_not_exact(truth):
    table, registered_at, _, received, _ = truth
    few = Sent(PRIMER, np.arange(20), PRIMER + 2 + np.arange(20))
    rows = np.flatnonzero(received.boundary < 0)
    report = recount(LOAD, WINDOW, Lifetimes(table, registered_at), few, changed(received, rows))
    assert not report["exact"] and report["compared"] < ENOUGH


@pytest.mark.parametrize(
    ("what", "spoil"),
    [
        ("missing", lambda n: (np.delete(np.arange(n), n // 2), {})),
        ("repeated", lambda n: (np.append(np.arange(n), n // 2), {})),
        ("extra", lambda n: (np.arange(n), {"as_of": at_row(n // 2, lambda value: value + 1)})),
        ("scores_off", lambda n: (np.arange(n), {"score": lambda column: column * 1.001})),
        ("misnamed", lambda n: (np.arange(n), {"message": at_row(n // 2, lambda value: value + 1)})),
        ("misnamed", lambda n: (np.append(np.arange(n), 0), {"subscription": at_row(n, lambda value: 10**6)})),
    ],
)
def test_recount_finds_one_wrong_update(truth, what, spoil):
    table, registered_at, sent, received, _ = truth
    rows, columns = spoil(len(received.seq))
    report = recount(LOAD, WINDOW, Lifetimes(table, registered_at), sent, changed(received, rows, **columns))
    assert not report["exact"] and report[what] > 0


def test_recount_with_a_time_window_leaves_out_what_depends_on_it(truth):
    table, registered_at, sent, received, _ = truth
    report = recount(LOAD, Window.parse("time:60"), Lifetimes(table, registered_at), sent, received)
    assert report["not_checked"] == ["topk", "decay", "skyline"] and set(report["by_kind"]) == {"boolean", "knn"}


def test_recounted_stream_is_what_the_plain_oracle_reads(truth):
    """The bulk oracle's boolean matches beside those of the plain one, over the same rows."""
    table, registered_at, _, received, stream = truth
    mine = weighed(LOAD, table, registered_at, idf_at(PRIMER))
    boolean = mine.take(np.flatnonzero(mine.kind == 0)[:1_000])
    oracle = Oracle(WINDOW, LOAD.space.max_distance)
    last = int(stream.seq[-1])
    whole = Boundary(0, 0, last, WINDOW.floor(last, 0))
    removed = LOAD.subscribers()._none_removed()
    told = oracle.advance(whole, stream, boolean, removed)
    matched = (received.change == 0) & (received.subscription < 1_000)
    got = set(zip(received.subscription[matched].tolist(), received.seq[matched].tolist(), strict=True))
    assert {(one.number, one.seq) for one in told} == got and len(got) > 20
    assert next(messages_of(stream)).weights.keys() == set(range(WORDS))


def test_lines_and_rows_have_the_words_places_and_filters_of_the_arrays():
    table = LOAD.subscribers().make()
    filters = LOAD.subscribers().filters_of(table)
    rows = list(subscription_rows(LOAD, table, filters))
    assert len(rows) == sum(COUNTS.values()) and {row["kind"] for row in rows} == COUNTS.keys()
    assert sum("where" in row for row in rows) == (filters.low >= 0).sum() > 20
    assert sum("not_keywords" in row for row in rows) == (filters.without >= 0).sum() > 20
    messages, numbers = next(LOAD.pieces(0))
    (line,) = message_lines(LOAD, messages, numbers, [3])
    words = line.decode().split('"text":"')[1].split('"')[0].split()
    cut = slice(*messages.term_offsets[3:5])
    assert len(words) == messages.counts[cut].sum() and set(words) == set(map(LOAD.word, messages.terms[cut]))
    assert f'"price":{numbers[3]}' in line.decode()
    ordered = [LOAD.word(term) for term in range(WORDS)]
    assert sorted(ordered, reverse=True) == ordered, "a server gives later words lower ids"
    assert len(LOAD.primer()["text"]) < 65_536


class _SlowServer:
    """Takes what is sent after some seconds of a clock that it moves itself."""

    def __init__(self, monkeypatch, takes_s):
        self.now_s, self._takes_s, self.sent = 0.0, takes_s, []
        monkeypatch.setattr(posting, "time", self)

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds

    def send(self, data):
        self.sent.append(data)
        self.now_s += self._takes_s


@pytest.mark.parametrize(("takes_s", "late"), [(0.0, False), (0.5, True)])
def test_generator_says_how_late_it_is_and_that_the_server_kept_it_waiting(monkeypatch, takes_s, late):
    server = _SlowServer(monkeypatch, takes_s)
    sending = Sending(PostingShare(0, 100, 1, 2, 10.0, 1.0))
    sending.run(server, iter([b"x\n"] * 50))
    assert sum(data.count(b"x\n") for data in server.sent) == 50
    assert (sending.furthest_s > 0.4) is late and (sending.blocked_s > 5.0) is late
    assert server.now_s >= 1.0 + 99 / 10, "no message before it is due"


def test_latency_of_a_match_is_its_own_and_of_a_change_that_of_its_boundary():
    received = Received(
        np.array([5.0, 5.0, 5.0]), np.zeros(3, int), np.zeros(3, int), np.array([10, 10, 2]), np.array([10, 14, 3]),
        np.array([14, 14, 3]), np.array([0, 1, 1], np.int8), np.zeros(3),
    )  # fmt: skip
    due_s, late_s = latencies(received, np.arange(100, 110), np.arange(10, 20), 100, 1.0, 2.0)
    assert due_s.tolist() == [0.0, 2.0] and late_s.tolist() == [4.0, 2.0], "an earlier step's is left out"


def report_of(**changes):
    """A report of a test of a server."""
    latency = {"count": 5, "p50_s": 0.01, "p99_s": 0.9, "max_s": 1.0}
    rows = [{"behind_at_end_s": 0.0, "furthest_behind_s": 0.0, "blocked_s": 0.25, "processor_share": 0.97}]
    return {
        "rate": 100.0, "peak_per_s": None, "reached_rate": 100.0, "kept_up": False, "behind_at_end_s": 0.0,
        "furthest_behind_s": 0.0, "updates": 5, "updates_per_s": 1.0, "batches": 3, "checkpoints": None,
        "generators": rows, "short": 1, "follower_share": 0.1, "foreign": 2, "refused": {"not_json": 4},
        "failures": ["the connection broke"], "gaps": [], "latency": latency, "warm_up": {"count": 0}, "check": None,
    } | changes  # fmt: skip


def test_report_says_that_generators_are_short_and_what_was_refused():
    text = render(report_of())
    assert SHORT in text and "4 messages: not_json" in text and "the connection broke" in text
    assert "0.25 s waiting for the server" in text and "2 updates of others" in text and "checkpoints" not in text
    assert SHORT in judge(report_of(), 0.5).why and SHORT not in judge(report_of(short=0), 0.5).why
    assert judge(report_of(short=0), 1.0).why == "the connection broke"
