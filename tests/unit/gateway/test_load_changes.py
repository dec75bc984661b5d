"""Subscriptions that a load test of a server adds and ends: lines of requests, what the answers say, the recount over
lifetimes, and figures of the report; without a server."""

import json

import numpy as np
import pytest

from gateway.load.check import ENOUGH, Sent, _stream, recount
from gateway.load.follower import FollowerAnswer, Received
from gateway.load.lifetimes import Lifetimes, report_of, shortcomings
from gateway.load.loadtest import render
from gateway.load.posting import Posted, PostingShare
from gateway.load.senders import REFUSED, UNANSWERED, Changed, _ChangeLines, _ChangeOutcomes
from gateway.load.served import ServedWorkload, idf_at, subscription_rows, weighed
from matching.bulk_oracle import NEVER
from matching.naive import Oracle
from matching.space import EARTH, Space
from matching.window import Boundary, Window
from tests.unit.gateway.test_load_recount import report_of as report_of_a_server

LOAD = ServedWorkload("rabc", 5, {"boolean": 900, "topk": 30, "knn": 30, "skyline": 40}, 0.4, "price", Space(*EARTH))
WINDOW = Window.parse("count:150")
MESSAGES, PRIMER, EACH, CHANGES = 799, 7, 25, 1_500
POSTED = Posted(0.1, 0.2, 0.3, 0.4, 5.0, "")


def changed_of(from_seq, first=0, answered_s=None, **more):
    from_seq = np.asarray(from_seq, np.int64)
    answered_s = np.zeros(from_seq.shape) if answered_s is None else np.asarray(answered_s)
    return Changed(first, from_seq, answered_s, more.get("refused", {}), more.get("posted", POSTED))


def lifetimes_of(from_seq):
    table = LOAD.subscribers().make()
    lifetimes = Lifetimes(table, np.full(len(table), PRIMER + 1))
    half = len(from_seq) // 2
    lifetimes.add(changed_of(from_seq[:half]))
    lifetimes.add(changed_of(from_seq[half:], half))
    return lifetimes


@pytest.fixture(scope="module")
def truth():
    """When changes took effect, what was sent, and what a right server would have sent: by the plain oracle, which has
    each subscription added and ended batch by batch."""
    number = np.arange(MESSAGES)
    sent = Sent(PRIMER, number, PRIMER + 1 + number)
    rng = np.random.default_rng(3)
    from_seq = np.sort(rng.integers(PRIMER + 1, PRIMER + MESSAGES, CHANGES))
    from_seq = np.stack([from_seq, from_seq + rng.integers(0, 2, CHANGES)], 1)
    lifetimes, stream = lifetimes_of(from_seq), _stream(LOAD, sent)
    mine = weighed(LOAD, lifetimes.table, lifetimes.at, idf_at(PRIMER))
    oracle, updates, first = Oracle(WINDOW, LOAD.space.max_distance), [], 0
    ends = stream.seq[EACH - 1 :: EACH].tolist()
    none = LOAD.subscribers()._none_removed()
    for at, last in enumerate(ends):
        begins = np.flatnonzero((mine.at >= first) & (mine.at <= last))
        goes = np.flatnonzero((lifetimes.end >= first) & (lifetimes.end <= last))
        removed = none._replace(number=mine.number[goes], kind=mine.kind[goes], at=lifetimes.end[goes])
        some = stream.take(np.flatnonzero((stream.seq >= first) & (stream.seq <= last)))
        updates += [
            (last, *update) for update in oracle.advance(
                Boundary(at, first, last, WINDOW.floor(last, 0)), some, mine.take(begins), removed
            )
        ]  # fmt: skip
        first = last + 1
    boundary, as_of, subscription, seq, change, score = (np.array(column) for column in zip(*updates, strict=True))
    message = np.concatenate([[-1], number])[np.searchsorted(stream.seq, seq)]
    received = Received(np.zeros(len(seq)), subscription, message, seq, as_of, boundary, change, score)
    return from_seq, sent, received


def test_recount_knows_for_which_messages_each_subscription_stood(truth):
    from_seq, sent, received = truth
    lifetimes = lifetimes_of(from_seq)
    report = recount(LOAD, WINDOW, lifetimes, sent, received)
    assert report["exact"] and report["compared"] == len(received.seq) > ENOUGH, report
    mine = lifetimes.changed[received.subscription]
    assert report["compared_changed"] == np.count_nonzero(mine) > ENOUGH
    assert report["changed_subscriptions"] == np.unique(received.subscription[mine]).shape[0] > 100
    for kind, one in report["by_kind"].items():
        assert one["exact"] and one["compared_changed"] > 10, (kind, one)


@pytest.mark.parametrize("column", [0, 1], ids=["ended", "added"])
@pytest.mark.parametrize("by", [-3, 3])
def test_recount_with_boundaries_that_are_a_few_messages_off_is_not_exact(truth, column, by):
    from_seq, sent, received = truth
    off = from_seq.copy()
    off[:, column] = np.maximum(off[:, column] + by, PRIMER + 1)
    report = recount(LOAD, WINDOW, lifetimes_of(off), sent, received)
    assert not report["exact"] and report["missing"] + report["extra"] > 5, report


