"""One stream by every door: a run over files, a live stream, an engine in this process, and what live leaves run again.

Ids come twice, objects have versions and are deleted, messages lack a time or are dated far ahead. Whoever reads the
stream must come to the same updates, which are the oracle's.
"""

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

import skyray
from gateway.runs.verify import verify_run
from spouts.subscriptions import load_vocabulary
from tests.support.beside import BOX, Beside, random_message, random_subscription
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream, counted, digest_of_run
from topology import running
from topology.folder import RUNNING
from topology.settings import MAX_AHEAD_S, RunConfig

#: When all messages of a story come; those dated later than this and a day are dated too far ahead. A century from now,
#: so that whoever asks the clock once more finds all of them ahead.
LATER_S = 3_000_000_000
NOW_S = 1_577_836_800 + 100_000 + LATER_S
FAR_S = NOW_S + int(MAX_AHEAD_S) + 1
WINDOWS = ["count:15", "time:1500", "count:1000"]
#: A story has at least so many updates: the six of this file have more than a thousand.
FEWEST, TURNS = 180, 24


class Batch(NamedTuple):
    """Changes of subscriptions, and the messages after them."""

    changes: list[dict]
    messages: list[dict]


def story(seed: int, in_order: bool = False) -> list[Batch]:
    """Batches of a stream; of an odd seed every message is about the object of its id, and none deletes.

    `in_order`: every message has a time, of our days, later than those before, as the ETL sorts them.
    """
    rng = np.random.default_rng(seed)
    batches, live, number = [], set(), 0
    for turn in range(TURNS):
        changes = []
        for _ in range(int(rng.integers(0, 4)) + 40 * (turn == 0)):
            row = random_subscription(rng, 0) | {"subscription_id": f"s{rng.integers(30)}"}
            changes.append({"subscribe": row})
            live.add(row["subscription_id"])
        if live and rng.random() < 0.4:
            name = sorted(live)[int(rng.integers(len(live)))]
            changes.append({"unsubscribe": name})
            live.remove(name)
        messages = []
        for _ in range(int(rng.integers(1, 16))):
            row = random_message(rng, number)
            if number and rng.random() < 0.35:
                row["id"] = f"m{rng.integers(number)}"
            if seed % 2 and not in_order:
                row = {name: value for name, value in row.items() if name not in ("object_id", "op")}
            if not in_order:
                row["time"] += LATER_S - int(rng.integers(0, 3)) * 150
                if rng.random() < 0.2:
                    del row["time"]
                elif rng.random() < 0.1:
                    row["time"] = FAR_S + number
            elif turn == TURNS - 1:
                row["time"] = 4_000_000_000 + number  # for whoever reads it in this century
            messages.append(row)
            number += 1
        batches.append(Batch(changes, messages))
    return batches


def by_oracle(batches, window, words, now_s=NOW_S) -> Counter:
    beside, told = Beside(window, load_vocabulary(words), now_s + MAX_AHEAD_S), Counter()
    for batch in batches:
        for change in batch.changes:
            if "subscribe" in change:
                beside.subscribe(change["subscribe"])
            else:
                beside.unsubscribe(change["unsubscribe"])
        told += beside.publish(batch.messages)
    return told


def by_engine(batches, window, words) -> tuple[Counter, skyray.Engine]:
    engine, told = skyray.Engine(words, window, world=BOX, clock=lambda: NOW_S), []
    for batch in batches:
        for change in batch.changes:
            if "subscribe" in change:
                engine.subscribe(change["subscribe"])
            else:
                engine.unsubscribe(change["unsubscribe"])
        told += engine.publish(batch.messages)
    return counted(told), engine


def _subscribed(batch: Batch) -> list[dict]:
    return [change["subscribe"] for change in batch.changes if "subscribe" in change]


def take_all(stream: Stream, batches) -> None:
    for batch in batches:
        for row in (*batch.changes, *batch.messages):
            stream.take(row)
        stream.pipe.close_batch()
    assert not stream.refused


