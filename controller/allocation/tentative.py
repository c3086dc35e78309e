"""Usage on top of the ledger: the choices of a search so far, undone when it backtracks.

Created by `solve`, passed to choosers. In: allocations one at a time, released in reverse order.
Must not change the ledger, which must not change meanwhile.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from controller.allocation.resolved import Consumption, ResolvedRequest
from controller.inventory.model import Amount, Device, DeviceId, Usage

_NOTHING: Final[Mapping[str, Amount]] = {}


class Undivided(Usage):
    """A ledger without DRAConsumableCapacity: a share holds the whole device, as in kube-scheduler."""

    def __init__(self, base: Usage) -> None:
        self._base = base

    def in_use(self, device: DeviceId) -> bool:
        return self._base.in_use(device) or self._base.shares(device) > 0

    def shares(self, device: DeviceId) -> int:  # noqa: ARG002 (of a Usage)
        return 0

    def consumed(self, device: DeviceId) -> Mapping[str, Amount]:  # noqa: ARG002 (as above)
        return _NOTHING


class Delta(Struct):
    """The additions of the search to one device."""

    device: Device
    exclusive: int = 0
    """1 if the device is taken whole."""
    shares: int = 0
    consumed: dict[str, int] = field(default_factory=dict)
    """Capacity name → amount in whole units; for a device taken whole its totals."""
    views: list[ResolvedRequest] = field(default_factory=list)
    """The requests that hold it, in order."""


class _Shared(Struct):
    """Shares of one device, including those with admin access (upstream counts them while it searches)."""

    count: int = 0
    amounts: dict[str, Amount] = field(default_factory=dict)


class TentativeUsage(Usage):
    """The ledger plus the tentative allocations, including those of earlier claims and requests of the pod."""

    def __init__(self, base: Usage) -> None:
        self.base = base
        self.added: dict[DeviceId, Delta] = {}
        """Only the additions of the search, without admin access (it consumes nothing). Scoring
        adds them to its columns.
        """
        self._holders: dict[DeviceId, list[int]] = {}
        self._shared: dict[DeviceId, _Shared] = {}

    # -- Usage, read by scoring --------------------------------------------------------------------

    def in_use(self, device: DeviceId) -> bool:
        delta = self.added.get(device)
        return (delta is not None and delta.exclusive > 0) or self.base.in_use(device)

    def shares(self, device: DeviceId) -> int:
        delta = self.added.get(device)
        return self.base.shares(device) + (delta.shares if delta is not None else 0)

    def consumed(self, device: DeviceId) -> Mapping[str, Amount]:
        before = self.base.consumed(device)
        delta = self.added.get(device)
        if delta is None or not delta.shares:
            return before
        return {**before, **{name: before.get(name, 0) + amount for name, amount in delta.consumed.items()}}

    # -- queries of the search ---------------------------------------------------------------------

    def held(self, device: DeviceId) -> bool:
        """Return whether a claim of this search, with or without admin access, or the ledger holds the whole device."""
        return bool(self._holders.get(device)) or self.base.in_use(device)

    def held_by(self, device: DeviceId, claim_index: int) -> bool:
        """Return whether this claim holds the whole device (admin access may join others, but not
        twice in one claim).
        """
        return claim_index in self._holders.get(device, ())

    def has_room(self, device: DeviceId, consumption: Consumption) -> bool:
        """Return whether the rest of every capacity is enough. `consumption` already fits the totals."""
        used = self.base.consumed(device)
        own = self._shared.get(device)
        if own is None and not used:
            return True
        amounts = own.amounts if own is not None else _NOTHING
        return all(
            used.get(name, 0) + amounts.get(name, 0) + amount <= total for name, amount, total in consumption.amounts
        )

    def shared_already(self, device: DeviceId) -> bool:
        """Return whether an earlier share has paid the counters of the device."""
        own = self._shared.get(device)
        return (own is not None and own.count > 0) or self.base.shares(device) > 0 or bool(self.base.consumed(device))

    def state(self, device: DeviceId) -> tuple[object, ...] | None:
        """Return what this search has done to the device, comparable; None for nothing."""
        holders, shared = self._holders.get(device), self._shared.get(device)
        if not holders and (shared is None or not shared.count):
            return None
        amounts = tuple(sorted(shared.amounts.items())) if shared is not None and shared.count else ()
        return tuple(sorted(holders or ())), amounts

    # -- changes by the search ---------------------------------------------------------------------

    def take(self, view: ResolvedRequest, device: Device, consumption: Consumption) -> None:
        if view.shared(device):
            shared = self._shared.setdefault(device.id, _Shared())
            shared.count += 1
            for name, amount, _ in consumption.amounts:
                shared.amounts[name] = shared.amounts.get(name, 0) + amount
        else:
            self._holders.setdefault(device.id, []).append(view.claim_index)
        if not view.admin_access:
            self._count(view, device, consumption, 1)

    def release(self, view: ResolvedRequest, device: Device, consumption: Consumption) -> None:
        """Undo the latest `take` of this device."""
        if view.shared(device):
            shared = self._shared[device.id]
            shared.count -= 1
            for name, amount, _ in consumption.amounts:
                shared.amounts[name] -= amount
        else:
            self._holders[device.id].pop()
        if not view.admin_access:
            self._count(view, device, consumption, -1)

    def _count(self, view: ResolvedRequest, device: Device, consumption: Consumption, sign: int) -> None:
        delta = self.added.get(device.id)
        if delta is None:
            delta = self.added[device.id] = Delta(device)
        if view.shared(device):
            delta.shares += sign
        else:
            delta.exclusive += sign
        if sign > 0:
            delta.views.append(view)
        else:
            delta.views.pop()
        for name, amount in consumption.consumed.items():
            delta.consumed[name] = delta.consumed.get(name, 0) + sign * amount
        if not delta.shares and not delta.exclusive:
            del self.added[device.id]
