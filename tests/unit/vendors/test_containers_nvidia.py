"""What containers get of NVIDIA cards: HAMi-core's variables and mounts, CDI in place of device nodes, MIG instances."""

from fractions import Fraction

import pytest

from hami_dra.api.containers import CdiDevice, Folder, Mount, Tmpfs, Unpreparable
from hami_dra.api.hardware import PartitionPlacement
from hami_dra.driver.prepare.cdi import container_edits
from hami_dra.vendors.nvidia.mig import profiles
from hami_dra.vendors.nvidia.options import Keeping
from hami_dra.vendors.nvidia.records import GpuRecord, MigInstance, MigState
from hami_dra.vendors.registry import PUBLISHING_VENDORS, containers
from tests.support.containers import MIB, PretendHost, card, kernel_with_mig, place, tenancy
from tests.support.settings import vendor_settings

NVIDIA = containers("nvidia")
NODES = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
LIBRARY = "/usr/local/vgpu/libvgpu.so"
PRELOAD = "/usr/local/vgpu/ld.so.preload"
HAMI_CORE = (LIBRARY, PRELOAD)
RW = ("rw", "nosuid", "nodev", "bind")


def shared(index, mebibytes, cores, **more):
    return tenancy(card(index), {"memory": mebibytes * MIB, "cores": cores, "shares": 1}, **more)


def env(*tenancies, host=None, **where):
    return dict(NVIDIA.edits(tenancies, place(**where), host or PretendHost(*NODES)).env)


# --- limits ---


def test_a_share():
    assert env(shared(0, 3000, 30)) == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-0",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
    }


def test_no_limit_of_cores_is_zero_as_in_hami():
    assert env(shared(0, 3000, 0))["CUDA_DEVICE_SM_LIMIT"] == "0"


def test_a_whole_card_has_no_limit():
    assert env(tenancy(card(0), {"memory": 1, "cores": 1}, whole=True)) == {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}


@pytest.mark.parametrize(
    "unlimited",
    [
        [tenancy(card(0), {"memory": 16384 * MIB, "cores": 100}, whole=True)],
        [tenancy(card(0), whole=True), tenancy(card(1), whole=True)],
        [shared(0, 1000, 10, admin=True)],
        [tenancy(card(0), whole=True, config={"priority": 0, "limits": "enforced", "core_policy": "force"})],
    ],
)
def test_nothing_of_hami_core_is_in_a_container_in_which_nothing_is_limited(unlimited):
    """B0: preloaded without a limit, cudaDeviceProp.totalGlobalMem is 0."""
    edits = NVIDIA.edits(unlimited, place(), PretendHost(*NODES, *HAMI_CORE))
    assert edits.env.keys() == {"NVIDIA_VISIBLE_DEVICES"}
    assert (edits.mounts, edits.tmpfs, edits.folders, edits.notes) == ((), (), (), ())


def test_who_takes_all_of_an_oversubscribed_card_has_its_scaled_memory():
    """More than the card has, which only HAMi-core can give."""
    host = PretendHost(*NODES, *HAMI_CORE, memory_scaling=Fraction(3, 2))
    edits = NVIDIA.edits([tenancy(card(0), {"memory": 24576 * MIB, "cores": 100}, whole=True)], place(), host)
    assert edits.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "24576m"
    assert edits.env["CUDA_OVERSUBSCRIBE"] == "true"
    assert PRELOAD in {mount.host for mount in edits.mounts}


def test_limits_are_numbered_by_the_cards_in_the_container_not_by_the_order_of_the_allocation():
    assert env(shared(1, 1000, 20), shared(0, 2000, 20)) == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "2000m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "1000m",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_DEVICE_SM_LIMIT": "20",
    }


