"""Maps of lonboard: layers of a real run, of a real server, and the corners of shapes."""

import math
from collections import Counter

import lonboard
import pyarrow as pa
import pytest

import skyray
from gateway.runs import notebook
from gateway.runs.distance import distance_km
from gateway.runs.notebook_shapes import MERCATOR_END, shape_of
from gateway.runs.reader import active_at
from matching.errors import ConfigError
from matching.kinds import KINDS
from tests.support.clients import CLIENTS
from tests.support.serving import Served
from tests.support.small_runs import small_run

BOX = {"subscription_id": "box", "kind": "boolean", "keywords": "a b", "region": [1, 2, 3, 4]}


def rows_of(layer):
    """Rows of a layer, `geometry` among them, each with the colour in which it is filled."""
    rows = pa.table(layer.table).to_pylist()
    filled = pa.chunked_array(layer.get_fill_color).to_pylist()
    assert len(rows) == len(filled)
    return [row | {"colour": tuple(colour)} for row, colour in zip(rows, filled, strict=True)]


def layers_of(drawn):
    """Rows of shapes, places and messages."""
    found = {"shapes": [], "places": [], "messages": []}
    for layer in drawn.layers:
        assert layer.pickable
        is_shape = isinstance(layer, lonboard.PolygonLayer)
        name = "shapes" if is_shape else "messages" if "message_id" in layer.table.schema.names else "places"
        found[name] = rows_of(layer)
    assert drawn.show_tooltip
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return skyray.open(small_run(tmp_path_factory.mktemp("notebook")))


def test_map_of_a_run_has_each_subscription_and_each_message_of_a_result(run):
    found = layers_of(run.map())
    results = run.results().to_pylist()
    assert len(results) > 100
    wanted = Counter((row["subscription_id"], row["message_id"], row["text"], row["score"]) for row in results)
    shown = Counter((row["subscription_id"], row["message_id"], row["text"], row["score"]) for row in found["messages"])
    assert shown == wanted
    places = {row["message_id"]: [row["lon"], row["lat"]] for row in results}
    assert all(row["geometry"] == places[row["message_id"]] for row in found["messages"])
    ids = {row["subscription_id"] for row in run.subscription_rows()} - {"wrong"}
    assert {row["subscription_id"] for row in found["shapes"] + found["places"]} >= ids
    for row in found["places"]:
        one = active_at(run.known([row["subscription_id"]])[row["subscription_id"]], None)
        assert (row["geometry"], row["words"]) == ([one.lon, one.lat], " ".join(one.words))
    (place,) = (row for row in found["shapes"] if row["subscription_id"] == "place")
    box = [[-90, -45], [90, -45], [90, 45], [-90, 45], [-90, -45]]
    assert place["geometry"] == [[box]] and place["words"] == "w11"


def test_map_of_a_run_colours_by_kind(run):
    found = layers_of(run.map())
    for rows, opacity in ((found["messages"], 255), (found["places"], 255), (found["shapes"], 50)):
        by_kind = {(row["kind"], row["colour"]) for row in rows}
        assert len({kind for kind, _ in by_kind}) == len({colour for _, colour in by_kind}) == len(by_kind) > 1
        assert {colour[3] for _, colour in by_kind} == {opacity}
    assert {row["kind"] for row in found["messages"]} == {kind.name for kind in KINDS.run}


def test_map_of_named_subscriptions_has_them_alone(run):
    found = layers_of(run.map("mine"))
    assert [row["subscription_id"] for row in found["places"]] == ["mine"] and found["shapes"] == []
    assert [row["message_id"] for row in found["messages"]] == run.results("mine")["message_id"].to_pylist()
    with pytest.raises(ConfigError, match="did you mean mine"):
        run.map("mien")


def test_map_of_more_than_is_drawn_warns_what_is_left_out(run):
    ids = {one["subscription_id"] for one in run.subscription_rows()}
    with pytest.warns(UserWarning) as caught:
        found = layers_of(run.map(most=3))
    said = [str(one.message) for one in caught]
    assert len({row["subscription_id"] for row in found["shapes"] + found["places"]}) == 3
    assert len(found["messages"]) == 3
    assert f"3 of {len(ids) - 1} subscriptions are drawn" in said[0]
    assert "3 of" in said[1] and "messages of results" in said[1] and "most=" in said[1]
    assert {one.filename for one in caught} == {__file__}


