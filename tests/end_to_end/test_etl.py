"""The whole ETL on real Spark, against plain Python that shares nothing with it but the tokeniser."""

import csv
import gzip
import hashlib
import io
import json
import math
import random
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from gateway.commands.etl import print_manifest
from gateway.live.vocabulary_files import empty_start
from gateway.runs.verify import verify_run
from gateway.shell.terminal import console
from matching.errors import ConfigError, InputError
from matching.languages import in_language, language_of
from matching.pieces import NAMED_ID
from matching.text import tokenise
from spark_etl.job import STAGES, EtlOptions, run_etl
from spark_etl.schemas import MESSAGE_SCHEMA, VOCABULARY_SCHEMA
from spark_etl.session import spark_session
from spark_etl.trial import try_rows
from spouts.manifest import read_manifest
from spouts.subscriptions import load_vocabulary
from tests.support.etl_folder import write_lines
from tests.support.live_streams import Stream
from topology.running import run as start
from topology.settings import RunConfig

pytestmark = pytest.mark.spark

WORDS = ["ramen", "#ramen", "bar", "café", "東京", "tea", "open", "late", "@chef", "हिन्दी", "wine", "the"]


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    options = EtlOptions(inputs=("unused",), out="unused", master="local[2]", driver_memory="1g")
    with spark_session(options, tmp_path_factory.mktemp("spark")) as session:
        yield session


def make_rows(count: int) -> list[dict]:
    """Rows with every sort of trouble that needs more than one row to see; their own ids where they have one."""
    rng = random.Random(7)
    rows = []
    for number in range(count):
        text = " ".join(rng.choices(WORDS, range(len(WORDS), 0, -1), k=rng.randint(1, 9)))
        row = {
            "id": f"m{number}",
            "text": text,
            "lat": round(rng.uniform(-60, 60), 4),
            "lon": round(rng.uniform(-170, 170), 4),
        }
        row["time"] = rng.choice([None, f"2020-01-0{rng.randint(1, 3)}", 1_577_923_200 + rng.randint(0, 3)])
        if number % 10 == 0:
            del row["id"]
        if number % 17 == 0:
            row["lat"] = None
        if number % 19 == 0:
            row["time"] = "soon"
        rows.append(row)
        if number % 23 == 0:
            rows.append(dict(row))  # a duplicate, with or without an id
        if number % 29 == 0 and "id" in row:
            rows.append(row | {"text": text + " again"})  # the same id, other content
    return rows


def time_us(value):
    days = {"2020-01-01": 0, "2020-01-02": 1, "2020-01-03": 2}
    if value in (None, "soon"):
        return None
    return (1_577_836_800 + days[value] * 86_400 if isinstance(value, str) else value) * 10**6


def plain_etl(rows: list[dict], require_time: bool) -> dict:
    """What the ETL must find, row by row."""
    seen, kept, outcome = {}, [], Counter()
    for row in rows:
        content = (row["text"], row["lat"], row["lon"], time_us(row["time"]))
        if row["lat"] is None:
            outcome["missing_coordinate"] += 1
        elif require_time and time_us(row["time"]) is None:
            outcome["missing_time" if row["time"] is None else "bad_time"] += 1
        elif (key := row.get("id", content)) in seen:
            outcome["duplicate" if seen[key] == content else "duplicate_id"] += 1
        else:
            seen[key] = content
            kept.append(row)
    documents = [Counter(tokenise(row["text"])) for row in kept]
    frequency = Counter(term for counts in documents for term in counts)
    total = sum(documents, Counter())
    terms = sorted(frequency, key=lambda term: (frequency[term], term.encode()))
    idf = {term: math.log(1 + len(kept) / frequency[term]) for term in terms}
    vectors = {}
    for row, counts in zip(kept, documents, strict=True):
        ids = sorted(terms.index(term) for term in counts)
        raw = [counts[terms[i]] * idf[terms[i]] for i in ids]
        norm = math.sqrt(sum(value * value for value in raw))
        vectors[row["text"]] = (ids, [counts[terms[i]] for i in ids], [value / norm for value in raw])
    return {"kept": kept, "outcome": outcome, "terms": terms, "frequency": frequency, "total": total, "idf": idf} | {
        "vectors": vectors
    }


