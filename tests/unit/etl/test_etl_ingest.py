"""Finding and reading raw files, without Spark."""

import gzip
import io
import json
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from matching.errors import ConfigError, InputError
from matching.reasons import MAX_LINE_BYTES
from matching.validate import RawMessage
from spark_etl import ingest, separated
from spark_etl.clean import CLEAN_SCHEMA, LINE_BITS, clean_split, reject_line
from spark_etl.finding import look
from spark_etl.ingest import Split, check_columns, plan_tasks, read_blocks
from spark_etl.options import EtlOptions
from spark_etl.rows import MAX_ORIGINAL_CHARACTERS, readable
from spark_etl.separated import line_blocks
from spark_etl.sources import find_sources
from spark_etl.trial import try_rows

LINES = [json.dumps({"id": f"m{n}", "text": f"word{n}", "lat": n % 90, "lon": n % 180}).encode() for n in range(500)]


def in_small_blocks(data):
    """zstd as whoever writes a stream flushes it, so that something can be read of what is cut off."""
    packer = zstandard.ZstdCompressor().compressobj()
    parts = [
        packer.compress(data[at : at + 500]) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        for at in range(0, len(data), 500)
    ]
    return b"".join(parts) + packer.flush()


def options(*inputs, **more):
    return EtlOptions(inputs=tuple(map(str, inputs)), out="unused", **more)


def rows_of(path, **more):
    given = options(path, **more)
    (source,) = find_sources(given)
    return [row for block in read_blocks(Split(source, 0, 1), given) for row in block]


def text_of(row):
    return row.values if isinstance(row.values, str) else row.values.text


def values(rows):
    return [(row.line, text_of(row)) for row in rows]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(separated, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(ingest, "BLOCK_ROWS", 7)


def test_line_blocks_any_cut_joins_to_the_stream(small_blocks):
    for data in (b"", b"\n", b"a", b"a\n", b"\n\n", b"\n".join(LINES), b"\n".join(LINES) + b"\n", b"x" * 999 + b"\ny"):
        blocks = list(line_blocks(io.BytesIO(data)))
        assert b"".join(block or b"" for _, block in blocks) == data
        line = 1
        for first_line, block in blocks:
            assert first_line == line and block
            line += block.count(b"\n")


def test_line_blocks_endless_line_is_named_and_the_next_is_found(small_blocks, monkeypatch):
    monkeypatch.setattr(separated, "MAX_LINE_BYTES", 5000)
    data = b"good\n" + b"x" * 50_000 + b"\nalso good\n" + b"y" * 50_000
    blocks = list(line_blocks(io.BytesIO(data)))
    assert [line for line, block in blocks if block is None] == [2, 4]
    assert b"".join(block for _, block in blocks if block).split() == [b"good", b"also", b"good"]


def test_read_blocks_shares_give_every_row_once(tmp_path, small_blocks):
    path = tmp_path / "raw.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join(LINES)))
    given = options(path)
    (source,) = find_sources(given)
    whole = [row for block in read_blocks(Split(source, 0, 1), given) for row in block]
    shared = [row for part in range(3) for block in read_blocks(Split(source, part, 3), given) for row in block]
    assert [row.line for row in whole] == list(range(1, 501))
    assert sorted(shared, key=lambda row: row.line) == whole
    assert all(any(read_blocks(Split(source, part, 3), given)) for part in range(3))


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.compress], ids=["plain", "gzip", "zstd"])
def test_read_blocks_compression_is_found_from_the_bytes(tmp_path, compress):
    path = tmp_path / "raw.jsonl"
    path.write_bytes(compress(b"\xef\xbb\xbf" + b"\r\n".join(LINES[:3])))
    assert values(rows_of(path)) == [(1, "word0"), (2, "word1"), (3, "word2")]


def test_read_blocks_two_zstd_frames_are_both_read(tmp_path):
    path = tmp_path / "raw.jsonl.zst"
    path.write_bytes(zstandard.compress(LINES[0] + b"\n") + zstandard.compress(LINES[1]))
    assert values(rows_of(path)) == [(1, "word0"), (2, "word1")]


