"""MIG instances made and removed through nvidia-ml-py and the pretended library."""

import pytest

from tests.support.nvml.fake import FakeNvml, machine

UUID = "GPU-00000000-aaaa-bbbb-cccc-000000000000"
PROFILES = """
profile 0 0 id=19 name="MIG 1g.10gb" slices=1 count=7 memory=9984 sm=16 ce=1 dec=1 jpeg=1 at=0,1,2,3,4,5,6 size=1
profile 0 2 id=9 name="MIG 3g.40gb" slices=3 count=2 memory=40448 sm=60 ce=3 dec=3 jpeg=3 at=0,4 size=4
profile 0 4 id=0 name="MIG 7g.80gb" slices=7 count=1 memory=80896 sm=132 ce=8 dec=7 jpeg=7 ofa=1 at=0 size=8
"""


@pytest.fixture
def nvml(tmp_path):
    return FakeNvml(tmp_path)


def described(nvml, more="", *, mig=1):
    nvml.describe(machine(1, mig=mig) + PROFILES + more)
    return nvml


def create(profile="1g.10gb", start=2):
    return ["create", {"card_uuid": UUID, "profile": profile, "start": start}]


EXISTING = ["existing", UUID]


def destroy(number):
    return ["destroy", UUID, number]


def test_made_found_and_removed(nvml):
    before, made, there, gone, after = described(nvml).ask(
        "partition", EXISTING, create(), EXISTING, destroy(1), EXISTING
    )
    assert (before, gone, after) == ([], None, [])
    assert made == {
        "id": 1,
        "profile_id": 19,
        "placement": {"start": 2, "size": 1},
        "uuid": f"MIG-{UUID}-1",
        "compute_instance_id": 0,
    }
    assert there == [made]


def test_instances_of_several_sizes_beside_each_other(nvml):
    wide, narrow, there = described(nvml).ask("partition", create("3g.40gb", 4), create("1g.10gb", 0), EXISTING)
    assert [wide["placement"], narrow["placement"]] == [{"start": 4, "size": 4}, {"start": 0, "size": 1}]
    assert there == [wide, narrow]


def test_made_twice_is_made_once(nvml):
    first, second, there = described(nvml).ask("partition", create(), create(), EXISTING)
    assert first == second
    assert there == [first]


def test_removing_what_is_gone_is_no_error(nvml):
    assert described(nvml).ask("partition", destroy(7), create(), destroy(1), destroy(1))[::2] == [None, None]
    assert described(nvml, mig=0).ask("partition", destroy(1)) == [None]


@pytest.mark.parametrize(
    ("profile", "start", "reason"),
    [
        (
            "3g.40gb",
            0,
            " was not created (memory slices in use: 2, 4-7): it does not fit next to the existing instances",
        ),
        ("3g.40gb", 2, ": this GPU can have that profile only at 0, 4"),
        ("2g.20gb", 0, ": this GPU has no such profile; it has 1g.10gb, 3g.40gb, 7g.80gb"),
    ],
)
def test_a_placement_that_is_refused_is_named_with_the_reason(nvml, profile, start, reason):
    steps = (create(), create("3g.40gb", 4), create(profile, start), EXISTING)
    *_, refused, there = described(nvml).ask("partition", *steps)
    assert refused[0] == "PartitionRefused"
    assert refused[1].startswith(f"GPU {UUID}: MIG instance {profile} at memory slice {start}{reason}")
    assert [found["placement"]["start"] for found in there] == [2, 4]


@pytest.mark.parametrize("mig", [0, None])
def test_a_gpu_that_is_not_in_mig_mode(nvml, mig):
    [refused] = described(nvml, mig=mig).ask("partition", create())
    assert refused[0] == "PartitionRefused"
    assert f"GPU {UUID} is not in MIG mode" in refused[1]


def test_a_gpu_that_is_not_there(nvml):
    [refused] = described(nvml).ask("partition", ["existing", "GPU-x"])
    assert refused[0] == "PartitionRefused"
    assert refused[1].startswith("GPU GPU-x: NVML does not know this GPU any more")


