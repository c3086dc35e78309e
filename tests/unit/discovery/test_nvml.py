"""NVIDIA GPUs through nvidia-ml-py and a real libnvidia-ml.so.1 that pretends (tests/support/nvml)."""

import re
import shutil
from pathlib import Path

import pytest

from hami_dra.discovery.durable import boot_id
from tests.support.nvml.fake import FakeNvml, gpu, lanes, library_folder, machine, switched

H100_PROFILES = """
profile 0 0 id=19 name="MIG 1g.10gb" slices=1 count=7 memory=9984 sm=16 ce=1 dec=1 jpeg=1 at=0,1,2,3,4,5,6 size=1
profile 0 2 id=9 name="MIG 3g.40gb" slices=3 count=2 memory=40448 sm=60 ce=3 dec=3 jpeg=3 at=0,4 size=4
profile 0 4 id=0 name="MIG 7g.80gb" slices=7 count=1 memory=80896 sm=132 ce=8 dec=7 jpeg=7 ofa=1 at=0 size=8
"""


@pytest.fixture
def nvml(tmp_path):
    return FakeNvml(tmp_path)


def uuid(index):
    return f"GPU-{index:08d}-aaaa-bbbb-cccc-000000000000"


def links(found):
    return {card["index"]: card["links"] for card in found["cards"]}


def test_one_gpu_with_all_that_nvml_tells(nvml):
    nvml.describe(machine(1, numa=1, minor=3))
    found = nvml.ask("discover")
    assert found["problems"] == []
    assert found["cards"] == [
        {
            "vendor": "nvidia",
            "index": 0,
            "uuid": uuid(0),
            "product": "NVIDIA H100 80GB HBM3",
            "memory": 81559 << 20,
            "pci_bus_id": "0000:1b:00.0",
            "pcie_root": "",
            "numa_node": 1,
            "links": {},
            "distances": {},
            "minor": 3,
            "serial": "1650000000",
            "faults": [],
            "driver_version": "550.90.07",
            "runtime_version": "12.4",
            "brand": "Nvidia",
            "architecture": "Hopper",
            "compute_capability": "9.0",
            "mig": None,
            "fabric": None,
        }
    ]


CLUSTER = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31"


def fabrics(nvml):
    found = nvml.ask("discover")
    assert found["problems"] == []
    return [card["fabric"] for card in found["cards"]]


@pytest.mark.parametrize("trouble", ["", "fail nvmlDeviceGetGpuFabricInfoV * 13\n"])
def test_the_place_in_a_fabric_of_new_and_old_drivers(nvml, trouble):
    nvml.describe(machine(2, cluster=CLUSTER, clique=7) + trouble)
    assert fabrics(nvml) == [{"cluster_uuid": CLUSTER, "clique_id": 7}] * 2


def test_a_gpu_is_in_no_fabric_before_it_is_registered_or_without_a_cluster(nvml):
    nobody = "00000000-0000-0000-0000-000000000000"
    nvml.describe(gpu(0, cluster=CLUSTER, fabric=2) + gpu(1, cluster=nobody) + gpu(2, cluster=CLUSTER, clique=1))
    in_none = {"cluster_uuid": "", "clique_id": 0}
    assert fabrics(nvml) == [in_none, in_none, {"cluster_uuid": CLUSTER, "clique_id": 1}]


@pytest.mark.parametrize("code", [3, 13])
def test_a_gpu_or_driver_without_a_fabric_says_nothing(nvml, code):
    nvml.describe(
        machine(1, cluster=CLUSTER)
        + f"fail nvmlDeviceGetGpuFabricInfoV * {code}\nfail nvmlDeviceGetGpuFabricInfo * 13\n"
    )
    assert fabrics(nvml) == [None]


def test_no_gpu_is_no_error(nvml):
    nvml.describe("driver 550.90.07\n")
    assert nvml.ask("discover") == {"cards": [], "problems": []}


