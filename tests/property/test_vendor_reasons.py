"""Reasons against HAMi's Fit, written down check by check: of each card the first that fails, in HAMi's order."""

import random
from collections import Counter

import pytest

from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.vendors.kunlunxin.publish import KunlunxinPublishing
from hami_dra.vendors.metax.publish import MetaxPublishing
from hami_dra.vendors.nvidia.publish import NvidiaPublishing
from tests.support.manifests import node, pod, simulated
from tests.support.settings import vendor_settings

NVIDIA = {
    "machine": "g4dn.12xlarge",
    "memory": 15_360,
    "slots": 2,
    "classes": NvidiaPublishing().device_classes(),
    "use": "nvidia.com/use-gpuuuid",
    "names": ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"),
}
METAX = {
    "machine": "c500-8",
    "memory": 65_536,
    "slots": 2,
    "classes": MetaxPublishing().device_classes(),
    "use": "metax-tech.com/use-gpuuuid",
    "names": ("metax-tech.com/sgpu", "metax-tech.com/vmemory", "metax-tech.com/vcore"),
}


class Card:
    """One card as HAMi counts it."""

    def __init__(self, vendor):
        self.total, self.slots = vendor["memory"], vendor["slots"]
        self.used = self.memory = self.cores = 0

    def take(self, memory, cores):
        self.used, self.memory, self.cores = self.used + 1, self.memory + memory, self.cores + cores

    def reason(self, memory, cores, *, mutex):
        """The checks of Fit from slots on (D/nvidia/device.go, D/metax/sdevice.go)."""
        if self.slots <= self.used:
            return "CardTimeSlicingExhausted"
        if mutex and self.used > 0:
            return "ExclusiveDeviceAllocateConflict"
        if self.total - self.memory < memory:
            return "CardInsufficientMemory"
        if 100 - self.cores < cores:
            return "CardInsufficientCore"
        if cores == 100 and self.used > 0:
            return "ExclusiveDeviceAllocateConflict"
        if self.cores == 100 and cores == 0:
            return "CardComputeUnitsExhausted"
        return ""


def limits(vendor, count, memory, cores):
    gpu, memory_name, cores_name = vendor["names"]
    amount = f"{memory}Mi" if vendor is METAX else memory
    return {gpu: count, memory_name: amount, cores_name: cores}


def uuid(vendor, number):
    return machine(vendor["machine"], "n").cards[number].uuid


def expected(cards, count, memory, cores, *, mutex):
    found = Counter(card.reason(memory, cores, mutex=mutex) for card in cards)
    if found[""] >= count:
        return None
    fitting = found.pop("", 0)
    return dict(found + Counter(AllocatedCardsInsufficientRequest=fitting))


@pytest.mark.parametrize("policy", ["spread", "binpack", "mutex", "spread,mutex"])
@pytest.mark.parametrize("vendor", [NVIDIA, METAX], ids=["nvidia", "metax"])
@pytest.mark.parametrize("seed", range(6))
def test_each_card_has_the_first_reason_that_hami_finds(seed, vendor, policy):
    chance = random.Random(seed)
    raws = [
        *vendor["classes"],
        node("n"),
        *slice_bodies(machine_pools(machine(vendor["machine"], "n"), vendor_settings(slots=vendor["slots"]))),
    ]
    cards = [Card(vendor) for _ in machine(vendor["machine"], "n").cards]
    tenants = []
    for number in range(2 * len(cards)):
        place, share = chance.randrange(len(cards)), chance.choice([1, 2, 3, 4])
        memory, cores = vendor["memory"] * share // 4 // 1024 * 1024, chance.choice([0, 30, 70, 100])
        if not cards[place].reason(memory, cores, mutex=False):
            cards[place].take(memory, cores)
            own = {vendor["use"]: uuid(vendor, place)}
            tenants.append(pod(f"t{number}", limits=limits(vendor, 1, memory, cores), annotations=own))
    for count in (1, 2, len(cards)):
        memory = vendor["memory"] * chance.choice([1, 2, 4, 8]) // 4
        cores = chance.choice([0, 10, 50, 100])
        own = {"hami.io/gpu-scheduler-policy": policy}
        wanted = pod("p", limits=limits(vendor, count, memory, cores), annotations=own)
        report = simulated(raws, tenants, wanted)
        assert {entry["pod"] for entry in report.unplaced} <= {"default/p"}
        found = next((entry["reasons"] for entry in report.unplaced), None)
        assert found == expected(cards, count, memory, cores, mutex="mutex" in policy)


