"""What a pod's claims ask for, resolved once per decision: classes, selectors, counts, capacities, parameters.

Called by `decide` (`prepare`); read by the rest of this package and, as `RequestView`, by choosers. In: the claims that
are still to be allocated, in pod order, and the DeviceClasses. Out: a `Problem`, good for every node.
Must not look at nodes; devices come in one at a time, to say what a request takes of them.
"""

from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from controller.allocation import capacity
from controller.allocation.derived import DerivedAttribute
from controller.allocation.errors import AllocatorError
from controller.allocation.features import FeatureGates
from controller.allocation.parameters import memory_percent
from controller.allocation.selectors import Selector, compile_all
from controller.inventory.model import Device
from hami_dra.api import names
from hami_dra.api import resource as api
from hami_dra.api.core import Toleration
from hami_dra.api.quantity import InvalidQuantity, Quantity

MAX_RESULTS: Final = 32
"""Devices per claim (AllocationResultsMaxSize)."""
EXACT_COUNT: Final = "ExactCount"
ALL: Final = "All"


@dataclass(frozen=True, slots=True)
class Need:
    """What one request takes of one device, usage apart."""

    shares: Mapping[str, capacity.Share]
    """By capacity name, for every capacity of the device."""
    amounts: tuple[tuple[str, capacity.Amount, capacity.Amount], ...]
    """(capacity name, amount taken, total of the device)."""
    demand: Mapping[str, int]
    """As `RequestView.demand`."""


class _Needs:
    """What requests of one shape take, by device. Cards of one model come in rows: the next is mostly like the last."""

    __slots__ = ("_last", "_last_need", "by_device")

    def __init__(self) -> None:
        self.by_device: dict[Device, Need | None] = {}
        self._last: Device | None = None
        self._last_need: Need | None = None

    def like_the_last(self, device: Device) -> Need | None:
        last = self._last
        if last is None or last.id.driver != device.id.driver or last.shared is not device.shared:
            return None
        return self._last_need if last.spec.capacity == device.spec.capacity else None

    def put(self, device: Device, need: Need | None) -> None:
        self.by_device[device] = need
        self._last, self._last_need = device, need


@dataclass(eq=False, slots=True, kw_only=True)
class RequestView:
    """One request, or one alternative of a `firstAvailable` request. Devices are chosen for it. Not to be changed."""

    claim: api.ResourceClaim
    claim_key: str
    """`namespace/name`."""
    claim_index: int
    """Position among the claims of the problem."""
    request_index: int
    """Position among the requests of its claim."""
    alternative: int
    """Rank in `firstAvailable`, 0 is the most wanted; 0 for a plain request."""
    name: str
    """As allocation results spell it: `request`, or `request/subrequest`."""
    parent_name: str
    """The request's own name; the same as `name` for a plain request."""
    spec: api.ExactDeviceRequest
    device_class: api.DeviceClass
    count: int
    """How many devices; 0 for all devices (`all_devices`)."""
    all_devices: bool
    admin_access: bool
    tolerations: tuple[Toleration, ...]
    class_selectors: tuple[Selector, ...]
    selectors: tuple[Selector, ...]
    """The request's own; a device must match these and the class's."""
    capacity_requests: Mapping[str, str]
    """Capacity name → quantity as the claim spells it."""
    memory_percents: Mapping[str, int]
    """Driver → percent of the card's memory that is taken instead of `memory` in `capacity_requests`."""
    constraints: tuple[int, ...]
    """Positions of the claim's constraints that cover this request."""
    match_attributes: tuple[str, ...]
    """Names of the matchAttribute constraints among them."""
    distinct_attributes: tuple[str, ...]
    shape: Hashable
    """Requests of one shape have the same candidates and take the same of each device. Made of values, not identities:
    equal across decisions, and different once the class changes."""
    shape_index: int
    """The same as a small number, within the problem."""
    derived: Mapping[str, DerivedAttribute]
    """Attributes that the request derives from those of a device, by the name under which constraints find them."""
    features: FeatureGates
    _needs: "_Needs" = field(repr=False)
    """Memo, shared by requests of one shape."""

    def demand(self, device: Device) -> Mapping[str, int] | None:
        """Capacity name → what this request takes of the device, rounded as its policy says, in whole units.

        Every capacity of the device is listed. A device that cannot be shared is taken whole: its totals. None where the
        request can never be met by this device (a capacity it does not have, above the policy's maximum or the total).
        Usage plays no part. Raises AllocatorError where upstream gives up (negative or unrepresentable amounts).
        """
        need = self.need(device)
        return None if need is None else need.demand

    def need(self, device: Device) -> Need | None:
        """As `demand`, exact. Raises AllocatorError."""
        try:
            return self._needs.by_device[device]
        except KeyError:
            pass
        try:
            need = self._needs.like_the_last(device) or self._calculate(device)
        except (capacity.CapacityError, InvalidQuantity) as error:
            raise AllocatorError(
                f"ResourceClaim {self.claim_key}: request {self.name}: capacity of device {device.id}: {error}"
            ) from error
        self._needs.put(device, need)
        return need

    def shared(self, device: Device) -> bool:
        """Several allocations may hold the device at a time."""
        return device.shared and self.features.consumable_capacity

    def _calculate(self, device: Device) -> Need | None:
        if not self.features.consumable_capacity:
            return Need({}, (), device.totals)
        capacities = device.spec.capacity
        percent = self.memory_percents.get(device.id.driver)
        requests = self.capacity_requests
        if percent is not None:
            if names.CAP_MEMORY not in capacities:
                return None
            requests = {name: amount for name, amount in requests.items() if name != names.CAP_MEMORY}
        shares = capacity.take(requests, capacities, fractional=self.features.fractional_capacity_range)
        if shares is None:
            return None
        if percent is not None:
            shares[names.CAP_MEMORY] = capacity.percentage(capacities[names.CAP_MEMORY], percent)
        if not all(share.allowed and share.amount <= share.total for share in shares.values()):
            return None
        demand = {name: capacity.whole(share.amount) for name, share in shares.items()}
        return Need(
            shares,
            tuple((name, share.amount, share.total) for name, share in shares.items()),
            demand if device.shared else device.totals,
        )


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """One request of a claim. `prioritized`: the first alternative that leads to a solution is taken."""

    name: str
    alternatives: tuple[RequestView, ...]
    prioritized: bool


