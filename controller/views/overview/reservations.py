"""Devices that are kept for pods which do not run yet: why a device is not free although nothing runs on it.

Used by `read` and the dashboard. In: an inventory, pods, claims, gangs. Out: `Reservation`s. Pure.
The waiting members of gangs have them: their devices are assumed or allocated while the gang is
committed, or kept for those of its members that miss (`--gang-hold`). So has a pod or gang for which a
place is held (`reconcile.preemption`): only the leader knows these, and writes them into an annotation of
its Lease (`encoded`), from which `hami-dra status` reads them (`decoded`).
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, Literal, NamedTuple

import msgspec

from controller.cluster.pods.gang_key import GangKey
from controller.inventory import DeviceId, Inventory
from controller.views.overview.card_table import NO_CARD, CardTable
from controller.views.overview.model import Reservation
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_bound, is_pending, is_probe
from hami_dra.api.resource import ResourceClaim

_MOST_LENGTH: Final = 64 * 1024
"""Characters of the annotation: longer ones are not read, and what does not fit is left out."""


class Held(NamedTuple):
    """What the leader knows of what is kept for a gang, or for the pod with a UID."""

    kind: Literal["gang", "preemption", "moves", "reserved"]
    since: datetime | None
    until: datetime | None
    """When it is given back at the latest."""
    moves_begin: datetime | None = None
    """When pods that are too young now may move for it."""


HeldFor = Callable[[GangKey | str], Held | None]


def unknown(_key: GangKey | str) -> Held | None:
    """Return None: it is not known what the leader holds."""
    return None


def reservations(
    inventory: Inventory,
    pods: Iterable[Pod],
    claim_of: Callable[[str], ResourceClaim | None],
    pods_of: Callable[[str], Iterable[Pod]],
    gang_of: Callable[[Pod], GangKey | None],
    *,
    held_for: HeldFor = unknown,
) -> tuple[Reservation, ...]:
    """Return what is kept for the pods that wait, by gang and pod.

    `pods`: at least those that wait for a node. `claim_of`, `pods_of`: the claim with a key, the
    pods that refer to it.
    """
    found = []
    for pod in pods:
        if not is_pending(pod) or not pod.spec.resource_claims or is_probe(pod):
            continue
        gang = gang_of(pod)
        kept = held_for(gang or pod.metadata.uid)
        if gang is None and kept is None:
            continue
        held = [
            claim
            for key in claim_keys(pod)
            if (claim := claim_of(key)) is not None and not any(map(is_bound, pods_of(key)))
        ]
        devices = [holding.device for claim in held for holding in inventory.usage.counted(claim.metadata.uid)]
        if not devices:
            continue
        times = [claim.status.allocation.allocation_timestamp or "" for claim in held if claim.status.allocation]
        found.append(
            Reservation(
                kind=kept.kind if kept is not None else "gang",
                namespace=pod.metadata.namespace if gang is None else gang.namespace,
                name=pod.metadata.name if gang is None else gang.name,
                holder=f"pod {pod.key}" if gang is None else str(gang),
                pod=pod.key,
                node=inventory.assumed_node(pod.metadata.uid) or node_of(inventory, devices),
                devices=tuple(map(str, devices)),
                since=min(filter(None, times), default=_written(kept.since if kept is not None else None)),
                until=_written(kept.until if kept is not None else None),
                moves_begin=_written(kept.moves_begin if kept is not None else None),
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


def _written(moment: datetime | None) -> str:
    return moment.isoformat(timespec="seconds") if moment is not None else ""


def encoded(found: Iterable[Reservation]) -> str:
    """Return them as the annotation of the Lease; empty if there are none."""
    texts, length = [], 2
    for each in found:
        text = msgspec.json.encode(each).decode()
        if length + len(text) < _MOST_LENGTH:
            texts.append(text)
            length += len(text) + 1
    return f"[{','.join(texts)}]" if texts else ""


def decoded(text: str) -> tuple[Reservation, ...]:
    """Return what `encoded` wrote; what it cannot have written counts as empty."""
    if not 0 < len(text) <= _MOST_LENGTH:
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[Reservation, ...])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return ()


def by_card(found: Iterable[Reservation], table: CardTable) -> Mapping[str, tuple[Reservation, ...]]:
    """Return the reservations by `driver/pool/device` of the card; parts count as it. `table`: refreshed."""
    cards: dict[str, dict[Reservation, None]] = {}
    for each in found:
        for device in each.devices:
            cards.setdefault(_card_of(device, table), {})[each] = None
    return {card: tuple(some) for card, some in cards.items()}


def device_id(text: str) -> DeviceId:
    """Return the device that `driver/pool/device` names; a pool may contain slashes."""
    driver, _, rest = text.partition("/")
    pool, _, device = rest.rpartition("/")
    return DeviceId(driver, pool, device)


def _card_of(device: str, table: CardTable) -> str:
    devices = table.inventory.devices
    row = devices.row_of(device_id(device))
    parent = int(table.parent[row]) if row >= 0 else NO_CARD
    return device if parent == NO_CARD else str(devices.device(parent).id)