ZSTD = zstandard.ZstdDecompressor()
CSV_LINES = [b"id,text,lat,lon", *(f"m{n},word{n},{n % 90},{n % 180}".encode() for n in range(500))]


@pytest.mark.parametrize("cut", [20, 800, 1500])
@pytest.mark.parametrize(
    ("name", "lines", "pack", "unpack"),
    [
        ("raw.jsonl.gz", LINES, gzip.compress, lambda data: zlib.decompressobj(31).decompress(data)),
        ("raw.csv.gz", CSV_LINES, gzip.compress, lambda data: zlib.decompressobj(31).decompress(data)),
        ("raw.jsonl.zst", LINES, in_small_blocks, lambda data: ZSTD.decompressobj().decompress(data)),
    ],
)
def test_read_blocks_cut_off_file_gives_its_whole_rows_and_one_broken_file(
    tmp_path, small_blocks, name, lines, pack, unpack, cut
):
    path = tmp_path / name
    packed = pack(b"\n".join(lines))[:-cut]
    path.write_bytes(packed)
    whole = unpack(packed).count(b"\n") - (1 if lines is CSV_LINES else 0)
    assert 50 < whole < 500
    given = options(path)
    (source,) = find_sources(given)
    for parts in (1, 3):
        rows = [
            row for part in range(parts) for block in read_blocks(Split(source, part, parts), given) for row in block
        ]
        broken = [row for row in rows if row.line == 0]
        assert [row.values for row in broken] == ["broken_file"] and broken[0].original.startswith(f"{name}: damaged")
        texts = sorted((text_of(row) for row in rows if row.line), key=lambda text: int(text[4:]))
        assert texts == [f"word{n}" for n in range(whole)]


def test_read_blocks_skippable_zstd_frame_is_none_of_the_data(tmp_path):
    path = tmp_path / "raw.jsonl.zst"
    skippable = (0x184D2A50).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"xyz"
    path.write_bytes(zstandard.compress(LINES[0] + b"\n") + skippable + zstandard.compress(LINES[1]) + skippable)
    assert values(rows_of(path)) == [(1, "word0"), (2, "word1")]


