"""What the page is made of: both languages complete, everything escaped, drawings, leaves, frames of the stream."""

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controller.dashboard import drawing, fabric, pages, render, trends, wording
from controller.dashboard.cardpages import MOST_TILES, NODES_ON_LEAF, tiles
from controller.dashboard.fleet import NodeRow, picked
from controller.dashboard.history import MOST_OF_CARD, MOST_SAMPLES, History
from controller.dashboard.preferences import Preferences
from controller.dashboard.readings import CardReading, Readings
from controller.dashboard.source import ControllerState
from controller.dashboard.stream import event
from controller.dashboard.tables import PageTable, exported, ordered, page_slice
from controller.reasons import CATALOGUE
from controller.reconcile.runtime import Mode
from controller.views.columns import Column
from controller.views.overview import ContainerUse
from controller.views.overview.model import Card, Packing, Tenant
from hami_dra.api.resource import ResourceClaim
from tests.unit.dashboard.test_access import Empty

STATE = ControllerState("1.0", Mode.EXCLUSIVE, True, "holds")
DASHBOARD = Path(render.__file__).parent
TEMPLATES = sorted((DASHBOARD / "templates").glob("*.html"))


"""Of HAMi's codes, those that no decision gives."""


def tables():
    """Return all tables of the pages."""
    made = pages.site(Empty(), History(), Readings(None))
    listings = {each.__self__ for each in (*(page.read for page in made.pages.values()), *made.exports.values())}
    return [each for each in listings if isinstance(each, PageTable)]


def messages():
    found = {code.english for code in CATALOGUE.values()} | {title for _, title, _ in pages.MENU}
    found |= {"rank", "topology", "node score", "tie", "name", "nominated"}  # keys of controller.views.explanation
    found |= set(re.findall(r'Page\("[^"]*", "[^"]*", "([^"]*)"', (DASHBOARD / "pages.py").read_text()))
    found |= {column.title for table in tables() for column in table.columns if column.title}
    found |= set(re.findall(r'notices\.append\(\s*\("([^"]*)"', (DASHBOARD / "app.py").read_text()))
    for template in TEMPLATES:
        text = template.read_text()
        found |= set(re.findall(r'\bt\("([^"]*)"', text)) | set(re.findall(r"\bt\('([^']*)'", text))
        for pair in re.findall(r'\bt\.count\([^"]*"([^"]*)", "([^"]*)"', text):
            found |= set(pair)
        for table in re.findall(r'\{("[a-z0-9/]+": "[^"]*"(?:, "[a-z0-9/]+": "[^"]*")*)\}', text):
            found |= set(re.findall(r': "([^"]*)"', table))
        found |= set(re.findall(r'\.get\(path, "([^"]*)"\)', text))
    return found


def test_the_catalogue_is_complete_and_has_nothing_more():
    assert messages() - set(render.MESSAGES["zh"]) == set()
    assert set(render.MESSAGES["zh"]) - messages() == set()


def test_a_message_has_the_same_figures_in_both_languages():
    for english, found in render.MESSAGES["zh"].items():
        assert sorted(re.findall(r"\{\w*\}", english)) == sorted(re.findall(r"\{\w*\}", found)), english


def test_no_template_lets_markup_through():
    for template in TEMPLATES:
        text = template.read_text()
        allowed = ["{{ body | safe }}"] if template.name == "layout.html" else []
        assert re.findall(r"\{\{[^}]*\bsafe\b[^}]*\}\}", text) == allowed, template.name
        assert "autoescape" not in text
        assert re.findall(r"\son\w+=|\sstyle=|javascript:", text) == [], f"{template.name}: the policy forbids it"
    assert render.environment().autoescape is True


EVIL = "<script>alert(1)</script>\"'>"


def evil_card():
    tenant = Tenant(namespace=EVIL, claim=EVIL, pod=EVIL, device="d", memory=1, cores=0, shares=1)
    return card(node=EVIL, uuid=EVIL, product=EVIL, health=EVIL, tenants=(tenant,))


def card(**changes):
    values = {
        "node": "n", "driver": "nvidia.hami.io", "vendor": "nvidia", "pool": "p", "device": "d", "uuid": "u", "product": "x",
        "index": 0, "numa": 0, "island": 0, "links": "", "memory_total": 100, "memory_used": 0, "cores_total": 100, "cores_used": 0,
        "shares_total": 10, "shares_used": 0, "health": "", "cordoned": False, "exclusive": False, "parts_used": 0, "free": True,
        "tenants": (),
    }  # fmt: skip
    return Card(**{**values, **changes})


