"""Columns found by their names: those of well-known data, and those somebody has to choose among."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from matching.errors import InputError
from spark_etl.finding import find_columns, look
from spark_etl.options import EtlOptions
from spark_etl.sources import find_sources

TWEET = {
    "created_at": "Wed Oct 10 20:19:24 +0000 2018",
    "id": 1,
    "id_str": "1",
    "text": "hi",
    "user": {"id": 7, "created_at": "Wed Oct 10 20:19:24 +0000 2008", "description": "me", "name": "n"},
    "coordinates": {"type": "Point", "coordinates": [-75.1, 40.1]},
    "geo": {"type": "Point", "coordinates": [40.1, -75.1]},
}
FEATURE = {
    "type": "Feature",
    "id": "f1",
    "geometry": {"type": "Point", "coordinates": [-75.1, 40.1, 0]},
    "properties": {"description": "hi", "ts": 1, "name": "n"},
}
POINT = {"lat": "geometry.coordinates.1", "lon": "geometry.coordinates.0"}


def found(path, **given):
    options = EtlOptions(inputs=(str(path),), **given)
    options, roles = find_columns(find_sources(options), options)
    return {role: name for role, name in options.columns().items() if role in roles}


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"text": "", "lat": 1, "lon": 1}, {"text": "text", "lat": "lat", "lon": "lon"}),
        (
            {"Tweet": "a", "Latitude": 1, "Lng": 1, "Created At": "x", "tweet-id": 1},
            {"text": "Tweet", "lat": "Latitude", "lon": "Lng", "time": "Created At", "id": "tweet-id"},
        ),
        ({"body": "a", "y": 1, "x": 1, "ts": 1, "note": 1}, {"text": "body", "lat": "y", "lon": "x", "time": "ts"}),
        # Its own name goes before other usual ones.
        ({"text": "a", "body": "b", "lat": 1, "y": 2, "lon": 1}, {"text": "text", "lat": "lat", "lon": "lon"}),
        (
            TWEET,
            {
                "text": "text",
                "lat": "coordinates.coordinates.1",
                "lon": "coordinates.coordinates.0",
                "time": "created_at",
                "id": "id",
            },
        ),
        (FEATURE, {"text": "properties.description", **POINT, "time": "properties.ts", "id": "id"}),
        (
            {"message": "a", "user": {"id": 7, "location": {"lat": 1, "lng": 2}}},
            {"text": "message", "lat": "user.location.lat", "lon": "user.location.lng"},
        ),
    ],
    ids=["own names", "written otherwise", "x and y", "own name first", "Twitter", "GeoJSON", "nested"],
)
def test_find_columns_usual_names(tmp_path, row, columns):
    # What a column of an empty text is called counts as well: the row beside it has one.
    expected = {role: name for role, name in columns.items()}
    assert found(lines(tmp_path / "raw.jsonl", row, {**row, "text": "x"} if "text" in row else row)) == expected
    if not any(isinstance(value, dict) for value in row.values()):
        (tmp_path / "raw.csv").write_text(",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n")
        assert found(tmp_path / "raw.csv") == expected
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "raw.parquet")
    assert found(tmp_path / "raw.parquet") == expected


def test_find_columns_feature_collection_is_looked_into(tmp_path):
    (tmp_path / "raw.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [FEATURE]}, indent=1))
    assert found(tmp_path / "raw.geojson")["lat"] == "geometry.coordinates.1"


def test_find_columns_what_is_given_is_not_looked_for(tmp_path):
    path = lines(tmp_path / "raw.jsonl", {"body": "a", "message": "b", "lat": 1, "lon": 2, "ts": 3, "date": 4})
    assert found(path, text_column="body", time_column="") == {"lat": "lat", "lon": "lon"}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"body": "a", "message": "b", "lat": 1, "lon": 2}], "--column text=body or --column text=message"),
        ([{"text": "a", "lat": 1, "lon": 2, "ts": 1, "date": 2}], "--column time=ts or --column time=date"),
        (
            [{"text": "a", "from": {"lat": 1, "lon": 1}, "to": {"lat": 1, "lon": 1}}],
            "--column lat=from.lat --column lon=from.lon; --column lat=to.lat --column lon=to.lon",
        ),
        (
            [{**TWEET, "coordinates": None}],
            r"--column lat=geo.coordinates.1 --column lon=geo.coordinates.0; "
            r"--column lat=geo.coordinates.0 --column lon=geo.coordinates.1 "
            r"\(a point called geo has the latitude first",
        ),
        ([{"text": "a", "tweet": {"geo": TWEET["geo"]}}], "--column lat=tweet.geo.coordinates.0"),
    ],
)
def test_find_columns_several_are_refused_by_name(tmp_path, rows, said):
    with pytest.raises(InputError, match=said) as refused:
        found(lines(tmp_path / "raw.jsonl", *rows))
    assert refused.value.reason_code == "ambiguous_column" and "raw.jsonl" in str(refused.value)


@pytest.mark.parametrize(
    ("row", "lat"),
    [
        ({**TWEET, "coordinates": None, "lat": 1, "lon": 2}, "lat"),
        (
            {"text": "a", "geo": {"coordinates": {"type": "Point", "coordinates": [1, 2]}}},
            "geo.coordinates.coordinates.1",
        ),
        ({"text": "a", "geo": {"lat": 1, "lon": 2}}, "geo.lat"),
        ({"text": "a", "location": {"type": "Point", "coordinates": [1, 2]}}, "location.coordinates.1"),
    ],
)
def test_find_columns_other_places_beside_or_called_geo_have_one_order(tmp_path, row, lat):
    assert found(lines(tmp_path / "raw.jsonl", row))["lat"] == lat


def test_find_columns_other_names_in_other_files_are_refused(tmp_path):
    lines(tmp_path / "a.jsonl", {"body": "a", "lat": 1, "lon": 1})
    lines(tmp_path / "b.jsonl", {"text": "a", "lat": 1, "lon": 1})
    with pytest.raises(
        InputError, match="text is column body in a.jsonl, and column text in b.jsonl: say --column text"
    ):
        found(tmp_path)
    assert found(tmp_path, text_column="text") == {"lat": "lat", "lon": "lon"}


def test_find_columns_missing_is_said_with_what_there_is(tmp_path):
    path = lines(tmp_path / "raw.jsonl", {"title": "a", "where": "x"}, {"note": "b"})
    with pytest.raises(
        InputError, match=r"called like text or latitude or longitude; .* title, where, note\..*--column text=NAME"
    ):
        found(path)
    boxes = {"text": "a", "west": 1, "south": 1, "east": 2, "north": 2}
    assert found(lines(tmp_path / "boxes.jsonl", boxes)) == {"text": "text"}
    (tmp_path / "junk.jsonl").write_text("nonsense\n")  # rows are judged one by one
    assert found(tmp_path / "junk.jsonl") == {}


def test_look_damaged_file_shows_what_can_be_read(tmp_path):
    path = tmp_path / "raw.jsonl"
    path.write_text('{"text": "a"}\nnonsense\n{"text": null, "lat": 1}\n')
    options = EtlOptions(inputs=(str(path),))
    there = look(find_sources(options)[0], options)
    assert (there.rows, there.names) == (2, None)
    assert {name: seen.rows for name, seen in there.seen.items()} == {"text": 1, "lat": 1}


def test_find_columns_a_text_column_that_no_object_has_is_refused(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"text": "a", "lat": 1, "lon": 2}, {"other": {"deep": "b"}})
    with pytest.raises(
        InputError, match=r"a.jsonl: none .* column nope \(--column text=NAME\); they have text, lat, lon, other"
    ):
        found(path, text_column="nope")
    assert found(path, text_column="other.deep") == {"lat": "lat", "lon": "lon"}
