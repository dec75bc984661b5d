"""Subscriptions from files: who is subscribed from when to when, and what happens to bad rows."""

import copy
import gzip
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from matching.errors import DeliveryError, EngineError, InputError
from matching.kind_table import Kind
from matching.kinds import KINDS
from matching.model import BOOLEAN, TOPK, UNKNOWN_TERM
from matching.reasons import MAX_LINE_BYTES
from matching.space import Space
from matching.vocabulary import Vocabulary
from matching.words.tokeniser import tokeniser_number
from spouts.lines import read_lines, read_rows
from spouts.subscriptions import NEVER, SubscriptionSpout, load_changes, load_vocabulary
from tests.support.subscription_rows import WORDS, boolean, gone, topk
from topology.core.api.component import Tick

EARTH = Space(-180.0, -90.0, 180.0, 90.0)


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" if isinstance(row, dict) else row + "\n" for row in rows))
    return path


def load(tmp_path, *rows, kinds=KINDS):
    path = write(tmp_path / "subscriptions.jsonl", *rows)
    return load_changes([path], WORDS, EARTH, tmp_path / "rejected.jsonl", kinds)


def spans(changes):
    """(id, at, end) of every number, in order."""
    return list(zip(changes.names.strings(), changes.table.at.tolist(), changes.end.tolist(), strict=True))


def follows(expected):
    """Who had the id before, from the ids of all numbers in order."""
    ids = [name for name, *_ in expected]
    return [max((n for n in range(number) if ids[n] == name), default=-1) for number, name in enumerate(ids)]


def rejected(tmp_path):
    path = tmp_path / "rejected.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_spout_subscriptions_rows_become_columns(tmp_path):
    changes = load(tmp_path, topk("a"), boolean("b", keywords="soup ramen unheard"), topk("ä", at=4, until=9))
    table = changes.table
    assert table.number.tolist() == [0, 1, 2]
    assert table.kind.tolist() == [TOPK, BOOLEAN, TOPK]
    assert table.k.tolist() == [3, 0, 3]
    x, y = EARTH.project(np.array([1.0]), np.array([2.0]))
    assert (table.x[0], table.y[0]) == (x[0], y[0]) and np.isnan(table.x[1])
    assert table.region[1].tolist() == [0, 0, 1, 1]
    assert table.terms[table.term_offsets[1] : table.term_offsets[2]].tolist()[-1] == UNKNOWN_TERM
    assert spans(changes) == [("a", 0, NEVER), ("b", 0, NEVER), ("ä", 4, 9)]
    assert (
        changes.removed.number.tolist() == [2]
        and changes.removed.at.tolist() == [9]
        and changes.removed.kind.tolist() == [TOPK]
    )
    report = changes.report()
    assert (report["accepted"], report["rejected"], report["cannot_match"], report["unknown_keywords"]) == (3, 0, 1, 1)
    assert report["by_kind"] == dict(zip(KINDS.names, [1, 2, 0, 0, 0], strict=True))
    assert not (tmp_path / "rejected.jsonl").exists()


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([topk("a"), topk("b", at=5), topk("c", at=3)], [("a", 0, NEVER), ("c", 3, NEVER), ("b", 5, NEVER)]),
        ([topk("a"), topk("a", at=5)], [("a", 0, 5), ("a", 5, NEVER)]),
        ([topk("a", at=5), topk("a")], [("a", 0, 5), ("a", 5, NEVER)]),  # order of seq, not of lines
        ([topk("a"), topk("a", k=7)], [("a", 0, NEVER)]),  # the first never took effect
        ([topk("a", at=2), topk("b", at=2), topk("a", at=2)], [("b", 2, NEVER), ("a", 2, NEVER)]),
        ([topk("a", until=4), topk("a", at=9)], [("a", 0, 4), ("a", 9, NEVER)]),
        ([topk("a", until=9), topk("a", at=4)], [("a", 0, 4), ("a", 4, NEVER)]),  # `until` went with the old one
        ([topk("a", until=4), topk("a", at=4)], [("a", 0, 4), ("a", 4, NEVER)]),
        ([topk("a"), gone("a", 7)], [("a", 0, 7)]),
        ([gone("a", 7), topk("a")], [("a", 0, 7)]),
        ([topk("a", until=9), gone("a", 7)], [("a", 0, 7)]),
        ([topk("a"), gone("a", 7), topk("a", at=7)], [("a", 0, 7), ("a", 7, NEVER)]),
        ([topk("a"), topk("a", at=7), gone("a", 7)], [("a", 0, 7)]),  # the new one is gone before it took effect
        ([topk("a"), topk("a", at=3), topk("a", at=6), gone("a", 8)], [("a", 0, 3), ("a", 3, 6), ("a", 6, 8)]),
    ],
)
def test_spout_subscriptions_replacing_and_ending(tmp_path, rows, expected):
    changes = load(tmp_path, *rows)
    assert spans(changes) == expected
    assert changes.follows.tolist() == follows(expected)
    assert rejected(tmp_path) == []
    ends = sorted((end, number) for number, (_, _, end) in enumerate(expected) if end < NEVER)
    assert list(zip(changes.removed.at.tolist(), changes.removed.number.tolist(), strict=True)) == ends


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([gone("a", 7)], 1),
        ([topk("a"), gone("a", 7), gone("a", 8)], 3),
        ([topk("a"), gone("a", 8), gone("a", 7)], 2),  # the one at 7 comes first
        ([topk("a", until=7), gone("a", 7)], 2),
        ([topk("a", at=8), gone("a", 7)], 2),
        ([gone("a"), topk("a")], 1),
    ],
)
def test_spout_subscriptions_unsubscribing_nobody_is_rejected_with_its_line(tmp_path, rows, line):
    changes = load(tmp_path, *rows)
    assert [(r["line"], r["reason"]) for r in rejected(tmp_path)] == [(line, "unknown_subscription")]
    assert changes.rejected_by_reason == {"unknown_subscription": 1}
    assert changes.counts["rejected"] == 1