@pytest.mark.parametrize("most", [0, -1, 1.5, True])
def test_map_of_no_rows_is_refused(run, most):
    with pytest.raises(ConfigError, match="most is"):
        run.map(most=most)


def test_map_without_lonboard_says_how_to_get_it(run, monkeypatch):
    monkeypatch.setattr("matching.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"lonboard, which is not installed: pip install 'skyray\[notebook\]'"):
        run.map()


def test_map_of_a_run_is_written_as_a_page(run, tmp_path):
    run.map().to_html(tmp_path / "map.html")
    page = (tmp_path / "map.html").read_text()
    assert "application/vnd.jupyter.widget-state+json" in page and page.count('"_layer_type"') == 3


def test_map_has_colours_for_kinds_of_other_tables():
    known, other = notebook.colours([KINDS.run[0].name, "sixth"]).tolist()
    assert known != other and {tuple(colour) for colour in notebook.colours(["sixth"] * 2).tolist()} == {tuple(other)}


def test_map_of_nothing_has_no_layer():
    assert list(notebook.Drawing([], []).map().layers) == []


# ------------------------------------------------------------------------------------------------------- shapes


def corners(row):
    return [[list(map(tuple, ring.tolist())) for ring in polygon] for polygon in shape_of(row)]


def test_shape_of_region_across_the_antimeridian_is_two():
    west, east = [(-180, -5), (-170, -5), (-170, 5), (-180, 5)], [(170, -5), (180, -5), (180, 5), (170, 5)]
    found = corners({"region": [170, -5, -170, 5]})
    assert {frozenset(ring) for (ring,) in found} == {frozenset(west), frozenset(east)}


def test_shape_of_the_earth_ends_where_the_map_does():
    ((ring,),) = corners({"region": [-180, -90, 180, 90]})
    assert set(ring) == {(lon, lat) for lon in (-180, 180) for lat in (-MERCATOR_END, MERCATOR_END)}


def test_shape_of_circle_has_its_radius_in_all_directions():
    ((ring,),) = corners({"circle": {"lon": 139.7, "lat": 35.7, "radius_m": 250_000}})
    assert ring[0] == ring[-1] and len(ring) == 65
    assert all(math.isclose(distance_km(139.7, 35.7, *corner), 250, rel_tol=2e-6) for corner in ring)


def test_shape_of_circle_across_the_antimeridian_is_two_that_end_there():
    found = corners({"lon": 179.5, "lat": 10, "radius_m": 200_000})
    assert sorted((min(lon for lon, _ in ring), max(lon for lon, _ in ring)) for (ring,) in found) == [
        (-180, pytest.approx(-178.67, abs=0.01)),
        (pytest.approx(177.67, abs=0.01), 180),
    ]


@pytest.mark.parametrize("lon", [0, 100, -180])
def test_shape_of_circle_around_a_pole_reaches_the_edge_all_around(lon):
    found = corners({"circle": {"lon": lon, "lat": -80, "radius_m": 3_000_000}})
    all_corners = [corner for (ring,) in found for corner in ring]
    assert {-180, 180} <= {lon for lon, _ in all_corners} and min(lat for _, lat in all_corners) == -MERCATOR_END
    assert area_share(found) == pytest.approx(area_share(corners({"circle": {"lon": 7, "lat": -80, "radius_m": 3e6}})))


@pytest.mark.parametrize(("lon", "lat"), [(0, 0), (100, 10), (-180, -10)])
def test_shape_of_circle_around_both_poles_has_a_hole(lon, lat):
    found = corners({"circle": {"lon": lon, "lat": lat, "radius_m": 17_000_000}})
    assert sum(len(polygon) - 1 for polygon in found) >= 1
    assert 0.9 < area_share(found) < 0.98


def area_share(polygons):
    """Of the rectangle of the map, by the rule of shoelaces; holes taken off."""
    areas = [(-1 if hole else 1) * abs(shoelaces(ring)) for rings in polygons for hole, ring in enumerate(rings)]
    return sum(areas) / (360 * 2 * MERCATOR_END)


def shoelaces(ring):
    return sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in zip(ring, ring[1:], strict=False)) / 2


