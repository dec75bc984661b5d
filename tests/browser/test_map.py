"""The map of `skyray serve`: drawn on by fingers, begun where something is, with the streets of a tile source."""

import asyncio
import struct
import zlib
from contextlib import contextmanager

import pytest

from tests.support.browsing import chromium, visit
from tests.support.endpoints import Endpoint, answer
from tests.support.serving import NDJSON, Replayed, Served, lines_of

pytestmark = pytest.mark.browser

#: 19,000 subscriptions of Berlin, each a circle of 300 m.
MANY = [
    {"subscription_id": f"s{number}", "kind": "boolean", "keywords": f"w{number}"}
    | {"circle": {"lon": 13.1 + number % 140 / 250, "lat": 52.35 + number % 100 / 400, "radius_m": 300}}
    for number in range(19_000)
]
PHONE, LAPTOP, SCREEN = (390, 844), (1400, 900), (1920, 1080)


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("map") / "out", "--window", "count:1000") as one:
        answered = one.call("POST", "/v1/subscriptions", lines_of(MANY), **NDJSON)
        assert {row["status"] for row in answered.lines} == {"created"}
        yield one


@contextmanager
def visited(browser, served, size, **options):
    """A visit that ends without a complaint of the browser."""
    with visit(browser, served.port, *size, **options) as seen:
        yield seen.open()
        assert seen.complaints == []


def box_of_map(seen):
    """West, south, east, north of what the map shows."""
    return seen.page.evaluate("skyray.world.map.getBounds().toArray().flat()")


def within(seen, selector, outer="html"):
    """Whether an element lies between the left and the right side of another one."""
    inner, frame = (seen.page.locator(one).bounding_box() for one in (selector, outer))
    return frame["x"] <= inner["x"] and inner["x"] + inner["width"] <= frame["x"] + frame["width"]


# ------------------------------------------------------------------------------------------------------- a phone


@pytest.mark.parametrize(
    ("shape", "taps"),
    [
        ("rectangle", [(0.3, 0.4), (0.7, 0.7)]),
        ("circle", [(0.5, 0.6), (0.7, 0.6)]),
        ("polygon", [(0.3, 0.4), (0.7, 0.4), (0.7, 0.7), (0.3, 0.4)]),
    ],
)
def test_map_of_a_phone_a_shape_is_drawn_by_taps_and_has_a_size(browser, served, shape, taps):
    with visited(browser, served, PHONE, touch=True) as seen:
        seen.page.click(f"#draw-bar button[data-shape={shape}]")
        assert within(seen, "#map-hint", "#map")
        hint = seen.text("#map-hint")
        assert "Tap" in hint and not {"Click", "Escape"} & set(hint.replace(".", "").split())
        for tap in taps:
            seen.click_map(*tap)
        seen.until(lambda: seen.page.get_attribute(f"#draw-bar button[data-shape={shape}]", "aria-pressed") == "false")
        width_m = seen.page.evaluate(
            """() => { const box = document.querySelector('#map').getBoundingClientRect();
            const at = (part) => skyray.world.map.unproject([part * box.width, 0.6 * box.height]);
            return at(0.5).distanceTo(at(0.7)); }"""
        )
        if shape == "circle":
            assert float(seen.page.input_value("#radius")) == pytest.approx(width_m, rel=0.02)
        elif shape == "rectangle":
            west, south, east, north = (
                float(seen.page.input_value(f"#{side}")) for side in ("west", "south", "east", "north")
            )
            assert east - west > 0.01 and north - south > 0.01
        else:
            assert len(seen.page.input_value("#corners").splitlines()) == 3


def test_map_of_a_phone_a_shape_without_a_size_is_not_taken(browser, served):
    with visited(browser, served, PHONE, touch=True) as seen:
        seen.page.click("#draw-bar button[data-shape=circle]")
        for _ in range(2):
            seen.click_map(0.5, 0.6)
            seen.page.wait_for_timeout(400)  # a double tap is something else
        seen.until(lambda: "no size" in seen.text("#map-hint"))
        assert seen.page.input_value("#radius") == ""
        for tap in ((0.5, 0.6), (0.7, 0.6)):
            seen.click_map(*tap)
        seen.until(lambda: float(seen.page.input_value("#radius") or 0) > 100)


