"""Places as WKT, WKB and GeoParquet: points, rectangles, and all that is neither."""

import json
import struct

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from matching.errors import InputError
from matching.validate import RawMessage
from spark_etl.geometry import placed
from spark_etl.options import EtlOptions
from spark_etl.trial import try_rows

RING = [(1, 2), (3, 2), (3, 4), (1, 4), (1, 2)]


def point(x, y, *more, order="<", code=1, srid=None):
    head = struct.pack(f"{order}BI", order == "<", code) + (b"" if srid is None else struct.pack(f"{order}I", srid))
    return head + struct.pack(f"{order}{2 + len(more)}d", x, y, *more)


def polygon(*rings, order="<"):
    data = struct.pack(f"{order}BII", order == "<", 3, len(rings))
    return data + b"".join(
        struct.pack(f"{order}I", len(ring)) + b"".join(struct.pack(f"{order}2d", *corner) for corner in ring)
        for ring in rings
    )


@pytest.mark.parametrize(
    "value",
    [
        "POINT (13.4 52.5)",
        " point(13.4   52.5) ",
        "POINT Z (13.4 52.5 7)",
        "SRID=4326;POINT(13.4 52.5)",
        point(13.4, 52.5),
        point(13.4, 52.5, order=">"),
        point(13.4, 52.5, 7.0, code=1001),
        point(13.4, 52.5, 7.0, 8.0, code=3001),
        point(13.4, 52.5, 7.0, code=0x80000001),
        point(13.4, 52.5, srid=4326, code=0x20000001),
        point(13.4, 52.5, srid=4326, code=0x20000001).hex().upper(),
        {"x": 13.4, "y": 52.5},
    ],
    ids=repr,
)
def test_placed_point_in_every_form_is_the_place(value):
    assert placed(RawMessage(text="a", lat=1, lon=2), value) == RawMessage(text="a", lat=52.5, lon=13.4)


@pytest.mark.parametrize(
    "value",
    [
        "POLYGON ((1 2, 3 2, 3 4, 1 4, 1 2))",
        "polygon((1 2,1 4,3 4,3 2,1 2))",
        polygon(RING),
        polygon(RING[::-1], order=">"),
        polygon(RING).hex(),
    ],
    ids=repr,
)
def test_placed_rectangle_is_a_range_message(value):
    assert placed(RawMessage(text="a"), value) == RawMessage(text="a", west=1, south=2, east=3, north=4)


@pytest.mark.parametrize(
    "value",
    [
        "somewhere",
        "POINT (1)",
        "POINT (1 2, 3 4)",
        "POINT ((1 2))",
        "POINT (one two)",
        "SRID=3857;POINT(1 2)",
        "LINESTRING (1 2, 3 4)",
        "POLYGON ((1 2, 3 2, 3 4, 1 2))",
        "POLYGON ((1 2, 3 2, 3 4, 2 4, 1 2))",
        "POLYGON ((1 2, 3 4, 3 2, 1 4, 1 2))",
        "POLYGON ((1 2, 3 2, 3 4, 1 4, 1 2), (1 2, 3 2, 3 4, 1 4, 1 2))",
        b"",
        b"\1\1",
        point(1, 2)[:-1],
        point(1, 2, code=2),
        point(1, 2, srid=3857, code=0x20000001),
        polygon(RING, RING),
        polygon(RING[:3] + RING[:1]),
        polygon(RING)[:-3],
        7,
        {"x": 1},
        {"x": "one", "y": 1},
        {"x": None, "y": 1},
        ["POINT (1 2)"],
    ],
    ids=repr,
)
def test_placed_anything_else_is_refused(value):
    assert placed(RawMessage(text="a", lat=1, lon=2), value) == "bad_geometry"


@pytest.mark.parametrize("value", ["POINT EMPTY", "POLYGON EMPTY", point(float("nan"), float("nan")), polygon()])
def test_placed_empty_geometry_is_a_missing_place(value):
    assert placed(RawMessage(text="a"), value) == "missing_coordinate"


def test_placed_no_geometry_leaves_the_coordinates():
    raw = RawMessage(text="a", lat=1, lon=2)
    assert placed(raw, None) is raw and placed(raw, "") is raw


def tried(path, **more):
    found = try_rows(EtlOptions(inputs=(str(path),), **more), 100)
    return [(row["lon"], row["lat"]) for row in found["cleaned"]], found["rejected_by_reason"]


@pytest.mark.parametrize("name", ["raw.csv", "raw.jsonl", "raw.json"])
def test_try_rows_geometry_column_of_text_is_the_place(tmp_path, name):
    rows = [{"text": "a", "where": "POINT (13.4 52.5)"}, {"text": "b", "where": "POLYGON ((1 2, 3 2, 3 4, 1 4, 1 2))"}]
    rows += [{"text": "c", "where": "LINESTRING (1 2, 3 4)"}]
    path = tmp_path / name
    if name.endswith("csv"):
        path.write_text("text,where\n" + "".join(f'{row["text"]},"{row["where"]}"\n' for row in rows))
    else:
        path.write_text(json.dumps(rows) if name == "raw.json" else "".join(json.dumps(row) + "\n" for row in rows))
    assert tried(path, geometry="where") == ([(13.4, 52.5), (2.0, 3.0)], {"bad_geometry": 1})


def geoparquet(path, geometries, crs=None, **column):
    geo = {"version": "1.1.0", "primary_column": "geom", "columns": {"geom": {"encoding": "WKB", **column}}}
    if crs is not None:
        geo["columns"]["geom"]["crs"] = {"id": crs}
    table = pa.table({"text": [f"word{n}" for n in range(len(geometries))], "geom": geometries})
    pq.write_table(table.replace_schema_metadata({"geo": json.dumps(geo)}), path)
    return path


@pytest.mark.parametrize("crs", [None, {"authority": "OGC", "code": "CRS84"}, {"authority": "EPSG", "code": 4326}])
def test_try_rows_geoparquet_column_is_found(tmp_path, crs):
    path = geoparquet(tmp_path / "a.parquet", [point(13.4, 52.5), polygon(RING), None, b"\1"], crs)
    assert tried(path) == ([(13.4, 52.5), (2.0, 3.0)], {"bad_geometry": 1, "missing_coordinate": 1})
    found = try_rows(EtlOptions(inputs=(str(path),)), 10)
    seen = {one["name"]: one for one in found["columns_seen"]}["geom"]
    assert (seen["taken_for"], seen["example"]) == ("geometry", point(13.4, 52.5).hex())


def test_try_rows_geoparquet_of_pairs_is_read(tmp_path):
    assert tried(geoparquet(tmp_path / "a.parquet", [{"x": 13.4, "y": 52.5}], encoding="point"))[0] == [(13.4, 52.5)]


def test_try_rows_geoparquet_in_metres_is_refused(tmp_path):
    path = geoparquet(tmp_path / "a.parquet", [point(1.0, 2.0)], {"authority": "EPSG", "code": 3857})
    with pytest.raises(InputError, match="geom are in EPSG:3857"):
        tried(path)


def test_try_rows_geometry_column_that_is_not_there_is_named(tmp_path):
    (tmp_path / "raw.csv").write_text("text,lat,lon\na,1,2\n")
    with pytest.raises(InputError, match="no column shape; it has text, lat, lon"):
        tried(tmp_path / "raw.csv", geometry="shape")