def test_cuda_counts_the_cards_as_the_limits_do():
    """B12: by default it counts the fastest first, and an A10G would have the limit of the T4 before it."""
    t4, a10g = card(0), card(1, product="NVIDIA A10G")
    amounts = [{"memory": mebibytes * MIB, "cores": 10, "shares": 1} for mebibytes in (2000, 9000)]
    found = env(tenancy(t4, amounts[0]), tenancy(a10g, amounts[1]))
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_DEVICE_ORDER" not in env(tenancy(t4, amounts[0]))
    assert "CUDA_DEVICE_ORDER" not in env(tenancy(t4, whole=True), tenancy(a10g, whole=True))


def test_cards_with_different_cores_have_a_limit_each_and_none_is_not_that_of_the_others():
    found = env(shared(0, 1000, 20), shared(1, 1000, 0))
    assert found["CUDA_DEVICE_SM_LIMIT"] == "20"  # of the first, as in HAMi
    assert (found["CUDA_DEVICE_SM_LIMIT_0"], found["CUDA_DEVICE_SM_LIMIT_1"]) == ("20", "100")


def test_a_whole_card_beside_a_share_keeps_its_number_and_has_its_own_memory():
    found = env(tenancy(card(0), whole=True), shared(1, 1000, 40))
    assert found == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "16384m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "1000m",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_DEVICE_SM_LIMIT": "0",
        "CUDA_DEVICE_SM_LIMIT_0": "100",
        "CUDA_DEVICE_SM_LIMIT_1": "40",
    }


def test_whatever_some_of_the_requests_set_all_of_them_set_too():
    """A container that refers to more requests than another one gets both edits, its own last."""
    requests = [shared(3, 1000, 20), shared(1, 2000, 30), tenancy(card(0), whole=True), shared(2, 500, 20)]
    host = PretendHost(nodes_required=False)
    everything = env(*requests, host=host)
    for number in range(1, len(requests)):
        assert env(*requests[:number], host=host).keys() <= everything.keys()


