"""Chromium, driven by playwright, on the real page. Missing Chromium: installed by hack/browser, else skipped loudly (REQUIRE_ALL=1 fails).

`page` is a fresh browser context whose console, page errors and policy violations are collected; a test ends with an error where one
was seen that it did not expect. Screenshots are kept in build/screenshots.
"""

import os
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from hack.browser import chromium
from tests.browser.stage import Stage

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (e) => window.violations.push(e.violatedDirective + " " + e.blockedURI));
"""


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser():
    found = chromium.find()
    if found is None:
        why = f"NO CHROMIUM, NOT TESTED: {chromium.HOW}"
        if os.environ.get("REQUIRE_ALL") == "1":
            pytest.fail(why, pytrace=False)
        pytest.skip(why)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, headless=True, args=chromium.FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def stage():
    with Stage(50) as running:
        yield running


class Tab:
    """One page in a context of its own; `url` leads relative addresses."""

    def __init__(self, browser, url, **options):
        self.troubles = []
        self.context = browser.new_context(base_url=url, **options)
        self.context.add_init_script(VIOLATIONS)
        self.page = self.context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def _console(self, message):
        if message.type in ("error", "warning"):
            self.troubles.append(f"console: {message.text}")

    def open(self, path):
        self.page.goto(path, wait_until="domcontentloaded")
        return self.page

    def live(self):
        """Returns when the stream is open, so that no change can be missed."""
        self.page.wait_for_selector("#live[data-state=on]", timeout=15_000)

    def check(self):
        assert self.page.evaluate("window.violations") == []
        assert self.troubles == []

    def keep(self, name):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    def width(self):
        return self.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")


@pytest.fixture
def tab(browser, stage):
    """`tab(locale=..., viewport=...)` opens one; closed and checked after the test."""
    tabs = []

    def open_tab(**options):
        tabs.append(
            Tab(browser, stage.url, **{"locale": "en-US", "viewport": {"width": 1366, "height": 850}, **options})
        )
        return tabs[-1]

    yield open_tab
    for each in tabs:
        each.check()
        each.context.close()