def test_without_permission(nvml):
    described(nvml, "fail nvmlDeviceCreateGpuInstanceWithPlacement * 4\n")
    [refused, there] = nvml.ask("partition", create(), EXISTING)
    assert "the driver is not allowed to: it must run as root" in refused[1]
    assert there == []


# --- cut off in the middle ---


def test_a_driver_that_was_killed_between_gpu_and_compute_instance_completes_what_it_finds(nvml):
    before, made, there = described(nvml, "instance 0 id=5 profile=19 start=2 size=1\n").ask(
        "partition", EXISTING, create(), EXISTING
    )
    assert (before[0]["uuid"], before[0]["compute_instance_id"]) == ("", None)
    assert (made["id"], made["uuid"]) == (5, f"MIG-{UUID}-5")
    assert there == [made]


def test_or_removes_it(nvml):
    described(nvml, "instance 0 id=5 profile=19 start=2 size=1\n")
    assert nvml.ask("partition", destroy(5), EXISTING) == [None, []]


def test_a_compute_instance_that_fails_leaves_no_gpu_instance(nvml):
    described(nvml, "fail nvmlGpuInstanceCreateComputeInstance * 999\n")
    refused, there = nvml.ask("partition", create(), EXISTING)
    assert "its compute instance failed: nvmlGpuInstanceCreateComputeInstance failed with NVML error 999" in refused[1]
    assert there == []


def test_and_where_that_cannot_be_taken_back_it_is_found_again(nvml):
    described(nvml, "fail nvmlGpuInstanceCreateComputeInstance * 999\nfail nvmlGpuInstanceDestroy * 19\n")
    refused, there = nvml.ask("partition", create(), EXISTING)
    assert "its compute instance failed" in refused[1]
    assert [found["uuid"] for found in there] == [""]


def test_a_busy_instance_is_not_removed(nvml):
    described(nvml, "fail nvmlComputeInstanceDestroy * 19\n")
    made, refused, there = nvml.ask("partition", create(), destroy(1), EXISTING)
    assert refused[0] == "PartitionRefused"
    assert refused[1].startswith(f"GPU {UUID}: MIG instance 1 was not removed: programs still run on it")
    assert there == [made]


# --- hardware that does not answer ---


def test_a_lost_gpu_is_not_a_refusal(nvml):
    described(nvml, "fail nvmlDeviceGetMigMode * 15\n")
    [failed] = nvml.ask("partition", create())
    assert failed[0] == "ToolFailed"
    assert "nvmlDeviceGetMigMode" in failed[1]


@pytest.mark.parametrize("function", ["nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstances", "nvmlDeviceGetUUID"])
def test_instances_that_cannot_be_read_are_not_taken_for_gone(nvml, function):
    described(nvml, f"instance 0 id=5 profile=19 start=2 size=1 ci=0 uuid=MIG-5\nfail {function} * 999\n")
    for answer in nvml.ask("partition", EXISTING, create()):
        assert answer[0] == "ToolFailed"
        assert "are not known for certain" in answer[1]


def test_a_hang_is_given_up_and_the_next_call_fails_at_once(nvml):
    described(nvml, "hang nvmlDeviceCreateGpuInstanceWithPlacement *\n")
    gave_up, at_once = nvml.ask("partition_within", 0.5, create(), EXISTING)
    assert gave_up == [
        "ToolFailed",
        "NVML gave no answer within 0.5 s in nvmlDeviceCreateGpuInstanceWithPlacement: the GPU's driver hangs",
    ]
    assert at_once[1].startswith("NVML still hangs in nvmlDeviceCreateGpuInstanceWithPlacement")


def test_without_the_library(nvml):
    [missing] = described(nvml).ask("partition", create(), library=False)
    assert missing[0] == "ToolMissing"


def test_an_old_driver_without_the_newer_calls(nvml):
    """It tells no names: they follow from slices and memory."""
    missing = ("nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlGpuInstanceGetComputeInstanceProfileInfoV")
    described(nvml, "".join(f"fail {function} * 13\n" for function in missing))
    [made] = nvml.ask("partition", create())
    assert made["uuid"] == f"MIG-{UUID}-1"
