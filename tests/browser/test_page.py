"""The page of `skyray serve` as a stranger uses it, in a browser, with a server that runs."""

import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.brokers import STREAM, NatsBroker
from tests.support.browsing import VIEWS, chromium, visit
from tests.support.endpoints import Endpoint, answers
from tests.support.nats_sinking import NAME, SUBJECT, create
from tests.support.serving import NDJSON, Served, free_port, kill, lines_of, position

pytestmark = pytest.mark.browser

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</li><script>alert(2)</script>",
    '"><svg onload=alert(3)>',
    "javascript:alert(4)",
    "${alert(5)} {{7*7}} \u202e gnirts \U0001f600",
]
CONDITIONS = [("price", "lte", "500"), ("city", "is", "Oslo, Rome"), ("built", "gt", "2000-01-01T00:00:00")]


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    attributes = (each for name in ("price:number", "city:category", "built:time") for each in ("--attribute", name))
    with Served(tmp_path_factory.mktemp("page") / "out", "--window", "count:1000", *attributes) as one:
        yield one


@pytest.fixture
def seen(browser, served):
    """A visit that ends without a complaint of the browser."""
    with visit(browser, served.port) as one:
        yield one.open()
        assert one.complaints == []


def subscribe(seen, name, keywords, kind="boolean"):
    seen.page.fill("#keywords", keywords)
    seen.page.check(f"#subscribe input[value={kind}]", force=True)
    seen.page.fill("#subscription-id", name)


def publish(served, *texts, lon, lat, **more):
    rows = [{"text": text, "lon": lon, "lat": lat, **more} for text in texts]
    answer = served.call("POST", "/v1/messages?wait=delivered", rows).json
    assert answer["delivered"] and answer["refused"] == 0
    return [one["seq"] for one in answer["outcomes"]]


def lit(seen):
    """Seqs of the points that the map shows."""
    return seen.page.evaluate("globalThis.skyray.world.points.size") and seen.page.evaluate(
        "[...globalThis.skyray.world.points.keys()]"
    )


@pytest.mark.parametrize("shape", ["rectangle", "circle", "polygon"])
def test_page_a_place_is_drawn_and_a_message_of_another_client_lights_up(seen, served, shape):
    name = f"drawn-{shape}"
    subscribe(seen, name, "ramen")
    seen.page.click(f"#draw-bar button[data-shape={shape}]")
    for corner in {
        "rectangle": [(0.4, 0.3), (0.7, 0.6)],
        "circle": [(0.55, 0.45), (0.7, 0.6)],
        "polygon": [(0.4, 0.3), (0.7, 0.3), (0.7, 0.6), (0.4, 0.6), (0.4, 0.3)],
    }[shape]:
        seen.click_map(*corner)
    seen.until(lambda: seen.page.get_attribute(f"#draw-bar button[data-shape={shape}]", "aria-pressed") == "false")
    seen.page.click("#subscribe button[type=submit]")
    seen.until(lambda: f"{name} is active" in seen.text("#subscribe-answer"))
    columns = served.call("GET", f"/v1/subscriptions/{name}").json
    middle = seen.page.evaluate(
        "([x, y]) => { const p = globalThis.skyray.world.map.unproject([x, y]); return [p.lng, p.lat]; }",
        [0.55 * 600, 0.45 * 748],
    )
    assert {"rectangle": "region"}.get(shape, shape) in columns
    inside, outside = publish(served, f"Ramen inside {name}", lon=middle[0], lat=middle[1])[0], None
    outside = publish(served, f"Ramen outside {name}", lon=-150, lat=-60)[0]
    seen.until(lambda: any(row["text"] == f"Ramen inside {name}" for row in seen.rows()))
    shown = [row for row in seen.rows() if row.get("subscription") == name]
    assert [row["text"] for row in shown] == [f"Ramen inside {name}"]
    assert inside in lit(seen) and outside not in lit(seen)
    seen.until(lambda: [row["text"] for row in seen.rows("#results")] == [f"Ramen inside {name}"])


