"""The uninstall marker: while the lease carries it, no controller of this installation acts.

It is an annotation of the lease with an end time; so a controller that was only restarted stays
quiet, and a forgotten marker expires. Set by `hami-dra uninstall`, watched by every controller,
leading or not.
"""

import asyncio
import logging
from datetime import UTC, datetime

from controller.reconcile.runtime.clock import Clock
from controller.settings.controller import LeadershipSettings
from hami_dra.api import names
from hami_dra.api.core import Lease
from hami_dra.api.kinds import LEASE
from hami_dra.kube.protocol import Cluster, Scope
from hami_dra.kube.reflector import Reflector
from hami_dra.kube.waiting import wait_at_most

log = logging.getLogger(__name__)


def uninstalling_until(lease: Lease | None) -> datetime | None:
    text = lease.metadata.annotations.get(names.LEAVING_UNTIL) if lease is not None else None
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        log.warning("lease annotation %s: %r is not a time; it counts as over", names.LEAVING_UNTIL, text)
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


class UninstallWatch:
    def __init__(self, cluster: Cluster, settings: LeadershipSettings, clock: Clock) -> None:
        self._clock = clock
        self._name = f"{settings.namespace}/{settings.lease_name}"
        self._changed = asyncio.Event()
        self._deleted: Lease | None = None
        """The lease as it was deleted: its marker counts on, since uninstall deletes a lease that nobody holds."""
        lease: Scope = {"namespace": settings.namespace, "field_selector": f"metadata.name={settings.lease_name}"}
        self._reflector = Reflector(cluster, LEASE, self, scope=lease, sleep=clock.sleep)

    def changed(self, old: Lease | None, new: Lease | None) -> None:
        self._deleted = old if new is None else None
        self._changed.set()

    def synced(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        await self._reflector.run()

    def seconds_left(self) -> float:
        """Return the seconds for which the marker is still valid; 0 if there is none."""
        until = uninstalling_until(self._reflector.store.get(self._name) or self._deleted)
        return max(0.0, (until - self._clock.wall()).total_seconds()) if until is not None else 0.0

    async def wait_leaving(self) -> None:
        await self._reflector.wait_synced()
        while not self.seconds_left():
            self._changed.clear()
            await self._changed.wait()

    async def wait_back(self) -> None:
        await self._reflector.wait_synced()
        while left := self.seconds_left():
            log.warning("hami-dra is being uninstalled: this controller does nothing for the next %.0f s", left)
            self._changed.clear()
            await wait_at_most(self._changed, left)
