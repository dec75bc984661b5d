"""Lines in, updates out: what the oracle says, changes in their place among the messages, and nothing lost beside a bad
line."""

import io
import json
import os
import threading
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.runs.verify import verify_run
from matching.reasons import MAX_LINE_BYTES
from spouts.log import read_records
from spouts.subscriptions import load_vocabulary
from tests.support.beside import Beside, random_message, random_subscription
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream, counted
from tests.support.logged import messages_in
from tests.support.processes import Command
from tests.support.writing import await_

WINDOWS = ["count:15", "time:1500", "count:1000"]
BAD = [b"no json\n", b"[1]\n", b'{"text": "w1"}\n', b'{"unsubscribe": "nobody"}\n', b'{"subscribe": 3}\n', b"\xff\n",
       b'{"subscribe": {"kind": "knn"}}\n', b'{"unsubscribe": "s1", "text": "w1"}\n', b'{"unsubscribe": 7}\n',
       ]  # fmt: skip


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("pipe") / "words", random_rows(200))


def play(seed, window, words, out, **options):
    """A random story by lines, told to the oracle too; how many updates there were."""
    rng = np.random.default_rng(seed)
    stream, beside = Stream(words, out, window=window, **options), Beside(window, load_vocabulary(words))
    expected, bad = Counter(), 0
    for number in range(160):
        chance = rng.random()
        if number < 15 or chance < 0.2:
            row = random_subscription(rng, int(rng.integers(100)))
            assert beside.subscribe(row) is None
            stream.take({"subscribe": row})
        elif chance < 0.25 and beside.live:
            name = sorted(beside.live)[int(rng.integers(len(beside.live)))]
            beside.unsubscribe(name)
            stream.take({"unsubscribe": name})
        elif chance < 0.35:
            stream.take(BAD[int(rng.integers(len(BAD)))])
            bad += 1
        else:
            row = random_message(rng, number)
            beside.offer(row)
            stream.take(row)
        if rng.random() < 0.15 or number == 159:
            if beside.waiting:  # changes alone count with the next message
                expected += beside.publish(by_seq=True)
            stream.pipe.close_batch()
    stream.match()
    assert counted(stream.told) == expected
    assert len(stream.refused) == sum(stream.pipe.refused.values()) == bad
    assert sorted(stream.gate.active) == sorted(beside.live)
    return sum(expected.values())


@given(seed=st.integers(0, 2**32 - 1), window=st.sampled_from(WINDOWS))
@settings(max_examples=4, deadline=None)
def test_pipe_tells_what_the_oracle_does_wherever_batches_end(words, tmp_path_factory, seed, window):
    play(seed, window, words, tmp_path_factory.mktemp("story"), checkpoint_every=0.0)


def test_pipe_stories_have_something_to_tell(words, tmp_path_factory):
    told = [play(seed, window, words, tmp_path_factory.mktemp("story")) for seed in range(2) for window in WINDOWS]
    assert sum(told) > 600


ALL = {"subscription_id": "s1", "kind": "boolean", "keywords": "w1", "region": [-20, -10, 20, 10]}
W1 = {"text": "w1", "lon": 1, "lat": 1}


def lines_of(rows):
    return io.BytesIO(b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows))


def test_pipe_change_counts_from_its_place_within_a_batch(words, tmp_path):
    lines = [W1 | {"id": "before"}, {"subscribe": ALL}, W1 | {"id": "met"}, {"unsubscribe": "s1"}, W1 | {"id": "after"}]
    stream = Stream(words, tmp_path / "out", linger_s=1.0)
    stream.pipe.run(lines_of(lines))
    stream.match()
    assert [row["message_id"] for row in stream.told] == ["met"] and not stream.refused
    assert stream.pipe.batches == 1 and stream.in_flight.latency.counts.sum() == 5


def test_pipe_subscription_that_ends_where_it_begins_is_told_nothing_and_its_id_may_come_again(words, tmp_path):
    again = ALL | {"keywords": "w2"}
    lines = [{"subscribe": ALL}, {"unsubscribe": "s1"}, {"subscribe": again}, {"subscribe": ALL}, W1 | {"id": "met"}]
    stream = Stream(words, tmp_path / "out")
    stream.pipe.run(lines_of([*lines, {"subscribe": again}, {"unsubscribe": "s1"}, W1 | {"id": "after"}]))
    report = stream.match()
    assert [row["message_id"] for row in stream.told] == ["met"]
    assert report["spouts"]["subscriptions"]["accepted"] == 4


@pytest.mark.parametrize("line", BAD)
def test_pipe_bad_line_is_refused_with_its_number_and_a_reason(words, tmp_path, line):
    stream = Stream(words, tmp_path / "out")
    stream.pipe.run(lines_of([line, {"subscribe": ALL}, b"\n", W1]))
    kept = [(len(record.lines), record.messages) for record, _, _ in read_records(stream.journal.log)]
    assert kept == [(1, 1)], "nothing good is lost beside it"
    (one,) = stream.refused
    assert one["line"] == 1 and one["reason"] and one["what"], one