def test_spout_subscriptions_random_events_agree_with_a_plain_account(tmp_path):
    """Step through the seqs one by one, as a person would, and compare who is subscribed at each."""
    rng = np.random.default_rng(5)
    for trial in range(60):
        rows = []
        for i in range(int(rng.integers(1, 25))):
            name, at = f"s{rng.integers(0, 4)}", int(rng.integers(0, 8))
            until = {"until": at + int(rng.integers(1, 6))} if rng.random() < 0.3 else {}
            rows.append(gone(name, at) if rng.random() < 0.3 else topk(name, at, k=i + 1, **until))
        live, expected = {}, []
        for seq in range(15):
            live = {name: row for name, row in live.items() if row.get("until", 99) > seq}
            for row in rows:
                if row["at"] == seq and "unsubscribe" in row:
                    live.pop(row["unsubscribe"], None)
                elif row["at"] == seq:
                    live[row["subscription_id"]] = row
            expected.append(sorted((name, row["k"]) for name, row in live.items()))
        changes = load(tmp_path, *rows)
        names, k = changes.names.strings(), changes.table.k.tolist()
        alive = set()
        found = []
        for seq in range(15):
            step = changes.changes_through(seq, seq)
            alive -= set(step.removed.number.tolist())
            assert (step.added.at == seq).all() and (step.removed.at == seq).all()
            alive |= set(step.added.number.tolist())
            found.append(sorted((names[n], k[n]) for n in alive))
        assert found == expected, f"trial {trial}: {rows}"
        assert changes.follows.tolist() == follows(spans(changes))
        assert changes.table.number.tolist() == list(range(len(changes)))
        assert (np.diff(changes.table.at) >= 0).all() and (changes.end > changes.table.at).all()