def write_inputs(folder: Path, rows: list[dict]) -> None:
    """The rows in order, over files of every format."""
    fifth = len(rows) // 5
    parts = [rows[number * fifth : (number + 1) * fifth] for number in range(4)] + [rows[4 * fifth :]]
    lines = ["".join(json.dumps(row) + "\n" for row in part).encode() for part in parts]
    folder.mkdir(exist_ok=True)
    (folder / "a.jsonl").write_bytes(lines[0])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines[1], mtime=0))
    (folder / "c.jsonl.zst").write_bytes(zstandard.compress(lines[2]))
    with (folder / "d.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, ["lat", "id", "time", "lon", "text", "unused"])
        writer.writeheader()
        writer.writerows(parts[3])
    strings = [row | {"time": None if row["time"] is None else str(row["time"])} for row in parts[4]]
    names = ["id", "text", "lat", "lon", "time"]
    pq.write_table(pa.table({name: [row.get(name) for row in strings] for name in names}), folder / "e.parquet")


def read(out: Path):
    messages = [row for path in sorted((out / "messages").iterdir()) for row in pq.read_table(path).to_pylist()]
    lines = [path.read_text(encoding="utf-8").splitlines() for path in sorted((out / "rejected").iterdir())]
    rejects = [json.loads(line) for part in lines for line in part]
    return messages, pq.read_table(out / "vocabulary.parquet").to_pylist(), rejects


def run(spark, source, out: Path, **options) -> dict:
    inputs = tuple(map(str, source)) if isinstance(source, list | tuple) else (str(source),)
    return run_etl(EtlOptions(inputs=inputs, out=str(out), **options), spark=spark)


def digests(out: Path) -> dict[str, str]:
    files = (path for path in out.rglob("*") if path.is_file() and path.name != "run_log.json")
    return {path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("require_time", [False, True])
def test_etl_all_formats_agree_with_plain_python(spark, tmp_path, monkeypatch, require_time):
    if require_time:
        monkeypatch.setattr("spark_etl.job._PARTITION_BYTES", 2_000)  # by shuffles, not in one partition
    rows = make_rows(600)
    write_inputs(tmp_path / "raw", rows)
    stages = []
    options = EtlOptions(
        inputs=(str(tmp_path / "raw"),), out=str(tmp_path / "out"), rows_per_file=200, require_time=require_time
    )
    manifest = run_etl(options, stages.append, spark)
    want = plain_etl(rows, require_time)
    messages, vocabulary, rejects = read(tmp_path / "out")

    assert len(want["kept"]) > (200 if require_time else 450) and min(want["outcome"].values()) > 5
    assert len(want["outcome"]) == (5 if require_time else 3)
    outcome = dict(want["outcome"])
    assert manifest["duplicates"] == outcome.pop("duplicate")
    assert manifest["rejected_by_reason"] == outcome
    assert (manifest["read"], manifest["kept"]) == (len(rows), len(want["kept"]))
    assert manifest["read"] == manifest["kept"] + manifest["duplicates"] + manifest["rejected"]
    assert Counter(reject["reason"] for reject in rejects) == outcome
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))

    assert [row["term"] for row in vocabulary] == want["terms"]
    assert [row["term_id"] for row in vocabulary] == list(range(len(want["terms"])))
    for row in vocabulary:
        term = row["term"]
        assert (row["document_frequency"], row["collection_count"]) == (want["frequency"][term], want["total"][term])
        assert math.isclose(row["idf"], want["idf"][term], rel_tol=1e-14)
    assert manifest["vocabulary_size"] == len(vocabulary)
    assert manifest["total_tokens"] == sum(want["total"].values())

    ids = {(row["lon"], row["lat"]): row.get("id") for row in want["kept"]}
    order = sorted(
        messages,
        key=lambda row: (row["event_time"] is not None, row["event_time"] or 0, row["message_id"].encode()),
    )
    assert [row["seq"] for row in order] == list(range(len(want["kept"]))) == [row["seq"] for row in messages]
    assert manifest["null_times"] == sum(row["event_time"] is None for row in messages)
    assert manifest["bad_times"] == sum(row["time"] == "soon" for row in want["kept"])
    assert (manifest["null_times"], manifest["bad_times"]) == (0, 0) if require_time else manifest["bad_times"] > 10
    places = {(row["text"], row["lon"], row["lat"], time_us(row["time"])) for row in want["kept"]}
    found = {
        (row["text"], row["lon"], row["lat"], row["event_time"] and round(row["event_time"].timestamp()) * 10**6)
        for row in messages
    }
    assert found == places
    for row in messages:
        terms, counts, weights = want["vectors"][row["text"]]
        assert (row["terms"], row["counts"]) == (terms, counts)
        # behind a hashtag stands the word that it names, if any message has that
        named = [
            (term, term[1:]) if term[0] == "#" and term[1:] in want["idf"] else (term,)
            for term in tokenise(row["text"])
        ]
        written = [(0, term) if term >= 0 else (1, NAMED_ID - term) for term in row["word_order"]]
        expected = [(place, word) for words in named for place, word in enumerate(words)]
        assert [(place, want["terms"][term]) for place, term in written] == expected
        np.testing.assert_allclose(row["weights"], weights, rtol=2e-7)
        own_id = ids[row["lon"], row["lat"]]
        assert row["message_id"] == own_id if own_id else len(row["message_id"]) == 32
        assert row["object_id"] == row["message_id"] and row["op"] == 0 and row["west"] is None
    lons, lats = [row["lon"] for row in messages], [row["lat"] for row in messages]
    assert manifest["extent"] == [min(lons), min(lats), max(lons), max(lats)]

    files = sorted((tmp_path / "out" / "messages").iterdir())
    assert [pq.read_metadata(path).num_rows for path in files[:-1]] == [200] * (len(files) - 1) and len(files) > 1
    assert pq.read_schema(files[0]) == MESSAGE_SCHEMA
    assert pq.read_schema(tmp_path / "out" / "vocabulary.parquet") == VOCABULARY_SCHEMA
    on_disk = digests(tmp_path / "out")
    assert on_disk.pop("manifest.json")
    assert {name: file["sha256"] for name, file in manifest["files"].items()} == on_disk
    assert [(stage.stage, stage.seconds is None) for stage in stages] == [
        (s, start) for s in STAGES for start in (True, False)
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "raw"]