def test_page_by_keyboard_alone_a_subscription_is_made_and_its_update_opened(seen, served):
    keyboard = seen.page.keyboard
    seen.page.focus("#keywords")
    keyboard.type("tea")
    keyboard.press("Tab")
    keyboard.press("ArrowRight")
    for field in ("lon", "lat"):
        for _ in range(20):
            keyboard.press("Tab")
            if seen.page.evaluate("document.activeElement.id") == field:
                break
        keyboard.type("100.5") if field == "lon" else keyboard.type("13.75")
    keyboard.press("Enter")
    seen.until(lambda: "is active" in seen.text("#subscribe-answer"))
    publish(served, "Tea by the river", lon=100.5, lat=13.7)
    seen.until(lambda: any(row["text"] == "Tea by the river" for row in seen.rows()))
    seen.page.focus("#updates button.row")
    keyboard.press("Enter")
    seen.until(lambda: seen.page.evaluate("document.querySelector('#message').open"))
    assert seen.text("#message-text") == "Tea by the river"
    keyboard.press("Escape")
    seen.until(lambda: not seen.page.evaluate("document.querySelector('#message').open"))
    assert seen.page.evaluate("document.activeElement.textContent").endswith("Tea by the river")


def test_page_results_of_a_picked_subscription_are_as_the_server_has_them(seen, served):
    served.call("PUT", "/v1/subscriptions/near", {"kind": "knn", "keywords": "cake", "lon": 0, "lat": 0, "k": 3})
    for number in range(8):
        publish(served, f"cake {number}", lon=8 - number, lat=0)
    seen.page.click("#tab-active")
    seen.page.fill("#prefix", "near")
    seen.page.click("#active button[data-subscription=near]")
    seen.until(lambda: [row["text"] for row in seen.rows("#results")] == ["cake 7", "cake 6", "cake 5"])
    publish(served, "cake nearest", lon=0, lat=0)
    seen.until(lambda: [row["text"] for row in seen.rows("#results")] == ["cake nearest", "cake 7", "cake 6"])
    found = served.call("GET", "/v1/subscriptions/near/results").json["results"]
    assert [row["text"] for row in found] == [row["text"] for row in seen.rows("#results")]
    seen.page.click("#picked-end")
    seen.until(lambda: served.call("GET", "/v1/subscriptions/near").status == 404)
    seen.until(lambda: not seen.page.is_visible("#picked"))


def test_page_figures_of_updates_and_results_have_their_units(seen, served):
    place, words = {"lon": 20, "lat": 0}, "lamp oil"
    scored = place | {"keywords": words, "k": 3, "alpha": 0.5}
    served.call("PUT", "/v1/subscriptions/unit-knn", place | {"kind": "knn", "keywords": words, "k": 3})
    served.call("PUT", "/v1/subscriptions/unit-decay", scored | {"kind": "decay"})
    served.call("PUT", "/v1/subscriptions/unit-topk", scored | {"kind": "topk"})
    region = {"keywords": "oil", "region": [19, -1, 25, 1]}
    served.call("PUT", "/v1/subscriptions/unit-boolean", region | {"kind": "boolean"})
    (seq,) = publish(served, "an oil lamp", lon=21, lat=0, time="2026-01-01T00:00:00Z")
    score = served.call("GET", "/v1/subscriptions/unit-topk/results").json["results"][0]["score"]
    wanted = {"knn": "111 km", "decay": "111 km", "topk": f"score {score:.3}", "boolean": f"#{seq}"}

    def figures():
        mine = [row for row in seen.rows() if row["subscription"].startswith("unit-")]
        return {row["subscription"].removeprefix("unit-"): row["figure"] for row in mine}

    seen.until(lambda: figures() == wanted)
    seen.page.click("#tab-active")
    for kind, figure in {**wanted, "topk": f"111 km · {wanted['topk']}"}.items():
        seen.page.fill("#prefix", f"unit-{kind}")
        seen.page.click(f"#active button[data-subscription=unit-{kind}]")
        seen.until(lambda name=kind: seen.text("#picked-title") == f"unit-{name}")
        seen.until(lambda there=figure: [row["figure"] for row in seen.rows("#results")] == [there])


