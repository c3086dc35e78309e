"""Value types of the inventory: devices and pools as compiled once per slice, and what claims use of them.

The allocator reads these objects for the few devices of one node; whole-cluster arithmetic goes over the columns.
Totals are integers in the capacity's own unit (bytes, percent, slots). What is consumed of them is exact, as in Kubernetes:
whole where it is whole, which is nearly always, else a fraction.
"""

from collections.abc import Container, Hashable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Final, NamedTuple, Protocol

from hami_dra.api import resource as api
from hami_dra.api.quantity import NANO, InvalidQuantity, Quantity
from hami_dra.api.semver import InvalidVersion, SemVer
from hami_dra.cel import DeviceInput
from hami_dra.vendors.protocol import DriverProfile

Amount = int | Fraction
UNNUMBERED: Final = 1 << 30
"""Index of a device that has none: behind all that have."""


class DeviceId(NamedTuple):
    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


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

    def __post_init__(self) -> None:
        self.shared = bool(self.spec.allow_multiple_allocations)

    @cached_property
    def selector_input(self) -> DeviceInput:
        """What CEL selectors see; built at first use and kept."""
        return DeviceInput.from_device(self.id.driver, self.spec)

    def selected_input(self, names: Container[str]) -> DeviceInput:
        """What is left for a selector that reads only these attributes and capacities. Needs `readable`."""
        return DeviceInput.of(
            self.id.driver,
            {name: attribute for name, attribute in self.spec.attributes.items() if name in names},
            {name: capacity.value for name, capacity in self.spec.capacity.items() if name in names},
            allow_multiple_allocations=self.shared,
        )

    @cached_property
    def readable(self) -> bool:
        """No value in it makes every selector fail, whatever the selector reads."""
        return all(map(_is_readable, self.spec.attributes.values())) and all(
            is_quantity(capacity.value) for capacity in self.spec.capacity.values()
        )

    @cached_property
    def totals(self) -> Mapping[str, int]:
        """Capacity name, verbatim → `Value()` of the whole device; 0 for text that is no quantity."""
        return {name: value_of(capacity.value) for name, capacity in self.spec.capacity.items()}

    @cached_property
    def index(self) -> int:
        """Its number on the node: the published one, else the one in its name (`neurondevice3`), else UNNUMBERED."""
        named = self.profile.number_of(self.id.device)
        return self.int_attribute(self.profile.index, UNNUMBERED if named is None else named)

    @cached_property
    def is_part(self) -> bool:
        """It is cut from a card, which is published too."""
        found = self.attribute(self.profile.partition)
        return found is not None and self.profile.means_part(found.string)

    @property
    def taints(self) -> tuple[api.DeviceTaint, ...]:
        return self.spec.taints + self.extra_taints

    @cached_property
    def capacity_kind(self) -> Hashable:
        """Devices of one kind answer every capacity request alike."""
        return self.id.driver, self.shared, tuple(sorted(self.spec.capacity.items(), key=lambda item: item[0]))

    def attribute(self, name: str | None) -> api.DeviceAttribute | None:
        """As the allocator looks attributes up: the full name first, then the bare name if the domain is the driver's."""
        if name is None:
            return None
        found = self.spec.attributes.get(name)
        if found is None:
            domain, _, bare = name.rpartition("/")
            if domain == self.id.driver:
                found = self.spec.attributes.get(bare)
        return found

    def int_attribute(self, name: str | None, default: int) -> int:
        """An int64, as in the API; a file may hold more, which then is no number of anything."""
        found = self.attribute(name)
        if found is None or found.int_ is None or not -(2**63) <= found.int_ < 2**63:
            return default
        return found.int_

    def string_attribute(self, name: str | None) -> str:
        found = self.attribute(name)
        return "" if found is None or found.string is None else found.string


def amount_of(quantity: Quantity) -> Amount:
    whole, rest = divmod(quantity.nanos, NANO)
    return Fraction(quantity.nanos, NANO) if rest else whole


def value_of(text: str | float) -> int:
    """`Value()` of a quantity, 0 where it is none: the API server lets no such thing in, files may hold it."""
    try:
        return Quantity.parse(str(text)).value()
    except InvalidQuantity:
        return 0


def is_quantity(text: str | float) -> bool:
    try:
        Quantity.parse(text)
    except InvalidQuantity:
        return False
    return True


def _is_readable(attribute: api.DeviceAttribute) -> bool:
    """One of the values is set, and versions are versions; which one counts is for `DeviceInput` to say."""
    if attribute.versions is not None:
        return all(map(_is_version, attribute.versions))
    if attribute.version is not None:
        return _is_version(attribute.version)
    return not (attribute.int_ is None and attribute.string is None and attribute.bool_ is None)


def _is_version(text: str) -> bool:
    try:
        SemVer.parse(text)
    except InvalidVersion:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool as one node sees it, by the rules of the structured allocator (docs/architecture.md)."""

    driver: str
    name: str
    generation: int
    devices: tuple[Device, ...]
    """Those that the node can use, in order."""
    counter_sets: Mapping[str, api.CounterSet] = field(default_factory=dict)
    incomplete: bool = False
    invalid: str = ""
    """Why the pool cannot be used, or empty."""
    elsewhere: tuple[Device, ...] = ()
    """Devices of the same pool and generation that other nodes see: what is allocated of them draws on the same counters."""
    binds: bool = False
    """Some device of its slices has binding conditions: such pools come last."""
    among: tuple[Device, ...] = ()
    """Where slices select nodes device by device: `devices` and, between them, those of other nodes, which upstream holds
    against selectors too. Else empty."""


class Usage(Protocol):
    """What is in use now, allocated or assumed. The ledger is one; a trial on top of the ledger is another."""

    def in_use(self, device: DeviceId) -> bool:
        """An exclusive allocation holds the whole device."""

    def shares(self, device: DeviceId) -> int:
        """How many allocations share the device (0 when exclusive or idle)."""

    def consumed(self, device: DeviceId) -> Mapping[str, Amount]:
        """Capacity name → amount used by the shares; empty when none."""