def test_words_of_manifests_are_text_everywhere_also_in_drawings():
    one = evil_card()
    marks = drawing.markers([one])
    context = {
        "card": one, "drawn": drawing.drawn(one, marks), "marks": marks, "stays": [], "since": datetime.now(UTC),
        "attributes": [(EVIL, EVIL)], "has_readings": True, "reading": CardReading(memory_used=5, power=70.4, simulated=True),
        "containers": (
            ContainerUse(namespace=EVIL, pod=EVIL, container=EVIL, memory_used=3 << 30, memory_limit=4 << 30, utilization=12.4),
            ContainerUse(namespace="n", pod="p", container="c"),
        ),
    }  # fmt: skip
    for language in ("en", "zh"):
        text = render.fragment("device.html", context, language)
        assert "<script" not in text
        assert EVIL not in text
        assert "70 W" in text
        assert "12%" in text
    page = pages.Page("/device", "device.html", "Device", "/nodes", lambda _: {})
    frame = render.Frame(page, here=f"/device?id={EVIL}", state=STATE)
    whole = render.whole(frame, render.fragment("device.html", context, "en"), Preferences())
    assert re.findall(r"<script(?! src=\"/static/)", whole) == []
    assert EVIL not in whole


@pytest.mark.parametrize("text", ["a\nevent: gone\n\ndata: x", "a\r\rb", "\r\n\n", "x\n\n<script>"])
def test_no_text_ends_a_frame_or_begins_another(text):
    lines = event(text).decode().split("\n")
    assert lines[-2:] == ["", ""]
    assert all(line.startswith("data: ") for line in lines[:-2])
    assert "\r" not in event(text).decode()


def test_links_carry_any_name():
    assert render.link("/node", name="a b&c=<d>") == "/node?name=a+b%26c%3D%3Cd%3E"
    assert render.link("/nodes", q="", leaf=2) == "/nodes?leaf=2"


def test_amounts_as_people_read_them():
    gib = 1 << 30
    assert [wording.amount(each) for each in (0, 16 * gib, 7500 << 20, 640 * gib, 1536 << 30)] == [
        "0 B", "16 GiB", "7.32 GiB", "640 GiB", "1.5 TiB",
    ]  # fmt: skip
    assert [wording.percent(*each) for each in ((0, 8), (1, 1000), (999, 1000), (8, 8), (1, 3))] == [
        "0%",
        "<1%",
        "99%",
        "100%",
        "33%",
    ]
    assert [wording.permille(*each) for each in ((0, 5), (1, 10**9), (5, 5), (9, 5), (1, 0))] == [0, 1, 1000, 1000, 0]
    assert wording.count(1440) == "1,440"
    assert [wording.score(each) for each in (0.0, 10.0, 4.917)] == ["0", "10", "4.92"]
    assert wording.moment("2026-11-21T12:00:00+01:00") == "2026-11-21 11:00:00"
    assert wording.moment("no moment") == "no moment"


async def test_rows_are_sorted_and_exported():
    async def text(rows, form):
        async def given():
            for row in rows:
                yield row

        return "".join([each async for each in exported(given(), form)])

    rows = [{"pod": "b", "cores": 30}, {"pod": "=cmd", "cores": 5}]
    columns = (Column("pod", sort=lambda each: each["pod"]), Column("cores", sort=lambda each: each["cores"]))
    assert await ordered(rows, columns, {}) == (rows[::-1], {})
    assert await ordered(rows, columns, {"sort": "cores", "order": "desc"}) == (
        rows,
        {"sort": "cores", "order": "desc"},
    )
    assert await ordered(rows, columns, {"sort": "nonsense"}) == (rows[::-1], {})
    assert await text(rows, "csv") == "pod,cores\r\nb,30\r\n'=cmd,5\r\n", "no spreadsheet runs a formula"
    assert json.loads(await text(rows, "json")) == rows
    assert await text([], "csv") == ""
    assert json.loads(await text([], "json")) == []


def test_leaves():
    assert page_slice(range(0), "", 10).last == 0
    found = page_slice(range(25), "3", 10)
    assert (list(found.items), found.first, found.last, found.of) == ([20, 21, 22, 23, 24], 21, 25, 3)
    assert list(page_slice(range(22), "2", 10).items) == list(range(10, 22)), "no page for two rows"
    for asked in ("99", "-1", "x", "٣", "9" * 50):
        assert 1 <= page_slice(range(25), asked, 10).number <= 3


def row(number, state="free"):
    return NodeRow(f"node-{number:04}", ("nvidia",), state, True, False, 8, 4, 0, 100, 50)


