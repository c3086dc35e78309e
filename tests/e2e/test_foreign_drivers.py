"""Other people's drivers under `--manage`: the four patterns on slices such as they publish, with the classes that they ship.

NVIDIA's driver publishes cards that several claims may share (its gate ConsumableShares), by memory and with no limit of
its own on how many; AWS' Neuron driver publishes whole devices without capacities.
"""

from pathlib import Path

import pytest
import yaml

from hack.installation import QUICK
from hami_dra.vendors.registry import VENDORS
from tests.e2e.lab import A10G, T4, allocated_by
from tests.e2e.objects import claim, device_class, part, pod, policies, request, template
from tests.e2e.observe import allocations, pattern

NVIDIA, NEURON, AMD = "gpu.nvidia.com", "neuron.aws.com", "gpu.amd.com"
ROOT = Path(__file__).resolve().parents[2]
PROFILE = ROOT / "driverprofiles/gpu.amd.com.yaml"
UNMANAGED = "hami-core-gpu.project-hami.io"
TRN1, INF2 = "trn1.32xlarge", "inf2.48xlarge"
CLASSES = {
    NVIDIA: device_class(NVIDIA, f"device.driver == '{NVIDIA}' && device.attributes['{NVIDIA}'].type == 'gpu'"),
    NEURON: device_class(NEURON, f"device.driver == '{NEURON}'"),
}
PATTERNS = [
    pytest.param("binpack", "binpack", id="A"),
    pytest.param("spread", "binpack", id="B"),
    pytest.param("binpack", "spread", id="C"),
    pytest.param("spread", "spread", id="D"),
]
# The right shapes, pods per card of each node, by node and device policy.
PARTS = {
    ("binpack", "binpack"): {"2+2", "3+1"},  # on T4 cards, on A10G cards
    ("spread", "binpack"): {"2 | 2"},
    ("binpack", "spread"): {"1+1+1+1"},
    ("spread", "spread"): {"1+1 | 1+1"},
}
# Each pod has a device to itself: nothing can be packed on the device axis, and both device policies come to the same.
WHOLES = {"binpack": {"1+1+1+1"}, "spread": {"1+1 | 1+1"}}


@pytest.fixture(scope="module")
def hami(make_installation):
    installation = make_installation()
    installation.start_controller("--manage", NVIDIA, "--manage", NEURON, "--manage-profile", str(PROFILE), *QUICK)
    installation.wait_ready()
    return installation


def place_four(lab, of, node, device):
    lab.create(template("one", of))
    for number in range(4):
        lab.create(pod(f"web-{number}", templates=["one"], annotations=policies(node, device)))
    found = lab.wait_running(4)
    assert {lab.bound_by(each.pod) for each in found} == {"default-scheduler"}
    assert all(allocated_by(item) == "hami-dra" for item in lab.claims())
    assert lab.overcommitted() == []
    return pattern(found)


def test_every_managed_driver_has_its_fence(lab):
    drivers = {rule["spec"]["deviceSelector"]["driver"] for rule in lab.hami.fence_rules()}
    assert drivers == {NVIDIA, NEURON, AMD, *(vendor.profile.driver for vendor in VENDORS)}


@pytest.mark.parametrize(("node", "device"), PATTERNS)
def test_parts_of_the_cards_of_nvidias_driver(lab, node, device):
    lab.create(CLASSES[NVIDIA])
    lab.machines(T4, "t4", publish_as=NVIDIA)
    lab.machines(A10G, "a10g", publish_as=NVIDIA)
    assert place_four(lab, part("7500Mi", cores=None, device_class=NVIDIA), node, device) in PARTS[node, device]


@pytest.mark.parametrize(("node", "device"), PATTERNS)
def test_whole_neuron_devices(lab, node, device):
    lab.create(CLASSES[NEURON])
    lab.machines(TRN1, "trn1", publish_as=NEURON)
    lab.machines(INF2, "inf2", publish_as=NEURON)
    assert place_four(lab, request(device_class=NEURON), node, device) in WHOLES[node]


def test_neuron_devices_of_one_group(lab):
    """As in AWS' examples: four neighbours, by the group attribute. All sixteen devices go, so no group may be broken."""
    lab.create(CLASSES[NEURON])
    lab.machines(TRN1, "trn1", publish_as=NEURON)
    group = "resource.aws.com/devicegroup4_id"
    neighbours = {"constraints": [{"requests": ["gpu"], "matchAttribute": group}]}
    lab.create(template("four", request(device_class=NEURON, count=4), **neighbours))
    names = [f"train-{number}" for number in range(4)]
    for name in names:
        lab.create(pod(name, templates=["four"], annotations=policies("binpack", "spread")))
    lab.wait_running(names=names)
    groups = {
        device["name"]: device["attributes"][group]["string"]
        for item in lab.slices()
        for device in item["spec"]["devices"]
    }
    held = {}
    for item, result in allocations(lab.claims()):
        held.setdefault(item["metadata"]["name"], set()).add(groups[result["device"]])
    assert [len(each) for each in held.values()] == [1, 1, 1, 1]
    assert len(set.union(*held.values())) == 4
    assert lab.overcommitted() == []