def test_map_of_a_phone_what_is_picked_and_shown_comes_into_sight(browser, served):
    def in_sight(selector):
        box = seen.page.locator(selector).bounding_box()
        return -1 < box["y"] < PHONE[1] * 2 / 3

    with visited(browser, served, PHONE, touch=True) as seen:
        seen.page.click("#tab-active")
        seen.page.click("#active button[data-subscription=s5]")
        seen.until(lambda: seen.text("#picked-title") == "s5" and in_sight("#picked"))
        seen.page.click("#picked-show")
        seen.until(lambda: in_sight("#map"))


@pytest.mark.parametrize("size", [PHONE, LAPTOP, SCREEN])
def test_page_with_many_subscriptions_has_each_tab_on_one_line(browser, served, size):
    with visited(browser, served, size) as seen:
        seen.until(lambda: seen.text("#active-count") != "")
        heights = seen.page.eval_on_selector_all("[role=tab]", "tabs => tabs.map((tab) => tab.offsetHeight)")
        assert len(set(heights)) == 1 and heights[0] < 45, heights
        assert all(within(seen, f"#tab-{name}", ".tools") for name in ("subscribe", "publish", "active"))
        there = served.call("GET", "/health").json["subscriptions"]
        assert seen.page.get_attribute("#active-count", "title") == f"{there:,}"
        assert seen.overflow() <= 0


# -------------------------------------------------------------------------------------------------- the first view


def test_map_begins_where_the_subscriptions_are(browser, served):
    for size in (PHONE, LAPTOP):
        with visited(browser, served, size) as seen:
            west, south, east, north = box_of_map(seen)
            # of the first hundred, which have outlines
            assert west < 13.1 and 13.49 < east < west + 3 and south < 52.35 and 52.59 < north < south + 3


def test_map_begins_where_messages_came_last_if_subscriptions_are_everywhere(browser, tmp_path):
    with Served(tmp_path / "out", "--window", "count:1000") as one, visited(browser, one, LAPTOP) as seen:
        west, _, east, _ = box_of_map(seen)
        assert east - west > 180, "there is nothing yet"
        everywhere = {"kind": "boolean", "keywords": "tram", "region": [-180, -85, 180, 85]}
        one.call("PUT", "/v1/subscriptions/trams", everywhere)
        for lon, lat in ((11.5, 48.1), (11.6, 48.2)):
            message = {"text": "tram late", "lon": lon, "lat": lat}
            assert one.call("POST", "/v1/messages?wait=delivered", message).json["delivered"]
        seen.open()
        west, south, east, north = box_of_map(seen)
        assert west < 11.5 and 11.6 < east < west + 5 and south < 48.1 and north > 48.2


def test_map_of_a_stream_of_one_region_begins_there(browser, tmp_path):
    with Served(tmp_path / "out", "--world", "5,45,16,56") as one, visited(browser, one, LAPTOP) as seen:
        west, south, east, north = box_of_map(seen)
        assert west < 5 and 16 < east < 60 and south < 45 and north > 56


# ------------------------------------------------------------------------------------------------------ ending one


def test_page_a_subscription_of_many_is_ended_by_two_clicks_without_a_complaint(browser, served):
    with visited(browser, served, LAPTOP) as seen:
        seen.page.click("#tab-active")
        seen.page.click("#active button[data-subscription=s7]")
        seen.until(lambda: seen.text("#picked-title") == "s7")
        seen.page.dblclick("#picked-end")
        seen.until(lambda: not seen.page.is_visible("#picked"))
        assert served.call("GET", "/v1/subscriptions/s7").status == 404
        seen.until(lambda: seen.text("#active li:nth-child(8) .name") == "s8")
        assert not seen.page.is_visible("#gap")


def test_page_a_subscription_that_another_client_has_ended_is_ended_without_a_complaint(browser, served):
    with visit(browser, served.port, *LAPTOP) as seen:
        seen.open()
        seen.page.click("#tab-active")
        seen.page.click("#active button[data-subscription=s9]")
        seen.until(lambda: seen.text("#picked-title") == "s9")
        assert served.call("DELETE", "/v1/subscriptions/s9").status == 200
        seen.page.click("#picked-end")
        seen.until(lambda: not seen.page.is_visible("#picked"))
        assert not seen.page.is_visible("#gap")
        assert all("404" in one for one in seen.complaints), seen.complaints


