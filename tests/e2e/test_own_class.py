"""A user's own DeviceClass selects as its CEL says, and the classes that ship are what they claim to be."""

import pytest

from hack.installation import DRIVER
from tests.e2e.lab import A10G, T4
from tests.e2e.objects import cpu, device_class, part, pod, policies, request, template
from tests.e2e.observe import allocations, amount, pattern

A10G_ONLY = f'device.driver == "{DRIVER}" && device.attributes["hami.io"].productName == "NVIDIA A10G"'
MIB = 1 << 20


@pytest.fixture
def both(lab):
    """The T4 node comes first by name, and without a class of their own pods go there."""
    lab.machines(T4, "a-t4")
    lab.machines(A10G, "b-a10g")
    return lab


def run(lab, *names, **options):
    for name in names:
        lab.create(pod(name, **options))
    lab.wait_running(names=[item["metadata"]["name"] for item in lab.pods()])
    assert lab.overcommitted() == []
    return [lab.placement(name) for name in names]


def consumed(lab):
    """(memory in MiB, percent of cores) of every device that is held."""
    found = [result["consumedCapacity"] for _, result in allocations(lab.claims())]
    return sorted((amount(each["memory"]) // MIB, amount(each["cores"])) for each in found)


def test_a_class_by_product_name(both):
    lab = both
    lab.create(device_class("a10g", A10G_ONLY))
    lab.create(template("a10g", part("7500Mi", device_class="a10g")), template("any", part("7500Mi")))
    packed = policies("binpack", "binpack")
    (anywhere,) = run(lab, "anywhere", templates=["any"], annotations=packed)
    assert anywhere.node == "a-t4"
    found = run(lab, *(f"a10g-{number}" for number in range(4)), templates=["a10g"], annotations=packed)
    assert {each.node for each in found} == {"b-a10g"}
    assert pattern(found) == "3+1"  # three of them fit on 23,028 MiB


def test_a_class_that_narrows_by_memory_and_is_narrowed_by_the_claim(both):
    lab = both
    large = f'device.driver == "{DRIVER}" && device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("16Gi"))'
    second = 'device.attributes["hami.io"].index == 1'
    lab.create(device_class("large", large))
    lab.create(template("second", part("20Gi", device_class="large", selector=second)))
    (placed,) = run(lab, "first", templates=["second"])
    assert (placed.node, placed.devices) == ("b-a10g", ["b-a10g/gpu-1"])
    lab.create(pod("next", templates=["second"]))
    assert lab.wait_event("next", "FilteringFailed", "1 node CardInsufficientMemory")
    assert lab.wait_event("next", "FilteringFailed", "1 node NodeInsufficientDevice")


def test_policies_on_a_users_class_hold_for_all_its_users_and_the_pods_own_come_first(both):
    lab = both
    everywhere = policies("spread", "spread")
    lab.create(device_class("mine", f'device.driver == "{DRIVER}"', annotations=everywhere))
    lab.create(template("mine", part("7500Mi", device_class="mine")))
    assert pattern(run(lab, *(f"web-{number}" for number in range(4)), templates=["mine"])) == "1+1 | 1+1"
    lab.clear()
    packed = policies("binpack", "binpack")
    found = run(lab, *(f"web-{number}" for number in range(4)), templates=["mine"], annotations=packed)
    assert pattern(found) in {"2+2", "3+1"}


def test_the_class_of_whole_cards(both):
    """All of the card's memory and cores; as many as asked for, on one node, none of them shared with anybody."""
    lab = both
    lab.create(template("part", part("1Gi", cores="0")), template("whole", request(device_class="nvidia-gpu.hami.io")))
    lab.create(template("three", request(device_class="nvidia-gpu.hami.io", count=3)))
    on_t4 = {"nodeSelector": {"kubernetes.io/hostname": "a-t4"}}
    (shared,) = run(lab, "shared", templates=["part"], **on_t4)
    (three,) = run(lab, "three", templates=["three"], resources=cpu("1"), **on_t4)
    assert len(three.devices) == 3
    assert shared.devices[0] not in three.devices
    (elsewhere,) = run(lab, "elsewhere", templates=["whole"])
    assert elsewhere.node == "b-a10g"
    assert consumed(lab) == [(1024, 0), *[(15360, 100)] * 3, (23028, 100)]


def test_the_class_of_parts(both):
    """What is not asked for is all there is of it, as HAMi's defaults are: a part without cores takes them all."""
    lab = both
    lab.create(template("named", part("4Gi", cores="25")), template("greedy", part("4Gi", cores=None)))
    lab.create(template("cores", part(None, cores="30")))
    run(lab, "named", templates=["named"])
    run(lab, "greedy", templates=["greedy"])
    run(lab, "cores", templates=["cores"])
    assert consumed(lab) == [(4096, 25), (4096, 100), (15360, 30)]
    devices = [device for each in lab.placements() for device in each.devices]
    assert len(set(devices)) == 3
