"""What our containers get of NVIDIA GPUs, item by item, against what `nvidia-ctk cdi generate` says of the same machine.

Upstream's answer is that of its own package (hack/oracle/nvcdi). Every difference that remains has a name here, with its reason.
"""

import os
import re
from typing import Any, NamedTuple

import pytest

from tests.support.nvidia_root import NvidiaRoot
from tests.support.nvml.fake import gpu, machine
from tests.support.oracles import conversation
from tests.support.preparing import claim_json, result, share
from tests.unit.discovery.test_nvml import H100_PROFILES

WHOLE, CUT = (f"GPU-{index:08d}-aaaa-bbbb-cccc-000000000000" for index in (0, 2))
INSTANCE = f"MIG-{CUT}-1"
"""The first that the pretended NVML makes."""
CAPABILITIES = (282, 283)
"""Minor numbers of GPU 2's instance 1 and its compute instance, as `kernel_with_mig` numbers them."""
H100 = re.sub(r"^profile 0", "profile 2", H100_PROFILES, flags=re.MULTILINE)
MADE = f"instance 2 id=1 profile=19 start=0 size=1 ci=0 uuid={INSTANCE}\n"

MKNOD = r"nodes \S+: upstream \((.*), 'rwm'\), ours \(\1, 'rw'\)"
"""Containers may use their devices, and make no nodes of them."""
BY_RUNTIME = r"(mounts|hooks|env) \S+( GPU-\S+)?: upstream only"
"""Where no specification is installed, NVIDIA's runtime brings libraries, programs and sockets, ..."""
ASKS_RUNTIME = r"env NVIDIA_VISIBLE_DEVICES: upstream void, ours \S+"
"""... for the devices that this variable names."""
GRAPHICS = r"nodes /dev/dri/\S+: upstream only"
"""DRM nodes are for graphics. NVIDIA's runtime brings them to containers that ask for the driver capability `graphics`."""
LIMITS = r"env CUDA_DEVICE_(MEMORY_LIMIT_0|SM_LIMIT): ours only"
"""Limits of shared cards, which upstream does not know."""


BARE = frozenset({MKNOD, BY_RUNTIME, ASKS_RUNTIME})
PROFILE = r"hooks update-application-profile: upstream only"
"""For graphics, and unknown to toolkits before 1.20: a hook that fails keeps the container from starting."""
USERS_LIMIT = r"hooks apply-cuda-memory-limits GPU-\S+: upstream only"
"""Acts on variables that a container sets for itself, and is as new."""
EGL = r"mounts /usr/share/glvnd/\S+: upstream only"
"""Configuration of EGL, for graphics as well."""
MPS = r"mounts /tmp/nvidia-mps: ours only"
"""Upstream names it too (internal/discover/ipc.go), but its search takes no folders, which this is."""
BROUGHT = frozenset({MKNOD, PROFILE, EGL, MPS})
PART = result("gpu-2-mig-1g-10gb-0")


def described(*, mig: int, instances: str = "") -> str:
    """Two GPUs that cannot be cut, and one that can."""
    return machine(2) + gpu(2, mig=mig) + H100 + instances


@pytest.fixture(scope="module")
def ask():
    yield from conversation("nvcdi")


@pytest.fixture
def node(tmp_path):
    buses = {index: f"00000000:{0x1B + index * 16:02X}:00.0" for index in range(3)}
    try:
        return NvidiaRoot(tmp_path, buses)
    except PermissionError as error:
        if os.environ.get("REQUIRE_ALL") == "1":
            raise
        pytest.skip(f"NOT RUN, device nodes cannot be made, nor the root be changed: {error}")


class Case(NamedTuple):
    """One claim. `known`: patterns of the differences that there are, for the reasons above."""

    granted: dict[str, Any]
    device: str
    """What upstream calls it."""
    known: frozenset[str] = frozenset()
    installed: bool = True
    """The node has a specification, and it knows the device."""
    older: bool = False
    """The specification was written before the instance was made; so our containers get its common edits."""
    brings: bool = False
    """The driver finds the libraries itself, below its driver root."""


CASES = {
    "a whole GPU": Case(result("gpu-0"), WHOLE),
    "a shared GPU": Case(share("gpu-0"), WHOLE, frozenset({LIMITS})),
    "a whole GPU by NVIDIA's runtime": Case(result("gpu-0"), WHOLE, BARE | {GRAPHICS}, installed=False),
    "a MIG instance by NVIDIA's runtime": Case(PART, INSTANCE, BARE, installed=False),
    "a whole GPU from the driver root": Case(
        result("gpu-0"), WHOLE, BROUGHT | {GRAPHICS, USERS_LIMIT}, installed=False, brings=True
    ),
    "a MIG instance that the specification does not know": Case(PART, INSTANCE, frozenset({MKNOD}), older=True),
    "a MIG instance from the driver root": Case(PART, INSTANCE, BROUGHT, installed=False, brings=True),
    "a GPU in one piece that the specification does not know": Case(
        result("gpu-2"), CUT, frozenset({MKNOD, GRAPHICS, USERS_LIMIT}), older=True
    ),
    "a GPU in one piece by NVIDIA's runtime": Case(result("gpu-2"), CUT, BARE | {GRAPHICS}, installed=False),
}
"""A GPU in one piece: its MIG mode is on, and switched off for the claim."""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_container_gets_what_nvidia_ctk_says(node, ask, case):
    node.describe(described(mig=0) if case.device == CUT else described(mig=1, instances=MADE))
    node.capabilities(*CAPABILITIES)
    theirs = node.upstream(ask)
    node.describe(described(mig=1))
    if case.installed:
        node.install(node.upstream(ask) if case.older else theirs)
    [answer] = node.ours(claim_json("c", case.granted), brings=case.brings)
    assert "ids" in answer, answer
    got = node.gives(answer["ids"], node.documents())
    differences = got.against(node.gives([f"nvidia.com/gpu={case.device}"], [theirs]))
    assert not {each for each in differences if not any(re.fullmatch(pattern, each) for pattern in case.known)}
    assert not {pattern for pattern in case.known if not any(re.fullmatch(pattern, each) for each in differences)}


def test_imex_channels(node, ask):
    """Upstream brings them as devices of their own, which a pod asks for; here they come with whole GPUs, where the operator allows."""
    node.describe(described(mig=1))
    for channel in (0, 7):
        node.node(f"/dev/nvidia-caps-imex-channels/channel{channel}", 509, channel)
    channels = node.upstream(ask, mode="imex")["devices"]
    theirs = [each["path"] for channel in channels for each in channel["containerEdits"]["deviceNodes"]]
    [answer] = node.ours(claim_json("c", result("gpu-0")))
    got = node.gives(answer["ids"], node.documents()).nodes
    assert {path for path in got if "imex" in path} == set(theirs)
    assert got[theirs[1]][:2] == (509, 7)


def test_the_node_on_which_a_mig_instance_has_no_nodes_yet(node, ask):
    """nvidia-modprobe makes them when somebody asks; upstream leaves them out, and ours come by their numbers."""
    node.describe(described(mig=1, instances=MADE))
    [device] = [each for each in node.upstream(ask)["devices"] if each["name"] == INSTANCE]
    assert [each["path"] for each in device["containerEdits"]["deviceNodes"]] == ["/dev/nvidia2"]
    node.describe(described(mig=1))
    [answer] = node.ours(claim_json("c", PART))
    got = node.gives(answer["ids"], node.documents())
    assert {got.nodes[f"/dev/nvidia-caps/nvidia-cap{minor}"] for minor in CAPABILITIES} == {
        (508, minor, "rw") for minor in CAPABILITIES
    }