@pytest.mark.parametrize("name", ["raw.geojson", "raw.json", "raw.jsonl.gz"])
@pytest.mark.parametrize("indent", [None, 2])
def test_read_blocks_one_json_document_gives_a_row_for_each_member(tmp_path, small_blocks, name, indent):
    features = [
        {"type": "Feature", "geometry": {"type": "Point", "coordinates": [n, 1.5]}, "properties": {"text": f"word{n}"}}
        for n in range(20)
    ]
    document = features if name == "raw.json" else {"type": "FeatureCollection", "features": features}
    data = json.dumps(document, indent=indent).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    place = {"lat_column": "geometry.coordinates.1", "lon_column": "geometry.coordinates.0"}
    rows = rows_of(path, text_column="properties.text", **place)
    assert values(rows) == [(n + 1, f"word{n}") for n in range(20)]
    places = [(row.values.lon, row.values.lat) for row in rows if isinstance(row.values, RawMessage)]
    assert places == [(n, 1.5) for n in range(20)]
    (tmp_path / "cut.json").write_bytes(data[: len(data) // 2])
    cut = rows_of(tmp_path / "cut.json", text_column="properties.text", **place)
    assert cut.pop().values == "broken_file" and 5 < len(cut) < 12
    assert values(cut) == [(n + 1, f"word{n}") for n in range(len(cut))]


def test_read_blocks_members_that_are_no_objects_are_rejected_one_by_one(tmp_path):
    path = tmp_path / "raw.json"
    path.write_text('[{"text": "one", "lat": 1, "lon": 1}, 7, null, [1], {"text": "two"}]')
    assert values(rows_of(path)) == [(1, "one"), (2, "not_json"), (3, "not_json"), (4, "not_json"), (5, "two")]


def test_read_blocks_columns_may_be_paths(tmp_path):
    row = {"user": {"says": "hi", "at": [{"lat": "1.5"}, {"lon": 2}]}, "a.b": "literal", "a": {"b": "path"}}
    (tmp_path / "raw.jsonl").write_text(json.dumps(row))
    pq.write_table(pa.Table.from_pylist([{"user": {"says": "hi"}, "a": {"b": "path"}}]), tmp_path / "raw.parquet")
    (found,) = rows_of(
        tmp_path / "raw.jsonl",
        text_column="user.says",
        lat_column="user.at.0.lat",
        lon_column="user.at.1.lon",
        id_column="a.b",
        time_column="user.at.7.lon",
    )
    assert found.values == RawMessage(text="hi", lat="1.5", lon=2, id="literal")
    (found,) = rows_of(tmp_path / "raw.parquet", text_column="user.says", id_column="a.b")
    assert found.values == RawMessage(text="hi", id="path")


def test_read_blocks_csv_keeps_quoted_newlines_and_finds_bad_rows(tmp_path, small_blocks):
    path = tmp_path / "raw.csv"
    path.write_bytes(
        b'id,text,lat,lon,note\n1,"two\nlines, one text",1.5,2,\n2,short,1\n\n3,"caf\xc3\xa9",1,2,x\n'
        b"4,bad \xff byte,1,2,x\n5,many,1,2,3,4\n6,last,1,2,\n"
    )
    assert values(rows_of(path)) == [
        (2, "two\nlines, one text"),
        (4, "bad_csv"),
        (5, "empty_line"),
        (6, "caf\u00e9"),
        (7, "bad \udcff byte"),
        (8, "bad_csv"),
        (9, "last"),
    ]


def test_read_blocks_csv_line_too_long_spoils_one_row(tmp_path, small_blocks, monkeypatch):
    monkeypatch.setattr(separated, "MAX_LINE_BYTES", 5000)
    path = tmp_path / "raw.csv"
    path.write_bytes(b"text,lat,lon\ngood,1,2\n" + b"x" * 50_000 + b"\nfine,1,2\n")
    assert values(rows_of(path)) == [(2, "good"), (3, "line_too_long"), (4, "fine")]


def test_read_blocks_csv_unclosed_quote_ends_in_a_bad_row(tmp_path, monkeypatch):
    monkeypatch.setattr(separated, "MAX_LINE_BYTES", 5000)
    path = tmp_path / "raw.csv"
    path.write_bytes(b'text,lat,lon\ngood,1,2\n"open,1,2\n' + b"later,1,2\n" * 2000)
    found = values(rows_of(path))
    assert found[0] == (2, "good") and "bad_csv" in dict(found).values()
    assert found[-1] == (2003, "later")


def test_read_blocks_tsv_has_tabs(tmp_path):
    path = tmp_path / "raw.tsv"
    path.write_text("text\tlat\tlon\na, b\t1\t2\n")
    assert values(rows_of(path)) == [(2, "a, b")]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "shift_jis"])
