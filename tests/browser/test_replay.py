"""The page on a run that is over: a slider over its messages, and what was in the results then."""

import pytest

from tests.support.browsing import VIEWS, chromium, visit
from tests.support.serving import Replayed
from tests.support.small_runs import MESSAGES, small_run

pytestmark = pytest.mark.browser

LAST = MESSAGES - 1


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    with Replayed(small_run(tmp_path_factory.mktemp("replay"))) as one:
        yield one


def at(seen):
    return int(seen.page.input_value("#position"))


def updates(replayed, seq, more=""):
    *rows, _ = replayed.call("GET", f"/v1/updates?through={seq}&newest=1&limit=200{more}").lines
    return [row["id"] for row in reversed(rows)]


def shown(seen):
    return [row["update"] for row in seen.rows()]


def test_replay_by_keyboard_shows_updates_results_and_reasons_as_of_a_message(replayed):
    with chromium() as browser, visit(browser, replayed.port) as seen:
        seen.open(status="Replay")
        seen.until(lambda: shown(seen) == updates(replayed, LAST))
        keyboard = seen.page.keyboard
        seen.page.focus("#position")
        keyboard.press("Home")
        for _ in range(60):
            keyboard.press("ArrowRight")
        seen.until(lambda: at(seen) == 60 and shown(seen) == updates(replayed, 60))
        seen.until(lambda: "message 60 of 239" in seen.page.get_attribute("#position", "aria-valuetext"))
        # a subscription is picked: its result as of then, and its updates alone
        name = replayed.call("GET", "/v1/subscriptions?kind=knn&as_of=60&limit=1").json["subscriptions"][0]
        name = name["subscription_id"]
        seen.page.fill("#prefix", name)
        seen.page.click(f"#active button[data-subscription={name}]")
        results = replayed.call("GET", f"/v1/subscriptions/{name}/results?as_of=60").json["results"]
        seen.until(lambda: [row["text"] for row in seen.rows("#results")] == [row["text"] for row in results] != [])
        seen.until(lambda: shown(seen) == updates(replayed, 60, f"&subscription={name}"))
        # of one message why it is in the result, of another, named by its number, why not
        seen.page.click("#results li:first-child button")
        seen.until(lambda: seen.text("#why").startswith("In the result"))
        seen.page.fill("#message-id", "seq:200")
        keyboard.press("Enter")
        seen.until(lambda: "not_reached" in seen.text("#why"))
        assert seen.barriers() == [] and seen.overflow() <= 0
        keyboard.press("Escape")
        # it plays to the end, where all is as of the run
        seen.page.select_option("#speed", "100")
        seen.page.click("#play")
        seen.until(lambda: at(seen) > 60)
        seen.until(lambda: at(seen) == LAST and seen.text("#play") == "Play")
        seen.page.uncheck("#only")
        seen.until(lambda: shown(seen) == updates(replayed, LAST))
        results = replayed.call("GET", f"/v1/subscriptions/{name}/results").json["results"]
        seen.until(lambda: [row["text"] for row in seen.rows("#results")] == [row["text"] for row in results])
        assert not seen.page.is_visible("#tab-publish") and not seen.page.is_visible("#picked-end")
        for width, height, scheme in VIEWS:
            seen.page.set_viewport_size({"width": width, "height": height})
            seen.page.emulate_media(color_scheme=scheme)
            assert seen.barriers() == [] and seen.overflow() <= 0
        assert seen.complaints == []
