"""The writes to a claim, each carried on until its outcome is known.

Called by commit, undo, orphans and foreign. In: the newest known claim and what to write. Out: the claim as written, or one
of the errors below. A write without a clear answer is settled by reading: no caller ever has to guess. Whatever is learnt on
the way goes to the world at once. Must not decide anything.

Why an unclear status write may be sent again: it is guarded by the resourceVersion. Either the first one lands and the second
conflicts, and the read after that finds our own allocation; or the second one lands and voids the first.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controller.reconcile import bodies
from controller.reconcile.context import Context
from hami_dra.api.core import Pod
from hami_dra.api.kinds import RESOURCE_CLAIM
from hami_dra.api.resource import ResourceClaim
from hami_dra.cluster.backoff import Backoff
from hami_dra.cluster.protocol import ClusterError, Conflict, Forbidden, Invalid, NotFound

log = logging.getLogger(__name__)

_CONFLICTS_MOST = 20
_FIRST_PAUSE = 0.02
"""Seconds before the second try of a write; doubles. Somebody who changes a claim all the time must not keep us busy."""


class Stale(Exception):
    """The world is not as it was when this was decided: decide again."""


class Rejected(Exception):
    """The API server refuses the content or the right: the same again will not help. The message is for people."""


@dataclass(frozen=True, slots=True)
class Share:
    """What identifies an allocation as the one we wrote."""

    request: str
    device: str
    share_id: str


class ClaimWriter:
    def __init__(self, context: Context) -> None:
        self._cluster = context.cluster
        self._writer = context.writer
        self._world = context.world
        self._clock = context.clock
        self._metrics = context.metrics
        self._installation = context.settings.installation
        self._clearing: set[str] = set()

    def is_ours(self, claim: ResourceClaim) -> bool:
        return bodies.is_ours(claim, self._installation)

    def is_clearing(self, claim: ResourceClaim) -> bool:
        """Whether it is us who take this allocation back right now."""
        return claim.metadata.uid in self._clearing

    async def mark(self, claim: ResourceClaim) -> ResourceClaim:
        """Finalizer and annotation, unless they are there. Raises Stale, Rejected, LeadershipLost."""
        backoff = Backoff(_FIRST_PAUSE)
        for _ in range(_CONFLICTS_MOST):
            _check_free(claim)
            if bodies.is_marked(claim, self._installation):
                return claim
            written, claim = await self._try(claim, bodies.mark(claim, self._installation), "", backoff)
            if written:
                return claim
        raise Stale(f"claim {claim.key}: changed too often")

    async def allocate(
        self, claim: ResourceClaim, allocation: bodies.Json, pod: Pod, may_go_on: Callable[[], bool]
    ) -> ResourceClaim:
        """The one status write of a marked claim. Raises Stale, Rejected, LeadershipLost; then it is not allocated by us."""
        backoff = Backoff(_FIRST_PAUSE)
        wanted = _shares(allocation)
        unclear = False
        for _ in range(_CONFLICTS_MOST):
            if not may_go_on():
                if unclear:
                    await self._void(claim, wanted)
                raise Stale("the fence is not in force")
            written, claim = await self._try(claim, bodies.allocate(claim, allocation, pod), "status", backoff)
            if written or _shares_of(claim) == wanted:
                return claim
            unclear = True
            _check_free(claim)
            claim = await self.mark(claim)
        await self._void(claim, wanted)
        raise Stale(f"claim {claim.key}: changed too often")

    async def clear(self, claim: ResourceClaim, still_wanted: Callable[[ResourceClaim], bool]) -> bool:
        """Take the allocation back while `still_wanted(newest)` holds. Returns whether we did. Raises LeadershipLost, Rejected.

        A claim that is being deleted is never written: the claim controller clears it.
        """
        backoff = Backoff(_FIRST_PAUSE)
        uid = claim.metadata.uid
        self._clearing.add(uid)
        try:
            while claim.status.allocation is not None and _is_writable(claim) and still_wanted(claim):
                written, claim = await self._try(claim, bodies.clear(claim), "status", backoff)
                if written:
                    return True
        except Stale:
            return False
        finally:
            self._clearing.discard(uid)
        return False

    async def unmark(self, claim: ResourceClaim, still_wanted: Callable[[ResourceClaim], bool]) -> None:
        """Our annotation and the finalizer go from a claim that is not allocated. Raises LeadershipLost, Rejected."""
        backoff = Backoff(_FIRST_PAUSE)
        try:
            while (
                claim.status.allocation is None and self.is_ours(claim) and _is_writable(claim) and still_wanted(claim)
            ):
                written, claim = await self._try(claim, bodies.unmark(claim), "", backoff)
                if written:
                    return
        except Stale:
            return

    async def read(self, claim: ResourceClaim) -> ResourceClaim:
        """The newest state, however long it takes. Raises Stale when the claim is gone."""
        backoff = Backoff()
        while True:
            try:
                found = await self._cluster.get(RESOURCE_CLAIM, claim.metadata.name, claim.metadata.namespace)
            except NotFound:
                raise Stale(f"claim {claim.key} is gone") from None
            except ClusterError as error:
                log.info("claim %s: cannot be read yet: %s", claim.key, error)
                await self._clock.sleep(backoff.next())
                continue
            self._world.observe_claim(found)
            if found.metadata.uid != claim.metadata.uid:
                raise Stale(f"claim {claim.key} was made anew")
            return found

    async def _try(
        self, claim: ResourceClaim, patch: dict[str, Any], subresource: str, backoff: Backoff
    ) -> tuple[bool, ResourceClaim]:
        """(True, as written) or (False, as it is now). Raises Stale when the claim is gone, Rejected."""
        meta = claim.metadata
        try:
            written = await self._writer.patch(
                RESOURCE_CLAIM, meta.name, patch, namespace=meta.namespace, subresource=subresource
            )
        except NotFound:
            raise Stale(f"claim {claim.key} is gone") from None
        except Conflict:
            self._metrics.conflicts.inc()
            await self._clock.sleep(backoff.next())
            return False, await self.read(claim)
        except (Invalid, Forbidden) as error:
            raise Rejected(str(error)) from error
        except ClusterError as error:
            self._metrics.unclear_writes.inc()
            log.info("claim %s: %s; reading what became of it", claim.key, error)
            await self._clock.sleep(backoff.next())
            return False, await self.read(claim)
        self._world.observe_claim(written)
        return True, written

    async def _void(self, claim: ResourceClaim, wanted: frozenset[Share]) -> None:
        """Make sure that a status write of ours without an answer never lands: any other change of the claim voids it."""
        await self.unmark(claim, lambda _: True)
        try:
            newest = await self.read(claim)
        except Stale:
            return
        await self.clear(newest, lambda now: _shares_of(now) == wanted)


def _is_writable(claim: ResourceClaim) -> bool:
    return claim.metadata.deletion_timestamp is None


def _check_free(claim: ResourceClaim) -> None:
    """Raises Stale when the claim may not be allocated any more."""
    if not _is_writable(claim):
        raise Stale(f"claim {claim.key} is being deleted")
    if claim.status.allocation is not None:
        raise Stale(f"claim {claim.key} was allocated by somebody else")


def _shares(allocation: bodies.Json) -> frozenset[Share]:
    return frozenset(
        Share(result["request"], f"{result['driver']}/{result['pool']}/{result['device']}", result.get("shareID", ""))
        for result in allocation["devices"]["results"]
    )


def _shares_of(claim: ResourceClaim) -> frozenset[Share] | None:
    allocation = claim.status.allocation
    if allocation is None:
        return None
    return frozenset(
        Share(result.request, f"{result.driver}/{result.pool}/{result.device}", result.share_id or "")
        for result in allocation.devices.results
    )
