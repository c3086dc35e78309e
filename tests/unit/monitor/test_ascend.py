"""Readings of Ascend NPUs: outputs of tests/fixtures/discovery/ascend, which shows cards at work too."""

import pytest

from hami_dra.discovery.errors import Unreadable
from hami_dra.monitor.readings import Reading
from hami_dra.vendors.ascend import monitor
from hami_dra.vendors.ascend.records import AscendRecord
from tests.support.tools import FIXTURES, FakeTools

MIB = 1 << 20


def text(name):
    return (FIXTURES / "ascend" / name).read_text(encoding="utf-8")


def test_memory_is_that_of_the_hbm():
    found = monitor.parse_info(text("info.910b3.txt"))
    assert found.problems == ()
    assert len(found.readings) == 8
    assert found.readings[1] == Reading(
        index=1, memory_total=65536 * MIB, memory_used=44512 * MIB, utilization=62.0, temperature=39.0, power=91.5
    )


def test_boards_without_power():
    found = monitor.parse_info(text("info.310p3.txt"))
    assert found.readings[1] == Reading(
        index=1, memory_total=21527 * MIB, memory_used=19440 * MIB, utilization=71.0, temperature=52.0
    )


def test_the_second_chip_of_a_module_reports_no_power():
    found = monitor.parse_info(text("info.910c.txt"))
    assert [reading.power for reading in found.readings] == [171.5, None, 172.5, None]
    assert found.problems == ()


def test_values_out_of_range_are_problems():
    found = monitor.parse_info(text("info.910b4.one.txt").replace("| 0           0 ", "| 101         0 "))
    (reading,) = found.readings
    assert reading.utilization is None
    assert "AICore(%)" in found.problems[0]


def test_nothing_readable():
    with pytest.raises(Unreadable):
        monitor.parse_info("npu-smi: no device")


def test_readings_are_those_of_the_cards(tmp_path, monkeypatch):
    FakeTools(tmp_path, monkeypatch).answer("npu-smi", {"info": text("info.910b4.one.txt")})
    card = AscendRecord(vendor="ascend", index=5, uuid="die", product="Ascend910B4", memory=32768 * MIB)
    found = monitor.sampler().sample([card])
    assert found.readings["die"].memory_used == 2930 * MIB


def test_errors_of_all_memories_of_a_chip_are_added_up():
    assert monitor.parse_ecc(text("ecc.txt")) == {"ecc_corrected": 5, "ecc_uncorrected": 1}
    only_hbm = "".join(line for line in text("ecc.txt").splitlines(keepends=True) if "DDR" not in line)
    assert monitor.parse_ecc(only_hbm) == {"ecc_corrected": 3, "ecc_uncorrected": 1}


@pytest.mark.parametrize(
    "wrong",
    ["no such option", text("ecc.txt").replace("Bit Error Count", "Bits"), text("ecc.txt").replace(": 3\n", ": -3\n")],
)
def test_errors_that_cannot_be_read(wrong):
    with pytest.raises(Unreadable):
        monitor.parse_ecc(wrong)


def test_a_look_asks_about_a_few_chips_and_remembers_the_others(tmp_path, monkeypatch):
    """Eight chips: the last one does not tell, the first one prints nonsense when it is asked again."""
    cards = [
        AscendRecord(
            vendor="ascend",
            index=index,
            uuid=f"die-{index}",
            product="Ascend910B3",
            memory=65536 * MIB,
            npu_id=index,
            chip_id=0,
        )
        for index in range(8)
    ]
    errors = {f"info -t ecc -i {index} -c 0": text("ecc.txt") for index in range(7)}
    tools = FakeTools(tmp_path, monkeypatch)
    tools.answer("npu-smi", {"info": text("info.910b3.txt"), **errors})
    sampler = monitor.sampler()

    def told():
        sample = sampler.sample(cards)
        return sorted(uuid for uuid, each in sample.readings.items() if each.ecc_uncorrected == 1), sample.problems

    assert told() == (["die-0", "die-1", "die-2", "die-3"], ())
    everybody = [f"die-{index}" for index in range(7)]
    assert told() == (everybody, ())
    tools.answer("npu-smi", {"info": text("info.910b3.txt"), **errors, "info -t ecc -i 0 -c 0": "nonsense"})
    found, problems = told()
    assert found == everybody[1:]
    assert [problem for problem in problems if "NPU 0, chip 0: npu-smi info -t ecc" in problem]