def by_live(batches, window, words, out: Path, now_s=NOW_S) -> tuple[Counter, str, Stream]:
    stream = Stream(words, out, window=window, now=lambda: now_s)
    take_all(stream, batches)
    digest = stream.finish(stream.match())
    return counted(stream.told), digest, stream


def by_run(etl: Path | None, live: Path, window, out: Path) -> dict:
    """A run over messages, by default its own, with the changes and boundaries that a live stream has left."""
    files = {"messages": etl or live, "subscriptions": (live,), "out": out}
    return running.run(RunConfig(**files, window=window, world=BOX, executor="local", batch=f"log:{live}"))


def delivered(out: Path, *left_out: str) -> Counter:
    rows = pq.read_table(out / "updates").drop_columns(list(left_out)).to_pylist()
    return Counter(tuple(sorted(row.items(), key=str)) for row in rows)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("doors") / "words", random_rows(200))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("seed", range(2))
def test_doors_tell_the_same_of_any_stream(words, tmp_path, seed, window):
    batches, live, again = story(seed), tmp_path / "live", tmp_path / "again"
    expected = by_oracle(batches, window, words)
    assert sum(expected.values()) > FEWEST
    told, engine = by_engine(batches, window, words)
    assert told == expected
    told, digest, stream = by_live(batches, window, words, live)
    assert told == expected
    assert stream.gate.set_aside == engine.set_aside and min(engine.set_aside.values()) > 3, engine.set_aside
    report = by_run(None, live, window, again)
    assert report["digest"] == digest and delivered(again) == delivered(live)
    assert report["spouts"]["messages"]["ahead"] == stream.gate.set_aside["ahead"]
    for folder in (live, again):
        verdict = verify_run(folder)
        assert verdict.exact, verdict.render()
        assert sum(verdict.delivered_updates.values()) == sum(expected.values())


def test_doors_stories_have_what_they_are_for():
    messages = [row for seed in range(2) for batch in story(seed) for row in batch.messages]
    ids = Counter(row["id"] for row in messages)
    assert sum(count - 1 for count in ids.values()) > 50
    assert sum("object_id" in row for row in messages) > 20 and sum(row.get("op") == "delete" for row in messages) > 5
    assert sum("time" not in row for row in messages) > 20


@pytest.mark.spark
def test_doors_etl_and_run_tell_what_live_does(tmp_path):
    """The ETL takes an id once: what comes again under it has an id of its own there, and is about the same object."""
    batches = story(5, in_order=True)
    raw, seen = [], Counter()
    for row in (row for batch in batches for row in batch.messages):
        seen[row["id"]] += 1
        again = {"id": f"{row['id']} again {seen[row['id']]}"} if seen[row["id"]] > 1 else {}
        raw.append({"object_id": row["id"], **row, **again})
    assert sum(seen.values()) - len(seen) > 20
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in raw))
    etl = tmp_path / "etl"
    assert skyray.etl(tmp_path / "raw.jsonl", out=etl, master="local[2]")["kept"] == len(raw)
    for window in WINDOWS[:2]:
        live, run = tmp_path / f"live {window}", tmp_path / f"run {window}"
        told, _, stream = by_live(batches, window, etl, live, NOW_S - LATER_S)
        assert told == by_oracle(batches, window, etl, NOW_S - LATER_S) and sum(told.values()) > FEWEST
        report = by_run(etl, live, window, run)
        assert delivered(run, "message_id") == delivered(live, "message_id")
        assert report["spouts"]["messages"]["ahead"] == stream.gate.set_aside["ahead"] > 0
        assert verify_run(run).exact and verify_run(live).exact


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_doors_what_live_leaves_is_run_again_on_ray(words, tmp_path):
    _, digest, _ = by_live(story(1), "time:1500", words, tmp_path / "live")
    many = {"query_bolts": 3, "tuple_bolts": 2, "placement": "shared"}
    assert digest_of_run(tmp_path / "live", tmp_path / "again", executor="ray", world=BOX, **many) == digest


