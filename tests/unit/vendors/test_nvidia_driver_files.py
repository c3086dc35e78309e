"""Where NVIDIA's libraries come from: a CDI specification's common edits, the driver root, or the container runtime."""

import json
import os
from pathlib import Path

import pytest

from hami_dra.api.containers import DeviceNode, HostSettings, Unpreparable
from hami_dra.api.nodelacks import LackKind
from hami_dra.discovery.host import FolderTree, MachineHost
from hami_dra.driver.prepare.cdi import container_edits, undone
from hami_dra.vendors.nvidia.options import Keeping
from hami_dra.vendors.nvidia.records import GpuRecord, MigState
from hami_dra.vendors.registry import containers
from tests.support.containers import MIB, PretendHost, card, kernel_with_mig, place, tenancy
from tests.support.settings import vendor_settings

NVIDIA = containers("nvidia")
VERSION = "580.65.06"
LIB = "/usr/lib/x86_64-linux-gnu"
NODES = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")
KERNEL = kernel_with_mig() | {"/sys/module/nvidia/version": f"{VERSION}\n"}
HOOK = "/usr/bin/nvidia-cdi-hook"


def driver_root(root, *, version=VERSION, hook=True):
    """The files of a driver as Debian's packages install them."""
    for name in ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so", "vdpau/libvdpau_nvidia.so"):
        file = root / LIB.lstrip("/") / f"{name}.{version}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
        (file.parent / f"{file.name.partition('.so')[0]}.so.1").symlink_to(file.name)
    (root / LIB.lstrip("/") / "libnvidia-ml.so").symlink_to("libnvidia-ml.so.1")
    (root / LIB.lstrip("/") / "libcudart.so.12").write_text("not the driver's")
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/nvidia-smi").symlink_to("/etc/alternatives/nvidia-smi")
    (root / "etc/alternatives").mkdir(parents=True)
    (root / "etc/alternatives/nvidia-smi").symlink_to("/opt/nvidia/nvidia-smi")
    (root / "opt/nvidia").mkdir(parents=True)
    (root / "opt/nvidia/nvidia-smi").touch()
    if hook:
        (root / HOOK.lstrip("/")).touch()
    for path in ("run/nvidia-persistenced", "run/nvidia-fabricmanager", "var"):
        (root / path).mkdir(parents=True)
    (root / "run/nvidia-persistenced/socket").touch()
    (root / "run/nvidia-fabricmanager/socket").touch()
    (root / "var/run").symlink_to("/run")
    firmware = root / "lib/firmware/nvidia" / version
    firmware.mkdir(parents=True)
    (firmware / "gsp_ga10x.bin").touch()
    return FolderTree(root)


def host(tree=None, *, root="/", files=KERNEL, **more):
    return PretendHost(*NODES, files=files, driver_files=tree, driver_root=root if tree else "", **more)


def whole(index=0):
    return tenancy(card(index), whole=True)


def edits(on, **where):
    return NVIDIA.edits([whole()], place(**where), on)


# --- the driver root ---


def test_libraries_tools_firmware_and_sockets_of_the_loaded_driver(tmp_path):
    found = edits(host(driver_root(tmp_path)))
    assert found.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert [(mount.host, mount.container) for mount in found.mounts] == [
        *[(path, path) for path in (
            f"{LIB}/libcuda.so.{VERSION}",
            f"{LIB}/libnvidia-ml.so.{VERSION}",
            f"{LIB}/libnvidia-ptxjitcompiler.so.{VERSION}",
            f"{LIB}/vdpau/libvdpau_nvidia.so.{VERSION}",
            f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        )],
        ("/opt/nvidia/nvidia-smi", "/usr/bin/nvidia-smi"),
        ("/run/nvidia-persistenced/socket", "/run/nvidia-persistenced/socket"),
        ("/run/nvidia-fabricmanager/socket", "/run/nvidia-fabricmanager/socket"),
    ]  # fmt: skip
    assert [mount.options for mount in found.mounts[-1:]] == [("nosuid", "nodev", "rbind", "rprivate", "noexec")]
    assert {mount.options for mount in found.mounts[:-2]} == {("ro", "nosuid", "nodev", "rbind", "rprivate")}
    assert [node.path for node in found.device_nodes] == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert found.notes == ()


