"""The page in a real browser: a fleet of fifty nodes of five vendors, the real controller, nothing pretended but the cluster."""

import json
import re

import pytest

from hami_dra.api import kinds
from tests.browser.stage import pod

PAGES = {
    "overview": "/",
    "nodes": "/nodes",
    "devices": "/devices",
    "node": "/node?name=a100-0000",
    "node-zones": "/node?name=c500-0000",
    "card": "/device?id=nvidia.hami.io/a100-0000/gpu-2",
    "pods": "/pods",
    "gangs": "/gangs",
    "claims": "/claims",
    "pending": "/pending",
    "decisions": "/decisions",
    "decision": "/decision?pod=team-a/infer-0000",
    "refusal": "/decision?pod=team-b/too-large-0",
    "quota": "/quota",
    "whatif": "/whatif",
}
PHONE = {"width": 360, "height": 740}


NAMELESS = """() => [...document.querySelectorAll("a, button, input:not([type=hidden]), select, svg[role=img], [role=region]")]
  .filter((each) => !each.closest("[aria-hidden=true]") && !(each.getAttribute("aria-label")
    || each.getAttribute("aria-labelledby") || each.textContent.trim() || (each.labels || []).length))
  .map((each) => each.outerHTML)"""
WITHOUT_HEADS = (
    "() => [...document.querySelectorAll('table')].filter((e) => !e.querySelector('thead th[scope=col]')).length"
)
DOUBLE_IDS = """() => { const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  return ids.filter((each, place) => ids.indexOf(each) !== place) }"""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_says_what_it_has_and_fits_a_phone(tab, name):
    opened = tab()
    page = opened.open(PAGES[name])
    assert page.locator("h1").count() == page.locator("main").count() == 1
    if name != "whatif":
        opened.live()
    opened.keep(name)
    # for those who do not see
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(WITHOUT_HEADS) == 0
    assert page.evaluate(DOUBLE_IDS) == []
    page.set_viewport_size(PHONE)
    needed, there = opened.width()
    assert needed <= there, "a phone would have to scroll sideways"
    if name in ("overview", "node", "pods"):
        opened.keep(f"{name}-phone")


LINES = """() => [...document.querySelectorAll("tbody tr")].map((row) => {
  const style = getComputedStyle(row), text = getComputedStyle(row.querySelector("td"));
  const inner = row.getBoundingClientRect().height - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
  return Math.round(inner / (parseFloat(text.lineHeight) || 1.2 * parseFloat(text.fontSize)) * 10) / 10 })"""


@pytest.mark.parametrize("width", [360, 390])
def test_a_row_of_pods_takes_four_lines_of_a_phone(tab, width):
    opened = tab(viewport={"width": width, "height": 740})
    page = opened.open(PAGES["pods"])
    lines = page.evaluate(LINES)
    assert len(lines) > 20
    assert max(lines) < 5, lines
    opened.keep(f"pods-{width}")


@pytest.mark.parametrize("name", ["overview", "node", "decision"])
def test_chinese_and_dark(tab, name):
    opened = tab(locale="zh-CN", color_scheme="dark")
    page = opened.open(PAGES[name])
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    assert "节点" in page.locator("nav").first.inner_text()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, re.findall(r"\d+", background)[:3])) < 150
    opened.keep(f"{name}-zh-dark")


def test_real_use_stands_beside_allocation(tab):
    opened = tab()
    page = opened.open("/")
    opened.live()
    page.wait_for_selector("text=readings of 49 of 50 nodes", timeout=15_000)
    assert page.locator("svg.bar.real").count() == 10  # memory and utilisation of five vendors
    opened.keep("overview-real")
    page = opened.open("/node?name=a100-0000")
    assert page.locator("section[aria-labelledby=devices] th").all_inner_texts()[-1] == "gpu-7"
    assert "Power" not in page.locator("section[aria-labelledby=devices] thead").inner_text(), "no columns of dashes"
    assert page.locator("text=No readings").count() == 1
    page = opened.open("/node?name=c500-0000")
    assert "simulated" in page.locator("section[aria-labelledby=devices] header").inner_text()
    assert " W" in page.locator("section[aria-labelledby=devices] tbody tr").first.inner_text()
    page = opened.open("/device?id=nvidia.hami.io/a100-0001/gpu-2")
    page.wait_for_selector("text=°C")
    opened.keep("card-real")


def test_a_new_pod_appears_by_itself(tab, stage):
    opened = tab()
    page = opened.open("/pods?q=live-pod")
    opened.live()
    assert page.locator("table").count() == 0
    stage.create(kinds.POD, pod("live-pod", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}))
    page.wait_for_selector("text=live-pod >> nth=0", timeout=15_000)
    page.wait_for_selector("tbody a[href^='/node?']", timeout=15_000)
    stage.delete(kinds.POD, "live-pod", "team-a")
    page.wait_for_selector(".empty", timeout=15_000)