def test_pipe_line_without_end_is_cut_and_the_next_one_is_read(words, tmp_path):
    stream = Stream(words, tmp_path / "out")
    stream.pipe.run(lines_of([b"{" * (2 * MAX_LINE_BYTES) + b"\n", W1]))
    assert [row["reason"] for row in stream.refused] == ["line_too_long"] and stream.journal.next_seq == 1


def test_pipe_full_batch_does_not_wait_for_the_linger_time(words, tmp_path):
    stream = Stream(words, tmp_path / "out", batch=4, linger_s=60.0)
    stream.pipe.run(lines_of([W1] * 10))
    assert list(stream.journal.ends) == [3, 7, 9]


def test_pipe_reads_no_further_while_too_many_batches_are_in_flight(words, tmp_path):
    stream = Stream(words, tmp_path / "out", batch=4, linger_s=60.0, most=2)
    done = threading.Event()
    stream.pipe.start(lines_of([W1] * 40), done.is_set)
    for told in range(5):
        deadline = time.monotonic() + 300
        while len(stream.journal.ends) < told + 2 and time.monotonic() < deadline:
            done.wait(0.01)
        done.wait(0.05)  # for one more, which must not come
        assert list(stream.journal.ends) == [4 * end - 1 for end in range(1, told + 3)]
        stream.in_flight.advance(4 * told + 3)
    done.set()


def test_pipe_subscription_that_the_router_cannot_place_is_refused(words, tmp_path):
    stream = Stream(words, tmp_path / "out", router="keyword")
    stream.pipe.run(lines_of([{"subscribe": ALL}, {"subscribe": ALL | {"match": "any"}}]))
    (one,) = stream.refused
    assert one["reason"] == "not_placeable" and "--router keyword" in one["what"]


def test_pipe_subscription_with_a_filter_that_the_window_index_does_not_serve_is_refused(words, tmp_path):
    best = {"subscription_id": "s", "kind": "skyline", "keywords": "w1 w2", "region": [-9, -9, 9, 9]}
    stream = Stream(words, tmp_path / "out", window_index={"skyline": "mf_rtree"})
    rows = [{"subscribe": best | more} for more in ({}, {"match": 2}, {"not_keywords": "unheard"})]
    stream.pipe.run(lines_of([*rows, {"subscribe": ALL | {"match": 2, "keywords": "w1 w2"}}, W1]))
    assert [one["reason"] for one in stream.refused] == ["filter_not_served"] * 2
    for one in stream.refused:
        assert "subscription 's'" in one["what"] and "use --window-index skyline=grid" in one["what"]
    stream.match()
    assert sorted(stream.gate.active) == ["s", "s1"] and len(stream.told) == 1


def test_command_answers_each_line_while_the_pipe_stays_open(words, tmp_path):
    """A program at both ends, which waits for the answer before it says more."""
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({**ALL, "region": [-180, -90, 180, 90]}) + "\n" + json.dumps({"kind": "knn"}) + "\n")
    read, write = os.pipe()
    with Command(
        ["live", "--vocabulary", words, "--subscriptions", file, "--set", "stream.linger_ms=5"], source=read
    ) as command:
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
    assert said.count("reason=not_json") == 3 and said.count("event=row_refused") == 4 and " line=2 " in said
    assert said.count("reason=missing_id") == 1, "the second row of the file"
    assert " messages=3 clock_marks=0 batches=3 " in said


def test_command_whose_reader_has_gone_ends_at_once_with_a_code_of_its_own(words, tmp_path):
    """Its input stays open all the while."""
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({**ALL, "region": [-180, -90, 180, 90]}) + "\n")
    read, write = os.pipe()
    gone, out = os.pipe()
    os.close(gone)
    arguments = ["live", "--vocabulary", words, "--subscriptions", file, "--set", "stream.linger_ms=1"]
    with Command(arguments, source=read, out=out) as command, os.fdopen(write, "wb") as end:
        os.close(read)
        os.close(out)
        end.write(json.dumps(W1).encode() + b"\n")
        end.flush()
        code, _, said = command.finish(30)
    assert code == 141 and "rror" not in said, said


