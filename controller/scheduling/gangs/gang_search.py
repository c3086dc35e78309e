"""Decide all members of a gang at once: all of them find a place, or none does. Pure.

The order of attempts (docs/gangs.md has a worked example):

1. `fits_per_node` counts over columns how many members fit on each node, and `domains` which
   topology domains can hold the gang, tightest first.
2. `placing_strategies` places the members in one domain after the other.
3. `exhaustive_search` tries all choices for small gangs.

A `GangSearch` works in portions. Between two portions its places go on counting until `suspend`,
which the caller calls before any other pod is decided: that pod may take what this gang had found.
The next portion keeps the places on nodes that did not change, and decides the others again.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Final

import numpy as np

from controller.scheduling.allocation.errors import AllocatorError, SelectorOverBudget
from controller.scheduling.decide.answers import Unfinished, Unschedulable
from controller.scheduling.decide.refusal_reason import statement_of
from controller.scheduling.decide.scheduling_request import Options
from controller.scheduling.gangs.cluster_changes import ClusterChanges
from controller.scheduling.gangs.domains import MOST_KINDS, Demand, Domain, GangDomains, OtherKinds
from controller.scheduling.gangs.exhaustive_search import ExhaustiveSearch
from controller.scheduling.gangs.fits_per_node import NodeFits, fits_per_node, idle_fits_per_node
from controller.scheduling.gangs.gang_answers import DomainVerdict, GangAnswer, GangDecision, GangUnschedulable
from controller.scheduling.gangs.gang_members import Bundle, Member, bundles_of, members_of, shared_claims
from controller.scheduling.gangs.gang_refusal import gang_reason, verdicts_of
from controller.scheduling.gangs.gang_request import GangRequest
from controller.scheduling.gangs.member_placements import (
    INTERRUPTION,
    Hopeless,
    MemberPlacements,
    OutOfSteps,
    Steps,
)
from controller.scheduling.gangs.member_relations import MemberRelations
from controller.scheduling.gangs.placing_strategies import InOrder, everywhere
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.selector_budget import SliceSpent
from controller.scheduling.scoring.formulas import sort_sign
from hami_dra.api.arrays import Ints

STEPS: Final = 2_000
"""Decisions about single members before the gang is given up."""
_EXHAUSTIVE_PART: Final = 4
"""The exhaustive search gets this part of all steps: a quarter."""
_REPLAY_COST: Final = 4
"""Places that are taken again in the time of one decision."""
_MOST_FOR_REASONS: Final = 64
"""Members of a gang of which as many as fit are placed only to say what the next member lacks."""


def decide_gang(inventory: Inventory, request: GangRequest, options: Options, *, steps: int = STEPS) -> GangAnswer:
    """Return a place for at least `least` members at once, or why there is none.

    Afterwards the inventory is as before; the caller assumes the answer in the same synchronous
    step. Under a selector budget (`inventory.verdicts.within`) it may return `Unfinished`: call it
    again then; evaluations so far are cached, but the members are placed from the beginning. A
    `GangSearch` continues where it stopped.
    """
    search = GangSearch(inventory, request, options, steps=steps)
    try:
        return search.advance()
    finally:
        search.suspend()


class GangSearch:
    """One decision about a gang, in portions. `steps`: limit of decisions about single members."""

    def __init__(self, inventory: Inventory, request: GangRequest, options: Options, *, steps: int = STEPS) -> None:
        self._inventory = inventory
        self._request = request
        self._options = options
        self._most_steps = steps
        self._steps = 0
        self._changes = ClusterChanges(inventory, {member.pod.metadata.namespace for member in request.members})
        self._counts = False
        """Whether the places count in the inventory at present."""
        self._tried: dict[str, int] = {}
        """Name of each domain that was tried → the most members that fitted there."""
        self._domains: list[Domain] = []
        """Those that the required constraints leave, best first."""
        self._in_order = False
        """Whether members fit only once others are there."""
        self._outside = ""
        """A node with a bound member that lacks a required label."""
        self._begin()

    def advance(self, pause: Callable[[], bool] = lambda: False) -> GangAnswer:
        """Go on until there is an answer, or until `pause()` is true before a member is decided,
        while members or domains are counted, or before the answer, for what is found is taken back
        then.

        Returns `Unfinished` where the search is to be continued, also when a selector budget ended
        the portion. The places that were found may count in the inventory then, until `suspend`.
        After any other answer the inventory is as before.
        """
        answer: GangAnswer | None = None
        try:
            replayed = self._resume()
            # Taking 200 places again costs as much as some 50 decisions: a portion makes at least as
            # many, or the last members would cost more than all others.
            enough, turns = replayed // _REPLAY_COST, 0
            while answer is None:
                cause = next(self._course)
                turns += 1
                if cause is not None:
                    answer = Unfinished(cause)
                elif turns > enough and pause():
                    answer = Unfinished(SliceSpent())
        except StopIteration as end:
            answer = end.value
        finally:
            self._changes.mark()
            if not isinstance(answer, Unfinished) or not self._placements.may_go_on_counting:
                self.suspend()
        assert answer is not None
        return answer

    def suspend(self) -> None:
        """Stop counting the places found so far: before another pod is decided, and when the search
        is given up. Idempotent.
        """
        if self._counts:
            self._changes.keep()
            self._placements.suspend()
            self._changes.mark()
            self._counts = False

    # -- portions ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._placements = MemberPlacements(
            self._inventory,
            self._options,
            self._request.members,
            least=self._request.least,
            most_steps=self._most_steps - self._steps,
        )
        self._course: Generator[SliceSpent | None, None, GangDecision | GangUnschedulable] = self._decide()
        self._tried.clear()

    def _resume(self) -> int:
        """Let the places count again; begin again where that is not possible. Returns how many of
        them did not count any more.
        """
        touched = self._changes.touched()
        replayed = 0 if self._counts else len(self._placements.decisions)
        self._counts = True
        if touched is None or not self._placements.resume(touched):
            # At a price, or a search that begins again in each portion might never end.
            self._steps += max(self._placements.steps, INTERRUPTION)
            self._placements.suspend()
            self._begin()
            self._placements.resume(())
        return replayed

    # -- deciding ----------------------------------------------------------------------------------

    def _decide(self) -> Steps[GangDecision | GangUnschedulable]:
        members = yield from members_of(self._inventory, self._request.members)
        if not members:
            return GangDecision((), ())
        relations = MemberRelations(self._inventory, members)
        self._in_order = relations.exist
        demand, order = yield from self._demand(members, relations)
        nodes = self._inventory.nodes
        settled = [row for name in self._request.settled_nodes if (row := nodes.index_of(name)) >= 0]
        domains = GangDomains(self._inventory, self._request.topology, settled, demand)
        self._domains = yield from domains.required()
        if (row := domains.outside()) >= 0:
            self._outside = nodes.names[row]
        bundles = sorted(bundles_of(members), key=lambda bundle: min(order[member.kind] for member in bundle.members))
        yield None
        try:
            placed = yield from self._place(bundles, domains)
        except OutOfSteps:
            return (yield from self._refusal(exhausted=True))
        except Hopeless:
            return (yield from self._refusal(exhausted=False))
        if placed is None:
            return (yield from self._refusal(exhausted=False))
        yield None  # what was found is taken back after it
        return self._decision(placed)

    def _place(self, bundles: list[Bundle], domains: GangDomains) -> Steps[Domain | None]:
        """Return the domain in which the gang has its places. Raises OutOfSteps."""
        in_order = InOrder(self._inventory, self._placements, bundles, comes_back=self._in_order)
        tried: dict[str, Domain] = {}
        for domain in domains.to_try(self._domains):
            if domain is None or domain.name in tried:
                yield None
                continue
            tried[domain.name] = domain
            if (yield from self._within(domain, in_order.place(domain.allowed))):
                return domain
        members = [member for bundle in bundles for member in bundle.members]
        search = ExhaustiveSearch(
            self._inventory,
            self._placements,
            members,
            self._most_steps // _EXHAUSTIVE_PART,
            any_order=self._in_order,
        )
        for domain in tried.values():
            everything = domain.allowed or everywhere(self._inventory)
            if (yield from self._within(domain, search.place(everything))):
                return domain
        if not tried and len(members) <= _MOST_FOR_REASONS:
            # No domain has room, by numbers alone: place what fits in the best one for the reasons.
            for domain in self._domains[:1]:
                yield from self._within(domain, in_order.place(domain.allowed))
        return None

    def _within(self, domain: Domain, course: Steps[bool]) -> Steps[bool]:
        """Run a strategy in one domain, and note how far it came."""
        self._placements.most_placed = 0
        try:
            return (yield from course)
        finally:
            placed = self._placements.most_placed
            self._tried[domain.name] = max(self._tried.get(domain.name, 0), placed)

    def _demand(self, members: Sequence[Member], relations: MemberRelations) -> Steps[tuple[Demand, dict[int, int]]]:
        """Return what the gang asks of the nodes, and by kind its place in the order of placing:
        members with the fewest candidate nodes first, then those with the most devices, but each after
        the members that its affinity refers to.
        """
        shared = shared_claims(self._request.members)
        samples = {member.kind: member.request for member in reversed(members)}
        counts = np.bincount([member.kind for member in members])
        fits: dict[int, NodeFits] = {}
        others = OtherKinds(self._inventory.nodes.size)
        hardness: dict[int, tuple[int, int, int]] = {}
        for kind, sample in sorted(samples.items()):
            while kind not in fits:
                try:
                    fits[kind] = fits_per_node(self._inventory, sample, self._options, shared, relations)
                except SliceSpent as cause:
                    yield cause
            hardness[kind] = int(np.count_nonzero(fits[kind].members)), -fits[kind].devices, kind
            if len(fits) == MOST_KINDS:
                easiest = max(fits, key=hardness.__getitem__)
                others.add(fits.pop(easiest).members, int(counts[easiest]))
            yield None
        order = sorted(fits, key=hardness.__getitem__)
        hardest = fits[order[0]]
        sign = sort_sign(samples[order[0]].policies.node_policy)
        demand = Demand(
            counts=others.counts(counts[order]),
            fits=others.fits([fits[kind].members for kind in order]),
            least=self._request.least,
            links=np.where(hardest.members > 0, hardest.links, 0.0),
            score=np.where(hardest.members > 0, sign * self._inventory.nodes.score, 0.0),
        )
        placing = relations.ordered(sorted(samples, key=hardness.__getitem__))
        return demand, {kind: place for place, kind in enumerate(placing)}

    # -- answers -----------------------------------------------------------------------------------

    def _decision(self, domain: Domain) -> GangDecision:
        members, placements = self._request.members, self._placements
        order = [*placements.decisions] if self._in_order else sorted(placements.decisions)
        return GangDecision(
            placed=tuple([(members[index], placements.decisions[index]) for index in order]),
            left=tuple([(members[index], placements.left[index]) for index in sorted(placements.left)]),
            domain=domain.name,
            domains=self._verdicts(),
            steps=self._steps + placements.steps,
        )

    def _refusal(self, *, exhausted: bool) -> Steps[GangUnschedulable]:
        members, placements, verdicts = self._request.members, self._placements, self._verdicts()
        failure = placements.failure
        placeable = max((each.fits for each in verdicts), default=0)
        member, closest = members[0].pod.key, None
        if failure is not None:
            placeable = failure.placeable
            member, closest = failure.member.request.pod.key, failure.refusal
        lasting = yield from self._lasting()
        reason = gang_reason(
            self._request, verdicts, len(self._domains), placeable, closest, lasting=lasting, outside=self._outside
        )
        message = statement_of(reason)
        if exhausted:
            message = f"{message} (given up after {self._steps + placements.steps} steps; other placements may exist)"
        return GangUnschedulable(
            message=message,
            refusal=failure.refusal if failure is not None else Unschedulable(message),
            member=member,
            placeable=placeable,
            domains=verdicts,
            steps=self._steps + placements.steps,
            reason=reason,
        )

    def _lasting(self) -> Steps[Domain | None]:
        """Return the domain that could hold the most members with idle devices, if even that is too
        small for the gang.
        """
        inventory, request = self._inventory, self._request
        members = yield from members_of(inventory, request.members)
        samples = {member.kind: member.request for member in reversed(members)}
        counts = np.bincount([member.kind for member in members])
        shared, size = shared_claims(request.members), inventory.nodes.size
        fits: list[Ints] = []
        others = OtherKinds(size)
        for kind in sorted(samples):
            try:
                members_per_node = idle_fits_per_node(inventory, samples[kind], self._options, shared)
            except (AllocatorError, SelectorOverBudget, SliceSpent):
                return None
            if len(fits) < MOST_KINDS - 1:
                fits.append(members_per_node)
            else:
                others.add(members_per_node, int(counts[kind]))
            yield None
        nothing = np.zeros(size, dtype=np.float64)
        demand = Demand(
            counts=others.counts(counts[: len(fits)]),
            fits=others.fits(fits),
            least=request.least,
            links=nothing,
            score=nothing,
        )
        settled = [row for name in request.settled_nodes if (row := inventory.nodes.index_of(name)) >= 0]
        domains = yield from GangDomains(inventory, request.topology, settled, demand).required()
        return domains[0] if domains and domains[0].placeable < request.least else None

    def _verdicts(self) -> tuple[DomainVerdict, ...]:
        return verdicts_of(self._domains, self._tried, self._request, self._options.report_nodes)
