"""Value types of the inventory: devices and pools as compiled once per slice, and what claims use of them.

The allocator reads these objects for the few devices of one node; whole-cluster arithmetic goes over the columns.
All amounts are integers in the capacity's own unit (bytes, percent, slots): Kubernetes compares consumable capacity
by `Quantity.Value()`, so does everything here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from hami_dra.api import resource as api
from hami_dra.cel import DeviceInput


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
    row: int = -1
    extra_taints: tuple[api.DeviceTaint, ...] = ()
    """From DeviceTaintRules; the slice's own are in `spec.taints`."""

    @cached_property
    def selector_input(self) -> DeviceInput:
        """What CEL selectors see; built at first use."""
        raise NotImplementedError

    @cached_property
    def totals(self) -> Mapping[str, int]:
        """Capacity name, verbatim → `Value()` of the whole device."""
        raise NotImplementedError

    @property
    def shared(self) -> bool:
        return bool(self.spec.allow_multiple_allocations)


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool as one node sees it, by the rules of the structured allocator (docs/architecture.md)."""

    driver: str
    name: str
    generation: int
    devices: tuple[Device, ...]
    counter_sets: Mapping[str, api.CounterSet] = field(default_factory=dict)
    incomplete: bool = False
    invalid: str = ""
    """Why the pool cannot be used, or empty."""


class Usage(Protocol):
    """What is in use now, allocated or assumed. The ledger is one; a trial on top of the ledger is another."""

    def in_use(self, device: DeviceId) -> bool:
        """An exclusive allocation holds the whole device."""

    def shares(self, device: DeviceId) -> int:
        """How many allocations share the device (0 when exclusive or idle)."""

    def consumed(self, device: DeviceId) -> Mapping[str, int]:
        """Capacity name → amount used by the shares; empty when none."""