@pytest.mark.parametrize("form", ["jsonl", "csv", "json"])
def test_read_blocks_other_encodings_give_the_rows_of_utf8(tmp_path, small_blocks, encoding, form):
    texts = ["ラーメン屋"] * 50 if encoding == "shift_jis" else ["café à la carte"] * 50
    rows = [{"text": text, "lat": 1, "lon": number} for number, text in enumerate(texts)]
    written = {
        "jsonl": "\n".join(json.dumps(row, ensure_ascii=False) for row in rows),
        "json": json.dumps(rows, ensure_ascii=False),
        "csv": "text,lat,lon\n" + "\n".join(f"{row['text']},1,{row['lon']}" for row in rows),
    }[form]
    path = tmp_path / f"raw.{form}"
    path.write_bytes(written.encode(encoding))
    found = [row.values[:3] for row in rows_of(path, encoding=encoding)]
    assert [(text, float(lon)) for text, _, lon in found] == list(zip(texts, range(50), strict=True))


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_clean_share_bytes_that_no_encoding_has_spoil_one_row(tmp_path, form):
    good, bad = "ラーメン".encode("shift_jis"), b"\x85\xff\xfe"
    if form == "csv":
        data = b"text,lat,lon\n" + b"".join(text + b",1,2\n" for text in (good, bad, good))
    else:
        data = b"".join(b'{"text": "' + text + b'", "lat": 1, "lon": 2}\n' for text in (good, bad, good))
    path = tmp_path / f"raw.{form}"
    path.write_bytes(data)
    given = options(path, encoding="shift_jis")
    (source,) = find_sources(given)
    rows = [row for batch in clean_split(Split(source, 0, 1), given) for row in batch.to_pylist()]
    assert [row["reason"] for row in rows] == [None, "bad_utf8", None] and rows[2]["text"] == "ラーメン"


def test_clean_share_decimal_commas_are_coordinates(tmp_path):
    (tmp_path / "a.csv").write_text("text;lat;lon\nhere;52,52;-13,405\nnowhere;1.234,5;2\n")
    (tmp_path / "b.jsonl").write_text('{"text": "here", "lat": "52,52", "lon": "-13,405"}\n')
    given = options(tmp_path, csv_delimiter=";")
    sources = find_sources(given)
    rows = [row for one in sources for batch in clean_split(Split(one, 0, 1), given) for row in batch.to_pylist()]
    assert [(row["lat"], row["lon"]) for row in (rows[0], rows[2])] == [(52.52, -13.405)] * 2
    assert rows[1]["reason"] == "coordinate_not_number"


def test_read_blocks_parquet_reads_only_what_it_needs(tmp_path, small_blocks):
    path = tmp_path / "raw.parquet"
    table = {
        "text": [f"t{n}" for n in range(20)],
        "lat": [1.5] * 20,
        "lon": [2] * 20,
        "id": list(range(20)),
        "x": [[1]] * 20,
    }
    pq.write_table(pa.table(table), path)
    rows = rows_of(path)
    assert [row.line for row in rows] == list(range(1, 21))
    assert rows[7].values == RawMessage(text="t7", lat=1.5, lon=2, id=7)


def test_read_blocks_parquet_bad_utf8_spoils_one_row(tmp_path):
    path = tmp_path / "raw.parquet"
    text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"ok\xff\xfe")]
    )
    pq.write_table(pa.table({"text": text, "lat": [1.0, 1.0], "lon": [1.0, 1.0]}), path)
    assert values(rows_of(path)) == [(1, "ok"), (2, "bad_utf8")]
    table = {"post": pa.StructArray.from_arrays([text], ["text"]), "lat": [1.0, 1.0], "lon": [1.0, 1.0]}
    pq.write_table(pa.table(table), path)
    assert values(rows_of(path, text_column="post.text")) == [(1, "ok"), (2, "bad_utf8")]


@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo", "W. Europe Standard Time"])
@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_clean_share_parquet_times_beyond_the_range_cost_the_time_and_not_the_file(tmp_path, unit, zone):
    good, far = 1_539_202_764 * {"ms": 10**3, "us": 10**6, "ns": 10**9}[unit], 2**58
    unused = pa.array([4_000_000] * 3, pa.int32()).view(pa.date32())
    table = {"text": ["a", "b", "c"], "lat": [1.0] * 3, "lon": [2.0] * 3, "unused": unused}
    table["time"] = pa.array([good, far, good], pa.timestamp(unit, zone))
    pq.write_table(pa.table(table), tmp_path / "raw.parquet")
    given = options(tmp_path / "raw.parquet")
    (source,) = find_sources(given)
    assert list(look(source, given).seen) == ["text", "lat", "lon", "unused", "time"]
    rows = [row for batch in clean_split(Split(source, 0, 1), given) for row in batch.to_pylist()]
    times = [row["event_time_us"] for row in rows]
    assert [row["text"] for row in rows] == ["a", "b", "c"]
    assert times[0] == times[2] == 1_539_202_764 * 10**6
    if unit != "ns":  # 2**58 of them are a time
        assert times[1] is None and rows[1]["bad_time"]


