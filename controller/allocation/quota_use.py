"""The part of its namespace's quota that a search has spent, and whether it may take one more card.

Created by `Search` if the namespace has a quota for cards, called by `AllocatingDevices` before
each card is taken. In: requests and candidates. State: the sum of the cards taken; reduced again as
the search backtracks. Must not know about usage: the headroom comes with the `QuotaHeadroom`.

A card is refused if it exceeds the quota; a smaller card may fit. The least that all later requests
must take is reserved for them, so that a search that cannot succeed does not try every way to fail.
"""

from collections.abc import Iterable, Sequence
from heapq import nsmallest

from controller.allocation.candidates import Candidate, Candidates
from controller.allocation.errors import AllocatorError
from controller.allocation.resolved import AllocationInput, ResolvedRequest
from controller.inventory.model import Device
from controller.inventory.quota_headroom import Cost, QuotaHeadroom


class QuotaUse:
    def __init__(self, headroom: QuotaHeadroom, problem: AllocationInput, candidates: Candidates) -> None:
        self._headroom = headroom
        self._spent = list(headroom.nothing)
        self._costs: dict[tuple[int, Device], Cost] = {}
        self._reserves: dict[tuple[int, int], Cost] = {}
        self.infeasible = False
        """The cheapest cards of all requests together exceed the quota."""
        self._reserve(problem, candidates)

    def allows(
        self, view: ResolvedRequest, candidate: Candidate, others: Sequence[Candidate] = (), missing: int = 0
    ) -> bool:
        """Return whether the candidate may be taken, and `missing` more of the `others` for the same request."""
        if view.admin_access:
            return True
        later = self._reserves[view.claim_index, view.request_index]
        if missing:
            later = _sum((later, self._least(view, others, missing)), self._headroom.nothing)
        return self._headroom.allows(self._spent, self.cost(view, candidate.device), later)

    def take(self, view: ResolvedRequest, device: Device) -> None:
        self._add(view, device, 1)

    def release(self, view: ResolvedRequest, device: Device) -> None:
        self._add(view, device, -1)

    def cost(self, view: ResolvedRequest, device: Device) -> Cost:
        """Return the cost of a device. Raises AllocatorError if it cannot be judged."""
        if view.admin_access:
            return self._headroom.nothing
        key = view.shape_index, device
        found = self._costs.get(key)
        if found is None:
            consumption = view.consumption(device)
            found = self._costs[key] = (
                self._headroom.nothing
                if consumption is None
                else self._headroom.cost(device, consumption.consumed, shared=view.shared(device))
            )
        return found

    # -- inside ------------------------------------------------------------------------------------

    def _add(self, view: ResolvedRequest, device: Device, sign: int) -> None:
        for position, amount in enumerate(self.cost(view, device)):
            self._spent[position] += sign * amount

    def _reserve(self, problem: AllocationInput, candidates: Candidates) -> None:
        """Compute, from the last request to the first, the least that the requests after it take.

        The cheapest alternative counts. For requests of at least 8, 10 or 6, and 4 GiB: 6 + 4 = 10
        are reserved during the first, 4 during the second, 0 during the last; 18 in all.
        """
        later = self._headroom.nothing
        for claim in reversed(problem.claims):
            for group in reversed(claim.requests):
                first = group.alternatives[0]
                self._reserves[first.claim_index, first.request_index] = later
                each = [self._least_of(view, candidates) for view in group.alternatives]
                later = _sum((later, tuple(map(min, zip(*each, strict=True)))), self._headroom.nothing)
        self.infeasible = not self._headroom.allows(self._headroom.nothing, later, self._headroom.nothing)

    def _least_of(self, view: ResolvedRequest, candidates: Candidates) -> Cost:
        try:
            found = candidates.all_of(view) if view.all_devices else candidates.of(view)
        except AllocatorError:
            return self._headroom.nothing  # the search reports it
        return self._least(view, found, len(found) if view.all_devices else view.count)

    def _least(self, view: ResolvedRequest, candidates: Iterable[Candidate], count: int) -> Cost:
        """Return, by resource, the sum of the `count` cheapest; devices that cannot be judged count 0."""
        costs = [self._headroom.nothing if each.error else self.cost(view, each.device) for each in candidates]
        return tuple(sum(nsmallest(count, amounts)) for amounts in zip(*costs, strict=True)) or self._headroom.nothing


def _sum(costs: Iterable[Cost], nothing: Cost) -> Cost:
    total = nothing
    for cost in costs:
        total = tuple(before + more for before, more in zip(total, cost, strict=True))
    return total
