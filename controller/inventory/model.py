"""Value types of the inventory: devices and pools, compiled once per slice, and their usage by
claims.

The allocator reads these objects for the few devices of one node; whole-cluster arithmetic uses the
columns. Totals are integers in the capacity's own unit (bytes, percent, slots). Consumed amounts
are exact, as in Kubernetes: whole if they are whole, which is nearly always the case, else a
fraction.
"""

from collections.abc import Container, Hashable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from controller.inventory.card_traits import CardTraits, attribute_of, int_of, text_of, traits_of
from hami_dra.api import resource as api
from hami_dra.api.quantity import NANO, InvalidQuantity, Quantity
from hami_dra.api.semver import InvalidVersion, SemVer
from hami_dra.api.short_texts import cached_if_short
from hami_dra.cel import DeviceInput
from hami_dra.vendors.protocol import DriverProfile

Amount = int | Fraction
UNNUMBERED: Final = 1 << 30
"""Index of a device without one: after all others."""


class DeviceId(NamedTuple):
    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


class Capacities:
    """The capacities of a device, compiled. Hashable: equal for equal capacities, in any order."""

    __slots__ = ("_hash", "_items", "readable", "totals")

    def __init__(self, published: Mapping[str, api.DeviceCapacity]) -> None:
        self._items = tuple(sorted(published.items(), key=lambda item: item[0]))
        self._hash = hash(self._items)
        self.totals: Mapping[str, int] = {name: value_of(each.value) for name, each in published.items()}
        """Capacity name, verbatim → `Value()` of the whole device; 0 for text that is no quantity."""
        self.readable = all(is_quantity(each.value) for each in published.values())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Capacities) and self._items == other._items)


_CAPACITIES_KEPT: Final = 1 << 10
_capacities: Final[dict[int, tuple[Mapping[str, api.DeviceCapacity], Capacities]]] = {}
"""By identity of the published map, which therefore stays here, too."""


def capacities_of(published: Mapping[str, api.DeviceCapacity]) -> Capacities:
    """Return the compiled capacities. Cards of one model have one map (`hami_dra.api.sharing`), so
    most are compiled already.
    """
    found = _capacities.get(id(published))
    if found is None:
        if len(_capacities) >= _CAPACITIES_KEPT:
            _capacities.clear()
        found = _capacities[id(published)] = published, Capacities(published)
    return found[1]


@dataclass(eq=False)
class Device:
    """One published device. Identity matters: a new slice object makes new devices.

    `row` is its row in the device columns, or -1 while it is not in them (allocator unit tests).
    """

    id: DeviceId
    spec: api.Device
    slice: api.ResourceSlice
    profile: DriverProfile = field(kw_only=True)
    row: int = -1
    extra_taints: tuple[api.DeviceTaint, ...] = ()
    """From DeviceTaintRules; the slice's own are in `spec.taints`."""
    shared: bool = field(init=False)
    capacities: Capacities = field(init=False)
    index: int = field(init=False)
    """Its number on the node: the published one, else the one in its name (`neurondevice3`), else UNNUMBERED."""
    traits: CardTraits = field(init=False)
    is_part: bool = field(init=False)
    card_memory: int = field(init=False)

    def __post_init__(self) -> None:
        profile = self.profile
        self.shared = bool(self.spec.allow_multiple_allocations)
        self.capacities = capacities_of(self.spec.capacity)
        self.traits = traits_of(profile, self.id.driver, self.spec.attributes)
        number, self.is_part, self.card_memory, _ = self.traits
        if number is None:
            number = profile.number_of(self.id.device)
        self.index = UNNUMBERED if number is None else number

    @cached_property
    def selector_input(self) -> DeviceInput:
        """The input of CEL selectors; built at first use and cached."""
        return DeviceInput.from_device(self.id.driver, self.spec)

    def selected_input(self, names: Container[str]) -> DeviceInput:
        """Return the input reduced to these attributes and capacities. Needs `readable`."""
        return DeviceInput.of(
            self.id.driver,
            {name: attribute for name, attribute in self.spec.attributes.items() if name in names},
            {name: capacity.value for name, capacity in self.spec.capacity.items() if name in names},
            allow_multiple_allocations=self.shared,
        )

    @property
    def readable(self) -> bool:
        """Whether no value makes every selector fail, regardless of what the selector reads."""
        # Nearly all values are texts and numbers, for which a call each would be too dear.
        others = [
            each
            for each in self.spec.attributes.values()
            if each.version is not None or each.versions is not None or (each.string is None and each.int_ is None)
        ]
        return self.capacities.readable and all(map(_is_readable, others))

    @property
    def model(self) -> str:
        """Return the series of the card, as its vendor's resource names tell it; mostly empty."""
        return self.string_attribute(self.profile.model)

    @property
    def totals(self) -> Mapping[str, int]:
        """See `Capacities`."""
        return self.capacities.totals

    @property
    def taints(self) -> tuple[api.DeviceTaint, ...]:
        return self.spec.taints + self.extra_taints

    @property
    def capacity_kind(self) -> Hashable:
        """The kind: devices of one kind give equal results for every capacity request."""
        return self.id.driver, self.shared, self.capacities, self.card_memory

    def attribute(self, name: str | None) -> api.DeviceAttribute | None:
        """See `attribute_of`."""
        return attribute_of(self.spec.attributes, self.id.driver, name)

    def int_attribute(self, name: str | None, default: int) -> int:
        """See `int_of`."""
        found = int_of(self.attribute(name))
        return default if found is None else found

    def string_attribute(self, name: str | None) -> str:
        return text_of(self.attribute(name))