def test_what_one_has_opened_stays_open_when_news_come(tab, stage):
    opened = tab()
    page = opened.open("/decision?pod=team-b/too-large-0")
    opened.live()
    first = page.locator("details.explained").first
    first.locator("summary").first.click()
    assert first.evaluate("each => each.open")
    first.locator("summary").first.focus()
    decided = page.locator(".lead time").get_attribute("datetime")
    # a new decision on the same pod: the page says when it was made
    stage.delete(kinds.POD, "too-large-0", "team-b")
    stage.create(kinds.POD, pod("too-large-0", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 900_000}, namespace="team-b"))
    page.wait_for_selector(f".lead time:not([datetime='{decided}'])", timeout=15_000)
    assert first.evaluate("each => each.open")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


HOSTILE = (
    "<script>alert(1)</script>'\"><img src=x onerror=alert(2)><svg onload=alert(3)>{{7*7}}\r\ndata: <b>\n\nevent: gone"
)


def test_hostile_words_of_manifests_do_nothing(tab, stage):
    """Names cannot hold markup on a real API server; the page does not rely on it."""
    node = stage.do(stage.cluster.get(kinds.NODE, "v100-0003"))
    labels = {"metadata": {"labels": {"evil": "<script>alert(4)</script>"}, "annotations": {"evil": HOSTILE}}}
    stage.do(stage.cluster.patch(kinds.NODE, node.metadata.name, labels))
    name = "evil-<img src=x onerror=alert(5)>"
    body = pod(
        name, {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 500}, annotations={"hami.io/gpu-scheduler-policy": HOSTILE}
    )
    stage.create(kinds.POD, body)
    body = pod("evil\"onmouseover='alert(6)'", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 500})
    stage.create(kinds.POD, {**body, "spec": {**body["spec"], "nodeSelector": {}}})
    opened = tab()
    page = opened.open("/pods?q=evil")
    opened.live()
    page.wait_for_selector("text=onerror >> nth=0", timeout=15_000)
    for path in ("/pods?q=evil", "/claims?q=evil", "/pending", "/decisions?q=evil", "/node?name=v100-0003"):
        opened.open(path)
        opened.live()
        assert (
            page.locator("#main script, #main img, #main [onload], #main [onerror], #main [onmouseover]").count() == 0
        )
    page.goto("/pods?q=" + "%3Cscript%3Ealert(7)%3C/script%3E", wait_until="domcontentloaded")
    assert page.locator("input[name=q]").input_value() == "<script>alert(7)</script>"
    stage.delete(kinds.POD, name, "team-a")
    stage.delete(kinds.POD, "evil\"onmouseover='alert(6)'", "team-a")


