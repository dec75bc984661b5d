"""The delivery bolt: complete, named, acknowledged in time, forgetting only what nobody can name."""

import itertools
import json
import os

import numpy as np
import pyarrow.parquet as pq
import pytest

from bolts.delivery import DeliveryBolt
from bolts.payloads import Closed, Late
from bolts.sinks import RESULT_SCHEMA, UPDATE_SCHEMA
from matching.errors import ConfigError, DeliveryError, TopologyError
from matching.model import (
    CHANGES,
    ENTER,
    KNN,
    LEAVE,
    MATCH,
    TOPK,
    ChangeList,
    SubscriptionTable,
)
from matching.window import Boundary, Window
from tests.support.deliveries import (
    WINDOW,
    boundary,
    changes,
    deliver,
    finish_and_name,
    ids,
    make,
    results,
    run_batch,
    updates,
)


def read_updates(tmp_path):
    return pq.read_table(tmp_path / "run" / "updates").to_pylist()


def naming(as_of, number, seq, change, score):
    score = None if np.isnan(score) else score
    return dict(
        zip(UPDATE_SCHEMA.names, (as_of, f"abo {number}", f"message {seq}", seq, CHANGES[change], score), strict=True)
    )


ROWS = [[(0, 1, 0, MATCH, np.nan), (2, 0, 1, ENTER, 0.5)], [], [(8, 1, 2, LEAVE, 0.25)], [(11, 0, 11, ENTER, -0.0)]]


@pytest.mark.parametrize("sink", ["parquet", "jsonl"])
def test_delivery_writes_updates_with_names_and_leaves_no_hidden_file(tmp_path, sink):
    bolt, context = make(tmp_path, sink=sink)
    for number, rows in enumerate(ROWS):
        run_batch(bolt, number, *rows, added=(0, 1) if number == 0 else ())
    deliver(bolt, results())
    finish_and_name(bolt)
    bolt.close()
    folder = tmp_path / "run" / "updates"
    assert os.listdir(folder) == [f"part-00000.{sink}"]
    if sink == "parquet":
        assert pq.read_schema(folder / "part-00000.parquet").equals(UPDATE_SCHEMA)
        written = read_updates(tmp_path)
    else:
        written = [json.loads(line) for line in (folder / "part-00000.jsonl").read_text().splitlines()]
    assert written == [naming(*row) for row in sum(ROWS, [])]
    report = bolt.report()
    files = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*.*") if path.name != "updates.list")
    assert report["bytes_written"] == files
    assert report["updates"] == {"match": 1, "enter": 2, "leave": 1}
    assert report["complete_through"] == 3 and report["batches"] == 4
    assert context.acknowledged == [0, 1, 2, 3]


def test_delivery_count_sink_writes_nothing_and_has_the_same_digest(tmp_path):
    digests = {}
    for sink in ("count", "parquet", "jsonl"):
        bolt, _ = make(tmp_path / sink, sink=sink)
        for number, rows in enumerate(ROWS):
            run_batch(bolt, number, *rows, added=(0, 1) if number == 0 else ())
        deliver(bolt, results((0, 1, 11, 0.5)))
        finish_and_name(bolt)
        digests[sink] = bolt.report()["digest"]
        assert bolt.report()["results"] == 1
    assert len(set(digests.values())) == 1 and len(digests["count"]) == 32
    assert not (tmp_path / "count").exists()


def test_delivery_empty_run_writes_readable_files(tmp_path):
    bolt, _ = make(tmp_path)
    deliver(bolt, results())
    finish_and_name(bolt)
    assert read_updates(tmp_path) == []
    assert pq.read_schema(tmp_path / "run" / "results.parquet").equals(RESULT_SCHEMA)


