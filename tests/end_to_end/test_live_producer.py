"""The producer in a shell of docs/publish.md: killed wherever, begun again, nothing is lost or repeated."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from gateway.live.status import read_status
from gateway.runs.verify import verify_run
from tests.support.documents import ROOT, blocks
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import read_table

pytestmark = pytest.mark.fault

MESSAGES = 300


def recipe():
    """The two lines of the page."""
    (found,) = (block for block in blocks("docs/publish.md") if block.lines[0].startswith("next="))
    return "\n".join(found.lines)


class Shell:
    """A shell that runs the recipe in its own process group."""

    def __init__(self, folder):
        program = folder / "bin" / "skyray"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gateway.entry "$@"\n')
        program.chmod(0o755)
        environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        self.said = open(folder / "said", "ab")  # noqa: SIM115 - `__exit__` closes it
        self.process = subprocess.Popen(
            ["sh", "-c", recipe()], cwd=folder, env=environment, start_new_session=True, stdout=self.said,
            stderr=self.said)  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.said.close()

    def kill(self):
        """End the shell and all it has started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def end_producer(self):
        """Kill `tail` alone; what reads from it then ends by itself. The exit code."""
        (tail,) = (one for one in psutil.Process(self.process.pid).children() if one.name() == "tail")
        tail.kill()
        return self.process.wait(120)


def await_(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_producer_in_a_shell_that_is_killed_and_begun_again_loses_and_repeats_nothing(tmp_path):
    write_etl(tmp_path / "etl", random_rows(100))
    (tmp_path / "mine.jsonl").write_text(
        '{"subscription_id": "s1", "kind": "topk", "keywords": "w1", "lon": 0, "lat": 0, "k": 3, "alpha": 0.5}\n'
        '{"subscription_id": "s2", "kind": "boolean", "keywords": "w1", "region": [-180, -90, 180, 90]}\n'
    )
    lines = []
    for row in random_rows(MESSAGES, seed=3):
        lines.append({"id": f"m{row['seq']}", "text": row["text"] or "w1", "lon": row["lon"], "lat": row["lat"]})
    data = [json.dumps(line) + "\n" for line in lines]
    out = tmp_path / "runs" / "live"
    with open(tmp_path / "posts.jsonl", "w") as posts:

        def write(text):
            posts.write(text)
            posts.flush()

        write("".join(data[:100]))
        with Shell(tmp_path) as shell:
            await_(lambda: read_status(out)["line"] >= 1 if out.exists() else False)
            shell.kill()  # wherever it is
        await_(lambda: read_status(out)["state"] == "killed")  # its processes are not ours to wait for
        with Shell(tmp_path) as shell:
            await_(lambda: read_status(out)["line"] == 100)
            write(data[100] + data[101][:20])  # half of a line, when its producer dies
            await_(lambda: read_status(out)["line"] == 101)
            assert shell.end_producer() == 0
        assert read_status(out)["next_line"] == 102
        write(data[101][20:] + "no message\n" + "".join(data[102:]))
        with Shell(tmp_path) as shell:
            await_(lambda: read_status(out)["line"] == MESSAGES + 1)
            assert shell.end_producer() == 0
    assert read_status(out)["state"] == "finished"
    messages = read_table(out, "message_id")
    assert messages.column("message_id").to_pylist() == [one["id"] for one in lines]
    verdict = verify_run(out)
    assert verdict.exact and sum(verdict.delivered_updates.values()) > 50, verdict
