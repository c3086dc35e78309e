"""Proofs that a search cannot succeed, found by counting instead of trying.

Called once by a search that has become long. In: the problem, the candidates, the constraints. Out:
True only if no solution exists. A `firstAvailable` request counts with the least of all its
alternatives.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from controller.allocation.candidates import Candidate, Candidates
from controller.allocation.constraints import Constraint, Distinct, Match
from controller.allocation.errors import AllocatorError
from controller.allocation.resolved import AllocationInput, ClaimRequests, RequestGroup, ResolvedRequest
from controller.inventory.model import Amount, Device, DeviceId, Usage

_PLENTY = 1 << 20


def counts(
    problem: AllocationInput, candidates: Candidates, constraints: Sequence[Sequence[Constraint]], usage: Usage
) -> Iterator[bool]:
    """Yield after each part of the counting whether it proves that there is no solution.

    One part takes at most some milliseconds. A claim may have 32 constraints on 32 requests of 8
    alternatives each, so all parts together may take seconds: a caller with other work pauses
    between two of them.
    """
    needs = [
        _Needed(group, candidates)
        for claim in problem.claims
        for group in claim.requests
        if not any(view.admin_access for view in group.alternatives)
    ]
    try:
        yield _too_few_devices(needs)
        yield _too_little_capacity(needs, usage)
        yield _too_little_in_all(needs, usage)
        for claim_index, claim_constraints in enumerate(constraints):
            for index, constraint in enumerate(claim_constraints):
                covered = [needed for needed in needs if needed.covered_by(claim_index, index)]
                yield from _unmet(constraint, covered, usage)
    except AllocatorError:
        return


def any_unjudged(problem: AllocationInput, candidates: Candidates) -> bool:
    """Return whether some device cannot be judged for some request.

    The search may end with that error, and must not be cut short then.
    """
    return any(
        candidate.error is not None
        for view in problem.views
        if not view.all_devices
        for candidate in candidates.of(view)
    )


def parts(problem: AllocationInput) -> Iterator[AllocationInput]:
    """Yield the whole problem, each claim, and each request of a claim: a part without a solution
    has none in the whole.

    The other claims stay in their places, without requests.
    """
    yield problem
    for claim in problem.claims:
        if len(problem.claims) > 1:
            yield _only(problem, claim, claim.requests)
        if len(claim.requests) > 1:
            for group in claim.requests:
                yield _only(problem, claim, (group,))


def _only(problem: AllocationInput, wanted: ClaimRequests, requests: tuple[RequestGroup, ...]) -> AllocationInput:
    return replace(
        problem, claims=tuple(replace(claim, requests=requests if claim is wanted else ()) for claim in problem.claims)
    )


class _Needed:
    """A request: the least number of devices that it needs, and all devices of any of its alternatives."""

    def __init__(self, group: RequestGroup, candidates: Candidates) -> None:
        self.alternatives = [
            (view, candidates.all_of(view) if view.all_devices else candidates.of(view)) for view in group.alternatives
        ]
        self.count = min(len(found) if view.all_devices else view.count for view, found in self.alternatives)
        self.devices = frozenset(candidate.device for _, found in self.alternatives for candidate in found)

    @property
    def exclusive(self) -> bool:
        view, _ = self.alternatives[0]
        return not any(view.shared(device) for device in self.devices)

    def covered_by(self, claim_index: int, constraint: int) -> bool:
        return all(view.claim_index == claim_index and constraint in view.constraints for view, _ in self.alternatives)


def _too_few_devices(needs: Iterable[_Needed]) -> bool:
    """Whether some set of devices is too small for the requests that only it can meet.

    This is Hall's condition, for the sets of devices that occur. Two requests need three of the
    devices a, b and c together; if both can only have a and b, there is no solution:

    >>> from types import SimpleNamespace as Needed
    >>> two = Needed(exclusive=True, count=2, devices=frozenset("ab"))
    >>> one_of_three = Needed(exclusive=True, count=1, devices=frozenset("abc"))
    >>> one_of_two = Needed(exclusive=True, count=1, devices=frozenset("ab"))
    >>> _too_few_devices([two, one_of_three])      # a, b: 2 <= 2; a, b, c: 2 + 1 <= 3
    False
    >>> _too_few_devices([two, one_of_two])        # a, b: 2 + 1 > 2
    True
    """
    exclusive = [needed for needed in needs if needed.exclusive]
    return any(
        sum(needed.count for needed in exclusive if needed.devices <= devices) > len(devices)
        for devices in {needed.devices for needed in exclusive}
    )


def _too_little_capacity(needs: Iterable[_Needed], usage: Usage) -> bool:
    """Whether the requests of one shape need more shares than their devices have left.

    Requests of one shape take equal amounts of each device, so the number of shares that fit is
    known: 24 GiB left on each of two cards hold 2 * (24 // 10) = 4 requests of 10 GiB, not 5.
    """
    counts: Counter[int] = Counter()
    slots: dict[int, int] = {}
    for needed in needs:
        (view, found), *others = needed.alternatives
        if not others:
            counts[view.shape_index] += needed.count
            if view.shape_index not in slots:
                slots[view.shape_index] = sum(_slots(view, candidate, usage) for candidate in found)
    return any(count > slots[shape] for shape, count in counts.items())


def _too_little_in_all(needs: Sequence[_Needed], usage: Usage) -> bool:
    """Whether all requests together take more of some capacity than their devices have left,
    however they are spread.

    Three shares of 10 GiB and two of 4 GiB do not fit on two cards with 18 GiB left each: 38 > 36.
    """
    requested: defaultdict[str, Amount] = defaultdict(int)
    left: dict[DeviceId, dict[str, Amount]] = {}
    for needed in needs:
        least: dict[str, Amount] | None = None
        for candidate in (candidate for _, found in needed.alternatives for candidate in found):
            device, consumption = candidate.device.id, candidate.consumption
            if consumption is None:
                return False
            if device not in left:
                used = usage.consumed(device)
                left[device] = {name: max(total - used.get(name, 0), 0) for name, _, total in consumption.amounts}
            taken = {name: amount for name, amount, _ in consumption.amounts}
            least = taken if least is None else {name: min(least[name], taken[name]) for name in least.keys() & taken}
        for name, amount in (least or {}).items():
            requested[name] += needed.count * amount
    available: defaultdict[str, Amount] = defaultdict(int)
    for amounts in left.values():
        for name, amount in amounts.items():
            available[name] += amount
    return any(amount > available[name] for name, amount in requested.items())


def _slots(view: ResolvedRequest, candidate: Candidate, usage: Usage) -> int:
    """Return the number of shares of this size that still fit on the device."""
    device, consumption = candidate.device, candidate.consumption
    if not view.shared(device) or consumption is None:
        return 1
    used = usage.consumed(device.id)
    return min(
        (
            max(int((total - used.get(name, 0)) // amount), 0)
            for name, amount, total in consumption.amounts
            if amount > 0
        ),
        default=_PLENTY,
    )


def _unmet(constraint: Constraint, needs: Sequence[_Needed], usage: Usage) -> Iterator[bool]:
    """Yield whether the values do not suffice: for devices with a common value, or all with
    different ones.

    The last item is the result. Three devices that match, with 2 of model A and 2 of model B: 3 >
    2. Three distinct values among A and B: 3 > 2.
    """
    count = sum(needed.count for needed in needs)
    by_value: dict[object, dict[Device, int]] = defaultdict(dict)
    for view, found in (alternative for needed in needs for alternative in needed.alternatives):
        for candidate in found:
            value = constraint.value(view, candidate.device)
            if value is None:
                continue
            kind, elements = value
            slots = _slots(view, candidate, usage)
            for element in elements or ("",):
                devices = by_value[kind, element]
                devices[candidate.device] = max(slots, devices.get(candidate.device, 0))
        yield False
    if isinstance(constraint, Distinct):
        yield count > len(by_value)
    if isinstance(constraint, Match):
        yield count > max((sum(devices.values()) for devices in by_value.values()), default=0)