def test_where_the_kernel_says_a_gpu_sits(nvml):
    nvml.describe(machine(1, numa=None))
    device = nvml.sys / "devices/pci0000:15/0000:15:01.0/0000:1b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    (nvml.sys / "bus/pci/devices").mkdir(parents=True)
    (nvml.sys / "bus/pci/devices/0000:1b:00.0").symlink_to(device)
    [card] = nvml.ask("discover")["cards"]
    assert (card["pcie_root"], card["numa_node"]) == ("pci0000:15", 1)


def test_lanes_between_gpus_are_counted(nvml):
    nvml.describe(machine(3) + lanes(0, 1, 2) + lanes(1, 2, 1, first=4))
    assert links(nvml.ask("discover")) == {0: {"1": 2}, 1: {"0": 2, "2": 1}, 2: {"1": 1}}


def test_behind_nvswitch_a_pair_has_the_smaller_count_of_its_two_gpus(nvml):
    off = "".join(f"lane 2 {lane} off\n" for lane in range(6))
    nvml.describe(machine(3) + switched(3) + off)
    assert links(nvml.ask("discover")) == {
        0: {"1": 18, "2": 12},
        1: {"0": 18, "2": 12},
        2: {"0": 12, "1": 12},
    }


def test_a_gpu_without_lanes_is_linked_to_nobody(nvml):
    nvml.describe(machine(3) + switched(2))
    assert links(nvml.ask("discover")) == {0: {"1": 18}, 1: {"0": 18}, 2: {}}


def test_a_lane_that_is_down_on_one_side_is_named(nvml):
    nvml.describe(machine(2) + lanes(0, 1, 4) + "lane 1 0 off\n")
    found = nvml.ask("discover")
    assert links(found) == {0: {"1": 4}, 1: {"0": 3}}
    assert found["problems"] == ["NVLink: GPU 0 has 4 lanes to GPU 1, which has 3 back"]


def test_distances(nvml):
    levels = {0: "B", 10: "S", 20: "M", 30: "H", 40: "C", 50: "X"}
    each = nvml.ask("discover_each", [machine(2) + f"ancestor 0 1 {level}\n" for level in levels])
    for found, letter in zip(each, levels.values(), strict=True):
        assert [card["distances"] for card in found["cards"]] == [{"1": letter}, {"0": letter}]


def test_a_distance_that_is_not_known_stays_open(nvml):
    nvml.describe(machine(2) + "ancestor 0 1 35\n")
    assert nvml.ask("discover")["cards"][0]["distances"] == {}


# --- MIG ---


def test_a_gpu_that_can_be_cut_tells_profiles_and_partitions(nvml):
    instances = (
        "instance 0 id=3 profile=9 start=4 size=4 ci=0 uuid=MIG-3\n"
        "instance 0 id=1 profile=19 start=0 size=1 ci=0 uuid=MIG-1\n"
        "instance 0 id=2 profile=19 start=1 size=1\n"
    )
    nvml.describe(machine(1, mig=1) + H100_PROFILES + instances)
    mig = nvml.ask("discover")["cards"][0]["mig"]
    assert (mig["enabled"], mig["pending"]) == (True, True)
    assert [profile["name"] for profile in mig["profiles"]] == ["7g.80gb", "3g.40gb", "1g.10gb"]
    assert mig["profiles"][1] == {
        "id": 9,
        "name": "3g.40gb",
        "memory": 40448 << 20,
        "slices": 3,
        "instances": 2,
        "placements": [{"start": 0, "size": 4}, {"start": 4, "size": 4}],
    }
    assert mig["instances"] == [
        {
            "id": 1,
            "profile_id": 19,
            "placement": {"start": 0, "size": 1},
            "uuid": "MIG-1",
            "compute_instance_id": 0,
        },
        {"id": 2, "profile_id": 19, "placement": {"start": 1, "size": 1}, "uuid": "", "compute_instance_id": None},
        {
            "id": 3,
            "profile_id": 9,
            "placement": {"start": 4, "size": 4},
            "uuid": "MIG-3",
            "compute_instance_id": 0,
        },
    ]


