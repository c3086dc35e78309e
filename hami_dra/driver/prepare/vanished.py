"""Find deleted claims that are still prepared, and publish which devices they hold.

A claim can be deleted under its running pod. Its devices stay prepared until kubelet unprepares
them, but nothing in the cluster shows it any more. The node driver publishes the value of
`VanishedClaims.report` as an annotation on its slice (`hami_dra.api.heldclaims`), from which a
restarted controller knows it.

The cost: one GET for each prepared claim each `interval`, one after the other, the pause drawn
between 0.8 and 1.2 of it. With 40,000 prepared claims in a cluster and 5 minutes that is 40,000 /
300 s = 133 GETs of single objects a second for the API server, and 8 in 5 minutes for a node with 8
claims. A deleted claim is not read again: its uid never comes back.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from hami_dra.api import heldclaims
from hami_dra.api.heldclaims import HeldClaim, HeldDevice
from hami_dra.api.kinds import RESOURCE_CLAIM
from hami_dra.driver.prepare.records import GrantedDevice, Record
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.guard import LoopGuard
from hami_dra.kube.protocol import Cluster, ClusterError, NotFound
from hami_dra.kube.waiting import wait_at_most
from hami_dra.vendors.registry import vendor_of

log = logging.getLogger(__name__)

_SPREAD: Final = 0.2


def held_claim(driver: str, record: Record) -> HeldClaim:
    """Return the devices that a record holds. Pure; admin access holds nothing."""
    pods = dict.fromkeys(uid for view in record.views for uid in view.pods)
    devices = tuple(_held_device(driver, each) for each in record.held if not each.admin)
    return HeldClaim(uid=record.uid, namespace=record.namespace, name=record.name, pods=tuple(pods), devices=devices)


def _held_device(driver: str, held: GrantedDevice) -> HeldDevice:
    vendor = vendor_of(driver)
    consumed = dict(held.consumed) if held.shared else None
    mark = vendor.mark(held.parameters, consumed or {}) if vendor is not None else 0
    return HeldDevice(device=held.device, consumed=consumed, mark=mark)


@dataclass(eq=False)
class VanishedClaims:
    """Find deleted claims that are still prepared.

    `records`: prepared claims by uid, after `refresh`, which returns whether they are known.
    `on_change`: called when `report` may return another value.
    """

    cluster: Cluster
    driver: str
    records: Callable[[], Mapping[str, Record]]
    refresh: Callable[[], Awaitable[bool]]
    on_change: Callable[[], None]
    _: KW_ONLY
    interval: float
    dice: Callable[[], float] = random.random
    _again: asyncio.Event = field(default_factory=asyncio.Event)
    _guard: LoopGuard = field(default_factory=lambda: LoopGuard("vanished claims"))
    _looked: bool = False
    _gone: set[str] = field(default_factory=set)
    """Uids of prepared claims that do not exist any more."""

    def report(self) -> str | None:
        """Return the value of the annotation, empty for no such claim; None before all claims were checked."""
        if not self._looked:
            return None
        records = self.records()
        return heldclaims.encode(held_claim(self.driver, records[uid]) for uid in self._gone if uid in records)

    def prepared_changed(self) -> None:
        """Take note that claims were prepared or taken back."""
        if self._gone:
            self.on_change()

    async def run(self) -> None:
        """Check claims until cancelled."""
        backoff = Backoff()
        while True:
            if await self.look():
                backoff = Backoff()
                pause = self.interval * (1 - _SPREAD + 2 * _SPREAD * self.dice())
            else:
                pause = min(backoff.next(), self.interval)
            await wait_at_most(self._again, pause)
            self._again.clear()

    def look_again(self) -> None:
        """Check every claim soon, because the cluster has gone back to a past state: claims may be
        gone, and some that were gone may be back.
        """
        self._gone.clear()
        self._again.set()

    async def look(self) -> bool:
        """Check each claim once. Returns whether all could be checked; the others keep their state."""
        if not await self.refresh():
            return False
        self._gone &= self.records().keys()
        before, asked = set(self._gone), True
        for uid, record in self.records().items():
            if uid in self._gone:
                continue
            with self._guard.each(f"ResourceClaim {record.key}"):
                try:
                    is_gone = await self._is_gone(record)
                except ClusterError as error:
                    log.info("ResourceClaim %s: whether it still exists is not known: %s", record.key, error)
                    asked = False
                    continue
                if is_gone:
                    log.warning(
                        "ResourceClaim %s (%s) is deleted, and its devices are still in use here", record.key, uid
                    )
                    self._gone.add(uid)
        if self._gone != before or not self._looked:
            self._looked = True
            self.on_change()
        return asked

    async def _is_gone(self, record: Record) -> bool:
        """Return whether the claim is deleted. Raises ClusterError if that is unknown."""
        try:
            found = await self.cluster.get(RESOURCE_CLAIM, record.name, record.namespace)
        except NotFound:
            return True
        return found.metadata.uid != record.uid
