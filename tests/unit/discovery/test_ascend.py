"""Ascend NPUs, from what npu-smi prints.

The layouts are those of outputs in public issues and documents: `info` of 910B3 (ms-swift, vllm-ascend), 910B4 (ms-swift) and
310P3 with one and two chips on a board (lmdeploy, HAMi); 910C (vllm-ascend); `-t topo` of ms-swift; `-t board` of mindspeed and openMind.
"""

import pytest

from hami_dra.api.hardware import IdentitySource, PcieDistance, Provenance
from hami_dra.discovery.errors import ToolFailed, ToolMissing, Unreadable
from hami_dra.vendors.ascend import discovery as ascend
from hami_dra.vendors.ascend.models import series_of
from hami_dra.vendors.ascend.publish import rings
from hami_dra.vendors.ascend.records import AscendRecord
from hami_dra.vendors.ascend.table import parse_table
from tests.support.tools import FIXTURES, FakeTools

FOLDER = FIXTURES / "ascend"
B3, B4, C, P3, TWO_CHIPS, BOARD, OLD_BOARD, MESH, RINGS, PCIE = (
    (FOLDER / name).read_text(encoding="utf-8")
    for name in (
        "info.910b3.txt",
        "info.910b4.one.txt",
        "info.910c.txt",
        "info.310p3.txt",
        "info.310p3.two-chips.txt",
        "board.txt",
        "board.old.txt",
        "topo.mesh.txt",
        "topo.rings.synthetic.txt",
        "topo.pcie.txt",
    )
)
DIE = "A0142100-02103514-1711E613-6DA7040A-0010200"
PCI = ("c1", "c2", "81", "82", "01", "02", "41", "42")


@pytest.fixture
def tools(tmp_path, monkeypatch):
    return FakeTools(tmp_path, monkeypatch)


def boards(*chips):
    """What `-t board` says of each (NPU, chip): the last digit of the die is the position."""
    return {
        f"info -t board -i {npu} -c {chip}": BOARD.replace("00102000", f"0010200{place}")
        for place, (npu, chip) in enumerate(chips)
    }


def read(tools, answers):
    tools.answer("npu-smi", answers)
    return ascend.read(sys=tools.sys)


def eight(tools, topology):
    for bus in PCI:
        tools.pci(f"0000:{bus}:00.0", f"pci0000:{bus}", numa=int(bus[0], 16))
    more = {"info -t topo": topology} if topology else {}
    return read(tools, {"info": B3, **boards(*((npu, 0) for npu in range(8))), **more})


def test_eight_cards_in_one_ring(tools):
    found = eight(tools, MESH)
    assert found.problems == ()
    assert found.cards[1] == AscendRecord(
        vendor="ascend",
        index=1,
        uuid=DIE + "1",
        product="Ascend910B3",
        memory=65536 << 20,
        pci_bus_id="0000:c2:00.0",
        pcie_root="pci0000:c2",
        numa_node=12,
        links=dict.fromkeys((0, 2, 3, 4, 5, 6, 7), 1),
        distances={0: PcieDistance.SAME_CPU, **dict.fromkeys(range(2, 8), PcieDistance.CROSS_CPU)},
        minor=1,
        driver_version="24.1.0",
        npu_id=1,
        chip_id=0,
        matrix_known=True,
        provenance=Provenance(listed_by=("npu-smi info",)),
    )
    assert set(rings(found.cards).values()) == {1}


def test_chips_of_a_910c_are_cards_by_their_number_on_the_machine(tools):
    found = read(tools, {"info": C, **boards((0, 0), (0, 1), (1, 0), (1, 1))})
    assert [(card.index, card.product, card.npu_id, card.chip_id) for card in found.cards] == [
        (0, "Ascend910", 0, 0),
        (1, "Ascend910", 0, 1),
        (2, "Ascend910", 1, 0),
        (3, "Ascend910", 1, 1),
    ]
    assert len({card.uuid for card in found.cards}) == 4
    assert {series_of(card).name for card in found.cards} == {"Ascend910C"}
    assert set(rings(found.cards).values()) == {1}


def test_two_rings_of_four(tools):
    found = eight(tools, RINGS)
    assert [rings(found.cards)[index] for index in range(8)] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert found.cards[0].distances[4] is PcieDistance.CROSS_CPU


def test_cards_on_pcie_alone_are_in_no_ring(tools):
    found = read(tools, {"info": P3, "info -t topo": PCIE, **boards((0, 0), (32, 0), (32768, 0))})
    assert rings(found.cards) == {}
    assert [card.index for card in found.cards] == [0, 1, 2]
    assert [card.minor for card in found.cards] == [0, 1, 2]
    assert {card.product for card in found.cards} == {"Ascend310P3"}
    assert found.cards[1].distances[0] is PcieDistance.HOST_BRIDGE


def test_without_a_matrix_rings_are_as_long_as_on_the_machines_of_the_series(tools):
    found = eight(tools, None)
    assert "info -t topo" in found.problems[0]
    assert not any(card.links for card in found.cards)
    assert set(rings(found.cards).values()) == {1}


def test_a_card_that_is_not_well(tools):
    faults = {card.index: card.faults for card in eight(tools, MESH).cards if card.faults}
    assert list(faults) == [5]
    assert [(fault.code, "Warning" in fault.message) for fault in faults[5]] == [("unhealthy", True)]


