"""Words of the vendors' tools as values, and places in /sys."""

import pytest

from hami_dra.api.hardware import Card, Fault, PcieDistance
from hami_dra.discovery import reading
from hami_dra.discovery.backend import Listing, PolledBackend
from hami_dra.discovery.errors import ToolFailed, Unexpected, Unreadable, shown
from hami_dra.discovery.indented import entries
from hami_dra.discovery.listing_reader import ListingReader
from hami_dra.discovery.matrix import parse_matrix
from hami_dra.discovery.sysfs import distance, place_of, placed
from hami_dra.vendors.registry import PLUGINS
from tests.support.tools import FakeTools


@pytest.mark.parametrize(
    ("text", "unit", "size"),
    [
        ("65536 MiB", "", 64 << 30),
        ("98304MiB", "", 96 << 30),
        ("96 GB", "", 96 << 30),
        ("64", "GB", 64 << 30),
        ("1024 KiB", "", 1 << 20),
        ("34359738368", "B", 32 << 30),
    ],
)
def test_memory(text, unit, size):
    assert reading.memory(text, unit) == size


@pytest.mark.parametrize(
    "text", ["", "N/A", "0 MiB", "-1 MiB", "12", "1.5 GiB", "9" * 40 + " MiB", "2000000 GiB", "5 TX", "\uff15 MiB"]
)
def test_no_memory(text):
    with pytest.raises(Unexpected, match="expected an amount of memory"):
        reading.memory(text)


@pytest.mark.parametrize(
    ("text", "bus_id"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("00:2D:1f.7", "0000:2d:1f.7"),
        ("cc:00.0", "0000:cc:00.0"),
        ("00010000:cc:00.0", "10000:cc:00.0"),
    ],
)
def test_bus_ids(text, bus_id):
    assert reading.bus_id(text) == bus_id


@pytest.mark.parametrize(
    "text", ["", "N/A", "1b:00", "0000:1b:00.8", "0000:1b:00.0.0", "zz:00.0", "::.", "0000:1b:00.0\n0"]
)
def test_no_bus_ids(text):
    with pytest.raises(Unexpected, match="expected a PCI bus id"):
        reading.bus_id(text)


@pytest.mark.parametrize(
    "text", ["", " ", "-", "N/A", "[N/A]", "[Not Supported]", "Invalid Argument", "unknown", "None"]
)
def test_not_said(text):
    assert reading.said(text) == ""


@pytest.mark.parametrize("text", ["", "-1", "1.0", "4096", "9" * 5000, "\uff11", "0x1"])
def test_no_whole_numbers(text):
    with pytest.raises(Unexpected, match="a whole number from 0 to 4095"):
        reading.whole(text, at_most=4095)


@pytest.mark.parametrize("text", ["", "two words", "ü", "x" * 65, "\x00"])
def test_no_identities(text):
    with pytest.raises(Unexpected, match="expected a uuid"):
        reading.identity(text, "a uuid")


def test_names_are_one_line_and_may_be_left_open():
    assert reading.name(" P800   OAM ", "a name") == "P800 OAM"
    assert [reading.name_if_said(text) for text in ("N/A", None, "x" * 200, "a\x00b", "3.8")] == ["", "", "", "", "3.8"]


def test_other_peoples_words_are_made_safe_for_messages():
    assert shown("a\x1b[31m\n  b") == '"a?[31m b"'
    assert len(shown("x" * 10_000)) < 200


def test_listings_know_their_sections():
    text = "Head : 1\nPCI\n\tBus : 2\n\tLink Info\n\tMax : 3\n\n\t\tDeep : 4\nLast :\n"
    assert [(entry.number, entry.path, entry.value) for entry in entries(text)] == [
        (1, ("Head",), "1"),
        (2, ("PCI",), None),
        (3, ("PCI", "Bus"), "2"),
        (4, ("PCI", "Link Info"), None),
        (5, ("PCI", "Max"), "3"),
        (7, ("PCI", "Deep"), "4"),
        (8, ("Last",), ""),
    ]


