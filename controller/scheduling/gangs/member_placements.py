"""Members of one gang on a trial: decided one at a time, each next to those before it. Pure.

Used by `placing_strategies`, which chooses the order and takes members back. Everything that
decides is a generator that yields before each step, so that the caller can pause between two
members: `None`, or the `SliceSpent` with which a selector budget ended the step.
"""

import dataclasses
from collections.abc import Collection, Generator, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from controller.scheduling.decide.allowed_nodes import AllowedNodes
from controller.scheduling.decide.answers import ClaimAllocation, Decision, Unfinished, Unschedulable, without_trace
from controller.scheduling.decide.decision import decide_slice
from controller.scheduling.decide.scheduling_request import Options, PodClaim, SchedulingRequest
from controller.scheduling.gangs.gang_members import Member, shared_claims
from controller.scheduling.gangs.trial_assumptions import Holdings, Trial
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.model import DeviceId
from controller.scheduling.inventory.selector_budget import SliceSpent
from hami_dra.api.resource import AllocationResult, DeviceRequest, ResourceClaim

INTERRUPTION: Final = 10
"""Steps that an interruption by a selector budget counts for."""

_Answer = TypeVar("_Answer")
Steps = Generator[SliceSpent | None, None, _Answer]


class OutOfSteps(Exception):
    """The search has made as many decisions as it may."""


class Hopeless(Exception):
    """A member that is needed cannot be decided at all: its claims are in error."""


class Restriction(Struct, frozen=True):
    """What one member may choose from."""

    allowed: AllowedNodes | None = None
    """None: all nodes."""
    masked: frozenset[DeviceId] = frozenset()
    skipped: int = 0
    """Alternatives of each prioritized list that are skipped, from the front."""


class Failure(Struct, frozen=True):
    """An attempt to place the gang."""

    member: Member
    """The first one that found no room."""
    refusal: Unschedulable
    placeable: int
    """Members that had a place by then."""


class _Place(Struct, frozen=True):
    member: Member
    restriction: Restriction
    holdings: Holdings
    """Without the claims that an earlier member brought."""


