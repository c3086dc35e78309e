"""Two thousand nodes in the browser: the page stays usable. Part of `make soak`; says how long first paint and updates take."""

import os
import time

import pytest

from hami_dra.api import kinds
from tests.browser.conftest import Tab
from tests.browser.stage import Stage, pod

NODES = 2_000
pytestmark = pytest.mark.skipif("HAMI_DRA_SOAK" not in os.environ, reason="make soak runs it")

PAINT = """() => new Promise((done) => { const told = performance.getEntriesByName("first-contentful-paint")[0];
  if (told) done(told.startTime); else new PerformanceObserver((list) => done(list.getEntries()[0].startTime))
    .observe({type: "paint", buffered: true}); })"""


@pytest.fixture(scope="module")
def stage():
    with Stage(NODES) as running:
        yield running


@pytest.mark.timeout(900)
def test_two_thousand_nodes_stay_usable(browser, stage, capsys):
    lines = []
    opened = Tab(browser, stage.url, locale="en-US", viewport={"width": 1366, "height": 850})
    for path in ("/", "/nodes", "/node?name=a100-0000", "/pods", "/pending", "/decisions", "/quota"):
        page = opened.open(path)
        paint = page.evaluate(PAINT)
        elements = page.evaluate("document.querySelectorAll('*').length")
        lines.append(f"{path:<24} first paint {paint:6.0f} ms, {elements} elements")
        assert elements < 8_000, "what is shown does not grow with the cluster"
    opened.open("/pods?q=late-pod")
    opened.live()
    for number in range(5):
        start = time.monotonic()
        stage.create(
            kinds.POD, pod(f"late-pod-{number}", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}, namespace="team-b")
        )
        opened.page.wait_for_selector(f"tr:has-text('late-pod-{number}') a[href^='/node?']", timeout=60_000)
        lines.append(f"a new pod with its node is shown after {1000 * (time.monotonic() - start):6.0f} ms")
    opened.check()
    opened.context.close()
    with capsys.disabled():
        print(f"\n{NODES} nodes, " + "\n".join(lines))  # noqa: T201 (what `make soak` is to report)
