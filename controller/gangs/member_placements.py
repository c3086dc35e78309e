"""Members of one gang on a trial: decided one at a time, each next to those before it. Pure.

Used by `placing_strategies`, which chooses the order and takes members back.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from controller.allocation.attempt import AttemptSpent
from controller.decide.allowed_nodes import AllowedNodes
from controller.decide.answers import ClaimAllocation, Decision, Unschedulable, without_trace
from controller.decide.decision import Alike, decide
from controller.decide.scheduling_request import Options, PodClaim, SchedulingRequest
from controller.gangs.gang_members import Member, shared_claims
from controller.inventory.inventory import Inventory
from controller.inventory.model import DeviceId
from hami_dra.api.resource import AllocationResult, DeviceRequest, ResourceClaim

STEPS_PER_DECISION: Final = 40
"""What a decision about one member costs of an attempt, in steps of a search: a quarter of a millisecond."""

_MOST_REASONS: Final = 64
"""Kinds of members without a place that say why; further ones say no more than that no node fits, unless
no attempt placed more members."""


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


class MemberPlacements:
    """The members that have a place on the trial, and those that are left out. A context: what counts is
    taken back at its end.
    """

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
        self._silent = replace(options, says_why=False)
        self._trial: Final = inventory.trial()
        self._brought: dict[int, list[str]] = {}
        """By index: uids of the claims that the member was the first to allocate."""
        self._shared = shared_claims(requests)
        self._allocated: dict[str, AllocationResult] = {}
        """By uid: claims that members share, allocated by the first of them."""
        self._slack = len(requests) - least
        """Members that may be left out."""
        self._most_steps = most_steps
        self.steps = 0
        """Decisions about single members."""
        self.decisions: dict[int, Decision] = {}
        """By index of the member; in the order in which they were placed."""
        self.left: dict[int, Unschedulable] = {}
        """By index: elastic members without a place."""
        self.failure: Failure | None = None
        """The best attempt that failed."""
        self.most_placed = 0
        """The most members that had a place at once, since the caller set it to 0."""
        self.order_matters = False
        """Whether a member may fit only once others are there."""
        self._latest: tuple[int, Restriction] | None = None
        """The kind that was decided last."""
        self._alike = Alike()
        self._refused: dict[tuple[int, Restriction], Unschedulable] = {}
        """By kind: refusals since a member was taken back."""
        self._requests = requests

    def __enter__(self) -> Self:
        for request in self._requests:
            self._trial.remove(request.pod.metadata.uid)
        return self

    def __exit__(self, *_: object) -> None:
        self._trial.close()

    def decide(self, member: Member, restriction: Restriction) -> Decision | Unschedulable:
        """Decide on one member, without placing it. Raises OutOfSteps, SliceSpent.

        A member that finds no room leaves none for the next one like it: only what is taken back may.
        """
        if (refusal := self._refused.get((member.kind, restriction))) is not None:
            return refusal
        if self.steps >= self._most_steps:
            raise OutOfSteps
        self.steps += 1
        request = self._request_of(member.request, restriction)
        says_why = len(self._refused) < _MOST_REASONS or self._is_best_attempt
        options = self._options if says_why else self._silent
        try:
            self._charge()
            answer = decide(self._inventory, request, options, self._alike_of(member, restriction))
        except AttemptSpent as cause:
            if self._options.attempt is not None and self._options.attempt.is_last:
                raise OutOfSteps from cause
            raise
        if isinstance(answer, Decision) and request is not member.request:
            answer = dataclasses.replace(answer, allocations=_as_asked(answer, member.request))
        if answer.trace is not None:
            answer = without_trace(answer)
        if isinstance(answer, Unschedulable):
            self._refused[member.kind, restriction] = answer
        return answer

    def place(self, member: Member, decision: Decision) -> None:
        """Give the member the place that was decided."""
        self._trial.place(member.request.pod, decision.node, decision.holdings)
        if self.order_matters:
            self._refused.clear()
        self.decisions[member.index] = decision
        self.most_placed = max(self.most_placed, len(self.decisions))
        brought = [entry for entry in decision.allocations if entry.claim.metadata.uid in self._shared]
        self._brought[member.index] = [entry.claim.metadata.uid for entry in brought]
        for entry in brought:
            self._allocated[entry.claim.metadata.uid] = AllocationResult.from_json(entry.allocation)

    def leave(self, member: Member, refusal: Unschedulable) -> bool:
        """Leave a member out that found no room. Returns whether the others suffice. Raises Hopeless."""
        if self._is_best_attempt:
            self.failure = Failure(member, refusal, len(self.decisions))
        if len(self.left) >= self._slack:
            if refusal.error:
                raise Hopeless
            return False
        self.left[member.index] = refusal
        return True

    @property
    def _is_best_attempt(self) -> bool:
        return self.failure is None or len(self.decisions) > self.failure.placeable

    def unplace(self, member: Member) -> None:
        """Take back a member, if it has a place."""
        if member.index not in self.decisions:
            return
        self._trial.take_back(member.request.pod.metadata.uid)
        self._refused.clear()
        del self.decisions[member.index]
        for uid in self._brought.pop(member.index):
            self._allocated.pop(uid, None)

    def clear(self, members: Sequence[Member]) -> None:
        """Take back all of these members, and forget who is left out."""
        for member in reversed(members):
            self.unplace(member)
        self.left.clear()

    def _charge(self) -> None:
        """Charge the attempt for every decision after as many as there are members. Raises AttemptSpent."""
        attempt = self._options.attempt
        if attempt is not None and self.steps > len(self._requests):
            attempt.spent += STEPS_PER_DECISION
            if attempt.left <= 0:
                raise AttemptSpent

    def _alike_of(self, member: Member, restriction: Restriction) -> Alike | None:
        """Return what the decision shares with the one before, if that was about such a member."""
        if self._allocated or restriction.skipped or restriction.masked:
            self._latest = None
            return None
        if self._latest != (member.kind, restriction):
            self._latest, self._alike = (member.kind, restriction), Alike()
        return self._alike

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