def test_two_requests_on_one_card_add_up():
    found = env(shared(0, 1000, 70, request="a"), shared(0, 500, 70, request="b"))
    assert found["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1500m"
    assert found["CUDA_DEVICE_SM_LIMIT"] == "100"


def test_part_of_a_mebibyte_is_cut_off():
    odd = tenancy(card(0), {"memory": 1000 * MIB + MIB - 1, "cores": 10})
    assert env(odd)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"


def test_nothing_is_never_told_as_no_limit():
    with pytest.raises(Unpreparable, match=r"card 0 \(GPU-0\): a share of less than 1Mi"):
        env(tenancy(card(0), {"memory": MIB - 1, "cores": 10}))


@pytest.mark.parametrize(
    ("config", "settings", "expected"),
    [
        ({"priority": 1}, {}, {"CUDA_TASK_PRIORITY": "1"}),
        ({"core_policy": "force"}, {}, {"GPU_CORE_UTILIZATION_POLICY": "force"}),
        ({"core_policy": "default"}, {}, {}),
        ({"core_policy": "force"}, {"core_limits": False}, {"GPU_CORE_UTILIZATION_POLICY": "disable"}),
        ({}, {"memory_scaling": Fraction(3, 2)}, {"CUDA_OVERSUBSCRIBE": "true"}),
        ({}, {"memory_scaling": Fraction(1, 2)}, {}),
        ({}, {"library_log_level": "4"}, {"LIBCUDA_LOG_LEVEL": "4"}),
    ],
)
def test_what_else_the_library_reads(config, settings, expected):
    found = env(shared(0, 1000, 10, config=config), host=PretendHost(*NODES, **settings))
    known = {"NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT"}
    assert {name: value for name, value in found.items() if name not in known} == expected


def test_the_highest_priority_of_several_requests_counts():
    both = (shared(0, 1000, 10, config={"priority": 1}), shared(1, 1000, 10, config={"priority": 0}))
    assert env(*both)["CUDA_TASK_PRIORITY"] == "0"


# --- the library ---


ALONE = {"usage_cache": Keeping.HOST}


@pytest.mark.parametrize(
    ("config", "cores", "settings", "why"),
    [
        ({"priority": 1}, 30, ALONE, ""),
        ({"priority": 0}, 0, {}, ""),
        ({}, 0, {}, ""),
        ({"priority": 1}, 30, {}, "its usage file is in its own memory"),
        ({"priority": 1}, 0, ALONE, "only containers with a limit of cores wait"),
        ({"priority": 1}, 100, ALONE, "only containers with a limit of cores wait"),
        ({"priority": 1, "core_policy": "disable"}, 30, ALONE, "only containers with a limit of cores wait"),
        ({"priority": 1}, 30, ALONE | {"core_limits": False}, "only containers with a limit of cores wait"),
    ],
)
def test_a_priority_without_effect_is_told(config, cores, settings, why):
    where = place(view="0a1b", pod_uids=("7e57",), containers=("main",))
    host = PretendHost(*NODES, *HAMI_CORE, **settings)
    notes = NVIDIA.edits([shared(0, 1000, cores, config=config)], where, host).notes
    assert [note.partition(": ")[0] for note in notes] == ["priority 1 has no effect on the container"] * bool(why)
    assert all(why in note for note in notes)


@pytest.mark.parametrize(
    ("version", "lock_folder", "told"),
    [
        ("v2.8.0", Keeping.PRIVATE, True),
        ("2.7.1", Keeping.PRIVATE, True),
        ("v2.8.0", Keeping.HOST, False),
        ("v2.8.1", Keeping.PRIVATE, False),
        ("v2.10.0", Keeping.PRIVATE, False),
        ("latest", Keeping.PRIVATE, False),
    ],
)
def test_a_version_that_needs_shared_locks_is_told(version, lock_folder, told):
    files = ("/usr/local/vgpu/ld.so.preload", f"/usr/local/vgpu/libvgpu.so.{version}")
    host = PretendHost(*NODES, *files, library_version=version, lock_folder=lock_folder)
    notes = NVIDIA.edits([shared(0, 1000, 10)], place(), host).notes
    assert [note.startswith(f"HAMi-core {version} finds its process") for note in notes] == [True] * told


def test_mounts_of_hami_core():
    edits = NVIDIA.edits([shared(0, 1000, 10)], place(), PretendHost(*NODES, *HAMI_CORE))
    assert edits.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/usr/local/vgpu/pod-1_main.cache"
    assert edits.tmpfs == (Tmpfs("/tmp/vgpulock", 64 << 10), Tmpfs("/usr/local/vgpu", 16 << 20))
    assert edits.mounts == (Mount(LIBRARY, LIBRARY), Mount("/usr/local/vgpu/ld.so.preload", "/etc/ld.so.preload"))
    assert (edits.folders, edits.notes) == ((), ())


@pytest.mark.parametrize("where", [{}, {"containers": ("a", "b")}, {"containers": ()}, {"pod_uids": ("1", "2")}])
def test_nothing_that_a_container_writes_is_on_the_host(where):
    """M5: neither can it fill the host's disks, nor remove a lock of others. True of every container, known or not."""
    edits = NVIDIA.edits([shared(0, 1000, 10)], place(**where), PretendHost(*NODES, *HAMI_CORE))
    assert not any("rw" in mount.options for mount in edits.mounts)
    assert {each.container for each in edits.tmpfs} == {"/tmp/vgpulock", "/usr/local/vgpu"}
    assert all(0 < each.size <= 16 << 20 for each in edits.tmpfs)
    assert edits.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"].startswith("/usr/local/vgpu/")


def test_the_size_of_the_cache_is_the_operators():
    host = PretendHost(*NODES, *HAMI_CORE, usage_cache_size=5 << 20)
    edits = NVIDIA.edits([shared(0, 1000, 10)], place(), host)
    assert Tmpfs("/usr/local/vgpu", 5 << 20) in edits.tmpfs


def test_the_folder_is_named_as_hamis_monitor_wants_it():
    where = place(view="0a1b", pod_uids=("7e57",), containers=("main",))
    edits = NVIDIA.edits([shared(0, 1000, 10)], where, PretendHost(*NODES, *HAMI_CORE, usage_cache=Keeping.HOST))
    assert edits.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/usr/local/vgpu/0a1b.cache"
    assert edits.mounts[0] == Mount("/usr/local/vgpu/containers/7e57_main", "/usr/local/vgpu", RW)
    assert edits.folders == (Folder("/usr/local/vgpu/containers/7e57_main", 0o777),)


def test_a_lock_folder_that_containers_share_lets_nobody_remove_the_locks_of_others():
    edits = NVIDIA.edits([shared(0, 1000, 10)], place(), PretendHost(*NODES, *HAMI_CORE, lock_folder=Keeping.HOST))
    assert edits.folders == (Folder("/tmp/vgpulock", 0o1777, per_view=False),)
    assert edits.mounts[0] == Mount("/tmp/vgpulock", "/tmp/vgpulock", RW)


def test_another_folder_a_version_and_a_licence():
    host = PretendHost(
        *NODES,
        *(f"/opt/hami/vgpu/{name}" for name in ("libvgpu.so.v2", "ld.so.preload", "license", "vgpuvalidator")),
        library_folder="/opt/hami/",
        library_version="v2",
    )
    edits = NVIDIA.edits([shared(0, 1000, 10)], place(), host)
    pairs = {(mount.host, mount.container) for mount in edits.mounts}
    assert ("/opt/hami/vgpu/libvgpu.so.v2", "/opt/hami/vgpu/libvgpu.so") in pairs
    assert ("/opt/hami/vgpu/license", "/tmp/license") in pairs
    assert ("/opt/hami/vgpu/vgpuvalidator", "/usr/bin/vgpuvalidator") in pairs


def test_without_the_library_nothing_is_mounted_and_that_is_said():
    edits = NVIDIA.edits([shared(0, 1000, 10)], place(), PretendHost(*NODES))
    assert (edits.mounts, edits.folders) == ((), ())
    assert edits.notes == (
        "HAMi-core is not installed (/usr/local/vgpu/libvgpu.so): nothing keeps the container to its limits of memory and cores",
    )
    assert NVIDIA.edits([tenancy(card(0), whole=True)], place(), PretendHost(*NODES)).notes == ()


@pytest.mark.parametrize("missing", ["ld.so.preload", "vgpuvalidator"])
@pytest.mark.parametrize("container_env", [{}, {"CUDA_DISABLE_CONTROL": "true"}])
def test_an_incomplete_installation_counts_as_none(missing, container_env):
    """B15: runc refuses a container with a mount whose source is not there."""
    files = {f"/usr/local/vgpu/{name}" for name in ("libvgpu.so", "ld.so.preload", "license", "vgpuvalidator")}
    host = PretendHost(*NODES, *(files - {f"/usr/local/vgpu/{missing}"}))
    edits = NVIDIA.edits([shared(0, 1000, 10)], place(container_env=container_env), host)
    assert (edits.mounts, edits.tmpfs, edits.folders) == ((), (), ())
    assert edits.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
    (note,) = edits.notes
    assert note.startswith(f"HAMi-core is installed in part only (/usr/local/vgpu/{missing} is missing): nothing keeps")


@pytest.mark.parametrize("text", ["/usr/local/vgpu/libvgpu.so\n", "/lib/other.so /opt/hami/vgpu/libvgpu.so.v1", ""])
def test_a_library_that_is_not_named_where_it_is_mounted_counts_as_none(text):
    """HAMi's file names /usr/local, wherever it is installed; the dynamic linker would complain, and limit nothing."""
    paths = [f"/opt/hami/vgpu/{name}" for name in ("libvgpu.so", "ld.so.preload")]
    host = PretendHost(*NODES, *paths, files={paths[1]: text}, library_folder="/opt/hami")
    edits = NVIDIA.edits([shared(0, 1000, 10)], place(), host)
    assert edits.mounts == ()
    (note,) = edits.notes
    assert note == (
        "HAMi-core is not preloaded (/opt/hami/vgpu/ld.so.preload does not name /opt/hami/vgpu/libvgpu.so): nothing keeps the container "
        "to its limits of memory and cores"
    )
    right = PretendHost(
        *NODES,
        *paths,
        files={paths[1]: f"/lib/other.so:{paths[0]}\n"},
        library_folder="/opt/hami",
        nodes_required=False,
    )
    assert NVIDIA.edits([shared(0, 1000, 10)], place(), right).notes == ()


def test_every_mount_of_hami_core_has_a_source():
    host = PretendHost(*NODES, *HAMI_CORE)
    edits = NVIDIA.edits([shared(0, 1000, 10)], place(), host)
    assert all(host.exists(mount.host) for mount in edits.mounts)


@pytest.mark.parametrize(("value", "preloaded"), [("true", False), ("1", False), ("false", True), ("yes", True)])
def test_a_container_may_switch_control_off(value, preloaded):
    where = place(container_env={"CUDA_DISABLE_CONTROL": value})
    edits = NVIDIA.edits([shared(0, 1000, 10)], where, PretendHost(*NODES, *HAMI_CORE))
    assert ("/etc/ld.so.preload" in {mount.container for mount in edits.mounts}) is preloaded


@pytest.mark.parametrize("value", ["true", "1", "false", None])
def test_limits_that_the_class_enforces_cannot_be_switched_off(value):
    """Whatever the container sets, these variables come after it."""
    where = place(container_env={"CUDA_DISABLE_CONTROL": value} if value else {})
    tenancies = [shared(0, 1000, 10, config={"limits": "enforced"})]
    edits = NVIDIA.edits(tenancies, where, PretendHost(*NODES, *HAMI_CORE))
    assert "/etc/ld.so.preload" in {mount.container for mount in edits.mounts}
    known = ("CUDA_DISABLE_CONTROL", "CUDA_TASK_PRIORITY", "GPU_CORE_UTILIZATION_POLICY", "CUDA_OVERSUBSCRIBE")
    assert [edits.env[name] for name in known] == ["false", "1", "default", "false"]


def test_what_a_class_enforces_is_what_it_says():
    config = {"limits": "enforced", "priority": 0, "core_policy": "force"}
    found = env(shared(0, 1000, 10, config=config), host=PretendHost(*NODES, memory_scaling=Fraction(2)))
    known = ("CUDA_TASK_PRIORITY", "GPU_CORE_UTILIZATION_POLICY", "CUDA_OVERSUBSCRIBE")
    assert [found[name] for name in known] == ["0", "force", "true"]


@pytest.mark.parametrize("where", [{"containers": ("a", "b")}, {"containers": ()}, {"pod_uids": ("1", "2")}])
def test_containers_that_share_a_view_do_not_share_the_file_of_their_usage(where):
    host = PretendHost(*NODES, *HAMI_CORE, usage_cache=Keeping.HOST)
    edits = NVIDIA.edits([shared(0, 1000, 10)], place(**where), host)
    assert Tmpfs("/usr/local/vgpu", 16 << 20) in edits.tmpfs
    assert edits.folders == ()
    assert "/usr/local/vgpu" not in {mount.container for mount in edits.mounts}


# --- cards ---


def test_device_nodes_by_minor_number():
    host = PretendHost(*NODES, "/dev/nvidia7", "/dev/nvidia-modeset")
    edits = NVIDIA.edits([tenancy(card(0, minor=7), whole=True), tenancy(card(1), whole=True)], place(), host)
    assert [(node.path, node.host_path) for node in edits.device_nodes] == [
        (path, "")
        for path in (
            "/dev/nvidia7",
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia1",
            "/dev/nvidia-uvm-tools",
            "/dev/nvidia-modeset",
        )
    ]


def test_a_missing_device_node_is_named():
    with pytest.raises(Unpreparable, match=r"card 3 \(GPU-3\): the host has no /dev/nvidia3; is the vendor's kernel"):
        NVIDIA.edits([tenancy(card(3), whole=True)], place(), PretendHost(*NODES))


def test_nodes_of_a_simulated_machine_lie_elsewhere_or_are_missing():
    host = PretendHost("/sim/nvidia0", device_folder="/sim", nodes_required=False)
    edits = NVIDIA.edits([tenancy(card(0), whole=True)], place(), host)
    assert [(node.path, node.host_path) for node in edits.device_nodes] == [("/dev/nvidia0", "/sim/nvidia0")]


@pytest.mark.parametrize(
    ("offered", "used"),
    [
        (["nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-1"], ("nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-1")),
        (["nvidia.com/gpu=0", "nvidia.com/gpu=1"], ("nvidia.com/gpu=0", "nvidia.com/gpu=1")),
        (["nvidia.com/gpu=GPU-0"], ()),
        (["example.com/gpu=GPU-0", "example.com/gpu=GPU-1"], ()),
    ],
)
def test_an_existing_cdi_specification_takes_the_place_of_device_nodes_if_it_has_all_cards(offered, used):
    edits = NVIDIA.edits(
        [shared(0, 1000, 10), shared(1, 1000, 10)], place(), PretendHost(*NODES, *HAMI_CORE, cdi=offered)
    )
    assert edits.cdi_devices == used
    assert bool(edits.device_nodes) is not bool(used)
    assert edits.env["NVIDIA_VISIBLE_DEVICES"] == ("void" if used else "GPU-0,GPU-1")
    assert edits.env["CUDA_DEVICE_MEMORY_LIMIT_1"] == "1000m"
    assert edits.mounts


def cdi(node, driver="550.90.07"):
    libraries = frozenset({f"/usr/lib/x86_64-linux-gnu/libcuda.so.{driver}", "/usr/bin/nvidia-smi"})
    return CdiDevice(file="/etc/cdi/nvidia.yaml", device_nodes=frozenset({node}), mounts=libraries)


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (cdi("/dev/nvidia0"), ""),
        (cdi("/dev/nvidia0", driver="535.104.05"), "it brings libraries of driver 535.104.05, and 550.90.07 is loaded"),
        (cdi("/dev/nvidia3"), "it brings /dev/nvidia3, which is another GPU now"),
        (CdiDevice(), ""),
    ],
)
def test_a_cdi_specification_of_another_state_of_the_machine_is_told_and_not_used(device, why):
    host = PretendHost(
        *NODES, LIBRARY, cdi={"nvidia.com/gpu=0": device}, files={"/sys/module/nvidia/version": "550.90.07\n"}
    )
    edits = NVIDIA.edits([shared(0, 1000, 10)], place(), host)
    assert edits.cdi_devices == (() if why else ("nvidia.com/gpu=0",))
    assert bool(edits.device_nodes) is bool(why)
    reported = [
        f"CDI device nvidia.com/gpu=0 of /etc/cdi/nvidia.yaml is not used: {why}; write the file again (nvidia-ctk cdi generate)"
    ]
    assert [note for note in edits.notes if "CDI" in note] == (reported if why else [])


