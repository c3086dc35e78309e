"""The dashboard's pictures in README and docs: docs/pictures/dashboard*.png, taken in Chromium of
the fleet that browser tests look at.

    python -m hack.screenshots

Take them again when the dashboard looks different. They are not part of `make generate`: they need
a browser, and show times.
"""

import sys
import time
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from hack.browser import chromium
from tests.browser.stage import MACHINES, ONE_VENDOR, Stage

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs/pictures"
_WIDTH: Final = 1400
_SETTLED: Final = 5.0
"""Seconds until waiting pods were decided on, and the readings of the drivers have come."""
_STAGES: Final = (
    (50, MACHINES, {"dashboard": ("/", 1290)}),
    (6, ONE_VENDOR, {"dashboard-node": ("/node?name=h100-0001", 800), "dashboard-pending": ("/pending", 780)}),
)
"""Nodes and machines, and of these the pictures: path and height in pixels."""


def main() -> int:
    program = chromium.find()
    if program is None:
        print(f"no Chromium: {chromium.HOW}", file=sys.stderr)
        return 1
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=chromium.FLAGS)
        for nodes, machines, pages in _STAGES:
            running = Stage(nodes, machines=machines)  # type: ignore[no-untyped-call]  # tests have no types
            with running as stage:
                for name, (path, height) in pages.items():
                    _take(browser, stage.url, path, height, FOLDER / f"{name}.png")
        browser.close()
    return 0


def _take(browser: Browser, url: str, path: str, height: int, picture: Path) -> None:
    page = browser.new_page(base_url=url, viewport={"width": _WIDTH, "height": height})
    page.goto(path)
    time.sleep(_SETTLED)
    page.screenshot(path=picture)
    page.close()
    print(picture)


if __name__ == "__main__":
    sys.exit(main())