def test_a_gpu_that_is_not_cut_tells_its_profiles_only(nvml):
    nvml.describe(machine(1, mig=0) + H100_PROFILES)
    mig = nvml.ask("discover")["cards"][0]["mig"]
    assert (mig["enabled"], len(mig["profiles"]), mig["instances"]) == (False, 3, [])


def test_a_driver_that_does_not_name_profiles(nvml):
    extended = "profile 0 7 id=20 name=x slices=1 count=1 memory=9984 at=0 size=1\n"
    nvml.describe(machine(1, mig=1) + H100_PROFILES + extended + "fail nvmlDeviceGetGpuInstanceProfileInfoV * 13\n")
    found = nvml.ask("discover")
    names = [profile["name"] for profile in found["cards"][0]["mig"]["profiles"]]
    assert names == ["7g.79gb", "3g.40gb", "1g.10gb", "1g.10gb+me"]
    assert found["problems"] == []


def test_partitions_come_and_go(nvml):
    nvml.describe(machine(1, mig=1) + H100_PROFILES)
    cycle = nvml.ask("mig_cycle", 19, 2)
    before, there, after = [state["cards"][0]["mig"]["instances"] for state in cycle["states"]]
    assert (before, after) == ([], [])
    [instance] = there
    assert (instance["profile_id"], instance["placement"], instance["compute_instance_id"]) == (
        19,
        {"start": 2, "size": 1},
        0,
    )
    assert instance["uuid"].startswith("MIG-")
    assert cycle["refused"] == [23, 19, 19]  # no room, in use, in use


# --- what goes wrong ---


def test_without_the_library(nvml):
    [first, second] = nvml.ask("refusal", library=False)
    assert first == second
    assert first[0] == "ToolMissing"
    assert "libnvidia-ml.so.1 was not found" in first[1]


@pytest.mark.parametrize(
    ("code", "words"), [(9, "Driver Not Loaded"), (18, "version mismatch"), (4, "Permissions"), (999, "Unknown")]
)
def test_a_library_that_cannot_start(nvml, code, words):
    nvml.describe(f"fail nvmlInitWithFlags * {code}\n")
    for kind, message in nvml.ask("refusal"):
        assert kind == "ToolFailed"
        assert words in message
        assert "nvmlInitWithFlags" in message


def test_gpus_that_cannot_be_counted(nvml):
    nvml.describe(machine(1) + "fail nvmlDeviceGetCount_v2 * 999\n")
    assert {kind for kind, _ in nvml.ask("refusal")} == {"ToolFailed"}


@pytest.mark.parametrize("code", [3, 15, 999])
def test_a_gpu_that_does_not_tell_what_is_needed_is_left_out_alone(nvml, code):
    needed = [
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetName",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetPciInfo_v3",
    ]
    if code == 3:
        needed.remove("nvmlDeviceGetMemoryInfo")  # it shares the memory of the machine
    for found in nvml.ask("discover_each", [machine(3) + f"fail {function} 1 {code}\n" for function in needed]):
        assert [card["index"] for card in found["cards"]] == [0, 2]
        assert any("GPU 1: left out" in problem and f"error {code}" in problem for problem in found["problems"])


def test_a_gpu_without_memory_of_its_own_has_that_of_the_machine(nvml):
    """GB10 (DGX Spark), Jetson Thor."""
    nvml.describe(machine(1) + "fail nvmlDeviceGetMemoryInfo 0 3\n")
    found = nvml.ask("discover")
    total = int(re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())[1])
    assert [card["memory"] for card in found["cards"]] == [total << 10]
    assert found["problems"] == [f"NVML, GPU 0: it shares the memory of the machine: {total >> 10} MiB are its own"]