# --- MIG ---


def instance(number, *, uuid="MIG-a", compute=0):
    return MigInstance(
        id=number, profile_id=19, placement=PartitionPlacement(start=0, size=1), uuid=uuid, compute_instance_id=compute
    )


KERNEL = kernel_with_mig()
CAPABILITIES = ("/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31")


def test_a_mig_instance_is_visible_and_nothing_else():
    host = PretendHost(*NODES, *HAMI_CORE, files=KERNEL)
    edits = NVIDIA.edits([tenancy(card(0), partition=instance(3))], place(), host)
    assert edits.env == {"NVIDIA_VISIBLE_DEVICES": "MIG-a"}
    assert [node.path for node in edits.device_nodes] == [
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        *CAPABILITIES,
        "/dev/nvidia-uvm-tools",
    ]
    assert (edits.mounts, edits.folders, edits.notes) == ((), (), ())


def test_capability_nodes_need_none_on_the_host():
    """B7: it has them only once somebody asked nvidia-modprobe for them."""
    edits = NVIDIA.edits([tenancy(card(0), partition=instance(3))], place(), PretendHost(*NODES, files=KERNEL))
    assert container_edits(edits)["deviceNodes"][3:5] == [
        {"path": path, "type": "c", "major": 508, "minor": minor, "permissions": "rw"}
        for path, minor in zip(CAPABILITIES, (30, 31), strict=True)
    ]


