"""Kunlunxin XPUs, from what xpu-smi prints."""

import pytest

from hami_dra.api.hardware import Fault, Provenance
from hami_dra.discovery.errors import ToolFailed, ToolMissing, Unreadable
from hami_dra.driver.simulated import machine
from hami_dra.vendors.kunlunxin import discovery as kunlunxin
from hami_dra.vendors.kunlunxin.records import KunlunxinRecord
from tests.support.tools import FIXTURES, FakeTools

FOLDER = FIXTURES / "kunlunxin"
XML = (FOLDER / "query.oam.xml").read_text()
QUERY = (FOLDER / "query.pcie.txt").read_text()
COLUMNS = (FOLDER / "columns.txt").read_text()


@pytest.fixture
def tools(tmp_path, monkeypatch):
    return FakeTools(tmp_path, monkeypatch)


def read(tools, answers):
    tools.answer("xpu-smi", answers)
    return kunlunxin.read(sys=tools.sys)


def test_a_board_of_eight(tools):
    found = read(tools, {"-q -x": XML})
    assert found.problems == ()
    assert found.cards[5] == KunlunxinRecord(
        vendor="kunlunxin",
        index=5,
        uuid="GPU-50c1d2e3-f405-5617-8829-a3b4c5d6e7f5",
        product="P800 OAM",
        memory=96 << 30,
        pci_bus_id="0000:85:00.0",
        links={1: 1, 4: 1, 6: 1, 7: 1},
        minor=5,
        serial="02K00A0000C0005Z",
        driver_version="5.0.21.26",
        runtime_version="10.2",
        architecture="KL3",
        oam_id=6,
        provenance=Provenance(listed_by=("xpu-smi -q -x",)),
    )
    assert [set(card.links) for card in found.cards] == [
        {1, 2, 3, 4},
        {0, 2, 3, 5},
        {0, 1, 3, 6},
        {0, 1, 2, 7},
        {5, 6, 7, 0},
        {4, 6, 7, 1},
        {4, 5, 7, 2},
        {4, 5, 6, 3},
    ]


def test_a_board_is_what_the_reference_machine_says(tools):
    found = read(tools, {"-q -x": XML})
    reference = machine("p800-oam-8", "node").cards
    assert [dict(card.links) for card in found.cards] == [dict(card.links) for card in reference]
    assert [(card.product, card.memory) for card in found.cards] == [(card.product, card.memory) for card in reference]


def test_errors_in_memory_are_a_fault(tools):
    faults = {card.index: card.faults for card in read(tools, {"-q -x": XML}).cards if card.faults}
    assert faults == {
        6: (Fault(code="ecc-uncorrectable", message="xpu-smi counts 2 uncorrectable DRAM errors since start"),)
    }


def test_a_version_without_xml(tools):
    found = read(tools, {"-q": QUERY})
    assert [(card.index, card.uuid, card.product, card.links, card.oam_id) for card in found.cards] == [
        (0, "GPU-00c1d2e3-f405-5617-8829-a3b4c5d6e7f0", "P800 PCIe", {}, None),
        (1, "GPU-10c1d2e3-f405-5617-8829-a3b4c5d6e7f1", "P800 PCIe", {}, None),
    ]
    assert [len(card.faults) for card in found.cards] == [0, 1]
    assert {(card.memory, card.driver_version, card.runtime_version) for card in found.cards} == {
        (96 << 30, "5.0.21.26", "10.2")
    }
    assert "xpu-smi -q -x ended with exit code 2" in found.problems[0]


def test_a_version_with_columns_only(tools):
    found = read(tools, {"-m": COLUMNS})
    assert [card.index for card in found.cards] == list(range(8))
    assert found.cards[2].uuid == found.cards[2].serial == "02K00A0000C0002Z"
    assert found.cards[2].links == {0: 1, 1: 1, 3: 1, 6: 1}
    assert len(found.problems) == 2


def test_cards_keep_their_numbers_when_one_vanishes(tools):
    at, end = XML.index('<xpu id="00000000:65:00.0">'), XML.index('<xpu id="00000000:83:00.0">')
    found = read(tools, {"-q -x": XML[:at] + XML[end:]})
    assert [card.index for card in found.cards] == [0, 1, 2, 4, 5, 6, 7]
    assert found.cards[0].links == {1: 1, 2: 1, 4: 1}
    assert found.problems == ("xpu-smi -q -x: expected 8 XPUs, as many as are attached, got 7",)