def test_page_says_what_a_message_without_the_words_would_have_needed_in_kilometres(seen, served):
    served.call("PUT", "/v1/subscriptions/needs", {"kind": "knn", "keywords": "anchor", "lon": 40, "lat": 0, "k": 1})
    publish(served, "an anchor", lon=41, lat=0)
    publish(served, "a rope", lon=40, lat=0, id="rope")
    seen.page.click("#tab-active")
    seen.page.fill("#prefix", "needs")
    seen.page.click("#active button[data-subscription=needs]")
    seen.page.click("#picked-ask")
    seen.page.fill("#message-id", "rope")
    seen.page.keyboard.press("Enter")
    seen.until(lambda: "no_common_word" in seen.text("#why"))
    assert "needed score" in seen.text("#why dl") and "111 km" in seen.text("#why dl")


def test_page_a_message_is_published_by_a_click_and_says_why_it_is_not_in_a_result(seen, served):
    served.call("PUT", "/v1/subscriptions/why", {"kind": "boolean", "keywords": "jazz", "region": [-180, -80, 180, 80]})
    seen.page.click("#tab-publish")
    seen.page.fill("#text", "Rock in the harbour")
    seen.click_map(0.5, 0.5)
    seen.until(lambda: seen.page.input_value("#message-lon") != "")
    seen.page.click("#publish button[type=submit]")
    seen.until(lambda: "On disk" in seen.text("#publish-answer"))
    seen.page.click("#published button.row")
    seen.page.fill("#asked", "why")

    def says_why() -> bool:
        """Asked again while the message is on disk and not matched yet."""
        seen.page.click("#ask")
        return "missing_keyword" in seen.text("#why")

    seen.until(says_why)
    assert "Not in the result" in seen.text("#why") and "jazz" in seen.text("#asked-facts")
    seen.page.click("#message-close")
    # a message that is in no list is named by its id, beside the subscription that is picked
    served.call("POST", "/v1/messages?wait=delivered", {"id": "folk-1", "text": "Folk", "lon": 0, "lat": 0})
    seen.page.click("#tab-active")
    seen.page.fill("#prefix", "why")
    seen.page.click("#active button[data-subscription=why]")
    seen.page.click("#picked-ask")
    seen.page.fill("#message-id", "folk-1")
    seen.page.keyboard.press("Enter")
    seen.until(lambda: "missing_keyword" in seen.text("#why"))
    assert seen.text("#message-text") == "Folk" and seen.page.input_value("#asked") == "why"
    seen.page.click("#message-close")
    seen.page.click("#tab-publish")
    seen.page.fill("#text", "Jazz in the harbour")
    seen.page.click("#would-reach")
    seen.until(lambda: "why (boolean)" in seen.text("#reach-answer"))
    seen.page.click("#publish button[type=submit]")
    seen.until(lambda: any(row["text"] == "Jazz in the harbour" for row in seen.rows()))
    seen.page.click("#updates button.row")
    assert seen.page.input_value("#asked") == "why"
    seen.until(lambda: seen.text("#why").startswith("In the result"))