@pytest.mark.parametrize(
    ("files", "what"),
    [
        (KERNEL | {"/proc/driver/nvidia-caps/mig-minors": "gpu0/gi3/access 30\n"}, "has no gpu0/gi3/ci0/access; is"),
        (KERNEL | {"/proc/devices": "195 nvidia\n509 nvidia-caps-imex-channels\n"}, "/proc/devices has no nvidia-caps"),
        ({}, "has no gpu0/gi3/access and .* and /proc/devices has no nvidia-caps"),
    ],
)
def test_an_instance_that_no_program_could_open_is_refused(files, what):
    with pytest.raises(
        Unpreparable, match=rf"card 0 \(GPU-0\): no program could open its MIG instance, since .*{what}"
    ):
        NVIDIA.edits([tenancy(card(0), partition=instance(3))], place(), PretendHost(*NODES, files=files))


def test_capability_nodes_of_a_simulated_machine_lie_elsewhere_or_are_missing():
    host = PretendHost("/sim/nvidia-caps/nvidia-cap30", device_folder="/sim", nodes_required=False, files=KERNEL)
    edits = NVIDIA.edits([tenancy(card(0), partition=instance(3))], place(), host)
    assert [(node.path, node.host_path, node.numbers) for node in edits.device_nodes] == [
        ("/dev/nvidia-caps/nvidia-cap30", "/sim/nvidia-caps/nvidia-cap30", None)
    ]


