"""The devices that a search holds at the moment: taken for requests, and released again.

Called by the frames of a search, through `Search`. In: candidates. Out: `Taken`, to be released in
reverse order. State: the trial, counters, constraints and the picks of each claim; they change
together or not at all.
"""

from collections.abc import Hashable

from msgspec import Struct

from controller.allocation import constraints
from controller.allocation.candidates import Candidate, Candidates
from controller.allocation.counters import Counters
from controller.allocation.errors import AllocatorError
from controller.allocation.quota_use import QuotaUse
from controller.allocation.resolved import AllocationInput, ResolvedRequest
from controller.allocation.result import Pick
from controller.allocation.tentative import TentativeUsage
from controller.inventory.model import Device, Usage


class Taken(Struct, frozen=True):
    """One device that the search holds."""

    view: ResolvedRequest
    candidate: Candidate
    counters: bool
    """Its counters were charged: it is the first share, or not shared at all."""


class AllocatingDevices:
    """`quota_use`: the quota of the namespace, if it has one."""

    def __init__(
        self, problem: AllocationInput, candidates: Candidates, usage: Usage, quota_use: QuotaUse | None = None
    ) -> None:
        features = problem.features
        self.tentative = TentativeUsage(usage)
        self.picks: list[list[Pick]] = [[] for _ in problem.claims]
        self.constraints = [
            constraints.build(claim.claim, lists=features.list_type_attributes) for claim in problem.claims
        ]
        self.quota_use = quota_use
        self._candidates = candidates
        self._counters = Counters(usage, groups=features.compatibility_groups)

    def available(self, view: ResolvedRequest, candidate: Candidate) -> bool:
        """Return whether the device is not held, has room left, and is within the quota, at this
        point of the search.
        """
        return not self._held(view, candidate.device) and (
            candidate.consumption is None
            or (
                self.tentative.has_room(candidate.device.id, candidate.consumption)
                and self._affordable(view, candidate)
            )
        )

    def take(self, view: ResolvedRequest, candidate: Candidate) -> Taken | None:
        """Take a candidate by count. Returns None, and changes nothing, if that is not possible now."""
        return self._take(view, candidate, must=False) if self.available(view, candidate) else None

    def take_all(self, view: ResolvedRequest, candidate: Candidate) -> Taken | None:
        """Take one of all devices. Raises AllocatorError if a constraint prevents it: no other choice can help."""
        if self._held(view, candidate.device) or not self._candidates.usable(view, candidate.device):
            return None
        if not self._affordable(view, candidate):
            return None
        return self._take(view, candidate, must=True)

    def release(self, taken: Taken) -> None:
        view, candidate = taken.view, taken.candidate
        assert candidate.consumption is not None
        self.picks[view.claim_index].pop()
        if self.quota_use is not None:
            self.quota_use.release(view, candidate.device)
        self.tentative.release(view, candidate.device, candidate.consumption)
        self._unconstrain(view, len(view.constraints))
        if taken.counters:
            self._counters.release(candidate.pool, candidate.device)

    def values(self, view: ResolvedRequest, device: Device) -> tuple[Hashable, ...]:
        """Return the values by which the constraints of the request compare the device.

        Raises AllocatorError (derived attributes).
        """
        return tuple(self.constraints[view.claim_index][index].value(view, device) for index in view.constraints)

    def _affordable(self, view: ResolvedRequest, candidate: Candidate) -> bool:
        return self.quota_use is None or self.quota_use.allows(view, candidate)

    def _held(self, view: ResolvedRequest, device: Device) -> bool:
        if view.admin_access:
            return self.tentative.held_by(device.id, view.claim_index)
        return self.tentative.held(device.id)

    def _take(self, view: ResolvedRequest, candidate: Candidate, *, must: bool) -> Taken | None:
        """Take a device in upstream's order: counters, constraints, then (of all devices) room."""
        device, consumption = candidate.device, candidate.consumption
        assert consumption is not None
        # The counters of a shared device are charged once, by its first share; a device on its own
        # always pays.
        charge = bool(device.spec.consumes_counters) and not (
            view.shared(device) and self.tentative.shared_already(device.id)
        )
        if charge and not self._counters.take(candidate.pool, device):
            return None
        broken = self._constrain(view, device)
        # Undo in reverse order, so that a failed attempt leaves nothing behind. Room is tested last
        # and only for "all devices": by count, `available` tested it before.
        if broken is not None or (must and not self.tentative.has_room(device.id, consumption)):
            if broken is None:
                self._unconstrain(view, len(view.constraints))
            if charge:
                self._counters.release(candidate.pool, device)
            if must and broken is not None:
                raise AllocatorError(
                    f"ResourceClaim {view.claim_key}: request {view.name}: asks for all devices, and device {device.id} "
                    f"breaks spec.devices.constraints[{broken}]"
                )
            return None
        self.tentative.take(view, device, consumption)
        if self.quota_use is not None:
            self.quota_use.take(view, device)
        self.picks[view.claim_index].append(Pick(view, device, consumption))
        return Taken(view, candidate, charge)

    def _constrain(self, view: ResolvedRequest, device: Device) -> int | None:
        """Add the device to all constraints, or to none; then return the position of the first that it breaks."""
        of_claim = self.constraints[view.claim_index]
        for added, index in enumerate(view.constraints):
            if not of_claim[index].add(view, device):
                self._unconstrain(view, added)
                return index
        return None

    def _unconstrain(self, view: ResolvedRequest, added: int) -> None:
        of_claim = self.constraints[view.claim_index]
        for index in reversed(view.constraints[:added]):
            of_claim[index].remove()