def test_hooks_make_the_links_and_the_cache_of_libraries(tmp_path):
    """As `nvidia-ctk cdi generate` writes them; also libcuda.so, which programs ask for and packages may leave out."""
    made = container_edits(edits(host(driver_root(tmp_path))))["hooks"]
    assert {(hook["hookName"], hook["path"], *hook["env"]) for hook in made} == {
        ("createContainer", HOOK, "NVIDIA_CTK_DEBUG=false")
    }
    links, compat, cache, params = [hook["args"][1:] for hook in made]
    assert (links[0], set(links[1::2])) == ("create-symlinks", {"--link"})
    assert links[2::2] == [
        f"libcuda.so.{VERSION}::{LIB}/libcuda.so.1",
        f"libcuda.so.1::{LIB}/libcuda.so",
        f"libnvidia-ml.so.1::{LIB}/libnvidia-ml.so",
        f"libnvidia-ml.so.{VERSION}::{LIB}/libnvidia-ml.so.1",
        f"libnvidia-ptxjitcompiler.so.{VERSION}::{LIB}/libnvidia-ptxjitcompiler.so.1",
        f"libvdpau_nvidia.so.{VERSION}::{LIB}/vdpau/libvdpau_nvidia.so.1",
    ]
    assert compat == ["enable-cuda-compat", f"--host-driver-version={VERSION}"]
    assert cache == ["update-ldcache", "--folder", LIB, "--folder", f"{LIB}/vdpau"]
    assert params == ["disable-device-node-modification"]


def test_without_the_hook_tool_libraries_are_mounted_by_all_their_names_and_the_claim_says_so(tmp_path):
    found = edits(host(driver_root(tmp_path, hook=False)))
    assert found.hooks == ()
    names = {mount.container for mount in found.mounts if mount.host == f"{LIB}/libcuda.so.{VERSION}"}
    assert names == {f"{LIB}/libcuda.so{end}" for end in ("", ".1", f".{VERSION}")}
    (note,) = found.notes
    assert note.startswith("nvidia-cdi-hook is not on this node: programs find NVIDIA's libraries only where")


def test_the_root_of_a_driver_container(tmp_path):
    """Files of the host are below it, and keep their places in the container; the hook lies elsewhere on the host."""
    tree = driver_root(tmp_path)
    found = edits(host(tree, root="/run/nvidia/driver", cdi_hook="/usr/local/nvidia/toolkit/nvidia-cdi-hook"))
    assert (found.mounts[0].host, found.mounts[0].container) == (
        f"/run/nvidia/driver{LIB}/libcuda.so.{VERSION}",
        f"{LIB}/libcuda.so.{VERSION}",
    )
    smi = next(mount for mount in found.mounts if mount.container == "/usr/bin/nvidia-smi")
    assert smi.host == "/run/nvidia/driver/opt/nvidia/nvidia-smi"
    assert found.hooks[0].path == "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
    assert edits(host(tree, root="/run/nvidia/driver")).hooks == ()


@pytest.mark.parametrize("files", [KERNEL | {"/sys/module/nvidia/version": "570.1.1"}, KERNEL])
def test_a_container_that_would_start_without_libraries_is_refused(tmp_path, files):
    """Another version than the kernel's, or none at all."""
    tree = driver_root(tmp_path) if files is not KERNEL else FolderTree(tmp_path)
    with pytest.raises(Unpreparable, match=r"would start without NVIDIA's libraries: there is no libcuda\.so\.5"):
        edits(host(tree, files=files))


def test_where_the_kernel_does_not_tell_its_version_the_libraries_do(tmp_path):
    assert edits(host(driver_root(tmp_path), files={})).mounts[0].host == f"{LIB}/libcuda.so.{VERSION}"