def test_read_blocks_damaged_parquet_gives_broken_file(tmp_path):
    path = tmp_path / "raw.parquet"
    path.write_bytes(b"PAR1" + b"\0" * 100)
    assert [row.values for row in rows_of(path)] == ["broken_file"]
    with pytest.raises(InputError, match="raw.parquet"):
        check_columns(find_sources(options(path)), options(path))


def test_clean_share_rows_have_reason_or_message(tmp_path):
    path = tmp_path / "raw.jsonl"
    path.write_bytes(LINES[0] + b'\n{"text": "\xff"}\n\n' + b'{"text": "a b a", "lat": "1", "lon": "2", "time": 0}')
    given = options(path)
    (source,) = find_sources(given)
    batches = list(clean_split(Split(source, 0, 1), given))
    assert all(batch.schema == CLEAN_SCHEMA for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["row_id"] for row in rows] == [1, 2, 3, 4]
    assert [row["reason"] for row in rows] == [None, "bad_utf8", "empty_line", None]
    assert rows[1]["original"] == '{"text": "\\xff"}' and rows[1]["message_id"] is None
    assert (rows[3]["terms"], rows[3]["counts"], rows[3]["event_time_us"]) == (["a", "b"], [2, 1], 0)


def test_reject_line_names_file_line_and_reason(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(LINES[0])
    sources = find_sources(options(tmp_path))
    line = reject_line(sources, 1 << LINE_BITS | 7, "bad_time", 'a "row"', '{"column": "time", "value": "soon"}')
    named = {"reason": "bad_time", "column": "time", "value": "soon"}
    assert json.loads(line) == named | {"file": "b.jsonl", "line": 7, "row": 'a "row"'}


def test_readable_any_bytes_become_short_utf8():
    assert readable(b"\xff\x00ok") == "\\xff\x00ok"
    assert readable("half \ud800") == "half \\ud800"
    assert len(readable(b"x" * MAX_LINE_BYTES)) == MAX_ORIGINAL_CHARACTERS


def test_find_sources_folder_pattern_and_file_come_in_order_once(tmp_path):
    for name in ("z.jsonl", "a.csv", "deep/er.parquet", ".hidden.jsonl", "_temporary/x.jsonl", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"PAR1" if "parquet" in name else b"{}")
    found = find_sources(options(tmp_path / "z.jsonl", tmp_path, tmp_path / "*.csv"))
    assert [source.name for source in found] == ["z.jsonl", "a.csv", "deep/er.parquet"]
    assert [source.number for source in found] == [0, 1, 2]
    assert [source.file_format for source in found] == ["jsonl", "csv", "parquet"]


def test_find_sources_unknown_name_goes_by_the_first_byte(tmp_path):
    (tmp_path / "raw.log").write_bytes(b'\xef\xbb\xbf {"text": 1}')
    (tmp_path / "raw.dat").write_bytes(b"1;2;3")
    assert find_sources(options(tmp_path / "raw.log"))[0].file_format == "jsonl"
    with pytest.raises(ConfigError, match="raw.dat.*format"):
        find_sources(options(tmp_path / "raw.dat"))
    assert find_sources(options(tmp_path / "raw.dat", input_format="csv"))[0].file_format == "csv"


def test_find_sources_nothing_there_says_what_was_looked_for(tmp_path):
    with pytest.raises(InputError, match="missing.jsonl: no such file"):
        find_sources(options(tmp_path / "missing.jsonl"))
    with pytest.raises(InputError, match="no file in this folder"):
        find_sources(options(tmp_path))


@pytest.mark.parametrize("name", ["raw.csv", "raw.parquet"])
def test_check_columns_missing_column_names_what_there_is(tmp_path, name):
    path = tmp_path / name
    if name == "raw.csv":
        path.write_text("body,lat,lon\nx,1,2\n")
    else:
        pq.write_table(pa.table({"body": ["x"], "lat": [1.0], "lon": [2.0]}), path)
    with pytest.raises(InputError, match="no column text; it has body, lat, lon"):
        check_columns(find_sources(options(path)), options(path))
    check_columns(find_sources(options(path)), options(path, text_column="body"))


def test_plan_tasks_large_files_are_shared_and_small_ones_grouped(tmp_path):
    (tmp_path / "large.jsonl").write_bytes(b"\n" * (5 * ingest.TASK_BYTES))
    for number in range(20):
        (tmp_path / f"small{number:02}.jsonl").write_bytes(LINES[0])
    tasks = plan_tasks(find_sources(options(tmp_path)), 4)
    shares = [share for task in tasks for share in task]
    assert [(share.part, share.parts) for share in shares if share.source.name == "large.jsonl"] == [
        (p, 4) for p in range(4)
    ]
    assert sorted({share.source.number for share in shares}) == list(range(21))
    assert len(shares) == 24 and len(tasks) == 5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inputs": ()}, "inputs"),
        ({"inputs": "one.jsonl"}, "inputs"),
        ({"out": ""}, "out"),
        ({"input_format": "xml"}, "xml"),
        ({"csv_delimiter": ",,"}, "delimiter"),
        ({"stop_share": 0}, "stop share"),
        ({"stop_share": float("nan")}, "stop share"),
        ({"rows_per_file": 0}, "rows per file"),
        ({"stem_language": "klingon"}, "klingon"),
        ({"encoding": "latin-99"}, "encoding 'latin-99'"),
        ({"encoding": "base64"}, "encoding 'base64'"),
        ({"world": "1,2"}, "world"),
        ({"time_format": "%d/%Q"}, "time format"),
        ({"time_format": "days"}, "time format"),
        ({"inputs": ("-", "one.jsonl")}, "standard input"),
    ],
    ids=str,
)
def test_options_bad_setting_is_named(changes, said):
    with pytest.raises(ConfigError, match=said):
        EtlOptions(**{"inputs": ("raw.jsonl",), "out": "out"} | changes).check()


