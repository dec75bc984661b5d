"""Makes the picture of the page that the README shows: `python -m tests.support.page_picture docs/page.png`.

A server runs, messages come, and the page says why one of them is not in a result.
"""

import sys
import tempfile
from pathlib import Path

from tests.support.browsing import chromium, visit
from tests.support.serving import Served

_WIDTH, _HEIGHT = 1280, 800
#: Asia and the Pacific, above what the page says.
_LOOK = "skyray.world.map.jumpTo({center: [92, -38], zoom: 1.05})"
#: Name, keywords and place of subscriptions.
_SUBSCRIPTIONS = {
    "ramen-near-me": {"kind": "topk", "keywords": "ramen late", "lon": 139.7, "lat": 35.68, "k": 3, "alpha": 0.5},
    "jazz-in-europe": {"kind": "boolean", "keywords": "jazz", "region": [-10, 36, 30, 60]},
    "quakes": {"kind": "boolean", "keywords": "earthquake", "circle": {"lon": 120, "lat": 5, "radius_m": 3e6}},
    "coffee-close": {"kind": "knn", "keywords": "coffee espresso", "lon": -46.6, "lat": -23.5, "k": 3},
    "best-views": {"kind": "skyline", "keywords": "view sunset harbour", "region": [100, -45, 155, -10]},
    "markets": {"kind": "boolean", "keywords": "market", "region": [-120, 15, -60, 50]},
}
_MESSAGES = [
    ("Espresso bar, fresh coffee", -46.5, -23.6),
    ("Jazz in the cellar tonight", 2.35, 48.85),
    ("Harbour view at sunset", 151.2, -33.85),
    ("Farmers market until noon", -73.9, 40.7),
    ("Small earthquake felt", 121.0, 14.6),
    ("Coffee to go", -43.2, -22.9),
    ("Jazz trio by the river", 14.4, 50.1),
    ("Sunset over the bay, what a view", 115.8, -31.9),
    ("Night market and music", -99.1, 19.4),
    ("Earthquake drill at noon", 106.8, -6.2),
    ("Jazz brunch", 12.5, 41.9),
    ("Ramen, open late", 139.69, 35.68),
    ("Late ramen and gyoza", 139.75, 35.7),
    ("Ramen bar, late night", 139.6, 35.45),
    ("Ramen festival, open late", 135.5, 34.7),
]


def make(path: Path) -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as scratch, Served(Path(scratch) / "out", "--window", "count:1000") as served:
        for name, columns in _SUBSCRIPTIONS.items():
            assert served.call("PUT", f"/v1/subscriptions/{name}", columns).status == 201
        with chromium() as browser, visit(browser, served.port, _WIDTH, _HEIGHT) as seen:
            seen.open()
            seen.page.evaluate(_LOOK)
            seen.page.click("#tab-active")
            seen.page.click("#active button[data-subscription=ramen-near-me]")
            for text, lon, lat in _MESSAGES:
                row = {"id": text.split()[0].lower(), "text": text, "lon": lon, "lat": lat}
                served.call("POST", "/v1/messages?wait=delivered", row | {"id": f"{row['id']}-{round(lon)}"})
            seen.until(lambda: len(seen.rows("#results")) == 3)
            seen.page.uncheck("#only")
            seen.until(lambda: len(seen.rows()) > 10)
            seen.page.click("#picked-ask")
            seen.page.fill("#message-id", "ramen-136")
            seen.page.keyboard.press("Enter")
            seen.until(lambda: "rivals" in seen.text("#why"))
            seen.page.screenshot(path=path)
            assert seen.complaints == []


if __name__ == "__main__":
    make(Path(sys.argv[1]))
