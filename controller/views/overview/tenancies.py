"""Tenants of each device, derived from claims and pods.

Called by `read`. In: all claims, all pods, and deleted claims whose devices are still held. Out:
tenants by device. Pure; considers only allocated claims.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from controller.inventory import Amounts, Device, DeviceId, Holding, VanishedClaim, holdings_of, totals_of, used_of
from controller.views.overview.model import Tenant
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_finished
from hami_dra.api.resource import ResourceClaim


class _Tenancy(NamedTuple):
    namespace: str
    claim: str
    consumers: tuple[str, ...]
    """Names of pods."""
    holding: Holding | None
    """None: admin access."""
    vanished: bool = False


class Tenancies:
    """Tenants by device, also of devices that no slice publishes: those are known from claims alone."""

    def __init__(
        self, claims: Iterable[ResourceClaim], pods: Iterable[Pod], vanished: Iterable[VanishedClaim] = ()
    ) -> None:
        allocated = [claim for claim in claims if claim.status.allocation is not None]
        users = _users(pods, {claim.key for claim in allocated if not claim.status.reserved_for})
        self._held: dict[DeviceId, list[_Tenancy]] = defaultdict(list)
        for claim in sorted(allocated, key=lambda claim: claim.key):
            reserved = {each.name for each in claim.status.reserved_for if each.resource == "pods"}
            consumers = tuple(sorted(reserved or users.get(claim.key, set())))
            namespace, name = claim.metadata.namespace, claim.metadata.name
            for holding in holdings_of(claim.status.allocation):
                self._held[holding.device].append(_Tenancy(namespace, name, consumers, holding))
            watched = {DeviceId(each.driver, each.pool, each.device) for each in claim.results if each.admin_access}
            for device in watched:
                self._held[device].append(_Tenancy(namespace, name, consumers, None))
        for gone in vanished:
            names = tuple(each.key.rpartition("/")[2] for each in gone.holders)
            for holding in gone.holdings:
                self._held[holding.device].append(_Tenancy(gone.namespace, gone.name, names, holding, vanished=True))

    def devices(self) -> set[DeviceId]:
        """Return the devices that are held, or accessed with admin access."""
        return set(self._held)

    def of(self, device_id: DeviceId, device: Device | None) -> tuple[Tenant, ...]:
        """Return the tenants by claim. `device`: as published; None: amounts are unknown, and 0."""
        return tuple(_tenant(device_id, device, entry) for entry in self._held.get(device_id, ()))


def _users(pods: Iterable[Pod], wanted: set[str]) -> Mapping[str, set[str]]:
    """Return claim → pods that refer to it, for claims without reservations (files often have none)."""
    found: dict[str, set[str]] = defaultdict(set)
    for pod in pods if wanted else ():
        if not is_finished(pod):
            for key in claim_keys(pod):
                if key in wanted:
                    found[key].add(pod.metadata.name)
    return found


def _tenant(device_id: DeviceId, device: Device | None, entry: _Tenancy) -> Tenant:
    slots = cores = memory = 0
    holding, consumers = entry.holding, entry.consumers
    exclusive = whole = holding is not None and holding.consumed is None
    if device is not None and holding is not None:
        slots, cores, memory = used = used_of(device, 1, holding.consumed or {}, exclusive=exclusive)
        whole = exclusive or _is_whole(used, totals_of(device))
    return Tenant(
        namespace=entry.namespace,
        claim=entry.claim,
        pod=consumers[0] if consumers else "",
        more_pods=consumers[1:],
        device=device_id.device,
        memory=memory,
        cores=cores,
        shares=slots,
        whole=whole,
        admin=holding is None,
        vanished=entry.vanished,
    )


def _is_whole(used: Amounts, totals: Amounts) -> bool:
    """Return whether nothing is left for another tenant: all cores and all memory, or all slots of
    a device that publishes neither.

    Amounts are (slots, cores, memory). A device of 10 slots, 100 cores and 24 GiB:

    >>> _is_whole((1, 100, 24), (10, 100, 24)), _is_whole((1, 0, 24), (10, 100, 24))
    (True, False)
    >>> _is_whole((1, 0, 0), (10, 0, 0)), _is_whole((10, 0, 0), (10, 0, 0))
    (False, True)
    """
    slots, *published = zip(used, totals, strict=True)
    limited = [(some, total) for some, total in published if total] or [slots]
    return all(some >= total for some, total in limited)
