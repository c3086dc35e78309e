"""Allocation inputs of a pod's claims, for hami-dra and for kube-scheduler, and their columns of cards. Pure."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from controller.allocation.errors import AllocatorError
from controller.allocation.features import FeatureGates
from controller.allocation.ownership import Owner, Scope, owners
from controller.allocation.prefilter import request_columns
from controller.allocation.prepared import prepared
from controller.allocation.request import AllocationInput
from controller.decide.pre_score import Wanted
from controller.decide.scheduling_request import Options, SchedulingRequest
from controller.inventory.inventory import Inventory
from hami_dra.api import names
from hami_dra.api.resource import ResourceClaim

MOST_ALTERNATIVES: Final = 256
"""Requests of all claims of one pod, each alternative counted: the most that Kubernetes allows in
one claim (32 requests of 8 alternatives). Preparing a decision takes time in proportion: 30 ms for
this many.
"""


def inputs_of(
    inventory: Inventory, scheduling_request: SchedulingRequest, options: Options
) -> tuple[AllocationInput, AllocationInput]:
    """Return the claims without an allocation: those that hami-dra allocates, and those left to
    kube-scheduler.

    Raises AllocatorError.
    """
    pod = scheduling_request.pod
    if pod.spec.unreadable:
        raise AllocatorError(f"Pod {pod.key}: {pod.spec.unreadable}; create it again with less of that")

    def problem(claims: list[ResourceClaim]) -> AllocationInput:
        return prepared(inventory, claims, options.gates, _ignored_taints(options.fence_key))

    waiting = [entry.claim for entry in scheduling_request.claims if entry.claim.status.allocation is None]
    _require_few_alternatives(waiting)
    everything, nothing = problem(waiting), _no_claims(options.gates)
    if options.managed is None:
        return everything, nothing
    found = owners(inventory, everything, options.managed)
    if not {Owner.MIXED, Owner.FOREIGN}.intersection(found):
        return everything, nothing
    for claim, owner in zip(waiting, found, strict=True):
        if owner is Owner.MIXED:
            raise AllocatorError(
                f"ResourceClaim {claim.key}: spec.devices.requests: some can only be met by devices that hami-dra manages, "
                "others only by devices that it does not; split them into two claims"
            )
    foreign = [claim for claim, owner in zip(waiting, found, strict=True) if owner is Owner.FOREIGN]
    ours = [claim for claim, owner in zip(waiting, found, strict=True) if owner is not Owner.FOREIGN]
    return problem(ours), problem(foreign)


@lru_cache(maxsize=16)
def _ignored_taints(fence_key: str) -> frozenset[str]:
    return frozenset({fence_key})


@lru_cache(maxsize=16)
def _no_claims(gates: FeatureGates) -> AllocationInput:
    return AllocationInput((), gates, frozenset())


def _require_few_alternatives(claims: Iterable[ResourceClaim]) -> None:
    """Raise AllocatorError if the claims have more alternatives than one decision may evaluate."""
    count = sum([len(request.first_available) or 1 for claim in claims for request in claim.spec.devices.requests])
    if count > MOST_ALTERNATIVES:
        raise AllocatorError(
            f"the claims of the pod have {count} requests, with each alternative counted; hami-dra decides on at most "
            f"{MOST_ALTERNATIVES} at once. Use fewer requests, fewer alternatives in firstAvailable, or several pods"
        )


def requested_devices_of(
    inventory: Inventory, scheduling_request: SchedulingRequest, problem: AllocationInput, scope: Scope
) -> Wanted:
    """Return every request of the problem with the columns of its alternatives, up to date."""
    policies = scheduling_request.policies
    return [
        (
            group,
            [
                request_columns(
                    inventory,
                    view,
                    scope,
                    problem.ignored_taints,
                    policies.preferences_of(view.claim_key, view.name),
                    mutex=names.MUTEX in policies.for_claim(view.claim_key).keys,
                )
                for view in group.alternatives
            ],
        )
        for claim in problem.claims
        for group in claim.requests
    ]
