"""The requests of a pod's claims, resolved once per decision: classes, selectors, counts,
capacities, parameters.

Called by `decide`. In: the claims that are still to be allocated, in pod order, and the
DeviceClasses. Out: an `AllocationInput`, valid for every node, or AllocatorError. Must not read
nodes or devices.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from controller.allocation import parameters
from controller.allocation.derived_attributes import DerivedAttribute
from controller.allocation.errors import AllocatorError
from controller.allocation.features import FeatureGates
from controller.allocation.resolved import (
    AllocationInput,
    ClaimRequests,
    ConsumptionCache,
    RequestGroup,
    ResolvedRequest,
    Shape,
)
from controller.allocation.selectors import PLAIN, Judge, Origin, Selector, owner_of_claim, selectors_of
from controller.inventory.selector_budget import Payer
from hami_dra.api import names
from hami_dra.api import resource as api
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.api.similar_names import did_you_mean

__all__ = [
    "MAX_RESULTS",
    "AllocationInput",
    "ClaimRequests",
    "RequestGroup",
    "ResolvedRequest",
    "prepare",
    "require_space",
]

MAX_RESULTS: Final = 32
"""Devices per claim (AllocationResultsMaxSize)."""
EXACT_COUNT: Final = "ExactCount"
ALL: Final = "All"


def prepare(
    claims: Sequence[api.ResourceClaim],
    classes: Mapping[str, api.DeviceClass],
    *,
    features: FeatureGates = FeatureGates(),
    admin_namespaces: AbstractSet[str] | None = None,
    ignored_taints: AbstractSet[str] = frozenset(),
    judge: Judge = PLAIN,
) -> AllocationInput:
    """Resolve claims that have no allocation yet (allocated ones are skipped). `classes` is by
    name.

    `admin_namespaces`: those with the label `resource.kubernetes.io/admin-access: "true"`; None =
    not checked, like the upstream allocator. `ignored_taints`: keys of taints that do not count
    (our own fence). `judge` evaluates the selectors. Raises AllocatorError: missing class,
    unsupported request, gate off, bad parameters, more than 32 devices. A selector that does not
    compile is an error only when it is evaluated on a device, as upstream.
    """
    resolver = _Resolver(classes, features, admin_namespaces, judge)
    waiting = [claim for claim in claims if claim.status.allocation is None]
    return AllocationInput(
        tuple([resolver.claim(index, claim) for index, claim in enumerate(waiting)]),
        features,
        frozenset(ignored_taints),
    )


@dataclass(eq=False)
class _Resolver:
    classes: Mapping[str, api.DeviceClass]
    features: FeatureGates
    admin_namespaces: AbstractSet[str] | None
    judge: Judge
    _shapes: dict[Shape, tuple[Shape, int, ConsumptionCache]] = field(default_factory=dict)

    def claim(self, index: int, claim: api.ResourceClaim) -> ClaimRequests:
        parameters.require_readable(claim)
        for position, constraint in enumerate(claim.spec.devices.constraints):
            if constraint.match_attribute is None and constraint.distinct_attribute is None:
                raise AllocatorError(
                    f"ResourceClaim {claim.key}: spec.devices.constraints[{position}]: "
                    "neither matchAttribute nor distinctAttribute is set; no other constraint is known"
                )
        key = claim.key
        groups = tuple(
            [
                self._group(claim, key, index, position, request)
                for position, request in enumerate(claim.spec.devices.requests)
            ]
        )
        require_space(claim, [(group.name, min(view.count for view in group.alternatives)) for group in groups])
        return ClaimRequests(claim, key, groups)

    def _group(
        self, claim: api.ResourceClaim, key: str, claim_index: int, position: int, request: api.DeviceRequest
    ) -> RequestGroup:
        where = f"ResourceClaim {key}: spec.devices.requests[{position}] ({request.name})"
        if request.first_available:
            if not self.features.prioritized_list:
                raise AllocatorError(f"{where}: firstAvailable needs the feature gate DRAPrioritizedList")
            specs = [(f"{request.name}/{spec.name}", spec) for spec in request.first_available]
        elif request.exactly is not None:
            specs = [(request.name, request.exactly)]
        else:
            raise AllocatorError(f"{where}: neither exactly nor firstAvailable is set; no other request is known")
        for _, spec in specs:
            if spec.capacity is not None and not self.features.consumable_capacity:
                raise AllocatorError(f"{where}: capacity needs the feature gate DRAConsumableCapacity")
        alternatives = tuple(
            [
                self._resolved(claim, (claim_index, position, rank), request.name, name, spec, key=key)
                for rank, (name, spec) in enumerate(specs)
            ]
        )
        return RequestGroup(request.name, alternatives, prioritized=bool(request.first_available))

    def _resolved(
        self,
        claim: api.ResourceClaim,
        indexes: tuple[int, int, int],
        parent_name: str,
        name: str,
        spec: api.ExactDeviceRequest,
        *,
        key: str,
    ) -> ResolvedRequest:
        owner = owner_of_claim(key)
        where = f"{owner}: request {name}"
        selectors = selectors_of(spec.selectors, owner, f"request {name}: selectors", Payer.CLAIM, self.judge)
        self._check_admin_access(claim, where, spec)
        device_class, class_selectors = self._class(where, spec)
        requested_names = frozenset({parent_name, name})
        constraints = _constraints_of(claim, requested_names)
        match_attributes, distinct_attributes = _attributes_of(constraints.values())
        capacity_requests = _capacity_requests(where, spec)
        derived = self._derived_attributes(owner, name, spec)
        configs = parameters.device_configs(device_class, claim, requested_names)
        percents = {driver: config.memory_percent for driver, config in configs.items() if config.memory_percent}
        minimums = {} if spec.admin_access else parameters.minimums_of(configs)
        parameters.check_minimums(where, device_class.key, capacity_requests, minimums)
        values = (
            *_spec_shape(spec, class_selectors, selectors),
            tuple(sorted(capacity_requests.items())),
            tuple(sorted(percents.items())) if percents else (),
            tuple(sorted((driver, *sorted(least.items())) for driver, least in minimums.items())) if minimums else (),
            self.features,
        )
        shape, shape_index, consumptions = self._shape(Shape(values))
        return ResolvedRequest(
            claim=claim,
            claim_key=key,
            claim_index=indexes[0],
            request_index=indexes[1],
            alternative=indexes[2],
            name=name,
            parent_name=parent_name,
            spec=spec,
            device_class=device_class,
            count=_count(where, spec),
            all_devices=spec.allocation_mode == ALL,
            admin_access=bool(spec.admin_access),
            tolerations=spec.tolerations,
            class_selectors=class_selectors,
            selectors=selectors,
            capacity_requests=capacity_requests,
            memory_percents=percents,
            minimums=minimums,
            constraints=tuple(constraints),
            match_attributes=match_attributes,
            distinct_attributes=distinct_attributes,
            shape=shape,
            shape_index=shape_index,
            derived=derived,
            features=self.features,
            _consumptions=consumptions,
        )

    def _shape(self, shape: Shape) -> tuple[Shape, int, ConsumptionCache]:
        """Return the one object for equal shapes, its number within the problem, and its memo."""
        return self._shapes.setdefault(shape, (shape, len(self._shapes), ConsumptionCache()))

    def _check_admin_access(self, claim: api.ResourceClaim, where: str, spec: api.ExactDeviceRequest) -> None:
        if spec.admin_access is not None and not self.features.admin_access:
            raise AllocatorError(f"{where}: adminAccess needs the feature gate DRAAdminAccess")
        namespace = claim.metadata.namespace
        if spec.admin_access and self.admin_namespaces is not None and namespace not in self.admin_namespaces:
            raise AllocatorError(
                f'{where}: adminAccess needs the label {names.ADMIN_ACCESS_LABEL}: "true" on namespace {namespace}'
            )

    def _derived_attributes(self, owner: str, name: str, spec: api.ExactDeviceRequest) -> dict[str, DerivedAttribute]:
        """Return the attributes that a request of this name derives, by name. Raises AllocatorError."""
        if spec.derived_attributes and not self.features.derived_attributes:
            raise AllocatorError(
                f"{owner}: request {name}: derivedAttributes needs the feature gate DRADerivedAttributes"
            )
        return {
            entry.name: DerivedAttribute(
                entry.expression, Origin(owner, f"request {name}: derivedAttributes[{entry.name}]")
            )
            for entry in spec.derived_attributes
        }

    def _class(self, where: str, spec: api.ExactDeviceRequest) -> tuple[api.DeviceClass, tuple[Selector, ...]]:
        """Return the class and its selectors. Raises AllocatorError."""
        if not spec.device_class_name:
            raise AllocatorError(f"{where}: deviceClassName is empty; no other request is known")
        device_class = self.classes.get(spec.device_class_name)
        if device_class is None:
            raise AllocatorError(f"{where}: {_missing_class(spec.device_class_name, self.classes)}")
        parameters.require_readable_class(device_class)
        return device_class, selectors_of(
            device_class.spec.selectors, f"DeviceClass {device_class.key}", "spec.selectors", Payer.CLASS, self.judge
        )


def _constraints_of(claim: api.ResourceClaim, requested_names: AbstractSet[str]) -> dict[int, api.DeviceConstraint]:
    """Return the constraints that cover a request, by position: those that name it, or none."""
    return {
        index: constraint
        for index, constraint in enumerate(claim.spec.devices.constraints)
        if not constraint.requests or not requested_names.isdisjoint(constraint.requests)
    }


def _attributes_of(constraints: Iterable[api.DeviceConstraint]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of matchAttribute, and those of distinctAttribute of the other constraints."""
    match, distinct = [], []
    for each in constraints:
        if each.match_attribute is not None:
            match.append(each.match_attribute)
        elif each.distinct_attribute is not None:
            distinct.append(each.distinct_attribute)
    return tuple(match), tuple(distinct)


