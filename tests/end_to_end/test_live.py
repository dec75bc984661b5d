"""`skyray live --out`: killed and started again, its folder has every update once, and is one that `verify` accepts."""

import json
import os
import signal
from contextlib import suppress

import pyarrow.parquet as pq
import pytest

from gateway.generate import generate_subscriptions
from gateway.journal import read_records
from gateway.verify import verify_run
from matching.errors import CheckpointError, ConfigError
from matching.kinds import KINDS
from tests.support.etl_folder import random_rows, write_etl
from tests.support.processes import Command

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

MESSAGES = 3_000


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Words, a file of subscriptions, and lines: messages, of which some are bad, and changes."""
    folder = tmp_path_factory.mktemp("live")
    rows = random_rows(MESSAGES)
    etl = write_etl(folder / "etl", rows)
    file, more = folder / "mine.jsonl", []
    for kind in KINDS.run:
        generate_subscriptions(etl, kind.name, 40, 4, folder / f"{kind.name}.jsonl")
        more += (folder / f"{kind.name}.jsonl").read_text().splitlines()
    file.write_text("\n".join(more[::2]) + "\n")
    lines = []
    for row in rows:
        place = {name: row[name] for name in ("lon", "lat")}
        message = {"id": row["message_id"], "text": row["text"] or "nothing", "time": row["seq"] * 60, **place}
        lines.append(json.dumps(message))
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
        self.command = Command([*words, "--linger-ms", 2, "--batch", 100, *more], source=read)
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

    def finish(self):
        self.end.close()
        code, out, said = self.command.finish(120)
        assert code == 0, said
        return out, said


def test_live_killed_twice_tells_every_update_once_and_verify_accepts_it(given, tmp_path):
    _, _, lines = given
    with Live(given, tmp_path / "quiet") as live:
        live.write(lines)
        _, said = live.finish()
    wanted = said[said.index("digest ") :].split()[1].rstrip(";")
    done = 0
    for turn in range(2):
        with Live(given, tmp_path / "out") as live:
            if turn:  # what was told last may not have been read: it is told once more
                live.command.await_(lambda: live.durable() > 0)
                assert live.durable() >= done
                done = live.durable()
            # no further, so that there is something left for the others
            live.write(lines[done : (turn + 1) * len(lines) // 3])
            live.command.await_(lambda least=done: live.durable() > least)
            live.command.process.kill()
            live.command.process.wait(20)
            done = live.durable()
    assert not (tmp_path / "out" / "results.parquet").exists()
    with Live(given, tmp_path / "out") as live:
        live.command.await_(lambda: live.durable() >= done)
        live.write(lines[live.durable() :])
        _, said = live.finish()
    assert "goes on behind" in said
    report = json.loads((tmp_path / "out" / "run.json").read_text())
    assert report["state"] == "finished" and report["messages_taken"] == MESSAGES
    verdict = verify_run(tmp_path / "out", all=True)
    assert verdict.exact, verdict
    assert sum(verdict.delivered_updates.values()) == sum(report["updates"].values()) > 3_000
    assert verify_run(tmp_path / "quiet", all=True).exact
    # boundaries are decided anew, so digests are alike only where all batches end alike
    assert len(report["digest"]) == len(wanted) == 32
    rows = pq.read_table(tmp_path / "out" / "updates").to_pylist()
    assert len({tuple(row.values()) for row in rows}) == len(rows) == sum(report["updates"].values())


def test_live_interrupt_tells_what_is_at_hand_and_is_gone_on_with(given, tmp_path):
    _, _, lines = given
    with Live(given, tmp_path / "out", "--linger-ms", 60_000, "--batch", 1_000_000) as live:
        live.write(lines[:500])
        live.command.await_(
            lambda: "goes on" in live.command.read()[1] or (tmp_path / "out" / "journal" / "log").exists()
        )
        live.command.await_(
            lambda: (tmp_path / "out" / "journal" / "log").stat().st_size > 0
        )  # subscriptions of the file
        live.command.process.send_signal(signal.SIGINT)
        code, _, said = live.command.finish(60)
    assert code == 130 and "Traceback" not in said, said
    assert json.loads((tmp_path / "out" / "run.json").read_text())["state"] == "interrupted"
    with Live(given, tmp_path / "out") as live:
        live.write(lines[500:600])
        live.finish()
    assert verify_run(tmp_path / "out", all=True).exact


def test_live_messages_without_times_are_verified_where_nothing_fades(given, tmp_path):
    etl, _, lines = given
    file = tmp_path / "near.jsonl"
    near = {"subscription_id": "near", "kind": "knn", "keywords": ["w11", "w10"], "lon": 0, "lat": 0, "k": 40}
    file.write_text(json.dumps(near) + "\n")
    rows = [json.loads(line) for line in lines if line.startswith('{"id"')][:200]
    with Live((etl, file, lines), tmp_path / "out") as live:
        live.write([json.dumps({name: row[name] for name in row if name != "time"}) for row in rows])
        live.finish()
    verdict = verify_run(tmp_path / "out", all=True)
    assert verdict.exact and sum(verdict.delivered_updates.values()) > 10, verdict


def test_live_folder_of_another_kind_or_with_other_settings_is_refused(given, tmp_path):
    (tmp_path / "file").write_text("mine")
    _, _, lines = given
    with Live(given, tmp_path) as live:
        live.end.close()
        code, _, said = live.command.finish(60)
        assert code == ConfigError.exit_code and "holds something that is no folder of skyray live" in said
    with Live(given, tmp_path / "out") as live:
        live.write(lines[:50])
        live.finish()
    with Live(given, tmp_path / "out", "--window", "count:7") as live:
        live.end.close()
        code, _, said = live.command.finish(60)
        assert code == ConfigError.exit_code and "was begun with another window" in said


def log_of(path, *parts):
    import xxhash

    data = b""
    for part in parts:
        head = {"last_seq": 1, "line": 1, "bytes": len(part), "xxh3": xxhash.xxh3_64_hexdigest(part)}
        data += json.dumps(head).encode() + b"\n" + part
    path.write_bytes(data)
    return data


def test_log_cut_off_anywhere_has_the_whole_records_before_the_cut(tmp_path):
    path = tmp_path / "log"
    data = log_of(path, b"one\n", b"two\nthree\n", b"four\n")
    whole = [end for _, end in read_records(path)]
    assert [record.lines for record, _ in read_records(path)] == [[b"one\n"], [b"two\n", b"three\n"], [b"four\n"]]
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        assert [end for _, end in read_records(path)] == [end for end in whole if end <= cut]


def test_log_damaged_before_its_end_is_refused(tmp_path):
    path = tmp_path / "log"
    data = log_of(path, b"one\n", b"two\n")
    damaged = bytearray(data)
    damaged[data.index(b"one")] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match="is damaged at byte 0, and .* bytes follow"):
        list(read_records(path))
