"""The place where a probe of the fence proves something: a node that would serve it without the
fence.

Called by `probe` before it creates anything, and again to interpret kube-scheduler's answer. In:
the inventory and the probe's objects. Out: a `Target`, or None if every device is taken. Pure.

The search that serves pods decides whether the probe fits, by upstream's rules alone:
kube-scheduler does not know vendor rules, and the fence is what the probe tests.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np
from msgspec import Struct

from controller.allocation import (
    AllocatorError,
    BudgetExceeded,
    FeatureGates,
    FirstFit,
    Scope,
    Solution,
    prepare,
    solve,
)
from controller.inventory import NOWHERE, DeviceId, Inventory
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.resource import DeviceClass, ResourceClaim

_TRIES: Final = 32
"""Pairs of node and request to search before giving up."""
_NODES_OF_ROAMING: Final = 4
"""Nodes to try for a device that several nodes can reach."""


class Bodies(Struct, frozen=True):
    """A probe's objects as kube-scheduler would see them."""

    pod: Pod
    claim: ResourceClaim
    device_class: DeviceClass


class Target(Struct, frozen=True):
    node: str
    capacities: tuple[str, ...]
    """Capacities of which the probe requests the minimum; empty: it requests a whole device."""
    devices: frozenset[DeviceId]
    """The devices that the search found for it there."""
    version: int
    """Version of the device columns at that moment."""


def find_target(
    inventory: Inventory, driver: str, features: FeatureGates, bodies_for: Callable[[Sequence[str]], Bodies]
) -> Target | None:
    """Return a node that would serve the probe. `bodies_for`: returns the probe for given capacities."""
    tried: set[tuple[int, tuple[str, ...]]] = set()
    fits = inventory.rules.node_fit(bodies_for(()).pod).mask
    for row, capacities in islice(_candidates(inventory, driver), _TRIES):
        nodes = [int(inventory.devices.node[row])]
        if nodes == [NOWHERE]:
            nodes = np.flatnonzero(fits)[:_NODES_OF_ROAMING].tolist()
        for node in nodes:
            if node < 0 or not fits[node] or (node, capacities) in tried:
                continue
            tried.add((node, capacities))
            found = _search(inventory, node, driver, features, bodies_for(capacities))
            if found is not None:
                devices = frozenset(pick.device.id for picks in found.picks for pick in picks)
                return Target(inventory.nodes.names[node], capacities, devices, inventory.devices.changes.version)
    return None


def is_still_free(inventory: Inventory, target: Target) -> bool:
    """Return whether the devices have not changed at all since the target was found."""
    changed = inventory.devices.changes.since(target.version)
    rows = {inventory.devices.row_of(device) for device in target.devices}
    return changed is not None and -1 not in rows and rows.isdisjoint(changed.tolist())


def _candidates(inventory: Inventory, driver: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield rows of devices without an exclusive holder, idle ones first, with capacities to request."""
    devices = inventory.devices
    open_rows = np.flatnonzero((devices.active & ~devices.exclusive & ~devices.blocked)[: devices.size])
    mine = [row for row in open_rows.tolist() if devices.device(row).id.driver == driver]
    for row in sorted(mine, key=lambda row: (int(devices.slots_used[row]), row)):
        device = devices.device(row)
        yield row, tuple(sorted(device.spec.capacity)) if device.shared else ()


def _search(inventory: Inventory, node: int, driver: str, features: FeatureGates, bodies: Bodies) -> Solution | None:
    scope = Scope(frozenset({driver}), vendor_rules=False)
    name = inventory.nodes.names[node]
    try:
        problem = prepare(
            [bodies.claim],
            {bodies.device_class.metadata.name: bodies.device_class},
            features=features,
            ignored_taints={names.FENCE_TAINT},
        )
        pools = scope.pools(inventory.pools_on(name))
        return solve(problem, inventory.nodes.node(node), pools, inventory.usage, FirstFit())
    except (AllocatorError, BudgetExceeded):
        return None