OPTIONAL = {
    "nvmlDeviceGetSerial": ("serial", ""),
    "nvmlDeviceGetMinorNumber": ("minor", None),
    "nvmlDeviceGetBrand": ("brand", ""),
    "nvmlDeviceGetArchitecture": ("architecture", ""),
    "nvmlDeviceGetCudaComputeCapability": ("compute_capability", ""),
    "nvmlDeviceGetMemoryAffinity": ("numa_node", None),
    "nvmlDeviceGetMigMode": ("mig", None),
    "nvmlDeviceGetRemappedRows": ("faults", []),
    "nvmlSystemGetDriverVersion": ("driver_version", ""),
    "nvmlSystemGetCudaDriverVersion_v2": ("runtime_version", ""),
    "nvmlDeviceGetTopologyCommonAncestor": ("distances", {}),
    "nvmlDeviceGetNvLinkState": ("links", {}),
}


@pytest.mark.parametrize(("code", "reported"), [(3, False), (13, False), (999, True)])
def test_what_a_gpu_may_not_know(nvml, code, reported):
    """Not supported: nothing to say. Any other error: named, and the GPU stays."""
    each = nvml.ask(
        "discover_each", [machine(2) + lanes(0, 1, 2) + f"fail {function} * {code}\n" for function in OPTIONAL]
    )
    for found, (field, empty) in zip(each, OPTIONAL.values(), strict=True):
        assert [card[field] for card in found["cards"]] == [empty, empty]
        assert bool(found["problems"]) == reported


def test_whatever_call_a_gpu_is_lost_in_the_other_one_is_found(nvml):
    calls = [*OPTIONAL, "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemoteDeviceType"]
    each = nvml.ask("discover_each", [machine(2) + lanes(0, 1, 2) + f"fail {function} 0 15\n" for function in calls])
    for found in each:
        assert 1 in [card["index"] for card in found["cards"]]


def test_a_driver_that_is_reloaded(nvml):
    nvml.describe(machine(2) + "fail nvmlDeviceGetCount_v2 * 1 1\n")
    story = nvml.ask("reloaded", machine(1))
    assert "nvmlDeviceGetCount failed with NVML error 1" in story["refusal"]
    assert story["between"]["faults"] == {uuid(0): [], uuid(1): ["lost"]}
    assert [card["index"] for card in story["again"]["cards"]] == [0]
    assert story["after"] == {"faults": {uuid(0): [], uuid(1): ["lost"]}, "problems": []}


def test_a_gpu_that_vanishes_between_reading_it_and_the_end(nvml):
    nvml.describe(machine(2) + "fail nvmlDeviceGetUUID 0 15 1\n")
    found = nvml.ask("discover")
    assert [card["index"] for card in found["cards"]] == [1]
    assert any("GPU 0: left out" in problem for problem in found["problems"])


def test_a_broken_name_breaks_its_gpu_only(nvml):
    nvml.config.write_bytes((machine(1) + gpu(1, name='"NVIDIA ###"')).encode().replace(b"###", b"\xff\xfe"))
    found = nvml.ask("discover")
    assert [card["index"] for card in found["cards"]] == [0]
    assert any("GPU 1" in problem and "UTF-8" in problem for problem in found["problems"])


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetName", "nvmlDeviceGetTopologyCommonAncestor"])
def test_a_driver_that_hangs_is_given_up_and_asked_no_more(nvml, function):
    nvml.describe(machine(2) + f"hang {function} *\n")
    [first, second] = nvml.ask("refusal", {"timeout": 3})
    assert first[0] == second[0] == "ToolFailed"
    assert "gave no answer within 3 s" in first[1]
    assert "still hangs" in second[1]
    assert function.removesuffix("_v2") in first[1]


# --- health ---


def test_all_is_well(nvml):
    nvml.describe(machine(2))
    story = nvml.ask("health_after", [])
    assert story["after"] == {"faults": {uuid(0): [], uuid(1): []}, "problems": []}