def test_etl_same_input_other_place_and_partitioning_gives_the_same_bytes(spark, tmp_path, monkeypatch):
    rows = make_rows(150)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_inputs(tmp_path / name / "raw", rows)
    run(spark, tmp_path / "one" / "raw", tmp_path / "one" / "out", rows_per_file=40)
    monkeypatch.setattr("spark_etl.ingest.TASK_BYTES", 100)  # many tasks
    monkeypatch.setattr("spark_etl.job._PARTITION_BYTES", 2_000)  # many shuffle partitions
    run(spark, tmp_path / "two" / "raw", tmp_path / "two" / "out", rows_per_file=40)
    assert digests(tmp_path / "one" / "out") == digests(tmp_path / "two" / "out")


def test_etl_malformed_lines_are_rejected_with_reasons_and_good_rows_kept(spark, tmp_path):
    good = [{"id": f"g{number}", "text": f"fine {number}", "lat": 1, "lon": number} for number in range(5)]
    bad = {
        b'{"id": "x", "text": "trunc': "not_json",
        b"": "empty_line",
        b'{"text": "\xff\xfe", "lat": 1, "lon": 1}': "bad_utf8",
        b'{"text": "a\0b", "lat": 1, "lon": 1}': "nul_byte",
        b'{"text": "a", "lat": NaN, "lon": 1}': "number_not_finite",
        b'{"text": "a", "lat": 1e400, "lon": 1}': "number_not_finite",
        b'{"text": 7, "lat": 1, "lon": 1}': "wrong_type",
        b'{"text": "a", "lat": "north", "lon": 1}': "coordinate_not_number",
        b'{"text": "a", "lat": 91, "lon": 1}': "coordinate_out_of_range",
        b'{"text": "a", "lat": null, "lon": 1}': "missing_coordinate",
        b"[" * 100_000: "not_json",
        b'{"text": "' + b"x" * 10_000_000 + b'", "lat": 1, "lon": 1}': "text_too_long",
        b"y" * 20_000_000: "line_too_long",
        b'{"text": "a", "lat": 1, "lon": 1, "op": "erase"}': "bad_op",
    }
    mixed = [line for pair in zip(good, list(bad)[:5], strict=True) for line in pair] + list(bad)[5:]
    manifest = run(spark, write_lines(tmp_path / "raw.jsonl", *mixed), tmp_path / "out")
    messages, _, rejects = read(tmp_path / "out")
    assert manifest["rejected_by_reason"] == dict(sorted(Counter(bad.values()).items()))
    assert [row["message_id"] for row in messages] == [row["id"] for row in good]
    assert [(row["line"], row["reason"]) for row in rejects] == [
        (number, bad[line]) for number, line in enumerate(mixed, 1) if isinstance(line, bytes)
    ]
    assert all(row["file"] == "raw.jsonl" and len(row["row"]) <= 1000 for row in rejects)
    named = {row["reason"]: (row["column"], row["value"]) for row in rejects}
    assert named["wrong_type"] == ("text", 7) and named["bad_op"] == ("op", "erase")
    assert named["line_too_long"] == (None, "") and named["not_json"][0] is None


def test_etl_ranges_deletes_and_versions_keep_their_columns(spark, tmp_path):
    box = {"west": 1, "south": 2, "east": 3, "north": 4}
    source = write_lines(
        tmp_path / "raw.jsonl",
        {"id": "a", "text": "area", "object_id": "o1", "time": 1, **box},
        {"id": "b", "text": "point", "lat": 0.5, "lon": 0.5, "object_id": "o1", "time": 2},
        {"id": "c", "op": "delete", "lat": 0.5, "lon": 0.5, "object_id": "o1", "time": 3},
        {"id": "d", "text": "half", "lat": 0.5, "lon": 0.5, "west": 1},
    )
    manifest = run(spark, source, tmp_path / "out")
    messages, _, _ = read(tmp_path / "out")
    assert [(row["message_id"], row["object_id"], row["op"]) for row in messages] == [
        ("a", "o1", 0),
        ("b", "o1", 0),
        ("c", "o1", 1),
    ]
    assert [messages[0][side] for side in box] == [1, 2, 3, 4] and (messages[0]["lon"], messages[0]["lat"]) == (2, 3)
    assert messages[1]["west"] is None and messages[2]["terms"] == []
    assert manifest["rejected_by_reason"] == {"bad_rectangle": 1}
    assert (manifest["range_messages"], manifest["deletes"], manifest["messages_without_terms"]) == (1, 1, 1)
    assert manifest["extent"] == [0.5, 0.5, 3, 4]


