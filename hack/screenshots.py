"""The dashboard's picture in README: docs/pictures/dashboard.png, taken in Chromium of the fleet that browser tests look at.

    python -m hack.screenshots

Take it again when the dashboard looks different. It is not part of `make generate`: it needs a browser, and shows times.
"""

import sys
import time
from pathlib import Path
from typing import Final

from playwright.sync_api import ViewportSize, sync_playwright

from hack.browser import chromium
from tests.browser.stage import Stage

PICTURE: Final = Path(__file__).resolve().parent.parent / "docs/pictures/dashboard.png"
_SIZE: Final = ViewportSize(width=1280, height=690)
_NODES: Final = 50
_SETTLED: Final = 5.0
"""Seconds until waiting pods were decided on, and the readings of the drivers have come."""


def main() -> int:
    program = chromium.find()
    if program is None:
        print(f"no Chromium: {chromium.HOW}", file=sys.stderr)
        return 1
    running = Stage(_NODES)  # type: ignore[no-untyped-call]  # tests have no types
    with running as stage, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=chromium.FLAGS)
        page = browser.new_page(base_url=stage.url, viewport=_SIZE)
        page.goto("/")
        time.sleep(_SETTLED)
        page.screenshot(path=PICTURE)
        browser.close()
    print(PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
