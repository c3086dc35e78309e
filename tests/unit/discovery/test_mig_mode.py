"""MIG mode switched off for cards that are used as one, and on again, through nvidia-ml-py and the pretended library."""

import pytest

from tests.support.nvml.fake import FakeNvml, machine

UUID = "GPU-00000000-aaaa-bbbb-cccc-000000000000"
PROFILES = """
profile 0 0 id=19 name="MIG 1g.10gb" slices=1 count=7 memory=9984 sm=16 ce=1 dec=1 jpeg=1 at=0,1,2,3,4,5,6 size=1
profile 0 4 id=0 name="MIG 7g.80gb" slices=7 count=1 memory=80896 sm=132 ce=8 dec=7 jpeg=7 ofa=1 at=0 size=8
"""
CREATE = ["create", {"card_uuid": UUID, "profile": "1g.10gb", "start": 2}]
EXISTING, UNPARTITION, REPARTITION = ["existing", UUID], ["unpartition", UUID], ["repartition", UUID]
DISCOVER, MODE, NOTED, RESTART, FAULTS = ["discover"], ["mode"], ["noted"], ["restart"], ["faults"]


@pytest.fixture
def nvml(tmp_path):
    return FakeNvml(tmp_path)


def described(nvml, more="", **values):
    nvml.describe(machine(1, **({"mig": 1} | values)) + PROFILES + more)
    return nvml


@pytest.mark.parametrize("reset", [None, 0])
def test_off_while_it_is_one_and_on_before_it_is_cut(nvml, reset):
    steps = (UNPARTITION, UNPARTITION, MODE, NOTED, EXISTING, REPARTITION, REPARTITION, MODE, NOTED, CREATE)
    *answers, made = described(nvml, reset=reset).ask("partition", *steps)
    assert answers == [None, None, [0, 0], [UUID], [], None, None, [1, 1], []]
    assert made["uuid"] == f"MIG-{UUID}-1"


def test_making_a_part_switches_it_on(nvml):
    made, mode, noted = described(nvml).ask("partition", UNPARTITION, CREATE, MODE, NOTED)[1:]
    assert (made["id"], mode, noted) == (1, [1, 1], [])


@pytest.mark.parametrize("tells", [0, 1])
def test_it_goes_on_being_told_as_one_that_may_be_cut(nvml, tells):
    """Also where NVML tells profiles in MIG mode only, over a restart, and without faults; who listens is not in the way of a reset."""
    steps = (DISCOVER, UNPARTITION, MODE, FAULTS, DISCOVER, RESTART, DISCOVER, REPARTITION, MODE, DISCOVER)
    first, _, off, faults, second, _, third, _, on, last = described(nvml, tells=tells, reset=0).ask(
        "partition", *steps
    )
    assert (off, on, faults) == ([0, 0], [1, 1], [[]])
    assert first == second == third == last
    assert [profile["name"] for profile in first["profiles"]] == ["7g.80gb", "1g.10gb"]


def test_a_mode_that_is_off_by_itself_is_not_ours(nvml):
    none, mode, noted, again, mode_after, refused = described(nvml, mig=0).ask(
        "partition", UNPARTITION, MODE, NOTED, REPARTITION, MODE, CREATE
    )
    assert (none, mode, noted, again, mode_after) == (None, [0, 0], [], None, [0, 0])
    assert "is not in MIG mode" in refused[1]


@pytest.mark.parametrize(
    ("more", "values", "words"),
    [
        (
            "instance 0 id=5 profile=19 start=2 size=1 ci=0 uuid=MIG-5\n",
            {},
            "did not make: 5 (MIG-5): remove them with",
        ),
        ("", {"pid": 4711}, "the GPU is in use: end the programs that have it open"),
        ("", {"reset": 19}, "the GPU is in use"),
        ("", {"reset": 16}, "the GPU is in use"),
        ("", {"reset": 3}, "set the mode on the host"),
        ("", {"pending": 0}, "another program changed its MIG mode, which waits for a reset"),
        ("fail nvmlDeviceSetMigMode * 4\n", {}, "it must run as root"),
        ("fail nvmlDeviceSetMigMode * 19\n", {}, "the GPU is in use"),
    ],
)
def test_a_card_that_cannot_be_one_now_is_left_as_it_was(nvml, more, values, words):
    before, refused, noted, after, state = described(nvml, more, **values).ask(
        "partition", MODE, UNPARTITION, NOTED, MODE, DISCOVER
    )
    assert refused[0] == "PartitionRefused"
    assert refused[1].startswith(f"GPU {UUID}")
    assert words in refused[1]
    assert (noted, after) == ([], before)
    assert state["enabled"]


def test_who_is_in_the_way_is_named(nvml):
    [refused] = described(nvml, pid=4711).ask("partition", UNPARTITION)
    assert "processes 4711 run on the GPU" in refused[1]


def test_a_change_that_stays_pending_is_ours_to_mend(nvml):
    """Setting the mode back fails once: the note stays, and the next call sets it."""
    described(nvml, "fail nvmlDeviceSetMigMode * 999 1\n", reset=19)
    refused, noted, mode = nvml.ask("partition", UNPARTITION, NOTED, MODE)
    assert refused[0] == "PartitionRefused"
    assert (noted, mode) == ([UUID], [1, 0])
    described(nvml, pending=0)
    assert nvml.ask("partition", REPARTITION, NOTED, MODE) == [None, [], [1, 1]]


def test_killed_before_the_mode_was_switched(nvml):
    described(nvml, "hang nvmlDeviceSetMigMode *\n")
    gave_up, noted = nvml.ask("partition_within", 0.5, UNPARTITION, NOTED)
    assert "gave no answer" in gave_up[1]
    assert noted == [UUID]
    assert described(nvml).ask("partition", DISCOVER, REPARTITION, NOTED, MODE)[1:] == [None, [], [1, 1]]


def test_switching_on_is_tried_again_until_nobody_uses_the_card(nvml):
    assert described(nvml).ask("partition", UNPARTITION) == [None]
    described(nvml, mig=0, pid=4711)
    refused, noted, part, there = nvml.ask("partition", REPARTITION, NOTED, CREATE, EXISTING)
    assert "MIG mode was not switched on: the GPU is in use" in refused[1]
    assert "MIG mode was not switched on" in part[1]
    assert (noted, there) == ([UUID], [])
    assert described(nvml, mig=0).ask("partition", REPARTITION, MODE, NOTED) == [None, [1, 1], []]


def test_a_card_that_is_gone_is_no_error(nvml):
    assert described(nvml).ask("partition", UNPARTITION) == [None]
    nvml.describe(machine(1, uuid="GPU-other"))
    assert nvml.ask("partition", REPARTITION) == [None]
    [refused] = nvml.ask("partition", UNPARTITION)
    assert refused[0] == "PartitionRefused"


def test_a_note_that_cannot_be_read_stops_everything_that_depends_on_it(nvml):
    (nvml.config.parent / "uncut.json").write_text("{")
    for answer in described(nvml).ask("partition", DISCOVER, UNPARTITION, REPARTITION, EXISTING, CREATE):
        assert answer[0] == "ToolFailed"
        assert "uncut.json, which lists the GPUs whose MIG mode this driver switched off, cannot be read" in answer[1]