@pytest.mark.long
def test_etl_stop_terms_and_stems_and_world_follow_the_options(spark, tmp_path):
    texts = ["the running dog", "the runs", "the cat", "the end"]
    rows = [{"id": str(number), "text": text, "lat": 1, "lon": number} for number, text in enumerate(texts)]
    source = write_lines(tmp_path / "raw.jsonl", *rows, {"id": "far", "text": "far", "lat": 1, "lon": 50})
    manifest = run(spark, source, tmp_path / "out", stop_share=0.5, stem_language="english", world="0,0,10,10")
    messages, vocabulary, _ = read(tmp_path / "out")
    assert manifest["stop_terms"] == ["the"] and manifest["rejected_by_reason"] == {"outside_world": 1}
    assert [row["term"] for row in vocabulary] == ["cat", "dog", "end", "run"]
    assert manifest["total_tokens"] == 5
    assert [row["terms"] for row in messages] == [[1, 3], [3], [0], [2]]
    assert manifest["options"]["stem_language"] == "english" and manifest["options"]["world"] == "0,0,10,10"


def test_etl_cuts_hashtags_and_rows_of_other_languages_as_a_live_stream_does(spark, tmp_path):
    texts = ["#runs bar", "run", "#running_bar, #BAR!", "bar #none"]
    texts += ["Häuser #runs", "Haus run", "KIZ BTC&ETH", "häuser"]
    langs = [None, "en", "xx", "", "de", "german", "tr", "english"]
    asked = ["haus", "häuser", "run", "#runs", "bar", "none", '"bar none"', "btc&eth", "kiz", "häus*", '"haus run"']
    rows = [
        {"id": str(number), "text": text, "lang": lang, "time": 1, "lat": 1, "lon": 1}
        for number, (text, lang) in enumerate(zip(texts, langs, strict=True))
    ]
    raw, etl, live = tmp_path / "raw.jsonl", tmp_path / "etl", tmp_path / "live"
    run(spark, write_lines(raw, *rows), etl, stem_language="english")
    messages, vocabulary, _ = read(etl)
    words = load_vocabulary(etl)
    spoken = [in_language(text, language_of(lang, "english")) for text, lang in zip(texts, langs, strict=True)]
    assert [row["word_order"] for row in messages] == list(map(words.order_of, spoken))
    assert [dict(zip(row["terms"], row["counts"], strict=True)) for row in messages] == [
        {words.id_of(term): count for term, count in words.count_terms(text).items()} for text in spoken
    ]
    alone = {row["term"]: row["idf"] for row in vocabulary if not row["document_frequency"]}
    named = "haus", "kız", "btc", "eth", "none"
    assert alone == dict.fromkeys(named, math.log(1 + 8 / 0.5)) and words.id_of(":german:haus")

    subscriptions = [
        {"subscription_id": f"{query} {lang}", "kind": "boolean", "query": query, "lang": lang, "region": [0, 0, 2, 2]}
        for query in asked
        for lang in (None, "de", "tr")
    ]
    common: dict = {"world": "earth", "window": "count:100"}
    stream = Stream(empty_start(tmp_path / "words", (), "english"), live, **common)
    for row in (*({"subscribe": one} for one in subscriptions), *rows):
        stream.take(row)
    stream.pipe.close_batch()
    assert not stream.refused
    digest = stream.finish(stream.match())
    common |= {"subscriptions": (write_lines(tmp_path / "s.jsonl", *subscriptions),), "executor": "local"}
    assert start(RunConfig(messages=etl, out=tmp_path / "run", **common))["digest"] == digest
    told = {(one["subscription_id"], one["message_id"]) for one in stream.told}
    assert {name for one, name in told if one == "häuser de"} == {"4", "5", "7"} and len(told) > 30


def test_etl_nothing_usable_is_an_error_with_reasons_and_leaves_nothing(spark, tmp_path):
    rows = [b"nonsense", {"text": "a", "lat": 91, "lon": 1}, {"text": "b", "lat": 92, "lon": 1}]
    with pytest.raises(InputError, match=r"2 coordinate_out_of_range .* raw.jsonl line 2: .*; 1 not_json .* line 1: "):
        run(spark, write_lines(tmp_path / "raw.jsonl", *rows), tmp_path / "out")
    (tmp_path / "raw.jsonl").write_bytes(b"")
    with pytest.raises(InputError, match="no rows"):
        run(spark, tmp_path / "raw.jsonl", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["raw.jsonl"]


@pytest.mark.wide
def test_etl_folded_accents_are_in_the_vocabulary_and_the_manifest(spark, tmp_path):
    source = write_lines(tmp_path / "raw.jsonl", {"text": "Café cafe #crème", "lat": 1, "lon": 1})
    for fold, terms in ((False, ["#crème", "cafe", "café", "crème"]), (True, ["#creme", "cafe", "creme"])):
        manifest = run(spark, source, tmp_path / f"out {fold}", fold_accents=fold)
        assert sorted(row["term"] for row in read(tmp_path / f"out {fold}")[1]) == terms
        assert manifest["options"]["fold_accents"] is fold


@pytest.mark.long
def test_etl_found_columns_give_the_output_of_named_ones(spark, tmp_path):
    place = {"type": "Point", "coordinates": [139.7, 35.7]}
    source = write_lines(
        tmp_path / "raw.jsonl",
        {"id": 1, "body": "one", "coordinates": place, "created_at": "Wed Oct 10 20:19:24 +0000 2018"},
        {"id": 2, "body": "two", "coordinates": place, "created_at": "Wed, 10 Oct 2018 20:19:25 GMT"},
        {"id": 3, "body": "three", "coordinates": None, "created_at": None},
    )
    named = {"text_column": "body", "time_column": "created_at", "id_column": "id"}
    named |= {"lat_column": "coordinates.coordinates.1", "lon_column": "coordinates.coordinates.0"}
    found, told = run(spark, source, tmp_path / "found"), run(spark, source, tmp_path / "told", **named)
    assert found["options"].pop("columns_found") == ["id", "lat", "lon", "text", "time"]
    assert told["options"].pop("columns_found") == [] and found == told
    messages, _, rejects = read(tmp_path / "found")
    assert [(row["text"], row["lon"], row["event_time"].isoformat()) for row in messages] == [
        ("one", 139.7, "2018-10-10T20:19:24+00:00"),
        ("two", 139.7, "2018-10-10T20:19:25+00:00"),
    ]
    assert [row["reason"] for row in rejects] == ["missing_coordinate"]


@pytest.mark.wide
def test_etl_standard_input_gives_the_output_of_a_file(spark, tmp_path, monkeypatch):
    rows = make_rows(50)
    write_lines(tmp_path / "stdin", *rows)
    file = run(spark, tmp_path / "stdin", tmp_path / "one", input_format="jsonl")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((tmp_path / "stdin").read_bytes())))
    assert run(spark, [Path("-")], tmp_path / "two", input_format="jsonl") == file
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert json.loads((tmp_path / "two" / "run_log.json").read_text())["inputs"][0]["path"] == "-"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "stdin", "two"]