def test_gpus_of_amd_by_their_profile(lab):
    """Slices as ROCm's driver publishes them. The policy numa takes two GPUs of one NUMA node for a pod, of four on the
    node, in the order of the numbers in their names: kube-scheduler's own order knows neither."""
    node = "gpu-worker-1"
    [published] = [
        item
        for item in yaml.safe_load_all((ROOT / "tests/fixtures/driverprofiles/gpu.amd.com.yaml").read_text())
        if item["spec"]["nodeName"] == node
    ]
    lab.plane.nodes.create(node)
    lab.create(published, device_class(AMD, f"device.driver == '{AMD}'"))
    lab.create(template("two", request(device_class=AMD, count=2)))
    names = ["web-0", "web-1"]
    for name in names:
        lab.create(pod(name, templates=["two"], annotations=policies("binpack", "numa")))
    lab.wait_running(names=names)
    held = {}
    for item, result in allocations(lab.claims()):
        held.setdefault(item["metadata"]["name"], set()).add(result["device"])
    assert sorted(map(sorted, held.values())) == [["gpu-0-128", "gpu-8-136"], ["gpu-16-144", "gpu-24-152"]]
    assert lab.overcommitted() == []


def test_a_driver_that_is_not_managed_stays_kube_schedulers(lab):
    """Even where the pod asked for our gate."""
    lab.machines(T4, "t4", publish_as=UNMANAGED)
    lab.create(template("part", part("1Gi", device_class=UNMANAGED)))  # its class is deviceclasses/compat/
    for number in range(2):
        lab.create(pod(f"web-{number}", templates=["part"], annotations=policies("binpack", "spread")))
    assert pattern(lab.wait_running(2)) == "2"  # first-fit, whatever the annotations say
    assert not any(map(allocated_by, lab.claims()))


# --- managed and unmanaged devices beside each other -------------------------------------------------------------------


def drivers_of(lab):
    """Claim name in the pod → (drivers, whether hami-dra allocated it), of all claims."""
    return {
        item["metadata"]["annotations"]["resource.kubernetes.io/pod-claim-name"]: (
            {result["driver"] for _, result in allocations([item])},
            bool(allocated_by(item)),
        )
        for item in lab.claims()
    }


def test_one_pod_with_claims_of_both_kinds(lab):
    """The managed cards are on both nodes, the others on one only: the pod goes where kube-scheduler finds its part."""
    lab.machines(T4, "a-t4", "b-t4")
    lab.machines(A10G, "b-t4", publish_as=UNMANAGED, beside_others=True)
    lab.create(template("ours", part("1Gi")), template("theirs", part("1Gi", device_class=UNMANAGED)))
    lab.create(pod("both", templates=["ours", "theirs"], annotations=policies("binpack", "spread")))
    [placed] = lab.wait_running(names=["both"])
    assert placed.node == "b-t4"
    assert drivers_of(lab) == {"t0": ({"nvidia.hami.io"}, True), "t1": ({UNMANAGED}, False)}


def test_of_a_class_that_matches_both_only_managed_devices_are_given(lab):
    lab.machines(T4, "t4")
    lab.machines(A10G, "a10g", publish_as=UNMANAGED)
    lab.create(device_class("any", "has(device.capacity[device.driver].memory)"))
    lab.create(template("part", part("7500Mi", device_class="any")))
    for number in range(8):  # as many as the T4 cards hold
        lab.create(pod(f"web-{number}", templates=["part"], annotations=policies("spread", "spread")))
    assert {placed.node for placed in lab.wait_running(8)} == {"t4"}
    lab.create(pod("one-too-many", templates=["part"]))
    lab.wait_event("one-too-many", "FilteringFailed", "CardInsufficientMemory")
    assert {driver for _, result in allocations(lab.claims()) for driver in [result["driver"]]} == {"nvidia.hami.io"}


def test_a_claim_that_only_both_kinds_together_can_meet_must_be_split(lab):
    lab.machines(T4, "both")
    lab.machines(A10G, "both", publish_as=UNMANAGED, beside_others=True)
    lab.create(claim("mixed", part("1Gi"), part("1Gi", name="other", device_class=UNMANAGED)))
    lab.create(pod("web", claims=["mixed"]))
    lab.wait_event("web", "FilteringFailed", "split them into two claims")
    assert not lab.claim("mixed").get("status", {}).get("allocation")