# --- matrices ---


def matrix(text):
    return parse_matrix(text, "smi topo -m", devices=("GPU",), link="MX|ESL")


def test_links_with_and_without_lanes_and_all_distances():
    words = ["PSB", "PIX", "PXB", "PHB", "NODE", "SYS", "MX", "MX4", "N/A"]
    header = " ".join(f"GPU{index}" for index in range(10))
    found = matrix(f"\n  {header} NIC0\nGPU0 X {' '.join(words)} SYS\nNIC0 SYS\nLegend:\n X = Self\n")
    assert found.links == {0: {7: 1, 8: 4}}
    assert "".join(found.distances[0][peer] for peer in range(1, 7)) == "BSMHCX"
    assert set(found.distances[0]) == {1, 2, 3, 4, 5, 6}
    assert found.problems == ()


def test_a_card_that_is_missing_leaves_no_gap():
    found = matrix("GPU0 GPU2\nGPU0 X MX\nGPU2 MX X\n")
    assert found.links == {0: {2: 1}, 2: {0: 1}}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("GPU1 MX", "expected 2 columns"),
        ("GPU1 X MX", "expected X in the column of the row itself"),
        ("GPU1 WORMHOLE X", 'got "WORMHOLE"'),
        ("GPU9 MX MX", "expected X in the column"),
    ],
)
def test_a_broken_row_is_named_and_the_others_stay(row, problem):
    found = matrix(f"GPU0 GPU1\nGPU0 X MX\n{row}\n")
    assert found.links == {0: {1: 1}}
    assert [problem in text and "smi topo -m, line 3" in text for text in found.problems] == [True]


@pytest.mark.parametrize("text", ["", "Legend:\nX = Self\n", "usage: smi topo\n"])
def test_no_matrix(text):
    with pytest.raises(Unreadable, match="smi topo -m: expected a matrix that begins with GPU0"):
        matrix(text)


# --- /sys ---


@pytest.fixture
def tools(tmp_path, monkeypatch):
    return FakeTools(tmp_path, monkeypatch)


def test_places_and_distances(tools):
    switch = ("pci0000:15", "0000:15:01.0", "0000:16:00.0")
    tools.pci("0000:18:00.0", *switch, "0000:17:00.0", numa=0)
    tools.pci("0000:19:00.0", *switch, "0000:17:01.0", numa=0)
    tools.pci("0000:1c:00.0", *switch, "0000:17:02.0", "0000:1a:00.0", "0000:1b:00.0", numa=0)
    tools.pci("0000:30:00.0", "pci0000:15", "0000:15:02.0", numa=0)
    tools.pci("0000:30:00.1", "pci0000:15", "0000:15:02.0", numa=0)
    tools.pci("0000:41:00.0", "pci0000:40", "0000:40:01.0", numa=0)
    tools.pci("0000:81:00.0", "pci0000:80", "0000:80:01.0", numa=1)
    tools.pci("0000:91:00.0", "pci0000:90", "0000:90:01.0")
    here = place_of("0000:18:00.0", tools.sys)
    assert (here.root, here.numa_node) == ("pci0000:15", 0)

    def far(one, other):
        return distance(place_of(one, tools.sys), place_of(other, tools.sys))

    assert far("0000:18:00.0", "0000:19:00.0") is PcieDistance.SINGLE_SWITCH
    assert far("0000:18:00.0", "0000:1c:00.0") is PcieDistance.MULTIPLE_SWITCHES
    assert far("0000:18:00.0", "0000:30:00.0") is PcieDistance.HOST_BRIDGE
    assert far("0000:30:00.0", "0000:30:00.1") is PcieDistance.BOARD
    assert far("0000:18:00.0", "0000:41:00.0") is PcieDistance.SAME_CPU
    assert far("0000:18:00.0", "0000:81:00.0") is PcieDistance.CROSS_CPU
    assert far("0000:18:00.0", "0000:91:00.0") is None
    assert far("0000:18:00.0", "0000:ff:00.0") is None


