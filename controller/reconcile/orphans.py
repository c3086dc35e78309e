"""Frees what a crash left behind: claims with our annotation that nobody refers to.

Two leftovers are possible: an allocation without a reservation (an Unreserve, a reservation dropped by hand), which no other
component ever frees; and the finalizer and annotation of a claim that was never allocated in the end. Either must have
been so for a minute, and is then checked live: the claim read again, and all pods of its namespace listed.
Order: allocation, then finalizer and annotation. Claims without our annotation are never touched.
"""

import asyncio
import logging

from controller.reconcile import messages
from controller.reconcile.claims import ClaimWriter, Rejected, Stale
from controller.reconcile.context import Context
from controller.reconcile.pods import claim_keys, is_live
from hami_dra.api.kinds import POD, RESOURCE_CLAIM
from hami_dra.api.resource import ResourceClaim
from hami_dra.cluster.protocol import ClusterError

log = logging.getLogger(__name__)


class Orphans:
    def __init__(self, context: Context, claims: ClaimWriter) -> None:
        self._cluster = context.cluster
        self._world = context.world
        self._settings = context.settings
        self._clock = context.clock
        self._events = context.events
        self._metrics = context.metrics
        self._claims = claims
        self._since: dict[str, float] = {}
        """Claim uid -> when it was first seen without anybody."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._clock.sleep(self._settings.orphan_interval)
            await self.sweep()

    async def sweep(self) -> None:
        now = self._clock.monotonic()
        suspects = [claim for claim in self._world.claims.store if self._looks_lost(claim)]
        self._since = {claim.metadata.uid: self._since.get(claim.metadata.uid, now) for claim in suspects}
        for claim in suspects:
            if now - self._since[claim.metadata.uid] >= self._settings.orphan_age:
                await self._free(claim)
                await asyncio.sleep(0)

    def _looks_lost(self, claim: ResourceClaim) -> bool:
        if not self._claims.is_ours(claim) or claim.status.reserved_for:
            return False
        return not any(is_live(pod) for pod in self._world.pods_of(claim.key))

    async def _free(self, claim: ResourceClaim) -> None:
        try:
            newest = await self._claims.read(claim)
            if not self._looks_lost(newest) or await self._is_used(newest):
                self._since.pop(claim.metadata.uid, None)
                return
            if await self._claims.clear(newest, self._looks_lost):
                self._metrics.orphans_freed.inc()
                note = "allocation freed: nobody had reserved it and no pod referred to the claim"
                self._events.tell(RESOURCE_CLAIM, newest, messages.warning(messages.ORPHAN_FREED, note), "Free")
                newest = await self._claims.read(newest)
            await self._claims.unmark(newest, self._looks_lost)
        except Stale as error:
            log.debug("orphan: %s", error)
        except (Rejected, ClusterError) as error:
            log.warning("orphaned claim %s not freed yet: %s", claim.key, error)

    async def _is_used(self, claim: ResourceClaim) -> bool:
        """Asked live. Raises ClusterError."""
        pods = await self._cluster.list(POD, namespace=claim.metadata.namespace)
        return any(claim.key in claim_keys(pod) for pod in pods.items if is_live(pod))
