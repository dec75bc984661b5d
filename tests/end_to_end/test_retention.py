"""A stream whose beginning was removed goes on as its twin does that has all."""

import json
import os
import shutil
import signal
import time
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bolts.standing import standing_of
from gateway.cli import main
from gateway.live import pruning
from gateway.live.backing_up import back_up
from gateway.live.converting import convert
from gateway.live.opening import reopened
from gateway.live.pruning import base_part, finish
from gateway.live.retain_settings import RetainSettings
from gateway.live.retaining import prune_ended
from gateway.live.vocabulary_files import empty_start
from gateway.runs.reader import RunReader
from gateway.runs.verify import verify_run
from matching.errors import CheckpointError, ConfigError
from spouts.history import LOG
from spouts.log import BASE
from tests.support.beside import random_message, random_subscription
from tests.support.live_streams import Stream
from topology.folder import RunFolder

#: Other numbers of tasks than those of the life before.
OTHER = ({}, {"query_bolts": 2, "tuple_bolts": 2, "delivery_bolts": 2, "router": "location"})


def live_on(out, rng, first, count, window="count:60", subscriptions=3, **settings):
    """One more life of a stream: some lines are taken, matched, and the stream ends; its digest."""
    start = empty_start(out, (), "", False)
    stream = Stream(start, out, batch=25, window=window, most_terms=1000, checkpoint_every=0.2, **settings)
    for number in range(first, first + count):
        if rng.random() < subscriptions / count:
            stream.take({"subscribe": random_subscription(rng, number)})
        if rng.random() < 0.5 * subscriptions / count and stream.gate.active:
            stream.take({"unsubscribe": sorted(stream.gate.active)[0]})
        stream.take(random_message(rng, number))
        if len(stream.pipe.batching.open) >= 20:
            stream.pipe.close_batch()
    stream.pipe.close_batch()
    return stream.finish(stream.match())


def prune(out, scratch, messages=0, **settings):
    """`skyray prune`, which keeps so many messages, and no ids against repeats; the first message that is kept."""
    run = RunFolder(out)
    with run.locked():
        finish(out)
        wal, admission = reopened(out, run.report()["live"], scratch)
        wal.replay(admission)
        wal.rebase()
        freed = prune_ended(wal, admission.window, RetainSettings(messages, retain_repeats=0, **settings), time.time())
        wal.close()
        return wal.first_seq, freed


def standing(out):
    return pq.read_table(out / "results.parquet").sort_by([("subscription_id", "ascending"), ("rank", "ascending")])


def applied(out):
    """What stands by the updates in the files."""
    return sorted(map(repr, standing_of(RunReader(out).pieces()).to_pylist()))


def updates_after(out, boundary):
    parts = sorted((out / "updates").glob("part-*.parquet"))
    table = pa.concat_tables([pq.read_table(path) for path in parts if "of0000" not in path.name])
    return sorted(map(repr, table.filter(pa.array(table["as_of"].to_numpy() > boundary)).to_pylist()))


@pytest.mark.parametrize(("window", "objects"), [("count:60", False), ("time:4000s", False), ("living", True)])
def test_stream_pruned_between_lives_gives_what_its_twin_gives(tmp_path, window, objects):
    whole, pruned, rng = tmp_path / "whole", tmp_path / "pruned", np.random.default_rng(3)
    kept = {"window": window, **({"objects": True} if objects else {})}
    number, cuts = 0, []
    for life in range(4):
        state = rng.bit_generator.state
        digest = live_on(whole, rng, number, 150, **kept)
        rng.bit_generator.state = state
        assert live_on(pruned, rng, number, 150, **kept, **OTHER[life % 2]) == digest
        number += 150
        cuts.append(prune(pruned, tmp_path, 20))
        for folder in (whole, pruned):
            verdict = verify_run(folder)
            assert verdict.oracle_updates == verdict.delivered_updates
            assert verdict.exact, verdict.render()
    firsts = [first for first, _ in cuts]
    assert firsts == sorted(firsts) and firsts[-1] > 0
    part = base_part(pruned)
    assert part is not None and (pruned / LOG).with_name(BASE).exists()
    boundary = RunReader(pruned).kept_after
    assert updates_after(pruned, boundary) == updates_after(whole, boundary)
    assert standing(pruned).equals(standing(whole))