class MemberPlacements:
    """The members that have a place on the trial, and those that are left out. Begins suspended."""

    def __init__(
        self,
        inventory: Inventory,
        options: Options,
        requests: Sequence[SchedulingRequest],
        *,
        least: int,
        most_steps: int,
    ) -> None:
        self._inventory = inventory
        self._options = options
        self._trial: Final = Trial(inventory)
        self._shared = shared_claims(requests)
        self._allocated: dict[str, AllocationResult] = {}
        """By uid: claims that members share, allocated by the first of them."""
        self._slack = len(requests) - least
        """Members that may be left out."""
        self._most_steps = most_steps
        self.steps = 0
        """Decisions about single members, and what interruptions count for."""
        self.decisions: dict[int, Decision] = {}
        """By index of the member; in the order in which they were placed."""
        self.left: dict[int, Unschedulable] = {}
        """By index: elastic members without a place."""
        self.failure: Failure | None = None
        """The best attempt that failed."""
        self.most_placed = 0
        """The most members that had a place at once, since the caller set it to 0."""
        self._places: dict[int, _Place] = {}
        """By index; `decisions` with what is needed to assume them again."""
        self._requests = requests

    def decide(self, member: Member, restriction: Restriction) -> Steps[Decision | Unschedulable]:
        """Decide on one member, without placing it. Raises OutOfSteps."""
        yield None  # not between a decision and its placing: the inventory may change
        request = self._request_of(member.request, restriction)
        while True:
            if self.steps >= self._most_steps:
                raise OutOfSteps
            answer = decide_slice(self._inventory, request, self._options)
            if not isinstance(answer, Unfinished):
                break
            # The search on a node begins again where a member was placed there, for that is taken back
            # between two portions: without a price it might never end.
            self.steps += INTERRUPTION
            yield answer.cause
        self.steps += 1
        if isinstance(answer, Decision) and request is not member.request:
            answer = dataclasses.replace(answer, allocations=_as_asked(answer, member.request))
        return without_trace(answer)

    def place(self, member: Member, restriction: Restriction, decision: Decision) -> None:
        """Give the member the place that was decided. `restriction`: the one of the decision."""
        holdings = self._trial.assume(member.request.pod, decision)
        self._places[member.index] = _Place(member, restriction, holdings)
        self.decisions[member.index] = decision
        self.most_placed = max(self.most_placed, len(self.decisions))
        for entry in decision.allocations:
            if entry.claim.metadata.uid in self._shared:
                self._allocated[entry.claim.metadata.uid] = AllocationResult.from_json(entry.allocation)

    def leave(self, member: Member, refusal: Unschedulable) -> bool:
        """Leave a member out that found no room. Returns whether the others suffice. Raises Hopeless."""
        if self.failure is None or len(self.decisions) > self.failure.placeable:
            self.failure = Failure(member, refusal, len(self.decisions))
        if len(self.left) >= self._slack:
            if refusal.error:
                raise Hopeless
            return False
        self.left[member.index] = refusal
        return True

    def unplace(self, member: Member) -> None:
        """Take back a member, if it has a place."""
        if member.index not in self.decisions:
            return
        self._trial.forget(member.request.pod.metadata.uid)
        del self.decisions[member.index]
        for uid in self._places.pop(member.index).holdings:
            self._allocated.pop(uid, None)

    def clear(self, members: Sequence[Member]) -> None:
        """Take back all of these members, and forget who is left out."""
        for member in reversed(members):
            self.unplace(member)
        self.left.clear()

    def suspend(self) -> None:
        """Let nothing count until `resume`. The places are kept."""
        self._trial.close()

    @property
    def may_go_on_counting(self) -> bool:
        """Whether the places may count between two portions. Not where pods were lifted: others may
        change meanwhile where these count.
        """
        return not self._trial.has_lifted

    def resume(self, touched: Collection[int]) -> bool:
        """Let the places count, if they do not. Those on nodes that changed are decided again, if
        possible on the same node. Returns False where one of them is lost: then begin again.

        `touched`: rows of the nodes that changed since the places were found, or counted last.
        """
        for request in self._requests:
            if request.pod.metadata.uid not in self._trial:
                self._trial.lift(request.pod)
        lost = []
        for index, place in self._places.items():
            pod, node = place.member.request.pod, self.decisions[index].node
            if self._inventory.nodes.index_of(node) in touched:
                lost.append(place)
                if pod.metadata.uid in self._trial:
                    self._trial.forget(pod.metadata.uid)
            elif pod.metadata.uid not in self._trial:
                self._trial.assume_again(pod, node, place.holdings)
        return all(self._renew(place) for place in lost)

    def _renew(self, place: "_Place") -> bool:
        """Decide a member again that has no place any more. Returns whether it found one."""
        member, node = place.member, self.decisions[place.member.index].node
        request = self._request_of(member.request, place.restriction)
        answer = decide_slice(self._inventory, replace(request, preferred_node=node), self._options)
        self.steps += 1
        if not isinstance(answer, Decision) or (answer.node != node and not self._shared.isdisjoint(place.holdings)):
            return False
        answer = without_trace(dataclasses.replace(answer, allocations=_as_asked(answer, member.request)))
        self.place(member, place.restriction, answer)
        return True

    def _request_of(self, request: SchedulingRequest, restriction: Restriction) -> SchedulingRequest:
        """Return the request as it is to be decided: restricted, and with the allocations that
        earlier members chose for claims they share.
        """
        claims = request.claims
        if self._allocated or restriction.skipped:
            claims = tuple(
                [PodClaim(entry.pod_claim_name, self._claim_of(entry.claim, restriction)) for entry in claims]
            )
        elif restriction.allowed is None and not restriction.masked:
            return request
        return replace(request, claims=claims, allowed_nodes=restriction.allowed, masked_devices=restriction.masked)

    def _claim_of(self, claim: ResourceClaim, restriction: Restriction) -> ResourceClaim:
        allocation = self._allocated.get(claim.metadata.uid)
        if allocation is not None:
            return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=allocation))
        if claim.status.allocation is None and restriction.skipped:
            return without_first(claim, restriction.skipped)
        return claim


def without_first(claim: ResourceClaim, skipped: int) -> ResourceClaim:
    """Return the claim with shorter prioritized lists; the last alternative of each stays.

    `[whole, half, quarter]` without the first one is `[half, quarter]`, and without the first four
    `[quarter]`.
    """

    def shorter(request: DeviceRequest) -> DeviceRequest:
        alternatives = request.first_available
        if not alternatives:
            return request
        return msgspec.structs.replace(request, first_available=alternatives[min(skipped, len(alternatives) - 1) :])

    requests = tuple(map(shorter, claim.spec.devices.requests))
    devices = msgspec.structs.replace(claim.spec.devices, requests_or_null=requests)
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))


def most_skipped(request: SchedulingRequest) -> int:
    """Return how many alternatives can be skipped before nothing changes any more."""
    return max(
        (
            len(each.first_available) - 1
            for entry in request.claims
            for each in entry.claim.spec.devices.requests
            if each.first_available
        ),
        default=0,
    )


def _as_asked(decision: Decision, request: SchedulingRequest) -> tuple[ClaimAllocation, ...]:
    """Return the allocations with the claims as the member refers to them."""
    claims = {entry.claim.metadata.uid: entry.claim for entry in request.claims}
    return tuple([replace(entry, claim=claims[entry.claim.metadata.uid]) for entry in decision.allocations])