@pytest.mark.parametrize("more", [-1000, 1000])
def test_a_program_has_no_more_than_the_share_or_the_instance_that_it_chooses(more):
    """CUDA shows it the instance alone or the other cards alone, and begins with number 0 in both cases."""
    host = PretendHost(*NODES, "/dev/nvidia2", *HAMI_CORE, files=KERNEL)
    small = next(profile for profile in profiles(IN_MIG_MODE) if profile.id == instance(1).profile_id).memory // MIB
    both = (tenancy(IN_MIG_MODE, partition=instance(1)), shared(1, small + more, 10), shared(2, 500, 10))
    found = NVIDIA.edits(both, place(), host)
    assert found.env["NVIDIA_VISIBLE_DEVICES"] == "MIG-a,GPU-1,GPU-2"
    assert found.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{small + min(more, 0)}m"
    assert found.env["CUDA_DEVICE_MEMORY_LIMIT_1"] == "500m"
    assert "CUDA_DEVICE_MEMORY_LIMIT_2" not in found.env
    assert found.notes == (INSTANCE_AND_OTHERS,)


def test_an_instance_beside_a_whole_card_is_told():
    host = PretendHost(*NODES, *HAMI_CORE, files=KERNEL)
    found = NVIDIA.edits([tenancy(IN_MIG_MODE, partition=instance(1)), tenancy(card(1), whole=True)], place(), host)
    assert found.env == {"NVIDIA_VISIBLE_DEVICES": "MIG-a,GPU-1"}
    assert found.notes == (INSTANCE_AND_OTHERS,)


