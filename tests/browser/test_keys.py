"""The page of a server that asks for keys: one is typed, scopes are told in words, and the stream goes on."""

import pytest

from gateway.serve.keys import create_key
from tests.support.browsing import chromium, visit
from tests.support.serving import Served, call, kill
from topology.settings import KEYS

pytestmark = pytest.mark.browser


def test_page_asks_for_a_key_and_its_stream_goes_on_after_a_crash(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    reader, feed = (create_key(out / KEYS, frozenset({scope}), None)[1] for scope in ("subscribe", "publish"))
    served = Served(out)

    def publish(text):
        headers = {"Authorization": f"Bearer {feed}"}
        row = {"text": text, "lon": 0.5, "lat": 0.5}
        assert call(served.port, "POST", "/v1/messages?wait=delivered", row, **headers).json["delivered"]

    def give(key):
        seen.page.fill("#key-input", key)
        seen.page.keyboard.press("Enter")

    with served, chromium() as browser, visit(browser, served.port) as seen:
        asked = []
        seen.page.on("request", lambda one: asked.append(one.url))
        seen.page.goto(f"http://127.0.0.1:{served.port}/")
        seen.until(lambda: "wants a key" in seen.text("#key-why"))
        assert seen.text("#status-word") == "Connecting"
        assert seen.barriers() == []
        give("skyray_none_none")
        seen.until(lambda: "does not know this key" in seen.text("#key-why"))
        give(reader)
        seen.until(lambda: seen.text("#status-word") == "Live")
        seen.page.wait_for_selector("html[data-ready]")
        # what it allows works, and what it does not is told in words
        seen.page.fill("#keywords", "bell")
        seen.page.fill("#subscription-id", "bells")
        for field, value in zip(("west", "south", "east", "north"), "0011", strict=True):
            seen.page.fill(f"#{field}", value)
        seen.page.click("#subscribe button[type=submit]")
        seen.until(lambda: "bells is active" in seen.text("#subscribe-answer"))
        publish("bell 1")
        seen.until(lambda: [row["text"] for row in seen.rows()] == ["bell 1"])
        seen.page.click("#tab-publish")
        seen.page.fill("#text", "bell 2")
        for field in ("message-lon", "message-lat"):
            seen.page.fill(f"#{field}", "0.5")
        seen.page.click("#publish button[type=submit]")
        seen.until(lambda: "does not allow this" in seen.text("#publish-answer"))
        assert "scope publish" in seen.text("#publish-answer")
        # after a crash the stream goes on, and the key is in no URL
        kill(served)
        seen.until(lambda: seen.text("#status-word") == "Reconnecting")
        with Served(out, port=served.port):
            seen.until(lambda: seen.text("#status-word") == "Live")
            publish("bell 3")
            seen.until(lambda: [row["text"] for row in seen.rows()] == ["bell 3", "bell 1"])
            assert sum("/v1/updates" in url for url in asked) > 1 and not any(reader in url for url in asked)
            # the key is of this tab alone, and can be forgotten
            assert seen.page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
            seen.page.click("#key")
            seen.page.click("#key-dialog .danger")
            seen.until(lambda: seen.text("#status-word") == "No access")
            assert seen.page.evaluate("sessionStorage.length") == 0
            seen.page.click("#key")
            give(feed)
            seen.until(lambda: "scope subscribe" in seen.text("#gap"))
            assert seen.text("#status-word") == "No access"
        wanted = ("401", "403", "503", "ERR_")
        assert all(any(one in said for one in wanted) for said in seen.complaints), seen.complaints