def test_spout_subscriptions_changes_go_with_the_batch_that_holds_their_seq(tmp_path):
    rows = [
        topk("a"),
        topk("b", at=4),
        topk("c", at=5),
        topk("d", at=9, until=10),
        topk("e", at=30, until=31),
        gone("a", 5),
        topk("a", at=17),
        topk("d", at=16),
    ]
    path = write(tmp_path / "s.jsonl", *rows)
    emitted = []

    class Context:
        resumes = False

        def emit(self, stream, payload):
            emitted.append((stream, payload))

        def count(self, name, amount=1):
            pass

    spout = copy.deepcopy(SubscriptionSpout([path], WORDS, EARTH, tmp_path / "rejected.jsonl"))
    spout.open(Context())
    ticks = [Tick(0, 0, -1), Tick(1, 0, 4), Tick(2, 5, 9), Tick(3, 10, 9), Tick(4, 10, 14), Tick(5, 15, 17)]
    assert [spout.next_batch(tick.number, tick) for tick in ticks] == ticks
    assert [stream for stream, _ in emitted] == ["changes"] * 6
    lists = [
        (
            c.batch,
            c.names.strings(),
            c.added.number.tolist(),
            c.removed.number.tolist(),
            [] if c.follows is None else c.follows.tolist(),
        )
        for _, c in emitted
    ]
    assert lists == [
        (0, [], [], [], []),
        (1, ["a", "b"], [0, 1], [], [-1, -1]),
        (2, ["c", "d"], [2, 3], [0], [-1, -1]),
        (3, [], [], [], []),
        (4, [], [], [3], []),
        (5, ["d", "a"], [4, 5], [], [3, 0]),
    ]
    assert spout.report()["not_reached"] == {"added": 1, "removed": 1}
    spout.close()


def test_spout_subscriptions_stemming_vocabulary_survives_the_way_to_its_task(tmp_path):
    words = Vocabulary.of_counts([{"run": 1}], stem_language="english", folds_accents=True)
    path = write(tmp_path / "s.jsonl", topk("a", keywords="rúnning"))
    spout = copy.deepcopy(SubscriptionSpout([path], words, EARTH))  # by its state, as pickle does
    assert len(load_changes([path], spout.vocabulary, EARTH)) == 1


BAD = [
    ("{", "not_json"),
    ("[1, 2]", "not_json"),
    ('{"k": NaN}', "number_not_finite"),
    (topk(""), "missing_id"),
    (topk(None), "missing_id"),
    (topk("x", kind="nearest"), "unknown_kind"),
    (topk("x", keywords="?!"), "no_keyword"),
    (topk("x", keywords="unheard"), "no_known_keyword"),
    (topk("x", k=0), "bad_k"),
    (topk("x", alpha=1.5), "bad_alpha"),
    (topk("x", lon=181), "coordinate_out_of_range"),
    (topk("x", at=5, until=5), "bad_span"),
    (topk("x", at=-1), "bad_span"),
    (topk("x", keyword=3), "unknown_column"),
    (boolean("x", region=[1, 2, 3]), "bad_region"),
    (gone("", 3), "bad_id"),
    (gone(["x"], 3), "bad_id"),
    (gone("x", -3), "bad_span"),
    (gone("x", 1.5), "bad_span"),
    (gone("good 0") | {"kind": "topk"}, "unknown_column"),
]


def test_spout_subscriptions_bad_rows_are_told_and_good_ones_beside_them_load(tmp_path):
    rows = []
    for i, (row, _) in enumerate(BAD):
        rows += [row, topk(f"good {i}"), ""]
    changes = load(tmp_path, *rows)
    assert changes.names.strings() == [f"good {i}" for i in range(len(BAD))]
    told = rejected(tmp_path)
    assert [(r["line"], r["reason"]) for r in told] == [(3 * i + 1, reason) for i, (_, reason) in enumerate(BAD)]
    assert all(r["what"] and r["file"].endswith("subscriptions.jsonl") for r in told)
    assert changes.report()["rejected"] == len(BAD) == sum(changes.rejected_by_reason.values())
    load(tmp_path, topk("a"))
    assert not (tmp_path / "rejected.jsonl").exists()


def test_spout_subscriptions_foreign_rejected_text_is_quoted_short(tmp_path):
    load(tmp_path, topk("x", keywords=["unheard" * 100], kind="topk"))
    assert len(rejected(tmp_path)[0]["row"]) == 200