def test_delivery_every_arrival_order_gives_the_same_files(tmp_path):
    streams = {
        "changes": [changes(0, (0, 1)), changes(1)],
        "ids": [ids(boundary(0)), ids(boundary(1))],
        "query 0": [
            Closed(boundary(0), 0, updates(ROWS[0][0])),
            Closed(boundary(1), 1, updates((5, 0, 3, ENTER, 1.0))),
        ],
        "query 1": [
            Closed(boundary(0), -1, updates(ROWS[0][1])),
            Late(0, updates((2, 1, 2, ENTER, 2.0))),
            Closed(boundary(1), 1, updates()),
        ],
    }
    seen = set()
    merges = set(itertools.permutations([name for name, payloads in streams.items() for _ in payloads]))
    for trial, merge in enumerate(sorted(merges)[::200]):
        place = tmp_path / str(trial)
        bolt, context = make(place, query_tasks=2)
        queues = {name: iter(payloads) for name, payloads in streams.items()}
        for name in merge:
            deliver(bolt, next(queues[name]), task=int(name == "query 1"))
        for task in (0, 1):
            deliver(bolt, results(), task=task)
        finish_and_name(bolt)
        rows = sorted(map(tuple, (row.values() for row in read_updates(place))))
        seen.add((bolt.report()["digest"], str(rows), tuple(context.acknowledged)))
        assert len(rows) == 4
    assert len(seen) == 1 and next(iter(seen))[2] == (0, 1)


def test_delivery_waits_for_every_part_of_a_batch(tmp_path):
    parts = [
        (changes(0), 0),
        (ids(boundary(0)), 0),
        (Closed(boundary(0), 0, updates()), 0),
        (Closed(boundary(0), 0, updates()), 1),
    ]
    for left_out in range(4):
        bolt, context = make(tmp_path / str(left_out), query_tasks=2)
        for i, (payload, task) in enumerate(parts):
            if i != left_out:
                deliver(bolt, payload, task=task)
        assert context.acknowledged == []
        payload, task = parts[left_out]
        deliver(bolt, payload, task=task)
        assert context.acknowledged == [0]


def test_delivery_holds_acknowledgements_while_a_refill_is_slack_behind(tmp_path):
    bolt, context = make(tmp_path, slack=2)
    run_batch(bolt, 0, added=(0,), kind=TOPK)
    for number in (1, 2, 3, 4):
        run_batch(bolt, number, complete=0)
    assert context.acknowledged == [0, 1, 2]
    assert bolt.watermark == 0
    deliver(bolt, Late(2, updates((8, 0, 7, ENTER, 0.5))))
    assert context.acknowledged == [0, 1, 2, 3, 4]
    deliver(bolt, Late(4, updates()))
    assert bolt.watermark == 4


def test_delivery_late_update_of_a_task_ahead_waits_for_its_batch(tmp_path):
    """Task 0 has closed batch 1 and tells a late update about a message whose id has not come yet."""
    bolt, _ = make(tmp_path, query_tasks=2)
    deliver(bolt, changes(0, (0,)), ids(boundary(0)), Closed(boundary(0), -1, updates()))
    deliver(bolt, Closed(boundary(1), -1, updates()), Late(1, updates((5, 0, 4, ENTER, 1.0))))
    assert bolt.report()["updates"]["enter"] == 0
    deliver(bolt, Closed(boundary(0), 0, updates()), Closed(boundary(1), 1, updates()), task=1)
    deliver(bolt, changes(1), ids(boundary(1)))
    assert bolt.report()["updates"]["enter"] == 1
    assert bolt.watermark == 1


def test_delivery_latency_counts_from_the_batch_an_update_tells_about(tmp_path):
    bolt, context = make(tmp_path)
    for number in range(3):
        at = boundary(number)
        context.clock_s = 200.0 + number
        rows = [(at.last_seq, 0, at.first_seq, ENTER, 1.0)] * (number + 1)
        deliver(
            bolt, changes(number, (0,) if not number else ()), ids(at, 100.0 * number), Closed(at, -1, updates(*rows))
        )
    assert context.latencies == [(200.0, 1), (101.0, 2), (2.0, 3)]
    context.clock_s = 300.0
    deliver(bolt, Late(2, updates((2, 0, 0, LEAVE, 1.0), (8, 0, 6, LEAVE, 1.0))))
    assert context.latencies[3:] == [(300.0, 1), (100.0, 1)]


