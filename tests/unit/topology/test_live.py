"""A live stream that is gone on with tells what a run over what it logged tells, wherever it ended before."""

import json
import shutil
import time

import pyarrow.parquet as pq
import pytest

from gateway.runs.verify import verify_run
from gateway.subscriptions.generate import generate_subscriptions
from matching.errors import CheckpointError, ConfigError
from matching.kinds import KINDS
from spouts.quarantine import EMPTY_QUARANTINE
from tests.support.beside import BOX
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream, counted, digest_of_run, write_ends
from tests.support.poisoned import poisoned
from topology.core.checkpoint import coordinator
from topology.core.checkpoint.store import CheckpointStore
from topology.wiring import build_live_plan

MESSAGES, BATCH = 600, 25
SETTINGS = {"window": "count:120", "world": "earth"}


class Crash(Exception):
    """The process ends."""


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Words, and rows: subscriptions of all kinds, then messages with some more changes in between."""
    folder = tmp_path_factory.mktemp("live")
    rows = random_rows(MESSAGES)
    etl = write_etl(folder / "etl", rows)
    first, later = [], []
    for kind in KINDS.run:
        generate_subscriptions(etl, kind.name, 12, 4, folder / f"{kind.name}.jsonl", max_frequency=1.0)
        mine = [{"subscribe": json.loads(line)} for line in (folder / f"{kind.name}.jsonl").read_text().splitlines()]
        first, later = first + mine[::2], later + mine[1::2]
    lines = list(first)
    for row in rows:
        place = {name: row[name] for name in ("lon", "lat")}
        thing = {"object_id": f"thing {row['seq'] % 37}"} if row["seq"] % 3 else {}
        lines.append({"id": row["message_id"], "text": row["text"] or "no", "time": row["seq"] * 60, **place, **thing})
        if row["seq"] % 20 == 7 and later:
            lines.append(later.pop())
        if row["seq"] % 29 == 3 and first:
            lines.append({"unsubscribe": first.pop()["subscribe"]["subscription_id"]})
    return etl, lines


def feed(stream, lines):
    """Take lines, a batch every so many messages."""
    for line in lines:
        stream.take(line)
        if "id" in line and int(line["id"].split()[1]) % BATCH == BATCH - 1:
            stream.pipe.close_batch()
    stream.pipe.close_batch()


def whole(given, out, **settings):
    """The digest of a stream that nothing disturbs."""
    etl, lines = given
    stream = Stream(etl, out, **SETTINGS, **settings)
    feed(stream, lines)
    return stream, stream.finish(stream.match())


def rows_of(out):
    return [tuple(row.values()) for row in pq.read_table(out / "updates").to_pylist()]


def test_live_stream_is_exact_and_a_run_over_what_it_logged_tells_the_same(given, tmp_path):
    stream, digest = whole(given, tmp_path / "out")
    verdict = verify_run(tmp_path / "out")
    assert verdict.exact and sum(verdict.delivered_updates.values()) == len(stream.told) > 1_000, verdict
    assert digest_of_run(tmp_path / "out", tmp_path / "run") == digest


def test_live_stream_that_died_after_its_last_part_has_every_update_once(given, tmp_path):
    """The part has updates that the last checkpoint has saved, and `run.json` does not say yet that it has ended."""
    etl, lines = given
    stream = Stream(etl, tmp_path / "out", **SETTINGS)
    feed(stream, lines)
    stream.match()
    assert len(rows_of(tmp_path / "out")) == len(stream.told)
    verdict = verify_run(tmp_path / "out")
    assert verdict.exact and sum(verdict.delivered_updates.values()) == len(stream.told) > 1_000, verdict


@pytest.mark.parametrize("settings", [{"router": "location", "query_bolts": 3}, {"router": "kop"}], ids=str)
def test_live_stream_tells_the_same_by_another_router(given, tmp_path, settings):
    stream, digest = whole(given, tmp_path / "out")
    other, digest_of_other = whole(given, tmp_path / "other", **settings)
    assert digest == digest_of_other and counted(stream.told) == counted(other.told)


def test_live_stream_that_has_ended_is_gone_on_with_from_its_end_by_whatever_router(given, tmp_path):
    etl, lines = given
    _, wanted = whole(given, tmp_path / "whole")
    cuts = [0, 100, 101, 400, len(lines)]
    for place, (begin, end) in enumerate(zip(cuts, cuts[1:], strict=False)):
        router = ("hashing", "kop", "location", "kop")[place]
        stream = Stream(etl, tmp_path / "out", **SETTINGS, router=router, query_bolts=place + 1)
        feed(stream, lines[begin:end])
        digest = stream.finish(stream.match())
        assert stream.from_checkpoint == (place > 0)
    assert verify_run(tmp_path / "out").exact
    rows = rows_of(tmp_path / "out")
    assert len(rows) == len(set(rows)) > 1_000
    assert len(stream.told) < len(rows), "what was told to its end before is not told again"
    assert digest_of_run(tmp_path / "out", tmp_path / "run") == digest != wanted  # batches end elsewhere


@pytest.mark.parametrize("checkpoint_every", [0.0, 0.01])
def test_live_stream_that_was_cut_off_tells_all_the_same(given, tmp_path, checkpoint_every):
    etl, lines = given
    _, wanted = whole(given, tmp_path / "whole")
    settings = SETTINGS | {"checkpoint_every": checkpoint_every}
    checkpoints = CheckpointStore(str(tmp_path / "out" / "checkpoints"))
    for turn in range(2):
        stream = Stream(etl, tmp_path / "out", **settings)
        if not turn:
            feed(stream, lines)

        def crash(stream=stream, turn=turn):
            through = stream.in_flight.through
            # a turn that goes on from the last message has nothing to save
            saved = not checkpoint_every or checkpoints.last_epoch() > (turn if through < MESSAGES - 1 else 0)
            if through > MESSAGES * (turn + 1) // 3 and saved:
                raise Crash
            return MESSAGES

        with pytest.raises(Crash):
            stream.match(crash)
        stream.journal.close()
    stream = Stream(etl, tmp_path / "out", **settings)
    assert stream.finish(stream.match()) == wanted
    assert stream.from_checkpoint == bool(checkpoint_every)
    assert sorted(rows_of(tmp_path / "out")) == sorted(rows_of(tmp_path / "whole"))


@pytest.mark.parametrize(("delivery_bolts", "named"), [(1, 0), (1, 2), (2, 0), (2, 3)])
def test_live_stream_killed_before_a_checkpoint_named_its_parts_loses_none_of_them(
    given, tmp_path, monkeypatch, delivery_bolts, named
):
    etl, lines = given
    settings = SETTINGS | {"checkpoint_every": 0.01, "delivery_bolts": delivery_bolts}
    monkeypatch.setattr("bolts.sinks.SMALL_ROWS", 1)  # each checkpoint ends a part
    _, wanted = whole(given, tmp_path / "whole")
    stream = Stream(etl, tmp_path / "out", **settings)
    feed(stream, lines)
    publish, given_names = coordinator._publish, []

    def publish_or_die(output):
        if len(given_names) == named:
            raise Crash
        given_names.append(output.name)
        publish(output)

    with monkeypatch.context() as patch:
        patch.setattr(coordinator, "_publish", publish_or_die)
        with pytest.raises(Crash):
            stream.match()
    stream.journal.close()
    manifest = CheckpointStore(str(tmp_path / "out" / "checkpoints")).newest()
    assert manifest is not None and manifest.outputs, "no part waits for its name"
    stream = Stream(etl, tmp_path / "out", **settings)
    assert stream.finish(stream.match()) == wanted and stream.from_checkpoint
    assert all((tmp_path / "out" / name).exists() for _, name in manifest.outputs)
    rows = rows_of(tmp_path / "out")
    assert len(rows) > 1_000 and sorted(rows) == sorted(rows_of(tmp_path / "whole"))


def test_live_run_that_ended_before_all_was_matched_goes_on_by_itself(given, tmp_path):
    etl, lines = given
    _, wanted = whole(given, tmp_path / "whole")
    stream = Stream(etl, tmp_path / "out", **SETTINGS)
    feed(stream, lines)
    # as where somebody dies when everything has been told, and the stream is at its end where it goes back to
    checkpoints = CheckpointStore(str(tmp_path / "out" / "checkpoints"))
    ends = {-1: MESSAGES // 3, 0: MESSAGES // 2}
    assert stream.finish(stream.match(lambda: ends.get(checkpoints.last_epoch(), MESSAGES - 1))) == wanted
    assert checkpoints.last_epoch() == 2
    assert sorted(rows_of(tmp_path / "out")) == sorted(rows_of(tmp_path / "whole"))


@pytest.mark.parametrize("what", [{"seqs": [303, 310]}, {"numbers": [4]}], ids=str)
def test_live_stream_on_which_a_component_fails_goes_on_without_the_row_at_fault(given, tmp_path, monkeypatch, what):
    def build(config, log, listener, aside=EMPTY_QUARANTINE):
        return poisoned(build_live_plan(config, log, listener, aside), **what)

    etl, lines = given
    monkeypatch.setattr("topology.live.build_live_plan", build)
    stream = Stream(etl, tmp_path / "out", **SETTINGS, checkpoint_every=0.05)
    feed(stream, lines)
    report = stream.match()
    stream.finish(report)
    assert report["quarantined"] == {
        "messages": [[seq, seq] for seq in what.get("seqs", ())],
        "subscriptions": [[number, number] for number in what.get("numbers", ())],
    }
    rejected = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert {row["reason"] for row in rejected} == {"poison"} and len(rejected) == sum(map(len, what.values()))
    verdict = verify_run(tmp_path / "out")
    assert verdict.exact and sum(verdict.delivered_updates.values()) > 1_000, verdict
    rows = rows_of(tmp_path / "out")
    assert len(rows) == len(set(rows))


def test_live_stream_in_which_nothing_comes_is_not_saved_again(given, tmp_path):
    etl, lines = given
    stream = Stream(etl, tmp_path / "out", **SETTINGS, checkpoint_every=0.01)
    feed(stream, lines[:200])
    checkpoints, epochs = CheckpointStore(str(tmp_path / "out" / "checkpoints")), []
    deadline_s = time.monotonic() + 60

    def stop():
        """Asked between empty batches: once a checkpoint of all that was logged is whole, five times more."""
        assert time.monotonic() < deadline_s, "all that was logged is never saved"
        newest = checkpoints.newest()
        if newest is not None and newest.number >= len(stream.journal.ends) - 1:
            epochs.append(checkpoints.last_epoch())
        return MESSAGES if len(epochs) < 5 else 0

    report = stream.match(stop)
    assert len(epochs) == 5 and {*epochs, checkpoints.last_epoch()} == {epochs[0]}
    assert report["spouts"]["messages"]["batches"] >= len(stream.journal.ends) + 4


def test_live_text_of_messages_that_are_long_gone_is_looked_up_in_the_log(given, tmp_path, monkeypatch):
    _, lines = given
    usual, _ = whole(given, tmp_path / "usual")
    monkeypatch.setattr("gateway.live.recent_blocks.RECENT_BYTES", 3_000)
    late, _ = whole(given, tmp_path / "late")
    by_seq = {row["seq"]: row["text"] for row in late.told}
    assert len(by_seq) > 200 and late.told == usual.told
    texts = [line["text"] for line in lines if "id" in line]
    assert all(texts[seq] == text for seq, text in by_seq.items())


def test_live_messages_without_times_are_verified_where_nothing_fades(given, tmp_path):
    etl, lines = given
    near = {"subscription_id": "near", "kind": "knn", "keywords": ["w11", "w10"], "lon": 0, "lat": 0, "k": 40}
    rows = [{name: row[name] for name in row if name != "time"} for row in lines if "id" in row]
    stream = Stream(etl, tmp_path / "out", **SETTINGS)
    feed(stream, [{"subscribe": near}, *rows])
    stream.finish(stream.match())
    verdict = verify_run(tmp_path / "out")
    assert verdict.exact and sum(verdict.delivered_updates.values()) > 10, verdict


def test_live_checkpoints_of_another_version_are_refused_and_the_log_is_matched_anew_without_them(
    given, tmp_path, monkeypatch
):
    etl, lines = given
    out, half = tmp_path / "out", len(lines) // 2
    stream = Stream(etl, out, **SETTINGS, checkpoint_every=0.01)
    feed(stream, lines[:half])
    stream.match()
    store = CheckpointStore(str(out / "checkpoints"))
    manifest = store.newest()
    assert manifest is not None
    with monkeypatch.context() as patch:
        patch.setattr("topology.core.checkpoint.store.FORMAT", 2)
        store.commit(manifest)
    stream = Stream(etl, out, **SETTINGS, checkpoint_every=0.01)
    feed(stream, lines[half:])
    with pytest.raises(CheckpointError, match="another version of Skyray.*removing this folder of checkpoints"):
        stream.match()
    shutil.rmtree(out / "checkpoints")
    stream = Stream(etl, out, **SETTINGS, checkpoint_every=0.01)
    report = stream.match()
    digest = stream.finish(report)
    assert not stream.from_checkpoint and digest == digest_of_run(out, tmp_path / "again") and rows_of(out)


def test_live_folder_of_something_else_is_refused(given, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("mine")
    with pytest.raises(ConfigError, match="holds something that is no folder of skyray live"):
        Stream(given[0], tmp_path / "out", **SETTINGS)


def test_live_folder_of_other_settings_is_refused(given, tmp_path):
    etl, lines = given
    stream = Stream(etl, tmp_path / "out", **SETTINGS)
    feed(stream, lines[:50])
    stream.match()
    for changed in ({"window": "count:7"}, {"world": BOX}, {"decay_smoothing": 0.5}):
        with pytest.raises(ConfigError, match=f"begun with another {next(iter(changed))}"):
            Stream(etl, tmp_path / "out", **(SETTINGS | changed))


def test_run_with_boundaries_of_another_stream_is_refused(given, tmp_path):
    whole(given, tmp_path / "out")
    write_ends(tmp_path / "few", [24, 49, 74])
    with pytest.raises(ConfigError, match="has boundaries of 75 messages, and .* has 600"):
        digest_of_run(tmp_path / "out", tmp_path / "run", batch=f"log:{tmp_path / 'few'}")
