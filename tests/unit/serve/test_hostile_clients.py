"""Clients that mean harm, of a server as a process: names that look like paths, connections that only wait."""

import json
import socket
from contextlib import ExitStack
from urllib.parse import quote

from tests.support.processes import Command
from tests.support.serving import NDJSON, Served, call, free_port, lines_of

#: Runs the command line, and notes what it opens.
AUDITED = """
import os, runpy, sys
notes = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "os.rename", "os.remove", "os.mkdir", "os.symlink"):
        os.write(notes, (event + " " + " ".join(map(repr, arguments)) + chr(10)).encode())
sys.addaudithook(note)
sys.argv[0] = "skyray"
runpy.run_module("gateway.cli", run_name="__main__")
"""
REGION = {"kind": "boolean", "keywords": "ramen", "region": [139, 35, 140, 36]}
HEAD = b"GET /v1/updates HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"


def message(name):
    return {"id": name, "text": "ramen", "lon": 139.5, "lat": 35.5}


class Audited(Served):
    """A server that notes what it opens."""

    def __init__(self, out, notes):
        words = ["serve", "--out", out, "--port", (port := free_port()), "--query-bolts", 1]
        Command.__init__(self, words, {"NOTES": str(notes)}, AUDITED)
        self.await_(lambda: "event=ready" in self.read()[1])
        self.port = port


def test_names_that_look_like_paths_open_no_file(tmp_path):
    out, notes = tmp_path / "data" / "out", tmp_path / "notes"
    (tmp_path / "data").mkdir()
    for canary in (tmp_path / "canary", tmp_path / "data" / "canary"):
        canary.write_text("not to be read")
    names = [
        "../canary",
        "..\\canary",
        f"{tmp_path}/canary",
        "..%2fcanary",
        "%2e%2e/canary",
        "file:///canary",
        "canary\x00",
    ]
    names += ["../" * 12 + str(tmp_path)[1:] + "/canary", "~/canary", "$(cat canary)", "canary\u202e"]
    with Audited(out, notes) as served:
        for number, name in enumerate(names):
            columns = REGION | {"subscription_id": name, "object_id": name, "note": name, "vocabulary": name}
            assert served.call("POST", "/v1/subscriptions", columns).status in (201, 422), name
            row = message(f"{number} {name}") | {"object_id": name, "text": f"ramen {name}"}
            assert served.call("POST", "/v1/messages", row).status in (200, 422), name
            one = quote(name, safe="")
            for place in (quote(name, safe="/%:~$().\\"), one, quote(one)):
                for path in (
                    f"/page/{place}",
                    f"/{place}",
                    f"/v1/subscriptions/{place}",
                    f"/v1/subscriptions/{place}/results",
                    f"/v1/explain?subscription={place}&message={place}",
                    f"/v1/updates?poll=1&wait_s=0&since=begin&subscription={place}&owner={place}",
                ):
                    answer = served.call("GET", path)
                    assert answer.status in (200, 400, 404, 422), (path, answer)
                    assert b"not to be read" not in answer.body
        taken = served.call("GET", "/v1/subscriptions").json["subscriptions"]
        assert {row["subscription_id"] for row in taken} >= set(names[:3]), "they are names like others"
        served.end()
    opened = notes.read_text().splitlines()
    assert len(opened) > 100 and any(str(out) in line for line in opened), "the server notes what it opens"
    assert not [line for line in opened if "canary" in line]


def test_clients_that_only_wait_keep_nobody_from_publishing_and_the_last_one_too_many_is_told_so(tmp_path):
    most = 60
    with ExitStack() as stack, Served(tmp_path / "out", "--set", f"limits.most_connections={most}") as served:
        assert served.call("POST", "/v1/subscriptions", REGION).status == 201

        def connect(data):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), 20))
            client.sendall(data)
            return client

        streams = [connect(HEAD + b"\r\n") for _ in range(25)]
        served.await_(lambda: served.call("GET", "/health").json["clients"] == len(streams))
        for number in range(25):
            connect(HEAD[: number + 1])  # the rest of these headers does not come
            if number % 5 == 0:
                found = served.call("POST", "/v1/messages?wait=delivered", message(f"m{number}")).json
                assert found["delivered"], found
        for stream in streams:
            got = b""
            while got.count(b'data: {"id"') < 5:
                got += stream.recv(2**16)
        for _ in range(most):
            connect(HEAD)
        with socket.create_connection(("127.0.0.1", served.port), 20) as late:
            late.sendall(HEAD + b"\r\n")
            answer = b""
            while data := late.recv(2**16):
                answer += data
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503") and b"application/problem+json" in head
        assert json.loads(body)["reason"] == "too_many_connections"
        stack.close()
        served.await_(lambda: call(served.port, "GET", "/health").status == 200)
        lines = served.call("POST", "/v1/messages?wait=delivered", lines_of([message("last")]), **NDJSON).lines
        assert lines[-1] == {"delivered": True}
        served.await_(lambda: served.call("GET", "/health").json["clients"] == 0)
        served.end()