def test_delivery_results_are_sorted_and_equal_bytes_whoever_held_them(tmp_path):
    rows = [(10, 1, 5, 0.5), (10, 2, 4, 0.25), (2, 1, 5, np.nan), (9, 1, 0, -1.0)]
    contents = set()
    for cut in range(5):
        bolt, _ = make(tmp_path / str(cut), query_tasks=2)
        for number in (0, 1):
            deliver(bolt, changes(number, range(11) if not number else ()), ids(boundary(number)))
            for task in (0, 1):
                deliver(bolt, Closed(boundary(number), number, updates()), task=task)
        deliver(bolt, results(*rows[:cut]), task=1)
        deliver(bolt, results(*rows[cut:][::-1]), task=0)
        finish_and_name(bolt)
        path = tmp_path / str(cut) / "run" / "results.parquet"
        contents.add(path.read_bytes())
    assert len(contents) == 1
    table = pq.read_table(path)
    assert table.schema.equals(RESULT_SCHEMA)
    found = [(r["subscription_id"], r["rank"], r["message_id"], r["seq"]) for r in table.to_pylist()]
    assert found == [
        ("abo 10", 1, "message 5", 5),
        ("abo 10", 2, "message 4", 4),
        ("abo 2", 1, "message 5", 5),
        ("abo 9", 1, "message 0", 0),
    ]
    assert table["text_score"].null_count == 4


def test_delivery_results_have_a_text_score_where_there_is_one(tmp_path):
    bolt, _ = make(tmp_path, query_tasks=3)
    deliver(bolt, changes(0, range(4)), ids(boundary(0)))
    for task in range(3):
        deliver(bolt, Closed(boundary(0), 0, updates()), task=task)
    deliver(bolt, results((3, 2, 1, 0.5), (3, 1, 0, 0.75), text_score=[0.25, 0.125]), task=0)
    deliver(bolt, results((1, 1, 2, 0.5)), task=1)  # a kind without
    deliver(bolt, results((0, 1, 2, 0.0), (2, 1, 0, 0.5), text_score=[0.0, np.nan]), task=2)
    finish_and_name(bolt)
    found = pq.read_table(tmp_path / "run" / "results.parquet").to_pylist()
    assert [(r["subscription_id"], r["rank"], r["seq"], r["score"], r["text_score"]) for r in found] == [
        ("abo 0", 1, 2, 0.0, 0.0),
        ("abo 1", 1, 2, 0.5, None),
        ("abo 2", 1, 0, 0.5, None),
        ("abo 3", 1, 0, 0.75, 0.125),
        ("abo 3", 2, 1, 0.5, 0.25),
    ]


def test_delivery_files_are_cut_at_the_row_target(tmp_path, monkeypatch):
    monkeypatch.setattr("bolts.sinks.GROUP_ROWS", 4)
    for sink in ("parquet", "jsonl"):
        bolt, _ = make(tmp_path / sink, sink=sink, file_rows=8)
        expected = []
        for number in range(10):
            rows = [(number * 3, 0, number * 3 + i, MATCH, np.nan) for i in range(3)]
            expected += [naming(*row) for row in rows]
            run_batch(bolt, number, *rows, added=(0,) if not number else ())
        deliver(bolt, results())
        finish_and_name(bolt)
        parts = sorted((tmp_path / sink / "run" / "updates").iterdir())
        assert [part.name for part in parts] == [f"part-{i:05d}.{sink}" for i in range(len(parts))]
        # in groups of two batches, two groups reach eight rows
        assert len(parts) == 3
        if sink == "parquet":
            assert read_updates(tmp_path / sink) == expected
        else:
            assert [json.loads(line) for part in parts for line in part.read_text().splitlines()] == expected