def test_an_xid_of_the_hardware_stays(nvml):
    nvml.describe(machine(2))
    story = nvml.ask("health_after", ["event 1 8 79", "event 1 8 48", "event 1 8 79"])
    assert story["before"]["faults"] == {uuid(0): [], uuid(1): []}
    assert story["after"]["faults"] == {uuid(0): [], uuid(1): ["xid-79", "xid-48"]}
    assert [[fault["code"] for fault in card["faults"]] for card in story["again"]["cards"]] == [
        [],
        ["xid-79", "xid-48"],
    ]


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_an_xid_of_a_program_is_no_fault(nvml, xid):
    nvml.describe(machine(1))
    assert nvml.ask("health_after", [f"event 0 8 {xid}"])["after"]["faults"] == {uuid(0): []}


def test_which_xids_are_harmless_is_a_setting(nvml):
    nvml.describe(machine(1))
    story = nvml.ask("health_after", ["event 0 8 79", "event 0 8 13"], 0.0, {"harmless_xids": [79]})
    assert story["after"]["faults"] == {uuid(0): ["xid-13"]}


def test_a_double_bit_error(nvml):
    nvml.describe(machine(1))
    assert nvml.ask("health_after", ["event 0 2 1"])["after"]["faults"] == {uuid(0): ["ecc-double-bit"]}


def test_an_xid_inside_a_partition_names_it(nvml):
    nvml.describe(machine(1, mig=1) + H100_PROFILES)
    [card] = nvml.ask("health_after", ["event 0 8 94 2 0"])["again"]["cards"]
    assert card["faults"] == [{"code": "xid-94", "message": "XID 94 in GPU instance 2"}]


def test_an_event_of_no_known_gpu_is_held_against_all(nvml):
    nvml.describe(machine(2))
    assert nvml.ask("health_after", ["event - 8 79"])["after"]["faults"] == {uuid(0): ["xid-79"], uuid(1): ["xid-79"]}


def test_a_lost_gpu(nvml):
    nvml.describe(machine(2))
    story = nvml.ask("health_after", ["lost 0"])
    assert story["after"]["faults"] == {uuid(0): ["lost"], uuid(1): []}
    assert [card["index"] for card in story["again"]["cards"]] == [1]
    assert any("was found before and is missing now" in problem for problem in story["again"]["problems"])


def test_an_event_that_comes_while_health_waits(nvml):
    nvml.describe(machine(1))
    assert nvml.ask("patience", 30) == {"faults": {uuid(0): ["xid-79"]}, "problems": []}


def test_a_row_that_cannot_be_remapped(nvml):
    nvml.describe(machine(2) + "remapped 1 1\n")
    story = nvml.ask("health_after", [])
    assert story["after"]["faults"] == {uuid(0): [], uuid(1): ["row-remapping"]}
    assert [fault["code"] for fault in story["again"]["cards"][1]["faults"]] == ["row-remapping"]


def test_a_gpu_that_tells_no_events_is_named_and_still_looked_at(nvml):
    nvml.describe(machine(1) + "fail nvmlDeviceRegisterEvents 0 3\n")
    story = nvml.ask("health_after", ["lost 0"])
    assert story["after"]["faults"] == {uuid(0): ["lost"]}
    nvml.describe(machine(1) + "fail nvmlDeviceRegisterEvents 0 3\n")
    nvml.events.write_text("")
    assert "hardware errors will not be noticed" in nvml.ask("discover")["problems"][0]


def test_waiting_that_fails_is_named(nvml):
    nvml.describe(machine(1) + "fail nvmlEventSetWait_v2 * 999\n")
    after = nvml.ask("health_after", [])["after"]
    assert after["faults"] == {uuid(0): []}
    assert "nvmlEventSetWait_v2" in after["problems"][0]


def test_health_before_anything_was_discovered(nvml):
    nvml.describe(machine(1))
    assert nvml.ask("before_discovery") == {
        "faults": {},
        "problems": ["NVML: nothing was discovered yet, so there are no events"],
    }


# --- what outlives a look, and a driver ---