CSV = ["id,text,lat,lon", "1,ramen,35.5,139.5", '2,"two\nlines",1,2', "3,last,1,2"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress], ids=["plain", "gzip", "zstd"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("above", ["", "sep=;", '"sep=\t"', "Sep=|", "sep=;;;"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_read_blocks_csv_of_any_line_end_and_separator_is_read(tmp_path, small_blocks, pack, end, above, encoding):
    mark = above.strip('"')[-1:] or ","
    rows = [row.replace(",", mark) for row in CSV]
    if end == "\r":
        rows[2] = rows[2].replace("\n", "\r")
    data = end.join([*([above] if above else []), *rows, ""])
    path = tmp_path / "raw.csv"
    path.write_bytes(pack(data.encode(encoding)))
    first = 2 + bool(above)
    given = {} if encoding.startswith("utf-8") else {"encoding": encoding}
    assert values(rows_of(path, **given)) == [(first, "ramen"), (first + 1, "two\nlines"), (first + 3, "last")]
    named = options(path, **given)
    there = look(find_sources(named)[0], named)
    assert there.names == ["id", "text", "lat", "lon"] and there.rows == 3
    assert there.seen["text"] == (3, "ramen")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("above", [[""], ["", " \t", ""], ["", "sep=,"]], ids=["one", "several", "separator"])
def test_read_blocks_csv_blank_lines_above_the_header_are_passed_over(tmp_path, small_blocks, end, above):
    path = tmp_path / "raw.csv"
    path.write_bytes(end.join([*above, *CSV, ""]).encode("utf-8-sig"))
    first = len(above) + 2
    assert values(rows_of(path)) == [(first, "ramen"), (first + 1, "two\nlines"), (first + 3, "last")]


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.geojson", "a.jsonl"])
@pytest.mark.parametrize(
    "content", [b"", b"\n", b"[]", b'{"features": [], "type": "FeatureCollection"}', b"\x1f\x8b\x08"]
)
def test_try_rows_a_file_without_rows_takes_none_from_the_others(tmp_path, name, content):
    if name == "a.csv" and content[:1] in (b"[", b"{"):
        pytest.skip("no CSV")
    (tmp_path / name).write_bytes(content)
    (tmp_path / "b.csv").write_text("\n".join(CSV))
    found = try_rows(EtlOptions((str(tmp_path),), text_column="text", lat_column="lat", lon_column="lon"), 10)
    empty = {"broken_file": 1} if content[:1] == b"\x1f" else {"empty_line": 1} if content and name != "a.csv" else {}
    assert found["kept"] == 3 and found["rejected_by_reason"] == (empty if content[:1] not in b"[{" else {})


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["raw.csv", "raw.jsonl", "raw.json"])
def test_try_rows_text_of_two_bytes_a_letter_is_told_to_say_its_encoding(tmp_path, name, encoding):
    row = '{"text": "ramen", "lat": 1, "lon": 2}'
    content = {"raw.csv": "\n".join(CSV), "raw.jsonl": row + "\n" + row, "raw.json": f"[{row},{row}]"}[name]
    (tmp_path / name).write_bytes(content.encode(encoding))
    with pytest.raises(InputError, match=r"To mend it, say how the text is encoded with --encoding, such as utf-16$"):
        try_rows(EtlOptions((str(tmp_path / name),)), 10)
    assert try_rows(EtlOptions((str(tmp_path / name),), encoding=encoding), 10)["kept"]


def test_read_blocks_csv_a_lone_carriage_return_in_a_row_spoils_it(tmp_path):
    path = tmp_path / "raw.csv"
    path.write_bytes(b"text,lat,lon\r\none,1,2\r\ntw\ro,1,2\r\nthree,1,2\r\n")
    assert values(rows_of(path)) == [(2, "one"), (3, "bad_csv"), (4, "three")]


def test_read_blocks_csv_below_a_separator_has_line_numbers_of_the_file(tmp_path, small_blocks, monkeypatch):
    monkeypatch.setattr(separated, "MAX_LINE_BYTES", 5000)
    path = tmp_path / "raw.csv"
    path.write_bytes(b"sep=;\ntext;lat;lon\ngood;1;2\n" + b"x" * 50_000 + b"\n\nshort;1\nfine;1;2\n")
    found = [(3, "good"), (4, "line_too_long"), (5, "empty_line"), (6, "bad_csv"), (7, "fine")]
    assert values(rows_of(path)) == found


@pytest.mark.parametrize("name", ["raw.csv", "raw.parquet"])
@pytest.mark.parametrize(
    ("names", "more", "said"),
    [
        (["text", "text", "lat", "lon"], {}, "2 columns are called text"),
        (["text", "lon", "lat", "lon"], {}, "2 columns are called lon"),
        (["text", "lat", "lon", "id", "id", "id"], {}, "3 columns are called id"),
        (["text", "lat", "lon", "price", "price"], {"attribute": ("price:number",)}, "called price"),
        (["text", "place", "place"], {"geometry": "place"}, "called place"),
        (["text", "lat", "lon", "note", "note", "", ""], {}, None),
    ],
    ids=str,
)
def test_check_columns_two_of_one_name_are_refused_if_one_is_needed(tmp_path, name, names, more, said):
    path = tmp_path / name
    if name == "raw.csv":
        path.write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    else:
        pq.write_table(pa.table([pa.array(["1"])] * len(names), names=names), path)
    given = options(path, **more)
    if said is None:
        check_columns(find_sources(given), given)
        return
    with pytest.raises(InputError, match=f"{name}: .*{said}") as refused:
        check_columns(find_sources(given), given)
    assert refused.value.reason_code == "ambiguous_column"