def test_page_conditions_on_attributes_are_columns_and_preview_says_what_they_leave_out(seen, served):
    publish(served, "flat cheap", lon=20, lat=20, price=100, city="Oslo", built="2020-05-01T00:00:00Z")
    publish(served, "flat dear", lon=20, lat=20, price=900, city="Oslo", built="2020-05-01T00:00:00Z")
    subscribe(seen, "flats", "flat")
    for field, value in zip(("west", "south", "east", "north"), (19, 19, 21, 21), strict=True):
        seen.page.fill(f"#{field}", str(value))
    seen.page.click("details.filters summary")
    assert seen.page.eval_on_selector_all(".where-name", "all => all.length") == 0
    for number, (name, how, value) in enumerate(CONDITIONS, start=1):
        seen.page.click("#add-where")
        condition = f".condition:nth-child({number})"
        seen.page.select_option(f"{condition} .where-name", name)
        seen.page.select_option(f"{condition} .where-how", how)
        seen.page.fill(f"{condition} .where-value", value)
    types = seen.page.eval_on_selector_all(".where-value", "all => all.map(one => one.type)")
    assert types == ["number", "text", "datetime-local"]
    seen.until(lambda: "1 of the last" in seen.text("#preview-answer"))  # while it was typed
    seen.page.click("#preview")
    seen.until(lambda: "1 of the last" in seen.text("#preview-answer"))
    assert "flat cheap" in seen.text("#preview-answer") and "1 more would" in seen.text("#preview-answer")
    seen.page.click("#subscribe button[type=submit]")
    seen.until(lambda: "flats is active" in seen.text("#subscribe-answer"))
    assert served.call("GET", "/v1/subscriptions/flats").json["where"] == {
        "price": {"lte": 500},
        "city": ["Oslo", "Rome"],
        "built": {"gt": "2000-01-01T00:00:00.000Z"},
    }


def test_page_what_is_wrong_with_a_form_is_said_beside_it(seen):
    seen.page.click("#subscribe button[type=submit]")
    assert "Draw the place" in seen.text("#subscribe-answer")
    assert seen.page.get_attribute("#west", "aria-invalid") == "true"
    assert seen.page.evaluate("document.activeElement.id") == "west"
    seen.page.check("#subscribe input[value=skyline]", force=True)
    seen.page.click("#subscribe button[type=submit]")
    assert "type at least one" in seen.text("#subscribe-answer")
    assert seen.page.evaluate("document.activeElement.id") == "keywords"


def test_page_texts_that_look_like_markup_are_shown_as_texts(seen, served):
    for number, text in enumerate(HOSTILE):
        name = f"x{number} {text}".replace("/", "")
        plain = re.sub(r'["()*]', " ", text)  # which are of queries
        columns = {"kind": "boolean", "keywords": [f"evil{number}", plain], "match": "any", "region": [49, 49, 51, 51]}
        answer = served.call("POST", "/v1/subscriptions", {"subscription_id": name, **columns})
        assert answer.status == 201, answer
        publish(served, f"evil{number} {text}", lon=50, lat=50)
    wanted = {f"evil{number} {text}" for number, text in enumerate(HOSTILE)}
    seen.until(lambda: {row["text"] for row in seen.rows()} >= wanted)
    seen.page.click("#tab-active")
    seen.page.fill("#prefix", "x0")
    seen.until(lambda: len(seen.rows("#active")) == 1)
    seen.page.click("#active button.row")
    seen.until(lambda: seen.text("#picked-title").startswith("x0 <img"))
    seen.until(lambda: len(seen.rows("#results")) >= 1)
    seen.page.click("#updates button.row")
    seen.page.click("#ask")
    seen.until(lambda: "In the result" in seen.text("#why"))
    made = seen.page.evaluate("document.querySelectorAll('main img, main script, main svg, dialog img').length")
    assert made == 0


# A commit waits for each size once and for each scheme once.
@pytest.mark.parametrize(
    ("width", "height", "scheme"),
    [VIEWS[0], *(pytest.param(*view, marks=pytest.mark.wide) for view in VIEWS[1:3]), VIEWS[3]],
)
def test_page_has_no_serious_barrier_and_fits_its_window(browser, served, tmp_path, width, height, scheme):
    served.call(
        "PUT", "/v1/subscriptions/views", {"kind": "topk", "keywords": "soup", "lon": 5, "lat": 5, "k": 3, "alpha": 0.5}
    )
    with visit(browser, served.port, width, height, scheme) as seen:
        seen.open()
        publish(served, "soup of the day", "soup again", lon=5.1, lat=5, price=3)
        seen.until(lambda: len(seen.rows()) >= 2)

        def check(where):
            seen.settle()  # rows that came just now are still coloured
            assert seen.barriers() == [], where
            assert seen.overflow() <= 0, where

        seen.page.click("details.filters summary")
        seen.page.click("#add-where")
        check("subscribe")
        seen.page.click("#tab-active")
        seen.page.fill("#prefix", "views")
        seen.page.click("#active button[data-subscription=views]")
        seen.until(lambda: len(seen.rows("#results")) >= 2)
        check("active")
        seen.page.click("#tab-publish")
        check("publish")
        seen.page.click("#results button.row")
        seen.page.click("#ask")
        seen.until(lambda: "In the result" in seen.text("#why"))
        check("why")
        seen.open("/topology")
        seen.until(lambda: seen.page.locator("#components tr").count() > 3)
        check("topology")
        assert seen.complaints == []


