"""Devices that are kept for pods which do not run yet: why a device is not free although nothing
runs on it.

Used by `read` and the dashboard. In: an inventory, pods, claims, gangs. Out: `Reservation`s. Pure.
Today the waiting members of gangs have them: their devices are assumed or allocated while the gang
is committed, or kept for those of its members that miss (`--gang-hold`). Preemption and moves are
to be further values of `kind`, and are then shown wherever these are.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from controller.cluster.pods.gang_key import GangKey
from controller.inventory import DeviceId, Inventory
from controller.views.overview.model import Reservation
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_bound, is_pending, is_probe
from hami_dra.api.resource import ResourceClaim


def never(_key: GangKey) -> datetime | None:
    """Return None: it is not known when a gang gives its devices back."""
    return None


def reservations(
    inventory: Inventory,
    pods: Iterable[Pod],
    claim_of: Callable[[str], ResourceClaim | None],
    pods_of: Callable[[str], Iterable[Pod]],
    gang_of: Callable[[Pod], GangKey | None],
    *,
    until: Callable[[GangKey], datetime | None] = never,
) -> tuple[Reservation, ...]:
    """Return what is kept for the pods that wait, by gang and pod.

    `pods`: at least those that wait for a node. `claim_of`, `pods_of`: the claim with a key, the
    pods that refer to it. `until`: when a gang gives back what it holds.
    """
    found = []
    for pod in pods:
        if not is_pending(pod) or not pod.spec.resource_claims or is_probe(pod):
            continue
        gang = gang_of(pod)
        if gang is None:
            continue
        held = [
            claim
            for key in claim_keys(pod)
            if (claim := claim_of(key)) is not None and not any(map(is_bound, pods_of(key)))
        ]
        devices = [holding.device for claim in held for holding in inventory.usage.counted(claim.metadata.uid)]
        if not devices:
            continue
        ends = until(gang)
        times = [claim.status.allocation.allocation_timestamp or "" for claim in held if claim.status.allocation]
        found.append(
            Reservation(
                kind="gang",
                namespace=gang.namespace,
                name=gang.name,
                holder=str(gang),
                pod=pod.key,
                node=inventory.assumed_node(pod.metadata.uid) or node_of(inventory, devices),
                devices=tuple(map(str, devices)),
                since=min(filter(None, times), default=""),
                until=ends.isoformat(timespec="seconds") if ends is not None else "",
            )
        )
    found.sort(key=lambda each: (each.holder, each.pod))
    return tuple(found)


def node_of(inventory: Inventory, devices: Iterable[DeviceId]) -> str:
    """Return the node of the first of these devices that is published; empty if there is none."""
    for device in devices:
        row = inventory.devices.row_of(device)
        if row >= 0 and (node := int(inventory.devices.node[row])) >= 0:
            return inventory.nodes.names[node]
    return ""