def test_a_vm_whose_pci_root_hangs_below_something_else(tools):
    tools.pci("8e9a:00:00.0", "LNXSYSTM:00", "VMBUS:00", "pci8e9a:00")
    assert place_of("8e9a:00:00.0", tools.sys).root == "pci8e9a:00"


def card(index, **values):
    return Card(vendor="v", index=index, uuid=f"U{index}", product="P", memory=1, **values)


def test_what_a_tool_says_itself_wins_over_the_kernel(tools):
    for index, bus in enumerate(("0000:01:00.0", "0000:02:00.0")):
        tools.pci(bus, "pci0000:00", f"0000:00:0{index + 1}.0", numa=0)
    first, second, third = placed(
        [
            card(0, pci_bus_id="0000:01:00.0", numa_node=1, distances={1: PcieDistance.SINGLE_SWITCH}),
            card(1, pci_bus_id="0000:02:00.0"),
            card(2),
        ],
        tools.sys,
    )
    assert (first.numa_node, first.distances, first.pcie_root) == (1, {1: PcieDistance.SINGLE_SWITCH}, "pci0000:00")
    assert (second.numa_node, second.distances) == (0, {0: PcieDistance.HOST_BRIDGE})
    assert (third.pcie_root, third.distances) == ("", {})


# --- back ends ---


def test_two_cards_with_one_name():
    found = ListingReader("smi", ["p"]).settled(
        [card(1), card(0), card(1), Card(vendor="v", index=3, uuid="U0", product="P", memory=1)]
    )
    assert [each.index for each in found.cards] == [0, 1]
    assert found.problems == (
        "p",
        "smi: card 1 is listed twice; the second, U1, is left out",
        "smi: cards 0 and 3 have one uuid, U0; the second is left out",
    )


def test_nothing_left_is_an_error_that_says_why():
    with pytest.raises(Unreadable, match=r"^why; and why$"):
        ListingReader("smi", ["why", "and why"]).settled([])
    assert ListingReader("smi").settled([], none_is_fine=True) == Listing(())


class Tool:
    def __init__(self, *answers):
        self.answers = list(answers)

    def __call__(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Listing(answer, ("p",))


def test_a_card_that_vanishes_and_comes_back():
    fault = Fault(code="unhealthy", message="it says so")
    sick = card(1, faults=(fault,))
    both = (card(0), card(1))
    backend = PolledBackend("v", Tool(both, both, (card(0), sick), (card(0),), (card(0),), both))
    assert backend.discover().problems == ("p",)
    assert backend.health().faults == {"U0": (), "U1": (fault,)}
    lost = backend.health()
    assert [each.code for each in lost.faults["U1"]] == ["lost"]
    assert lost.problems == ("p",)
    found = backend.discover()
    assert [(each.index, each.present, [fault.code for fault in each.faults]) for each in found.cards] == [
        (0, True, []),
        (1, False, ["lost"]),
    ]
    assert found.problems == ("p", "card 1 (U1) was found before and is missing now")
    back = backend.health()
    assert (back.faults, back.outdated) == ({"U0": (), "U1": ()}, True)
    backend.close()


def test_a_card_that_nobody_discovered_has_no_health():
    backend = PolledBackend("v", Tool((card(0),), (card(0),), (card(0), card(1))))
    backend.discover()
    health = backend.health()
    assert (health.faults, health.outdated) == ({"U0": ()}, True)


def test_a_tool_that_fails_says_so_in_health_too():
    backend = PolledBackend("v", Tool((card(0),), (card(0),), ToolFailed("gone wrong")))
    backend.discover()
    with pytest.raises(ToolFailed, match="gone wrong"):
        backend.health()


def test_each_vendor_with_a_driver_has_a_back_end():
    for vendor, make in ((plugin.name, plugin.backend) for plugin in PLUGINS):
        assert make(None).vendor == vendor
