"""Frees what a crash left behind: our allocations without a reservation, of claims that no pod
refers to (an Unreserve, a reservation dropped by hand). No other component ever frees them.

They must have existed for a minute. Allocations by others are never touched. Before an allocation
is freed, the pods of the namespace are listed, once for all its claims that are due; every write is
guarded by the claim's resourceVersion, and changed claims are checked again. The finalizer of a
claim that was never allocated in the end stays: the claim controller removes it with the claim.

A sweep only starts work and never waits for it. The number of claims that one sweep adds is limited
(`_CLAIMS_MOST`), and so are the time for one claim (`_PATIENCE`) and the concurrent work for one
namespace (`Lanes`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import chain, groupby, zip_longest
from typing import Final

from msgspec import Struct

from controller.reconcile.binding import ClaimWriter, Rejected, Stale
from controller.reconcile.runtime import Context, messages
from hami_dra.api.kinds import POD, RESOURCE_CLAIM
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_done
from hami_dra.api.resource import ResourceClaim
from hami_dra.kube.backoff import doubled
from hami_dra.kube.lanes import Lanes
from hami_dra.kube.protocol import ClusterError


class _Suspicion(Struct):
    due: float
    """When the claim may be handled."""
    tries: int = 0


class Suspects:
    """Remember claims that look leaked: each is handled after a minute, namespaces in turn, later each time.

    Times are seconds of the monotonic clock. A claim is due `age` seconds after it was first seen.
    After each attempt it is due `age` seconds later, then twice that, up to `most`. That is not
    forgotten when the claim stops looking leaked in between, so a tenant who alternates its state
    gains nothing.
    """

    def __init__(self, age: float, most: float) -> None:
        self._age = age
        self._most = most
        self._known: dict[str, _Suspicion] = {}
        """By the claim's uid."""

    def due(self, claims: Iterable[ResourceClaim], now: float, limit: int) -> list[ResourceClaim]:
        """Return at most `limit` of the claims that are due: from each namespace in turn, longest overdue first."""
        seen = {claim.metadata.uid: claim for claim in claims}
        self._known = {
            uid: suspicion
            for uid, suspicion in self._known.items()
            if uid in seen or (suspicion.tries and now < suspicion.due)
        }
        ripe: list[tuple[str, float, ResourceClaim]] = []
        for uid, claim in seen.items():
            suspicion = self._known.setdefault(uid, _Suspicion(now + self._age))
            if now >= suspicion.due:
                ripe.append((claim.metadata.namespace, suspicion.due, claim))
        ripe.sort(key=lambda entry: entry[:2])
        by_namespace = [list(group) for _, group in groupby(ripe, key=lambda entry: entry[0])]
        in_turn = [entry for entry in chain.from_iterable(zip_longest(*by_namespace)) if entry is not None]
        return [claim for _, _, claim in in_turn[:limit]]

    def tried(self, claim: ResourceClaim, now: float) -> None:
        suspicion = self._known.setdefault(claim.metadata.uid, _Suspicion(now))
        suspicion.due = now + doubled(self._age, suspicion.tries, self._most)
        suspicion.tries += 1


log = logging.getLogger(__name__)

_CLAIMS_MOST: Final = 100
"""Claims that one sweep handles: at most three requests for each."""
_LISTS_AT_ONCE: Final = 8
_CLAIMS_AT_ONCE: Final = 16
_PER_NAMESPACE: Final = 4
"""Concurrent listings of namespaces, and writes: in all, and for one namespace."""
_PATIENCE: Final = 20.0
"""Seconds for one request or claim: a claim that another client keeps changing must not delay the others."""
_BACKOFF: Final = 600.0
"""Largest number of seconds between two attempts on one claim."""


class LeakedClaims:
    def __init__(self, context: Context, claims: ClaimWriter) -> None:
        self._context = context
        self._claims = claims
        self._guard = context.guard("orphans")
        self._suspects = Suspects(context.settings.repair.orphan_age, _BACKOFF)
        self._lists = Lanes(1, _LISTS_AT_ONCE)
        self._frees = Lanes(_PER_NAMESPACE, _CLAIMS_AT_ONCE)

    async def run(self) -> None:
        """Run until cancelled. Raises LeadershipLost, in an exception group."""
        async with self._lists, self._frees:
            while True:
                await self._context.clock.sleep(self._context.settings.repair.orphan_interval)
                with self._guard.each("sweep"):
                    self._free_allocations()

    def _free_allocations(self) -> None:
        """Free unused allocations: one LIST for each of their namespaces, at most two writes for each claim."""
        by_namespace: dict[str, list[ResourceClaim]] = {}
        for claim in self._due():
            by_namespace.setdefault(claim.metadata.namespace, []).append(claim)
        for namespace, claims in by_namespace.items():
            self._lists.add(namespace, namespace, self._guarded(namespace, partial(self._free_in, namespace, claims)))

    def _guarded(self, key: str, work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        return lambda: self._guard.run(key, work())

    # --- selection ---

    def _due(self) -> list[ResourceClaim]:
        lost = [claim for claim in self._context.informers.claims.store if self._looks_lost(claim)]
        now = self._context.clock.monotonic()
        due = self._suspects.due(lost, now, _CLAIMS_MOST)
        for claim in due:
            self._suspects.tried(claim, now)
        return due

    def _looks_lost(self, claim: ResourceClaim) -> bool:
        if claim.status.reserved_for or not self._claims.is_ours(claim):
            return False
        return all(map(is_done, self._context.informers.pods_of(claim.key)))

    # --- one namespace, one claim ---

    async def _free_in(self, namespace: str, claims: Iterable[ResourceClaim]) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                pods = await self._context.cluster.list(POD, namespace=namespace)
        except (ClusterError, TimeoutError) as error:
            log.warning("namespace %s: orphaned claims not freed yet: its pods cannot be listed: %s", namespace, error)
            return
        used = {key for pod in pods.items if not is_done(pod) for key in claim_keys(pod)}
        for claim in claims:
            if claim.key not in used:
                work = self._guarded(claim.key, partial(self._free, claim))
                self._frees.add(namespace, claim.key, work)

    async def _free(self, claim: ResourceClaim) -> None:
        """Free one claim; give up for now if that fails or takes too long."""
        try:
            async with asyncio.timeout(_PATIENCE):
                if not await self._claims.clear(claim, self._looks_lost):
                    return
        except Stale as error:
            log.debug("orphan: %s", error)
            return
        except (Rejected, ClusterError, TimeoutError) as error:
            log.warning("orphaned claim %s not freed yet: %s", claim.key, error or f"not done within {_PATIENCE:g} s")
            return
        self._context.metrics.orphans_freed.inc()
        note = "allocation freed: it had no reservation, and no pod referred to the claim"
        self._context.events.report(RESOURCE_CLAIM, claim, messages.warning(messages.ORPHAN_FREED, note), "Free")
