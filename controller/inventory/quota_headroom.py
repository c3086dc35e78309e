"""How much of a namespace's quotas for cards is used, and what is left: for people and for decisions.

Made by the inventory (`QuotaBook.lines`, `QuotaBook.headroom`) from its limits and its count. The
lines go to `status --quota`, metrics, the dashboard and the annotation on the quota; the headroom
to the search (card by card) and to `decide` (columns of cards). Pure.

A resource that a card does not consume is no reason to refuse the card, even if its quota is
already exceeded.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from controller.inventory.model import Device
from controller.inventory.quota_limits import Limit
from hami_dra.vendors.quotas import QuotaName
from hami_dra.vendors.registry import quotas_of

Cost = tuple[int, ...]
"""Amount by limited resource, in the order of `QuotaHeadroom.names`."""


class QuotaLine(Struct, frozen=True, rename="camel"):
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
    kind: str = "limit"
    """Or `guarantee`: `hard` is what the namespace is owed."""

    @classmethod
    def of(cls, namespace: str, limit: Limit, used: int, kind: str = "limit") -> "QuotaLine":
        """`used`: in grains."""
        name = limit.name
        hard = limit.grains // name.per_unit
        return cls(namespace, limit.quota, name.key, name.unit, name.in_units(used), hard, kind)


def owed(namespace: str, lines: Iterable[QuotaLine]) -> str:
    """Return what the namespace has of what it is owed, for people; empty: nothing is said of it."""
    return ", ".join(
        f"it has {line.used} of {line.resource} and is owed {line.hard}"
        for line in lines
        if line.namespace == namespace
    )


class QuotaHeadroom(Struct, frozen=True):
    """What the quotas of one namespace leave, in grains. One amount for each limited resource."""

    names: tuple[QuotaName, ...]
    left: Cost
    """What the tightest quota for the resource leaves; below 0 if a quota is exceeded."""
    limits: Cost
    """What the tightest quota for the resource allows in all."""
    nothing: Cost
    notes: tuple[tuple[str, str], ...]
    """(resource, text for people: which quota limits it, and how much of it is used), the tightest first."""

    @classmethod
    def of(cls, namespace: str, limits: Sequence[Limit], used: Mapping[str, int]) -> "QuotaHeadroom":
        """`limits`: at least one; `used`: grains by resource."""
        left: dict[QuotaName, int] = {}
        allowed: dict[QuotaName, int] = {}
        notes = []
        for limit in limits:
            name = limit.name
            in_use = used.get(name.resource, 0)
            rest = limit.grains - in_use
            left[name] = min(rest, left.get(name, rest))
            allowed[name] = min(limit.grains, allowed.get(name, limit.grains))
            line = QuotaLine.of(namespace, limit, in_use)
            note = (
                f"ResourceQuota {namespace}/{limit.quota} allows {name.figure(line.hard)} of {name.key}, "
                f"of which {line.used} {'is' if line.used == 1 else 'are'} used"
            )
            notes.append((rest, name.resource, note))
        sorted_notes = tuple([note[1:] for note in sorted(notes)])
        return cls(tuple(left), tuple(left.values()), tuple(allowed.values()), (0,) * len(left), sorted_notes)

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

    def allows(self, spent: Sequence[int], cost: Sequence[int], reserve: Sequence[int]) -> bool:
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
