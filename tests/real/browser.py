"""A real headless Chromium, and checks of each page in it."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest

from tests.real.parts import find_node_package, find_program, program_environment
from tests.waiting import PATIENCE_SECONDS

MILLISECONDS = PATIENCE_SECONDS * 1000
REFUSED = re.compile(r"Failed to load resource: (the server responded with a status of|net::ERR_)")


class Tab:
    """A page in a browser, and the errors in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.wrong: list[str] = []
        page.set_default_timeout(MILLISECONDS)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(message.text)

    def open(self, url: str, *, shows: str) -> "Tab":
        """Go to an address, and wait until the page has this text."""
        self.page.goto("about:blank")  # so that an address is loaded too that differs only after its #
        self.page.goto(url)
        return self.wait_for(shows)

    def wait_for(self, text: str) -> "Tab":
        """Wait until the page shows this text."""
        self.page.get_by_text(text).filter(visible=True).first.wait_for()
        return self

    def ask_now(self) -> None:
        """Let the page send its requests now, as when its tab is opened again, and not some seconds later."""
        self.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def cells(self, caption: str) -> list[list[str]]:
        """The rows of a table, by its caption."""
        # A table that the page has just replaced has no layout: its innerText includes hidden text.
        script = """(table) => table.isConnected ?
            [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.innerText)) : null"""
        found: list[list[str]] | None = None
        while found is None:
            found = self.page.get_by_role("table", name=caption).evaluate(script)
        return found

    def unfit(self) -> list[str]:
        """Accessibility faults of the current page: axe's rules for WCAG 2.2 AA, and its recommendations."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate((find_node_package("axe-core") / "axe.min.js").read_text() + "; undefined")
        # A hidden page sends no requests, so it does not change meanwhile.
        self.page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
        self.page.wait_for_load_state("networkidle")
        found = self.page.evaluate("axe.run().then((result) => result.violations)")
        self.page.evaluate("delete document.hidden")
        return [f"{each['id']}: {[node['html'] for node in each['nodes']]}" for each in found]

    def errors(self) -> list[str]:
        """Errors of the page, except refused requests, which the page shows."""
        return [each for each in self.wrong if not REFUSED.match(each)]


def driver_of_browsers() -> Any:
    """Playwright's driver; without the current extra dev, tests are skipped, or fail if real parts are required."""
    try:
        return import_module("playwright.sync_api").sync_playwright()
    except ImportError:
        reason = "playwright is not installed: run make dev"
        if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; without it, tests are skipped, or fail if real parts are required."""
    program = str(find_program("chromium"))
    with driver_of_browsers() as driver:
        # Without a sandbox: tests run as root in containers, and only open pages of load-watcher.
        browser = driver.chromium.launch(executable_path=program, env=program_environment(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(browser: Any, *, dark: bool = False, width: int = 1280, zone: str | None = None) -> Iterator[Tab]:
    """A separate page without stored data of others; `zone` is its time zone, None for that of this machine."""
    context = browser.new_context(
        color_scheme="dark" if dark else "light",
        viewport={"width": width, "height": 900},
        reduced_motion="reduce",
        timezone_id=zone,
        locale="en-US",
    )
    try:
        yield Tab(context.new_page())
    finally:
        context.close()
