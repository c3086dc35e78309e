"""Devices that the inventory calls blocked are those that the search could not pay the shared counters for."""

import random

import pytest

from controller.allocation.counters import Counters
from controller.inventory.inventory import Inventory
from controller.inventory.model import DeviceId
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from tests.cards import node, slice_of
from tests.support.assumed import assume

DRIVER = "nvidia.hami.io"


def published(name="n"):
    """A machine in MIG mode, as two slices: counters, and devices that draw on them."""
    for number, body in enumerate(slice_bodies(machine_pools(machine("a2-ultragpu-2g-mig", name)))):
        content = {key: body["spec"][key] for key in ("sharedCounters", "devices") if key in body["spec"]}
        devices = content.pop("devices", ())
        count = body["spec"]["pool"]["resourceSliceCount"]
        yield slice_of(name, devices, name=f"{name}-{number}", count=count, nodeName=name, pool=name, **content)


def cut_up(name="n"):
    inventory = Inventory()
    inventory.node_changed(None, node(name))
    for each in published(name):
        inventory.slice_changed(None, each)
    return inventory


def held(device):
    shared = {"consumedCapacity": {"memory": "1Gi", "cores": "0", "shares": "1"}} if "-mig-" not in device else {}
    return {"devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "n", "device": device, **shared}]}}


def check(inventory):
    (pool,) = inventory.pools_on("n")
    for device in pool.devices:
        row = inventory.devices.row_of(device.id)
        busy = inventory.usage.use_of(device.id) is not None
        payable = Counters(inventory.usage, groups=False).take(pool, device)
        assert bool(inventory.devices.blocked[row]) is (not busy and not payable), device.id


@pytest.mark.parametrize("seed", range(12))
def test_blocked_is_what_the_search_could_not_pay(seed):
    chance = random.Random(seed)
    inventory = cut_up()
    (pool,) = inventory.pools_on("n")
    names = [device.id.device for device in pool.devices]
    claims = {}
    check(inventory)
    for number in range(24):
        if claims and chance.random() < 0.4:
            inventory.forget(claims.pop(chance.choice(list(claims))))
        else:
            name = chance.choice(names)
            row = inventory.devices.row_of(DeviceId(DRIVER, "n", name))
            if not inventory.devices.blocked[row] and name not in claims:
                claims[name] = f"claim-{number}"
                assume(inventory, claims[name], held(name))
        check(inventory)
    if chance.random() < 0.5:
        # the Node comes and goes while its slices stay; meanwhile somebody else may let go of a device
        inventory.node_changed(node("n"), None)
        if claims and chance.random() < 0.5:
            inventory.forget(claims.pop(chance.choice(list(claims))))
        inventory.node_changed(None, node("n"))
        check(inventory)
    # published anew, with what is held by then
    for each in list(published()):
        inventory.slice_changed(each, each)
    check(inventory)
    for uid in claims.values():
        inventory.forget(uid)
    check(inventory)
    assert not inventory.devices.blocked[: inventory.devices.size].any()


def test_a_node_that_comes_after_its_slices_or_comes_again_finds_the_same_blocked_devices():
    """Reflectors list side by side, so any order is an order in which the controller starts."""
    usual, late, again = cut_up(), Inventory(), cut_up()
    for each in published():
        late.slice_changed(None, each)
    for inventory in (usual, late, again):
        assume(inventory, "c", held("gpu-0"))
    again.node_changed(node("n"), None)
    for inventory in (late, again):
        inventory.node_changed(None, node("n"))
        check(inventory)
    assert blocked_devices(usual)
    assert blocked_devices(late) == blocked_devices(again) == blocked_devices(usual)


def blocked_devices(inventory):
    rows = inventory.devices.blocked[: inventory.devices.size].nonzero()[0]
    return {inventory.devices.device(row).id.device for row in rows}


def test_without_counters_nothing_is_blocked_any_more():
    inventory = cut_up()
    assume(inventory, "c", held("gpu-0"))
    assert inventory.devices.blocked[: inventory.devices.size].any()
    plain = [slice_of("n", [{"name": "gpu-0"}, {"name": "gpu-0-mig-1g-10gb-0"}], name="n-9", count=1, generation=2)]
    for each in published():
        inventory.slice_changed(each, None)
    inventory.slice_changed(None, plain[0])
    assert not inventory.devices.blocked[: inventory.devices.size].any()
