"""Chromium of the machine, without a screen, and what its pages complain about."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, CDPSession, Dialog, Page, sync_playwright

#: WebGL without a graphics card; tests run as root in containers, where Chromium's sandbox does not start.
_OPTIONS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
#: Sizes and colours in which pages are looked at.
VIEWS = [(1280, 800, "light"), (1280, 800, "dark"), (390, 844, "light"), (390, 844, "dark")]
_WATCH = "addEventListener('securitypolicyviolation', (event) => console.error('policy', event.violatedDirective))"


@contextmanager
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path is not None, "these tests need Chromium: apt-get install chromium"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=_OPTIONS)
        yield browser
        browser.close()


class Visit:
    """A page that somebody opens.

    Attributes
    ----------
    page : Page
    touch : bool
        Whether its screen is touched, and there is no mouse.
    complaints : list of str
        Errors and warnings of its console, breaches of its policy, exceptions.
    """

    def __init__(self, page: Page, port: int, touch: bool = False):
        self.page = page
        self.port = port
        self.touch = touch
        self.complaints: list[str] = []
        self._session: CDPSession | None = None
        page.on("console", lambda one: self._hear(one.type, one.text))
        page.on("pageerror", lambda error: self._hear("error", str(error)))
        page.on("dialog", self._dismiss)

    def _hear(self, kind: str, text: str) -> None:
        # WebGL by software says how slow it is to read pixels
        if kind in ("error", "warning") and "GPU stall" not in text:
            self.complaints.append(f"{kind}: {text}")

    def _dismiss(self, dialog: Dialog) -> None:
        self._hear("error", f"dialog {dialog.message}")
        dialog.dismiss()

    def open(self, path: str = "/", status: str = "Live") -> "Visit":
        self.page.goto(f"http://127.0.0.1:{self.port}{path}")
        if path == "/":
            self.page.wait_for_selector("html[data-ready]")
        self.until(lambda: self.text("#status-word") == status)
        return self

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def until(self, what: Callable[[], Any], seconds: float = 300) -> None:
        """Poll until something is so."""
        for _ in range(int(seconds * 20)):
            if what():
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"not within {seconds} s; {self.complaints}")

    def rows(self, selector: str = "#updates") -> list[dict[str, str]]:
        """Of each row of a list its data, its text, its badge and its figure, from the top."""
        return self.page.eval_on_selector_all(
            f"{selector} > li",
            """rows => rows.map(row => ({...row.dataset, text: row.querySelector('.text').textContent,
            badge: row.querySelector('.badge')?.textContent, figure: row.querySelector('.number')?.textContent}))""",
        )

    def on_map(self, across: float, down: float) -> tuple[float, float]:
        """A place of the map in pixels; 0 is left or top, 1 right or bottom."""
        box = self.page.locator("#map").bounding_box()
        assert box is not None, "it is shown"
        return box["x"] + across * box["width"], box["y"] + down * box["height"]

    def click_map(self, across: float, down: float) -> None:
        """A click, on a screen that is touched a tap: nothing moves before it."""
        x, y = self.on_map(across, down)
        if self.touch:
            self.page.touchscreen.tap(x, y)
            return
        self.page.mouse.move(x, y)
        self.page.mouse.click(x, y)

    def metrics(self) -> dict[str, float]:
        """Figures of the page's main thread: seconds of scripts and layout since the first call, elements now."""
        if self._session is None:
            self._session = self.page.context.new_cdp_session(self.page)
            self._session.send("Performance.enable")
        found = self._session.send("Performance.getMetrics")["metrics"]
        return {one["name"]: one["value"] for one in found}

    def settle(self) -> None:
        """Colours and places are what they become."""
        self.page.evaluate("document.getAnimations().forEach((one) => one.finish())")

    def barriers(self) -> list[str]:
        """Serious findings of axe."""
        found = Axe().run(self.page).response["violations"]
        return [
            f"{one['id']}: {one['nodes'][0]['html'][:200]}: {one['nodes'][0]['failureSummary'][:300]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@contextmanager
def visit(
    browser: Browser, port: int, width: int = 1280, height: int = 800, scheme: Any = "light", touch: bool = False
) -> Iterator[Visit]:
    """A visit by somebody new; with `touch` by a phone."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, has_touch=touch, is_mobile=touch
    )
    context.set_default_timeout(90_000)  # other tests run beside this one
    context.add_init_script(_WATCH)
    try:
        yield Visit(context.new_page(), port, touch)
    finally:
        context.close()
