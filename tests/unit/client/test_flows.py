"""What the client does when answers are lost, refused for a time, repeated, or streams break: without a socket."""

import asyncio
import json
from typing import Any, NamedTuple

import msgspec
import pytest

from gateway.client import flows, requests
from gateway.client.answers import Answer, Failure, Request
from gateway.client.errors import Denied, Failed, Gap, NotFound, Refused, Throttled, Unreachable
from gateway.client.flows import Followed, Patience, SentRows
from gateway.client.rows import Missed, Progress, Snapshot, Update

PATIENCE = Patience(30.0, 0.2, 20.0, lambda: 1.0)
LOST, NEVER_SENT = Failure("the connection broke", True), Failure("connection refused", False)


def problem(status, reason, **headers):
    return Answer(status, headers, json.dumps({"reason": reason, "detail": "so it is", "do": "do so"}).encode())


def good(value):
    return Answer(200, {}, msgspec.json.encode(value))


class Send(NamedTuple):
    request: Request


class Open(NamedTuple):
    request: Request


class Sleep(NamedTuple):
    seconds: float


class Item(NamedTuple):
    value: Any


class ScriptedLink:
    """Notes what a flow does, and answers with `replies` in turn, then with `last`."""

    def __init__(self, replies, last=None):
        self.commands, self._replies, self._last = [], iter(replies), last

    async def send(self, request):
        self.commands.append(Send(request))
        return self._next()

    async def open(self, request, silence_s):
        self.commands.append(Open(request))
        return self._next()

    async def read(self):
        return self._next()

    async def sleep(self, seconds):
        self.commands.append(Sleep(seconds))

    async def close(self):
        pass

    def _next(self):
        return next(self._replies) if self._last is None else next(self._replies, self._last)


def call(made, replies, patience=None):
    """What a call does, and its value."""
    link = ScriptedLink(replies)
    return link.commands, asyncio.run(flows.answered(link, made, patience or PATIENCE))


async def _take_all(link, items):
    async for item in items:
        link.commands.append(Item(item))


def grouped(rows, how, replies):
    """What sending rows in groups does."""
    link = ScriptedLink(replies)
    asyncio.run(_take_all(link, flows.in_groups(link, rows, how, PATIENCE)))
    return link.commands


def of(kind, commands):
    return [one for one in commands if isinstance(one, kind)]


PUBLISH = requests.publish({"text": "a", "lon": 1, "lat": 2}, None)
ACCEPTED = {"status": "accepted", "id": "m1", "seq": 0}


def test_call_refused_for_a_time_is_sent_again_after_what_the_server_says():
    busy = problem(429, "overloaded", **{"retry-after": "2"})
    commands, outcome = call(PUBLISH, [busy, busy, good(ACCEPTED)])
    assert outcome.seq == 0
    sent, waits = of(Send, commands), of(Sleep, commands)
    assert [wait.seconds for wait in waits] == pytest.approx([2.2, 2.4])
    assert len(sent) == 3 and len({one.request.body for one in sent}) == 1, "with the same id"
    assert json.loads(sent[0].request.body)["id"]


def test_call_waits_until_a_date_by_the_clock_of_who_sent_it():
    dates = {"retry-after": "Wed, 10 Oct 2018 20:19:24 GMT", "date": "Wed, 10 Oct 2018 20:19:20 GMT"}
    commands, _ = call(PUBLISH, [problem(503, "starting", **dates), good(ACCEPTED)])
    assert [wait.seconds for wait in of(Sleep, commands)] == pytest.approx([4.2])
    for headers in (dates | {"retry-after": dates["date"].replace("GMT", "CET")}, {"retry-after": dates["date"]}):
        with pytest.raises(Failed):
            call(PUBLISH, [problem(503, "starting", **headers)])


def test_call_gives_up_when_its_patience_is_over():
    busy = problem(429, "overloaded", **{"retry-after": "9"})
    with pytest.raises(Throttled, match="POST /v1/messages: so it is .overloaded.; do so") as caught:
        call(PUBLISH, [busy] * 9)
    assert (caught.value.reason, caught.value.status) == ("overloaded", 429)
    with pytest.raises(Throttled):
        call(PUBLISH, [problem(503, "starting", **{"retry-after": "40"})])
    with pytest.raises(Unreachable, match="connection refused"):
        call(PUBLISH, [NEVER_SENT] * 20)


def test_call_without_answer_is_sent_again_only_if_that_is_safe():
    conditional = requests.replace("s1", {}, {}, '"5f"', False)
    with pytest.raises(Unreachable, match="may have been taken: look before"):
        call(conditional, [LOST])
    made = {"status": "replaced"}
    assert call(conditional, [NEVER_SENT, good(made)])[1].status == "replaced"
    assert call(PUBLISH, [LOST, good(ACCEPTED)])[1].seq == 0


