"""From machines to ResourceSlices: the distribution of devices over slices, and the names of slices.

Called by the publisher, the fleet, `hami-dra slices` and the generator of `resourceslices/`. In:
machines, or devices as described by vendors. Out: pools, and ResourceSlice objects as plain JSON.
Pure: no cluster, no clock.

Conventions are those of Kubernetes' own library (k8s.io/dynamic-resource-allocation/resourceslice):
one pool per node, slices named `<index in hex>-<driver>-<node>-<suffix>` so that they sort by
index, owned by the Node, one empty slice if there are no devices. The suffix is a hash and not
random, so that a create whose answer was lost cannot create a second slice.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from hami_dra.api import names
from hami_dra.api.hardware import Card, Machine
from hami_dra.api.options import VendorSettings
from hami_dra.driver.limits import MAX_COUNTER_SETS, device_limit
from hami_dra.vendors.publishing import PublishingVendor, Unpublishable
from hami_dra.vendors.registry import PUBLISHING_VENDORS

Json = dict[str, Any]

FENCE: Final[Json] = {"key": names.FENCE_TAINT, "effect": "NoSchedule"}
"""In slices only if DeviceTaintRules are not available (Kubernetes 1.36): keeps kube-scheduler's allocator off."""

_MAX_NAME: Final = 253
_SUFFIX: Final = 5


class SliceContent(Struct, frozen=True):
    """Devices or shared counters, never both (an API rule)."""

    devices: tuple[Json, ...] = ()
    shared_counters: tuple[Json, ...] = ()


class Pool(Struct, frozen=True):
    """The devices that one driver publishes for one node; publishing adds generation and names of slices."""

    driver: str
    node: str
    slices: tuple[SliceContent, ...]
    node_uid: str = ""
    """For the owner reference; without it there is none, and the slices stay when the node is deleted."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the first slice; an empty value removes one. All other slices have none of them."""

    @property
    def name(self) -> str:
        return self.node

    @property
    def devices(self) -> list[Json]:
        return [device for content in self.slices for device in content.devices]

    @property
    def shared_counters(self) -> list[Json]:
        return [counter_set for content in self.slices for counter_set in content.shared_counters]

    def with_devices(self, devices: Sequence[Json]) -> "Pool":
        """Return the pool with other devices, split again into slices."""
        return replace(
            self, slices=pool_of(self.driver, self.node, devices, shared_counters=self.shared_counters).slices
        )


def pool_of(driver: str, node: str, devices: Sequence[Json], *, shared_counters: Sequence[Json] = ()) -> Pool:
    """Return the pool with as few slices as the API allows, devices in their order; counters in slices before them."""
    limit = device_limit(devices)
    contents = [SliceContent(shared_counters=part) for part in _parts(shared_counters, MAX_COUNTER_SETS)]
    contents += [SliceContent(devices=part) for part in _parts(devices, limit)]
    return Pool(driver, node, tuple(contents) or (SliceContent(),))


def machine_pools(machine: Machine, settings: VendorSettings | None = None) -> list[Pool]:
    """Return one pool per vendor with a driver here. Raises Unpublishable for a card of any other vendor."""
    settings = settings or VendorSettings()
    by_vendor: dict[str, list[Card]] = {}
    for card in machine.cards:
        by_vendor.setdefault(card.vendor, []).append(card)
    pools = []
    for vendor_name, cards in by_vendor.items():
        vendor = _vendor(vendor_name, machine)
        devices, counters = vendor.devices(cards, settings), vendor.counter_sets(cards)
        pools.append(pool_of(vendor.driver, machine.name, devices, shared_counters=counters))
    return pools


def fenced(pool: Pool, *, fence: bool) -> Pool:
    """Return the pool with the fence taint on every device, or on none; tainted slices hold fewer devices."""
    return pool.with_devices([_fenced_device(device, fence=fence) for device in pool.devices])


def slice_name(pool: Pool, index: int) -> str:
    suffix = hashlib.sha256(f"{pool.driver}\n{pool.name}".encode()).hexdigest()[:_SUFFIX]
    middle = f"{pool.driver}-{pool.node}".lower()
    room = _MAX_NAME - len(f"{index:05x}--{suffix}")
    return f"{index:05x}-{middle[:room].rstrip('.-')}-{suffix}"


def slice_body(pool: Pool, index: int, generation: int) -> Json:
    """Return a complete object for creation."""
    content = pool.slices[index]
    metadata: Json = {"name": slice_name(pool, index)}
    if pool.labels:
        metadata["labels"] = dict(pool.labels)
    annotations = {name: value for name, value in wanted_annotations(pool, index).items() if value}
    if annotations:
        metadata["annotations"] = annotations
    if pool.node_uid:
        metadata["ownerReferences"] = owner_references(pool)
    spec: Json = {
        "driver": pool.driver,
        "nodeName": pool.node,
        "pool": {"name": pool.name, "generation": generation, "resourceSliceCount": len(pool.slices)},
    }
    if content.shared_counters:
        spec["sharedCounters"] = list(content.shared_counters)
    else:
        spec["devices"] = list(content.devices)
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def wanted_annotations(pool: Pool, index: int) -> Mapping[str, str]:
    """Return the managed annotations of a slice; an empty value: none."""
    return pool.annotations if index == 0 else dict.fromkeys(pool.annotations, "")


def slice_bodies(pools: Iterable[Pool], generation: int = 1) -> list[Json]:
    return [slice_body(pool, index, generation) for pool in pools for index in range(len(pool.slices))]


def owner_references(pool: Pool) -> list[Json]:
    return [{"apiVersion": "v1", "kind": "Node", "name": pool.node, "uid": pool.node_uid, "controller": True}]


def _vendor(name: str, machine: Machine) -> PublishingVendor:
    for vendor in PUBLISHING_VENDORS:
        if vendor.name == name:
            return vendor
    known = ", ".join(vendor.name for vendor in PUBLISHING_VENDORS)
    raise Unpublishable(
        f"node {machine.name} ({machine.instance_type}) has cards of vendor {name!r}, which no driver of hami-dra publishes "
        f"(it has drivers for: {known}): choose another machine, or have it published as another driver"
    )


def _fenced_device(device: Json, *, fence: bool) -> Json:
    others = [taint for taint in device.get("taints", ()) if taint["key"] != names.FENCE_TAINT]
    taints = [*others, FENCE] if fence else others
    bare = {key: value for key, value in device.items() if key != "taints"}
    return bare | {"taints": taints} if taints else bare


def _parts(items: Sequence[Json], size: int) -> Iterator[tuple[Json, ...]]:
    for start in range(0, len(items), size):
        yield tuple(items[start : start + size])