def test_page_two_clicks_subscribe_and_publish_once(browser, served):
    def counts():
        found = served.call("GET", "/health").json
        return found["subscriptions"], found["messages"]

    with visited(browser, served, LAPTOP) as seen:
        before = counts()
        seen.page.fill("#keywords", "once")
        for side, value in zip(("west", "south", "east", "north"), (13, 52, 14, 53), strict=True):
            seen.page.fill(f"#{side}", str(value))
        seen.page.dblclick("#subscribe button[type=submit]")
        seen.until(lambda: "is active" in seen.text("#subscribe-answer"))
        seen.page.click("#tab-publish")
        for field, value in (("text", "once"), ("message-lon", "13.5"), ("message-lat", "52.5")):
            seen.page.fill(f"#{field}", value)
        seen.page.dblclick("#publish button[type=submit]")
        seen.until(lambda: any(row["text"] == "once" for row in seen.rows()))
        assert counts() == (before[0] + 1, before[1] + 1)


# ----------------------------------------------------------------------------------------------------------- tiles


def tile_server(body, kind, allow="*"):
    """A server with the same tile everywhere."""

    async def behave(headers, request, writer):
        await asyncio.sleep(0)
        return answer(200, f"Content-Type: {kind}", f"Access-Control-Allow-Origin: {allow}", body=body)

    return Endpoint(behave)