def test_tiles_do_not_grow_with_the_cluster():
    assert [tile.nodes for tile in tiles([row(n) for n in range(50)])] == [1] * 50
    many = tiles([row(n, "full" if n % 9 else "free") for n in range(2_000)])
    assert len(many) <= MOST_TILES
    assert sum(tile.nodes for tile in many) == 2_000
    assert many[-1].leaf <= 2_000 // NODES_ON_LEAF + 1
    assert {tile.state for tile in many[:3]} == {"free"}


def test_nodes_are_picked_by_what_is_asked():
    rows = [row(1), row(2, "full")]
    assert picked(rows, text="0002") == picked(rows, state="full") == rows[1:]
    assert picked(rows, vendor="metax") == []


def test_a_card_is_drawn_by_what_its_tenants_hold():
    tenants = [
        Tenant(namespace="ns", claim=f"c{n}", pod=f"p{n}", device="d", memory=25, cores=0, shares=1) for n in range(2)
    ]
    drawn = drawing.drawn(
        card(tenants=tuple(tenants), memory_used=50, free=False), drawing.markers([card(tenants=tuple(tenants))])
    )
    assert [(each.x, each.width, each.marker.letter) for each in drawn.segments] == [
        (0.0, 50.0, "A"),
        (50.0, 50.0, "B"),
    ]
    assert drawn.state == "partly"
    assert drawing.drawn(card(health="xid=xid-79", free=False), {}).state == "unhealthy"
    assert drawing.drawn(card(exclusive=True, free=False), {}).state == "full"
    assert [drawing.letter(n) for n in (0, 25, 26, 701, 702)] == ["A", "Z", "AA", "ZZ", "AAA"]


def linked(rows):
    return [drawing.drawn(card(index=n, device=f"d{n}", links=links), {}) for n, links in enumerate(rows)]


def test_links_are_drawn_as_what_they_are():
    found = fabric.fabric(linked(["-c0", "c-1", "01-"]))
    assert (found.kind, [(line.one, line.other, line.lanes, line.weight) for line in found.lines]) == (
        "links",
        [("0", "1", 12, 6), ("1", "2", 1, 1)],
    )
    switch = fabric.fabric(linked([f"{'c' * n}-{'c' * (7 - n)}" for n in range(8)]))
    assert (switch.kind, switch.lanes, len(switch.lines)) == ("switch", 12, 8), "one line for each device, not 28"
    mesh = fabric.fabric(linked([f"{'1' * n}-{'1' * (7 - n)}" for n in range(8)]))
    assert mesh.kind == "mesh", "seven lanes of each device: no switch is needed"
    assert fabric.fabric(linked(["-444", "4-44", "44-4", "444-"])).kind == "links"
    assert fabric.fabric(linked(["zz?"])) is None
    assert fabric.fabric(linked(["-0", "0-"])) is None


def test_a_pcie_tree_has_its_numa_nodes_and_roots():
    cards = [drawing.drawn(card(device=f"d{n}", index=n, numa=n // 2), {}) for n in range(4)]
    roots = {each.card.id: "pci0000:00" if n < 2 else f"pci0000:8{n}" for n, each in enumerate(cards)}
    found = fabric.pcie_tree(cards, roots)
    assert [(each.label, len(each.below)) for each in found.numa] == [("0", 1), ("1", 2)]
    assert [(each.label, len(each.below)) for each in found.roots] == [
        ("pci0000:00", 2), ("pci0000:82", 1), ("pci0000:83", 1),
    ]  # fmt: skip
    assert [dot.number for dot in found.dots] == ["0", "1", "2", "3"]
    assert fabric.pcie_tree(cards, roots | {cards[0].card.id: ""}) is None


def claim(name, device=""):
    allocation = (
        {"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": device}]}} if device else None
    )
    import msgspec

    raw = {"metadata": {"name": name, "namespace": "ns"}, "status": {"allocation": allocation} if device else {}}
    return msgspec.convert(raw, ResourceClaim)


def test_the_history_of_a_card_is_kept_and_bounded():
    history = History(most_cards=2)
    history.claim_changed(claim("a"), claim("a", "x"))
    history.claim_changed(claim("a", "x"), claim("a"))
    history.claim_changed(None, claim("b", "x"))
    (still, past) = drawing.tenant_segments(history.of_card("d/p/x"))
    assert (still.claim, still.until, past.claim) == ("b", None, "a")
    assert past.since <= past.until
    for number in range(MOST_OF_CARD):
        history.claim_changed(None, claim(f"c{number}", "x"))
    assert len(history.of_card("d/p/x")) == MOST_OF_CARD
    for device in ("y", "z"):
        history.claim_changed(None, claim(device, device))
    assert history.of_card("d/p/x") == []


