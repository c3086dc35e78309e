"""The content of one driver's pool: from cards, their faults and the operator's settings to devices.

Called by `service` after every change, and by tests. Pure. The vendor decides what devices look
like; here they get their taints and their order, and a card that cannot be published is left out
and named, so that it never hides the others.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from hami_dra.api import names
from hami_dra.api.hardware import Card
from hami_dra.api.options import VendorSettings
from hami_dra.api.resource import ResourceSlice
from hami_dra.driver.node.damping import Counted
from hami_dra.driver.node.settings import Effect
from hami_dra.driver.slices import Pool, pool_of
from hami_dra.driver.taints import TaintKey, taint_key
from hami_dra.vendors.faults import TAINT_KEYS, FaultKind, kind_of
from hami_dra.vendors.publishing import PublishingVendor, Unpublishable
from hami_dra.vendors.registry import vendor_of

Json = dict[str, Any]
Faults = Mapping[str, Sequence[Counted]]
"""Uuid of a card → faults that count."""


_CORDONED: Final[Json] = {"key": names.CORDON_TAINT, "effect": "NoSchedule"}


class PoolOptions(Struct, frozen=True, kw_only=True):
    """Settings that are not read from hardware."""

    vendors: VendorSettings = field(default_factory=VendorSettings)
    effects: Mapping[FaultKind, Effect] = field(default_factory=dict)
    cordoned: Collection[str] = ()
    """Uuids."""
    published_taints: Collection[tuple[str, TaintKey]] = ()
    """(uuid, taint) published by an earlier driver: taints that evicted pods before this driver
    started stay until the fault is over.
    """


class NodeReference(NamedTuple):
    """A Node object: a recreated one has another uid."""

    name: str
    uid: str


class PoolContent(Struct, frozen=True):
    pool: Pool
    problems: tuple[str, ...]
    """Cards that are left out, with the reason."""


def pool_content(
    vendor: PublishingVendor, place: NodeReference, cards: Sequence[Card], faults: Faults, options: PoolOptions
) -> PoolContent:
    """Return the devices in the vendor's order, which is by index."""
    sick = [replace(card, faults=tuple(each.fault for each in faults.get(card.uuid, ()))) for card in cards]
    good, problems = _publishable(vendor, sick, options.vendors)
    devices = [_tainted(device, faults, options) for device in vendor.devices(good, options.vendors)]
    pool = pool_of(vendor.driver, place.name, devices, shared_counters=vendor.counter_sets(good))
    return PoolContent(replace(pool, node_uid=place.uid), problems)


def reordered(pool: Pool, ranks: Mapping[str, int]) -> Pool:
    """Return the pool with cards by the rank of their uuid, followed by their partitions in the same order of cards."""

    def key(device: Json) -> tuple[bool, int]:
        return is_part(pool.driver, device), ranks.get(uuid_of(device), len(ranks))

    return pool.with_devices(sorted(pool.devices, key=key))


def taint_keys(pool: Pool) -> set[TaintKey]:
    return {taint_key(device, taint) for device in pool.devices for taint in device.get("taints", ())}


def evicting(pool: Pool) -> set[tuple[str, TaintKey]]:
    """Return (uuid, taint) of the taints in a pool that evict pods."""
    return {
        (uuid_of(device), taint_key(device, taint))
        for device in pool.devices
        for taint in device.get("taints", ())
        if taint["effect"] == "NoExecute"
    }


def evicting_now(slices: Iterable[ResourceSlice]) -> set[tuple[str, TaintKey]]:
    """Return (uuid, taint) of the taints in published slices that evict pods."""
    return {
        (uuid.string, TaintKey(device.name, taint.key, taint.value, taint.effect))
        for item in slices
        for device in item.spec.devices
        if (uuid := device.attributes.get(names.ATTR_UUID)) is not None and uuid.string
        for taint in device.taints
        if taint.effect == "NoExecute"
    }


def uuid_of(device: Json) -> str:
    return str(device["attributes"][names.ATTR_UUID]["string"])


def is_part(driver: str, device: Json) -> bool:
    vendor = vendor_of(driver)
    return vendor is not None and vendor.profile.partition in device["attributes"]


def _publishable(
    vendor: PublishingVendor, cards: Sequence[Card], settings: VendorSettings
) -> tuple[list[Card], tuple[str, ...]]:
    """Return the cards that can be published, tried one by one, and the problems of the others."""
    good, problems = [], []
    for card in cards:
        try:
            vendor.devices([card], settings)
        except Unpublishable as error:
            problems.append(f"card {card.index} ({card.uuid}) is not published: {error}")
        else:
            good.append(card)
    return good, tuple(problems)


def _tainted(device: Json, faults: Faults, options: PoolOptions) -> Json:
    """Return the device with the configured taint effects, and the cordon. Only lasting faults evict pods."""
    uuid = uuid_of(device)
    lasting = {TAINT_KEYS[kind_of(each.fault.code)] for each in faults.get(uuid, ()) if each.lasting}
    effects = {TAINT_KEYS[kind]: effect for kind, effect in options.effects.items()}
    taints = []
    for taint in device.get("taints", ()):
        wanted = taint | {"effect": effects.get(taint["key"], taint["effect"])}
        certain = taint["key"] in lasting or (uuid, taint_key(device, wanted)) in options.published_taints
        taints.append(wanted if certain or wanted["effect"] != "NoExecute" else taint)
    if uuid in options.cordoned:
        taints.append(dict(_CORDONED))
    return device | {"taints": taints} if taints else device