def png(red, green, blue, side=256):
    """A picture of one colour."""

    def part(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = (b"\0" + bytes((red, green, blue)) * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b"")


def street_tile(streets, names):
    """A vector tile whose layers `streets` and `names` have one street across it, Long Lane."""

    def varint(value):
        found = b""
        while value > 127:
            found += bytes([value & 127 | 128])
            value >>= 7
        return found + bytes([value])

    def field(number, value):
        if isinstance(value, int):
            return varint(number << 3) + varint(value)
        return varint(number << 3 | 2) + varint(len(value)) + value

    # to (100, 2000), and on by (3900, 0), each as zigzag
    shape = b"".join(varint(one) for one in (1 << 3 | 1, 200, 4000, 1 << 3 | 2, 7800, 0))
    street = field(2, bytes([0, 0])) + field(3, 2) + field(4, shape)
    tail = field(3, b"name") + field(4, field(1, b"Long Lane")) + field(5, 4096) + field(15, 2)
    return b"".join(field(3, field(1, layer.encode()) + field(2, street) + tail) for layer in (streets, names))


def pixel(seen, across, down):
    """Red, green and blue of a place of the map, as it is drawn."""
    return seen.page.evaluate(
        """([across, down]) => new Promise((resolve) => { const { map } = skyray.world;
        map.once('render', () => { const gl = map.getCanvas().getContext('webgl2'), found = new Uint8Array(4);
          const [x, y] = [across * gl.drawingBufferWidth, (1 - down) * gl.drawingBufferHeight];
          gl.readPixels(x, y, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, found);
          resolve([...found].slice(0, 3)); });
        map.triggerRepaint(); })""",
        [across, down],
    )


def test_map_without_tiles_says_near_the_ground_that_there_are_none(browser, served):
    with visited(browser, served, PHONE) as seen:
        assert served.call("GET", "/page/map.json").json == {"tiles": None}
        seen.page.evaluate("skyray.world.map.jumpTo({ zoom: 3 })")
        seen.until(lambda: not seen.page.is_visible("#map-note"))
        seen.page.evaluate("skyray.world.map.jumpTo({ zoom: 12 })")
        seen.until(lambda: "server.tiles" in seen.text("#map-note"))
        assert within(seen, "#map-note", "#map")
        assert seen.barriers() == []


def test_map_with_pictures_as_tiles_shows_them_and_names_their_source(browser, tmp_path):
    with tile_server(png(200, 30, 40), "image/png") as tiles:
        options = (
            "--set",
            f"server.tiles=http://127.0.0.1:{tiles.port}/{{z}}/{{x}}/{{y}}.png",
            "--set",
            "server.tiles_by=Streets <b>& Co</b>",
        )
        with Served(tmp_path / "out", *options) as one, visited(browser, one, LAPTOP) as seen:
            seen.page.evaluate("skyray.world.map.jumpTo({ center: [13.4, 52.5], zoom: 12 })")
            seen.until(lambda: pixel(seen, 0.5, 0.5) == [200, 30, 40])
            assert not seen.page.is_visible("#map-note")
            assert "Streets <b>& Co</b>" in seen.text(".maplibregl-ctrl-attrib-inner")
            came = tiles.await_(lambda book: len(book) > 0)
            assert {one.headers["referer"] for one in came} == {f"http://127.0.0.1:{seen.port}/"}, (
                "tile servers ask for it"
            )
            # its host alone is allowed
            refused = seen.page.evaluate("fetch('http://localhost:9/').then(() => 'answered', (error) => error.name)")
            assert refused == "TypeError"
            seen.until(lambda: "error: policy connect-src" in seen.complaints)
            seen.complaints.clear()


@pytest.mark.parametrize(
    ("streets", "names"), [("transportation", "transportation_name"), ("streets", "street_labels")]
)
def test_map_with_vector_tiles_has_streets_and_their_names(browser, tmp_path, streets, names):
    with tile_server(street_tile(streets, names), "application/x-protobuf") as tiles:
        options = ("--set", f"server.tiles=http://127.0.0.1:{tiles.port}/{{z}}/{{x}}/{{y}}.pbf?key=open")
        with Served(tmp_path / "out", *options) as one, visited(browser, one, LAPTOP, scheme="dark") as seen:
            seen.page.evaluate("skyray.world.map.jumpTo({ center: [13.4, 52.5], zoom: 14 })")
            drawn = """(layers) => skyray.world.map.queryRenderedFeatures({ layers: skyray.world.map.getStyle().layers
                .map((one) => one.id).filter((id) => layers.some((layer) => id === `tiles-${layer}`)) })
                .map((one) => one.properties.name)"""
            for layer in (streets, names):
                seen.until(lambda wanted=layer: "Long Lane" in seen.page.evaluate(drawn, [wanted]))


def test_map_whose_tiles_do_not_come_says_so_and_stays_a_map(browser, tmp_path):
    with tile_server(png(1, 2, 3), "image/png", allow="http://elsewhere.example") as tiles:
        options = ("--set", f"server.tiles=http://127.0.0.1:{tiles.port}/{{z}}/{{x}}/{{y}}.png")
        with Served(tmp_path / "out", *options) as one, visit(browser, one.port, *LAPTOP) as seen:
            seen.open()
            seen.until(lambda: f"127.0.0.1:{tiles.port}" in seen.text("#map-note"))
            assert seen.page.evaluate("skyray.world.map.queryRenderedFeatures({ layers: ['land'] }).length") > 0


# ------------------------------------------------------------------------------------------------------- objects


def drawn(seen):
    """Object, seq and longitude of each point."""
    points = seen.page.evaluate("[...skyray.world.points].map(([seq, one]) => [one.object, seq, 360 * one.x - 180])")
    return sorted((name, seq, round(lon, 6)) for name, seq, lon in points)


def test_map_of_objects_draws_the_version_that_lives_also_in_a_replay(browser, tmp_path):
    """One moves within its result, of which nobody is told, one moves out, one ends."""
    with Served(tmp_path / "out", "--objects") as one:
        one.call("PUT", "/v1/subscriptions/trams", {"kind": "boolean", "keywords": "tram", "region": [10, 40, 20, 50]})

        def post(name, lon):
            message = {"object_id": name, "deleted": True}
            message = {"object_id": name, "text": "tram", "lat": 45, "lon": lon} if lon else message
            assert one.call("POST", "/v1/messages?wait=delivered", message).json["delivered"]

        with visited(browser, one, LAPTOP) as seen:
            for name in "abc":
                post(name, 11)
            seen.until(lambda: drawn(seen) == [("a", 0, 11), ("b", 1, 11), ("c", 2, 11)])
            for name, lon in (("a", 12), ("b", 30), ("c", None)):
                post(name, lon)
            seen.until(lambda: drawn(seen) == [("a", 3, 12)])
            labels = "[...document.querySelectorAll('#updates .object')].map((one) => one.textContent).sort()"
            seen.until(lambda: seen.page.evaluate(labels) == ["a", "b", "b", "c", "c"])
        one.end()
    with Replayed(tmp_path / "out") as again, visit(browser, again.port, *LAPTOP) as seen:
        seen.open(status="Replay")
        seen.until(lambda: drawn(seen) == [("a", 3, 12), ("b", 4, 30)])
        seen.page.focus("#position")
        seen.page.keyboard.press("Home")
        seen.until(lambda: drawn(seen) == [("a", 0, 11)])