@pytest.mark.parametrize("partition_bytes", [20, 2**26])
def test_etl_texts_without_words_keep_their_seq(spark, tmp_path, monkeypatch, partition_bytes):
    monkeypatch.setattr("spark_etl.job._PARTITION_BYTES", partition_bytes)
    source = write_lines(
        tmp_path / "raw.jsonl", {"text": ":-)", "lat": 1, "lon": 1}, {"text": "...", "lat": 1, "lon": 1}
    )
    manifest = run(spark, source, tmp_path / "out")
    messages, vocabulary, _ = read(tmp_path / "out")
    assert [row["seq"] for row in messages] == [0, 1] and vocabulary == []
    assert manifest["messages_without_terms"] == 2


@pytest.mark.wide
def test_etl_cut_off_gzip_keeps_its_rows_and_counts_the_cut(spark, tmp_path):
    lines = "".join(json.dumps({"text": str(number), "lat": 1, "lon": 1}) + "\n" for number in range(1000)).encode()
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "cut.jsonl.gz").write_bytes(gzip.compress(lines)[:-300])
    write_lines(tmp_path / "raw" / "whole.jsonl", {"text": "whole", "lat": 1, "lon": 1})
    manifest = run(spark, tmp_path / "raw", tmp_path / "out")
    messages, _, rejects = read(tmp_path / "out")
    kept = {row["text"] for row in messages}
    assert 500 < len(kept) < 1000 and kept == {"whole", *map(str, range(len(kept) - 1))}
    assert manifest["rejected_by_reason"] == {"broken_file": 1} and manifest["read"] == len(kept) + 1
    (said,) = manifest["broken_files"]
    assert said.startswith("cut.jsonl.gz: damaged or cut off (Compressed file ended")
    whole_row = {"column": None, "value": said[:40]}
    assert rejects == [{"reason": "broken_file", **whole_row, "file": "cut.jsonl.gz", "line": 0, "row": said}]


@pytest.mark.parametrize("partition_bytes", [2_000, 2**26])
def test_etl_dates_far_from_the_others_are_kept_and_counted(spark, tmp_path, monkeypatch, capsys, partition_bytes):
    monkeypatch.setattr("spark_etl.job._PARTITION_BYTES", partition_bytes)
    days = [{"time": f"2020-01-{1 + number % 28:02d}"} for number in range(200)]
    absurd = [{"time": "0002-01-01"}, {"time": "9999-12-31"}, {"time": 0}, {"time": None}]
    rows = [{"id": str(n), "text": "a", "lat": 1, "lon": 1, **time} for n, time in enumerate(days + absurd)]
    manifest = run(spark, write_lines(tmp_path / "raw.jsonl", *rows), tmp_path / "out")
    assert (manifest["kept"], manifest["null_times"], manifest["odd_times"]) == (204, 1, 3)
    first, last = manifest["likely_times"]
    assert "2019-01" < first < "2019-12" and "2020-05" < last < "2021"
    print_manifest(console(), manifest, tmp_path / "out", {"start": 5.0, "clean": 1.5, "messages": 0.5})
    shown = capsys.readouterr().out
    assert "3 messages are dated far from the others, before 2019-" in shown
    assert "2 s, 102 rows/s, and 5 s for the start of Spark" in shown
    same = run(spark, write_lines(tmp_path / "same.jsonl", *(row | {"time": 5} for row in rows)), tmp_path / "same")
    assert (same["odd_times"], same["likely_times"]) == (0, None)