def test_a_mig_instance_gets_the_same_libraries_and_its_capabilities(tmp_path):
    """B7: on a node without NVIDIA's runtime it had neither libcuda nor a word about it."""
    from tests.unit.vendors.test_containers_nvidia import CAPABILITIES, instance

    found = NVIDIA.edits([tenancy(card(0), partition=instance(3))], place(), host(driver_root(tmp_path)))
    assert found.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert f"{LIB}/libcuda.so.{VERSION}" in {mount.container for mount in found.mounts}
    assert set(CAPABILITIES) < {node.path for node in found.device_nodes}


def test_libraries_come_before_those_that_limit(tmp_path):
    """HAMi-core is a library of its own: nothing of the driver may lie over it."""
    core = ("/usr/local/vgpu/libvgpu.so", "/usr/local/vgpu/ld.so.preload")
    on = PretendHost(*NODES, *core, files=KERNEL, driver_files=driver_root(tmp_path), driver_root="/")
    found = NVIDIA.edits([tenancy(card(0), {"memory": 1000 * MIB, "cores": 10})], place(), on)
    assert [mount.host for mount in found.mounts][-2:] == list(core)
    assert found.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
    assert undone(edits(on), found) == ""


# --- a CDI specification ---

SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "GPU-7", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia7"}]}}],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64"],
        "deviceNodes": [{"path": "/dev/nvidia-modeset"}, {"path": "/dev/nvidiactl", "hostPath": "/dev/nvidiactl"}],
        "mounts": [
            {
                "hostPath": f"/usr/lib64/libcuda.so.{VERSION}",
                "containerPath": f"/usr/lib64/libcuda.so.{VERSION}",
                "options": ["ro", "rbind"],
            }
        ],
        "hooks": [
            {"hookName": "createContainer", "path": HOOK, "args": ["nvidia-cdi-hook", "update-ldcache"], "env": ["A=b"]}
        ],
    },
}


def common_edits(folder, spec=SPEC):
    folder.mkdir(exist_ok=True)
    (folder / "nvidia.json").write_text(json.dumps(spec))
    return MachineHost(cdi_folders=[folder]).cdi_common_edits


def test_common_edits_of_a_specification_that_does_not_know_the_gpu(tmp_path):
    """nvidia-ctk skips GPUs in MIG mode, and cannot know instances that are made later."""
    found = edits(host(common=common_edits(tmp_path)))
    assert found.env == {"NVIDIA_CTK_LIBCUDA_DIR": "/usr/lib64", "NVIDIA_VISIBLE_DEVICES": "void"}
    made = container_edits(found)
    assert made["mounts"] == SPEC["containerEdits"]["mounts"]
    assert made["hooks"] == SPEC["containerEdits"]["hooks"]
    assert [node["path"] for node in made["deviceNodes"]] == [
        "/dev/nvidia-modeset",
        "/dev/nvidiactl",
        "/dev/nvidia0",
        "/dev/nvidia-uvm",
    ]
    assert (found.cdi_devices, found.notes) == ((), ())


def test_common_edits_of_another_driver_version_or_kind_are_not_used(tmp_path):
    assert edits(host(common=common_edits(tmp_path), files={"/sys/module/nvidia/version": "570.1.1"})).mounts == ()
    assert edits(host(common=common_edits(tmp_path, SPEC | {"kind": "example.com/gpu"}))).mounts == ()
    bare = SPEC | {"containerEdits": {"env": ["A=b"]}}
    assert edits(host(common=common_edits(tmp_path, bare))).env == {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}


def test_a_specification_goes_before_the_driver_root(tmp_path):
    found = edits(host(driver_root(tmp_path / "root"), common=common_edits(tmp_path / "cdi")))
    assert [mount.host for mount in found.mounts] == [f"/usr/lib64/libcuda.so.{VERSION}"]