def test_spout_subscriptions_every_packing_gives_the_same(tmp_path):
    rows = [
        topk("a"),
        boolean("b", region=[3.0, -1.0, 2.0, 1.0]),
        topk("a", at=3),
        gone("b", 7),
        topk("é", at=9, until=12),
    ]
    plain = write(tmp_path / "plain.jsonl", *rows).read_bytes()
    half = len(plain) // 2
    packed = {
        "plain": plain,
        "mark": b"\xef\xbb\xbf" + plain,
        "dos": plain.replace(b"\n", b"\r\n"),
        "no end": plain.rstrip(b"\n"),
        "gzip": gzip.compress(plain),
        "two gzips": gzip.compress(plain[:half]) + gzip.compress(plain[half:]),
        "zstd": zstandard.compress(plain),
        "two frames": zstandard.compress(plain[:half]) + zstandard.compress(plain[half:]),
    }
    expected = load_changes([tmp_path / "plain.jsonl"], WORDS, EARTH)
    assert len(expected) == 4
    columns = sorted({name for row in rows for name in row} - {"keywords"})
    lists = [
        row | {"keywords": [row["keywords"]] if isinstance(row.get("keywords"), str) else row.get("keywords")}
        for row in rows
    ]
    table = pa.Table.from_pylist([{name: row.get(name) for name in [*columns, "keywords"]} for row in lists])
    pq.write_table(table, tmp_path / "parquet")
    for name, data in packed.items():
        (tmp_path / name).write_bytes(data)
    for name in [*packed, "parquet"]:
        changes = load_changes([tmp_path / name], WORDS, EARTH)
        assert changes.report() == expected.report(), name
        assert spans(changes) == spans(expected), name
        for column, other in zip(changes.table, expected.table, strict=True):
            np.testing.assert_array_equal(column, other, err_msg=name)


def test_spout_subscriptions_text_of_a_table_that_is_not_utf8_spoils_one_row(tmp_path):
    rows = [topk(name) | {"region": None, "match": None} for name in "abcdefg"]
    table = pa.Table.from_pylist(rows)
    names = pa.array([b"\xff" if row["subscription_id"] in "ad" else row["subscription_id"].encode() for row in rows])
    place = table.column_names.index("subscription_id")
    pq.write_table(table.set_column(place, "subscription_id", names.view(pa.string())), tmp_path / "parquet")
    changes = load_changes([tmp_path / "parquet"], WORDS, EARTH, tmp_path / "rejected.jsonl")
    assert changes.names.strings() == list("bcefg")
    assert [(row["line"], row["reason"]) for row in rejected(tmp_path)] == [(1, "bad_utf8"), (4, "bad_utf8")]


def test_spout_subscriptions_a_column_of_dates_beyond_the_range_costs_no_subscription(tmp_path):
    table = pa.Table.from_pylist([topk("a"), topk("b")])
    pq.write_table(table.append_column("made", pa.array([2**58, 0], pa.timestamp("us"))), tmp_path / "parquet")
    changes = load_changes([tmp_path / "parquet"], WORDS, EARTH, tmp_path / "rejected.jsonl")
    assert changes.names.strings() == ["a", "b"] and not rejected(tmp_path)


def test_spout_subscriptions_several_files_are_one_list(tmp_path):
    paths = [write(tmp_path / "1", topk("a"), topk("b")), write(tmp_path / "2", topk("a", k=9), "junk")]
    changes = load_changes(paths, WORDS, EARTH, tmp_path / "rejected.jsonl")
    assert changes.names.strings() == ["b", "a"] and changes.table.k.tolist() == [3, 9]
    assert [(r["file"], r["line"]) for r in rejected(tmp_path)] == [(str(tmp_path / "2"), 2)]


def test_spout_subscriptions_unreadable_file_is_named(tmp_path):
    plain = json.dumps(topk("a")).encode() * 200
    pq.write_table(pa.table({"a": list(range(1000))}), tmp_path / "table")
    damaged = {
        "gzip": gzip.compress(plain)[:-9],
        "flipped": gzip.compress(plain)[:-8] + b"12345678",
        "zstd": zstandard.compress(plain)[:-9],
        "zstd start": zstandard.compress(plain) + b"\x28\xb5\x2f\xfd",
        "zstd junk": zstandard.compress(plain) + b"junk",
        "table": (tmp_path / "table").read_bytes()[:-9],
    }
    for name, data in damaged.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(InputError, match=str(path)):
            load_changes([path], WORDS, EARTH)
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(InputError, match=str(path)):
            load_changes([path], WORDS, EARTH)