def test_unsubscribe_sent_again_finds_it_ended():
    missing = problem(404, "unknown_subscription")
    assert call(requests.unsubscribe("s1", None), [LOST, missing])[1].status == "deleted"
    with pytest.raises(NotFound):
        call(requests.unsubscribe("s1", None), [missing])


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(404, "unknown_message"), NotFound),
        (problem(401, "no_key"), Denied),
        (problem(403, "missing_scope"), Denied),
        (problem(403, "too_many_subscriptions"), Refused),
        (problem(412, "precondition_failed"), Refused),
        (problem(422, "unknown_kind"), Refused),
        (problem(503, "not_durable"), Failed),
        (Answer(502, {}, b"<html>"), Failed),
        (good([1]), Failed),
    ],
)
def test_call_raises_the_class_of_the_problem(answer, error):
    with pytest.raises(error) as caught:
        call(requests.subscription("s1"), [answer])
    assert type(caught.value) is error and caught.value.do and "GET /v1/subscriptions/s1" in str(caught.value)


def outcomes(*ids):
    return good({"outcomes": [{"status": "accepted", "id": name, "line": 1} for name in ids], "delivered": True})


def test_groups_are_halved_until_the_server_takes_them_and_outcomes_stay_in_order():
    rows = [{"id": "a"}, '{"id": "b"}', "no json", b'{"id": "c"}', {"id": "d"}]
    too_many = problem(413, "too_many_messages")
    replies = [too_many, outcomes("a", "b"), too_many, LOST, outcomes("c"), too_many]
    commands = grouped(rows, SentRows.of_messages("delivered"), replies)
    found = [one.value for one in of(Item, commands)]
    assert [one.line for one in found] == [1, 2, 3, 4, 5]
    assert [one.id for one in found] == ["a", "b", None, "c", None]
    assert [one.reason for one in found] == [None, None, "not_json", None, "too_many_messages"]
    assert [len(json.loads(one.request.body)) for one in of(Send, commands)] == [4, 2, 2, 1, 1, 1]
    assert found[0].delivered is None, "an outcome without seq has no updates"


def test_groups_give_ids_to_rows_without_one_and_to_no_change_that_ends():
    rows = [{"kind": "knn"}, '{"kind": "topk"}', {"unsubscribe": "s0"}]
    made = good([{"status": "created"}] * 2 + [{"status": "deleted"}])
    commands = grouped(rows, SentRows.of_subscriptions(True), [LOST, made])
    first, second = of(Send, commands)
    assert first == second and first.request.params == (("replace", "true"),)
    named, also, ended = json.loads(first.request.body)
    assert named["subscription_id"] != also["subscription_id"] and ended == {"unsubscribe": "s0"}


def test_refused_row_without_id_keeps_its_line_and_gets_no_id_that_was_made_here():
    rows = [{"kind": "knn"}, '{"kind": "topk"}', {"subscription_id": "mine"}, {"unsubscribe": "gone"}]
    names = ["made 1", "made 2", "mine", "gone"]
    answers = [
        {"status": "refused", "subscription_id": name, "reason": "bad_k", "detail": f"subscription {name!r}: no k"}
        for name in names
    ]
    commands = grouped(rows, SentRows.of_subscriptions(True), [good(answers)])
    found = [one.value for one in of(Item, commands)]
    assert [one.line for one in found] == [1, 2, 3, 4]
    assert [one.subscription_id for one in found] == [None, None, "mine", "gone"]
    assert [one.detail for one in found[1:3]] == ["the subscription: no k", "subscription 'mine': no k"]


def test_groups_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(flows, "GROUP_BYTES", 30)
    rows = [{"id": "x" * 20}] * 3
    commands = grouped(rows, SentRows.of_messages(None), [outcomes("x")] * 3)
    assert [len(json.loads(one.request.body)) for one in of(Send, commands)] == [1, 1, 1]


def test_groups_are_taken_one_after_the_answer_to_the_other_from_either_sort_of_iterator():
    async def coming():
        for row in rows:
            yield row

    rows, taken = [{"id": str(place)} for place in range(5)], []
    for source in (iter(rows), coming()):
        link = ScriptedLink([outcomes("a", "b"), outcomes("c", "d"), outcomes("e")])
        found = flows.in_groups(link, source, SentRows.of_messages(None), PATIENCE, most=2)
        assert asyncio.run(anext(found)).line == 1 and len(link.commands) == 1
        taken.append(link)
    assert taken[0].commands == taken[1].commands


def test_groups_with_an_outcome_too_few_fail():
    with pytest.raises(Failed, match="fewer outcomes"):
        grouped([{"id": "a"}, {"id": "b"}], SentRows.of_messages(None), [outcomes("a")])


# ------------------------------------------------------------------------------------------------------- updates


def update(place):
    row = {"id": place, "change": "match", "subscription_id": "s", "message_id": "m", "seq": 0, "as_of": 0}
    return f"id: {place}\ndata: {json.dumps(row | {'score': None, 'text': '', 'lon': 1, 'lat': 2})}\n\n".encode()


def named(name, place=None, **data):
    head = "" if place is None else f"id: {place}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n".encode()


STREAM = Answer(200, {}, b"")


