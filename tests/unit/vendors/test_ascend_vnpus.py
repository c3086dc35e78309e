"""The vNPUs of a chip, as npu-smi lists them, and their removal by the driver's library."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from hami_dra.api.containers import RuntimePartition
from hami_dra.api.hardware import Card
from hami_dra.api.options import VendorSettings
from hami_dra.discovery.errors import DiscoveryError, ToolFailed, Unreadable
from hami_dra.discovery.tool import Tool
from hami_dra.vendors.ascend import PLUGIN, REMOVE_IDLE_VNPUS, dcmi
from hami_dra.vendors.ascend.records import AscendRecord
from hami_dra.vendors.ascend.vnpus import AscendVnpus, parse_vnpus
from tests.support.compiling import built
from tests.support.tools import FakeTools
from tests.support.vnpu_listing import ABOVE, HEADER, LINE, TAKEN, Row, listing

TWO = [Row(100, "0", TAKEN, 1), Row(101, "1")]
B4 = {"vendor": "ascend", "index": 5, "uuid": "die-5", "product": "Ascend910B4", "memory": 32 << 30}


def found(text):
    return [(each.number, each.profile, each.idle) for each in parse_vnpus(text)]


def test_each_vnpu_with_its_template_and_whether_it_is_idle():
    assert found(listing(TWO)) == [(100, "vir10_3c_16g", False), (101, "vir10_3c_16g", True)]


@pytest.mark.parametrize("text", [listing([]), ABOVE + f"| Total number of vnpu: 0                      |\n{LINE}\n"])
def test_no_vnpus_with_and_without_a_header(text):
    """As the source prints it, and as npu-smi 26.0.rc1 does."""
    assert parse_vnpus(text) == []


@pytest.mark.parametrize(
    ("row", "idle"),
    [
        (Row(100), True),
        (Row(100, status=1), False),
        (
            Row(100, container=TAKEN),
            False,
        ),  # a container that runs and computes nothing (ascend-device-plugin, issue 135)
        (Row(100, container="NA"), False),
        (Row(100, group="NA"), True),  # training cards report no group
    ],
)
def test_idle_is_one_without_a_container_and_without_a_process(row, idle):
    assert [each.idle for each in parse_vnpus(listing([row]))] == [idle]


def test_one_that_npu_smi_could_not_read_is_nothing_to_go_by():
    """It prints zeros for the first, and for others what it printed before (printf_each_vnpu_info ignores the error)."""
    with pytest.raises(Unreadable, match="expected a vNPU with"):
        parse_vnpus(listing(TWO, failed=[100]))
    idle_first = [Row(100), Row(101, "1", TAKEN, 1)]
    assert found(listing(idle_first, failed=[101])) == [(100, "vir10_3c_16g", True)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The vnpu is not in docker mode, does not support querying info-vnpu.\n",
        "NPU is working in SMP mode, does not support vnpu query.\n",
        "This command cannot be executed on a container.\n",
        listing(TWO).replace("Status", "State"),
        listing(TWO).replace("Template Name", "AICORE Num   "),
        listing(TWO).replace("vnpu: 2", "vnpu: 3"),
        listing(TWO).replace("vnpu: 2", "vnpu: 1"),
        listing(TWO).replace("| Total", "| Sum  "),
        listing([Row(100), Row(100, "1")]),
        listing([Row(65535)]),
        listing([Row(100, template="whole")]),
        ABOVE + f"| Total number of vnpu: 1   |\n{LINE}\n",
        ABOVE + f"| Total number of vnpu: 1   |\n{LINE}\n{HEADER}\n",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(Unreadable):
        parse_vnpus(text)


def test_no_cut_off_or_altered_output_shows_an_idle_vnpu_that_is_not_there():
    dice = random.Random(3)
    rows = [Row(100, "0", TAKEN, 1), Row(101, "1"), Row(102, "2", TAKEN, 0, "vir05_1c_8g")]
    whole = listing(rows)
    for _ in range(3_000):
        text, place = whole, dice.randrange(len(whole))
        match dice.randrange(3):
            case 0:
                text = whole[:place]
            case 1:
                text = whole[:place] + whole[place + dice.randrange(1, 90) :]
            case 2:
                text = whole[:place] + dice.choice("0|+-x\n ") + whole[place + 1 :]
        try:
            listed = parse_vnpus(text)
        except DiscoveryError:
            continue
        assert len(listed) == 3
        assert sum(each.idle for each in listed) <= 1


@pytest.fixture
def tools(tmp_path, monkeypatch):
    return FakeTools(tmp_path, monkeypatch)


def test_the_chip_is_asked_by_the_numbers_that_npu_smi_has_for_it(tools):
    tools.answer("npu-smi", {"info -t info-vnpu -i 5 -c 1": listing([*TWO, Row(103, template="vir99")])})
    card = AscendRecord(**B4, npu_id=5, chip_id=1)
    assert AscendVnpus().existing(card) == [
        RuntimePartition(number=100, profile="vir10_3c_16g", idle=False),
        RuntimePartition(number=101, profile="vir10_3c_16g", idle=True),
    ], "a template that is handed out nowhere is somebody else's"


@pytest.mark.parametrize(
    "card",
    [Card(**B4), AscendRecord(**B4, npu_id=5), AscendRecord(**B4 | {"product": "Ascend910B1"}, npu_id=5, chip_id=0)],
)
def test_a_chip_without_a_place_or_without_templates_has_none(tools, card):
    assert not AscendVnpus().existing(card)


def test_a_vnpu_is_removed_by_a_program_that_gets_its_place(tools, tmp_path):
    remover = tools.script("remover", f'shift 2; echo "$*" >> {tmp_path}/asked; test "$3" = 101')
    vnpus = AscendVnpus(remover=Tool(str(remover)))
    card = AscendRecord(**B4, npu_id=5, chip_id=1)
    vnpus.destroy(card, 101)
    with pytest.raises(ToolFailed):
        vnpus.destroy(card, 102)
    for number in (65535, -1):  # all vNPUs of the chip
        with pytest.raises(Unreadable):
            vnpus.destroy(card, number)
    assert (tmp_path / "asked").read_text() == "5 1 101\n5 1 102\n"


LIBRARY = """
#include <stdio.h>
int dcmi_init(void) { return 0; }
int dcmi_set_destroy_vdevice(int card, int chip, unsigned int vnpu) {
    printf("%d %d %u\\n", card, chip, vnpu); fflush(stdout);
    return vnpu == 103 ? 0 : -8255;
}
"""


def test_the_call_of_the_library(tmp_path):
    source = tmp_path / "dcmi.c"
    source.write_text(LIBRARY)
    library = built(source, "libdcmi.so", ["-shared", "-fPIC"], "dcmi")

    def remove(number, folder):
        command = [sys.executable, "-I", Path(dcmi.__file__), "5", "1", str(number)]
        return subprocess.run(
            command, env={"LD_LIBRARY_PATH": str(folder)}, capture_output=True, text=True, check=False
        )

    done, refused, missing = remove(103, library.parent), remove(104, library.parent), remove(103, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "5 1 103\n", "")
    assert (refused.returncode, refused.stderr) == (1, "dcmi_set_destroy_vdevice failed with -8255\n")
    assert missing.returncode == 1
    assert missing.stderr.startswith("libdcmi.so: ")


def test_an_operator_can_have_idle_vnpus_left_alone():
    assert isinstance(PLUGIN.runtime_partitions(VendorSettings()), AscendVnpus)
    assert PLUGIN.runtime_partitions(VendorSettings.of({REMOVE_IDLE_VNPUS: False})) is None
