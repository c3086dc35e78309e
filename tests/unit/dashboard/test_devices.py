"""The table of all devices: filters, order, pages, export, and no more than one leaf of values."""

import asyncio

import pytest

from controller.dashboard import render
from controller.dashboard.fleet import product_rows
from controller.dashboard.history import History
from controller.dashboard.pages import site
from controller.dashboard.readings import Readings
from controller.views.overview import CardTable
from tests.cards import card, slice_of
from tests.unit.dashboard.test_access import Empty
from tests.unit.insight.test_overview import cluster, holding, share

NODES = [f"n{number}" for number in range(1, 21)]


class Fleet(Empty):
    """Twenty nodes of eight devices; on n2 a workload has a part of gpu-3, and gpu-4 is faulty."""

    def __init__(self):
        super().__init__()
        self.held = [holding("c", share("gpu-3", "n2"), pods=["infer"])]
        fault = [{"key": "hami.io/xid", "value": "xid-79", "effect": "NoSchedule"}]
        slices = [
            slice_of(
                node, [card(index, **({"taints": fault} if (node, index) == ("n2", 4) else {})) for index in range(8)]
            )
            for node in NODES
        ]
        self.inventory = cluster(*slices, claims=self.held, nodes=NODES)

    def claims_on(self, device):
        return [each for each in self.held if device in {result.device_id for result in each.results}]


@pytest.fixture
def pages():
    return site(Fleet(), History(), Readings(None))


def test_products_are_counted_by_state():
    table = CardTable(Fleet().inventory)
    table.refresh()
    (row,) = product_rows(table)
    assert (row.cards, row.free, row.partly, row.full, row.unhealthy) == (160, 158, 1, 0, 1)


def test_nodes_are_ordered_by_what_is_free(pages):
    def first(**query):
        return asyncio.run(pages.pages["/nodes"].context(query))["machines"][0].row.name

    assert first() == "n1"
    assert first(sort="used") == "n2"
    assert first(sort="free", q="n2") == "n20"


@pytest.fixture
def found(pages):
    def found(**query):
        context = asyncio.run(pages.pages["/devices"].context(query))
        return [f"{row.card.node}/{row.card.device}" for row in context["rows"]]

    return found


def test_by_node_and_index_in_pages(found):
    assert found()[:9] == [f"n1/gpu-{index}" for index in range(8)] + ["n10/gpu-0"]
    assert len(found()) == len(found(leaf="2")) == 50
    assert found(sort="node", order="desc")[0] == "n9/gpu-7"


def test_by_what_is_taken_of_them(found):
    assert found(sort="memory", order="desc")[0] == "n2/gpu-3"
    assert "n2/gpu-3" not in found(sort="memory")
    assert found(sort="state", order="desc")[0] == "n2/gpu-4"
    assert found(sort="nonsense") == found()


def test_filters(found):
    assert found(state="partly") == ["n2/gpu-3"]
    assert found(state="unhealthy") == ["n2/gpu-4"]
    assert found(q="n2/gpu-3") == found(q="n2/gpu-3", vendor="nvidia") == ["n2/gpu-3"]
    assert found(q="GPU-7")[:2] == ["n1/gpu-7", "n10/gpu-7"]  # the UUID
    assert found(vendor="metax") == found(state="nonsense") == found(q="nothing has this") == []


def test_the_page_and_its_export(pages):
    context = asyncio.run(pages.pages["/devices"].context({"q": "n2/"}))
    text = render.fragment("devices.html", context, "en")
    assert "8 of 160 devices" in text
    assert "xid=xid-79" in text
    assert "infer" in text

    async def exported():
        return [row async for row in pages.exports["devices"]({"state": "partly"})]

    (row,) = asyncio.run(exported())
    assert (row["node"], row["uuid"], row["memoryAllocatedBytes"], row["pods"]) == (
        "n2",
        "GPU-3",
        4 << 30,
        ["default/infer"],
    )
