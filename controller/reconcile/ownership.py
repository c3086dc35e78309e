"""Whose business a claim is, by the drivers of the devices that match it. Called by `demand` for each open claim.

Managed as soon as one managed device matches: `decide` leaves foreign candidates out, and refuses a claim whose requests need
both kinds. Reads the selector verdicts of the inventory, which are cached; changes nothing.
"""

from collections.abc import Iterable
from enum import Enum

import numpy as np

from controller.inventory.inventory import Inventory
from hami_dra.api.resource import DeviceSelector, ResourceClaim


class Owner(Enum):
    MANAGED = "managed"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"
    """No device matches it now, or a class is missing: `decide` says why."""


def owner_of(inventory: Inventory, claim: ResourceClaim, managed: frozenset[str]) -> Owner:
    found = False
    for request in claim.spec.devices.requests:
        for exact in (request.exactly, *request.first_available):
            if exact is None:
                continue
            device_class = inventory.classes.get(exact.device_class_name)
            if device_class is None:
                return Owner.UNKNOWN
            for driver in _drivers(inventory, (*device_class.spec.selectors, *exact.selectors)):
                if driver in managed:
                    return Owner.MANAGED
                found = True
    return Owner.FOREIGN if found else Owner.UNKNOWN


def _drivers(inventory: Inventory, selectors: Iterable[DeviceSelector]) -> set[str]:
    """The drivers of the devices that all selectors select; one that fails on a device counts as selecting it."""
    devices = inventory.devices
    mask = devices.active[: devices.size]
    for selector in selectors:
        if selector.cel is not None:
            mask = mask & inventory.verdicts.matching(selector.cel.expression)
    # one sample per kind of device will do: the driver is part of the kind
    kinds = np.unique(devices.kind[: devices.size][mask])
    return {devices.kind_samples[int(kind)].id.driver for kind in kinds}
