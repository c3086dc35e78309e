"""The writes to a claim: each is attempted a few times, then the caller continues with other work.

Called by commit, undo, orphans and foreign. In: the newest known claim and what to write. Out: the
claim as written, or one of the errors below. Newer versions read meanwhile go to the informers at
once. Must not decide anything.

After a conflict the claim is read and the write sent again soon; any other failure is retried with
longer pauses. When either is exhausted (`_Attempts`), `GivenUp` is raised: a claim that cannot be
written, or that another client keeps changing, must not block the following ones. Giving up is safe
for all writes but one. An allocation without a clear answer may still take effect, and its devices
must not be allocated to another claim before that is settled: `allocate` returns only when it can
no longer happen.

Why an unclear status write may be sent again: it is guarded by the resourceVersion. Either the
first one takes effect and the second conflicts, and the read after that finds our own allocation;
or the second one takes effect and voids the first.
"""

import logging
from collections.abc import Callable
from typing import Any

from controller.reconcile.runtime import Clock, Context, patches
from hami_dra.api.allocator import with_allocator
from hami_dra.api.kinds import RESOURCE_CLAIM
from hami_dra.api.resource import AllocationResult, ResourceClaim
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.protocol import ClusterError, Conflict, Forbidden, Invalid, NotFound

log = logging.getLogger(__name__)

_CONFLICTS_MOST = 10
_CONFLICT_PAUSE = 0.02
"""Conflicts of one write, and seconds before it is sent again after the first; doubles: ten seconds in total."""
_FAILURES_MOST = 6
_FAILURE_PAUSE = 0.2
"""Other failures of one write and its reads, and the pause after the first; doubles: six seconds in total."""
_LATEST_WRITE = 120.0
"""Seconds after which no write can still take effect: twice kube-apiserver's default limit for a request."""
_READ_AGAIN = 15.0


class Stale(Exception):
    """The cluster changed since this was decided: decide again."""


class GivenUp(Stale):
    """Several attempts failed: continue with other work, and try again later."""


class Rejected(Exception):
    """The API server refuses the content or the right: a retry will not help. The message is for people."""


_Shares = frozenset[tuple[str, str, str]]
"""The identity of an allocation that we wrote: (request, device, shareID) of its results."""


