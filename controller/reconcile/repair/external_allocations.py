"""Detects allocations of managed devices by other allocators. The fence prevents them; this is the
alarm.

Each one that appears during our term gives an event on its claim and is counted. If it overlaps
with our allocations, our unbound ones on that device are undone, the youngest first, until the rest
fits the device. Bound ones are reported and left alone: the driver's prepare is the last line of
defence. Devices are handled concurrently, the claims of one device one by one, because each shows
whether the next must be undone, too. A claim that cannot be written is skipped, and the device
checked again later.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from msgspec import Struct

from controller.reconcile.binding import ClaimWriter, Rejected, Stale
from controller.reconcile.runtime import Context, messages
from hami_dra.api.kinds import RESOURCE_CLAIM
from hami_dra.api.podstate import is_bound
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.api.resource import DeviceRequestAllocationResult, ResourceClaim
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.lanes import Lanes

log = logging.getLogger(__name__)

_LOOK_AGAIN = 5.0
_LOOK_AGAIN_MOST = 300.0
"""Seconds until a device with an unwritable claim is checked again; doubles from the first to the second value."""

Totals = Callable[[str], Mapping[str, int] | None]
"""`driver/pool/device` → capacity name → total of the device; None for an unpublished device."""


class ClaimAllocationUse(Struct, frozen=True):
    claim: ResourceClaim
    results: tuple[DeviceRequestAllocationResult, ...]


def overlaps(uses: Iterable[ClaimAllocationUse], totals: Mapping[str, int] | None) -> bool:
    """Return whether the device is overcommitted. Admin access consumes nothing."""
    exclusive = shared = 0
    taken: Counter[str] = Counter()
    for use in uses:
        for result in use.results:
            if result.admin_access:
                continue
            if result.share_id is None:
                exclusive += 1
                continue
            shared += 1
            for name, text in result.consumed_capacity.items():
                try:
                    taken[name] += Quantity.parse(str(text)).value()
                except InvalidQuantity:
                    return True
    if exclusive > 1 or (exclusive and shared):
        return True
    return totals is not None and any(amount > totals.get(name, 0) for name, amount in taken.items())


class ExternalAllocationWatch:
    def __init__(self, context: Context, claims: ClaimWriter, totals: Totals) -> None:
        self._informers = context.informers
        self._managed = context.settings.drivers.managed
        self._events = context.events
        self._metrics = context.metrics
        self._claims = claims
        self._guard = context.guard("foreign allocations")
        self._totals = totals
        self._lanes = Lanes(width=1)
        """A lane for each device."""
        self._unsettled: dict[str, Backoff] = {}
        """Devices with a claim that could not be written: they are checked again."""

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Note a new allocation. Subscribed by the controller."""
        if new is None or new.status.allocation is None or (old is not None and old.status.allocation is not None):
            return
        devices = self._managed_devices(new)
        if self._claims.is_ours(new):
            for _, device in devices:
                if not all(self._claims.is_ours(claim) for claim in self._informers.claims_on(device)):
                    self._suspect(device)
            return
        for driver in sorted({driver for driver, _ in devices}):
            self._metrics.foreign.labels(driver).inc()
            note = (
                f"a device of {driver} was allocated by another allocator than hami-dra, which manages it: "
                "a claim that tolerates the fence, or another scheduler"
            )
            self._events.report(RESOURCE_CLAIM, new, messages.warning(messages.FOREIGN_ALLOCATION, note), "Watch")
        for _, device in devices:
            self._suspect(device)

    async def run(self) -> None:
        """Run until cancelled. Starts with all devices that other allocators' claims hold now."""
        for claim in list(self._informers.claims.store):
            with self._guard.each(claim.key):
                if not self._claims.is_ours(claim):
                    for _, device in self._managed_devices(claim):
                        self._suspect(device)
        async with self._lanes:
            await asyncio.Event().wait()

    def _suspect(self, device: str) -> None:
        self._lanes.add(device, device, partial(self._check, device))

    async def _check(self, device: str) -> None:
        settled = False
        with self._guard.each(f"device {device}"):
            settled = await self._settle(device)
        if settled:
            self._unsettled.pop(device, None)
        else:
            pause = self._unsettled.setdefault(device, Backoff(_LOOK_AGAIN, _LOOK_AGAIN_MOST)).next()
            self._lanes.add_later(pause, device, device, partial(self._check, device))

    async def _settle(self, device: str) -> bool:
        """Undo overlapping allocations. Returns False if a write failed that may succeed later."""
        if not self._is_overlapping(device):
            return True
        ours = [claim for claim in self._informers.claims_on(device) if self._claims.is_ours(claim)]
        if device not in self._unsettled:
            self._metrics.overlaps.labels(device.partition("/")[0]).inc()
            holders = ", ".join(claim.key for claim in ours) or "not by us"
            log.warning("device %s is given away twice: %s", device, holders)
        settled = True
        for claim in sorted(ours, key=_age, reverse=True):
            if not self._is_overlapping(device):
                return True
            if not self._is_bound(claim):
                settled &= await self._take_back(claim, device)
        if settled and self._is_overlapping(device):
            for claim in self._informers.claims_on(device):
                note = f"device {device} is allocated to several claims at once, and pods are bound already: delete one of them"
                self._events.report(RESOURCE_CLAIM, claim, messages.warning(messages.FOREIGN_ALLOCATION, note), "Watch")
        return settled

    async def _take_back(self, claim: ResourceClaim, device: str) -> bool:
        """Undo one allocation. Returns False if it could not be written."""
        try:
            cleared = await self._claims.clear(claim, lambda newest: not self._is_bound(newest))
        except (Stale, Rejected) as error:
            log.warning("device %s is given away twice, and one allocation cannot be taken back: %s", device, error)
            return False
        if cleared:
            self._metrics.undos.labels("overlap").inc()
            note = f"allocation taken back: device {device} was also allocated by another allocator"
            self._events.report(RESOURCE_CLAIM, claim, messages.warning(messages.ALLOCATION_UNDONE, note), "Undo")
        return True

    def _is_overlapping(self, device: str) -> bool:
        uses = [
            ClaimAllocationUse(claim, tuple(result for result in claim.results if result.device_id == device))
            for claim in self._informers.claims_on(device)
        ]
        return overlaps(uses, self._totals(device))

    def _is_bound(self, claim: ResourceClaim) -> bool:
        return any(map(is_bound, self._informers.pods_of(claim.key)))

    def _managed_devices(self, claim: ResourceClaim) -> list[tuple[str, str]]:
        """Return (driver, `driver/pool/device`) of the managed devices that it holds."""
        results = [result for result in claim.results if not result.admin_access]
        return sorted({(result.driver, result.device_id) for result in results if result.driver in self._managed})


def _age(claim: ResourceClaim) -> tuple[str, str]:
    """Return a sort key: youngest last."""
    allocation = claim.status.allocation
    return (allocation.allocation_timestamp or "" if allocation is not None else "", claim.key)