@pytest.mark.parametrize("policy", ["mutex", "binpack,mutex"])
def test_mutex_names_the_cards_in_use_of_other_vendors_too(policy):
    """Eight XPUs with a half taken of each; HAMi's vXPU counts a conflict for each card that would have room."""
    own = {"hami.io/gpu-scheduler-policy": policy}
    half = {"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 49_152}
    raws = [
        *KunlunxinPublishing().device_classes(),
        node("n"),
        *slice_bodies(machine_pools(machine("p800-oam-8", "n"))),
    ]
    tenants = [
        pod(f"t{number}", limits=half, annotations={"hami.io/use-xpu-uuid": f"n-kunlun-{number}"})
        for number in range(8)
    ]
    report = simulated(raws, tenants, pod("p", limits=half, annotations=own))
    assert [entry["reasons"] for entry in report.unplaced] == [{"ExclusiveDeviceAllocateConflict": 8}]


@pytest.mark.parametrize("policy", ["mutex", "spread,mutex"])
@pytest.mark.parametrize("mode", ["mig", ""])
def test_mutex_names_the_parts_of_cards_in_use(policy, mode):
    """Two A100s with an instance taken of each: HAMi counts a conflict for each card, here for each part of it."""
    raws = [
        *NvidiaPublishing().device_classes(),
        node("n"),
        *slice_bodies(machine_pools(machine("a2-ultragpu-2g-mig", "n"))),
    ]
    share = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000}
    own = {"nvidia.com/vgpu-mode": mode} if mode else {}
    tenants = [
        pod(
            f"t{number}",
            limits=share,
            annotations={"nvidia.com/vgpu-mode": "mig", "nvidia.com/use-gpuuuid": card.uuid},
        )
        for number, card in enumerate(machine("a2-ultragpu-2g-mig", "n").cards)
    ]
    wanted = pod("p", limits=share, annotations=own | {"hami.io/gpu-scheduler-policy": policy})
    (entry,) = simulated(raws, tenants[:1], wanted).placements[1:]
    assert {
        each["device"].partition("-mig-")[0] for each in entry["claims"][0]["allocation"]["devices"]["results"]
    } == {"gpu-1"}
    (refused,) = simulated(raws, tenants, wanted).unplaced
    assert refused["reasons"].pop("CardTimeSlicingExhausted") == 2  # the instances that are held
    cards = {"ModeNotFit": 2} if mode else {}  # the cards themselves, which are no instances
    assert refused["reasons"] == {"ExclusiveDeviceAllocateConflict": 36 - len(cards) * 2} | cards


QOS, APP_CLASS, USE = "metax-tech.com/sgpu-qos-policy", "metax-tech.com/sgpu-app-class", "metax-tech.com/use-gpuuuid"


@pytest.mark.parametrize(
    ("tenant", "wanted", "reason"),
    [
        ({QOS: "fixed-share"}, {QOS: "burst-share"}, "CardQosPolicyMismatch"),
        ({QOS: "fixed-share"}, {QOS: "fixed-share"}, "CardUuidMismatch"),
        ({APP_CLASS: "offline"}, {}, "CardAppClassMismatch"),
        ({APP_CLASS: "online"}, {APP_CLASS: "offline"}, "CardAppClassMismatch"),
        ({APP_CLASS: "offline"}, {APP_CLASS: "online"}, "CardUuidMismatch"),
    ],
)
def test_metax_compares_class_and_qos_before_the_uuid(tenant, wanted, reason):
    """Fit of D/metax/sdevice.go: class, QoS, uuid. Cards 1 to 7 are idle, which take any class and QoS."""
    raws = [*METAX["classes"], node("n"), *slice_bodies(machine_pools(machine(METAX["machine"], "n")))]
    share = {"metax-tech.com/sgpu": 1, "metax-tech.com/vmemory": 4, "metax-tech.com/vcore": 10}
    held = pod("t", limits=share, annotations=tenant | {USE: uuid(METAX, 0)})
    refused = simulated(raws, held, pod("p", limits=share, annotations=wanted | {USE: "GPU-elsewhere"})).unplaced
    expected = {"CardUuidMismatch": 8} if reason == "CardUuidMismatch" else {reason: 1, "CardUuidMismatch": 7}
    assert [entry["reasons"] for entry in refused] == [expected]
