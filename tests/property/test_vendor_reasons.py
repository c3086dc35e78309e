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
