"""Reasons why a search cannot succeed, found by counting instead of trying.

Called once by a search that has become long. In: the problem, the candidates, the constraints. Out: True only where no
solution exists. Only requests that must be met are counted: alternatives of `firstAvailable` are left out. Where a device
cannot even be judged nothing is claimed, for the search would end with that error.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from controller.allocation.candidates import Candidate, Candidates
from controller.allocation.constraints import Constraint, Distinct, Match
from controller.allocation.errors import AllocatorError
from controller.allocation.request import Problem, RequestView
from controller.inventory.model import Device, Usage

_PLENTY = 1 << 20


def hopeless(
    problem: Problem, candidates: Candidates, constraints: Sequence[Sequence[Constraint]], usage: Usage
) -> bool:
    needs = [
        _Needed(view, candidates.all_of(view) if view.all_devices else candidates.of(view))
        for view in _unconditional(problem)
        if not view.admin_access
    ]
    if any(candidate.error is not None for needed in needs for candidate in needed.candidates):
        return False
    try:
        return (
            _too_few_devices(needs)
            or _too_little_room(needs, usage)
            or any(
                _unmet(constraint, [needed for needed in needs if needed.covered_by(claim_index, index)], usage)
                for claim_index, claim_constraints in enumerate(constraints)
                for index, constraint in enumerate(claim_constraints)
            )
        )
    except AllocatorError:
        return False


class _Needed:
    """A request, how many devices it needs, and which could be those."""

    def __init__(self, view: RequestView, candidates: Sequence[Candidate]) -> None:
        self.view = view
        self.candidates = candidates
        self.count = len(candidates) if view.all_devices else view.count
        self.devices = frozenset(candidate.device for candidate in candidates)

    @property
    def exclusive(self) -> bool:
        return not any(self.view.shared(device) for device in self.devices)

    def covered_by(self, claim_index: int, constraint: int) -> bool:
        return self.view.claim_index == claim_index and constraint in self.view.constraints


def _unconditional(problem: Problem) -> Iterator[RequestView]:
    for claim in problem.claims:
        for group in claim.requests:
            if not group.prioritized:
                yield group.alternatives[0]


def _too_few_devices(needs: Iterable[_Needed]) -> bool:
    """Hall's condition for the sets of devices that occur: what can only be met from a set needs no more than it has."""
    exclusive = [needed for needed in needs if needed.exclusive]
    return any(
        sum(needed.count for needed in exclusive if needed.devices <= devices) > len(devices)
        for devices in {needed.devices for needed in exclusive}
    )


def _too_little_room(needs: Iterable[_Needed], usage: Usage) -> bool:
    """Requests of one shape take the same of each device: so many fit, and no more."""
    by_shape: dict[int, list[_Needed]] = defaultdict(list)
    for needed in needs:
        by_shape[needed.view.shape_index].append(needed)
    return any(
        sum(needed.count for needed in alike)
        > sum(_slots(alike[0].view, candidate, usage) for candidate in alike[0].candidates)
        for alike in by_shape.values()
    )


def _slots(view: RequestView, candidate: Candidate, usage: Usage) -> int:
    """How many shares of this size the device still holds."""
    device, need = candidate.device, candidate.need
    if not view.shared(device) or need is None:
        return 1
    used = usage.consumed(device.id)
    return min(
        (int((total - used.get(name, 0)) // amount) for name, amount, total in need.amounts if amount > 0),
        default=_PLENTY,
    )


def _unmet(constraint: Constraint, needs: Sequence[_Needed], usage: Usage) -> bool:
    """More devices are to share a value, or to have different ones, than values allow."""
    count = sum(needed.count for needed in needs)
    room: dict[object, dict[Device, int]] = defaultdict(dict)
    for needed in needs:
        for candidate in needed.candidates:
            value = constraint.value(needed.view, candidate.device)
            if value is None:
                continue
            kind, elements = value
            slots = _slots(needed.view, candidate, usage)
            for element in elements or ("",):
                devices = room[kind, element]
                devices[candidate.device] = max(slots, devices.get(candidate.device, 0))
    if isinstance(constraint, Distinct):
        return count > len(room)
    if isinstance(constraint, Match):
        return count > max((sum(devices.values()) for devices in room.values()), default=0)
    return False
