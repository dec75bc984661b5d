"""One request that matches a great many subscriptions, and a client that reads as fast as it can."""

import json
import socket
import threading

from tests.support.serving import NDJSON, Served, lines_of

EVERYWHERE = {"kind": "boolean", "keywords": "burst", "region": [-180, -90, 180, 90]}
HEAD = b"GET /v1/updates?subscription=s0 HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"


def resident_bytes(served):
    (line,) = (one for one in served.call("GET", "/metrics").body.decode().splitlines()
               if one.startswith("process_resident_memory_bytes "))  # fmt: skip
    return float(line.split()[1])


def messages(count, size, first=0):
    text = "burst " + "x" * size
    return lines_of({"id": f"m{first + number}", "text": text, "lon": 1, "lat": 1} for number in range(count))


def test_text_that_many_subscriptions_match_is_in_memory_once_and_a_fast_reader_gets_every_update(tmp_path):
    """60,000 updates have 600 MB of text between them, and the messages 3 MB."""
    subscriptions, count, size, quick = 200, 300, 10_000, 4_000
    with Served(tmp_path / "out") as served, socket.create_connection(("127.0.0.1", served.port), 60) as client:
        rows = [EVERYWHERE | {"subscription_id": f"s{number}"} for number in range(subscriptions)]
        assert served.call("POST", "/v1/subscriptions", lines_of(rows), **NDJSON).status == 200
        client.sendall(HEAD)
        got, whole = bytearray(), threading.Event()

        def read():
            while got.count(b'"change":"match"') < count + quick and (data := client.recv(1 << 20)):
                got.extend(data)
            whole.set()

        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        served.await_(lambda: served.call("GET", "/health").json["clients"] == 1)
        before = resident_bytes(served)
        answer = served.call("POST", "/v1/messages?wait=delivered", messages(count, size), **NDJSON)
        assert answer.lines[-1]["delivered"]
        assert resident_bytes(served) - before < 250e6
        ended = [f"/v1/subscriptions/s{number}" for number in range(1, subscriptions)]
        assert all(served.call("DELETE", path).status in (200, 204) for path in ended)
        assert served.call("POST", "/v1/messages", messages(quick, 1_000, count), **NDJSON).status == 200
        assert whole.wait(60), got[-500:]
        events = [json.loads(line[5:]) for line in got.splitlines() if line.startswith(b"data:")]
        seqs = [row["seq"] for row in events if row.get("change") == "match"]
        assert b"event: gap" not in got and seqs == list(range(count + quick))
        served.end()
