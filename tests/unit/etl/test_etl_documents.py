"""JSON that is one document: which files are, how it is cut into rows, and that a bad row spoils itself alone."""

import gzip
import io
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from matching.validate import RawMessage
from spark_etl import documents
from spark_etl.documents import is_document, rows_of_document
from spark_etl.ingest import Split, read_blocks
from spark_etl.options import EtlOptions
from spark_etl.sources import find_sources

FEATURE = {
    "type": "Feature",
    "id": "a",
    "properties": {"text": "ramen"},
    "geometry": {"type": "Point", "coordinates": [139.69, 35.68]},
}
BACKWARDS = dict(reversed(FEATURE.items()))
BOM, SEPARATOR = b"\xef\xbb\xbf", b"\x1e"


def cut(data):
    """The rows of a document, and whether it ends before its end."""
    rows = []
    try:
        for row in rows_of_document(io.BytesIO(data)):
            rows.append(row)
    except EOFError:
        return rows, True
    return rows, False


def read(path, data, **given):
    path.write_bytes(data)
    options = EtlOptions((str(path),), **given)
    (source,) = find_sources(options)
    rows = [row for block in read_blocks(Split(source, 0, 1), options) for row in block]
    return source.file_format, [
        (row.line, row.values.text if isinstance(row.values, RawMessage) else row.values) for row in rows
    ]


ROWS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from('[{}],"\\'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(ROWS, max_size=5), st.sampled_from([None, 2]), st.booleans(), st.sampled_from([1, 2, 3, 7, 2**18]))
@settings(max_examples=100, deadline=None)
def test_rows_of_document_are_the_members_that_json_has(members, indent, collection, size):
    document = {"name": "x", "type": "FeatureCollection", "features": members, "more": members}
    data = json.dumps(document if collection else members, indent=indent).encode()
    before, documents._READ_BYTES = documents._READ_BYTES, size
    try:
        rows, cut_off = cut(data)
    finally:
        documents._READ_BYTES = before
    assert not cut_off and [repr(json.loads(row)) for row in rows] == [repr(member) for member in members]


@given(st.binary(max_size=30) | st.text('[{}],:"\\ \n\x1e1', max_size=30).map(str.encode), st.sampled_from([1, 2, 5]))
@settings(max_examples=150, deadline=None)
@example(b'{"features":[', 1)
@example(b'[{"a":"\\', 1)
def test_rows_of_document_any_bytes_are_cut_alike_whatever_is_read_at_a_time(data, size):
    expected = cut(data)
    before, documents._READ_BYTES = documents._READ_BYTES, size
    try:
        assert cut(data) == expected
    finally:
        documents._READ_BYTES = before
    is_document(data)


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b'[{"a":1},{"b":"\xff"},{"c":"\t"},{"d":NaN},]', [b'{"a":1}', b'{"b":"\xff"}', b'{"c":"\t"}', b'{"d":NaN}']),
        (b'{"a":\n1}\n\n{"b":2} {"c":3}', [b'{"a":\n1}', b'{"b":2}', b'{"c":3}']),
        (BOM + b'[{"a":1}]' + BOM + b'\n[{"b":2}]', [b'{"a":1}', b'{"b":2}']),
        (SEPARATOR + b'{"a":\n1}\n' + SEPARATOR + b'{"b":2}\n', [b'{"a":\n1}', b'{"b":2}']),
        (b'[{"a":1} {"b":2}, }, {"c":3}]]\n{"d":4}', [b'{"a":1} {"b":2}', b"}", b'{"c":3}', b"]", b'{"d":4}']),
        (b'{"features":[{"geometry":null}],"type":"FeatureCollection"}', [b'{"geometry":null}']),
        (b'{"features":[{"type":"Feature","a":NaN},{}],"type":1}', [b'{"type":"Feature","a":NaN}', b"{}"]),
        (b'{"features":[ ],"type":"FeatureCollection"}\n[]\n[{"a":1}]', [b'{"a":1}']),
        (b'{"features":[],"type":"Feature"}', [b'{"features":[],"type":"Feature"}']),
        (b'{"text":"x","features":["a"]}', [b'{"text":"x","features":["a"]}']),
        (b'{"type":"Feature","features":[{"geometry":1}]}', [b'{"type":"Feature","features":[{"geometry":1}]}']),
        (b'{"a":"\\"features\\":","b":[{"geometry":1}]}', [b'{"a":"\\"features\\":","b":[{"geometry":1}]}']),
        (b'{"a":{"features":[{"geometry":1}]}}', [b'{"a":{"features":[{"geometry":1}]}}']),
    ],
)
def test_rows_of_document_cuts(data, rows):
    assert cut(data) == (rows, False)


@pytest.mark.parametrize(
    "data", [b"[", b'[{"a":1}', b'[{"a":1},{"b":', b'{"a', b'{"type":"FeatureCollection","features":[]']
)
def test_rows_of_document_says_that_it_is_cut_off_after_the_whole_rows(data):
    rows, cut_off = cut(data)
    assert cut_off and rows in ([], [b'{"a":1}'])