def test_everything_is_reached_with_the_keyboard(tab):
    opened = tab()
    page = opened.open("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.goto("/nodes", wait_until="domcontentloaded")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        element = "document.activeElement"
        reached.add(page.evaluate(f"{element}.getAttribute('href') || {element}.name || {element}.tagName"))
        outline = page.evaluate(f"getComputedStyle({element}).outlineStyle")
        assert outline != "none", "what has the focus shows it"
    assert {"/pods", "q", "state", "vendor", "/export/nodes.csv", "/node?name=a100-0000"} <= reached
    page.locator("a[href='/node?name=a100-0000']").first.press("Enter")
    page.wait_for_url("**/node?name=a100-0000")


LUMINANCE = """() => {
  const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length > 3 && n[3] === 0 ? null : n.slice(0, 3); };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c) return c; } return [255, 255, 255]; };
  const bad = [];
  for (const e of document.querySelectorAll("body *")) {
    if (e.closest("svg") || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.offsetParent) continue;
    const a = light(parse(getComputedStyle(e).color)), b = light(ground(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(ratio.toFixed(2) + " " + e.outerHTML.slice(0, 100));
  }
  return bad;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(tab, scheme):
    """WCAG 2.2, 1.4.3: 4.5 to 1."""
    opened = tab(color_scheme=scheme)
    for name in ("overview", "node", "pending", "decision", "quota"):
        page = opened.open(PAGES[name])
        assert page.evaluate(LUMINANCE) == [], name


def test_filters_and_sorting_need_no_button(tab):
    opened = tab()
    page = opened.open("/pods")
    opened.live()
    assert page.locator("form.search button").count() == 0 or not page.locator("form.search button").is_visible()
    page.locator("input[name=q]").press_sequentially("train-")
    page.wait_for_url("**/pods?*q=train-*")
    page.wait_for_function("[...document.querySelectorAll('tbody th')].every((e) => e.innerText.includes('train-'))")
    assert page.evaluate("document.activeElement.name") == "q", "typing goes on"
    page.locator("a.sort", has_text="Memory").click()
    page.wait_for_selector("th[aria-sort=ascending]:has-text('Memory')")
    page.locator("a.sort", has_text="Memory").click()
    page.wait_for_selector("th[aria-sort=descending]")
    assert page.locator("input[name=q]").input_value() == "train-"
    opened.live()


def test_trends_have_an_axis_and_follow_the_cursor(tab):
    opened = tab()
    page = opened.open("/")
    page.wait_for_selector("#t-allocated-plot canvas")
    figure = page.locator("figure.trend").first
    latest = figure.locator(".series b").first.inner_text()
    page.locator("#t-allocated-plot .u-over").hover()
    page.wait_for_function("document.querySelector('.series .at').textContent.endsWith('UTC')")
    assert latest.endswith("%")
    opened.live()
    page.wait_for_selector("#t-allocated-plot canvas")
    opened.keep("overview-trends")


def test_the_range_of_the_trends_is_a_link(tab):
    opened = tab()
    page = opened.open("/")
    page.wait_for_selector("#t-allocated-plot canvas")
    page.locator(".spans a", has_text="24 h").click()
    page.wait_for_url("**/?range=24h")
    page.wait_for_selector(".spans a[aria-current]:has-text('24 h')")
    page.wait_for_selector("#t-allocated-plot canvas")
    chart = json.loads(page.locator("#t-allocated-plot").get_attribute("data-chart"))
    assert chart["x"][0] - 900 <= chart["from"] <= chart["x"][0] + 900, "the axis begins with the first sample"
    opened.live()


def test_keys_go_places_and_can_be_turned_off(tab):
    opened = tab()
    page = opened.open("/")
    page.keyboard.press("g")
    page.keyboard.press("p")
    page.wait_for_url("**/pods")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.type("g")  # in a field a letter is a letter
    page.keyboard.press("Escape")
    page.keyboard.press("]")
    page.wait_for_url("**/pods?leaf=2*")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    opened.keep("keys")
    page.locator("#keys-on").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("n")
    assert "/pods" in page.url
    page.locator("#keys-open").click()
    page.locator("#keys-on").check()


def test_a_command_is_copied(tab):
    opened = tab(permissions=["clipboard-read", "clipboard-write"])
    page = opened.open("/pending?q=too-large")
    page.locator(".row summary").first.click()
    button = page.locator("button.copy").first
    button.click()
    page.wait_for_selector("button.copy:has-text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == "hami-dra explain too-large-0 -n team-b"


def test_pending_pods_are_rows_by_kind_that_open_and_stay_open(tab):
    opened = tab()
    page = opened.open("/pending")
    heights = [row.bounding_box()["height"] for row in page.locator(".row summary").all()]
    assert max(heights) <= 60
    page.locator(".filters a", has_text="never fits").click()
    page.wait_for_url("**/pending?kind=never")
    assert page.locator(".rows h2").all_inner_texts() == ["never fits"]
    page.locator(".row summary").first.click()
    assert page.locator(".row[open] .actions code").count() == 1
    opened.live()
    assert page.locator(".row[open]").count() == 1


def test_the_switches_hold(tab):
    opened = tab()
    page = opened.open("/quota")
    page.locator(".settings summary").click()
    page.locator("button[value=zh]").click()
    page.wait_for_url("**/quota")
    assert page.locator("h1").inner_text() == "配额"
    page.locator(".settings summary").click()
    page.locator("button[value=dark]").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.locator("h1").inner_text() == "配额"


def test_reading_needs_no_scripts(tab):
    opened = tab(java_script_enabled=False)
    page = opened.open("/")
    assert page.locator("figure.trend svg polyline").count() == 6  # five vendors, and the pods that wait
    assert page.locator("figure.trend .x span").count() == 10
    page.locator("nav a", has_text="Nodes").click()
    page.locator("input[name=q]").fill("trn1")
    page.locator("form.search button").click()
    assert page.locator(".nodes > li").count() == 6
    page.locator(".nodes a").first.click()
    assert page.locator("h1").inner_text() == "trn1-0000"
    page.goto("/pods", wait_until="domcontentloaded")
    page.locator("a.sort", has_text="Memory").click()
    assert page.locator("th[aria-sort]").inner_text().startswith("Memory")
    opened.check = lambda: None  # asks a script


def test_a_trial_says_what_would_be_different(tab):
    opened = tab()
    page = opened.open("/whatif")
    page.locator("select[name=node-policy]").select_option("spread")
    page.locator("input[name=override]").check()
    page.locator("form.trial button").click()
    page.wait_for_selector("#result", timeout=30_000)
    assert page.locator(".figures dd").count() == 5
    assert page.locator("table tbody tr").count() > 5
    opened.keep("whatif-result")
