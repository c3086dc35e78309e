"""The overview of a cluster of one vendor, as most are: it fills the page, and fits a phone."""

import pytest

from tests.browser.stage import ONE_VENDOR, Stage


@pytest.fixture(scope="module")
def stage():
    with Stage(4, machines=ONE_VENDOR) as running:
        yield running


@pytest.mark.parametrize("width", [360, 700, 1440, 2560])
def test_one_vendor_fills_the_page(tab, width):
    opened = tab(viewport={"width": width, "height": 900})
    page = opened.open("/")
    opened.live()
    needed, there = opened.width()
    assert needed <= there, "no sideways scrolling"
    panel, whole = (page.locator(each).first.bounding_box() for each in (".vendor", "main"))
    assert panel["width"] > 0.9 * whole["width"]
    assert page.locator(".products > div").count() == 2
    assert page.locator(".nodes > li").count() == 4
    opened.keep(f"overview-one-vendor-{width}")