@pytest.mark.parametrize(
    "bad", [b'"caf\xe9"', b'"a\tb"', b"1e400", b"NaN", b"[" * 5000 + b"]" * 5000, b"tru", b'"\\ud800"']
)
@pytest.mark.parametrize("name", ["raw.geojson", "raw.json", "raw.geojson.gz"])
def test_read_blocks_a_bad_row_of_a_document_has_the_reason_that_it_has_as_a_line(tmp_path, name, bad):
    row = b'{"id":"%b","text":"ramen %b","lat":1,"lon":2,"more":%b}'
    rows = [row % (b"a", b"a", b"1"), row % (b"b", b"b", bad), row % (b"c", b"c", b"%d" % 2**70)]
    _, lines = read(tmp_path / "raw.jsonl", b"\n".join(rows))
    assert [text for _, text in lines][::2] == ["ramen a", "ramen c"]
    data = b'{"type":"FeatureCollection","features":[%b]}' if "geo" in name else b"[%b]"
    data %= b",".join(rows)
    form, found = read(tmp_path / name, gzip.compress(data) if name.endswith("gz") else data)
    assert (form, found) == ("json", lines)


def test_read_blocks_a_row_of_a_document_that_is_too_long_spoils_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", 200_000)
    long = b'"' + b"x" * 2_000_000 + b'"'
    for row in (long, b'{"text": ' + long + b"}", b'{"text": [' + long + b', {"y": "]"}]}'):
        data = b'[{"text": "one"}, ' + row + b', {"text": "two"}]'
        assert read(tmp_path / "raw.json", data)[1] == [(1, "one"), (2, "line_too_long"), (3, "two")]


def test_read_blocks_blocks_of_a_document_are_bounded_in_bytes(tmp_path):
    (tmp_path / "raw.json").write_bytes(b"[" + b",".join([b'{"text":"%b"}' % (b"x" * 300_000)] * 20) + b"]")
    options = EtlOptions((str(tmp_path / "raw.json"),))
    (source,) = find_sources(options)
    assert max(len(block) for block in read_blocks(Split(source, 0, 1), options)) <= 4


LINE, OTHER = json.dumps(FEATURE).encode(), json.dumps(BACKWARDS).encode()


@pytest.mark.parametrize("begin", [b"", BOM, SEPARATOR, b" \n"], ids=["plain", "BOM", "RS", "blank"])
@pytest.mark.parametrize("name", ["raw.json", "raw.geojson", "raw.geojsonl", "raw.geojsonseq", "raw.unknown"])
@pytest.mark.parametrize(
    ("data", "form", "texts"),
    [
        (LINE + b"\n" + OTHER, "jsonl", 2),
        (OTHER.replace(b'"text"', b'"features": [], "text"') + b"\n" + LINE, "jsonl", 2),
        (json.dumps({"features": ["garage"], **FEATURE}).encode() + b"\n" + LINE, "jsonl", 2),
        (json.dumps({"type": "FeatureCollection", "features": [FEATURE, BACKWARDS]}).encode(), "json", 2),
        (json.dumps({"features": [BACKWARDS], "type": "FeatureCollection"}, indent=1).encode(), "json", 1),
        (json.dumps({"name": "x" * 9000, "bbox": [], "features": [FEATURE]}).encode(), "json", 1),
        (b"[" + LINE + b",\n" + OTHER + b"]", "json", 2),
    ],
    ids=["lines", "property features", "own features", "collection", "backwards", "late", "array"],
)
def test_find_sources_tells_lines_and_documents_apart_by_what_is_there(tmp_path, name, begin, data, form, texts):
    found, rows = read(tmp_path / name, begin + data, text_column="properties.text")
    assert (found, [text for _, text in rows if text != "empty_line"]) == (form, ["ramen"] * texts)


@pytest.mark.parametrize("begin", [b"", SEPARATOR], ids=["plain", "RS"])
@pytest.mark.parametrize("name", ["raw.json", "raw.geojson", "raw.geojsonseq"])
def test_find_sources_rows_over_several_lines_are_read(tmp_path, name, begin):
    data = b"".join(begin + json.dumps(one, indent=2).encode() + b"\n" for one in (FEATURE, BACKWARDS))
    assert read(tmp_path / name, data, text_column="properties.text")[1] == [(1, "ramen"), (2, "ramen")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r", b" \n"], ids=["LF", "CRLF", "CR", "blank"])
@pytest.mark.parametrize("name", ["raw.json", "raw.geojson"])
def test_find_sources_rows_over_several_lines_end_these_as_they_may(tmp_path, name, end):
    for data in (json.dumps(FEATURE, indent=1), json.dumps(FEATURE).replace(":", ":\n")):
        found = read(tmp_path / name, data.encode().replace(b"\n", end), text_column="properties.text")
        assert found[1] == [(1, "ramen")]


@pytest.mark.parametrize("first", [b"null", b'"x"', b"1", b"[]", b'{"a":NaN}'])
def test_find_sources_a_bad_first_member_of_an_array_in_one_line_spoils_itself(tmp_path, first):
    form, rows = read(
        tmp_path / "raw.json", b"[" + first + b"," + LINE + b"," + OTHER + b"]", text_column="properties.text"
    )
    assert form == "json" and [text for _, text in rows[1:]] == ["ramen", "ramen"]
    assert rows[0][1] in ("not_json", "number_not_finite")


@pytest.mark.parametrize("name", ["raw.json", "raw.geojson", "raw.jsonl"])
def test_read_blocks_a_first_line_that_breaks_off_spoils_itself(tmp_path, name):
    data = LINE[:-30] + b"\n" + LINE + b"\n" + OTHER
    assert read(tmp_path / name, data, text_column="properties.text")[1] == [
        (1, "not_json"),
        (2, "ramen"),
        (3, "ramen"),
    ]