@pytest.mark.parametrize("kind", ["count", "time"])
@pytest.mark.parametrize("seed", range(4))
def test_delivery_forgets_only_ids_that_no_update_can_name(tmp_path, kind, seed):
    """Random runs with late messages, delayed tasks and knn results; every id is found, and memory stays bounded."""
    rng = np.random.default_rng(seed)
    size, batches, tasks, length = 50, 120, 2, 400
    bolt, _ = make(tmp_path, query_tasks=tasks, window=Window(kind, length), slack=4, sink="jsonl")
    seq = np.arange(size * batches)
    life = seq if kind == "count" else seq - rng.integers(0, 300, seq.size) * (rng.random(seq.size) < 0.2)
    newest = np.maximum.accumulate(life)
    floors = [int(newest[(b + 1) * size - 1]) - length for b in range(batches)]
    numbers, kinds = np.arange(6), np.array([TOPK, TOPK, TOPK, KNN, KNN, KNN], np.int8)
    told, expected, most = [-1] * tasks, [], 0
    holds = {number: set() for number in (3, 4, 5)}

    def events(b, number):
        """Leaves of messages alive before b, and enters of messages of b."""
        last = b * size + size - 1
        alive = np.flatnonzero(life[: b * size] > floors[b - 1]) if b else seq[:0]
        fresh = np.arange(b * size, last + 1)
        if number >= 3:
            if number == 5 and b >= 60:
                return []
            entered = set(rng.choice(fresh, 2).tolist())
            left = set(rng.permutation(sorted(holds[number])[1:])[: max(0, len(holds[number]) - 6)].tolist())
            holds[number] |= entered
            holds[number] -= left
        else:
            entered = set(rng.choice(fresh, 2).tolist())
            left = set(rng.choice(alive, 2).tolist()) if alive.size else set()
        return [(last, number, s, ENTER, 1.0) for s in sorted(entered)] + [
            (last, number, s, LEAVE, 1.0) for s in sorted(left)
        ]

    pending = [[] for _ in range(tasks)]
    for b in range(batches):
        at = Boundary(b, b * size, b * size + size - 1, floors[b])
        change = changes(b, numbers if b == 0 else (), removed=(5,) if b == 60 else ())
        if b == 0:
            change = ChangeList(b, SubscriptionTable(**(change.added._asdict() | {"kind": kinds})), *change[2:])
        deliver(bolt, change, ids(at))
        for task in range(tasks):
            now = [row for number in numbers[task::tasks] for row in events(b, int(number))]
            expected += now
            delayed = [row for row in now if row[1] < 3] if rng.random() < 0.5 else []
            pending[task].append((b, delayed))
            if not delayed and all(not rows for _, rows in pending[task]):
                told[task] = b
            deliver(bolt, Closed(at, told[task], updates(*[row for row in now if row not in delayed])), task=task)
            if len(pending[task]) > rng.integers(1, 5):
                rows = [row for _, rows in pending[task] for row in rows]
                pending[task], told[task] = [], b
                deliver(bolt, Late(b, updates(*rows)), task=task)
        most = max(most, bolt.report()["message_ids_held"])
    for task in range(tasks):
        deliver(bolt, Late(batches - 1, updates(*[row for _, rows in pending[task] for row in rows])), task=task)
    final = [(n, rank, s, 0.0) for n in (3, 4) for rank, s in enumerate(sorted(holds[n]), 1)]
    deliver(bolt, results(*final))
    deliver(bolt, results(), task=1)
    finish_and_name(bolt)
    lines = (tmp_path / "run" / "updates" / "part-00000.jsonl").read_text().splitlines()
    written = [json.loads(line) for line in lines]
    assert all(row["message_id"] == f"message {row['seq']}" for row in written)
    key = lambda row: (row["as_of"], row["subscription_id"], row["seq"], row["change"])  # noqa: E731
    assert sorted(written, key=key) == sorted((naming(*row) for row in expected), key=key)
    assert len(written) > 2000
    ranked = pq.read_table(tmp_path / "run" / "results.parquet").to_pylist()
    assert [(r["seq"], r["message_id"]) for r in ranked] == [(s, f"message {s}") for _, _, s, _ in final]
    # The window, the batches behind, and as much again before it pays to move them; of 6,000 messages.
    assert most < 2 * (length + 300 + 12 * size) + 1024
    assert any(s < bolt.messages.first for _, _, s, _ in final)  # knn holds a message from long ago


def test_delivery_naming_a_forgotten_message_raises(tmp_path):
    bolt, _ = make(tmp_path, sink="count", window=Window("count", 10))
    for number in range(600):
        run_batch(bolt, number, added=(0,) if not number else ())
    assert bolt.messages.first > 500
    with pytest.raises(TopologyError, match="message 3 is named"):
        run_batch(bolt, 600, (1802, 0, 3, LEAVE, 1.0))


@pytest.mark.parametrize(
    ("rows", "pattern"),
    [
        ([(0, 7, 0, MATCH, 0.0)], "subscription 7 is named"),
        ([(0, -1, 0, MATCH, 0.0)], "subscription -1 is named"),
        ([(0, 0, 3, MATCH, 0.0)], "message 3 is named"),
        ([(9, 0, 0, MATCH, 0.0)], "as of seq 9"),
        ([(0, 0, 0, 4, 0.0)], "change 4"),
        ([(0, 0, 0, -1, 0.0)], "change -1"),
    ],
)
def test_delivery_impossible_update_raises(tmp_path, rows, pattern):
    bolt, _ = make(tmp_path)
    with pytest.raises(TopologyError, match=pattern):
        run_batch(bolt, 0, *rows, added=(0,))


