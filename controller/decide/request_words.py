"""One request of a refused pod in words: what it asks for of each device, and of how many.

Called by `why_refused` and its parts. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from msgspec import Struct

from controller.allocation.prefilter import RequestColumns
from controller.allocation.request import ResolvedRequest
from controller.inventory.columns import DeviceColumns
from controller.inventory.inventory import Inventory
from controller.inventory.model import value_of
from controller.reasons.reason import Reason
from controller.scoring.policies import Stated
from hami_dra.api import names
from hami_dra.api.arrays import Ints
from hami_dra.api.printable import counted, listed, mebibytes
from hami_dra.vendors import device_codes
from hami_dra.vendors.preferences import InvalidPreference
from hami_dra.vendors.protocol import CardRequest, DriverProfile
from hami_dra.vendors.registry import VENDORS


class Role(Struct, frozen=True):
    """One of the amounts that a request takes of a device."""

    kind: str
    """As the columns of devices and requests name it."""
    code: str
    """The reason code of a device that has too little of it."""
    capacity: str
    """The field of a `DriverProfile` with the name of the capacity that a driver publishes it as."""

    def text(self, amount: int) -> str:
        """Return an amount: memory in MiB, and what is published in other units as it is.

        >>> [ROLES[0].text(amount) for amount in (80000 << 20, (1 << 20) + (1 << 19), 24)], ROLES[1].text(1)
        (['80000 MiB', '1.5 MiB', '24'], '1 core')
        """
        if self.kind == "memory":
            return str(amount) if 0 < amount < _MIB else mebibytes(amount)
        return counted(amount, self.kind.removesuffix("s"))

    def total(self, devices: DeviceColumns) -> Ints:
        total: Ints = getattr(devices, f"{self.kind}_total")
        return total

    def used(self, devices: DeviceColumns) -> Ints:
        used: Ints = getattr(devices, f"{self.kind}_used")
        return used

    def asked(self, ask: CardRequest) -> Ints:
        asked: Ints = getattr(ask, self.kind)
        return asked


_MIB: Final = 1 << 20
ROLES: Final = (
    Role("memory", device_codes.CARD_INSUFFICIENT_MEMORY, "memory"),
    Role("cores", device_codes.CARD_INSUFFICIENT_CORE, "cores"),
    Role("slots", device_codes.CARD_TIME_SLICING_EXHAUSTED, "shares"),
)
REQUESTS_NAMED: Final = 4
"""Requests that a sentence names."""


@dataclass(frozen=True, slots=True)
class RequestWords:
    inventory: Inventory
    view: ResolvedRequest
    column: RequestColumns
    annotations: Sequence[tuple[str, str]]
    """(name, value) of those that allow only some devices."""
    called: str
    """`metax-0`; empty if the pod has only one request."""
    count: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", max(self.view.count, 1))

    def is_whole(self, row: int) -> bool:
        """Return whether the request takes all memory or all cores of a device that it could get."""
        devices = self.inventory.devices
        if not devices.shared[row]:
            return True
        ask = self._ask(row)
        return any(
            0 < int(role.total(devices)[row]) <= int(role.asked(ask)[0]) for role in ROLES if role.kind != "slots"
        )

    def takes_most(self, role: Role) -> bool:
        """Return whether it takes more than half of an amount of each device that it could get: no two
        such requests fit on one.
        """
        devices, rows = self.inventory.devices, self.column.idle().possible
        over_half = 2 * role.asked(self.column.ask(rows)) > role.total(devices)[rows]
        return not self.view.admin_access and bool((over_half | ~devices.shared[rows]).all())

    def keeps_off(self, other: "RequestWords", role: Role) -> bool:
        """Return whether the two take more than all of an amount of each device that both could get."""
        devices = self.inventory.devices
        rows = np.intersect1d(self.column.idle().possible, other.column.idle().possible)
        together = role.asked(self.column.ask(rows)) + role.asked(other.column.ask(rows))
        over = (together > role.total(devices)[rows]) | ~devices.shared[rows]
        return not (self.view.admin_access or other.view.admin_access) and bool(over.all())

    def devices(self, row: int) -> str:
        """Return what is requested: `4 devices with 2000 MiB each on one node`. `row`: of a device
        that could be given.
        """
        return f"{devices_text(self.count, self.kind_of_device(row))}{' on one node' if self.count > 1 else ''}"

    def kind_of_device(self, row: int) -> tuple[str, str]:
        """Return what one of the devices is called, and what the request takes of it: `device`,
        `20000 MiB and 10 cores`.
        """
        if self.is_whole(row):
            return "whole device", ""
        ask = self._ask(row)
        amounts = [role.text(amount) for role in ROLES[:2] if (amount := int(role.asked(ask)[0]))]
        return "device", " and ".join(amounts)

    def cores_left_out(self, row: int) -> str:
        """Return the fix for a claim that asks for a part of the memory and names no cores, which
        means all of them; empty for any other.
        """
        named = self.view.capacity_requests
        if names.CAP_MEMORY not in named or names.CAP_CORES in named or not self.inventory.devices.cores_total[row]:
            return ""
        return f'The request names no {names.CAP_CORES}, which means all of them: add {names.CAP_CORES}: "0" to its capacity.requests'

    def amount(self, role: Role, row: int) -> str:
        """Return what it takes of a device that it could get."""
        return role.text(int(role.asked(self._ask(row))[0]))

    def wanted(self, role: Role, profile: DriverProfile) -> str:
        """Return the amount as the request names it: no device could give it."""
        spelt = self.view.capacity_requests.get(getattr(profile, role.capacity) or "")
        if spelt is not None:
            return role.text(value_of(spelt))
        percent = max(self.view.memory_percents.values(), default=100)
        return f"{percent} % of the {role.kind}"

    def reason(self, kind: str, asked: str, best: str, *, code: str = "", never: bool = False, fix: str = "") -> Reason:
        return Reason(kind, asked, best, never=never, request=self.name, fix=fix, code=code)

    @property
    def name(self) -> str:
        """As the subject of a sentence: `request metax-0`."""
        return f"request {self.called}" if self.called else ""

    def _ask(self, row: int) -> CardRequest:
        return self.column.ask(np.array([row], dtype=np.intp))


def devices_text(count: int, kind: tuple[str, str]) -> str:
    """Return a number of devices with what is requested of each.

    >>> devices_text(1, ("device", "8 MiB")), devices_text(4, ("device", "8 MiB")), devices_text(1, ("whole device", ""))
    ('a device with 8 MiB', '4 devices with 8 MiB each', 'a whole device')
    """
    noun, amounts = kind
    number = f"a {noun}" if count == 1 else counted(count, noun)
    return f"{number}{f' with {amounts}' if amounts else ''}{' each' if amounts and count > 1 else ''}"


def together_text(requests: Sequence[RequestWords]) -> str:
    """Return what several requests ask for on one node: `needs 5 devices with 20000 MiB each on one
    node (1 for one, 4 for two)`.
    """
    kinds = [each.kind_of_device(int(np.flatnonzero(each.column.idle().codes == 0)[0])) for each in requests]
    total = sum(each.count for each in requests)
    if len({*kinds}) == 1:
        asked = devices_text(total, kinds[0])
        parts = [f"{each.count} for {each.called}" for each in requests]
    else:
        asked = counted(total, "device")
        parts = [
            f"{devices_text(each.count, kind)} for {each.called}" for each, kind in zip(requests, kinds, strict=True)
        ]
    return f"needs {asked} on one node ({listed(parts, REQUESTS_NAMED)})"


def most_of_a_node(number: int, node: str, *, such: str = "") -> str:
    """Return the best figure of a number of devices. `such`: what devices, if not all that could be given."""
    return f"the most{such} a node has is {number} ({node})"


def given_together(number: int, node: str) -> str:
    """Return the best figure of several requests."""
    return f"{number} of them could be given together ({node})"


def listing_annotations(stated: Iterable[Stated], request: str) -> list[tuple[str, str]]:
    """Return (annotation, value) of those that allow a request only some devices: use and nouse lists,
    modes. `request`: as in results.
    """
    listing = [each for each in stated if each.request in {"", request} and _lists_devices(each)]
    return list({each.annotation: each.value for each in listing}.items())


def _lists_devices(stated: Stated) -> bool:
    for vendor in VENDORS:
        if stated.annotation in vendor.annotations:
            try:
                return bool(vendor.preferences({stated.annotation: stated.value}).lists)
            except InvalidPreference:
                return False
    return False