def test_shape_of_polygon_keeps_holes_and_is_cut_where_it_is_written_beyond_180():
    shell, hole = [[0, 0], [9, 0], [9, 9], [0, 0]], [[5, 1], [6, 1], [6, 2], [5, 1]]
    two = {"type": "MultiPolygon", "coordinates": [[shell, hole], [[[175, 0], [185, 0], [185, 10], [175, 0, 7]]]]}
    first, *cut = corners({"polygon": two})
    assert first == [[tuple(corner) for corner in shell], [tuple(corner) for corner in hole]]
    assert {frozenset(ring) for (ring,) in cut} == {
        frozenset([(175, 0), (180, 0), (180, 5)]),
        frozenset([(-180, 0), (-175, 0), (-175, 10), (-180, 5)]),
    }


# ------------------------------------------------------------------------------------------------------- a server


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("notebook") / "out") as one:
        rows = [
            BOX | {"keywords": "ramen", "region": [139, 35, 140, 36]},
            {"subscription_id": "near", "kind": "knn", "keywords": "ramen", "lon": 139.7, "lat": 35.7, "k": 2},
            {
                "subscription_id": "round",
                "kind": "boolean",
                "keywords": ["ramen", "open"],
                "circle": {"lon": 139.7, "lat": 35.7, "radius_m": 5000},
            },
        ]
        with skyray.Client(f"http://127.0.0.1:{one.port}") as client:
            assert {outcome.status for outcome in client.subscribe_many(rows)} == {"created"}
            texts = {"m1": ("ramen, open late", 139.69), "m2": ("ramen", 139.2), "m3": ("udon", 139.7)}
            for name, (text, lon) in texts.items():
                client.publish({"id": name, "text": text, "lon": lon, "lat": 35.68}, wait="delivered")
        yield one


@pytest.fixture(params=CLIENTS)
def client(request, served):
    with CLIENTS[request.param](f"http://127.0.0.1:{served.port}") as one:
        yield one


def test_map_of_a_server_has_subscriptions_and_results(client):
    found = layers_of(client.map())
    assert {(row["subscription_id"], row["words"]) for row in found["shapes"]} == {
        ("box", "ramen"),
        ("round", "ramen open"),
    }
    (place,) = found["places"]
    assert (place["subscription_id"], place["kind"], place["geometry"]) == ("near", "knn", [139.7, 35.7])
    shown = sorted((row["subscription_id"], row["message_id"], *row["geometry"]) for row in found["messages"])
    assert shown == [
        ("box", "m1", 139.69, 35.68),
        ("box", "m2", 139.2, 35.68),
        ("near", "m1", 139.69, 35.68),
        ("near", "m2", 139.2, 35.68),
        ("round", "m1", 139.69, 35.68),
    ]
    scores = {row["message_id"]: row["score"] for row in found["messages"] if row["subscription_id"] == "near"}
    assert scores == {row.message_id: row.score for row in client.results("near").results}
    assert len({row["colour"] for row in found["messages"]}) == 2


def test_map_of_a_server_by_id_and_by_filter(client):
    assert {row["subscription_id"] for row in layers_of(client.map("near", "near"))["messages"]} == {"near"}
    assert len(layers_of(client.map("near", "near"))["places"]) == 1
    assert layers_of(client.map(kind="boolean"))["places"] == []
    with pytest.raises(skyray.NotFound):
        client.map("nobody")
    with pytest.raises(ConfigError, match="ids or by filters"):
        client.map("near", kind="knn")


def test_map_of_a_server_warns_what_is_left_out(client):
    with pytest.warns(UserWarning) as caught:
        found = layers_of(client.map(most=2))
    assert len(found["shapes"] + found["places"]) == 2 and len(found["messages"]) == 2
    assert [str(one.message) for one in caught] == [
        "map: the first 2 subscriptions are drawn, and there are more: name some, or raise most=",
        "map: results of the first 1 of 2 subscriptions are drawn: raise most=",
    ]
    with pytest.warns(UserWarning, match="results of the first 1 of 3 subscriptions are drawn: raise most_results="):
        found = layers_of(client.map(most_results=1))
    assert {row["subscription_id"] for row in found["messages"]} == {"box"}
    assert len(found["shapes"] + found["places"]) == 3
    with pytest.warns(UserWarning) as caught:
        found = layers_of(client.map("round", "box", most=1))
    assert [row["subscription_id"] for row in found["shapes"]] == ["round"] and len(found["messages"]) == 1
    assert "the first 1 subscriptions" in str(caught[0].message)
    with pytest.warns(UserWarning, match="1 of the 2 messages of these are drawn: raise most="):
        assert len(layers_of(client.map("box", most=1))["messages"]) == 1