def test_recount_over_changes_without_an_answer_is_not_exact(truth):
    from_seq, sent, received = truth
    last = from_seq.copy()
    last[-1] = UNANSWERED  # whatever it did, behind the last of their updates
    report = recount(LOAD, WINDOW, lifetimes_of(last), sent, received)
    assert report["unanswered"] == 2 and not report["exact"]


def test_lifetimes_say_what_a_server_may_still_have():
    table = LOAD.subscribers().make()
    count = len(table)
    lifetimes = Lifetimes(table, np.full(count, 8))
    assert lifetimes.standing(0) == list(range(count)) and not lifetimes.changed.any()
    lifetimes.add(changed_of([[20, 21], [REFUSED, 23], [25, REFUSED], [UNANSWERED, UNANSWERED]]))
    assert lifetimes.end[:5].tolist() == [20, NEVER, 25, NEVER, NEVER] and lifetimes.unanswered == 2
    assert lifetimes.at[count:].tolist() == [21, 23, NEVER, NEVER]
    still = [1, *range(3, count), count, count + 1]
    assert lifetimes.standing(4) == still and lifetimes.standing(6) == [*still, count + 4, count + 5]
    assert np.flatnonzero(lifetimes.changed).tolist() == [0, 2, *range(count, count + 4)]
    assert lifetimes.table.number.tolist() == list(range(count + 4))


def test_lines_of_changes_end_the_oldest_and_add_its_copy_under_a_new_id():
    made = LOAD.subscribers()
    table, lines = made.make(), _ChangeLines(LOAD)
    count, rows = len(table), list(subscription_rows(LOAD, table, made.filters_of(table)))
    part = PostingShare(count - 2, count + 600, 0, 1, 100.0, 0.0)
    pieces = list(lines.pieces(part))
    flat = [line for piece in pieces for line in piece]
    assert len(pieces) > 1 and len(flat) == len(part.numbers)
    for number, line in zip(part.numbers, flat, strict=True):
        end, begin = map(json.loads, line.splitlines())
        assert end == {"unsubscribe": LOAD.subscription_id(number)}
        assert begin == rows[number % count] | {"subscription_id": LOAD.subscription_id(count + number)}
    assert sum(b'"where"' in line for line in flat) > 20 and sum(b'"not_keywords"' in line for line in flat) > 20


def test_outcomes_of_changes_say_from_which_message_each_counts():
    outcomes = _ChangeOutcomes(PostingShare(0, 3, 0, 1, 100.0, 0.0))
    for line in (
        {"line": 1, "status": "deleted", "subscription_id": "a", "from_seq": 7},
        {"line": 2, "status": "created", "subscription_id": "b", "from_seq": 8, "etag": "x"},
        {"line": 3, "status": "refused", "reason": "unknown_subscription", "detail": "a"},
        {"line": 4, "status": "unchanged", "subscription_id": "b"},
    ):
        outcomes.take(json.dumps(line).encode())
    outcomes = outcomes.result(POSTED)
    assert outcomes.from_seq.tolist() == [[7, 8], [REFUSED, REFUSED], [UNANSWERED, UNANSWERED]]
    assert outcomes.refused == {"unknown_subscription": 1, "unchanged": 1}
    assert np.isfinite(outcomes.answered_s).sum() == 4
    lines = shortcomings(changed_of(outcomes.from_seq, refused=outcomes.refused, posted=POSTED._replace(failure="x")))
    assert lines[0] == "x" and "1 changes of subscriptions: unchanged" in lines and "have no answer" in lines[-1]
    assert shortcomings(changed_of([[1, 1]], posted=POSTED._replace(behind_at_end_s=1.5))) == [
        "changes of subscriptions are 1.5 s behind"
    ]


def followed_of(through_of, through_s):
    received = Received(*(np.array([through_of[-2]]) for _ in Received._fields))  # no update at the last boundary
    return FollowerAnswer(
        received, 0, [], "", int(through_of[-1]), 0.1, np.array(through_of), np.array(through_s, float)
    )


def test_report_of_changes_counts_from_when_they_were_due_to_the_answer_and_to_the_effect():
    # changes are due at 10.0, 11.0 (behind the warm-up) and 12.0; the last counts behind the last update
    changed = changed_of([[5, 5], [10, 12], [21, REFUSED]], answered_s=[[10.1, 10.1], [11.25, 11.5], [12.25, 12.25]])
    followed = followed_of([9, 11, 20, 25], [10.5, 11.75, 13.0, 17.0])
    report = report_of(changed, followed, PostingShare(0, 3, 0, 1, 1.0, 10.0), 0.5)
    assert (report["offered"], report["done"], report["added"], report["ended"]) == (6, 5, 2, 3)
    assert report["answer"]["count"] == 3 and report["answer"]["max_s"] == 0.5
    assert report["answer"]["p50_s"] == pytest.approx(0.25, rel=0.05)
    assert report["effect"]["count"] == 2 and report["effect"]["max_s"] == 2.0
    assert report["effect"]["p50_s"] == pytest.approx(0.75, rel=0.05)
    shown = render(report_of_a_server(changes=report))
    assert "6 offered, 5 done (2 added, 3 ended)" in shown and "p99 2,000 ms" in shown
    assert f"p50 {1e3 * report['answer']['p50_s']:,.0f} ms" in shown