def test_spout_subscriptions_unwritable_rejects_raise(tmp_path):
    path = write(tmp_path / "s.jsonl", *["junk"] * 3000)
    with pytest.raises(DeliveryError, match="rejected rows cannot be written"):
        load_changes([path], WORDS, EARTH, tmp_path / "no folder" / "rejected.jsonl")


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_spout_subscriptions_line_that_unpacks_to_more_than_allowed_is_rejected_alone(tmp_path, pack):
    good = json.dumps(topk("a")).encode()
    path = tmp_path / "bomb"
    path.write_bytes(pack(good + b"\n" + b"0" * (3 * MAX_LINE_BYTES) + b"\n" + good + b"\n"))
    assert path.stat().st_size < MAX_LINE_BYTES // 100
    rows = list(read_rows(path))
    assert [(line, row if isinstance(row, str) else row["subscription_id"]) for line, row in rows] == [
        (1, "a"),
        (2, "line_too_long"),
        (3, "a"),
    ]


def test_spout_subscriptions_lines_are_the_same_however_blocks_are_cut(monkeypatch):
    monkeypatch.setattr("spouts.lines.MAX_LINE_BYTES", 5)
    data = b"12345\n123456\n\n1234567890123\nab\n\n123456789"
    expected = [b"12345", None, b"", None, b"ab", b"", None]
    for size in range(1, len(data) + 1):
        blocks = (data[i : i + size] for i in range(0, len(data), size))
        assert list(read_lines(blocks)) == expected
    assert list(read_lines(iter([b"ab\n", b"", b"cd"]))) == [b"ab", b"cd"]
    assert list(read_lines(iter([]))) == []


def write_vocabulary(directory, **changes):
    columns = {
        "term_id": pa.array([0, 1, 2], pa.int32()),
        "term": ["bar", "soup", "ramen"],
        "document_frequency": [1, 1, 3],
        "collection_count": [1, 2, 5],
        "idf": WORDS.idf,
    }
    directory.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns | changes), directory / "vocabulary.parquet")
    manifest = {
        "format_version": 1,
        "tokeniser": tokeniser_number(),
        "kept": 3,
        "total_tokens": 8,
        "stop_terms": ["the"],
        "options": {"stem_language": "english", "fold_accents": True},
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))


def test_spout_subscriptions_vocabulary_is_loaded_with_what_the_manifest_says(tmp_path):
    write_vocabulary(tmp_path)
    words = load_vocabulary(tmp_path)
    assert words.terms == WORDS.terms and words.messages == 3 and words.total_tokens == 8
    assert words.stop_terms == {"the"} and words.keyword_terms("Soùps") == ["soup"]
    np.testing.assert_array_equal(words.idf, WORDS.idf)


def test_spout_subscriptions_damaged_vocabulary_is_named(tmp_path):
    write_vocabulary(tmp_path / "order", term_id=pa.array([0, 2, 1], pa.int32()))
    write_vocabulary(tmp_path / "twice", term=["bar", "bar", "ramen"])
    write_vocabulary(tmp_path / "junk")
    (tmp_path / "junk" / "vocabulary.parquet").write_bytes(b"junk")
    write_vocabulary(tmp_path / "no file")
    (tmp_path / "no file" / "vocabulary.parquet").unlink()
    write_vocabulary(tmp_path / "no counts")
    (tmp_path / "no counts" / "manifest.json").write_text(json.dumps({"tokeniser": tokeniser_number()}))
    (tmp_path / "no manifest").mkdir()
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(EngineError, match=path.name if path.name != "twice" else "occurs twice"):
            load_vocabulary(path)


def test_load_changes_of_a_kind_without_an_engine_is_rejected_not_forgotten(tmp_path):
    near = {"keywords": "ramen", "lon": 1.0, "lat": 2.0, "k": 3}
    rows = (
        {"subscription_id": "a", "kind": "idle", **near},
        {"subscription_id": "b", "kind": "topk", "alpha": 0.5, **near},
        {"subscription_id": "c", "kind": "knn", **near},
    )
    changes = load(tmp_path, *rows, kinds=KINDS.plus(Kind(len(KINDS), "idle", "point", fields=("k",))))
    assert changes.names.strings() == ["b", "c"] and changes.rejected_by_reason == {"kind_without_engine": 1}


