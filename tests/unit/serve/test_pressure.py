"""What the API answers while nothing more fits, when the log cannot be written, and while the server starts or ends.

There is no topology: batches wait for room as long as the test wants.
"""

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor

from gateway.serve import questions
from gateway.serve import writer as writers
from gateway.serve.asking import Asking
from tests.support.doors import door_of
from tests.support.serving import call
from tests.support.writing import await_


def message(name):
    return {"id": name, "text": "tea", "lon": 1, "lat": 1}


def test_api_refuses_what_does_not_fit_and_says_when_to_come_again(tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "MOST_WAITING", 6)
    with door_of(tmp_path / "out", most=0, batch=2) as (stream, _, port), ThreadPoolExecutor(8) as threads:
        open_batch = [threads.submit(call, port, "POST", "/v1/messages", message(f"a{place}")) for place in range(2)]
        await_(lambda: stream.writer.lines == 2)
        waiting = [threads.submit(call, port, "POST", "/v1/messages", message(f"b{place}")) for place in range(3)]
        await_(lambda: stream.writer.waiting == 3)
        answer = call(port, "POST", "/v1/messages", message("c"))
        assert (answer.status, answer.json["reason"], answer.headers["retry-after"]) == (429, "overloaded", "1")
        assert not any(one.done() for one in (*open_batch, *waiting))
        stream.in_flight._most = 10
        assert {one.result().json["status"] for one in (*open_batch, *waiting)} == {"accepted"}
        assert call(port, "POST", "/v1/messages", message("c")).json["status"] == "accepted"


def asks(port, method, path, body=None, address="127.0.0.1"):
    """Status and headers of a question from an address."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300, source_address=(address, 0))
    data = None if body is None else json.dumps(body)
    try:
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read(60)
    finally:
        connection.close()


def test_api_refuses_too_many_questions_of_an_address_and_answers_those_of_another(tmp_path, monkeypatch):
    held, whole = threading.Event(), Asking.preview

    def preview(*arguments):
        assert held.wait(60)
        return whole(*arguments)

    monkeypatch.setattr(Asking, "preview", preview)
    subscription = {"subscription_id": "s", "kind": "boolean", "keywords": "tea", "region": [0, 0, 2, 2]}
    most = questions.MOST_OPEN // 2
    with door_of(tmp_path / "out") as (_, door, port), ThreadPoolExecutor(most + 1) as threads:
        call(port, "POST", "/v1/subscriptions", subscription)
        call(port, "POST", "/v1/messages", message("a"))
        asked = [threads.submit(asks, port, "POST", "/v1/preview", subscription) for _ in range(most)]
        await_(lambda: door.questions.room.used == (most,))
        others = [
            ("POST", "/v1/preview", subscription),
            ("POST", "/v1/match", message("b")),
            ("GET", "/v1/explain?subscription=s&message=a"),
            ("GET", "/v1/subscriptions/s/results"),
            ("GET", "/v1/subscriptions"),
        ]
        for question in [*others, ("GET", "/v1/updates?snapshot=1")]:
            status, headers, body = asks(port, *question)
            assert (status, headers["Retry-After"]) == (429, "1") and b"too_many_questions" in body, question
        another = threads.submit(asks, port, "GET", "/v1/subscriptions/s/results", None, "127.0.0.2")
        await_(lambda: door.questions.room.used == (most + 1,))
        assert asks(port, "GET", "/v1/updates?poll=1&since=begin&wait_s=0")[0] == 200, "it is no question"
        held.set()
        assert [one.result()[0] for one in (*asked, another)] == [200] * (most + 1)
        for question in others:
            assert asks(port, *question)[0] == 200
        assert door.questions.room.used == (0,)
        for path, method in (("/v1/preview", "post"), ("/v1/explain", "get"), ("/v1/updates", "get")):
            described = call(port, "GET", "/openapi.json").json["paths"][path][method]["responses"]
            assert "Retry-After" in described["429"]["headers"]


def test_api_says_that_a_log_which_cannot_be_written_is_not_durable(tmp_path, monkeypatch):
    with door_of(tmp_path / "out") as (stream, _, port):

        def full(descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("gateway.live.write_ahead_log.os.fsync", full)
        for _ in range(2):
            answer = call(port, "POST", "/v1/messages", message("a"))
            assert (answer.status, answer.json["reason"]) == (503, "not_durable") and "No space" in answer.json[
                "detail"
            ]
        assert stream.writer.failure is not None


def test_api_takes_what_comes_while_the_topology_starts_and_nothing_while_the_server_ends(tmp_path):
    with door_of(tmp_path / "out") as (stream, door, port):
        answer = call(port, "GET", "/ready")
        assert (answer.status, answer.json["reason"]) == (503, "starting") and answer.headers["retry-after"]
        assert call(port, "GET", "/health").status == 200
        assert call(port, "POST", "/v1/messages", message("a")).status == 200
        door.closing = True
        for method, path, body in (
            ("POST", "/v1/messages", message("b")),
            ("DELETE", "/v1/subscriptions/s", None),
            ("GET", "/v1/updates", None),
            ("GET", "/ready", None),
        ):
            answer = call(port, method, path, body)
            assert (answer.status, answer.json["reason"]) == (503, "shutting_down") and answer.headers["retry-after"]
        assert stream.wal.next_seq == 1
    assert threading.active_count() < 20
