"""Quota headroom of a namespace for our vendors' cards, and the cost of one card.

Created by `controller.scheduling.decide` once for each decision in a namespace that has a quota for
cards; for all others `headroom_of` returns None and no further check is made. Read by the search
(card by card) and by `decide` (columns of cards). In: the inventory. Out: vectors of whole numbers,
one for each limited resource. Pure.

A resource that a card does not consume is no reason to refuse the card, even if its quota is
already exceeded.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.model import Device
from hami_dra.vendors.quotas import QuotaName
from hami_dra.vendors.registry import quotas_of

Cost = tuple[int, ...]
"""Amount by limited resource, in the order of `QuotaHeadroom.names`."""


class QuotaHeadroom(Struct, frozen=True):
    namespace: str
    names: tuple[QuotaName, ...]
    left: Cost
    """What the tightest quota for the resource leaves; below 0 if a quota is exceeded."""
    limits: Cost
    """What the tightest quota for the resource allows in all."""
    nothing: Cost
    notes: tuple[tuple[str, str], ...]
    """(resource, text for people: which quota limits it, and how much of it is used), the tightest first."""

    def cost(self, device: Device, taken: Mapping[str, int], *, shared: bool) -> Cost:
        """Return the cost of one holding of the device.

        `taken`: capacity → amount consumed; a holding that is not `shared` consumes all of it.
        """
        quotas = quotas_of(device.id.driver)
        if quotas is None:
            return self.nothing
        whole = not shared or quotas.is_whole(taken, device.totals)
        return tuple(
            name.of(taken, whole=whole, model=device.model) if name in quotas.names else 0 for name in self.names
        )

    def allows(self, spent: Sequence[int], cost: Cost, reserve: Sequence[int]) -> bool:
        """Return whether `cost` may be added to what the decision has spent.

        `reserve`: what must be left for later requests.
        """
        return all(
            not more or before + more + later <= left
            for before, more, later, left in zip(spent, cost, reserve, self.left, strict=True)
        )

    def exceeded(self, spent: Sequence[int], cost: Cost) -> list[str]:
        """Return the resources for which `cost` is too high."""
        return [
            name.resource
            for name, before, more, left in zip(self.names, spent, cost, self.left, strict=True)
            if more and before + more > left
        ]


def headroom_of(inventory: Inventory, namespace: str) -> QuotaHeadroom | None:
    """Return the headroom, or None if no quota of the namespace is about cards."""
    limits = inventory.quotas.limits(namespace)
    if not limits:
        return None
    used = inventory.quotas.used(namespace)
    left: dict[QuotaName, int] = {}
    allowed: dict[QuotaName, int] = {}
    notes = []
    for limit in limits:
        name = limit.name
        in_use = used.get(name.resource, 0)
        left[name] = min(limit.grains - in_use, left.get(name, limit.grains - in_use))
        allowed[name] = min(limit.grains, allowed.get(name, limit.grains))
        units = name.in_units(in_use)
        note = (
            f"ResourceQuota {namespace}/{limit.quota} allows {name.figure(limit.grains // name.per_unit)} of {name.key}, "
            f"of which {units} {'is' if units == 1 else 'are'} used"
        )
        notes.append((limit.grains - in_use, name.resource, note))
    return QuotaHeadroom(
        namespace,
        tuple(left),
        tuple(left.values()),
        tuple(allowed.values()),
        (0,) * len(left),
        tuple([note[1:] for note in sorted(notes)]),
    )
