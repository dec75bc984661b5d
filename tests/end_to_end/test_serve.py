"""The HTTP door with real processes: killed wherever, begun again, clients miss and repeat nothing."""

import json
import re
import shlex
import subprocess
import threading

import numpy as np
import pytest

from tests.support.beside import BOX, BUSY, random_message, random_subscription
from tests.support.books import assert_booked
from tests.support.documents import blocks
from tests.support.live_streams import read_table
from tests.support.processes import Command
from tests.support.serving import NDJSON, Follower, Served, call, events_of, free_port, kill, lines_of

pytestmark = pytest.mark.fault


def last_epoch(out):
    """Of the checkpoints."""
    return max((int(path.stem.split("-")[1]) for path in (out / "checkpoints").glob("epoch-*.json")), default=-1)


def from_the_beginning(served):
    """All updates, read page by page: of parts, of the checkpoint, of memory."""
    found, place, before = [], "begin", None
    while place != before:
        lines, before = served.call("GET", f"/v1/updates?poll=1&wait_s=0&since={place}&limit=100").lines, place
        found += [row for row in lines if "change" in row]
        place = lines[-1]["progress"]["id"]
    return found


def stop_in_a_post(served, rows, after, acknowledged):
    """Send lines, and kill the server once it has answered so many; `acknowledged` gets ids and seqs.

    The last lines wait for the kill, so that it always meets a request that has not ended.
    """
    answered = threading.Event()

    def lines():
        for place in range(0, len(rows), 20):
            yield lines_of(rows[place : place + 20])
            if place >= after:
                answered.wait(0.05 if place + 40 < len(rows) else 30)

    def send():
        try:
            for one in call(served.port, "POST", "/v1/messages", lines(), **NDJSON).lines:
                acknowledged[one["id"]] = one["seq"]
        except Exception:
            pass  # what was answered before the end is lost with it

    sending = threading.Thread(target=send, daemon=True)
    before = served.call("GET", "/health").json["messages"]
    sending.start()
    served.await_(lambda: served.call("GET", "/health").json["messages"] >= before + after)
    kill(served)
    answered.set()
    sending.join(20)


def test_serve_killed_several_times_also_in_a_post_clients_miss_and_repeat_nothing(tmp_path):
    rng, out, port = np.random.default_rng(7), tmp_path / "out", free_port()
    subscriptions = [random_subscription(rng, place) | {"subscription_id": f"s{place % 50}"} for place in range(160)]
    messages = [random_message(rng, number) for number in range(900)]
    first_seq, extra = {}, []

    def publish(served, rows):
        """What a producer does that gets its answer: known ids are answered as before."""
        for one in served.call("POST", "/v1/messages", rows).json["outcomes"]:
            assert one["status"] in ("accepted", "duplicate"), one
            assert first_seq.setdefault(one["id"], one["seq"]) == one["seq"]

    with Follower(port) as follower:
        again = 0
        for life in range(4):
            mine, changes = messages[life * 225 : life * 225 + 225], subscriptions[life * 40 : life * 40 + 40]
            with Served(out, *BUSY, port=port) as served:
                publish(served, messages[: life * 225])  # the producer has lost its book
                taken = served.call("POST", "/v1/subscriptions?replace=true", lines_of(changes[:35]), **NDJSON)
                assert {one["status"] for one in taken.lines} <= {"created", "replaced"}
                publish(served, mine[:100])
                epoch = last_epoch(out)
                while last_epoch(out) < epoch + 2:  # the updates of the last are in no part yet
                    extra.append(random_message(rng, 1_000 + len(extra)))
                    publish(served, extra[-1:])
                for row in changes[35:]:
                    served.call("PUT", f"/v1/subscriptions/{row['subscription_id']}", row)
                served.call("DELETE", "/v1/subscriptions/s3")
                if life < 3:
                    stop_in_a_post(served, mine[100:], 40, first_seq)
                else:
                    publish(served, mine[100:])
                    figures = served.call("GET", "/health").json
                    again = figures["duplicates"]
                    follower.await_through(figures["next_seq"] - 1)
                    assert from_the_beginning(served) == [row for _, row in follower.book]
                    served.end()
    assert 3 * 140 <= again < 3 * 225 and follower.connections >= 4, "killed in the middle of a request"
    etl = read_table(out, "message_id").column("message_id").to_pylist()
    assert sorted(etl) == sorted(row["id"] for row in [*messages, *extra])
    assert first_seq == {name: seq for seq, name in enumerate(etl)}
    assert assert_booked(out, follower) >= 1_000


@pytest.mark.wide
@pytest.mark.parametrize(
    "others",
    [["--query-bolts", 3], pytest.param(["--query-bolts", 2, "--executor", "ray"], marks=pytest.mark.ray)],
)
def test_serve_ids_depend_on_neither_executor_nor_numbers_of_tasks(tmp_path, others):
    rng = np.random.default_rng(3)
    subscriptions = [random_subscription(rng, place) | {"subscription_id": f"s{place % 30}"} for place in range(80)]
    messages = [random_message(rng, place) for place in range(200)]
    books = []
    for options in (["--query-bolts", 1], others):
        with Served(tmp_path / f"out{len(books)}", "--world", BOX, "--window", "count:60", *options) as served:
            for part in range(8):
                rows = subscriptions[part * 10 : part * 10 + 10]
                served.call("POST", "/v1/subscriptions?replace=true", rows)
                served.call("POST", "/v1/messages?wait=delivered", messages[part * 25 : part * 25 + 25])
            books.append(from_the_beginning(served))
            served.end()
    assert books[0] == books[1] and len(books[0]) > 300


def untagged(text):
    """Events without the digits of the log in their ids, which change with what is logged."""
    return re.sub(r"\b(\d+-\d+)-[0-9a-f]{8}\b", r"\1", text)


@pytest.mark.parametrize("page", ["docs/start.md", "README.md"])
def test_serve_recipe_of_a_page_pushes_an_update(page, tmp_path):
    """The commands as they are written: one serves, one follows, the others send."""
    port = free_port()
    lines = [
        line.replace("8080", str(port)) for block in blocks(page) if block.language == "sh" for line in block.lines
    ]
    program, *arguments = next(shlex.split(line, comments=True) for line in lines if "skyray serve --out" in line)
    assert program.endswith("skyray")
    curls = [shlex.split(line) for line in lines if line.startswith("curl ")]
    (follow,) = (words for words in curls if "--no-buffer" in words)
    send = [words for words in curls if "--json" in words]
    assert len(send) == len(curls) - 1 == 2
    (tmp_path / "runs").mkdir()
    arguments = [str(tmp_path / word) if word.startswith("runs/") else word for word in arguments]
    if "--port" not in arguments:
        arguments += ["--port", str(port)]
    with Command(arguments) as command:
        command.await_(lambda: "event=ready" in command.read()[1])
        following = subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            for words in send:
                done = subprocess.run(words, capture_output=True, text=True, timeout=300)
                assert json.loads(done.stdout)["status"] in ("created", "accepted"), done
            text = ""
            while '"s1"' not in text:
                text += following.stdout.readline()
        finally:
            following.kill()
            following.wait()
            following.stdout.close()
    for block in blocks(page):
        if block.language == "text" and any(line.startswith("data: ") for line in block.lines):
            shown = events_of(untagged("\n".join(block.lines)))[0]
            assert events_of(untagged(text))[-1] == shown