def test_etl_used_directory_is_kept_unless_told_to_overwrite(spark, tmp_path):
    source = write_lines(tmp_path / "raw.jsonl", {"text": "one", "lat": 1, "lon": 1})
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("only copy")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="out"):
            run(spark, source, out, overwrite=overwrite)
    assert (out / "thesis.txt").read_text() == "only copy"
    (out / "thesis.txt").unlink()
    run(spark, source, out)
    before = digests(out)
    with pytest.raises(ConfigError, match="already in use"):
        run(spark, source, out)
    assert digests(out) == before
    write_lines(source, {"text": "two", "lat": 1, "lon": 1})
    run(spark, source, out, overwrite=True)
    assert read(out)[0][0]["text"] == "two"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "raw.jsonl"]
    with pytest.raises(ConfigError, match="is an input"):
        run(spark, out / "messages", out, overwrite=True)


def test_etl_file_as_output_is_refused(spark, tmp_path):
    source = write_lines(tmp_path / "raw.jsonl", {"text": "one", "lat": 1, "lon": 1})
    with pytest.raises(ConfigError, match="not a directory"):
        run(spark, source, source)


def rows_with_attributes(count: int) -> list[dict]:
    """Rows whose attributes are there, missing, or (of every seventh row) bad."""
    rng = random.Random(11)
    rows = []
    for number in range(count):
        row = {"id": f"m{number:04d}", "text": rng.choice(WORDS), "lat": 1, "lon": number / 10, "price": number / 4}
        row["house"] = {
            "type": rng.choice(["house", "flat", None]),
            "listed": "2020-05-01",
            "about": f"{number} " * 300,
        }
        if number % 5 == 0:
            del row["price"], row["house"]
        if number % 7 == 1:
            row["price"] = rng.choice(["cheap", [1], False])
        rows.append(row)
    return rows


def test_etl_attributes_are_columns_of_messages_and_in_the_manifest(spark, tmp_path):
    rows = rows_with_attributes(200)
    attributes = ("price:number", "house.type:category", "about=house.about:text", "listed=house.listed:time")
    source = write_lines(tmp_path / "raw.jsonl", *rows)
    manifest = run(spark, source, tmp_path / "out", rows_per_file=60, attribute=attributes)
    bad = [row for number, row in enumerate(rows) if number % 7 == 1]
    assert manifest["rejected_by_reason"] == {} and manifest["kept"] == len(rows)
    messages, _, rejects = read(tmp_path / "out")
    expected = {
        row["id"]: (
            None if row in bad else row.get("price"),
            row.get("house", {}).get("type"),
            row.get("house", {}).get("about"),
            1_588_291_200 * 10**6 if "house" in row else None,
        )
        for row in rows
    }
    columns = ("attribute_price", "attribute_house.type", "kept_about", "attribute_listed")
    assert {row["message_id"]: tuple(row[name] for name in columns) for row in messages} == expected
    assert rejects == []
    valued = [sum(value is not None for value in values) for values in zip(*expected.values(), strict=True)]
    assert manifest["format_version"] == 2 and manifest["options"]["attribute"] == list(attributes)
    assert manifest["attributes"] == [
        {"name": "price", "type": "number", "messages": valued[0], "misfits": len(bad)},
        {"name": "house.type", "type": "category", "messages": valued[1], "misfits": 0},
        {"name": "about", "type": "text", "messages": valued[2], "misfits": 0},
        {"name": "listed", "type": "time", "messages": valued[3], "misfits": 0},
    ]
    schema = pq.read_schema(tmp_path / "out" / "messages" / "part-00002.parquet")
    assert [str(schema.field(name).type) for name in columns] == ["double", "string", "string", "int64"]
    assert read_manifest(tmp_path / "out") == manifest
    strict = run(spark, source, tmp_path / "strict", attribute=attributes, strict_attributes=True)
    assert strict["rejected_by_reason"] == {"bad_attribute": len(bad)} and strict["kept"] == len(rows) - len(bad)
    _, _, rejects = read(tmp_path / "strict")
    values = {row["price"] if isinstance(row["price"], str | bool) else "list" for row in bad}
    assert {(row["reason"], row["column"]) for row in rejects} == {("bad_attribute", "price")}
    assert {row["value"] for row in rejects} == values


