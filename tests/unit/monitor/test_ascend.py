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