def test_a_day_is_kept_in_steps_of_three_minutes():
    history, start = History(), datetime(2026, 11, 21, tzinfo=UTC)
    for number in range(4 * 60 * 30):
        history.sample([], number, start + timedelta(seconds=15 * number))
    times = [at for at, _ in history.pending()]
    assert times == sorted(times)
    assert len(times) == 2 * MOST_SAMPLES
    assert timedelta(hours=25, minutes=55) < times[-1] - times[0] < timedelta(hours=26)


def test_a_trend_begins_with_the_first_sample():
    history, now = History(), datetime(2026, 11, 21, 12, tzinfo=UTC)
    for minute, used in enumerate((0, 50, 100)):
        history.sample([packed(used)], minute, now - timedelta(minutes=2 - minute))
    samples = [(each.at, 100 * each.allocated) for each in history.of_driver("nvidia.hami.io")]
    found = trends.chart({"nvidia": samples}, now, unit="%", top=100)
    assert found.times == ("11:58:00", "11:58:30", "11:59:00", "11:59:30", "12:00:00")
    assert found.lines[0].points == "0.0,120.0 360.0,60.0 720.0,0.0"
    data = json.loads(found.data)
    assert (data["to"] - data["from"], data["series"][0]["values"]) == (120, [0.0, 50.0, 100.0])
    assert trends.chart({"pending": history.pending()}, now).top == 4
    assert trends.chart({"other": []}, now) is None
    day = json.loads(trends.chart({"nvidia": samples}, now, span="24h").data)
    assert day["to"] - day["from"] == 120
    assert trends.chart({"nvidia": samples}, now + timedelta(hours=3)) is None, "all of it is too old"


def packed(used):
    return Packing(
        driver="nvidia.hami.io", vendor="nvidia", nodes=1, empty_nodes=0, cards=1, usable_cards=1, free_cards=1, partly_used_cards=0,
        full_cards=0, free_islands={}, free_capacity=1 - used / 100, fragmentation=0.0, memory_total=100, memory_used=used, cores_total=0,
        cores_used=0, shares_total=0, shares_used=0,
    )  # fmt: skip


def colours(scheme):
    """The variables of the style sheet: those of the light scheme, or of the dark one."""
    text = (DASHBOARD / "static/page.css").read_text()
    start = text.index(":root {") if scheme == "light" else text.index(':root[data-theme="dark"] {')
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", text[start : text.index("}", start)]))


def contrast(one, other):
    """WCAG 2.2: 1.0 to 21.0."""

    def light(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((light(one), light(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_drawn_stands_out(scheme):
    """Letters and numbers on colours: 4.5 to 1 (1.4.3); shapes on what is behind them: 3 to 1 (1.4.11)."""
    found = colours(scheme)
    for name in (*(f"c{number}" for number in range(10)), "free", "partly", "full", "unhealthy"):
        assert contrast(found["mark-ink"], found[name]) >= 4.5, name
        assert contrast(found[name], found["panel"]) >= 3, name
    for name in ("free", "partly", "full", "unhealthy"):
        assert contrast(found["ink"], found[f"{name}-bg"]) >= 4.5, name
    assert contrast(found["focus"], found["panel"]) >= 3


def test_both_ways_to_a_dark_page_have_the_same_colours():
    text = (DASHBOARD / "static/page.css").read_text()
    blocks = re.findall(r"(?s)(?:not\(\[data-theme=\"light\"\]\)|data-theme=\"dark\"\]) \{(.*?)\}", text)
    assert len(blocks) == 2
    assert len({" ".join(block.split()) for block in blocks}) == 1


VENDORED = {
    "htmx-4.0.1-sse.min.js": "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
    "htmx-4.0.1.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    "uplot-1.6.32.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot-1.6.32.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""Files of others and their SHA-256: uPlot's are those of the npm package, byte for byte."""


def test_what_others_wrote_ships_with_its_licence():
    vendored = {path.name for path in (DASHBOARD / "static" / "vendor").iterdir()}
    assert vendored == {*VENDORED, "htmx-LICENSE", "uplot-LICENSE"}
    for name, digest in VENDORED.items():
        assert hashlib.sha256((DASHBOARD / "static" / "vendor" / name).read_bytes()).hexdigest() == digest, name


def test_what_is_taken_by_nobody_who_is_shown_is_gray():
    tenant = Tenant(namespace="a", claim="c", pod="p", device="d", memory=25, cores=0, shares=1)
    one = card(memory_used=75, free=False, tenants=(tenant,))
    assert drawing.drawn(one, drawing.markers([one])).others == (50.0, 100.0)
    assert drawing.drawn(card(exclusive=True, free=False), {}).others == (0.0, 200.0)
    alone = card(memory_used=25, free=False, tenants=(tenant,))
    assert drawing.drawn(alone, drawing.markers([alone])).others is None