def test_delivery_repeats_and_gaps_raise(tmp_path):
    bolt, _ = make(tmp_path)
    run_batch(bolt, 0, added=(0, 1))
    for payload, pattern in [
        (Closed(boundary(0), 0, updates()), "came again"),
        (ids(boundary(0)), "came again"),
        (changes(0), "came again"),
    ]:
        with pytest.raises(TopologyError, match=pattern):
            deliver(bolt, payload)
    with pytest.raises(TopologyError, match="subscription 2 comes next"):
        run_batch(bolt, 1, added=(3,))
    bolt, _ = make(tmp_path / "b")
    with pytest.raises(TopologyError, match="removes subscription 5, never added"):
        run_batch(bolt, 0, added=(0,), removed=(5,))
    bolt, _ = make(tmp_path / "c")
    run_batch(bolt, 0)
    with pytest.raises(TopologyError, match="seq 3 comes next"):
        run_batch(bolt, 1, at=Boundary(1, 4, 6, 0))
    bolt, _ = make(tmp_path / "d")
    run_batch(bolt, 0)
    deliver(bolt, Late(0, updates()), results())
    with pytest.raises(TopologyError, match="query:0 came twice"):
        deliver(bolt, results())
    with pytest.raises(TopologyError, match="query:0 has watermark 5 after 0"):
        deliver(bolt, Late(5, updates()))


def test_delivery_unfinished_inputs_raise_at_the_end(tmp_path):
    bolt, _ = make(tmp_path / "a", query_tasks=2)
    deliver(bolt, ids(boundary(0)))
    with pytest.raises(TopologyError, match="batch 0 waits for 'changes' from sender 0; 'updates' from sender 0, 1"):
        finish_and_name(bolt)
    bolt, _ = make(tmp_path / "b")
    run_batch(bolt, 0, complete=-1)
    with pytest.raises(TopologyError, match=r"not all updates have come from query:0 \(batch -1\)"):
        finish_and_name(bolt)
    bolt, _ = make(tmp_path / "c")
    run_batch(bolt, 0)
    with pytest.raises(TopologyError, match="no results have come from query:0"):
        finish_and_name(bolt)


def test_delivery_used_directory_and_bad_options_are_refused(tmp_path):
    bolt, _ = make(tmp_path)
    deliver(bolt, results())
    finish_and_name(bolt)
    again, _ = make(tmp_path)
    with pytest.raises(DeliveryError, match="earlier run"):
        deliver(again, results())
    with pytest.raises(ConfigError, match="sink 'csv'"):
        DeliveryBolt("x", WINDOW, 1, sink="csv")
    with pytest.raises(ConfigError, match="slack -1"):
        DeliveryBolt("x", WINDOW, -1)


def test_delivery_unwritable_directory_raises(tmp_path):
    (tmp_path / "run").write_text("a file where the directory should be")
    with pytest.raises(DeliveryError, match="cannot be written"):
        make(tmp_path)


@pytest.mark.parametrize("sink", ["parquet", "jsonl"])
def test_delivery_full_disk_raises_and_nothing_gets_a_name(tmp_path, sink):
    folder = tmp_path / "run" / "updates"
    folder.mkdir(parents=True)
    # Every write to /dev/full fails like a full disk.
    os.symlink("/dev/full", folder / f".part-00000.0.{sink}.tmp")
    with pytest.raises(DeliveryError, match="No space left"):
        bolt, _ = make(tmp_path, sink=sink)
        for number in range(2000):
            run_batch(bolt, number, *[(number * 3, 0, number * 3, MATCH, np.nan)], added=(0,) if not number else ())
        deliver(bolt, results())
        finish_and_name(bolt)
    assert [name for name in os.listdir(folder) if name.startswith("part")] == []


def test_delivery_closed_after_a_failure_removes_the_unfinished_file(tmp_path):
    for sink in ("parquet", "jsonl"):
        bolt, _ = make(tmp_path / sink, sink=sink)
        run_batch(bolt, 0, (0, 0, 0, MATCH, np.nan), added=(0,))
        bolt.close()
        assert os.listdir(tmp_path / sink / "run" / "updates") == []