def killed_at(step, act):
    """Whether a process that acts was killed, right before its change of names or bytes of that number."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    left = step

    def counted(change):
        def changed(*arguments, **named):
            nonlocal left
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return change(*arguments, **named)

        return changed

    try:
        for name in ("rename", "replace", "unlink", "fsync"):
            setattr(os, name, counted(getattr(os, name)))
        pruning._punch = counted(pruning._punch)
        act()
    finally:
        os._exit(0)


def test_prune_killed_at_every_step_leaves_a_folder_that_is_exact_and_finished_later(tmp_path):
    out, rng = tmp_path / "out", np.random.default_rng(5)
    for life in range(5):
        live_on(out, rng, life * 150, 150)
        if life == 2:  # both checkpoints are behind the first part
            earlier, _ = prune(out, tmp_path, 20)
    goal = tmp_path / "goal"
    shutil.copytree(out, goal)
    first, _ = prune(goal, tmp_path, 20)
    assert first > earlier > 0
    kills = 0
    while True:
        trial = tmp_path / f"trial{kills}"
        shutil.copytree(out, trial)
        if not killed_at(kills, partial(prune, trial, tmp_path, 20)):
            break
        kills += 1
        with RunFolder(trial).locked():
            finish(trial)
        left = [path for path in trial.rglob("*.tmp") if path.name != ".run.json.tmp"]  # which the next start removes
        assert not left, left
        assert standing(trial).equals(standing(goal))
        assert applied(trial) == applied(goal)
        verdict = verify_run(trial)
        assert verdict.exact, verdict.render()
        again, _ = prune(trial, tmp_path, 20)
        assert again == first and RunReader(trial).kept_after == RunReader(goal).kept_after
        shutil.rmtree(trial)
    assert kills >= 8


def test_pruned_folder_without_a_checkpoint_is_refused_and_its_backup_resumes(tmp_path, capsys):
    out, rng = tmp_path / "out", np.random.default_rng(6)
    for life in range(3):
        live_on(out, rng, life * 150, 150)
    assert main(["prune", str(out)]) == 2
    capsys.readouterr()
    assert main(["prune", str(out), "--messages", "20", "--repeats", "0", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert 0 < said["first_message"] < 450 and said["messages"] == 450
    assert main(["explain", str(out), "s1", "seq:0"]) != 0
    assert "no longer kept" in capsys.readouterr().err
    assert json.loads((out / "run.json").read_text())["formats"]["base"] == 1
    with pytest.raises(ConfigError, match="beginning of its log is gone"):
        convert(out, tmp_path / "converted")
    copied = back_up(out, tmp_path / "copy")
    assert copied.messages == 450
    state = rng.bit_generator.state
    digest = live_on(tmp_path / "copy", rng, 450, 60)
    rng.bit_generator.state = state
    shutil.copytree(out, tmp_path / "bare", ignore=shutil.ignore_patterns("checkpoints"))
    assert live_on(out, rng, 450, 60) == digest
    with pytest.raises(CheckpointError, match="beginning of the log is gone"):
        live_on(tmp_path / "bare", rng, 450, 60)


def test_what_is_kept_is_bounded_by_number_age_or_size(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.live.write_ahead_log._LOGGED_S", 0)  # every record says when it was logged
    out, rng = tmp_path / "out", np.random.default_rng(7)
    for life in range(3):
        live_on(out, rng, life * 150, 150)
    firsts = {}
    kept = {"messages": {"messages": 20}, "age": {"retain_age": "0s"}, "gb": {"retain_gb": 1e-6}}
    none = {"many": {"messages": 450}, "month": {"retain_age": "30d"}, "large": {"retain_gb": 1.0}}
    for name, limits in (kept | none).items():
        trial = tmp_path / name
        shutil.copytree(out, trial)
        firsts[name], _ = prune(trial, tmp_path, **({"messages": None} | limits))
        if name in kept:
            verdict = verify_run(trial)
            assert verdict.exact and verdict.since >= 0, verdict.render()
    assert all(firsts[name] > 0 for name in kept) and not any(firsts[name] for name in none), firsts