def test_etl_attributes_have_the_same_bytes_however_partitioned(spark, tmp_path, monkeypatch):
    source = write_lines(tmp_path / "raw.jsonl", *rows_with_attributes(200))
    given = {"attribute": ("price:number", "house.type:category"), "rows_per_file": 60}
    run(spark, source, tmp_path / "one", **given)
    monkeypatch.setattr("spark_etl.ingest.TASK_BYTES", 100)
    monkeypatch.setattr("spark_etl.job._PARTITION_BYTES", 2_000)
    run(spark, source, tmp_path / "two", **given)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_etl_odd_values_in_every_form_have_the_same_bytes_however_partitioned(spark, tmp_path, monkeypatch):
    raw = tmp_path / "raw"
    raw.mkdir()
    odd = [b"NaN", b"1e400", b'"caf\xe9"', b'"a\tb"', b"[" * 2000 + b"]" * 2000, b"%d" % 2**70, b'"\\ud800"', b"tru"]
    rows = [b'{"id":"%%b%d","text":"ramen %d","lat":1,"lon":2,"more":%b}' % (n, n, odd[n % 8]) for n in range(16)]
    named = {form: [row % form.encode() for row in rows] for form in ("array", "collection", "lines", "sequence")}
    (raw / "array.json").write_bytes(b"[" + b",".join(named["array"]) + b"]")
    collection = b'{"features":[%b],"type":"FeatureCollection"}'
    first = named["collection"][0].replace(b"{", b'{"type":"Feature",', 1)
    (raw / "collection.geojson").write_bytes(collection % b",".join([first, *named["collection"][1:]]))
    (raw / "lines.geojson").write_bytes(b"\xef\xbb\xbf" + b"\n".join(named["lines"]))
    (raw / "sequence.geojsonseq").write_bytes(b"".join(b"\x1e%b\n" % row for row in named["sequence"]))
    (raw / "mac.csv").write_bytes(b"sep=;\rid;text;lat;lon\rx1;ramen;1,5;2\rx2;b\xe9b;1;2\rx3;soba;1;2\r")
    times = pa.array([0, 2**58, 253_402_300_799_000_000], pa.timestamp("us", "Asia/Tokyo"))
    table = pa.table({"id": [1.0, 2.0, float(2**60)], "text": ["a", "b", "c"], "lat": [1.0] * 3, "lon": [2.0] * 3})
    pq.write_table(table.append_column("time", times), raw / "far.parquet")
    one = run(spark, raw, tmp_path / "one", rows_per_file=7)
    monkeypatch.setattr("spark_etl.ingest.TASK_BYTES", 100)
    monkeypatch.setattr("spark_etl.job._PARTITION_BYTES", 2_000)
    two = run(spark, raw, tmp_path / "two", rows_per_file=7)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    dry = try_rows(EtlOptions((str(raw),)), 1000)
    counts = ("read", "kept", "rejected_by_reason", "bad_times")
    assert [one[name] for name in counts] == [two[name] for name in counts] == [dry[name] for name in counts]
    lines = try_rows(EtlOptions((str(raw / "lines.geojson"),)), 1000)
    assert lines["kept"] >= 4 and lines["rejected"] >= 8
    assert (one["read"], one["kept"], one["bad_times"]) == (4 * 16 + 3 + 3, 4 * lines["kept"] + 2 + 2, 1)
    assert "broken_file" not in one["rejected_by_reason"]


def test_etl_without_attributes_has_the_old_format(spark, tmp_path):
    manifest = run(spark, write_lines(tmp_path / "raw.jsonl", *rows_with_attributes(20)), tmp_path / "out")
    assert manifest["format_version"] == 1 and "attributes" not in manifest and "attribute" not in manifest["options"]
    assert pq.read_schema(tmp_path / "out" / "messages" / "part-00000.parquet") == MESSAGE_SCHEMA


def test_etl_of_objects_keeps_every_version_in_the_order_of_the_input(spark, tmp_path):
    """Prices of 900, 800, 900 are three versions, with or without ids; only an id beside another object's is of one."""
    flat = {"text": "a flat", "lat": 1.0, "lon": 2.0}
    rows = [
        flat | {"id": "z", "price": 900},
        flat | {"id": "z", "price": 800},
        flat | {"id": "z", "price": 900},
        flat | {"object_id": "a", "price": 900},
        flat | {"object_id": "a", "price": 800},
        flat | {"object_id": "a", "price": 900},
        flat | {"object_id": "a", "id": "v1", "price": 700},
        flat | {"object_id": "a", "id": "v1", "price": 700},  # sent again
        flat | {"object_id": "a", "id": "v1", "price": 600},  # not the same
        {"id": "v2", "object_id": "a", "deleted": True},
    ]
    source = write_lines(tmp_path / "raw.jsonl", *rows)
    manifest = run(spark, source, tmp_path / "etl", objects=True, attribute=("price:number",))
    assert manifest["objects"] is True and manifest["options"]["objects"] is True
    assert (manifest["kept"], manifest["duplicates"], manifest["deletes"]) == (8, 1, 1)
    assert manifest["rejected_by_reason"] == {"duplicate_id": 1} and manifest["extent"] == [2.0, 1.0, 2.0, 1.0]
    messages, *_ = read(tmp_path / "etl")
    found = [(row["object_id"], row["attribute_price"], row["op"]) for row in messages]
    assert found == [
        ("z", 900.0, 0), ("z", 800.0, 0), ("z", 900.0, 0), ("a", 900.0, 0), ("a", 800.0, 0), ("a", 900.0, 0),
        ("a", 700.0, 0), ("a", None, 1),
    ]  # fmt: skip
    assert (messages[-1]["lon"], messages[-1]["lat"]) == (0.0, 0.0)


