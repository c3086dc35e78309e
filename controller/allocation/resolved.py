"""Requests as the search and choosers see them: everything resolved, with the amounts that each
takes of a device.

Created by `request.prepare`, valid for every node. In: devices, one at a time. Out: amounts. Must
not read nodes or usage.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from controller.allocation import capacity
from controller.allocation.derived_attributes import DerivedAttribute
from controller.allocation.errors import AllocatorError
from controller.allocation.features import FeatureGates
from controller.allocation.parameters import Minimums
from controller.allocation.selectors import Selector
from controller.cluster.incremental.changes import ChangeLog
from controller.inventory.model import Amount, Device, value_of
from hami_dra.api import names
from hami_dra.api import resource as api
from hami_dra.api.core import Toleration
from hami_dra.api.quantity import InvalidQuantity


class Consumption(Struct, frozen=True):
    """The amounts that one request takes of one device, usage apart."""

    amounts: tuple[tuple[str, Amount, Amount], ...]
    """(capacity name, amount taken, total of the device)."""
    consumed: Mapping[str, int]
    """See `ResolvedRequest.consumed`."""
    consumed_capacity: Mapping[str, str]
    """By capacity name, as the allocation result spells the amounts."""


class Shape:
    """What decides which devices a request may get, and how much of each.

    Made of values, not identities: equal across decisions, and different once the class changes. A
    key of many tables, so the hash is computed once.
    """

    __slots__ = ("_hash", "_values", "drivers")

    def __init__(self, values: tuple[Hashable, ...]) -> None:
        self._values = values
        self._hash = hash(values)
        self.drivers: tuple[ChangeLog, int, frozenset[str]] | None = None
        """Memo of `ownership.matching_drivers`: the log of published devices, the version read, and the drivers."""

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Shape) and self._values == other._values)

    def __repr__(self) -> str:
        return f"Shape({self._values!r})"


_ALL: Final = 100
_MOST_CONSUMPTIONS: Final = 1 << 12
_UNKNOWN: Final = Consumption((), {}, {})
"""Stands for a device whose consumption was not calculated yet."""


class ConsumptionCache:
    """Amounts by device, for requests of one shape. Cards of one model are adjacent: the next is
    mostly like the last.
    """

    __slots__ = ("_last", "_last_consumption", "by_device")

    def __init__(self) -> None:
        self.by_device: dict[Device, Consumption | None] = {}
        self._last: Device | None = None
        self._last_consumption: Consumption | None = None

    def matches_last(self, device: Device) -> Consumption | None:
        """Return the consumption of the last device if the driver, the sharing and the capacities are equal."""
        last = self._last
        if last is None or last.id.driver != device.id.driver or last.shared is not device.shared:
            return None
        if last.is_part is not device.is_part or last.card_memory != device.card_memory:
            return None
        published, before = device.spec.capacity, last.spec.capacity
        return self._last_consumption if published is before or published == before else None

    def put(self, device: Device, consumption: Consumption | None) -> None:
        if len(self.by_device) >= _MOST_CONSUMPTIONS:
            self.by_device.clear()
        self.by_device[device] = consumption
        self._last, self._last_consumption = device, consumption


@dataclass(eq=False, slots=True, kw_only=True)
class ResolvedRequest:
    """One request, or one alternative of a `firstAvailable` request, for which devices are chosen. Immutable."""

    claim: api.ResourceClaim
    claim_key: str
    """`namespace/name`."""
    claim_index: int
    """Position among the claims of the problem."""
    request_index: int
    """Position among the requests of its claim."""
    alternative: int
    """Rank in `firstAvailable`, 0 is preferred most; 0 for a plain request."""
    name: str
    """As allocation results spell it: `request`, or `request/subrequest`."""
    parent_name: str
    """The request's own name; equal to `name` for a plain request."""
    spec: api.ExactDeviceRequest
    device_class: api.DeviceClass
    count: int
    """Number of devices; 0 for all devices (`all_devices`)."""
    all_devices: bool
    admin_access: bool
    tolerations: tuple[Toleration, ...]
    class_selectors: tuple[Selector, ...]
    selectors: tuple[Selector, ...]
    """The request's own; a device must match these and the class's."""
    capacity_requests: Mapping[str, str]
    """Capacity name → quantity as the claim spells it."""
    memory_percents: Mapping[str, int]
    """Driver → percentage of the card's memory that is taken instead of `memory` in `capacity_requests`."""
    minimums: Minimums
    """The least that the class lets a request take. Devices that give less (a percentage of a small
    card) do not fit.
    """
    constraints: tuple[int, ...]
    """Positions of the claim's constraints that cover this request."""
    match_attributes: tuple[str, ...]
    """Names of the matchAttribute constraints among them."""
    distinct_attributes: tuple[str, ...]
    shape: Shape
    """Requests of one shape have the same candidates and take equal amounts of each device."""
    shape_index: int
    """Small number of the shape, within the problem."""
    derived: Mapping[str, DerivedAttribute]
    """Attributes that the request derives from those of a device, by the name under which constraints find them."""
    features: FeatureGates
    _consumptions: ConsumptionCache = field(repr=False)
    """Memo, shared by requests of one shape."""

    def for_claim(self, claim: api.ResourceClaim, key: str) -> "ResolvedRequest":
        """Return the equal request of a claim whose spec is equal. `key`: of the claim."""
        return ResolvedRequest(
            claim=claim,
            claim_key=key,
            claim_index=self.claim_index,
            request_index=self.request_index,
            alternative=self.alternative,
            name=self.name,
            parent_name=self.parent_name,
            spec=self.spec,
            device_class=self.device_class,
            count=self.count,
            all_devices=self.all_devices,
            admin_access=self.admin_access,
            tolerations=self.tolerations,
            class_selectors=self.class_selectors,
            selectors=tuple([each.of_claim(key) for each in self.selectors]),
            capacity_requests=self.capacity_requests,
            memory_percents=self.memory_percents,
            minimums=self.minimums,
            constraints=self.constraints,
            match_attributes=self.match_attributes,
            distinct_attributes=self.distinct_attributes,
            shape=self.shape,
            shape_index=self.shape_index,
            derived={name: each.of_claim(key) for name, each in self.derived.items()} if self.derived else self.derived,
            features=self.features,
            _consumptions=self._consumptions,
        )

    @property
    def all_selectors(self) -> tuple[Selector, ...]:
        return self.class_selectors + self.selectors

    @property
    def names_amounts(self) -> bool:
        """Whether a part of each device is requested; else the driver's default is taken, usually all of it."""
        return bool(self.capacity_requests or self.memory_percents)

    def consumed(self, device: Device) -> Mapping[str, int] | None:
        """Return what this request takes of the device by capacity name, rounded by its policy, in
        whole units.

        Every capacity of the device is listed. A device that cannot be shared is taken whole: its
        totals. None if the device can never meet the request (a capacity it does not have, above
        the policy's maximum or the total). Usage plays no part. Raises AllocatorError where
        upstream gives up (negative or unrepresentable amounts).
        """
        consumption = self.consumption(device)
        return None if consumption is None else consumption.consumed

    def consumption(self, device: Device) -> Consumption | None:
        """Return the exact `consumed` with spellings. Raises AllocatorError."""
        known = self._consumptions.by_device.get(device, _UNKNOWN)
        if known is not _UNKNOWN:
            return known
        try:
            consumption = self._consumptions.matches_last(device) or self._calculate(device)
        except (capacity.CapacityError, InvalidQuantity) as error:
            raise AllocatorError(
                f"ResourceClaim {self.claim_key}: request {self.name}: capacity of device {device.id}: {error}"
            ) from error
        self._consumptions.put(device, consumption)
        return consumption

    def memory_percent(self, device: Device) -> int | None:
        """Return the percentage of its card's memory that is requested instead of an amount; None:
        no percentage.

        Who names no memory wants all of the card's. So a part is taken only by a request for parts
        as such (`DriverProfile.selects_parts`), or if it has as much as its card. Raises
        SelectorOverBudget, SliceSpent.
        """
        percent = self.memory_percents.get(device.id.driver)
        if percent is not None or not device.is_part or device.profile.card_memory is None:
            return percent
        if names.CAP_MEMORY in self.capacity_requests:
            return None
        wanted = device.profile.selects_parts
        return None if any(not wanted.isdisjoint(each.attribute_names) for each in self.all_selectors) else _ALL

    def _parts_wanted(self, device: Device) -> tuple[int, dict[str, str]] | None:
        """Return (percentage of the memory, amounts) of a request that counts equal parts of the
        hardware, or names an amount of memory there: each part has its memory and its cores.

        2 of 6 parts are 33 percent, which the device's steps round up to a third. None: the request
        does neither.
        """
        parts, requests = device.profile.parts, self.capacity_requests
        if parts is None or not device.totals.get(parts) or not device.totals.get(names.CAP_MEMORY):
            return None
        total = device.totals[parts]
        if parts in requests and names.CAP_MEMORY not in requests:
            count = value_of(requests[parts])
        elif names.CAP_MEMORY in requests and parts not in requests:
            count = -(-value_of(requests[names.CAP_MEMORY]) * total // device.totals[names.CAP_MEMORY])
        else:
            return None
        cores = value_of(requests.get(names.CAP_CORES, "0"))
        count = max(count, -(-cores * total // _ALL))
        if not 0 < count <= total:
            return None
        percent = count * _ALL // total
        return percent, {**requests, parts: str(count), names.CAP_CORES: str(percent)}

    def shared(self, device: Device) -> bool:
        """Return whether several allocations may hold the device at a time."""
        return device.shared and self.features.consumable_capacity

    def _calculate(self, device: Device) -> Consumption | None:
        if not self.features.consumable_capacity:
            return Consumption((), device.totals, {})
        capacities = device.spec.capacity
        percent = self.memory_percent(device)
        requests = self.capacity_requests
        if percent is None and (wanted := self._parts_wanted(device)) is not None:
            percent, requests = wanted
        if percent is not None:
            if names.CAP_MEMORY not in capacities or (device.is_part and not device.card_memory):
                return None
            requests = {name: amount for name, amount in requests.items() if name != names.CAP_MEMORY}
        amounts = capacity.consumed_amounts(requests, capacities, fractional=self.features.fractional_capacity_range)
        if amounts is None:
            return None
        # A percentage of the memory also takes the parts of the hardware that hold it, unless the
        # request names them: 30 % of a card of 4 parts takes ceil(1.2) = 2 of them.
        if percent is not None:
            memory = capacities[names.CAP_MEMORY]
            amounts[names.CAP_MEMORY] = (
                capacity.percentage_of_card(memory, percent, device.card_memory)
                if device.is_part
                else capacity.percentage(memory, percent)
            )
            parts = device.profile.parts
            if parts is not None and parts in capacities and parts not in requests:
                amounts[parts] = capacity.parts(capacities[parts], percent)
        if not all(each.allowed and each.amount <= each.total for each in amounts.values()):
            return None
        least_of = self.minimums.get(device.id.driver, {})
        if device.shared and any(
            name in amounts and amounts[name].quantity < least for name, least in least_of.items()
        ):
            return None
        consumed = {name: capacity.whole(each.amount) for name, each in amounts.items()}
        return Consumption(
            tuple((name, each.amount, each.total) for name, each in amounts.items()),
            consumed if device.shared else device.totals,
            {name: str(each.quantity) for name, each in amounts.items()},
        )


class RequestGroup(Struct, frozen=True):
    """One request of a claim. `prioritized`: the first alternative with a solution is taken."""

    name: str
    alternatives: tuple[ResolvedRequest, ...]
    prioritized: bool

    def for_claim(self, claim: api.ResourceClaim, key: str) -> "RequestGroup":
        alternatives = tuple([each.for_claim(claim, key) for each in self.alternatives])
        return RequestGroup(self.name, alternatives, self.prioritized)


class ClaimRequests(Struct, frozen=True):
    """The requests of one claim, in order."""

    claim: api.ResourceClaim
    key: str
    """`namespace/name`."""
    requests: tuple[RequestGroup, ...]

    def for_claim(self, claim: api.ResourceClaim) -> "ClaimRequests":
        """Return the equal requests of a claim whose spec is equal."""
        key = claim.key
        return ClaimRequests(claim, key, tuple([group.for_claim(claim, key) for group in self.requests]))


class AllocationInput(Struct, frozen=True):
    """All claims of a pod that are to be allocated together, in pod order."""

    claims: tuple[ClaimRequests, ...]
    features: FeatureGates
    ignored_taints: frozenset[str]

    def for_claims(self, claims: Sequence[api.ResourceClaim]) -> "AllocationInput":
        """Return the equal input of claims whose specs are equal, one by one."""
        renamed = [known.for_claim(claim) for known, claim in zip(self.claims, claims, strict=True)]
        return AllocationInput(tuple(renamed), self.features, self.ignored_taints)

    @property
    def views(self) -> tuple[ResolvedRequest, ...]:
        return tuple(view for claim in self.claims for group in claim.requests for view in group.alternatives)

    @property
    def selector_errors(self) -> tuple[AllocatorError, ...]:
        """Selectors that do not compile: an error of the pod only when a device is tested against
        them, as upstream.

        If nothing fits they are the reason to report.
        """
        return tuple(
            error
            for view in self.views
            for selector in view.all_selectors
            if (error := selector.compile_error()) is not None
        )