INSTANCE_AND_OTHERS = (
    "a container has MIG instances (of GPU 0) and other GPUs: CUDA shows a program one MIG instance and nothing else, unless "
    "CUDA_VISIBLE_DEVICES names other GPUs; use a container for each of the two"
)


def test_two_instances_of_one_card():
    both = [tenancy(card(0), partition=instance(number, uuid=f"MIG-{number}")) for number in (1, 3)]
    assert env(*both, host=PretendHost(*NODES, files=KERNEL))["NVIDIA_VISIBLE_DEVICES"] == "MIG-1,MIG-3"


def test_a_half_made_instance_is_refused():
    with pytest.raises(Unpreparable, match="no compute instance"):
        env(tenancy(card(0), partition=instance(1, uuid="")))


IN_MIG_MODE = GpuRecord(
    vendor="nvidia",
    index=0,
    uuid="GPU-0",
    product="NVIDIA A100-SXM4-80GB",
    memory=81920 * MIB,
    mig=MigState(enabled=True, pending=True),
)


def test_a_card_that_can_be_cut_is_given_as_a_card_or_as_its_instances():
    """The driver makes it one before (`Partitioner.unpartition`)."""
    shared = env(tenancy(IN_MIG_MODE, {"memory": MIB, "cores": 1}))
    assert (shared["NVIDIA_VISIBLE_DEVICES"], shared["CUDA_DEVICE_MEMORY_LIMIT_0"]) == ("GPU-0", "1m")
    assert env(tenancy(IN_MIG_MODE, whole=True)) == {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}
    host = PretendHost(*NODES, files=KERNEL)
    assert env(tenancy(IN_MIG_MODE, partition=instance(1)), host=host) == {"NVIDIA_VISIBLE_DEVICES": "MIG-a"}