def amount_of(quantity: Quantity) -> Amount:
    whole, rest = divmod(quantity.nanos, NANO)
    return Fraction(quantity.nanos, NANO) if rest else whole


@cached_if_short(1_024)
def value_of(text: str | float) -> int:
    """Return `Value()` of a quantity, 0 if it is none: the API server admits none, files may contain one."""
    return Quantity.or_zero(str(text)).value()


def is_quantity(text: str | float) -> bool:
    try:
        Quantity.parse(text)
    except InvalidQuantity:
        return False
    return True


def _is_readable(attribute: api.DeviceAttribute) -> bool:
    """Return whether a value is set, and versions are valid; `DeviceInput` decides which value counts."""
    if attribute.versions is not None:
        return all(map(_is_version, attribute.versions))
    if attribute.version is not None:
        return _is_version(attribute.version)
    return not (attribute.int_ is None and attribute.string is None and attribute.bool_ is None)


@cached_if_short(1_024)
def _is_version(text: str) -> bool:
    try:
        SemVer.parse(text)
    except InvalidVersion:
        return False
    return True


class Pool(Struct, frozen=True):
    """A pool as one node sees it, by the rules of the structured allocator (docs/design/architecture.md)."""

    driver: str
    name: str
    generation: int
    devices: tuple[Device, ...]
    """The devices that the node can use, in order."""
    counter_sets: Mapping[str, api.CounterSet] = {}
    incomplete: bool = False
    invalid: str = ""
    """Why the pool cannot be used, or empty."""
    elsewhere: tuple[Device, ...] = ()
    """Devices of the pool and generation that other nodes see: their allocations draw on the same counters."""
    binds: bool = False
    """Some device of its slices has binding conditions: such pools come last."""
    among: tuple[Device, ...] = ()
    """Where slices select nodes device by device: `devices` and, between them, those of other
    nodes, which upstream holds against selectors too. Else empty.
    """


class Usage(Protocol):
    """Current usage, allocated or assumed. Implemented by the ledger, and by tentative usage on top of it."""

    def in_use(self, device: DeviceId) -> bool:
        """Return whether an exclusive allocation holds the whole device."""

    def shares(self, device: DeviceId) -> int:
        """Return the number of allocations that share the device (0 if exclusive or idle)."""

    def consumed(self, device: DeviceId) -> Mapping[str, Amount]:
        """Return the amounts used by the shares, by capacity name; empty if there are none."""
