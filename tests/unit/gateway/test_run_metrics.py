"""`metrics.port`: a run and a live stream have figures for Prometheus, which promtool and Prometheus itself take."""

import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from contextlib import ExitStack

import pytest

from gateway import cli
from tests.support.processes import Command, small_run
from tests.support.prometheus import Prometheus

pytestmark = pytest.mark.promtool

#: The families that both have.
FAMILIES = (
    *("messages_total", "released_updates_total", "subscriptions", "published_batches_total", "complete_batches_total"),
    *("component_queue_payloads", "component_busy_ratio", "component_received_payloads_total", "quarantined_rows"),
    *("checkpoints_total", "checkpoint_age_seconds", "checkpoint_write_seconds", "component_latency_p99_seconds{"),
)


def url_of(command):
    """Where the figures are, once the command says so."""
    found = []

    def said():
        found[:] = re.findall(r"figures for Prometheus at (http://127.0.0.1:\d+/metrics)", command.read()[1])
        return bool(found)

    command.await_(said)
    return found[0]


def figures_of(url):
    with urllib.request.urlopen(url, timeout=300) as answer:
        return answer.read()


def await_checkpoint(command, url):
    command.await_(lambda: re.search(rb"^skyray_checkpoints_total [1-9]", figures_of(url), re.MULTILINE) is not None)


def check(figures):
    done = subprocess.run(["promtool", "check", "metrics"], input=figures, capture_output=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, b""), done
    text = figures.decode()
    assert [name for name in FAMILIES if f"\nskyray_{name}" not in text] == []
    assert "process_resident_memory_bytes" in text
    assert "near 1" not in text, "a label for a subscription"


def test_metrics_of_a_run_are_scraped_by_prometheus(tmp_path):
    arguments = small_run(tmp_path, messages=4_000, batch=10)
    more = ["--executor", "local", "--set", "input.rate=40", "--checkpoint-every", 0.3, "--set", "metrics.port=0"]
    with Command([*arguments, *more]) as command:
        url = url_of(command)
        command.await_(lambda: b'latency_p99_seconds{component="delivery"}' in figures_of(url))
        await_checkpoint(command, url)
        check(figures_of(url))
        with Prometheus(url.split("/")[2]) as prometheus:
            rate = prometheus.await_samples("rate(skyray_messages_total[10s]) > 0")
            busy = prometheus.await_samples("skyray_component_busy_ratio > 0")
            updates = prometheus.await_samples("skyray_released_updates_total > 0")
        assert 1 < float(rate[0]["value"][1]) < 400
        assert {"query", "delivery"} <= {one["metric"]["component"] for one in busy}
        os.kill(command.process.pid, signal.SIGINT)
        code, _, said = command.finish()
        assert code == 130, said
    with pytest.raises(OSError):
        figures_of(url)
    report = json.loads((tmp_path / "out" / "run.json").read_text())
    assert sum(report["delivery"]["updates"].values()) >= float(updates[0]["value"][1])
    assert report["topology"]["components"]["delivery"]["counters"]["updates"] == sum(
        report["delivery"]["updates"].values()
    )


def test_metrics_of_a_live_stream_are_as_prometheus_wants_them(tmp_path):
    reading, writing = os.pipe()
    arguments = ["live", "--out", tmp_path / "out", "--checkpoint-every", 0.3, "--set", "metrics.port=0"]
    with Command(arguments, source=reading) as command:
        os.close(reading)
        row = {"subscription_id": "near 1", "kind": "boolean", "keywords": "tea", "region": [-1, -1, 1, 1]}
        os.write(writing, json.dumps({"subscribe": row}).encode() + b"\n")
        for number in range(3):
            message = {"id": str(number), "text": "tea", "lon": 0, "lat": 0}
            os.write(writing, json.dumps(message).encode() + b"\nbad\n")
        url = url_of(command)
        command.await_(lambda: b"\nskyray_released_updates_total 3.0" in figures_of(url))
        await_checkpoint(command, url)
        figures = figures_of(url)
        check(figures)
        assert b'skyray_refused_rows_total{reason="not_json"} 3.0' in figures
        assert b"\nskyray_messages_total 3.0" in figures and b"\nskyray_subscriptions 1.0" in figures
        assert re.search(rb"\nskyray_latency_seconds_count [1-9]", figures)
        os.close(writing)
        assert command.finish()[0] == 0


def test_processes_list_their_ports_and_prometheus_finds_them_all(tmp_path):
    folder = tmp_path / "targets"
    folder.mkdir()
    host = socket.gethostname()
    stale, others = folder / f"skyray-{host}-{2**22 + 1}-1.json", folder / "skyray-elsewhere-4194305-1.json"
    for file in (stale, others):
        file.write_text("[]")
    with ExitStack() as stack:
        commands = []
        for name in ("one", "two"):
            reading, writing = os.pipe()
            stack.callback(os.close, writing)
            given = ["--set", "metrics.port=0", "--set", f"metrics.targets={folder}"]
            commands.append(stack.enter_context(Command(["live", "--out", tmp_path / name, *given], source=reading)))
            os.close(reading)
        ports = {url_of(command).split("/")[2] for command in commands}
        assert not stale.exists() and others.exists(), "of this machine alone, and of processes that are gone"
        with Prometheus(folder) as prometheus:
            commands[0].await_(lambda: len(prometheus.await_samples("up == 1")) == 2)
            found = [one["metric"] for one in prometheus.await_samples("skyray_messages_total")]
        assert {one["instance"] for one in found} == ports
        assert {one["folder"] for one in found} == {str(tmp_path / "one"), str(tmp_path / "two")}
        commands[0].process.terminate()
        commands[0].finish()
        assert {one["targets"][0] for file in folder.glob("*.json") for one in json.loads(file.read_text())} < ports


def test_metrics_targets_without_a_port_are_refused(tmp_path, capsys):
    arguments = [
        *small_run(tmp_path, messages=20, batch=10),
        "--executor",
        "local",
        "--set",
        f"metrics.targets={tmp_path}",
    ]
    assert cli.main([*map(str, arguments)]) == 2
    assert "metrics.targets: lists the port of metrics.port" in capsys.readouterr().err


def test_metrics_port_that_is_taken_is_refused(tmp_path, capsys):
    arguments = small_run(tmp_path, messages=20, batch=10)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code = cli.main([*map(str, arguments), "--executor", "local", "--set", f"metrics.port={port}"])
    assert code == 2 and "name another, or 0 for any" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