def test_output_that_breaks_off_keeps_what_is_complete():
    found = kunlunxin.parse_xml(XML[: XML.index("oam_id>7<")])
    assert [card.index for card in found.cards] == [0, 1, 2, 3]
    broken, count = found.problems
    assert broken.startswith("xpu-smi -q -x, line ")
    assert "expected well-formed XML" in broken
    assert count == "xpu-smi -q -x: expected 8 XPUs, as many as are attached, got 4"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("<total>98304 MiB</total>", "<total>N/A</total>", 'an amount of memory such as 65536 MiB, got "N/A"'),
        ("<minor_number>0<", "<minor_number>first<", 'expected a minor number from 0 to 4095, got "first"'),
        ("<pci_bus_id>00000000:03:00.0<", "<pci_bus_id><", "expected a PCI bus id"),
        ("<product_name>P800 OAM<", "<product_name>N/A<", "expected a product name"),
        ("<oam_id>3<", "<oam_id>-3<", "expected an OAM id"),
    ],
)
def test_a_broken_card_is_named_and_the_others_stay(old, new, expected):
    found = kunlunxin.parse_xml(XML.replace(old, new, 1))
    assert [card.index for card in found.cards] == list(range(1, 8))
    [problem] = found.problems
    assert problem.startswith("xpu-smi -q -x, xpu 00000000:03:00.0: ")
    assert expected in problem


def test_what_may_be_missing():
    text = XML.replace("<oam_id>3</oam_id>", "").replace("<product_architecture>KL3</product_architecture>", "", 1)
    first = kunlunxin.parse_xml(text).cards[0]
    assert (first.oam_id, first.architecture) == (None, "")
    without_uuid = kunlunxin.parse_xml(
        XML.replace("<uuid>GPU-0", "<uuid>N/A</uuid><was>", 1).replace("7f0</uuid>", "7f0</was>")
    )
    assert without_uuid.cards[0].uuid == "02K00A0000C0000Z"


def test_intels_tool_of_the_same_name(tools):
    text = XML.replace("KUNLUNXIN", "Intel")
    with pytest.raises(Unreadable, match=r"another vendor's tool is called xpu-smi too\), got \"Intel\""):
        read(tools, {"-q -x": text})


def test_entities_are_refused():
    bomb = '<!DOCTYPE xpu_smi_log [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>\n<xpu_smi_log><xpu>&b;</xpu></xpu_smi_log>'
    with pytest.raises(Unreadable, match="expected no entity declarations"):
        kunlunxin.parse_xml(bomb)


def test_deep_nesting_is_refused():
    with pytest.raises(Unreadable, match="at most 32 elements"):
        kunlunxin.parse_xml("<xpu_smi_log>" + "<a>" * 100_000)


def test_no_card_attached_is_no_error():
    text = "<xpu_smi_log><attached_xpus>0</attached_xpus></xpu_smi_log>"
    assert kunlunxin.parse_xml(text).cards == ()
    assert kunlunxin.parse_query("Attached XPUs    : 0\n").cards == ()


@pytest.mark.parametrize("text", ["", "\n", "no device\n", "<xpu_smi_log/>", "<html><body/></html>"])
def test_nothing_to_read(tools, text):
    with pytest.raises(Unreadable) as caught:
        read(tools, {"-q -x": text, "-q": text, "-m": text})
    assert all(f"xpu-smi {arguments}" in str(caught.value) for arguments in ("-q -x", "-q", "-m"))


def test_columns_that_are_broken():
    text = COLUMNS.replace('"P800 OAM"', '"P800 OAM', 1) + "\n00000000:03:00.0 9\n"
    found = kunlunxin.parse_columns(text)
    assert [card.index for card in found.cards] == list(range(1, 8))
    first, second = found.problems
    assert first.startswith("xpu-smi -m, line 1")
    assert "expected quotes in pairs" in first
    assert "expected 22 columns or more" in second


def test_the_tool_is_missing(tools):
    with pytest.raises(ToolMissing, match=r"xpu-smi was not found"):
        kunlunxin.backend(sys=tools.sys).discover()


def test_a_hang_in_one_listing_is_not_waited_for_in_the_next(tools):
    tools.script("xpu-smi", "sleep 1000")
    tool = kunlunxin.Tool("xpu-smi", timeout=0.2)
    with pytest.raises(Unreadable) as caught:
        kunlunxin.read(tool, tools.sys)
    assert str(caught.value).count("gave no answer within 0.2 s") == 3
    with pytest.raises(ToolFailed):
        tool.run("-q")
