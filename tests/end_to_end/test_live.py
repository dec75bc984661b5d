"""`skyray live --out` by either executor: whatever is killed, its folder has every update once, and is as a run's."""

import json
import math
import os
import signal
from bisect import bisect_left
from contextlib import suppress

import pyarrow.parquet as pq
import pytest

from gateway.runs.verify import verify_run
from gateway.subscriptions.generate import generate_subscriptions
from matching.kinds import KINDS
from spouts.cuts import read_ends
from spouts.subscriptions import load_vocabulary
from tests.support.etl_folder import random_rows, write_etl
from tests.support.faulty_runs import newest_actors
from tests.support.live_streams import digest_of_run, read_table
from tests.support.processes import Command

pytestmark = pytest.mark.fault

MESSAGES = 2_400
#: Parts of the stream, each of which has a word of its own that is in no vocabulary.
DAYS = 8


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Words, a file of subscriptions, and lines: messages, of which some are bad, and changes."""
    folder = tmp_path_factory.mktemp("live")
    rows = random_rows(MESSAGES)
    etl = write_etl(folder / "etl", rows)
    file, more = folder / "mine.jsonl", []
    for kind in KINDS.run:
        generate_subscriptions(etl, kind.name, 40, 4, folder / f"{kind.name}.jsonl", max_frequency=1.0)
        more += (folder / f"{kind.name}.jsonl").read_text().splitlines()
    place = {"kind": "topk", "lon": 0.0, "lat": 0.0, "k": 5, "alpha": 0.5}
    alerts = [{"subscription_id": f"new{day}", "keywords": [f"new{day}", "w1"], **place} for day in range(DAYS)]
    file.write_text("\n".join([*more[::2], *map(json.dumps, alerts[::2])]) + "\n")
    lines = []
    for row in rows:
        place = {name: row[name] for name in ("lon", "lat")}
        day = row["seq"] * DAYS // MESSAGES
        text = f"{row['text']} new{day}" if row["seq"] % 9 == 4 else row["text"] or "nothing"
        lines.append(json.dumps({"id": row["message_id"], "text": text, "time": row["seq"] * 60, **place}))
        if day % 2 and row["seq"] % (MESSAGES // DAYS) == 17:
            lines.append(json.dumps({"subscribe": alerts[day]}))
        if row["seq"] % 50 == 7:
            lines.append("no line")
        if row["seq"] % 29 == 5 and row["seq"] // 29 < len(more[1::2]):
            lines.append(json.dumps({"subscribe": json.loads(more[1::2][row["seq"] // 29])}))
        if row["seq"] % 31 == 3 and row["seq"] // 31 < len(more[::2]):
            lines.append(json.dumps({"unsubscribe": json.loads(more[::2][row["seq"] // 31])["subscription_id"]}))
    return etl, file, lines


class Live:
    """The command, with a pipe at its beginning."""

    def __init__(self, given, out, *more):
        etl, file, _ = given
        read, write = os.pipe()
        words = ["live", "--vocabulary", etl, "--subscriptions", file, "--window", "count:300", "--out", out]
        often = ("--set", "stream.linger_ms=2", "--set", "stream.batch_rows=100", "--checkpoint-every", 0.5)
        self.command = Command([*words, *often, *more], source=read)
        os.close(read)
        self.end = os.fdopen(write, "w")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with suppress(OSError):
            self.end.close()
        self.command.__exit__()

    def write(self, lines):
        self.end.write("".join(line + "\n" for line in lines))
        self.end.flush()

    def durable(self):
        """The last line of this input that is safe."""
        told = [json.loads(line) for line in self.command.read()[0].splitlines(keepends=True) if line.endswith("}\n")]
        return max((row["durable"]["line"] for row in told if "durable" in row), default=0)

    def told(self):
        """How many updates have come."""
        return self.command.read()[0].count('{"change"')

    def finish(self):
        self.end.close()
        code, out, said = self.command.finish(120)
        assert code == 0, said
        return out, said


def checkpoints_of(out):
    return len(list((out / "checkpoints").glob("epoch-*.json")))


def assert_whole(out, scratch):
    """Everything is there once, is what the oracle says, and what a run over files tells."""
    report = json.loads((out / "run.json").read_text())
    assert report["state"] == "finished" and report["messages_taken"] == MESSAGES
    verdict = verify_run(out)
    assert verdict.exact, verdict
    rows = pq.read_table(out / "updates").to_pylist()
    assert len({tuple(row.values()) for row in rows}) == len(rows) == sum(verdict.delivered_updates.values()) > 3_000
    assert digest_of_run(out, scratch) == report["digest"]
    assert {f"new{day}" for day in range(DAYS)} <= {row["subscription_id"] for row in rows}
    assert_weighed(out)
    return report


def assert_weighed(out):
    """Each new word has the weight of the messages before the batch that brought it first, and an id below others'."""
    ends, words = read_ends(out).tolist(), load_vocabulary(out)
    firsts = {}
    for row in read_table(out, "seq", "text").to_pylist():
        for word in row["text"].split():
            firsts.setdefault(word, row["seq"])
    late = {term: number for number, term in enumerate(words.terms) if term.startswith("new")}
    for day in range(DAYS):
        first = 0 if day % 2 == 0 else ends[bisect_left(ends, firsts[f"new{day}"]) - 1] + 1  # a file had the even ones
        assert words.idf[late[f"new{day}"]] == math.log(1 + (MESSAGES + first) / 0.5)
    ids = [late[f"new{day}"] for day in (6, 4, 2, 0)]
    assert ids == sorted(ids) and max(ids) < words.terms.index("w1")