@pytest.mark.parametrize(
    "odd",
    [
        {"mounts": [{"hostPath": "relative", "containerPath": "/x"}]},
        {"mounts": [{"hostPath": "/../x", "containerPath": "/x"}]},
        {"mounts": 7},
        {"env": ["no value"]},
        {"env": ["A=b\nc"]},
        {"hooks": [{"path": "/x"}]},
        [],
        7,
    ],
)
def test_common_edits_that_nobody_understands_are_none(tmp_path, odd):
    assert common_edits(tmp_path, SPEC | {"containerEdits": odd}) == ()


# --- the container runtime ---


def test_the_runtime_brings_them_where_nobody_else_does():
    found = edits(host())
    assert (found.env, found.mounts, found.hooks) == ({"NVIDIA_VISIBLE_DEVICES": "GPU-0"}, (), ())


@pytest.mark.parametrize(
    ("classes", "reported"),
    [
        ({"nvidia"}, ""),
        (set(), ""),
        ({""}, "the pod runs by the default runtime"),
        ({"nvidia", "kata"}, "the pod runs by kata"),
    ],
)
def test_a_pod_of_another_runtime_class_is_told(classes, reported):
    where = {"runtime_classes": frozenset(classes)}
    notes = edits(host(library_runtime_class="nvidia"), **where).notes
    assert len(notes) == bool(reported)
    assert all(reported in note and "spec.runtimeClassName: nvidia" in note for note in notes)
    assert edits(host(), **where).notes == ()


def test_nothing_is_said_of_runtimes_where_libraries_come_from_elsewhere(tmp_path):
    where = {"runtime_classes": frozenset({""})}
    on = host(driver_root(tmp_path), library_runtime_class="nvidia")
    assert edits(on, **where).notes == ()


# --- IMEX channels ---

CHANNELS = {"/dev/nvidia-caps-imex-channels": ("channel0", "channel17", "notes")}


@pytest.mark.parametrize(
    ("held", "settings", "expected"),
    [
        ([whole(0)], {"imex_channels": True}, ["channel0", "channel17"]),
        ([whole(0)], {}, []),
        ([tenancy(card(0), {"memory": 1000 * MIB})], {"imex_channels": True}, []),
        ([whole(0), tenancy(card(1), {"memory": 1000 * MIB})], {"imex_channels": True}, []),
    ],
)
def test_channels_of_the_host_are_for_containers_that_share_no_gpu(held, settings, expected):
    paths = [f"/dev/nvidia-caps-imex-channels/{name}" for name in ("channel0", "channel17")]
    for cdi in ((), ("nvidia.com/gpu=0", "nvidia.com/gpu=1")):
        on = PretendHost(*NODES, *paths, folders=CHANNELS, cdi=cdi, **settings)
        nodes = NVIDIA.edits(held, place(), on).device_nodes
        assert [node for node in nodes if "imex" in node.path] == [
            DeviceNode(f"/dev/nvidia-caps-imex-channels/{name}") for name in expected
        ]


# --- what a node lacks ---

CORE = ("/usr/local/vgpu/libvgpu.so", "/usr/local/vgpu/ld.so.preload")
CUT = GpuRecord(
    vendor="nvidia",
    index=0,
    uuid="GPU-0",
    product="NVIDIA H100",
    memory=81920 * MIB,
    mig=MigState(enabled=True, pending=True, profiles=(), instances=()),
)
MIG_CONFIG = "/proc/driver/nvidia/capabilities/mig/config"


def lacking(on, *cards):
    """Without the hint that what containers use is not read, which has a test of its own."""
    found = [(lack.kind, lack.message) for lack in NVIDIA.lacking(cards or (card(0),), on)]
    return [each for each in found if each[0] is not LackKind.USAGE]


