"""Pools made of slices, by the rules of the structured allocator
(k8s.io/dynamic-resource-allocation, pools_incubating.go).

Fed by the inventory; `decide` reads the pools of a node. For one node: slices are grouped by driver
and pool, the highest generation among those that reach the node counts; the pool is complete if
there are as many as `resourceSliceCount`. If not, all slices of that generation in the cluster are
read: a newer generation makes the pool obsolete (left out), a wrong count makes it incomplete.
Duplicate names and unknown counters make it invalid. Order: pools without binding conditions first,
by driver and name; slices by name; devices as listed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct

from controller.inventory.model import Device, DeviceId, Pool
from hami_dra.api import resource as api
from hami_dra.api.core import Node, NodeSelector
from hami_dra.api.selectors import node_selector_matches
from hami_dra.vendors.profiles import BUILT_IN_PROFILES, DriverProfiles

PoolKey = tuple[str, str]
"""(driver, pool name)"""


class PoolGates(Struct, frozen=True):
    """The feature gates that decide what a pool consists of; defaults of Kubernetes 1.37."""

    partitionable_devices: bool = True
    """Off: slices with shared counters or per-device node selection do not reach any node (DRAPartitionableDevices)."""
    compatibility_groups: bool = False
    """Off: slices with devices of compatibility groups are ignored, which leaves their pool
    incomplete (DRADeviceCompatibilityGroups).
    """

    def has_devices(self, compiled: "Compiled") -> bool:
        """Return whether the slice has devices: one with shared counters has nothing else."""
        return not (self.partitionable_devices and compiled.slice.spec.shared_counters)


class Compiled(Struct, frozen=True):
    """One slice with its devices."""

    slice: api.ResourceSlice
    devices: tuple[Device, ...]
    grouped: bool
    """Whether some device has compatibility groups."""


class PoolBook:
    """All slices, by pool and by the nodes they reach. Pools of a node are built at first use and
    cached until a slice changes.
    """

    def __init__(self, gates: PoolGates = PoolGates()) -> None:
        self.gates = gates
        self._slices: dict[PoolKey, dict[str, Compiled]] = defaultdict(dict)
        self._pool_of: dict[str, PoolKey] = {}
        self._local: dict[str, Counter[PoolKey]] = defaultdict(Counter)
        self._wide: Counter[PoolKey] = Counter()
        self._built: dict[str, list[Pool]] = {}

    def put(self, compiled: Compiled) -> PoolKey:
        """Add or replace a slice; returns its pool."""
        name, spec = compiled.slice.metadata.name, compiled.slice.spec
        self.drop(name)
        key = (spec.driver, spec.pool.name)
        self._slices[key][name] = compiled
        self._pool_of[name] = key
        if spec.node_name:
            self._local[spec.node_name][key] += 1
        else:
            self._wide[key] += 1
        self._forget_pool(key)
        return key

    def drop(self, slice_name: str) -> PoolKey | None:
        key = self._pool_of.pop(slice_name, None)
        if key is None:
            return None
        spec = self._slices[key].pop(slice_name).slice.spec
        if spec.node_name:
            counts = self._local[spec.node_name]
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
            if not counts:
                del self._local[spec.node_name]
            self._built.pop(spec.node_name, None)
        else:
            self._wide[key] -= 1
            if not self._wide[key]:
                del self._wide[key]
            self._built.clear()
        self._forget_pool(key)
        if not self._slices[key]:
            del self._slices[key]
        return key

    def slices(self, key: PoolKey) -> list[Compiled]:
        """Return the slices of a pool by name, as the allocator orders them."""
        return [compiled for _, compiled in sorted(self._slices.get(key, {}).items())]

    def single_node(self, key: PoolKey) -> str:
        """Return the one node that sees all slices of the pool, or an empty text."""
        nodes = {compiled.slice.spec.node_name for compiled in self._slices.get(key, {}).values()}
        (node,) = nodes if len(nodes) == 1 else (None,)
        return node or ""

    def pool_keys(self) -> list[PoolKey]:
        return list(self._slices)

    def local_to(self, node_name: str) -> list[PoolKey]:
        return list(self._local.get(node_name, ()))

    def forget_node(self, node_name: str) -> None:
        """Drop the cached pools of a node whose labels changed: other wide pools may reach it now."""
        self._built.pop(node_name, None)

    def on(self, node: Node) -> list[Pool]:
        name = node.metadata.name
        pools = self._built.get(name)
        if pools is None:
            keys = set(self._local.get(name, ())) | set(self._wide)
            found = (build(key, self.slices(key), name, node.metadata.labels, self.gates) for key in keys)
            pools = sorted(
                (pool for pool in found if pool is not None), key=lambda pool: (pool.binds, pool.driver, pool.name)
            )
            self._built[name] = pools
        return pools

    def _forget_pool(self, key: PoolKey) -> None:
        """Drop the cached pools of all nodes that see the pool, or other slices of it (completeness, counters)."""
        if key in self._wide:
            self._built.clear()
        for compiled in self._slices.get(key, {}).values():
            if compiled.slice.spec.node_name:
                self._built.pop(compiled.slice.spec.node_name, None)


def build(
    key: PoolKey, slices: Iterable[Compiled], node: str, labels: Mapping[str, str], gates: PoolGates = PoolGates()
) -> Pool | None:
    """Return the pool as the node sees it, or None if it does not reach the node or is obsolete. `slices`: by name."""
    everything = list(slices)
    visible = [compiled for compiled in everything if gates.compatibility_groups or not compiled.grouped]
    reaching = [
        (compiled, devices)
        for compiled in visible
        if (gates.partitionable_devices or not _partitionable(compiled))
        and (devices := _reach(compiled, node, labels)) is not None
    ]
    if not reaching:
        return None
    generation = max(compiled.slice.spec.pool.generation for compiled, _ in reaching)
    current = [entry for entry in reaching if entry[0].slice.spec.pool.generation == generation]
    seen_slices = [compiled for compiled, _ in current]
    others: list[Compiled] = []
    incomplete = False
    count = seen_slices[0].slice.spec.pool.resource_slice_count
    if len(seen_slices) != count:
        if any(compiled.slice.spec.pool.generation > generation for compiled in everything):
            return None
        whole = [compiled for compiled in visible if compiled.slice.spec.pool.generation == generation]
        others = [compiled for compiled in whole if compiled not in seen_slices]
        incomplete = len(whole) != count
    counters, invalid = _check(seen_slices, others, gates)
    usable = [device for compiled, devices in current if gates.has_devices(compiled) for device in devices]
    seen = set(map(id, usable))
    listed = tuple(device for compiled in seen_slices if gates.has_devices(compiled) for device in compiled.devices)
    return Pool(
        driver=key[0],
        name=key[1],
        generation=generation,
        devices=tuple(usable),
        counter_sets=counters,
        incomplete=incomplete,
        invalid="" if incomplete else invalid,
        elsewhere=tuple(
            device
            for compiled in (*seen_slices, *others)
            if gates.has_devices(compiled)
            for device in compiled.devices
            if id(device) not in seen
        ),
        binds=not incomplete
        and not invalid
        and any(device.spec.binding_conditions for compiled in seen_slices for device in compiled.devices),
        among=listed if len(listed) > len(usable) else (),
    )


def problem_of(slices: Iterable[Compiled], gates: PoolGates = PoolGates()) -> str:
    """Return the problem of the newest generation of a pool, for any node; empty if there is none."""
    visible = [compiled for compiled in slices if gates.compatibility_groups or not compiled.grouped]
    generation = max((compiled.slice.spec.pool.generation for compiled in visible), default=0)
    newest = [compiled for compiled in visible if compiled.slice.spec.pool.generation == generation]
    if not newest:
        return ""
    count = newest[0].slice.spec.pool.resource_slice_count
    if len(newest) != count:
        return f"incomplete: spec.pool.resourceSliceCount is {count}, slices of generation {generation}: {len(newest)}"
    return _check(newest, [], gates)[1]


def misplaced(slice_: api.ResourceSlice) -> str:
    """Return why a slice is in a pool that is not its node's, or an empty text.

    For drivers with one pool a node, named after the node, as hami-dra's own are. Such a pool is
    all that a node may speak for; devices are known by driver, pool and name, so a slice elsewhere
    would stand for another node's cards.
    """
    spec = slice_.spec
    if spec.node_name == spec.pool.name:
        return ""
    node = f"node {spec.node_name}" if spec.node_name else "no single node"
    return f"it is of {node} and in pool {spec.pool.name}, but {spec.driver} names the pool of a node after the node"


def compile_slice(slice_: api.ResourceSlice, profiles: DriverProfiles = BUILT_IN_PROFILES) -> Compiled:
    """Return the slice with its devices, which are read through the profile of its driver."""
    spec = slice_.spec
    profile = profiles.of(spec.driver)
    return Compiled(
        slice_,
        tuple(
            [
                Device(DeviceId(spec.driver, spec.pool.name, device.name), device, slice_, profile=profile)
                for device in spec.devices
            ]
        ),
        any(consumed.compatibility_groups for device in spec.devices for consumed in device.consumes_counters),
    )


def _partitionable(compiled: Compiled) -> bool:
    spec = compiled.slice.spec
    return spec.per_device_node_selection is not None or bool(spec.shared_counters)


def _reach(compiled: Compiled, node: str, labels: Mapping[str, str]) -> tuple[Device, ...] | None:
    """Return the devices of the slice that the node can use, or None if the slice does not reach it."""
    spec = compiled.slice.spec
    if spec.node_name or spec.all_nodes or spec.node_selector is not None:
        return compiled.devices if _reaches(spec.node_name, spec.node_selector, spec.all_nodes, node, labels) else None
    if not spec.per_device_node_selection:
        return None
    found = tuple(
        device
        for device in compiled.devices
        if _reaches(device.spec.node_name, device.spec.node_selector, device.spec.all_nodes, node, labels)
    )
    return found or None


def _reaches(
    node_name: str | None, selector: NodeSelector | None, all_nodes: bool | None, node: str, labels: Mapping[str, str]
) -> bool:
    if node_name:
        return node_name == node
    return bool(all_nodes) or (selector is not None and node_selector_matches(selector, node, labels))


def _check(
    seen_slices: list[Compiled], others: list[Compiled], gates: PoolGates
) -> tuple[dict[str, api.CounterSet], str]:
    """Return the counter sets by name, and why the pool is invalid. `others`: slices that the node does not see."""
    counters: dict[str, api.CounterSet] = {}
    names = [device.id.device for compiled in seen_slices if gates.has_devices(compiled) for device in compiled.devices]
    if len(set(names)) < len(names):
        return counters, f"duplicate device name {next(name for name, times in Counter(names).items() if times > 1)}"
    if not gates.partitionable_devices:
        return counters, ""
    for compiled in (*seen_slices, *others):
        for counter_set in compiled.slice.spec.shared_counters:
            if counter_set.name in counters:
                return counters, f"duplicate counter set {counter_set.name}"
            counters[counter_set.name] = counter_set
    for compiled in (*seen_slices, *others):
        for device in compiled.devices if gates.has_devices(compiled) else ():
            problem = _unknown_counter(device, counters)
            if problem:
                return counters, problem
    return counters, ""


def _unknown_counter(device: Device, counters: Mapping[str, api.CounterSet]) -> str:
    for consumed in device.spec.consumes_counters:
        known = counters.get(consumed.counter_set)
        if known is None:
            return f"device {device.id.device} uses the unknown counter set {consumed.counter_set}"
        for name in consumed.counters:
            if name not in known.counters:
                return f"device {device.id.device} uses the unknown counter {consumed.counter_set}.{name}"
    return ""
