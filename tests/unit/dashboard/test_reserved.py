"""Why is this device not free: held for a gang, on the page of the node, of the device, and of pending pods."""

import asyncio
import re
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from controller.dashboard import render
from controller.dashboard.history import History
from controller.dashboard.pages import site
from controller.dashboard.readings import Readings
from controller.gangs import GangKey, GangState
from controller.views.overview import Held
from tests.cards import card, pod, slice_of
from tests.unit.dashboard.test_access import Empty
from tests.unit.insight.test_overview import cluster, holding, share

KEY = GangKey("labels", "default", "train")
DEVICE = "nvidia.hami.io/n1/gpu-0"


class Gang(Empty):
    """A member that runs, one that has its devices and waits, and one that has none."""

    def __init__(self):
        super().__init__()
        self.held = []
        for name, device in (("runs", "gpu-1"), ("waits", "gpu-0")):
            made = holding(name, share(device))
            allocation = replace(made.status.allocation, allocation_timestamp="2026-11-21T08:00:00Z")
            status = replace(made.status, allocation=allocation)
            self.held.append(replace(made, metadata=replace(made.metadata, uid=name), status=status))
        self.all = [
            pod(name, resourceClaims=[{"name": "c", "resourceClaimName": name}], nodeName=node)
            for name, node in (("runs", "n1"), ("waits", ""), ("misses", ""))
        ]
        self.inventory = cluster(slice_of("n1", [card(0), card(1)]), claims=self.held)
        self.decisions.of_pod = lambda _key, brief=False: None

    def pods(self):
        return self.all

    def pending_pods(self):
        return [each for each in self.all if not each.spec.node_name]

    def pods_of(self, key):
        return [each for each in self.all if each.key == key]

    def claim(self, key):
        return next((each for each in self.held if each.key == key), None)

    def claims_on(self, device):
        return [each for each in self.held if device in {result.device_id for result in each.results}]

    def gang_key(self, _pod):
        return KEY

    def gang_keys(self):
        return [KEY]

    def gang(self, key):
        return GangState(key, 3, tuple(self.all), 1, 0)

    def held_for(self, _key):
        return Held("gang", None, datetime(2026, 11, 21, 8, 2, tzinfo=UTC))


@pytest.fixture
def gang():
    return Gang()


class Alone(Gang):
    """The same pods, without a gang: places are held for two that wait."""

    kind = "reserved"

    def gang_key(self, _pod):
        return None

    def gang_keys(self):
        return []

    def held_for(self, _key):
        since, until, begin = (datetime(2026, 11, 21, 8 + hours, 1, tzinfo=UTC) for hours in range(3))
        return Held(self.kind, since, until, begin)


@pytest.fixture
def shown(gang):
    return shown_of(gang)


def shown_of(source):
    pages = site(source, History(), Readings(None)).pages

    def shown(path, language="en", **query):
        page = pages[path]
        return render.fragment(page.template, asyncio.run(page.context(query)), language)

    return shown


def test_the_page_of_a_node_says_for_whom_and_until_when(shown):
    text = shown("/node", name="n1")
    assert text.count("held for gang default/train") == 2  # the tile, and its name for those who do not see it
    table = text[text.index('id="reserved"') :]
    assert "default/</span>train" in table
    assert "2026-11-21 08:02:00" in table
    assert "gpu-0" in table.partition("</section>")[0]
    assert "gpu-1" not in table.partition("</section>")[0]
    assert "为 gang default/train 保留" in shown("/node", "zh", name="n1")


def test_the_page_of_a_device_says_so_first(shown):
    text = shown("/device", id=DEVICE)
    assert "held for gang default/train</a>" in text.partition('class="two"')[0]
    assert "held" not in shown("/device", id=DEVICE.replace("gpu-0", "gpu-1"))


def test_the_gang_is_one_entry_that_says_what_it_holds(shown):
    text = shown("/pending")
    assert text.count('<details class="row"') == 1
    assert "2 of 3 placed, held on n1" in text
    assert 'datetime="2026-11-21T08:00:00Z"' in text
    assert "given back at 2026-11-21 08:02:00 at the latest" in text


def test_the_table_of_devices_says_held(shown):
    text = shown("/devices")
    assert text.count('title="held for gang default/train"') == 1


def test_the_table_of_pods_says_held(shown):
    text = shown("/pods")
    assert text.count('title="held for gang default/train"') == 1


def test_the_overview_counts_them(shown):
    assert "1 held for pods that wait" in shown("/")


def test_the_table_of_gangs_says_what_each_needs_has_and_holds(shown):
    text = shown("/gangs")
    assert text.count("<tbody>") == 1
    cells = [" ".join(each.split()) for each in re.findall(r'data-label="[^"]*">(.*?)</td>', text)]
    assert re.sub("<[^>]*>", "", cells[1]) == "devices held"
    assert cells[2:5] == ["3", "3", "1"]
    assert "until 2026-11-21 08:02:00" in cells[5]
    assert "n1" in cells[6]
    assert "No gang matches" in shown("/gangs", state="running")
    assert "No gang matches" in shown("/gangs", q="elsewhere")


@pytest.mark.parametrize(
    ("needed", "nodes", "state"),
    [
        (2, ("n1", "n2"), "running"),
        (1, ("n1", ""), "growing"),
        (2, ("", ""), "waiting"),
        (3, ("", ""), "incomplete"),
        (0, ("", ""), "invalid"),
    ],
)
def test_the_state_of_a_gang(shown, gang, needed, nodes, state):
    gang.held, bound = [], sum(map(bool, nodes))
    members = tuple(pod(f"p{number}", nodeName=node) for number, node in enumerate(nodes))
    problem = "" if needed else "pod default/p0 of gang default/train lacks min-available"
    gang.gang = lambda key: GangState(key, needed, members, bound, 0, problem=problem)
    text = shown("/gangs", state=state)
    assert f"chip g-{state}" in text
    assert problem in text


@pytest.mark.parametrize(
    ("kind", "words", "chinese"),
    [
        ("reserved", "reserved for pod default/waits, which has waited for long", "为久等的 Pod default/waits 预留"),
        ("preemption", "held for pod default/waits, which preempts", "为抢占中的 Pod default/waits 保留"),
        ("moves", "held for pod default/waits, for which others move", "为等待其他 Pod 迁移的 Pod default/waits 保留"),
    ],
)
def test_a_place_that_is_held_for_a_pod_is_shown_wherever_one_of_a_gang_is(kind, words, chinese):
    alone = Alone()
    alone.kind = kind
    shown = shown_of(alone)
    node = shown("/node", name="n1")
    assert words in node
    assert "2026-11-21 09:01:00" in node[node.index('id="reserved"') :]
    assert chinese in shown("/node", "zh", name="n1")
    assert "may move for it at 2026-11-21 10:01:00" in shown("/device", id=DEVICE)
    for path, query in (("/device", {"id": DEVICE}), ("/devices", {}), ("/pods", {}), ("/pending", {})):
        assert words in shown(path, **query), path
    assert "1 held for pods that wait" in shown("/")