def test_a_gpu_that_one_call_cannot_read_is_not_lost(nvml):
    """A discovery leaves it out, and it is there."""
    nvml.describe(machine(2))
    [errs, gone] = nvml.ask("looked_at", machine(2) + "fail nvmlDeviceGetRemappedRows 1 999\n", machine(1))
    assert errs == {uuid(0): [], uuid(1): ["unreadable"]}
    assert gone == {uuid(0): [], uuid(1): ["lost"]}


def test_names_stay_with_gpus_that_are_renumbered(nvml, tmp_path):
    """GPU 0 is taken off the bus, and one is added: the others keep their names, the new one gets a free one."""
    state = str(tmp_path / "state")
    without = "driver 550.90.07\n" + gpu(1) + gpu(2)
    more = without + gpu(7)
    first, second, third = nvml.ask("starts", state, [machine(3), []], [without, []], [more, []])
    assert first["cards"] == [[uuid(number), number, number, True] for number in range(3)]
    assert second["cards"] == [[uuid(1), 1, 0, True], [uuid(2), 2, 1, True], [uuid(0), 0, 2, False]]
    assert second["faults"] == {uuid(0): ["lost"], uuid(1): [], uuid(2): []}
    assert third["cards"] == [
        [uuid(1), 1, 0, True],
        [uuid(2), 2, 1, True],
        [uuid(7), 3, 2, True],
        [uuid(0), 0, 3, False],
    ]


def test_an_xid_outlives_the_driver_but_not_the_boot(nvml, tmp_path):
    state = tmp_path / "state"
    first, second = nvml.ask("starts", str(state), [machine(1), ["event 0 8 79"]], [machine(1), []])
    assert first["faults"] == second["faults"] == {uuid(0): ["xid-79"]}
    noted = state / "noted-faults.json"
    noted.write_text(noted.read_text().replace(boot_id(), "an earlier boot"))
    nvml.events.write_text("")
    (third,) = nvml.ask("starts", str(state), [machine(1), []])
    assert third["faults"] == {uuid(0): []}


def test_notes_of_faults_that_are_damaged_are_set_aside_and_told(nvml, tmp_path):
    (tmp_path / "state").mkdir()
    noted = tmp_path / "state" / "noted-faults.json"
    noted.write_text("{")
    (found,) = nvml.ask("starts", str(tmp_path / "state"), [machine(1), []])
    assert found["faults"] == {uuid(0): []}
    assert noted.with_name("noted-faults.json.damaged").exists()


@pytest.mark.parametrize("folder", ["usr/lib64", "usr/lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu/nvidia/current"])
def test_nvml_of_a_driver_root(nvml, tmp_path, folder):
    """A node without NVIDIA's container runtime, or a driver container."""
    nvml.describe(machine(2))
    (tmp_path / "root" / folder).mkdir(parents=True)
    library = tmp_path / "root" / folder / "libnvidia-ml.so.550"
    shutil.copy(library_folder() / "libnvidia-ml.so.1", library)
    library.with_name("libnvidia-ml.so.1").symlink_to(f"/{folder}/{library.name}")  # as the driver container sees it
    found = nvml.ask("below_driver_root", str(tmp_path / "root"), library=False)
    assert [each["uuid"] for each in found["cards"]] == [uuid(0), uuid(1)]


def test_a_gpu_whose_instances_this_driver_may_not_see_takes_nothing_new(nvml):
    """B6: as under NVIDIA's runtime in legacy mode, without NVIDIA_MIG_CONFIG_DEVICES. Its claims would all be refused."""
    nvml.describe(machine(1, mig=1) + gpu(1) + H100_PROFILES + "fail nvmlDeviceGetGpuInstances * 4\n")
    found = nvml.ask("discover_and_look")
    for faults in (found["discovered"], found["looked"]):
        assert faults == {uuid(0): ["mig-not-permitted"], uuid(1): []}
    nvml.describe(machine(1, mig=1) + H100_PROFILES)
    assert nvml.ask("discover_and_look")["looked"] == {uuid(0): []}
