"""A backup of a stream that runs has all that the stream had, up to the backup's own last message."""

import json
import shutil
import threading

import numpy as np
import pytest

from gateway.cli import main
from gateway.live.backing_up import back_up
from matching.errors import CheckpointError, ConfigError
from spouts.history import LOG
from spouts.log import read_records
from tests.support.beside import BOX, random_message, random_subscription
from tests.support.serving import Served, kill
from tests.support.small_runs import small_run

OPTIONS = ["--world", BOX, "--window", "count:60", "--set", "recovery.checkpoint_every=0.3"]


@pytest.fixture
def command(capsys):
    """Runs a command in this process: code, standard output, standard error."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def everything(served):
    """Updates and gaps from the beginning, once all are released."""
    health = served.call("GET", "/health").json
    found, since = [], "begin"
    while not found or found[-1]["progress"]["through"] < health["next_seq"] - 1:
        found += served.call("GET", f"/v1/updates?poll=1&wait_s=5&limit=100000&since={since}").lines
        since = found[-1]["progress"]["id"]
    return [one for one in found if "change" in one], [one["gap"] for one in found if "gap" in one], health["next_seq"]


def publish(served, rng, first, count):
    rows = [random_message(rng, first + place) for place in range(count)]
    assert served.call("POST", "/v1/messages", rows).status == 200


@pytest.fixture(scope="module")
def backups(tmp_path_factory):
    """A folder, its backups before and behind the first part of a stream that is fed, and the updates of the stream."""
    folder, rng = tmp_path_factory.mktemp("backup"), np.random.default_rng(7)
    out, over = folder / "out", threading.Event()
    with Served(out, *OPTIONS) as served:
        many = [random_subscription(rng, place) | {"subscription_id": f"s{place}"} for place in range(40)]
        served.call("POST", "/v1/subscriptions", many)
        hook = {"url": "https://127.0.0.1:1/", "subscription_id": "s1", "every": "1h"}
        served.call("POST", "/v1/webhooks", hook)

        def feed():
            number = 0
            while not over.wait(0.04):
                publish(served, rng, number, 20)
                number += 20

        thread = threading.Thread(target=feed, daemon=True)
        thread.start()
        made = []
        served.await_(lambda: list((out / "checkpoints").glob("epoch-*.json")), 60)
        for number in range(2):
            served.await_(lambda number=number: len(list((out / "updates").glob("part-*"))) >= number, 60)
            made.append(back_up(out, folder / f"copy{number}"))
        over.set()
        thread.join(30)
        whole, gaps, _ = everything(served)
        assert not gaps and len(whole) >= 1_000
        kill(served)
    return folder, made, whole


@pytest.mark.parametrize("number", range(2))
def test_backup_of_a_stream_that_runs_is_resumed_with_all_updates_under_their_ids(backups, number):
    folder, made, whole = backups
    copy = folder / f"copy{number}"
    assert made[number].messages > 0 and made[number].lost_parts == 0
    assert not (copy / ".lock").exists() and (copy.stat().st_mode & 0o777) == 0o700
    with Served(copy, *OPTIONS) as served:
        found, gaps, next_seq = everything(served)
        assert next_seq == made[number].messages and not gaps
        assert found == [one for one in whole if one["as_of"] < next_seq] and found
        publish(served, np.random.default_rng(9), 10**6, 20)
        more, gaps, _ = everything(served)
        assert more[: len(found)] == found and not gaps
        kill(served)
    back_up(copy, copy.with_name(f"{copy.name}-again"))  # also of a folder whose process has died


def test_backup_of_what_cannot_be_resumed_is_refused_and_leaves_nothing(backups, tmp_path):
    folder, _, _ = backups
    with pytest.raises(ConfigError, match="is there already"):
        back_up(folder / "out", folder / "copy0")
    shutil.copytree(folder / "out", tmp_path / "out")
    part = min((tmp_path / "out" / "updates").glob("part-*"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"part-00000.parquet: is not as it was written"):
        back_up(tmp_path / "out", tmp_path / "copy")
    part.unlink()
    assert back_up(tmp_path / "out", tmp_path / "copy").lost_parts == 1
    log = tmp_path / "out" / LOG
    *_, (_, begins, _) = read_records(log)
    log.write_bytes(log.read_bytes()[: begins - 1])
    with pytest.raises(CheckpointError, match="were acknowledged"):
        back_up(tmp_path / "out", tmp_path / "other")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "copy"}


def test_backup_of_a_run_over_files_and_its_command(command, tmp_path):
    run = small_run(tmp_path / "small")
    code, printed, said = command("backup", run, tmp_path / "copy", "--json")
    assert code == 0, said
    assert json.loads(printed)["updates"] > 0
    files = {path.relative_to(run): path.read_bytes() for path in run.rglob("*.parquet")}
    assert files and all((tmp_path / "copy" / name).read_bytes() == data for name, data in files.items())
    (tmp_path / "copy" / "sinks.sqlite").write_bytes(b"no database" * 100)
    code, _, said = command("backup", tmp_path / "copy", tmp_path / "other")
    assert (code, "sinks.sqlite: cannot be copied" in said) == (5, True), said
