"""MetaX GPUs, from what mx-smi prints."""

import pytest

from hami_dra.api.hardware import DrivenCard, Fault, PcieDistance, Provenance
from hami_dra.discovery.errors import ToolFailed, ToolMissing, Unreadable
from hami_dra.vendors.metax import discovery as metax
from tests.support.tools import FIXTURES, FakeTools

FOLDER = FIXTURES / "metax"
LIST, TABLE, OLD_TABLE, TOPOLOGY, DMON = (
    FOLDER / name for name in ("list.txt", "table.v2.3.txt", "table.v2.1.txt", "topology.txt", "dmon.csv")
)
DMON_ARGUMENTS = "dmon --show-memory --total-memory --show-bdf --format csv -c 1"
ALL = {"-L": LIST, "": TABLE, "topo -m": TOPOLOGY}


@pytest.fixture
def tools(tmp_path, monkeypatch):
    return FakeTools(tmp_path, monkeypatch)


def read(tools, answers):
    tools.answer("mx-smi", answers)
    return metax.read(sys=tools.sys)


def test_a_machine_with_eight_cards_in_two_zones(tools):
    tools.pci("0000:0a:00.0", "pci0000:08", "0000:08:01.0", "0000:09:00.0", numa=0)
    found = read(tools, ALL)
    assert found.problems == ()
    assert found.cards[0] == DrivenCard(
        vendor="metax",
        index=0,
        uuid="GPU-0b1c0d2e-0f3a-4b5c-6d7e-8f90a1b2c3d0",
        product="MetaX C500",
        memory=64 << 30,
        pci_bus_id="0000:0a:00.0",
        pcie_root="pci0000:08",
        numa_node=0,
        links={1: 1, 2: 1, 3: 1},
        distances=dict.fromkeys((4, 5, 6, 7), PcieDistance.CROSS_CPU),
        driver_version="3.8.30",
        provenance=Provenance(listed_by=("mx-smi -L", "mx-smi")),
    )
    assert [set(card.links) | {card.index} for card in found.cards] == [{0, 1, 2, 3}] * 4 + [{4, 5, 6, 7}] * 4
    assert found.cards[3].distances[4] is PcieDistance.SAME_CPU


def test_a_card_that_is_not_available(tools):
    found = read(tools, ALL)
    faults = {card.index: card.faults for card in found.cards if card.faults}
    assert faults == {5: (Fault(code="unavailable", message='mx-smi -L calls GPU 5 "Unavailable"'),)}


def test_an_older_tool_says_less(tools):
    found = read(tools, ALL | {"": OLD_TABLE})
    assert found.problems == ()
    assert {(card.memory, card.driver_version) for card in found.cards} == {(64 << 30, "2.12.13")}


def test_cards_without_fast_links_are_told_apart_by_switches():
    matrix = metax.parse_topology((FOLDER / "topology.pcie.txt").read_text())
    assert not any(matrix.links.values())
    assert matrix.distances[0] == {
        1: PcieDistance.SINGLE_SWITCH,
        2: PcieDistance.HOST_BRIDGE,
        3: PcieDistance.HOST_BRIDGE,
    }


def test_a_table_of_another_make_leaves_memory_to_dmon(tools):
    found = read(tools, ALL | {"": "mx-smi 9: all is new\n", DMON_ARGUMENTS: DMON})
    assert [card.memory for card in found.cards] == [64 << 30] * 8
    assert {card.product for card in found.cards} == {"MXC500"}
    assert found.problems == ("mx-smi: expected a table with the columns Bus-id and Memory-Usage, got none",)


def test_no_memory_from_anywhere(tools):
    with pytest.raises(Unreadable, match="expected the memory of GPU 0"):
        read(tools, ALL | {"": "mx-smi 9: all is new\n"})


def test_without_a_topology_cards_are_found_all_the_same(tools):
    answers = dict(ALL)
    del answers["topo -m"]
    found = read(tools, answers)
    assert len(found.cards) == 8
    assert not any(card.links for card in found.cards)
    assert "mx-smi topo -m ended with exit code 2" in found.problems[0]


def test_a_card_that_vanished_between_two_listings(tools):
    lines = TABLE.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if "0000:9c:00.0" in line)
    found = read(tools, ALL | {"": "".join(lines[:at] + lines[at + 3 :])})
    assert [card.index for card in found.cards] == [0, 1, 2, 3, 4, 5, 7]
    assert "mx-smi: expected the memory of GPU 6 (0000:9c:00.0), got none" in found.problems


def test_a_broken_line_is_named_and_the_others_stay(tools):
    text = LIST.read_text().replace("0000:0b:00.0", "N/A         ").replace("(UUID: GPU-2b", "(GPU-2b")
    found = read(tools, ALL | {"-L": text})
    assert [card.index for card in found.cards] == [0, 3, 4, 5, 6, 7]
    first, second = found.problems
    assert first.startswith('mx-smi -L, line 8 "GPU#1 MXC500 N/A Available')
    assert first.endswith('expected a PCI bus id such as 0000:1b:00.0, got "N/A"')
    assert "expected GPU#<n> <model> <bus id> <state> (UUID: <uuid>)" in second


def test_a_broken_row_of_the_table(tools):
    found = read(tools, ALL | {"": TABLE.read_text().replace("802/65536 MiB ", "N/A           ")})
    assert [card.index for card in found.cards] == [0, 1, 3, 4, 5, 6, 7]
    assert any("used/total MiB" in problem for problem in found.problems)


@pytest.mark.parametrize("text", ["", "\n\n", "mx-smi  version: 2.2.9\nNo devices\n"])
def test_no_card_is_named(tools, text):
    with pytest.raises(Unreadable, match="mx-smi -L: expected lines that begin with GPU#0, got none"):
        read(tools, ALL | {"-L": text})


def test_the_tool_fails(tools):
    tools.script("mx-smi", "echo 'mxcd: no such device' >&2; exit 255")
    with pytest.raises(ToolFailed, match=r"mx-smi -L ended with exit code 255.*no such device"):
        metax.backend(sys=tools.sys).discover()


def test_the_tool_is_missing(tools):
    with pytest.raises(ToolMissing, match=r"mx-smi was not found in PATH, /opt/mxdriver/bin"):
        metax.backend(sys=tools.sys).discover()


def test_dmon_rows():
    text = "dev, total, bdfid\nidx, GB,\n0, 64, 0000:08:00.0\n1, N/A, 0000:09:00.0\n2\n"
    sizes, problems = metax.parse_memory(text)
    assert sizes == {"0000:08:00.0": 64 << 30}
    assert [problem.partition(" ")[0] for problem in problems] == ["mx-smi"]
    with pytest.raises(Unreadable, match="columns total and bdfid"):
        metax.parse_memory("dev, vram\nidx, %\n0, 3\n")
