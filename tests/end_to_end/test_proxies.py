"""The server behind nginx and Caddy, by the files of `deploy/service`: TLS, events that come at once, the client's
address."""

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.serving import Served, free_port

SERVICE = Path(__file__).resolve().parents[2] / "deploy" / "service"
NAME = "stream.example.org"
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))


def nginx(folder, port, upstream):
    site = (SERVICE / "nginx.conf").read_text().replace("127.0.0.1:8080", f"127.0.0.1:{upstream}")
    site = site.replace("listen 443", f"listen 127.0.0.1:{port}").replace("/etc/ssl/", f"{folder}/")
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    head = f"daemon off; pid {folder}/pid; error_log stderr; worker_processes 1; events {{}}"
    whole = f"{head} http {{ access_log off; {temporary}\n{site} }}"
    (folder / "whole.conf").write_text(whole)
    return [shutil.which("nginx", path=PATH), "-p", folder, "-e", "stderr", "-c", folder / "whole.conf"]


def caddy(folder, port, upstream):
    site = (SERVICE / "Caddyfile").read_text().replace("127.0.0.1:8080", f"127.0.0.1:{upstream}")
    tls = f"tls {folder}/{NAME}.pem {folder}/{NAME}.key"
    site = site.replace(f"{NAME} {{", f"https://{NAME}:{port} {{\n\tbind 127.0.0.1\n\t{tls}", 1)
    (folder / "whole").write_text("{\n\tadmin off\n\tauto_https off\n}\n" + site)
    return [shutil.which("caddy", path=PATH), "run", "--config", folder / "whole", "--adapter", "caddyfile"]


PROXIES = [
    pytest.param(nginx, marks=pytest.mark.nginx, id="nginx"),
    pytest.param(caddy, marks=pytest.mark.caddy, id="caddy"),
]


@contextmanager
def proxy(command_of, folder, upstream):
    """The port of a proxy that has a certificate of its own."""
    subject = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    pair = ["-keyout", folder / f"{NAME}.key", "-out", folder / f"{NAME}.pem"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *pair, *subject]
    subprocess.run(make, check=True, capture_output=True, timeout=300)
    port = free_port()
    environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            list(map(str, command_of(folder, port, upstream))), stdout=log, stderr=log, env=environment
        )
    try:
        deadline = time.monotonic() + 300
        while True:
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            threading.Event().wait(0.05)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:  # Caddy waits for connections
            process.kill()
            process.wait(20)


class Connection(http.client.HTTPSConnection):
    """To a proxy on loopback, by its name, with its certificate checked."""

    def __init__(self, folder, port):
        self.trusts = ssl.create_default_context(cafile=str(folder / f"{NAME}.pem"))
        super().__init__(NAME, port, timeout=300, context=self.trusts)

    def connect(self):
        self.sock = self.trusts.wrap_socket(
            socket.create_connection(("127.0.0.1", self.port), 20), server_hostname=NAME
        )


@pytest.mark.parametrize("command_of", PROXIES)
def test_events_and_lines_pass_a_proxy_as_they_come_and_limits_count_the_client(tmp_path, command_of):
    options = ("--allowed-host", NAME, "--trusted-proxy", "127.0.0.1", "--set", "limits.most_streams=1")
    with Served(tmp_path / "out", *options) as served, proxy(command_of, tmp_path, served.port) as port:
        asking = Connection(tmp_path, port)

        def ask(method, path, body=None, **headers):
            asking.request(
                method, path, body and json.dumps(body), {"Host": NAME, "Content-Type": "application/json", **headers}
            )
            answer = asking.getresponse()
            return answer.status, json.loads(answer.read() or b"null")

        row = {"subscription_id": "s", "kind": "boolean", "keywords": "tea", "region": [-1, -1, 1, 1]}
        assert ask("POST", "/v1/subscriptions", row)[0] == 201
        following = Connection(tmp_path, port)
        following.request("GET", "/v1/updates", headers={"Host": NAME, "Accept": "text/event-stream"})
        stream = following.getresponse()
        assert stream.status == 200 and stream.readline().startswith(b"retry")
        for number in range(3):  # each is read before the next one is sent: nothing is kept back
            assert ask("POST", "/v1/messages", {"text": f"tea {number}", "lon": 0, "lat": 0})[0] == 200
            while not (line := stream.readline()).startswith(b'data: {"id"'):
                assert line
            assert json.loads(line[6:])["text"] == f"tea {number}"
        # one stream of the client's address may be open: what a client says of itself changes nothing
        status, problem = ask("GET", "/v1/updates", **{"X-Forwarded-For": "203.0.113.9"})
        assert (status, problem["reason"]) == (429, "too_many_streams"), problem
        lines = Connection(tmp_path, port)
        lines.putrequest("POST", "/v1/messages", skip_host=True)
        for name, value in {
            "Host": NAME,
            "Content-Type": "application/x-ndjson",
            "Transfer-Encoding": "chunked",
        }.items():
            lines.putheader(name, value)
        lines.endheaders()
        line = b'{"text": "tea of lines", "lon": 0, "lat": 0}\n'
        lines.send(b"%x\r\n%s\r\n" % (len(line), line))
        while not (read := stream.readline()).startswith(b'data: {"id"'):
            assert read
        assert json.loads(read[6:])["text"] == "tea of lines", "before the body has ended"
        lines.send(b"0\r\n\r\n")
        assert lines.getresponse().status == 200
        for one in (lines, following, asking):
            one.close()