def test_command_counts_apart_who_has_no_time_or_is_dated_too_far_ahead(words, tmp_path):
    """Neither is refused: one reaches whoever needs no time, the other nobody."""
    file, source = tmp_path / "mine.jsonl", tmp_path / "lines.jsonl"
    fading = {"subscription_id": "d", "kind": "decay", "keywords": "w1", "lon": 1, "lat": 1, "k": 5, "alpha": 0.5}
    everywhere = {**ALL, "region": [-180, -90, 180, 90]}
    file.write_text("".join(json.dumps(row) + "\n" for row in (everywhere, fading)))
    now_s = time.time()
    lines = [W1 | {"id": "none"}, W1 | {"id": "ahead", "time": now_s + 7_200}, W1 | {"id": "now", "time": now_s}]
    source.write_text("".join(json.dumps(row) + "\n" for row in lines))
    arguments = [
        "live",
        "--vocabulary",
        words,
        "--subscriptions",
        file,
        "--set",
        "stream.max_ahead=3600",
        "--out",
        tmp_path / "out",
    ]
    with open(source) as lines, Command(arguments, source=lines.fileno()) as command:
        code, out, said = command.finish(60)
    assert code == 0, said
    told = [row for row in map(json.loads, out.splitlines()) if "change" in row]
    assert {(row["subscription_id"], row["message_id"]) for row in told} == {
        ("s1", "none"),
        ("s1", "now"),
        ("d", "now"),
    }
    assert " refused={} refused_of_files=0 " in said and "event=row_refused" not in said
    assert "set_aside=" in said and "no_time" in said and "ahead" in said
    verdict = verify_run(tmp_path / "out")
    assert verdict.exact and sum(verdict.delivered_updates.values()) == 3


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"\x1e", b"\x1e\xef\xbb\xbf ", b"\t"])
def test_pipe_takes_the_first_message_whatever_stands_before_it(words, tmp_path, before):
    """Byte order marks, and record separators (RFC 8142), as programs write them; also under other names."""
    other = json.dumps({"tweet": "w1", "latitude": 1, "longitude": 1, "id": "c"}).encode()
    rows = [json.dumps(row).encode() for row in ({"subscribe": ALL}, W1 | {"id": "a"}, W1 | {"id": "b"})] + [other]
    lines = [before + row + b"\r\n" for row in rows]
    stream = Stream(words, tmp_path / "out")
    stream.pipe.run(lines_of([*lines[:2], before + b"\n", *lines[2:], before]))
    assert not stream.refused and stream.pipe.lines == 6
    ((record, _, _),) = read_records(stream.journal.log)
    assert record.lines == rows[:1]
    assert [(one.message_id, one.text) for one in messages_in([record])] == [(name, "w1") for name in "abc"]
    stream.match()
    assert [row["message_id"] for row in stream.told] == ["a", "b", "c"]


def test_pipe_refusal_names_the_column_as_it_came_and_its_value(words, tmp_path):
    stream = Stream(words, tmp_path / "out", named={"time": "posted.at"})
    rows = [
        {"tweet": "w1", "latitude": 1, "lng": 200},
        W1 | {"posted": {"at": "soon"}},
        {"subscribe": ALL | {"match": 0}},
    ]
    stream.pipe.run(lines_of(rows))
    named = [(one["line"], one["column"], one["value"]) for one in stream.refused]
    assert named == [(1, "lng", 200), (2, "posted.at", "soon"), (3, "match", 0)]
    assert "lng is 200 (" in stream.refused[0]["what"]


def test_pipe_of_objects_ends_versions_whose_time_is_over_on_a_quiet_stream_also_after_a_restart(words, tmp_path):
    """One is replaced before its time; the producer is silent when the others end."""
    now, out = [1_000.0], tmp_path / "out"
    rows = [{"subscribe": ALL}, W1 | {"object_id": "a", "ttl_s": 5}, W1 | {"object_id": "b", "ttl_s": 5}]
    rows += [W1 | {"object_id": "b"}, W1 | {"object_id": "c", "expires_at": 1_020}, W1 | {"object_id": "d", "ttl_s": 0}]
    first = Stream(words, out, now=lambda: now[0], objects=True)
    first.pipe.run(lines_of(rows))
    assert first.pipe.refused == {"bad_expiry": 1} and first.journal.next_seq == 4
    first.interrupt(first.match())
    stream = Stream(words, out, now=lambda: now[0], objects=True)
    read, write = os.pipe()
    with open(read, "rb") as source, open(write, "wb"):
        stream.pipe.start(source, lambda: False)
        for now[0], count in ((1_010.0, 5), (1_020.0, 6)):
            await_(lambda count=count: stream.journal.next_seq == count)
    stream.match()
    told = [(row["change"], row["object_id"], row["as_of"]) for row in (*first.told, *stream.told)]
    assert told == [("enter", "a", 0), ("enter", "b", 1), ("enter", "c", 3), ("leave", "a", 4), ("leave", "c", 5)]


def test_pipe_whose_table_of_objects_is_full_refuses_new_ones_and_takes_the_rest(words, tmp_path):
    stream = Stream(words, tmp_path / "out", objects=True)
    stream.pipe.run(lines_of([W1 | {"object_id": "a"}, W1 | {"object_id": "b"}]))
    stream.journal.living.most_bytes = 1
    rows = [W1 | {"object_id": "a"}, *(W1 | {"id": f"new {number}"} for number in range(20)), {"subscribe": ALL}]
    stream.pipe.run(lines_of([*rows, {"object_id": "b", "deleted": True}]))
    assert stream.pipe.refused == {"too_many_objects": 20} and stream.journal.next_seq == 4
    assert "2 objects live" in stream.refused[0]["what"] and list(stream.gate.active) == ["s1"]
    stream.journal.close()
