"""Frees what a crash left behind: claims with our annotation that no pod refers to.

Two leftovers are possible: an allocation without a reservation (an Unreserve, a reservation dropped
by hand), which no other component ever frees; and the finalizer and annotation of a claim that was
never allocated in the end. Either must have existed for a minute. Claims without our annotation are
never touched.

An allocation holds a device, so it has lanes of its own: forged annotations, which any tenant may
write on thousands of claims, cannot delay it. Before an allocation is freed, the pods of the
namespace are listed, once for all its claims that are due; every write is guarded by the claim's
resourceVersion, and changed claims are checked again. Annotation and finalizer of an unallocated
claim have no effect on pods, so our own copy of the pods suffices for them.

A sweep only starts work and never waits for it. The number of claims that one sweep adds is limited
(`_CLAIMS_MOST`), and so are the time for one claim (`_PATIENCE`) and the concurrent work for one
namespace (`Lanes`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from controller.reconcile.binding import ClaimWriter, Rejected, Stale
from controller.reconcile.repair.suspects import Suspects
from controller.reconcile.runtime import Context, messages
from hami_dra.api.kinds import POD, RESOURCE_CLAIM
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_done
from hami_dra.api.resource import ResourceClaim
from hami_dra.kube.lanes import Lanes
from hami_dra.kube.protocol import ClusterError

log = logging.getLogger(__name__)

_CLAIMS_MOST: Final = 100
"""Claims that one sweep handles, of each of the two leftovers: at most three requests for each."""
_LISTS_AT_ONCE: Final = 8
_CLAIMS_AT_ONCE: Final = 16
_PER_NAMESPACE: Final = 4
"""Concurrent listings of namespaces and writes of each of the two leftovers, and those for one
namespace.
"""
_PATIENCE: Final = 20.0
"""Seconds for one request or claim: a claim that another client keeps changing must not delay the
others.
"""
_ALLOCATION_BACKOFF: Final = 600.0
_MARK_BACKOFF: Final = 3_600.0
"""Largest number of seconds between two attempts on one claim."""


class LeakedClaims:
    def __init__(self, context: Context, claims: ClaimWriter) -> None:
        self._cluster = context.cluster
        self._informers = context.informers
        self._settings = context.settings.repair
        self._clock = context.clock
        self._events = context.events
        self._metrics = context.metrics
        self._claims = claims
        self._guard = context.guard("orphans")
        self._allocated = Suspects(self._settings.orphan_age, _ALLOCATION_BACKOFF)
        self._marked = Suspects(self._settings.orphan_age, _MARK_BACKOFF)
        self._lists = Lanes(1, _LISTS_AT_ONCE)
        self._frees = Lanes(_PER_NAMESPACE, _CLAIMS_AT_ONCE)
        self._unmarks = Lanes(_PER_NAMESPACE, _CLAIMS_AT_ONCE)

    async def run(self) -> None:
        """Run until cancelled. Raises LeadershipLost, in an exception group."""
        async with self._lists, self._frees, self._unmarks:
            while True:
                await self._clock.sleep(self._settings.orphan_interval)
                with self._guard.each("sweep"):
                    self._free_allocations()
                    self._remove_marks()

    def _free_allocations(self) -> None:
        """Free unused allocations: one LIST for each of their namespaces, at most two writes for
        each claim.
        """
        by_namespace: dict[str, list[ResourceClaim]] = {}
        for claim in self._due(self._allocated, self._has_lost_allocation):
            by_namespace.setdefault(claim.metadata.namespace, []).append(claim)
        for namespace, claims in by_namespace.items():
            self._lists.add(namespace, namespace, self._guarded(namespace, partial(self._free_in, namespace, claims)))

    def _remove_marks(self) -> None:
        """Remove annotation and finalizer from claims that are not allocated: one write for
        each.
        """
        for claim in self._due(self._marked, self._has_lost_mark):
            work = self._guarded(claim.key, partial(self._remove_mark, claim))
            self._unmarks.add(claim.metadata.namespace, claim.key, work)

    def _guarded(self, key: str, work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        return lambda: self._guard.run(key, work())

    # --- selection ---

    def _due(self, suspects: Suspects, looks_lost: Callable[[ResourceClaim], bool]) -> list[ResourceClaim]:
        lost = [claim for claim in self._informers.claims.store if looks_lost(claim)]
        now = self._clock.monotonic()
        due = suspects.due(lost, now, _CLAIMS_MOST)
        for claim in due:
            suspects.tried(claim, now)
        return due

    def _has_lost_allocation(self, claim: ResourceClaim) -> bool:
        return claim.status.allocation is not None and self._looks_lost(claim)

    def _has_lost_mark(self, claim: ResourceClaim) -> bool:
        return claim.status.allocation is None and self._looks_lost(claim)

    def _looks_lost(self, claim: ResourceClaim) -> bool:
        if not self._claims.is_ours(claim) or claim.status.reserved_for:
            return False
        return all(map(is_done, self._informers.pods_of(claim.key)))

    # --- one namespace, one claim ---

    async def _free_in(self, namespace: str, claims: Iterable[ResourceClaim]) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                pods = await self._cluster.list(POD, namespace=namespace)
        except (ClusterError, TimeoutError) as error:
            log.warning("namespace %s: orphaned claims not freed yet: its pods cannot be listed: %s", namespace, error)
            return
        used = {key for pod in pods.items if not is_done(pod) for key in claim_keys(pod)}
        for claim in claims:
            if claim.key not in used:
                work = self._guarded(claim.key, partial(self._free, claim))
                self._frees.add(namespace, claim.key, work)

    async def _free(self, claim: ResourceClaim) -> None:
        async with self._trying(claim):
            if not await self._claims.clear(claim, self._looks_lost):
                return
            self._metrics.orphans_freed.inc()
            note = "allocation freed: it had no reservation, and no pod referred to the claim"
            self._events.report(RESOURCE_CLAIM, claim, messages.warning(messages.ORPHAN_FREED, note), "Free")
            await self._claims.unmark(self._informers.claim(claim.key) or claim, self._looks_lost)

    async def _remove_mark(self, claim: ResourceClaim) -> None:
        async with self._trying(claim):
            await self._claims.unmark(claim, self._looks_lost)

    @asynccontextmanager
    async def _trying(self, claim: ResourceClaim) -> AsyncIterator[None]:
        """Give up for now on work that fails or takes too long."""
        try:
            async with asyncio.timeout(_PATIENCE):
                yield
        except Stale as error:
            log.debug("orphan: %s", error)
        except (Rejected, ClusterError, TimeoutError) as error:
            log.warning("orphaned claim %s not freed yet: %s", claim.key, error or f"not done within {_PATIENCE:g} s")
