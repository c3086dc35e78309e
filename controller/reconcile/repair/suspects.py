"""Leaked claims to handle in a sweep: each after a minute, namespaces in turn, later each time.

Used by `leaked_claims`. In: the claims that look leaked now, and the time. Out: those to handle in
this sweep. Pure.
"""

from collections.abc import Iterable
from itertools import chain, groupby, zip_longest

from msgspec import Struct

from hami_dra.api.resource import ResourceClaim
from hami_dra.kube.backoff import doubled


class _Suspicion(Struct):
    due: float
    """When the claim may be handled."""
    tries: int = 0


class Suspects:
    """Remember claims that look leaked.

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
