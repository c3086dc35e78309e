"""The devices that this node publishes, for preparation: the card of each, what it offers, what it excludes.

Built by the node driver whenever its pool changes (`inventory_of`), read by everything in this
package. In: the JSON devices and counter sets that a vendor publishes, and the place of each device
in the machine. Out: exact integers. Pure.

Amounts are whole base units (bytes, percent, counts). A published fraction of a unit is rounded
down, a consumed one is rounded up, so rounding never adds capacity.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from hami_dra.api.containers import PartitionPlace, Site
from hami_dra.api.core import QuantityText
from hami_dra.api.hardware import Card
from hami_dra.api.quantity import NANO, Quantity
from hami_dra.api.resource import CounterSet, Device, DeviceCounterConsumption
from hami_dra.driver.prepare.records import GrantedDevice

Json = Mapping[str, Any]
Counters = Mapping[tuple[str, str], int]
"""(counter set, counter) → amount."""


class PublishedDevice(Struct, frozen=True, kw_only=True):
    """One device of the pool."""

    name: str
    site: Site
    shared: bool
    """Several allocations at once (`allowMultipleAllocations`)."""
    capacity: Mapping[str, int]
    """Capacity on offer, including oversubscription."""
    consumes: Counters

    @property
    def card(self) -> Card:
        return self.site.card

    @property
    def numbers(self) -> tuple[int, int]:
        minor = self.card.minor
        return self.card.index, -1 if minor is None else minor

    @property
    def partition(self) -> PartitionPlace | None:
        """Return the partition; None for the whole card, shared or not."""
        return self.site.partition


class Inventory(Struct, frozen=True, kw_only=True):
    """Devices that one driver publishes on this node."""

    driver: str
    pool: str
    devices: Mapping[str, PublishedDevice]
    counters: Counters
    """Total of the shared counters."""

    def of(self, held: GrantedDevice) -> PublishedDevice | None:
        """Return the device that was held: the same card, or the same partition of it, under its current name.

        Names are bound to cards, so that the name alone finds it, unless the driver lost its list
        of names. None: it is no longer published.
        """
        named = self.devices.get(held.device)
        if named is not None and _is(named, held):
            return named
        return next((device for device in self.devices.values() if _is(device, held)), None)


def _is(device: PublishedDevice, held: GrantedDevice) -> bool:
    place, part = device.partition, held.partition
    if place is None or part is None:
        return device.card.uuid == held.card and place is None and part is None
    return (place.card_uuid, place.profile, place.start) == (part.card, part.profile, part.start)


def inventory_of(
    driver: str, pool: str, devices: Sequence[Json], sites: Mapping[str, Site], counter_sets: Sequence[Json] = ()
) -> Inventory:
    """Build the inventory.

    `devices`, `counter_sets`: as created by `PublishingVendor`; `sites`: `ContainerVendor.sites` of
    the same cards. A device without a site is left out: what a container should get of it is
    unknown. Raises InvalidQuantity.
    """
    found = {
        device.name: PublishedDevice(
            name=device.name,
            site=sites[device.name],
            shared=bool(device.allow_multiple_allocations),
            capacity={name: rounded_down(capacity.value) for name, capacity in device.capacity.items()},
            consumes=_consumed(device.consumes_counters),
        )
        for device in msgspec.convert(list(devices), tuple[Device, ...])
        if device.name in sites
    }
    return Inventory(driver=driver, pool=pool, devices=found, counters=_totals(counter_sets))


def rounded_up(amount: QuantityText) -> int:
    """Return the amount rounded up. Raises InvalidQuantity."""
    return -(-Quantity.parse(amount).nanos // NANO)


def rounded_down(amount: QuantityText) -> int:
    """Return the amount rounded down. Raises InvalidQuantity."""
    return Quantity.parse(amount).nanos // NANO


def _consumed(consumptions: Sequence[DeviceCounterConsumption]) -> Counters:
    return {
        (consumption.counter_set, name): rounded_up(counter.value)
        for consumption in consumptions
        for name, counter in consumption.counters.items()
    }


def _totals(counter_sets: Sequence[Json]) -> Counters:
    return {
        (counter_set.name, name): rounded_down(counter.value)
        for counter_set in msgspec.convert(list(counter_sets), tuple[CounterSet, ...])
        for name, counter in counter_set.counters.items()
    }