def test_load_changes_of_skyline_is_taken_and_only_across_the_antimeridian_refused(tmp_path):
    skyline = {"kind": "skyline", "keywords": ["ramen", "zebra"]}
    rows = (
        {"subscription_id": "a", "region": [1, 2, 3, 4], **skyline},
        {"subscription_id": "b", "region": [179, 2, -179, 4], **skyline},
        {"subscription_id": "c", "region": [1, 2, 1, 4], **skyline},
        {"subscription_id": "d", "region": [1, 2, 3, 4], "match": "all", **skyline},
        {"subscription_id": "e", "region": [1, 2, 3, 4], "match": "some", **skyline},
    )
    changes = load(tmp_path, *rows)
    assert changes.names.strings() == ["a", "c", "d"]
    assert changes.rejected_by_reason == {"crosses_antimeridian": 1, "bad_match": 1}
    assert changes.counts["unknown_keywords"] == 3 and changes.counts["cannot_match"] == 1
    assert np.diff(changes.table.term_offsets).tolist() == [1, 1, 1], "the word that no message has is left out"


def test_load_changes_any_keyword_can_match_though_one_is_unknown(tmp_path):
    rows = (
        boolean("all", keywords=["ramen", "zebra"]),
        boolean("any", keywords=["ramen", "zebra"], match="any"),
        topk("one", keywords=["ramen", "zebra"]),
    )
    counts = load(tmp_path, *rows).counts
    assert (counts["accepted"], counts["unknown_keywords"], counts["cannot_match"]) == (3, 3, 1)


#: A kind that runs as another one does, and one that does not run.
MORE = KINDS.plus(
    Kind(5, "beacon", "point", KINDS.named("topk").operator, all_keywords=True, fields=("k",)),
    Kind(6, "zone", "region"),
)


def test_load_changes_takes_rows_of_kinds_handed_in_where_they_run(tmp_path):
    beacon = {"subscription_id": "a", "kind": "beacon", "keywords": "ramen zebra", "lon": 1.0, "lat": 2.0, "k": 3}
    zone = {"subscription_id": "b", "kind": "zone", "keywords": "ramen", "region": [0, 0, 1, 1]}
    path = write(tmp_path / "s.jsonl", beacon, zone, topk("c"), zone | {"kind": "ring"}, topk("d", k=0))
    changes = load_changes([path], WORDS, EARTH, tmp_path / "rejected.jsonl", MORE)
    assert changes.names.strings() == ["a", "c"] and changes.table.kind.tolist() == [5, TOPK]
    assert changes.report()["by_kind"] == dict(zip(MORE.names, [0, 1, 0, 0, 0, 1, 0], strict=True))
    assert changes.counts["cannot_match"] == 1
    told = {row["reason"]: row["what"] for row in rejected(tmp_path)}
    assert told.keys() == {"kind_without_engine", "unknown_kind", "bad_k"}
    assert told["unknown_kind"].endswith("skyline, beacon, zone)") and "knn and beacon need one" in told["bad_k"]
    assert load_changes([path], WORDS, EARTH).rejected_by_reason == {"bad_k": 1, "unknown_kind": 3}


def test_spout_subscriptions_of_kinds_handed_in_are_those_of_the_table_it_was_given(tmp_path):
    beacon = {"subscription_id": "a", "kind": "beacon", "keywords": "ramen", "lon": 1.0, "lat": 2.0, "k": 3}
    spout = pickle.loads(pickle.dumps(SubscriptionSpout([write(tmp_path / "s", beacon)], WORDS, EARTH, kinds=MORE)))  # noqa: S301

    class Context:
        resumes = False

        def emit(self, stream, payload):
            self.sent = payload

        def count(self, name, amount=1):
            pass

    context = Context()
    spout.open(context)
    spout.next_batch(0, Tick(0, 0, 9))
    assert context.sent.added.kind.tolist() == [5] and spout.report()["by_kind"]["beacon"] == 1