@pytest.mark.ray
def test_live_on_ray_goes_on_when_an_actor_is_killed(given, tmp_path):
    _, _, lines = given
    out = tmp_path / "out"
    with Live(given, out, "--executor", "ray", "--set", "topology.placement=shared") as live:
        live.write(lines[: len(lines) // 2])
        live.command.await_(lambda: live.told() > 500 and checkpoints_of(out) > 0)
        newest_actors(live.command, 3)[1].kill()
        live.write(lines[len(lines) // 2 : -5])
        live.command.await_(lambda: "recovered" in live.command.read()[1])
        live.write(lines[-5:])
        live.finish()
    assert len(assert_whole(out, tmp_path / "run")["topology"]["recoveries"]) == 1


@pytest.mark.parametrize(
    "executor",
    [pytest.param("local", marks=pytest.mark.wide), pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.long])],
)
def test_live_killed_twice_tells_every_update_once(given, tmp_path, executor):
    _, _, lines = given
    done, out = 0, tmp_path / "out"
    for turn in range(2):
        with Live(given, out, "--executor", executor) as live:
            if turn:  # what was told last may not have been read: it is told once more
                live.command.await_(lambda: live.durable() > 0)
                assert live.durable() >= done
                done = live.durable()
            # no further, so that there is something left for the others
            live.write(lines[done : (turn + 1) * len(lines) // 3])
            live.command.await_(lambda least=done: live.durable() > least and checkpoints_of(out) > 0)
            live.command.process.kill()
            live.command.process.wait(20)
            done = live.durable()
    assert not (out / "results.parquet").exists()
    with Live(given, out, "--executor", executor) as live:
        live.command.await_(lambda: live.durable() >= done)
        live.write(lines[live.durable() :])
        _, said = live.finish()
    assert "event=resumes" in said and 'matches_from="the last checkpoint"' in said
    assert_whole(out, tmp_path / "run")


@pytest.mark.ray
@pytest.mark.long
def test_live_begun_in_one_process_is_gone_on_with_on_ray(given, tmp_path):
    _, _, lines = given
    out = tmp_path / "out"
    with Live(given, out) as live:
        live.write(lines[: len(lines) // 2])
        live.finish()
    with Live(given, out, "--executor", "ray", "--query-bolts", 3, "--router", "location") as live:
        live.command.await_(lambda: live.durable() > 0)
        live.write(lines[live.durable() :])
        live.finish()
    assert_whole(out, tmp_path / "run")


@pytest.mark.wide
def test_live_interrupt_tells_what_is_at_hand_and_is_gone_on_with(given, tmp_path):
    _, _, lines = given
    log = tmp_path / "out" / "journal" / "log"
    with Live(given, tmp_path / "out", "--set", "stream.linger_ms=60000", "--set", "stream.batch_rows=1000000") as live:
        live.write(lines[:500])
        live.command.await_(lambda: "reads standard input" in live.command.read()[1])
        live.command.await_(lambda: log.exists() and log.stat().st_size > 0)  # subscriptions of the file
        live.command.process.send_signal(signal.SIGINT)
        code, _, said = live.command.finish(60)
    assert code == 130 and "Traceback" not in said, said
    assert json.loads((tmp_path / "out" / "run.json").read_text())["state"] == "interrupted"
    with Live(given, tmp_path / "out") as live:
        live.write(lines[500:600])
        live.finish()
    assert verify_run(tmp_path / "out").exact