def followed(replies, since=None, **options):
    """Commands of a stream until its patience is over, or its error; how far it came."""
    state = Followed(since)
    following = flows.following_of({"subscription": "s"}, PATIENCE, options.pop("on_gap", None), 15.0, 2.0, **options)
    link, error = ScriptedLink(replies, LOST), None
    try:
        asyncio.run(_take_all(link, flows.follow(link, state, following)))
    except Exception as raised:
        error = raised
    return link.commands, state, error


def last_ids(commands):
    return [one.request.headers.get("Last-Event-ID") for one in of(Open, commands)]


def test_updates_after_a_broken_connection_begin_behind_the_last_and_none_comes_twice():
    replies = [
        *(STREAM, update("3-0")[:30], update("3-0")[30:] + update("3-1"), LOST),
        *(NEVER_SENT, problem(503, "starting", **{"retry-after": "0"})),
        *(STREAM, update("3-0") + update("3-1") + update("3-2") + named("progress", "3-3", through=3), None),
        *(STREAM, named("progress", "3-3", through=3) + update("10-0")),
    ]
    commands, state, error = followed(replies, since="begin")
    assert [one.value.id for one in of(Item, commands)] == ["3-0", "3-1", "3-2", "10-0"]
    assert last_ids(commands)[:5] == ["begin", "3-1", "3-1", "3-1", "3-3"] and last_ids(commands)[-1] == "10-0"
    assert isinstance(error, Unreachable) and (state.position, state.through, state.connections) == ("10-0", 3, 3)


def test_updates_wait_longer_with_each_attempt_and_as_before_after_an_event():
    replies = [NEVER_SENT, NEVER_SENT, STREAM, update("1-0"), LOST]
    commands, _, _ = followed(replies, since="0")
    assert [one.seconds for one in of(Sleep, commands)][:3] == pytest.approx([0.2, 0.4, 0.2])


def test_updates_without_a_position_begin_at_a_definite_one():
    commands, _, _ = followed([good({"complete_through": 7}), STREAM, LOST])
    assert of(Send, commands)[0].request.path == "/v1/stream" and set(last_ids(commands)) == {"7"}
    assert not [one for one in followed([STREAM, update("7-5")], since="7")[0] if isinstance(one, Item)]
    assert [one for one in followed([STREAM, update("8-0")], since="7")[0] if isinstance(one, Item)]


def test_updates_slow_client_connects_again_without_a_gap():
    slow = named("gap", reason="slow", detail="", do="")
    commands, _, error = followed([STREAM, update("3-0") + slow, None, STREAM, update("4-0")], since="begin")
    assert [one.value.id for one in of(Item, commands)] == ["3-0", "4-0"] and isinstance(error, Unreachable)
    assert last_ids(commands)[1] == "3-0"


LOST_ONES = named("gap", reason="lost", after="3-0", before="9-0", detail="gone", do="read anew")


def test_updates_that_are_lost_raise_a_gap_or_are_handed_on():
    commands, state, error = followed([STREAM, update("3-0") + LOST_ONES + update("9-0")], since="begin")
    assert isinstance(error, Gap) and (error.reason, error.missed.before) == ("lost", "9-0")
    assert error.missed.resume == state.position == "8" and len(of(Item, commands)) == 1
    gaps = []
    replies = [STREAM, update("3-0") + LOST_ONES, LOST, STREAM, update("9-0")]
    commands, _, _ = followed(replies, since="begin", on_gap=gaps.append)
    assert [one.value.id for one in of(Item, commands)] == ["3-0", "9-0"] and last_ids(commands)[1] == "8"
    assert [one.reason for one in gaps] == ["lost"]


def test_updates_of_another_stream_begin_anew_behind_the_gap():
    gap, gaps = named("gap", reason="unknown_position", after="500-0", detail="", do=""), []
    replies = [STREAM, gap + named("progress", "4-1", through=4) + update("5-0")]
    commands, state, _ = followed(replies, since="500-0", on_gap=gaps.append)
    assert [one.value.id for one in of(Item, commands)] == ["5-0"] and state.position == "5-0"


def test_events_snapshot_cut_off_comes_whole_again_and_once_it_is_closed_no_more():
    first = named("snapshot", subscription_id="s", kind="knn", as_of=2, results=[])
    closed = named("progress", "2-1", through=2)
    replies = [STREAM, first, LOST, STREAM, first + closed + update("3-0"), LOST]
    commands, _, _ = followed(replies, snapshot=True, everything=True)
    kinds = [type(one.value) for one in of(Item, commands)]
    assert kinds == [Snapshot, Snapshot, Progress, Update]
    asked = [("snapshot", "1") in one.request.params for one in of(Open, commands)]
    assert asked[:3] == [True, True, False] and last_ids(commands)[:3] == [None, None, "3-0"]


def test_events_have_gaps_among_them():
    commands, _, _ = followed([STREAM, LOST_ONES], since="begin", everything=True, on_gap=lambda _: None)
    assert [type(one.value) for one in of(Item, commands)] == [Missed]


def test_updates_that_the_server_refuses_raise_at_once():
    error = followed([problem(401, "no_key")], since="begin")[2]
    assert isinstance(error, Denied) and error.reason == "no_key"
