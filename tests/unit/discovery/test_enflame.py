"""Enflame GCUs, from what efsmi prints."""

import pytest

from hami_dra.api.hardware import DrivenCard, PcieDistance, Provenance
from hami_dra.discovery.errors import ToolFailed, ToolMissing, Unreadable
from hami_dra.vendors.enflame import discovery as enflame
from tests.support.tools import FIXTURES, FakeTools

FOLDER = FIXTURES / "enflame"
QUERY, OLD_QUERY, TABLE, OLD_TABLE, TOPOLOGY = (
    (FOLDER / name).read_text(encoding="utf-8")
    for name in ("query.txt", "query.old.txt", "table.txt", "table.old.txt", "topology.synthetic.txt")
)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    return FakeTools(tmp_path, monkeypatch)


def read(tools, answers):
    tools.answer("efsmi", answers)
    return enflame.read(sys=tools.sys)


def test_four_cards(tools):
    for index, bus in enumerate(("17", "18", "27", "28")):
        above = f"pci0000:{15 + index // 2 * 10}"
        tools.pci(f"0000:{bus}:00.0", above, f"0000:{15 + index // 2 * 10}:0{index}.0", numa=index // 2)
    found = read(tools, {"-q": QUERY, "": TABLE})
    assert found.problems == ()
    assert found.cards[1] == DrivenCard(
        vendor="enflame",
        index=1,
        uuid="TR6Y47000101",
        product="S60",
        memory=42976 << 20,
        pci_bus_id="0000:18:00.0",
        pcie_root="pci0000:15",
        numa_node=0,
        distances={0: PcieDistance.HOST_BRIDGE, 2: PcieDistance.CROSS_CPU, 3: PcieDistance.CROSS_CPU},
        serial="A0A165000001",
        driver_version="1.4.3.4",
        provenance=Provenance(rank=1, listed_by=("efsmi -q", "efsmi")),
    )


def test_a_tool_that_shows_links(tools):
    found = read(tools, {"-q": QUERY, "": TABLE, "--topo -m": TOPOLOGY})
    assert [card.links for card in found.cards] == [{1: 2}, {0: 2}, {3: 2}, {2: 2}]
    assert found.cards[0].distances == {2: PcieDistance.CROSS_CPU, 3: PcieDistance.CROSS_CPU}


def test_a_card_that_is_not_well(tools):
    faults = {card.index: card.faults for card in read(tools, {"-q": QUERY, "": TABLE}).cards}
    assert [fault.code for fault in faults[2]] == ["unhealthy", "power-cable"]
    assert faults[2][0].message == 'efsmi -q says Device Info, Health: "False" of DEV ID 2'
    assert (faults[0], faults[1], faults[3]) == ((), (), ())


def test_keys_count_in_their_own_section_only():
    """PCIe Info has a Dev, a Device ID and, below another heading at the same depth, links; none is the device's."""
    device = enflame.parse_query(QUERY).devices[0]
    assert (device.bus_id, device.product) == ("0000:17:00.0", "S60")


def test_an_old_driver_is_completed_from_the_table(tools):
    found = read(tools, {"-q": OLD_QUERY, "": OLD_TABLE})
    assert found.problems == ()
    assert [(card.uuid, card.product, card.memory, card.pci_bus_id, card.driver_version) for card in found.cards] == [
        ("A073640000000", "S60", 42976 << 20, "0000:01:00.0", "1.2.0.301"),
        ("A073640000001", "S60", 42976 << 20, "0000:02:00.0", "1.2.0.301"),
    ]


def test_without_the_table(tools):
    found = read(tools, {"-q": QUERY})
    assert len(found.cards) == 4
    assert found.problems[0].startswith("efsmi ended with exit code 2")


def test_an_old_driver_without_the_table(tools):
    with pytest.raises(Unreadable, match=r"efsmi -q, DEV ID 0: expected a uuid \(Dev UUID\) or serial number"):
        read(tools, {"-q": OLD_QUERY})


def test_a_card_that_only_the_table_shows(tools):
    found = read(tools, {"-q": QUERY[: QUERY.index("DEV ID 3")], "": TABLE})
    assert found.cards[3].uuid == "A0A165000003"
    assert found.cards[3].memory == 42976 << 20


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("42976 MiB", "much", 'expected an amount of memory such as 65536 MiB, got "much"'),
        ("Bus                     : 17", "Bus                     : 1777", "expected a PCI bus id"),
        ("TR6Y47000100", "TR6 Y4", "expected a uuid"),
    ],
)
def test_a_broken_card_is_named_and_the_others_stay(old, new, expected):
    found = enflame.join(enflame.parse_query(QUERY.replace(old, new, 1)), enflame.Devices())
    assert [card.index for card in found.cards] == [1, 2, 3]
    [problem] = found.problems
    assert problem.startswith("efsmi -q, DEV ID 0: ")
    assert expected in problem


def test_not_known_is_not_broken():
    text = QUERY.replace("Health                  : True", "Health  : N/A")
    found = enflame.join(enflame.parse_query(text), enflame.Devices())
    assert found.cards[0].faults == ()


def test_a_broken_number_of_a_device():
    found = enflame.parse_query(QUERY.replace("DEV ID 1", "DEV ID one"))
    assert set(found.devices) == {0, 2, 3}
    assert 'expected a whole number from 0 to 4095, got "one"' in found.problems[0]


def test_a_broken_row():
    found = enflame.parse_table(
        TABLE.replace("00:18:00.0", "N/A       ").replace(
            "30℃    LP0      N/A         | 42976MiB", "30℃    LP0      N/A         | ERR"
        )
    )
    assert set(found.devices) == {2, 3}
    assert [problem.startswith("efsmi, line ") for problem in found.problems] == [True, True]


@pytest.mark.parametrize("text", ["", "\n", "Enflame System Management Interface\n", "no GCU\n"])
def test_nothing_to_read(tools, text):
    with pytest.raises(Unreadable, match="efsmi -q: expected blocks that begin with DEV ID 0, got none"):
        read(tools, {"-q": text, "": TABLE})
    with pytest.raises(Unreadable, match="efsmi: expected a table of devices, got none"):
        enflame.parse_table(text)


def test_the_tool_fails(tools):
    tools.script("efsmi", "echo 'cannot open /dev/gcu0' >&2; exit 1")
    with pytest.raises(ToolFailed, match="cannot open /dev/gcu0"):
        enflame.backend(sys=tools.sys).discover()


def test_the_tool_is_missing(tools):
    with pytest.raises(ToolMissing, match="efsmi was not found"):
        enflame.backend(sys=tools.sys).discover()