@pytest.fixture
def broker(tmp_path):
    """A broker with a stream to read and one to write; its client has an event loop, as the browser's has here."""
    with ThreadPoolExecutor(1) as thread:
        one = NatsBroker(tmp_path / "broker")
        thread.submit(one.start).result()
        try:
            thread.submit(one.create).result()
            thread.submit(create, one).result()
            rows = [f'{{"text": "tea {number}", "lon": 1, "lat": 1}}'.encode() for number in range(30)]
            thread.submit(one.publish, rows).result()
            yield one
        finally:
            one.kill()


def test_page_of_the_topology_says_how_far_sources_sinks_and_webhooks_are(browser, broker, tmp_path):
    to = f"{broker.url}/{NAME}?subject={SUBJECT}"
    tea = {"kind": "boolean", "keywords": "tea", "region": [-180, -80, 180, 80]}
    options = ("--from", f"{broker.url}/{STREAM}?consumer=skyray", "--to", to, "--set", "webhooks.allow_host=127.0.0.1")
    with Endpoint(answers(204)) as endpoint, Served(tmp_path / "out", *options) as served:
        served.call("PUT", "/v1/subscriptions/s1", tea)
        assert served.call("POST", "/v1/webhooks", {"url": endpoint.url, "subscription_id": "s1"}).status == 201
        with visit(browser, served.port, 390, 844) as seen:
            seen.open("/topology")

            def ends():
                cells = "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
                found = seen.page.eval_on_selector_all("#ends tr", cells)
                return {row[0]: [row[1], row[2].partition("-")[0], row[5], row[6]] for row in found}

            wanted = {
                f"nats/{STREAM}": ["reading", "0: 30", "0", "0"],
                f"nats/{NAME}": ["delivering", "29", "0", "0"],
                "webhooks": ["1 active", "up to date", "0", "0"],
            }
            seen.until(lambda: ends() == wanted)
            assert seen.barriers() == [] and seen.overflow() <= 0
            broker.kill()
            seen.until(lambda: ends()[f"nats/{STREAM}"][0].startswith("away"))
            assert seen.complaints == []


