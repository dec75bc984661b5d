"""The folder of a stream that runs, read by the commands for folders while messages and subscriptions come."""

import json
import threading

import numpy as np
import pytest

import skyray
from gateway.cli import main
from gateway.runs.verify import verify_run
from tests.support.beside import BOX, random_message, random_subscription
from tests.support.serving import Served, kill


@pytest.fixture
def command(capsys):
    """Runs a command here, where kernels are loaded; returns its exit code, and what it printed."""

    def run(*arguments):
        code = main([*map(str, arguments)])
        return code, *capsys.readouterr()

    return run


class Publisher:
    """Publishes, subscribes and unsubscribes until the block ends."""

    def __init__(self, served, seed, first):
        self.served, self.rng, self.number = served, np.random.default_rng(seed), first
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(30)

    def run(self):
        while not self.over.wait(0.02):
            rows = [random_message(self.rng, self.number + place) for place in range(20)]
            self.number += len(rows)
            self.served.call("POST", "/v1/messages", rows)
            if self.number % 200 == 0:
                one = random_subscription(self.rng, 0) | {"subscription_id": f"s{self.rng.integers(40)}"}
                self.served.call("PUT", f"/v1/subscriptions/{one['subscription_id']}", one)


def last_checkpoint(out):
    """Its epoch; -1 before the first."""
    return max((int(path.stem.split("-")[1]) for path in (out / "checkpoints").glob("epoch-*.json")), default=-1)


def files_of(out):
    """Names that only a reader could have made."""
    own = {"journal", "updates", "updates.list", "checkpoints", "run.json", ".lock"} | {
        f"sinks.sqlite{end}" for end in ("", "-shm", "-wal")
    }
    return {path.name for path in out.iterdir()} - own


def assert_not_copied(out, place):
    """What a reader has made of a stream is parts that are not whole; the log and whole parts are linked."""
    names = {path.name for path in place.rglob("*") if path.is_file() and not path.is_symlink()}
    assert (place / "journal").samefile(out / "journal") and names - {"run.json"} <= {
        path.name for path in (place / "updates").iterdir()
    }
    links = [path for path in (place / "updates").iterdir() if path.is_symlink()]
    assert all(path.resolve().parent == (out / "updates").resolve() for path in links)


def test_open_stream_is_verified_shown_and_explained_as_of_its_last_checkpoint(tmp_path, command):
    rng, out = np.random.default_rng(5), tmp_path / "out"
    subscriptions = [random_subscription(rng, place) | {"subscription_id": f"s{place}"} for place in range(40)]
    options = ["--world", BOX, "--window", "count:60", "--set", "recovery.checkpoint_every=0.5"]
    with Served(out, *options) as served:
        code, _, said = command("show", out)
        assert (code, "has no checkpoint so far" in said) == (4, True), said
        served.call("POST", "/v1/subscriptions", subscriptions)
        with Publisher(served, 1, 0) as publisher:
            served.await_(lambda: last_checkpoint(out) >= 0, 60)
            verdicts = []
            while len(verdicts) < 2 or verdicts[-1]["messages"] < 1_000:
                epoch, verdict = last_checkpoint(out), json.loads(command("verify", out, "--all", "--json")[1])
                assert verdict["exact"], verdict
                assert not verdicts or verdicts[-1]["messages"] <= verdict["messages"] <= publisher.number
                verdicts = [*verdicts[:1], verdict]
                served.await_(lambda epoch=epoch: last_checkpoint(out) > epoch, 60)
            assert verdicts[0]["messages"] < verdicts[1]["messages"]
            assert sum(verdicts[1]["oracle_updates"].values()) >= 1_000 and verdicts[1]["oracle_results"] > 20
            as_of = f"as of message {verdicts[1]['messages'] - 1:,}, checkpoint of "
            assert verdicts[1]["checkpoint"].startswith(as_of)
            assert verdicts[1]["checkpoint"].endswith("; the stream is running")
            code, shown, said = command("show", out, "--limit", 0, "--json")
            assert code == 0 and "the stream is running" in said
            holder = next(one for one in json.loads(shown)["subscriptions"] if one["results"])
            run = skyray.open(out)
            name, seq = holder["subscription_id"], holder["results"][0]["seq"]
            code, explained, said = command("explain", out, name, f"seq:{seq}", "--json")
            assert code == 0 and json.loads(explained)["checkpoint"], said
            assert run.checkpoint and run.updates(name).num_rows and run.explain(name, f"seq:{seq}")["as_of"] > 0
            code, _, said = command("show", out, "--follow")
            assert code == 2 and "/v1/updates" in said
        assert not files_of(out)
        place = run.place
        assert_not_copied(out, place)
        del run
        assert not place.exists(), "a copy goes with its run"
        kill(served)
    code, shown, said = command("verify", out, "--all")
    assert code == 0 and "it was not ended" in shown, said

    with Served(out, *options) as served, Publisher(served, 2, 100_000) as publisher:
        epoch = last_checkpoint(out)
        served.await_(lambda: publisher.number > 100_500 and last_checkpoint(out) > epoch + 1, 60)
        code, shown, said = command("run", "--batch", f"log:{out}", "--out", tmp_path / "again", "--executor", "local")
        assert code == 0 and "the stream is running" in said, said
        code, shown, said = command("verify", tmp_path / "again", "--all", "--json")
        again = json.loads(shown)
        assert again["exact"] and sum(again["oracle_updates"].values()) >= 1_000
        verdict = verify_run(out)
        assert verdict.exact and verdict.messages >= again["messages"], verdict
        assert not files_of(out)
