"""Builds the overview of a cluster: cards with their tenants, nodes, namespaces, packing.

Called by `hami-dra status` and `doctor`, the dashboard and the metrics of pods. In: an inventory,
all claims, all pods. Out: an `Overview`. Pure. The used amounts of a card come from the ledger
(including assumed allocations, regardless of who wrote them); the tenants come from the claims, so
an allocation that is being written counts a moment before its tenant appears.

Cards are values, built one by one: some 10 microseconds each. Callers that need figures only call
`packing`; callers that show one node pass `nodes`.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Final

import numpy as np

from controller.cluster.pods.gang_key import GangKey
from controller.inventory import UNNUMBERED, DeviceId, Inventory
from controller.views.overview.card_table import CORDONED, NO_CARD, READY, CardTable, driver_rank, troubles, vendor_name
from controller.views.overview.model import Card, Held, NodeView, Overview, Packing, Reservation, Vanished
from controller.views.overview.namespace_usage import namespaces
from controller.views.overview.packing import packing
from controller.views.overview.reservations import device_id, reservations
from controller.views.overview.tenancies import Tenancies
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.resource import ResourceClaim

_AMOUNTS: Final = ("memory_total", "memory_used", "cores_total", "cores_used", "shares_total", "shares_used")


def overview(
    inventory: Inventory,
    claims: Iterable[ResourceClaim],
    pods: Iterable[Pod],
    *,
    nodes: Collection[str] | None = None,
    vendors: Collection[str] | None = None,
    table: CardTable | None = None,
    gang_of: Callable[[Pod], GangKey | None] | None = None,
    with_packing: bool = True,
    held_places: Iterable[Reservation] = (),
) -> Overview:
    """Return the overview of a cluster.

    `nodes`, `vendors`: only the cards of these; nodes and namespaces then count only those cards.
    Packing, and devices held without being published, always cover everything. `table`: a table
    kept by the caller, on the same inventory. `gang_of`: the gang of a pod, for `reservations`;
    None: there are none. `with_packing`: whether to compute the packing, which reads all cards.
    `held_places`: what the leader says it holds, where the inventory does not have it assumed.
    """
    if gang_of is not None:
        claims, pods = list(claims), list(pods)
    table = table or CardTable(inventory)
    held_places = tuple(held_places)
    table.reserved = [device_id(device) for each in held_places for device in each.devices]
    packed: tuple[Packing, ...] = ()
    if with_packing:
        packed = packing(table)
    else:
        table.refresh()
    gone = inventory.vanished.all()
    tenancies = Tenancies(claims, pods, gone)
    cards = _cards(table, tenancies, nodes, vendors)
    derived = _reservations(inventory, claims, pods, gang_of) if gang_of is not None else ()
    kept = {each.pod: each for each in (*derived, *held_places) if nodes is None or each.node in nodes}
    return Overview(
        cards=cards,
        nodes=_nodes(table, cards),
        namespaces=namespaces(cards),
        packing=packed,
        unpublished=_unpublished(inventory, tenancies),
        problems=dict(inventory.problems),
        vanished=tuple(
            Vanished(
                namespace=each.namespace,
                claim=each.name,
                uid=each.uid,
                node=each.node,
                pods=tuple(holder.key for holder in each.holders),
                devices=tuple(map(str, each.devices)),
            )
            for each in gone
        ),
        reservations=tuple(sorted(kept.values(), key=lambda each: (each.holder, each.pod))),
    )


def _reservations(
    inventory: Inventory,
    claims: Iterable[ResourceClaim],
    pods: Iterable[Pod],
    gang_of: Callable[[Pod], GangKey | None],
) -> tuple[Reservation, ...]:
    by_key = {claim.key: claim for claim in claims}
    users: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        for key in claim_keys(pod):
            users[key].append(pod)
    return reservations(inventory, pods, by_key.get, lambda key: users[key], gang_of)


def _cards(
    table: CardTable, tenancies: Tenancies, nodes: Collection[str] | None, vendors: Collection[str] | None
) -> tuple[Card, ...]:
    devices = table.inventory.devices
    parts = _held_parts(table, tenancies)
    free = table.free
    found = []
    for row in _rows(table, nodes):
        device = devices.device(row)
        profile = device.profile
        node, place = table.node_name(row), int(devices.node[row])
        state = int(table.node_states[place]) if place >= 0 else None
        vendor = vendor_name(device.id.driver)
        if (nodes is not None and node not in nodes) or (vendors is not None and vendor not in vendors):
            continue
        out_of_service, faults = troubles(device)
        tenants = tenancies.of(device.id, device)
        for part in parts.get(row, ()):
            tenants += tenancies.of(part, devices.device(devices.row_of(part)))
        found.append(
            Card(
                node=node,
                driver=device.id.driver,
                vendor=vendor,
                pool=device.id.pool,
                device=device.id.device,
                uuid=device.string_attribute(profile.uuid),
                product=device.string_attribute(profile.product),
                index=None if device.index == UNNUMBERED else device.index,
                numa=int(devices.numa[row]),
                island=int(table.island[row]),
                links=device.string_attribute(profile.links),
                memory_total=int(devices.memory_total[row]),
                memory_used=int(table.memory_used[row]),
                cores_total=int(devices.cores_total[row]),
                cores_used=int(table.cores_used[row]),
                shares_total=int(devices.slots_total[row]),
                shares_used=int(table.slots_used[row]),
                health="; ".join(faults),
                cordoned=out_of_service or state == CORDONED,
                exclusive=bool(devices.exclusive[row]),
                parts_used=int(table.parts_used[row]),
                free=bool(free[row]),
                tenants=tenants,
            )
        )
    found.sort(
        key=lambda card: (
            card.node,
            driver_rank(card.driver),
            UNNUMBERED if card.index is None else card.index,
            card.pool,
            card.device,
        )
    )
    return tuple(found)


def _rows(table: CardTable, nodes: Collection[str] | None) -> list[int]:
    """Return the rows of all cards, or those on `nodes` and of nodes that only a slice names."""
    rows = table.cards
    if nodes is not None:
        place = table.inventory.devices.node[rows]
        rows = rows[(place < 0) | np.isin(place, [table.inventory.nodes.index_of(name) for name in nodes])]
    found: list[int] = rows.tolist()
    return found


def _held_parts(table: CardTable, tenancies: Tenancies) -> dict[int, list[DeviceId]]:
    """Return row of a card → its parts that are held, by name."""
    found: dict[int, list[DeviceId]] = defaultdict(list)
    for device in sorted(tenancies.devices()):
        row = table.inventory.devices.row_of(device)
        if row >= 0 and table.parent[row] != NO_CARD:
            found[int(table.parent[row])].append(device)
    return found


def _nodes(table: CardTable, cards: Iterable[Card]) -> tuple[NodeView, ...]:
    by_node: dict[str, list[Card]] = defaultdict(list)
    for card in cards:
        if card.node:
            by_node[card.node].append(card)
    return tuple(_node(table, name, members) for name, members in by_node.items())


def _node(table: CardTable, name: str, cards: list[Card]) -> NodeView:
    nodes = table.inventory.nodes
    row = nodes.index_of(name)
    state = int(table.node_states[row]) if row >= 0 else None
    cordoned = row >= 0 and nodes.node(row).spec.unschedulable
    return NodeView(
        node=name,
        there=row >= 0,
        ready=state in {READY, CORDONED},
        cordoned=cordoned,
        vendors=tuple(dict.fromkeys(card.vendor for card in cards)),
        products=tuple(dict.fromkeys(card.product for card in cards if card.product)),
        cards=len(cards),
        free_cards=sum(card.free for card in cards),
        troubled_cards=sum(bool(card.health) or (card.cordoned and not cordoned) for card in cards),
        **{name: sum(getattr(card, name) for card in cards) for name in _AMOUNTS},
    )


def _unpublished(inventory: Inventory, tenancies: Tenancies) -> tuple[Held, ...]:
    return tuple(
        Held(device=str(device), tenants=tenants)
        for device in sorted(tenancies.devices())
        if inventory.devices.row_of(device) < 0 and (tenants := tenancies.of(device, None))
    )