def test_page_five_hundred_updates_a_second_beside_ten_thousand_subscriptions(seen, served):
    """Counts that hold on any machine: nothing is lost, and neither list nor map is drawn anew for each update."""
    areas = [
        {"subscription_id": f"area-{number}", "kind": "boolean", "keywords": f"w{number % 50}"}
        | {"region": [number % 340 - 170, number % 110 - 60, number % 340 - 168, number % 110 - 58]}
        for number in range(10_000)
    ]
    floods = [
        {"subscription_id": f"flood-{number}", "kind": "boolean", "keywords": "flood", "region": [-180, -80, 180, 80]}
        for number in range(10)
    ]
    answer = served.call("POST", "/v1/subscriptions", lines_of([*floods, *areas]), **NDJSON)
    assert {one["status"] for one in answer.lines} == {"created"}
    seen.page.click("#tab-active")
    seen.page.fill("#prefix", "area-")
    seen.until(lambda: seen.text("#active li:first-child .name") == "area-0")
    seen.page.click("#active-next")
    seen.until(lambda: seen.text("#active-place") == "101 to 200")
    seen.page.evaluate(
        """() => { globalThis.counts = {frames: 0, lists: 0, maps: 0, tasks: 0};
        const tick = () => { counts.frames += 1; requestAnimationFrame(tick); }; requestAnimationFrame(tick);
        const list = document.querySelector('#updates');
        new MutationObserver(() => { counts.lists += 1; }).observe(list, {childList: true});
        const tasks = new PerformanceObserver(found => { counts.tasks += found.getEntries().length; });
        tasks.observe({entryTypes: ['longtask']});
        skyray.world.map.on('render', () => { counts.maps += 1; }); }"""
    )
    (first,) = publish(served, "settled", lon=0, lat=0)  # updates of what ended before come with it
    seen.until(lambda: seen.page.evaluate("skyray.stream.through") >= first)
    before, received = seen.metrics(), seen.page.evaluate("skyray.stream.received")
    began = time.monotonic()
    for number in range(100):  # 20 batches a second of 25 updates each, as far as the machine keeps up
        rows = [{"text": f"flood {number}", "lon": number * 3 - 150, "lat": place * 20 - 40} for place in range(3)]
        served.call("POST", "/v1/messages", rows[: 2 + number % 2])
        seen.page.wait_for_timeout(max(0, began + (number + 1) / 20 - time.monotonic()) * 1000)
    seen.until(lambda: seen.page.evaluate("skyray.stream.received") - received >= 2_500)
    spent_s = time.monotonic() - began
    after, counts = seen.metrics(), seen.page.evaluate("counts")
    seen.until(lambda: seen.rows()[0]["text"] == "flood 99")
    assert seen.page.evaluate("skyray.stream.received") - received == 2_500
    assert len(seen.rows()) == 200 and len(seen.rows("#active")) == 100
    assert 0 < counts["lists"] <= min(counts["frames"], spent_s * 4 + 2)
    assert counts["maps"] <= 5, "outlines come late; points are drawn above the map"
    assert counts["tasks"] < counts["frames"]
    script_s = after["ScriptDuration"] - before["ScriptDuration"]
    assert script_s < spent_s / 2, "of the page's thread, less than half is for scripts"
    assert after["Nodes"] - before["Nodes"] < 40_000


def test_page_the_server_is_killed_and_begun_again_and_the_stream_goes_on_without_gap_or_repeat(browser, tmp_path):
    out, port = tmp_path / "out", free_port()
    columns = {"kind": "boolean", "keywords": "bell", "region": [0, 0, 1, 1]}
    with visit(browser, port) as seen:
        with Served(out, port=port) as served:
            served.call("PUT", "/v1/subscriptions/bell", columns)
            seen.open()
            for number in range(5):
                publish(served, f"bell {number}", lon=0.5, lat=0.5)
            seen.until(lambda: len(seen.rows()) == 5)
            kill(served)
            seen.until(lambda: seen.text("#status-word") == "Reconnecting")
        for begin in (5, 10):
            with Served(out, port=port) as served:
                for number in range(begin, begin + 5):
                    publish(served, f"bell {number}", lon=0.5, lat=0.5)
                seen.until(lambda count=begin + 5: len(seen.rows()) == count)
                assert seen.text("#status-word") == "Live"
                kill(served)
        rows = seen.rows()[::-1]
        assert [row["text"] for row in rows] == [f"bell {number}" for number in range(15)]
        places = [position(row["update"]) for row in rows]
        assert places == sorted(set(places))
        assert not seen.page.is_visible("#gap")
        # another stream in its place has none of the ids: the page says so, and what to do
        with Served(tmp_path / "other", port=port) as served:
            seen.until(lambda: seen.page.is_visible("#gap"))
            assert "Read results anew" in seen.text("#gap") and "missing" in seen.text("#gap")
            served.call("PUT", "/v1/subscriptions/bell", columns)
            publish(served, "bell of another stream", lon=0.5, lat=0.5)
            seen.until(lambda: seen.rows()[0]["text"] == "bell of another stream")
            seen.page.click("#gap-anew")
            seen.until(lambda: not seen.page.is_visible("#gap"))
        assert all("ERR_" in one or "503" in one for one in seen.complaints), seen.complaints
