"""Usage of each quota for cards, as lines for people and metrics.

Called by `hami-dra status --quota`, metrics, the dashboard, and `reconcile` (the annotation on the
quota). In: the inventory. Out: `QuotaLine`s. Pure; reads only the limited namespaces.
"""

from collections.abc import Iterable

import msgspec

from controller.scheduling.inventory.inventory import Inventory


class QuotaLine(msgspec.Struct, frozen=True, rename="camel"):
    """One key of one ResourceQuota."""

    namespace: str
    quota: str
    """Name of the ResourceQuota."""
    resource: str
    """The key as the quota spells it: `limits.nvidia.com/gpumem`."""
    unit: str
    """The unit of `used` and `hard`: cards, MiB, GiB, percent (100 a card), NeuronCores."""
    used: int
    """Amount that allocated claims of the namespace hold, including those being written now. Rounded up to the unit."""
    hard: int
    """The limit, rounded down to the unit. 0: nothing may be allocated."""


def quota_lines(inventory: Inventory, namespaces: Iterable[str] | None = None) -> list[QuotaLine]:
    """Return lines by namespace, then quota, then in the order in which the quota lists its keys.

    `namespaces`: only these; None: all that have a quota for cards.
    """
    book = inventory.quotas
    wanted = book.namespaces if namespaces is None else sorted(set(namespaces))
    found = []
    for namespace in wanted:
        used = book.used(namespace)
        for limit in book.limits(namespace):
            name = limit.name
            found.append(
                QuotaLine(
                    namespace=namespace,
                    quota=limit.quota,
                    resource=name.key,
                    unit=name.unit,
                    used=name.in_units(used.get(name.resource, 0)),
                    hard=limit.grains // name.per_unit,
                )
            )
    return found
