"""The shares of each card granted to containers, from the prepared claims: for metrics, and for the
readings of simulated cards. Pure.

Used by `driver_runtime` and `wiring`. In: records of preparation, and the devices of the node. A
claim whose containers were not known when it was prepared counts on its cards, without a container.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from msgspec import Struct

from hami_dra.api import names
from hami_dra.driver.prepare import ContainerView, GrantedDevice, Inventory, Partition, Record, edits_of
from hami_dra.monitor.simulated import Load
from hami_dra.monitor.usage import GrantedContainer

_WHOLE = 100
"""Percent of the cores of a card."""
_PLAUSIBLE = 2
"""No tenant uses more than this many times the memory of the card, or of the share where cards are oversubscribed."""


class CardTenant(Struct, frozen=True):
    """The share of one card that one container has."""

    namespace: str
    pod: str
    container: str
    number: int
    """Number of the card, as programs in the container count."""
    card: str
    """Uuid."""
    memory: int
    """Bytes."""
    cores: int
    """Percent of the card; 0: not limited."""
    view: str = ""
    """Name of the container's view; empty where several containers share it."""


def tenants(records: Mapping[str, Record], inventory: Inventory | None) -> list[CardTenant]:
    """Return the tenants by namespace, pod, container, number.

    Each is listed once, even while the claim of an earlier pod of the same name is not unprepared
    yet.
    """
    if inventory is None:
        return []
    views = {view.name: (record.namespace, view) for record in records.values() for view in record.views}
    found = [
        CardTenant(
            namespace, pod, container, number, card, memory, min(cores, _WHOLE), name if len(view.users) == 1 else ""
        )
        for name, (namespace, view) in views.items()
        for number, (card, memory, cores) in enumerate(_cards(view, records, inventory))
        for pod, container in view.users
    ]
    by_key = {(each.namespace, each.pod, each.container, each.number, each.card): each for each in found}
    return [by_key[key] for key in sorted(by_key)]


def granted_containers(records: Mapping[str, Record], inventory: Inventory | None) -> list[GrantedContainer]:
    """Return the containers that alone have their edits, each with these and its cards, by view."""
    if inventory is None:
        return []
    edits = {view: made for record in records.values() for view, made in edits_of(record).items()}
    views = {view.name: (record.namespace, view) for record in records.values() for view in record.views}
    found = []
    for name, (namespace, view) in sorted(views.items()):
        if len(view.users) == 1 and name in edits:
            ((pod, container),) = view.users
            env, mounts = edits[name]
            cards = {
                card: max(memory, _card_memory(card, inventory)) for card, memory, _ in _cards(view, records, inventory)
            }
            label = f"{namespace}/{pod}, container {container}"
            most = {card: _PLAUSIBLE * memory for card, memory in cards.items()}
            found.append(GrantedContainer(view=name, label=label, env=env, mounts=mounts, cards=most))
    return found


class HeldPartition(Struct, frozen=True):
    """A partition that exists, and a container that has it."""

    namespace: str
    pod: str
    container: str
    """All three are empty where the claim's containers were not known."""
    number: int
    """Its number in the container."""
    index: int
    """Number of the card on the node."""
    partition: Partition


def held_partitions(records: Mapping[str, Record], inventory: Inventory | None) -> list[HeldPartition]:
    """Return each partition that exists once for each container that has it, in order.

    Partitions that the container runtime makes, and those of records of older drivers, have no ids
    to name.
    """
    users: dict[tuple[str, str], list[ContainerView]] = {}
    for record in records.values():
        for view in record.views:
            for asked in view.asked:
                users.setdefault(asked, []).append(view)
    counts: dict[tuple[str, str, str], int] = {}
    found = []
    for record, held in _by_place(records):
        part, device = held.partition, inventory.of(held) if inventory is not None else None
        if part is None or part.id is None or part.compute_id is None or device is None or held.admin:
            continue
        views = users.get((record.uid, held.parent), ())
        pairs = sorted({pair for view in views for pair in view.users}) or [("", "")]
        for pod, container in pairs:
            key = record.namespace, pod, container
            counts[key] = number = counts.get(key, -1) + 1
            found.append(
                HeldPartition(record.namespace if pod else "", pod, container, number, device.card.index, part)
            )
    return sorted(found, key=lambda each: (each.namespace, each.pod, each.container, each.number, each.partition.uuid))


def _by_place(records: Mapping[str, Record]) -> list[tuple[Record, GrantedDevice]]:
    def place(pair: tuple[Record, GrantedDevice]) -> tuple[tuple[int, int], str, int]:
        _, held = pair
        return held.numbers or (0, 0), held.card, held.partition.start if held.partition else 0

    return sorted(((record, held) for record in records.values() for held in record.held), key=place)


def held_profiles(records: Mapping[str, Record]) -> dict[tuple[str, str], float]:
    """Return (uuid of a card, profile) → containers that may have a partition of that profile, which
    the container runtime makes for each; inf where a claim's containers are not known, or where pods
    may join it: then the driver is not called again.
    """
    views = {view.name: view for record in records.values() for view in record.views}
    at_once: Counter[tuple[str, str]] = Counter()
    for view in views.values():
        at_once.update(dict.fromkeys(view.asked, view.at_once or len(view.users)))
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for record in records.values():
        for held in record.held:
            if held.partition is not None and held.partition.by_runtime and not held.admin:
                key = held.card, held.partition.profile
                found[key] += (at_once[record.uid, held.parent] if record.owner_pod else 0) or math.inf
    return found


def loads(records: Mapping[str, Record], inventory: Inventory | None) -> dict[str, Load]:
    """Return the granted shares of each card, by uuid."""
    found: dict[str, Load] = {}
    for record in records.values() if inventory is not None else ():
        for held in record.held:
            if held.admin or inventory is None:
                continue
            before = found.get(held.card, Load())
            cores = held.consumed.get(names.CAP_CORES, _WHOLE if held.whole else 0)
            found[held.card] = Load(before.memory + _memory(held, inventory), before.cores + cores, before.tenants + 1)
    return found


def _cards(view: ContainerView, records: Mapping[str, Record], inventory: Inventory) -> Iterator[tuple[str, int, int]]:
    """Yield (uuid, bytes, percent) of each card that the container sees, in the order of its indices."""
    by_index: dict[int, tuple[str, int, int]] = {}
    for uid, request in view.asked:
        for held in records[uid].held if uid in records else ():
            device = inventory.devices.get(held.device)
            if held.parent != request or held.admin or device is None:
                continue
            _, memory, cores = by_index.get(device.card.index, ("", 0, 0))
            limit = 0 if held.whole else held.consumed.get(names.CAP_CORES, 0)
            by_index[device.card.index] = held.card, memory + _memory(held, inventory), cores + limit
    yield from (by_index[index] for index in sorted(by_index))


def _card_memory(uuid: str, inventory: Inventory) -> int:
    return next((device.card.memory for device in inventory.devices.values() if device.card.uuid == uuid), 0)


def _memory(held: GrantedDevice, inventory: Inventory) -> int:
    """Return the granted memory; for a device that is not shared, all of its memory."""
    device = inventory.devices.get(held.device)
    return held.consumed.get(names.CAP_MEMORY, device.capacity.get(names.CAP_MEMORY, 0) if device else 0)
