"""One node of an inventory as if nothing were allocated and no device were tainted.

Called by `controller.scheduling.decide` to tell what a node could never give from what is only in
use now. In: an inventory and the row of a node. Out: an inventory of that node alone, with the
DeviceClasses. Pure.
"""

from collections.abc import Iterator

import msgspec

from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.model import Pool
from hami_dra.api.meta import ObjectMeta
from hami_dra.api.resource import Device, ResourcePool, ResourceSlice, ResourceSliceSpec


def emptied(inventory: Inventory, row: int) -> Inventory | None:
    """Return the node in `row` with all devices that it can use, idle and healthy. None: one of its
    pools cannot be used, so what it would offer is not known.
    """
    node = inventory.nodes.node(row)
    pools = inventory.pools_on(node.metadata.name)
    if any(pool.invalid or pool.incomplete for pool in pools):
        return None
    alone = Inventory(inventory.gates, node_pools=(), profiles=inventory.profiles)
    for each in inventory.classes.values():
        alone.class_changed(None, each)
    alone.node_changed(None, node)
    for number, pool in enumerate(pools):
        for slice_ in _slices(pool, node.metadata.name, number):
            alone.slice_changed(None, slice_)
    return alone


def _slices(pool: Pool, node: str, number: int) -> Iterator[ResourceSlice]:
    """Yield the pool as slices of this node. Shared counters need a slice of their own."""
    published = ResourcePool(pool.name, pool.generation, 2 if pool.counter_sets else 1)
    contents = ResourceSliceSpec(pool.driver, published, node_name=node)
    devices = tuple(_untainted(device.spec) for device in pool.devices)
    yield _slice(f"devices-{number}", msgspec.structs.replace(contents, devices=devices))
    if pool.counter_sets:
        counters = tuple(pool.counter_sets.values())
        yield _slice(f"counters-{number}", msgspec.structs.replace(contents, shared_counters=counters))


def _untainted(device: Device) -> Device:
    return msgspec.structs.replace(device, taints=(), node_name=None, node_selector=None, all_nodes=None)


def _slice(name: str, spec: ResourceSliceSpec) -> ResourceSlice:
    return ResourceSlice(metadata=ObjectMeta(name=name, uid=name), spec=spec)
