"""Lines in, updates out: what the oracle says, changes in their place among the messages, and nothing lost beside a bad
line."""

import io
import json
import os
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skyray
from gateway.pipe import Line, Pipe
from matching.reasons import MAX_LINE_BYTES
from tests.support.beside import BOX, TEXTS, Beside, random_message, random_subscription
from tests.support.etl_folder import random_rows, write_etl
from tests.support.processes import Command

WINDOWS = ["count:15", "time:1500", "count:1000"]
BAD = [b"no json\n", b"[1]\n", b'{"text": "w1"}\n', b'{"unsubscribe": "nobody"}\n', b'{"subscribe": 3}\n', b"\xff\n",
       b'{"subscribe": {"kind": "knn"}}\n', b'{"unsubscribe": "s1", "text": "w1"}\n', b'{"unsubscribe": 7}\n',
       ]  # fmt: skip


def opened(window="count:20", source=b"", **options):
    """A pipe, and what it writes and refuses."""
    written, refused = [], []
    engine = skyray.Engine(TEXTS, window, world=BOX)
    pipe = Pipe(engine, io.BytesIO(source), written.append, refused.append, **options)
    return pipe, written, refused


def rows_of(written):
    return Counter(
        (row["change"], row["subscription_id"], row["message_id"], row["as_of"], row["score"])
        for data in written
        for row in map(msgspec.json.decode, data.splitlines())
    )


def play(seed, window):
    """A random story by lines, told to the oracle too; how many updates there were."""
    rng = np.random.default_rng(seed)
    (pipe, written, refused), beside = opened(window), Beside(window)
    expected, bad, lines = Counter(), 0, 0

    def take(row):
        nonlocal lines
        lines += 1
        pipe.take(Line(lines, row if isinstance(row, bytes) else json.dumps(row).encode(), 0.0))

    for number in range(160):
        chance = rng.random()
        if number < 15 or chance < 0.2:
            row = random_subscription(rng, int(rng.integers(100)))
            beside.subscribe(row)
            take({"subscribe": row})
        elif chance < 0.25 and beside.live:
            name = sorted(beside.live)[int(rng.integers(len(beside.live)))]
            beside.unsubscribe(name)
            take({"unsubscribe": name})
        elif chance < 0.35:
            take(BAD[int(rng.integers(len(BAD)))])
            bad += 1
        else:
            row = random_message(rng, number)
            beside.offer(row)
            take(row)
        if rng.random() < 0.15 or number == 159:
            if beside.waiting:  # changes alone count with the next message
                expected += beside.publish()
            pipe.close_batch()
    assert rows_of(written) == expected
    assert len(refused) == sum(pipe.figures.refused.values()) == bad
    assert sorted(pipe.engine.subscriptions) == sorted(beside.live)
    return sum(expected.values())


@given(seed=st.integers(0, 2**32 - 1), window=st.sampled_from(WINDOWS))
@settings(max_examples=10, deadline=None)
def test_pipe_tells_what_the_oracle_does_wherever_batches_end(seed, window):
    play(seed, window)


def test_pipe_stories_have_something_to_tell():
    assert sum(play(seed, window) for seed in range(3) for window in WINDOWS) > 1_000


ALL = {"subscription_id": "s1", "kind": "boolean", "keywords": "w1", "region": [-20, -10, 20, 10]}
W1 = {"text": "w1", "lon": 1, "lat": 1}


def test_pipe_change_counts_from_its_place_within_a_batch():
    lines = [W1 | {"id": "before"}, {"subscribe": ALL}, W1 | {"id": "met"}, {"unsubscribe": "s1"}, W1 | {"id": "after"}]
    pipe, written, refused = opened(source=b"".join(json.dumps(line).encode() + b"\n" for line in lines), linger_s=1.0)
    pipe.run()
    assert [row[2] for row in rows_of(written)] == ["met"] and not refused
    assert pipe.figures.batches == 1 and pipe.figures.latency.counts.sum() == 5


@pytest.mark.parametrize("line", BAD)
def test_pipe_bad_line_is_refused_with_its_number_and_a_reason(line):
    good = json.dumps({"subscribe": ALL}).encode() + b"\n\n" + json.dumps(W1).encode()
    pipe, written, refused = opened(source=line + good)
    pipe.run()
    assert len(rows_of(written)) == 1, "nothing good is lost beside it"
    (one,) = refused
    assert one["line"] == 1 and one["reason"] and one["what"], one


def test_pipe_line_without_end_is_cut_and_the_next_one_is_read():
    pipe, _, refused = opened(source=b"{" * (2 * MAX_LINE_BYTES) + b"\n" + json.dumps(W1).encode() + b"\n")
    pipe.run()
    assert [row["reason"] for row in refused] == ["line_too_long"] and pipe.engine.last.last_seq == 0


def test_pipe_full_batch_does_not_wait_for_the_linger_time():
    pipe, _, _ = opened(source=(json.dumps(W1).encode() + b"\n") * 10, batch=4, linger_s=60.0)
    pipe.run()
    assert pipe.figures.batches == 3


def test_command_answers_each_line_while_the_pipe_stays_open(tmp_path):
    """A program at both ends, which waits for the answer before it says more."""
    words = tmp_path / "words"
    write_etl(words, random_rows(200))
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({**ALL, "region": [-180, -90, 180, 90]}) + "\n" + json.dumps({"kind": "knn"}) + "\n")
    read, write = os.pipe()
    with Command(["live", "--vocabulary", words, "--subscriptions", file, "--linger-ms", 5], source=read) as command:
        os.close(read)
        with os.fdopen(write, "wb") as end:
            for number in range(3):
                end.write(json.dumps({**W1, "id": f"m{number}"}).encode() + b"\nnot a line\n")
                end.flush()
                wanted = number + 1
                command.await_(lambda wanted=wanted: command.read()[0].count("\n") >= wanted)
        code, out, said = command.finish(30)
    assert code == 0, said
    told = [json.loads(line) for line in out.splitlines()]
    assert [(row["change"], row["message_id"], row["text"]) for row in told] == [
        ("match", f"m{n}", "w1") for n in range(3)
    ]
    assert said.count("refused, not_json") == 3 and "line 2 " in said and "3 messages; 3 batches" in said