class ClaimWriter:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._installation = context.settings.binding.installation
        self._clearing: set[str] = set()

    def is_ours(self, claim: ResourceClaim) -> bool:
        return patches.is_ours(claim, self._installation)

    def is_clearing(self, claim: ResourceClaim) -> bool:
        return claim.metadata.uid in self._clearing

    @staticmethod
    def is_ready(claim: ResourceClaim) -> bool:
        """Return whether the claim may be allocated, and `protect` has nothing to write."""
        return _is_writable(claim) and claim.status.allocation is None and patches.is_protected(claim)

    async def protect(self, claim: ResourceClaim) -> ResourceClaim:
        """Set the finalizer, if missing. Raises Stale, Rejected, LeadershipLost."""
        attempts = _Attempts(self._context.clock)
        while True:
            _check_free(claim)
            if patches.is_protected(claim):
                return claim
            written, claim = await self._try(claim, patches.protect(claim), "", attempts)
            if written:
                return claim

    async def allocate(
        self, claim: ResourceClaim, allocation: patches.Json, consumer: patches.Json, may_go_on: Callable[[], bool]
    ) -> ResourceClaim:
        """Write the status of a protected claim, once. Raises Stale, Rejected, LeadershipLost.

        `consumer`: for whom the claim is reserved (`consumer_of`).

        Afterwards either we have not allocated the claim, or the informers know that we have.
        """
        attempts = _Attempts(self._context.clock)
        allocation = with_allocator(allocation, self._installation)
        wanted = _shares(AllocationResult.from_json(allocation))
        may_land_on = ""
        """resourceVersion that guarded a write without an answer, as long as nothing newer was read."""
        try:
            while may_go_on():
                may_land_on = claim.metadata.resource_version
                written, claim = await self._try(
                    claim, patches.allocate(claim, allocation, consumer), "status", attempts
                )
                if written or _shares(claim.status.allocation) == wanted:
                    return claim
                if claim.metadata.resource_version != may_land_on:
                    may_land_on = ""
                _check_free(claim)
                claim = await self.protect(claim)
            problem = GivenUp("the fence is not in force, or the claims are being listed again")
        except GivenUp as error:
            problem = error
        if may_land_on:
            await self._void(claim, wanted)
        raise problem

    async def clear(self, claim: ResourceClaim, still_wanted: Callable[[ResourceClaim], bool]) -> bool:
        """Deallocate the claim while `still_wanted(newest)` holds. Returns whether this process
        did.

        So is a claim that is being deleted: the claim controller waits for the end of its
        reservation by a pod that will never run. Raises LeadershipLost, Rejected, GivenUp.
        """
        attempts = _Attempts(self._context.clock)
        uid = claim.metadata.uid
        self._clearing.add(uid)
        try:
            while claim.status.allocation is not None and still_wanted(claim):
                written, claim = await self._try(claim, patches.clear(claim), "status", attempts)
                if written:
                    return True
        except GivenUp:
            raise
        except Stale:
            return False
        finally:
            self._clearing.discard(uid)
        return False

    async def read(self, claim: ResourceClaim) -> ResourceClaim:
        """Return the newest state. Raises Stale if the claim is gone, GivenUp."""
        return await self._read(claim, _Attempts(self._context.clock))

    async def _read(self, claim: ResourceClaim, attempts: "_Attempts") -> ResourceClaim:
        while True:
            try:
                found = await self._context.cluster.get(RESOURCE_CLAIM, claim.metadata.name, claim.metadata.namespace)
            except NotFound:
                raise Stale(f"claim {claim.key} is gone") from None
            except ClusterError as error:
                log.info("claim %s: cannot be read yet: %s", claim.key, error)
                await attempts.failed(claim, error)
                continue
            self._context.informers.observe_claim(found)
            if found.metadata.uid != claim.metadata.uid:
                raise Stale(f"claim {claim.key} was created again")
            return found

    async def _try(
        self, claim: ResourceClaim, patch: dict[str, Any], subresource: str, attempts: "_Attempts"
    ) -> tuple[bool, ResourceClaim]:
        """Return (True, claim as written) or (False, present claim). Raises Stale if it is gone, Rejected, GivenUp."""
        meta = claim.metadata
        try:
            written = await self._context.writer.patch(
                RESOURCE_CLAIM, meta.name, patch, namespace=meta.namespace, subresource=subresource
            )
        except NotFound:
            raise Stale(f"claim {claim.key} is gone") from None
        except Conflict:
            self._context.metrics.conflicts.inc()
            await attempts.conflicted(claim)
            return False, await self._read(claim, attempts)
        except (Invalid, Forbidden) as error:
            raise Rejected(str(error)) from error
        except ClusterError as error:
            self._context.metrics.unclear_writes.inc()
            log.info("claim %s: %s; reading what became of it", claim.key, error)
            await attempts.failed(claim, error)
            return False, await self._read(claim, attempts)
        self._context.informers.observe_claim(written)
        return True, written

    async def _void(self, claim: ResourceClaim, wanted: _Shares | None) -> None:
        """Ensure that our unanswered status write cannot take effect later.

        Any other change of the claim voids it. If the API server accepts none, waiting until the
        write's time is over does. If the allocation is there and cannot be removed, the informers
        know it, and it counts like any other.
        """
        try:
            await self._change(claim)
        except (GivenUp, Rejected) as error:
            newest = self._context.informers.claim(claim.key)
            if newest is not None and newest.metadata.resource_version == claim.metadata.resource_version:
                log.info("claim %s: %s; waiting until no write can be under way", claim.key, error)
                await self._context.clock.sleep(_LATEST_WRITE)
        try:
            newest = await self._read_at_last(claim)
            await self.clear(newest, lambda now: _shares(now.status.allocation) == wanted)
        except (Stale, Rejected) as error:
            log.info("%s", error)

    async def _change(self, claim: ResourceClaim) -> None:
        """Change an unallocated claim as `protect` undoes it. Raises LeadershipLost, Rejected, GivenUp."""
        attempts = _Attempts(self._context.clock)
        while claim.status.allocation is None and _is_writable(claim) and patches.is_protected(claim):
            try:
                written, claim = await self._try(claim, patches.unprotect(claim), "", attempts)
            except GivenUp:
                raise
            except Stale:
                return
            if written:
                return

    async def _read_at_last(self, claim: ResourceClaim) -> ResourceClaim:
        """Return the newest state, however long it takes. Raises Stale if the claim is gone."""
        while True:
            try:
                return await self.read(claim)
            except GivenUp as error:
                log.warning("%s", error)
                await self._context.clock.sleep(_READ_AGAIN)


class _Attempts:
    """The remaining attempts of one write and its reads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._conflicts = Backoff(_CONFLICT_PAUSE)
        self._failures = Backoff(_FAILURE_PAUSE)

    async def conflicted(self, claim: ResourceClaim) -> None:
        """Wait before the next attempt. Raises GivenUp if none is left."""
        if self._conflicts.failures == _CONFLICTS_MOST - 1:
            raise GivenUp(f"claim {claim.key}: changed too often")
        await self._clock.sleep(self._conflicts.next())

    async def failed(self, claim: ResourceClaim, error: ClusterError) -> None:
        """Wait before the next attempt. Raises GivenUp if none is left."""
        if self._failures.failures == _FAILURES_MOST - 1:
            raise GivenUp(f"claim {claim.key}: {error}") from error
        await self._clock.sleep(self._failures.next())


def _is_writable(claim: ResourceClaim) -> bool:
    return claim.metadata.deletion_timestamp is None


def _check_free(claim: ResourceClaim) -> None:
    """Raise Stale if the claim may not be allocated any more."""
    if not _is_writable(claim):
        raise Stale(f"claim {claim.key} is being deleted")
    if claim.status.allocation is not None:
        raise Stale(f"claim {claim.key} was allocated by another client")


def _shares(allocation: AllocationResult | None) -> _Shares | None:
    if allocation is None:
        return None
    return frozenset((result.request, result.device_id, result.share_id or "") for result in allocation.devices.results)