@dataclass(frozen=True, slots=True)
class ClaimRequests:
    """The requests of one claim, in order."""

    claim: api.ResourceClaim
    requests: tuple[RequestGroup, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """All claims of a pod that are to be allocated together, in pod order."""

    claims: tuple[ClaimRequests, ...]
    features: FeatureGates
    ignored_taints: frozenset[str]

    @property
    def views(self) -> tuple[RequestView, ...]:
        """Every request and alternative, in order."""
        return tuple(view for claim in self.claims for group in claim.requests for view in group.alternatives)

    @property
    def selector_errors(self) -> tuple[AllocatorError, ...]:
        """Selectors that do not compile: an error of the pod only where a device is held against them, as upstream.

        When nothing fits they are the reason to give.
        """
        return tuple(
            selector.error()
            for view in self.views
            for selector in (*view.class_selectors, *view.selectors)
            if selector.broken
        )


def prepare(
    claims: Sequence[api.ResourceClaim],
    classes: Mapping[str, api.DeviceClass],
    *,
    features: FeatureGates = FeatureGates(),
    admin_namespaces: AbstractSet[str] | None = None,
    ignored_taints: AbstractSet[str] = frozenset(),
) -> Problem:
    """Resolve claims that have no allocation yet (allocated ones are skipped). `classes` is by name.

    `admin_namespaces`: those with the label `resource.kubernetes.io/admin-access: "true"`; None = not checked, which is
    what the upstream allocator does. `ignored_taints`: keys of taints that do not count (our own fence).
    Raises AllocatorError: missing class, unsupported request, gate off, bad parameters, more than 32 devices. A selector
    that does not compile is an error only when it is evaluated on a device, as upstream.
    """
    resolver = _Resolver(classes, features, admin_namespaces)
    waiting = [claim for claim in claims if claim.status.allocation is None]
    return Problem(
        tuple(resolver.claim(index, claim) for index, claim in enumerate(waiting)),
        features,
        frozenset(ignored_taints),
    )


class _Resolver:
    def __init__(
        self,
        classes: Mapping[str, api.DeviceClass],
        features: FeatureGates,
        admin_namespaces: AbstractSet[str] | None,
    ) -> None:
        self._classes = classes
        self._features = features
        self._admin_namespaces = admin_namespaces
        self._shapes: dict[Hashable, tuple[int, _Needs]] = {}

    def claim(self, index: int, claim: api.ResourceClaim) -> ClaimRequests:
        for position, constraint in enumerate(claim.spec.devices.constraints):
            if constraint.match_attribute is None and constraint.distinct_attribute is None:
                raise AllocatorError(
                    f"ResourceClaim {claim.key}: spec.devices.constraints[{position}]: "
                    "neither matchAttribute nor distinctAttribute is set; no other constraint is known"
                )
        groups = tuple(
            self._group(claim, index, position, request) for position, request in enumerate(claim.spec.devices.requests)
        )
        require_room(claim, [(group.name, min(view.count for view in group.alternatives)) for group in groups])
        return ClaimRequests(claim, groups)

    def _group(
        self, claim: api.ResourceClaim, claim_index: int, position: int, request: api.DeviceRequest
    ) -> RequestGroup:
        where = f"ResourceClaim {claim.key}: spec.devices.requests[{position}] ({request.name})"
        if request.first_available:
            if not self._features.prioritized_list:
                raise AllocatorError(f"{where}: firstAvailable needs the feature gate DRAPrioritizedList")
            specs = [(f"{request.name}/{spec.name}", spec) for spec in request.first_available]
        elif request.exactly is not None:
            specs = [(request.name, request.exactly)]
        else:
            raise AllocatorError(f"{where}: neither exactly nor firstAvailable is set; no other request is known")
        for _, spec in specs:
            if spec.capacity is not None and not self._features.consumable_capacity:
                raise AllocatorError(f"{where}: capacity needs the feature gate DRAConsumableCapacity")
        alternatives = tuple(
            self._view(claim, (claim_index, position, rank), request.name, name, spec)
            for rank, (name, spec) in enumerate(specs)
        )
        return RequestGroup(request.name, alternatives, prioritized=bool(request.first_available))

    def _view(
        self,
        claim: api.ResourceClaim,
        indexes: tuple[int, int, int],
        parent_name: str,
        name: str,
        spec: api.ExactDeviceRequest,
    ) -> RequestView:
        where = f"ResourceClaim {claim.key}: request {name}"
        selectors = compile_all(spec.selectors, f"{where}: selectors")
        self._check_admin_access(claim, where, spec)
        device_class = self._class(where, spec)
        class_selectors = compile_all(device_class.spec.selectors, f"DeviceClass {device_class.key}: spec.selectors")
        all_devices = spec.allocation_mode == ALL
        requested_names = frozenset({parent_name, name})
        constraints = {
            index: constraint
            for index, constraint in enumerate(claim.spec.devices.constraints)
            if not constraint.requests or not requested_names.isdisjoint(constraint.requests)
        }
        capacity_requests = _capacity_requests(where, spec)
        if spec.derived_attributes and not self._features.derived_attributes:
            raise AllocatorError(f"{where}: derivedAttributes needs the feature gate DRADerivedAttributes")
        derived = {
            entry.name: DerivedAttribute(entry.expression, f"{where}: derivedAttributes[{entry.name}]")
            for entry in spec.derived_attributes
        }
        percents = memory_percent(device_class, claim, requested_names)
        shape: Hashable = (
            tuple(selector.expression for selector in class_selectors),
            tuple(selector.expression for selector in selectors),
            bool(spec.admin_access),
            spec.tolerations,
            tuple(sorted(capacity_requests.items())),
            tuple(sorted(percents.items())),
            spec.derived_attributes,
            self._features,
        )
        shape_index, needs = self._shapes.setdefault(shape, (len(self._shapes), _Needs()))
        return RequestView(
            claim=claim,
            claim_key=claim.key,
            claim_index=indexes[0],
            request_index=indexes[1],
            alternative=indexes[2],
            name=name,
            parent_name=parent_name,
            spec=spec,
            device_class=device_class,
            count=0 if all_devices else _count(where, spec),
            all_devices=all_devices,
            admin_access=bool(spec.admin_access),
            tolerations=spec.tolerations,
            class_selectors=class_selectors,
            selectors=selectors,
            capacity_requests=capacity_requests,
            memory_percents=percents,
            constraints=tuple(constraints),
            match_attributes=tuple(c.match_attribute for c in constraints.values() if c.match_attribute is not None),
            distinct_attributes=tuple(
                c.distinct_attribute
                for c in constraints.values()
                if c.match_attribute is None and c.distinct_attribute is not None
            ),
            shape=shape,
            shape_index=shape_index,
            derived=derived,
            features=self._features,
            _needs=needs,
        )

    def _check_admin_access(self, claim: api.ResourceClaim, where: str, spec: api.ExactDeviceRequest) -> None:
        if spec.admin_access is not None and not self._features.admin_access:
            raise AllocatorError(f"{where}: adminAccess needs the feature gate DRAAdminAccess")
        namespace = claim.metadata.namespace
        if spec.admin_access and self._admin_namespaces is not None and namespace not in self._admin_namespaces:
            raise AllocatorError(
                f'{where}: adminAccess needs the label {names.ADMIN_ACCESS_LABEL}: "true" on namespace {namespace}'
            )

    def _class(self, where: str, spec: api.ExactDeviceRequest) -> api.DeviceClass:
        if not spec.device_class_name:
            raise AllocatorError(f"{where}: deviceClassName is empty; no other request is known")
        device_class = self._classes.get(spec.device_class_name)
        if device_class is None:
            raise AllocatorError(f"{where}: DeviceClass {spec.device_class_name} does not exist")
        return device_class


def require_room(claim: api.ResourceClaim, counts: Sequence[tuple[str, int]]) -> None:
    """`counts`: request name and the fewest devices it needs, in order. Raises AllocatorError above 32 for the claim."""
    total = 0
    for name, count in counts:
        if count > MAX_RESULTS - total:
            raise AllocatorError(
                f"ResourceClaim {claim.key}: request {name}: {count} devices, with {total} for the requests before it, are "
                f"more than the {MAX_RESULTS} that one claim can hold; ask for fewer or use several claims"
            )
        total += count


def _count(where: str, spec: api.ExactDeviceRequest) -> int:
    """An absent count is 1, as the API server would have filled in."""
    if spec.allocation_mode not in {EXACT_COUNT, ""}:
        raise AllocatorError(
            f"{where}: allocationMode {spec.allocation_mode!r} is not known; use {EXACT_COUNT} or {ALL}"
        )
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
