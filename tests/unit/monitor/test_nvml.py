"""What NVIDIA GPUs report at work, through nvidia-ml-py and a real libnvidia-ml.so.1 that pretends (tests/support/nvml)."""

import pytest

from tests.support.nvml.fake import FakeNvml, machine

MIB = 1 << 20
BUSY = "work 0 used=40000 reserved=700 busy=93 membusy=51 temp=64 memtemp=71 power=512345 fan=40 corrected=3 uncorrected=1\n"
NOTHING = {
    "index": None,
    "bus_id": "",
    "utilization": None,
    "memory_utilization": None,
    "temperature": None,
    "memory_temperature": None,
    "power": None,
    "fan": None,
    "ecc_corrected": None,
    "ecc_uncorrected": None,
}


@pytest.fixture
def nvml(tmp_path):
    return FakeNvml(tmp_path)


def uuid(index):
    return f"GPU-{index:08d}-aaaa-bbbb-cccc-000000000000"


def test_all_that_nvml_tells_a_gpu_that_tells_little_and_one_that_is_lost(nvml):
    nvml.describe(machine(2) + BUSY)
    first, lost, closed = nvml.ask("at_work", ["lost 0"])
    assert first["problems"] == []
    assert first["readings"] == [
        {
            "index": None,
            "uuid": uuid(0),
            "bus_id": "",
            "memory_total": 81559 * MIB,
            "memory_used": 40000 * MIB,
            "utilization": 93,
            "memory_utilization": 51,
            "temperature": 64,
            "memory_temperature": 71,
            "power": 512.345,
            "fan": 40,
            "ecc_corrected": 3,
            "ecc_uncorrected": 1,
        },
        NOTHING | {"uuid": uuid(1), "memory_total": 81559 * MIB, "memory_used": 0},
    ]
    assert lost["readings"] == first["readings"][1:]
    assert uuid(0) in lost["problems"][0]
    assert "nothing was discovered yet" in closed


def test_what_drivers_and_gpus_do_not_tell(nvml):
    """One process for all of them: it is starting one that takes time."""
    old_drivers = [machine(1) + BUSY + f"fail nvmlDeviceGetMemoryInfo_v2 * {code}\n" for code in (13, 25)]
    in_parts = machine(1, mig=1) + BUSY
    failing = machine(1) + BUSY + "fail nvmlDeviceGetPowerUsage * 999\nfail nvmlDeviceGetFanSpeed * 4\n"
    absurd = (
        machine(1)
        + "work 0 used=90000 busy=4294967295 membusy=200 temp=4294967295 memtemp=4000 power=4294967295 fan=101\n"
    )
    found = nvml.ask("at_work_each", [*old_drivers, in_parts, failing, absurd])
    readings = [reading for each in found for reading in each["readings"]]
    # before 510 what the driver takes for itself is in use too
    assert [reading["memory_used"] for reading in readings] == [40700 * MIB] * 2 + [40000 * MIB] * 2 + [None]
    # a GPU in parts has no utilisation
    assert [(reading["utilization"], reading["temperature"]) for reading in readings[1:4]] == [
        (93, 64),
        (None, 64),
        (93, 64),
    ]
    # a value that fails is named, and the others stay
    assert [readings[3][name] for name in ("power", "fan", "ecc_corrected")] == [None, None, 3]
    assert [problem.split(" failed")[0] for problem in found[3]["problems"]] == [
        f"NVML, GPU {uuid(0)}: nvmlDeviceGetPowerUsage",
        f"NVML, GPU {uuid(0)}: nvmlDeviceGetFanSpeed",
    ]
    # numbers that cannot be
    assert readings[4] == NOTHING | {"uuid": uuid(0), "memory_total": None, "memory_used": None}
    assert len(found[4]["problems"]) == 6
    assert [len(each["problems"]) for each in found[:3]] == [0, 0, 0]


def test_a_hang_is_given_up(nvml):
    nvml.describe(machine(1) + "hang nvmlDeviceGetUtilizationRates 0\n")
    first, second, _ = nvml.ask("at_work", [], {"timeout": 2})
    assert "no answer within 2 s in nvmlDeviceGetUtilizationRates" in first
    assert "still hangs" in second