def test_one_card_of_a_machine_keeps_its_number(tools):
    (card,) = read(tools, {"info": B4, **boards((5, 0))}).cards
    assert (card.index, card.minor, card.product, card.memory) == (5, 5, "Ascend910B4", 32768 << 20)


def test_two_chips_of_a_board_share_an_address_and_nothing_else(tools):
    found = read(tools, {"info": TWO_CHIPS, "info -t topo": PCIE, **boards((1, 0), (1, 1))})
    first, second = found.cards
    assert (first.pci_bus_id, second.pci_bus_id) == ("0000:01:00.0", "")
    assert first.uuid != second.uuid
    assert [(card.index, card.npu_id, card.chip_id) for card in found.cards] == [(0, 1, 0), (1, 1, 1)]


def test_identities_of_older_boards():
    assert ascend.parse_board(OLD_BOARD) == "B09921D4-2140A100-E54BDDD4-07CC040A-9B003000"


@pytest.mark.parametrize(
    "text",
    [
        "",
        BOARD.replace("VDie", "Mcu").replace("NDie", "Mcu"),
        OLD_BOARD.replace("B09921D4", "\x07" * 80),
        BOARD[: BOARD.index("1711E613")],  # broken off
        BOARD.replace("A0142100 02103514 1711E613 6DA7040A 00102000", " ".join(["00000000"] * 5)),
    ],
)
def test_a_board_without_an_identity_says_so(text):
    with pytest.raises(Unreadable, match="identity of a chip"):
        ascend.parse_board(text)


def test_a_chip_without_identity_is_known_by_its_place(tools):
    found = read(tools, {"info": B4})
    (card,) = found.cards
    assert card.uuid == "0000:41:00.0/0"
    assert card.provenance.identified_by is IdentitySource.PLACE
    assert found.failed == {"npu-smi info -t board"}


def test_identities_are_read_once(tools):
    tools.answer("npu-smi", {"info": B4, **boards((5, 0))})
    details = ascend.ChipDetails(ascend.TOOL)
    first = ascend.read(sys=tools.sys, details=details)
    tools.answer("npu-smi", {"info": B4})
    assert ascend.read(sys=tools.sys, details=details) == first


def test_missing_and_failing_tools(tools):
    with pytest.raises(ToolMissing):
        ascend.read(sys=tools.sys)
    tools.script("npu-smi", "echo 'dcmi module initialize failed. ret is -8005' >&2; exit 1")
    with pytest.raises(ToolFailed, match="-8005"):
        ascend.read(sys=tools.sys)


@pytest.mark.parametrize("text", ["", "| NPU | x |\n", B3.replace("| 0   ", "| x   ").replace("910B3", "")])
def test_no_table_or_no_readable_row(text):
    with pytest.raises(Unreadable, match="npu-smi info"):
        parse_table(text)


def test_a_broken_row_is_a_problem_and_the_others_stay():
    found = parse_table(B3.replace("3313 / 65536", "N/A"))
    assert [row.index for row in found.rows] == [0, 1, 2, 4, 5, 6, 7]
    (problem,) = found.problems
    assert "used / total MB" in problem
    assert [trace.bus_id for trace in found.seen] == ["0000:82:00.0"]


def test_the_driver_s_libraries_are_found_where_the_linker_does_not_know_them(tools, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/own")
    tools.script("npu-smi", "echo $LD_LIBRARY_PATH")
    driver = "/usr/local/Ascend/driver/lib64"
    assert ascend.TOOL.run().strip() == f"/opt/own:{driver}/common:{driver}/driver:{driver}"


# --- chips that the table lacks ---


def without_row(text, npu):
    lines = text.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if line.startswith(f"| {npu} "))
    return "".join(lines[:at] + lines[at + 3 :])


BOARDS = boards(*((npu, 0) for npu in range(8)))
OF_THREE = "info -t board -i 3 -c 0"


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({"info": without_row(B3, 3)} | BOARDS, "unreadable"),
        ({"info": without_row(B3, 3)} | {key: text for key, text in BOARDS.items() if key != OF_THREE}, "lost"),
        ({"info": without_row(B3, 3)} | BOARDS | {OF_THREE: BOARDS["info -t board -i 2 -c 0"]}, "lost"),
        ({"info": B3[: B3.index("| 3 ") + 12]}, "unseen"),
    ],
)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_chip_that_the_table_lacks_is_lost_only_if_its_board_is_silent(tools, tmp_path, answers, code, restarts):
    tools.answer("npu-smi", {"info": B3} | BOARDS)
    backend = ascend.backend(tmp_path / "state", ascend.TOOL, tools.sys)
    (tmp_path / "state").mkdir()
    card = backend.discover().cards[3]
    backend = ascend.backend(tmp_path / "state", ascend.TOOL, tools.sys) if restarts else backend
    tools.answer("npu-smi", answers)
    assert [fault.code for fault in backend.health().faults[card.uuid]] == [code]


def test_links_are_read_once_for_a_set_of_chips(tools):
    details = ascend.ChipDetails(ascend.TOOL)
    every = boards(*((npu, 0) for npu in range(8)))
    tools.answer("npu-smi", {"info": B3, "info -t topo": MESH, **every})
    first = ascend.read(sys=tools.sys, details=details)
    tools.answer("npu-smi", {"info": B3, **every})
    assert ascend.read(sys=tools.sys, details=details) == first
    tools.answer("npu-smi", {"info": without_row(B3, 3), **every})
    assert any("topo" in problem for problem in ascend.read(sys=tools.sys, details=details).problems)
