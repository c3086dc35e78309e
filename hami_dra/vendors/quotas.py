"""Quotas of a namespace for a vendor's cards: the ResourceQuota keys of each vendor, and how they are counted.

Read by `controller.inventory.quotas` (usage and headroom) and `controller.webhook.quota` (what can
never fit). In: capacities of one allocated card. Out: whole numbers. Pure.

A key is `limits.` and one of the old resource names (HAMi pkg/device/quota.go, IsManagedQuota).
HAMi enforces those of memory and cores; here the names that count cards are enforced too, as shown
in the release notes of HAMi 2.7.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from msgspec import Struct

from hami_dra.api import names
from hami_dra.api.quantity import NANO, Format, Quantity

PREFIX: Final = "limits."
MIB: Final = 1 << 20
GIB: Final = 1 << 30
ALL_OF_A_CARD: Final = 100
"""Percent."""
_ALL_OF_BOTH: Final = (names.CAP_MEMORY, names.CAP_CORES)


class Counted(Enum):
    """The holdings of a card that a name counts."""

    EVERY = "every"
    WHOLE = "whole"
    """Holdings of all of a card."""
    PART = "part"
    """Holdings of a part of a card."""


class QuotaName(Struct, frozen=True):
    """One old resource name as counted by a quota, in whole grains: each card's amount is rounded down to one."""

    resource: str
    """`nvidia.com/gpumem`; the key of the quota is `limits.` and this."""
    capacity: str = ""
    """The published capacity that is added up; empty: the cards themselves."""
    unit: str = "devices"
    """Unit of a bare number in the quota."""
    grain: int = 1
    """In the unit of the capacity (memory: bytes)."""
    per_unit: int = 1
    """Grains in one unit."""
    counted: Counted = Counted.EVERY
    model: str = ""
    """Only cards of this series (`DriverProfile.model`); empty: any."""

    @property
    def key(self) -> str:
        return PREFIX + self.resource

    def limit(self, hard: Quantity) -> int:
        """Return grains. A number with a binary suffix means bytes if the name is about memory (`10Gi` of `gpumem`)."""
        if self.grain > 1 and hard.format is Format.BINARY_SI and hard.nanos >= self.grain * NANO:
            return hard.nanos // (self.grain * NANO)
        return hard.nanos * self.per_unit // NANO

    def in_units(self, grains: int) -> int:
        """Return units, rounded up, so that nothing is left where nothing can be taken."""
        return -(-grains // self.per_unit)

    def figure(self, units: int) -> str:
        """Return an amount with its unit: `1 card`, `3000 MiB`."""
        return f"{units} {self.unit.removesuffix('s') if units == 1 else self.unit}"

    def is_about(self, model: str) -> bool:
        """Return whether it counts cards of this series."""
        return self.model in ("", model)

    def counts(self, *, whole: bool) -> bool:
        return self.counted is Counted.EVERY or (self.counted is Counted.WHOLE) is whole

    def of(self, taken: Mapping[str, int], *, whole: bool, model: str) -> int:
        """Return the amount of one holding of one card. `taken`: capacity → amount, rounded up to its whole units."""
        if not self.is_about(model) or not self.counts(whole=whole):
            return 0
        return taken.get(self.capacity, 0) // self.grain if self.capacity else 1


def cards(resource: str, counted: Counted = Counted.EVERY, *, model: str = "") -> QuotaName:
    return QuotaName(resource, counted=counted, model=model)


def mebibytes(resource: str, *, model: str = "") -> QuotaName:
    return QuotaName(resource, names.CAP_MEMORY, "MiB", grain=MIB, model=model)


def gibibytes(resource: str) -> QuotaName:
    """Return a name whose bare number in the quota is GiB; cards are counted in MiB."""
    return QuotaName(resource, names.CAP_MEMORY, "GiB", grain=MIB, per_unit=GIB // MIB)


def percent(resource: str) -> QuotaName:
    """Return a name that counts percent: 100 a card."""
    return QuotaName(resource, names.CAP_CORES, "percent")


class Quotas(Struct, frozen=True):
    """The quota names of one vendor."""

    names: tuple[QuotaName, ...]
    whole_by: tuple[str, ...] = _ALL_OF_BOTH
    """A holding of all of these capacities of a card holds the card."""

    def is_whole(self, taken: Mapping[str, int], totals: Mapping[str, int]) -> bool:
        return all(taken.get(name, 0) >= totals.get(name, 0) for name in self.whole_by)

    def at_least(
        self, count: int, named: Mapping[str, int], percent: int | None, *, exact: bool, model: str = ""
    ) -> dict[str, int]:
        """Return resource → grains that a request takes on any card; those of 0 left out.

        `named`: capacity → amount of each of `count` cards; `percent`: of their memory, instead.
        Amounts known only once a card is chosen (a percentage, memory that is not named) count 0,
        as in HAMi's webhook. `exact`: the cards have no more than that. `model`: their series.
        """
        cores = named.get(names.CAP_CORES, ALL_OF_A_CARD) if names.CAP_CORES in self.whole_by else ALL_OF_A_CARD
        amounts_named = any(name in named for name in self.whole_by if name != names.CAP_CORES)
        whole = exact or (percent is None and not amounts_named and cores >= ALL_OF_A_CARD)
        part = percent is not None or (cores < ALL_OF_A_CARD and not exact)
        found: dict[str, int] = {}
        for name in self.names:
            known = name.counted is Counted.EVERY or (whole if name.counted is Counted.WHOLE else part)
            each = named.get(name.capacity, 0) // name.grain if name.capacity else 1
            if known and each and name.is_about(model):
                found[name.resource] = count * each
        return found

    def charge(self, taken: Mapping[str, int], *, whole: bool, model: str = "") -> dict[str, int]:
        """Return resource → grains, not 0, that one holding of one card adds. `model`: the series of the card."""
        amounts = {name.resource: name.of(taken, whole=whole, model=model) for name in self.names}
        return {resource: amount for resource, amount in amounts.items() if amount}
