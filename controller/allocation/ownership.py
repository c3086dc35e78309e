"""The drivers whose devices a search may use, and the owner of a claim (docs/design/decision.md).

Called by `decide`, `reconcile` and `simulation`. Pure.
"""

from collections.abc import Iterable
from enum import Enum

from msgspec import Struct

from controller.allocation.errors import AllocatorError, SelectorOverBudget
from controller.allocation.features import FeatureGates
from controller.allocation.prepared import prepared
from controller.allocation.request import AllocationInput, ResolvedRequest
from controller.allocation.selectors import Selector, over_budget
from controller.inventory.inventory import Inventory
from controller.inventory.model import Pool
from controller.inventory.selector_budget import OverBudget
from hami_dra.api.resource import ResourceClaim


class Scope(Struct, frozen=True):
    """A set of drivers: the managed ones, or with `foreign` all others. `managed`: None = all."""

    managed: frozenset[str] | None = None
    foreign: bool = False
    vendor_rules: bool = True

    def covers(self, driver: str) -> bool:
        ours = self.managed is None or driver in self.managed
        return ours is not self.foreign

    def pools(self, pools: Iterable[Pool]) -> list[Pool]:
        return [pool for pool in pools if self.covers(pool.driver)]


class Owner(Enum):
    """The owner of a claim, by the drivers of the devices that match it."""

    MANAGED = "managed"
    FOREIGN = "foreign"
    MIXED = "mixed"
    """Some requests can only be met by managed devices, others only by foreign ones: it must be split."""
    UNKNOWN = "unknown"
    """No device matches it now, or it cannot be evaluated."""


class ClaimOwnership(Struct, frozen=True):
    owner: Owner
    drivers: frozenset[str] = frozenset()
    """The managed drivers whose devices it may get; devices with admin access are not allocated, so
    they do not count.
    """


def ownership_of(
    inventory: Inventory, claim: ResourceClaim, managed: frozenset[str] | None, features: FeatureGates
) -> ClaimOwnership:
    """Return the owner of a claim. Raises SliceSpent.

    A claim that cannot be evaluated (missing class, bad parameters, over budget) is UNKNOWN:
    `decide` reports why.
    """
    try:
        problem = prepared(inventory, [claim], features, checks_namespaces=False)
        [owner] = owners(inventory, problem, managed)
        views = [view for view in problem.views if not view.admin_access]
        drivers = frozenset[str]().union(*(_drivers(inventory, view, managed) for view in views))
    except (AllocatorError, SelectorOverBudget):
        return ClaimOwnership(Owner.UNKNOWN)
    return ClaimOwnership(owner, drivers if managed is None else drivers & managed)


def owners(inventory: Inventory, problem: AllocationInput, managed: frozenset[str] | None) -> list[Owner]:
    """Return the owner of each claim of the problem.

    A class that matches both kinds of driver is managed: only managed devices are candidates then.
    """
    return [_owner(inventory, [group.alternatives for group in claim.requests], managed) for claim in problem.claims]


def _owner(inventory: Inventory, requests: list[tuple[ResolvedRequest, ...]], managed: frozenset[str] | None) -> Owner:
    ours = foreign = False
    for alternatives in requests:
        drivers = frozenset[str]().union(*[_drivers(inventory, view, managed) for view in alternatives])
        if drivers and (managed is None or not managed.isdisjoint(drivers)):
            ours = True
        elif drivers:
            foreign = True
    if ours:
        return Owner.MIXED if foreign else Owner.MANAGED
    return Owner.FOREIGN if foreign else Owner.UNKNOWN


def _drivers(inventory: Inventory, view: ResolvedRequest, managed: frozenset[str] | None) -> frozenset[str]:
    """Return the drivers of the devices that class and request select. Raises SelectorOverBudget,
    SliceSpent.

    If no device selected by the class is managed, the cost of the request's own selectors does not
    matter.
    """
    try:
        return matching_drivers(inventory, view)
    except SelectorOverBudget:
        of_class = _expressions(view.class_selectors)
        if managed is None or (drivers := inventory.verdicts.drivers((), of_class)) & managed:
            raise
        return drivers


def _expressions(selectors: Iterable[Selector]) -> tuple[str, ...]:
    return tuple([selector.expression for selector in selectors])


def matching_drivers(inventory: Inventory, view: ResolvedRequest) -> frozenset[str]:
    """Return the drivers of the devices that class and request select, in use or not; the same
    until devices are published.

    Raises SelectorOverBudget, SliceSpent.
    """
    published = inventory.devices.structure
    known = view.shape.drivers
    if known is not None and known[0] is published and known[1] == published.version:
        return known[2]
    try:
        drivers = inventory.verdicts.drivers(_expressions(view.selectors), _expressions(view.class_selectors))
    except OverBudget as error:
        raise over_budget(view.all_selectors, error) from error
    view.shape.drivers = published, published.version, drivers
    return drivers