def _spec_shape(
    spec: api.ExactDeviceRequest, class_selectors: Iterable[Selector], selectors: Iterable[Selector]
) -> tuple[Hashable, ...]:
    """Return what requests of one shape have in common, amounts apart."""
    return (
        tuple([selector.expression for selector in class_selectors]),
        tuple([selector.expression for selector in selectors]),
        bool(spec.admin_access),
        spec.tolerations,
        spec.derived_attributes,
    )


def require_space(claim: api.ResourceClaim, counts: Sequence[tuple[str, int]]) -> None:
    """Raise AllocatorError if the claim needs more than 32 devices.

    `counts`: request name and the fewest devices it needs, in order.
    """
    total = 0
    for name, count in counts:
        if count > MAX_RESULTS - total:
            raise AllocatorError(
                f"ResourceClaim {claim.key}: request {name}: {count} devices, with {total} for the requests before it, are "
                f"more than the {MAX_RESULTS} that one claim can hold; ask for fewer or use several claims"
            )
        total += count


def _count(where: str, spec: api.ExactDeviceRequest) -> int:
    """Return the count, 0 for all devices. An absent one is 1, as the API server would have set it."""
    if spec.allocation_mode == ALL:
        return 0
    if spec.allocation_mode not in {EXACT_COUNT, ""}:
        raise AllocatorError(f"{where}: allocationMode {spec.allocation_mode!r} is neither {EXACT_COUNT} nor {ALL}")
    if spec.count < 0:
        raise AllocatorError(f"{where}: count is {spec.count}, it must be at least 1")
    return spec.count or 1


def _capacity_requests(where: str, spec: api.ExactDeviceRequest) -> dict[str, str]:
    requests = {} if spec.capacity is None else {name: str(text) for name, text in spec.capacity.requests.items()}
    for name, text in requests.items():
        try:
            Quantity.parse(text)
        except InvalidQuantity as error:
            raise AllocatorError(f"{where}: capacity.requests[{name}]: {error}") from error
    return requests


def _missing_class(name: str, known: Iterable[str]) -> str:
    """Return that there is no such class, and what was probably meant."""
    near = did_you_mean(name, known)
    if not near and name.endswith(f".{names.DOMAIN}"):
        return (
            f"DeviceClass {name} does not exist; install those of hami-dra (deviceclasses/), or change deviceClassName"
        )
    return f"DeviceClass {name} does not exist{near}; create it, or change deviceClassName"