def plain_ends(rows: list[dict]) -> list[tuple[str, int, int | None]]:
    """Object, op and event time in us of what the ETL must write, row by row: what ends by time is told at its time.

    Times and lives are whole seconds.
    """
    order = sorted(range(len(rows)), key=lambda at: (rows[at]["time"] is not None, rows[at]["time"] or 0, at))
    living, pending, found = {}, [], []

    def end(until: int) -> None:
        for at_s, at in sorted(one for one in pending if one[0] <= until):
            pending.remove((at_s, at))
            name = rows[at]["object_id"]
            if living.get(name) == at:
                del living[name]
                found.append((name, 1, at_s * 10**6))

    for at in order:
        row = rows[at]
        time, deletes = row["time"], row.get("op") == "delete"
        if time is not None:
            end(time)
        name = row["object_id"]
        found.append((name, int(deletes), None if time is None else time * 10**6))
        living.pop(name, None)
        if deletes:
            continue
        living[name] = at
        expires = row.get("expires_at", time + row["ttl_s"] if "ttl_s" in row else None)
        if expires is not None:
            pending.append((expires if time is None else max(expires, time), at))
            if time is not None:
                end(time)
    return found


@pytest.mark.parametrize("partition_bytes", [700, 2**26])
def test_etl_of_objects_writes_deletions_where_versions_end_by_time(spark, tmp_path, monkeypatch, partition_bytes):
    """Many versions of one time, some that end when they come, some after the last row; the run is judged."""
    monkeypatch.setattr("spark_etl.job._PARTITION_BYTES", partition_bytes)
    rng, begin = random.Random(11), 1_600_000_000
    rows = []
    for number in range(300):
        row = {"object_id": f"o{rng.randrange(12)}", "text": "a flat", "lat": rng.uniform(0, 2), "lon": 1.0}
        row["time"] = None if number % 40 == 0 else begin + rng.randrange(120)
        chance = rng.random()
        if chance < 0.1:
            row["op"] = "delete"
        elif chance < 0.5 and row["time"] is not None:
            row["ttl_s"] = rng.choice([1, 2, 5, 30, 500])
        elif chance < 0.8:
            row["expires_at"] = begin + rng.randrange(-20, 200)
        rows.append(row)
    bad = [{"ttl_s": -1}, {"ttl_s": 5, "expires_at": begin}, {"ttl_s": 5, "time": None}, {"expires_at": "soon"}]
    spoilt = [{"object_id": "bad", "text": "", "lat": 1, "lon": 1, "time": begin} | one for one in bad]
    source = write_lines(tmp_path / "raw.jsonl", *rows, *spoilt)
    manifest = run(spark, source, tmp_path / "etl", objects=True)
    messages, _, rejects = read(tmp_path / "etl")
    micro = [None if one["event_time"] is None else round(one["event_time"].timestamp() * 10**6) for one in messages]
    found = [(one["object_id"], one["op"], time) for one, time in zip(messages, micro, strict=True)]
    expected = plain_ends(rows)
    ends = len(expected) - len(rows)
    assert found == expected and ends > 40
    assert (manifest["read"], manifest["kept"], manifest["ended_by_time"]) == (304, 300 + ends, ends)
    assert [(one["reason"], one["column"]) for one in rejects] == [
        ("bad_expiry", "ttl_s"), ("bad_expiry", "ttl_s"), ("bad_expiry", "ttl_s"), ("bad_expiry", "expires_at")
    ]  # fmt: skip
    assert len({one["message_id"] for one in messages if one["op"] == 1 and one["text"] == ""}) >= ends
    row = {"subscription_id": "s", "kind": "boolean", "keywords": "flat", "region": [0, 0, 2, 1.5]}
    write_lines(tmp_path / "asked.jsonl", row)
    given = {"window": "living", "executor": "local", "batch": "17", "objects": True}
    asked = (tmp_path / "asked.jsonl",)
    start(RunConfig(messages=tmp_path / "etl", subscriptions=asked, out=tmp_path / "out", **given))
    assert verify_run(tmp_path / "out", None).exact


def test_etl_of_tables_of_objects_ends_versions_by_time_and_by_deletions(spark, tmp_path):
    """Cells of a CSV are text and may be empty; a Parquet table has numbers, truths and nulls."""
    begin, names = 1_600_000_000, ["id", "object_id", "text", "lat", "lon", "time", "ttl_s", "expires_at", "deleted"]
    rows = [
        ["a1", "a", "flat", 1.0, 1.0, begin, 60.0, None, None],
        ["b1", "b", "flat", 1.0, 1.0, begin + 10, None, begin + 70, False],
        ["c", None, "flat", 1.0, 1.0, begin + 100, None, None, None],
        ["d1", "d", "flat", 1.0, 1.0, begin + 101, None, None, None],
        ["c", None, None, None, None, begin + 110, None, None, True],  # no place, and the object by its id
        ["d2", "d", "sold", 1.0, 1.0, begin + 111, None, None, True],
    ]
    with (tmp_path / "raw.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([names, *(["" if one is None else one for one in row] for row in rows)])
    pq.write_table(pa.table(dict(zip(names, zip(*rows, strict=True), strict=True))), tmp_path / "raw.parquet")
    for source in ("raw.csv", "raw.parquet"):
        manifest = run(spark, tmp_path / source, tmp_path / f"{source}.etl", objects=True)
        messages, *_ = read(tmp_path / f"{source}.etl")
        found = "".join(f"{one['object_id']}{one['op']} " for one in messages)
        assert found == "a0 b0 a1 b1 c0 d0 c1 d1 " and messages[-1]["terms"] == []
        assert (manifest["ended_by_time"], manifest["deletes"]) == (2, 4)
