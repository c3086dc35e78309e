"""Claims whose pods have all ended, until the claim controller frees them.

A second may pass between the two, in which no pod must be evicted for devices that are about to be
free.
"""

from controller.preemption import PATIENCE
from controller.reconcile.runtime import Context
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_bound, is_done
from hami_dra.api.resource import ResourceClaim


class LeftClaims:
    def __init__(self, context: Context) -> None:
        self._informers = context.informers
        self._clock = context.clock
        self._since: dict[str, float] = {}
        """Key → when its last pod ended, at most; some are in use again."""

    def start(self) -> None:
        """Count the claims that no pod uses when the term begins as left now."""
        now = self._clock.monotonic()
        claims = [claim for claim in self._informers.claims.store if claim.status.allocation is not None]
        self._since = {claim.key: now for claim in claims if not self._is_used(claim.key)}

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and is_bound(old) and (new is None or not is_bound(new)):
            for key in claim_keys(old):
                if _is_allocated(self._informers.claim(key)):
                    self._since[key] = self._clock.monotonic()

    def claim_changed(self, key: str, new: ResourceClaim | None) -> None:
        if not _is_allocated(new):
            self._since.pop(key, None)

    def uids(self) -> frozenset[str]:
        """Return the claims that will be free. One that is not free a minute after its last pod ended is
        not waited for any more: another controller may want it so.
        """
        now, found = self._clock.monotonic(), []
        for key, since in list(self._since.items()):
            claim = self._informers.claim(key)
            if claim is None or now > since + PATIENCE or self._is_used(key):
                del self._since[key]
            else:
                found.append(claim.metadata.uid)
        return frozenset(found)

    def _is_used(self, key: str) -> bool:
        return not all(map(is_done, self._informers.pods_of(key)))


def _is_allocated(claim: ResourceClaim | None) -> bool:
    return claim is not None and claim.status.allocation is not None
