"""Whose business a claim is. Called by `demand` for each open claim; the rule itself is in `controller.allocation.scope`."""

from controller.allocation.errors import AllocatorError
from controller.allocation.features import FeatureGates
from controller.allocation.request import prepare
from controller.allocation.scope import Owner, owners
from controller.inventory.inventory import Inventory
from hami_dra.api.resource import ResourceClaim


def owner_of(inventory: Inventory, claim: ResourceClaim, managed: frozenset[str], gates: FeatureGates) -> Owner:
    """A claim that cannot be evaluated (missing class, bad parameters) is UNKNOWN: `decide` says why."""
    try:
        problem = prepare([claim], inventory.classes, features=gates)
    except AllocatorError:
        return Owner.UNKNOWN
    [owner] = owners(inventory, problem, managed)
    return owner