def test_live_decides_once_who_is_dated_too_far_ahead(words, tmp_path):
    """What was logged by a process that died is matched years later, when nothing of it is ahead any more."""
    batches = story(3)
    first = Stream(words, tmp_path / "live", window="time:1500", now=lambda: NOW_S)
    take_all(first, batches)
    first.journal.close()
    assert first.gate.set_aside["ahead"] > 3
    first.journal.run.write_report(RUNNING, {"live": first.journal.settings})
    second = Stream(words, tmp_path / "live", window="time:1500", now=lambda: NOW_S + 1e9)
    digest = second.finish(second.match())
    assert counted(second.told) == by_oracle(batches, "time:1500", words)
    assert verify_run(tmp_path / "live").exact
    assert digest_of_run(tmp_path / "live", tmp_path / "again", world=BOX, max_ahead=0.0) == digest


def test_live_message_id_that_comes_twice_is_one_rule_at_every_door(words, tmp_path):
    skyline = {"subscription_id": "s", "kind": "skyline", "keywords": "w1", "region": [-90, 35, -80, 45]}
    first = {"id": "A", "lon": -85, "lat": 40, "text": "w1 w3"}
    second = {"id": "B", "lon": -86, "lat": 41, "text": "w1 w4 w5"}
    stream = Stream(words, tmp_path / "out", world="earth")
    take_all(stream, [Batch([{"subscribe": skyline}], [first, second, first])])
    digest = stream.finish(stream.match())
    assert [(row["change"], row["message_id"], row["seq"]) for row in stream.told] == [("enter", "A", 2)]
    verdict = verify_run(tmp_path / "out")
    assert verdict.exact, verdict.render()
    assert digest_of_run(tmp_path / "out", tmp_path / "again") == digest


@pytest.mark.parametrize("window", [WINDOWS[0], pytest.param(WINDOWS[1], marks=pytest.mark.long)])
def test_engine_explains_and_shows_what_a_run_does(words, tmp_path, window):
    batches, rng, reasons = story(4), np.random.default_rng(4), Counter()
    _, engine = by_engine(batches, window, words)
    by_live(batches, window, words, tmp_path / "live")
    run = skyray.open(tmp_path / "live")
    columns = ("subscription_id", "rank", "message_id", "seq", "score", "text_score", "text", "lon", "lat", "words")
    columns += ("distance_km",)
    held = [tuple(str(row[name]) for name in columns) for row in run.results().to_pylist() if row["rank"] is not None]
    assert sorted(tuple(str(row[name]) for name in columns) for row in engine.results()) == sorted(held)
    seqs = sum(len(batch.messages) for batch in batches)
    ids = {row["message_id"] for row in run.results().to_pylist()}
    kind_of = {row["subscription_id"]: row["kind"] for batch in batches for row in _subscribed(batch)}
    skylines = [name for name in engine.subscriptions if kind_of[name] == "skyline"]
    objects = [row.get("object_id", row["id"]) for batch in batches for row in batch.messages]
    replaced = [seq for seq, name in enumerate(objects) if name in objects[seq + 1 :]][-15:]
    some = [(name, f"seq:{seq}") for name in skylines for seq in replaced]
    some += [(str(rng.choice(engine.subscriptions)), name) for name in sorted(ids)[:10]]
    some += [(str(rng.choice(engine.subscriptions)), f"seq:{seq}") for seq in rng.choice(seqs, 30).tolist()]
    for name, message in some:
        of_run, of_engine = run.explain(name, message), engine.explain(name, message)
        assert of_engine == {key: value for key, value in of_run.items() if key != "updates"}
        reasons[of_engine["reason"]] += 1
    assert {"no_time", "ahead", "rivals", "object_ended"} <= reasons.keys() and len(reasons) > 5, reasons