def test_who_looks_on_sees_the_card_without_limits():
    assert env(tenancy(IN_MIG_MODE, whole=True, admin=True)) == {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}
    assert env(tenancy(card(1), {"memory": MIB, "cores": 1}, admin=True)) == {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}


def test_every_published_device_has_a_site():
    on = MigState(enabled=True, pending=True)
    cards = [
        GpuRecord(
            vendor="nvidia", index=n, uuid=f"GPU-{n}", product="NVIDIA A100-SXM4-80GB", memory=81920 * MIB, mig=state
        )
        for n, state in enumerate((on, None))
    ]
    published = next(vendor for vendor in PUBLISHING_VENDORS if vendor.name == "nvidia").devices(
        cards, vendor_settings()
    )
    sites = NVIDIA.sites(cards)
    assert sites.keys() == {device["name"] for device in published}
    for device in published:
        site = sites[device["name"]]
        assert site.card.uuid == device["attributes"]["hami.io/uuid"]["string"]
        assert ("profile" in device["attributes"]) == (site.partition is not None)
        if site.partition:
            said = (site.partition.card_uuid, site.partition.profile, site.partition.start)
            attributes = device["attributes"]
            assert said == (
                attributes["parentUUID"]["string"],
                attributes["profile"]["string"],
                attributes["placement"]["int"],
            )


# --- texts of others ---


@pytest.mark.parametrize("uuid", ["GPU-0,GPU-1", "GPU-0\nLD_PRELOAD=x", "", " ", "all ", "-x"])
def test_a_uuid_cannot_name_a_second_card_or_variable(uuid):
    with pytest.raises(Unpreparable):
        env(tenancy(card(0, uuid=uuid), whole=True))


@pytest.mark.parametrize("view", ["../../etc", "a/b", "", "..", "a\n"])
def test_a_view_cannot_leave_its_folder(view):
    with pytest.raises(Unpreparable, match="cannot be the name of a file"):
        NVIDIA.edits([shared(0, 1000, 10)], place(view=view), PretendHost(*NODES, *HAMI_CORE))