@pytest.mark.parametrize(
    ("cards", "paths", "kept", "expected"),
    [
        ((card(0),), CORE, Keeping.PRIVATE, [LackKind.USAGE]),
        ((card(0),), CORE, Keeping.HOST, []),
        ((CUT,), CORE, Keeping.PRIVATE, []),
        ((card(0),), (), Keeping.PRIVATE, [LackKind.LIMITS]),
    ],
)
def test_that_nobody_can_say_what_containers_use_is_a_hint_where_hami_core_counts_it(cards, paths, kept, expected):
    found = NVIDIA.lacking(cards, PretendHost(*NODES, *paths, usage_cache=kept))
    assert [lack.kind for lack in found if lack.kind is not LackKind.PARTITIONS] == expected


def test_nothing_is_lacking(tmp_path):
    on = PretendHost(*NODES, *CORE, MIG_CONFIG, files=KERNEL, driver_files=driver_root(tmp_path), driver_root="/")
    assert lacking(on, CUT) == []
    assert lacking(PretendHost(*NODES, *CORE, files=KERNEL)) == []
    assert lacking(PretendHost(nodes_required=False), CUT) == []
    assert NVIDIA.lacking((), PretendHost()) == ()


def test_what_is_lacking_is_said_before_a_claim_comes(tmp_path):
    assert [kind for kind, _ in lacking(PretendHost(*NODES))] == [LackKind.LIMITS]
    ((kind, message),) = lacking(PretendHost(*NODES, CORE[0]))
    assert (kind, "ld.so.preload is missing" in message) == (LackKind.LIMITS, True)
    ((kind, message),) = lacking(
        PretendHost(*NODES, *CORE, files=KERNEL, driver_files=FolderTree(tmp_path), driver_root="/")
    )
    assert (kind, f"there is no libcuda.so.{VERSION}" in message) == (LackKind.LIBRARIES, True)
    unhooked = driver_root(tmp_path / "root", hook=False)
    ((kind, message),) = lacking(PretendHost(*NODES, *CORE, files=KERNEL, driver_files=unhooked, driver_root="/"))
    assert (kind, "nvidia-cdi-hook is not on this node" in message) == (LackKind.LIBRARIES, True)


def test_a_driver_that_nvidias_runtime_hides_mig_from():
    ((kind, message),) = lacking(PretendHost(*NODES, *CORE, files=KERNEL), CUT)
    assert (kind, "NVIDIA_MIG_CONFIG_DEVICES=all" in message) == (LackKind.PARTITIONS, True)
    assert len(lacking(PretendHost(*NODES, *CORE), CUT)) == 2


def test_machines_answer_the_same_for_a_real_folder(tmp_path):
    """MachineHost sees the driver root under another path than the node has it."""
    driver_root(tmp_path / "root")
    settings = HostSettings(
        device_folder=str(tmp_path / "dev"), options=vendor_settings(driver_root="/run/nvidia/driver", cdi_hook=HOOK)
    )
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    on = MachineHost(settings, kernel_root=tmp_path / "kernel", cdi_folders=(), driver_root=tmp_path / "root")
    assert NVIDIA.edits([whole()], place(), on).mounts[0].host == f"/run/nvidia/driver{LIB}/libcuda.so.{VERSION}"


# --- a root file system in a folder ---


def test_symlinks_stay_below_the_root(tmp_path):
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "lib64").symlink_to("/usr/lib")
    (tmp_path / "usr/lib/a").touch()
    (tmp_path / "usr/lib/up").symlink_to("../../../../../usr/lib/a")
    (tmp_path / "usr/lib/loop").symlink_to("loop")
    (tmp_path / "usr/lib/dangling").symlink_to("/nothing")
    (tmp_path / "outside").symlink_to(os.fspath(Path(__file__).resolve()))
    tree = FolderTree(tmp_path)
    assert tree.resolve("/lib64/a") == tree.resolve("/lib64/up") == "/usr/lib/a"
    for path in ("/lib64/loop", "/lib64/dangling", "/outside", "/lib64/b"):
        assert tree.resolve(path) is None, path
    assert tree.resolve("/") == "/"
    assert tree.names("/lib64") == ("a", "dangling", "loop", "up")
    assert tree.names("/nothing") == tree.names("/lib64/a") == ()
