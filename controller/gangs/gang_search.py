"""Decide all members of a gang at once: all of them find a place, or none does. Pure.

The order of attempts (docs/design/gangs.md has a worked example):

1. `fits_per_node` counts over columns how many members fit on each node, and `domains` which
   topology domains can hold the gang, tightest first.
2. `placing_strategies` places the members in one domain after the other.
3. `exhaustive_search` tries all choices for small gangs.

All of it happens in one piece: no other decision sees a place before all members have theirs.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from controller.allocation.errors import AllocatorError, SelectorOverBudget
from controller.decide.allowed_nodes import AllowedNodes
from controller.decide.answers import Unschedulable
from controller.decide.scheduling_request import Options
from controller.gangs.domains import MOST_KINDS, Demand, Domain, GangDomains, Kinds
from controller.gangs.exhaustive_search import ExhaustiveSearch
from controller.gangs.fits_per_node import NodeFits, RoomForAll, fits_per_node, idle_fits_per_node
from controller.gangs.gang_members import Bundle, Member, bundles_of, members_of, shared_claims
from controller.gangs.member_placements import Hopeless, MemberPlacements, OutOfSteps
from controller.gangs.member_relations import MemberRelations
from controller.gangs.placing_strategies import InOrder, everywhere
from controller.gangs.unit import Unit
from controller.gangs.unit_answers import DomainVerdict, UnitDecision, UnitRefusal, gang_reason, verdicts_of
from controller.inventory.inventory import Inventory
from controller.inventory.selector_budget import SliceSpent
from controller.scoring.formulas import sort_sign

STEPS: Final = 2_000
"""Decisions about single members before the gang is given up."""
_EXHAUSTIVE_PART: Final = 4
"""The exhaustive search gets this part of all steps: a quarter."""
_MOST_FOR_REASONS: Final = 64
"""Members of a gang of which as many as fit are placed only to say what the next member lacks."""


def decide_gang(
    inventory: Inventory, request: Unit, options: Options, *, steps: int = STEPS
) -> UnitDecision | UnitRefusal:
    """Return a place for at least `least` members at once, or why there is none.

    Afterwards the inventory is as before; the caller assumes the answer in the same synchronous
    step. `steps`: limit of decisions about single members. Raises SliceSpent as `decide`: decide
    again, from the beginning, with what was evaluated by then.
    """
    placements = MemberPlacements(inventory, options, request.members, least=request.least, most_steps=steps)
    with placements:
        return _GangSearch(inventory, request, options, placements, steps).decide()


class _GangSearch:
    """One decision about a gang."""

    def __init__(
        self, inventory: Inventory, request: Unit, options: Options, placements: MemberPlacements, steps: int
    ) -> None:
        self._inventory = inventory
        self._request = request
        self._options = options
        self._placements = placements
        self._most_steps = steps
        self._members: tuple[Member, ...] = ()
        self._tried: dict[str, int] = {}
        """Name of each domain that was tried → the most members that fitted there."""
        self._domains: list[Domain] = []
        """Those that the required constraints leave, best first."""
        self._in_order = False
        """Whether members fit only once others are there."""
        self._outside = ""
        """A node with a bound member that lacks a required label."""

    # -- deciding ----------------------------------------------------------------------------------

    def decide(self) -> UnitDecision | UnitRefusal:
        members = self._members = members_of(self._inventory, self._request.members)
        if not members:
            return UnitDecision((), ())
        relations = MemberRelations(self._inventory, members)
        self._in_order = self._placements.order_matters = relations.exist
        demand, order = self._demand(members, relations)
        nodes = self._inventory.nodes
        settled = nodes.rows_of(self._request.settled_nodes)
        domains = GangDomains(self._inventory, self._request.topology, settled, demand)
        self._domains = domains.required()
        if (row := domains.outside()) >= 0:
            self._outside = nodes.names[row]
        bundles = sorted(bundles_of(members), key=lambda bundle: min(order[member.kind] for member in bundle.members))
        try:
            placed = self._place(bundles, domains)
        except OutOfSteps:
            return self._refusal(exhausted=True)
        except Hopeless:
            return self._refusal(exhausted=False)
        if placed is None:
            return self._refusal(exhausted=False)
        return self._decision(placed)

    def _place(self, bundles: list[Bundle], domains: GangDomains) -> Domain | None:
        """Return the domain in which the gang has its places. Raises OutOfSteps."""
        in_order = InOrder(self._inventory, self._placements, bundles, comes_back=self._in_order)
        tried: dict[str, Domain] = {}
        for domain in domains.to_try(self._domains):
            if domain.name not in tried:
                tried[domain.name] = domain
                if self._within(domain, in_order.place):
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
            if self._within(domain, lambda allowed: search.place(allowed or everywhere(self._inventory))):
                return domain
        if not tried and len(members) <= _MOST_FOR_REASONS:
            # No domain has room, by numbers alone: place what fits in the best one for the reasons.
            for domain in self._domains[:1]:
                self._within(domain, in_order.place)
        return None

    def _within(self, domain: Domain, place: Callable[[AllowedNodes | None], bool]) -> bool:
        """Run a strategy in one domain, and note how far it came."""
        self._placements.most_placed = 0
        try:
            return place(domain.allowed)
        finally:
            placed = self._placements.most_placed
            self._tried[domain.name] = max(self._tried.get(domain.name, 0), placed)

    def _demand(self, members: Sequence[Member], relations: MemberRelations) -> tuple[Demand, dict[int, int]]:
        """Return what the gang asks of the nodes, and by kind its place in the order of placing:
        members with the fewest candidate nodes first, then those with the most devices, but each after
        the members that its affinity refers to.
        """
        shared = shared_claims(self._request.members)
        samples = {member.kind: member.request for member in reversed(members)}
        kinds = Kinds(np.bincount([member.kind for member in members]), self._inventory.nodes.size)
        room = RoomForAll(self._inventory)
        fits: dict[int, NodeFits] = {}
        hardness: dict[int, tuple[int, int, int]] = {}
        for kind, sample in sorted(samples.items()):
            found = fits[kind] = fits_per_node(self._inventory, sample, self._options, shared, relations, room=room)
            kinds.fits[kind] = found.members
            hardness[kind] = int(np.count_nonzero(found.members)), -found.devices, kind
            if len(kinds.fits) == MOST_KINDS:
                easiest = max(fits, key=hardness.__getitem__)
                kinds.others(easiest)
                del fits[easiest]
        order = sorted(fits, key=hardness.__getitem__)
        hardest = fits[order[0]]
        sign = sort_sign(samples[order[0]].policies.node_policy)
        demand = kinds.demand(
            order,
            room.per_node(),
            self._request.least,
            np.where(hardest.members > 0, hardest.links, 0.0),
            np.where(hardest.members > 0, sign * self._inventory.nodes.score, 0.0),
        )
        placing = relations.ordered(sorted(samples, key=hardness.__getitem__))
        return demand, {kind: place for place, kind in enumerate(placing)}

    # -- answers -----------------------------------------------------------------------------------

    def _decision(self, domain: Domain) -> UnitDecision:
        members, placements = self._request.members, self._placements
        order = [*placements.decisions] if self._in_order else sorted(placements.decisions)
        return UnitDecision(
            placed=tuple([(members[index], placements.decisions[index]) for index in order]),
            left=tuple([(members[index], placements.left[index]) for index in sorted(placements.left)]),
            domain=domain.name,
            domains=self._verdicts(),
            steps=placements.steps,
        )

    def _refusal(self, *, exhausted: bool) -> UnitRefusal:
        members, placements = self._request.members, self._placements
        if not self._options.says_why:
            return UnitRefusal("no place", Unschedulable("no place"), members[0].pod.key, 0, steps=placements.steps)
        failure, verdicts = placements.failure, self._verdicts()
        placeable = max((each.fits for each in verdicts), default=0)
        member, closest = members[0].pod.key, None
        if failure is not None:
            placeable = failure.placeable
            member, closest = failure.member.request.pod.key, failure.refusal
        lasting = self._lasting()
        reason = gang_reason(
            self._request, verdicts, len(self._domains), placeable, closest, lasting=lasting, outside=self._outside
        )
        message = reason.statement
        if exhausted:
            message = f"{message} (given up after {placements.steps} steps; other placements may exist)"
        return UnitRefusal(
            message=message,
            refusal=failure.refusal if failure is not None else Unschedulable(message),
            member=member,
            placeable=placeable,
            domains=verdicts,
            steps=placements.steps,
            reason=reason,
        )

    def _lasting(self) -> Domain | None:
        """Return the domain that could hold the most members with idle devices, if even that is too
        small for the gang.
        """
        inventory, request, members = self._inventory, self._request, self._members
        samples = {member.kind: member.request for member in reversed(members)}
        shared, size = shared_claims(request.members), inventory.nodes.size
        kinds = Kinds(np.bincount([member.kind for member in members]), size)
        for kind in sorted(samples):
            try:
                kinds.fits[kind] = idle_fits_per_node(inventory, samples[kind], self._options, shared)
            except (AllocatorError, SelectorOverBudget, SliceSpent):
                return None
            if len(kinds.fits) == MOST_KINDS:
                kinds.others(kind)
        nothing = np.zeros(size, dtype=np.float64)
        anything = np.full(size, len(members), dtype=np.int64)
        demand = kinds.demand(sorted(kinds.fits), anything, request.least, nothing, nothing)
        settled = inventory.nodes.rows_of(request.settled_nodes)
        domains = GangDomains(inventory, request.topology, settled, demand).required()
        return domains[0] if domains and domains[0].placeable < request.least else None

    def _verdicts(self) -> tuple[DomainVerdict, ...]:
        return verdicts_of(self._domains, self._tried, self._request, self._options.report_nodes)
