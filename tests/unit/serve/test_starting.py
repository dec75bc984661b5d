"""What a server answers before its stream is open."""

from gateway.serve.server import Server, bind
from gateway.serve.starting import Starting
from tests.support.serving import call


async def stream(scope, receive, send):
    """In place of the app of a stream."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def test_server_that_starts_says_what_it_does_and_takes_nothing_until_its_app_is_there():
    starting = Starting()
    starting.step("reading the <log>")
    with bind("127.0.0.1", 0) as listening, Server(starting, listening, 9):
        port = listening.getsockname()[1]
        health = call(port, "GET", "/health")
        assert health.status == 200
        assert health.json | {"release": ""} == {
            "status": "starting", "doing": "reading the <log>", "done": None, "release": ""
        }  # fmt: skip
        starting.reached(0.4217)
        assert call(port, "GET", "/health").json["done"] == 0.422
        assert call(port, "HEAD", "/health").status == 200
        page = call(port, "GET", "/")
        assert page.status == 503 and page.headers["retry-after"] == "1"
        assert b"reading the &lt;log&gt;, 42 %" in page.body and b'http-equiv="refresh"' in page.body
        for method, path in (("GET", "/ready"), ("POST", "/v1/messages"), ("POST", "/health"), ("GET", "/page/app.js")):
            refused = call(port, method, path, {} if method == "POST" else None)
            assert refused.status == 503 and refused.json["reason"] == "starting", (method, path)
            assert refused.headers["retry-after"] == "1" and "reading the <log>, 42 %" in refused.json["detail"]
        starting.app = stream
        assert call(port, "GET", "/ready").body == b"ok" == call(port, "POST", "/v1/messages", {}).body
        starting.step(None)
    assert starting.figures() == {"status": "ok", "doing": None, "done": None}
