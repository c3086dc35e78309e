"""The preemption plan of one unit: first without what terminates already, then without victims. Pure.

| step | question | answer |
|---|---|---|
| 1 | does it fit once the pods that terminate are gone? | a plan without victims |
| 2 | may it preempt? | no: `NoPlan` |
| 3 | where may victims make room? | the places where they may cost least |
| 4 | which victims (`victims`)? | the best plan of all places |
| 5 | if there is none: is the unit owed what it asks for (`guarantees`)? | steps 3 and 4 with pods of any priority in other namespaces |
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from controller.cluster.nodes.node_labels import NO_DOMAIN
from controller.decide.allowed_nodes import AllowedNodes
from controller.decide.node_filter import NodeFilter
from controller.decide.scheduling_request import Options, SchedulingRequest
from controller.gangs import Unit, UnitDecision, decide_unit, members_of, shared_claims
from controller.inventory import Trial
from controller.inventory.inventory import Inventory
from controller.inventory.quotas import Charge
from controller.preemption.bounds import NOT_ENOUGH, UNKNOWN, Room, least_charge, room_for
from controller.preemption.budgets import Budgets
from controller.preemption.guarantees import Guarantees
from controller.preemption.plan import NoPlan, PreemptionPlan, PreemptionRules
from controller.preemption.tenants import Block, Tenants, must_run_until, why_it_stays
from controller.preemption.victims import OFFSET, Found, OutOfSteps, Rank, Victims
from controller.reasons import Change, meaning_of
from controller.reasons.catalogue import CODES
from hami_dra.api.arrays import Bools
from hami_dra.api.core import Pod
from hami_dra.api.resource import ResourceClaim

_LEAVING_HELPS = Change.RESOURCES_FREED | Change.PODS_LEFT | Change.PODS_MOVED
"""Of the reasons against a node: those that end when pods leave."""
_RECLAIM_AFTER: Final = 300.0
"""Seconds that a pod has run at least before one of no higher priority takes its devices, if it says nothing."""
_PASSED_BY: Final = 1_000
"""Nodes from which guarantees let too few pods go, until the search ends: 100 to 200 ms."""
_FEWEST_STEPS: Final = 200
_FEWEST_DECISIONS: Final = 5
"""On a gang, however large it is."""
_ANY: Final = Rank(0, -OFFSET, 0, 0, 1, -math.inf)
"""Nothing is known of the plans of a gang."""


class Place(NamedTuple):
    """A node, or a topology domain, where victims may make room."""

    nodes: AllowedNodes
    bound: Rank
    """No plan there has a lower rank."""
    devices: int
    """Devices that must become free at least."""
    blocks: list[Block]
    """The victims to choose from."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """Preemption in a cluster at one moment."""

    inventory: Inventory
    tenants: Tenants
    budgets: Budgets
    options: Options
    """Of the decisions."""
    rules: PreemptionRules
    left_claims: Collection[str] = ()
    """UIDs of allocated claims whose pods have all ended: they will be free once that is written."""

    condemned: Collection[Pod] = ()
    """Victims of other plans that do not terminate yet."""
    taken: Charge | None = None
    """What the unit's namespace uses, with the places that are held for its units; None: as the inventory says."""
    promised: Collection[str] = ()
    """UIDs of claims for which places are held or reserved: other namespaces have them only later."""

    def plan(self, unit: Unit) -> PreemptionPlan | NoPlan:
        """Return the victims without which the unit fits, which found no room.

        Afterwards the inventory is as before. Raises SliceSpent as `decide`.
        """
        return Search(self, unit).plan()

    def at_once(self, unit: Unit) -> PreemptionPlan | None:
        """Return where the unit fits now; None: nowhere."""
        search = Search(self, unit)
        return None if (decision := search.decide()) is None else search.plan_of(decision, ())

    def guarantees(self, namespace: str) -> Guarantees:
        return Guarantees(self.inventory, self.tenants, namespace, taken=self.taken, promised=self.promised)

    def without(self, unit: Unit, leaving: Iterable[Pod] = (), claims: Collection[str] = ()) -> UnitDecision | None:
        """Return where the unit fits once these bound pods are gone and these claims, by UID, are free; None: nowhere."""
        with self.inventory.trial() as trial:
            trial.remove_all([pod.metadata.uid for pod in leaving], claims)
            return Search(self, unit).decide()


class Search:
    """A search for the places of one unit."""

    def __init__(self, preemption: Preemption, unit: Unit) -> None:
        self._inventory = preemption.inventory
        self._tenants = preemption.tenants
        self._budgets = preemption.budgets
        self._options = replace(preemption.options, attempt=None, says_why=False, report_nodes=1)
        self._rules = preemption.rules
        self._left_claims = preemption.left_claims
        self._condemned = {pod.metadata.uid: pod for pod in preemption.condemned}
        self._unit = unit
        self._priority = min((self._tenants.priority(request.pod) for request in unit.members), default=0)
        self._below: float = self._priority
        """Only pods of a lower priority go; infinite: the unit takes back what its namespace is owed."""
        self._namespace = next((request.pod.metadata.namespace for request in unit.members), "")
        self._guarantees = preemption.guarantees(self._namespace)
        self._within: AllowedNodes | None = None
        """The nodes of the place that is tried; None: all."""
        self._has_found = False
        """Whether there is a plan by now: budgets may protect those without whom the unit fits."""
        self._may: dict[str, bool] = {}
        """UID → `_may_go`: a gang asks about the pods of a node once for each number of nodes."""
        self._until = math.inf
        """When the first of the pods that must run longer may go."""
        self._victims = Victims(
            self._inventory,
            self._tenants,
            self._budgets,
            self._guarantees,
            self.decide,
            steps=max(
                self._rules.steps // (1 + self._inventory.nodes.size // 1_000),
                _FEWEST_STEPS,
                _FEWEST_DECISIONS * unit.least,
            ),
            cost=max(unit.least, 1),
        )

    def plan(self) -> PreemptionPlan | NoPlan:
        releasing = self.releasing
        plan = self._once_gone(releasing)
        if isinstance(plan, NoPlan):
            return plan
        near = tuple([pod for pod in releasing if pod.spec.node_name in plan.nodes])
        if len(near) < len(releasing) and self._fits(plan, near):
            return replace(plan, releasing=near)
        return replace(plan, releasing=tuple(releasing))

    @property
    def releasing(self) -> list[Pod]:
        """The pods that leave whatever is decided."""
        known = {pod.metadata.uid: pod for pod in self._tenants.releasing(self._rules.now)}
        return [*(known | self._condemned).values()]

    def remove(self, trial: Trial, pods: Collection[Pod]) -> set[str]:
        """Let the pods not count on the trial. Returns the UIDs of the claims that are free then."""
        freed = {*self._tenants.freed_by(pods), *self._left_claims}
        trial.remove_all([pod.metadata.uid for pod in pods], freed)
        return freed

    def _once_gone(self, releasing: Sequence[Pod]) -> PreemptionPlan | NoPlan:
        """Return the plan as if these pods were gone."""
        with self._inventory.trial() as trial:
            freed = self.remove(trial, releasing)
            if (freed or releasing) and (decision := self.decide()) is not None:
                return self.plan_of(decision, ())
            if any(request.pod.spec.preemption_policy == "Never" for request in self._unit.members):
                return NoPlan("its preemptionPolicy is Never")
            steps = self._victims.steps
            plan = self._with_victims()
            if isinstance(plan, NoPlan) and self._guarantees.lacks and self._may_be_owed:
                self._below = math.inf
                self._may.clear()
                self._victims.steps, self._victims.is_cut = steps, False
                plan = self._with_victims()
            return plan

    def _fits(self, plan: PreemptionPlan, releasing: Iterable[Pod]) -> bool:
        """Return whether the plan needs no other pods to be gone: one on another node may keep the unit
        away by its affinity.
        """
        nodes = self._inventory.nodes
        self._within = AllowedNodes.of_rows(nodes.rows_of(plan.nodes), nodes.size)
        with self._inventory.trial() as trial:
            self.remove(trial, [*plan.victims, *releasing])
            return self.decide() is not None

    def _with_victims(self) -> PreemptionPlan | NoPlan:
        """Return the best plan of the places with the cheapest victims."""
        best: tuple[Rank, tuple[float, ...], Found] | None = None
        is_cut = False
        places = self._domains() if self._unit.key is not None else self._nodes()
        claims = [entry.claim for member in self._unit.members for entry in member.claims]
        has_links = [*map(_number_asked, claims)] != [1]
        for tried, place in enumerate(places):
            if best is not None and (best[0] < place.bound or (best[0] == place.bound and not has_links)):
                break
            if tried >= self._rules.nodes or not self._victims.steps:
                is_cut = best is None or best[0] != place.bound
                break
            self._within = place.nodes
            for found in self._victims.cheapest(place.blocks, best[0] if best is not None else None, place.devices):
                self._has_found = True
                key = found.rank, self._harm(found)
                if best is None or key < best[:2]:
                    best = *key, found
        is_cut = is_cut or self._victims.is_cut
        if best is None:
            without = f"the pods of lower priority than {self._priority}"
            if self._reclaims:
                without += ", or those that other namespaces have beyond their guarantees"
            return NoPlan(f"no node fits even without {without}", is_cut, self._until)
        rank, _, found = best
        plan = self.plan_of(found.answer, found.victims)
        together = tuple([block.pods for block in found.blocks])
        reclaims = self._guarantees.lines(found.answer.placed, found.victims) if self._reclaims else ()
        return replace(
            plan,
            together=together,
            violations=rank.violations,
            groups_broken=rank.broken,
            is_cut=is_cut,
            reclaims=reclaims,
        )

    # -- places ------------------------------------------------------------------------------------

    def _nodes(self) -> Iterator[Place]:
        """Yield the nodes where victims may make room for the pod, the one with the least bound first."""
        nodes, passed = self._inventory.nodes, 0
        for row, bound in self._candidates():
            place, devices = AllowedNodes.of_rows([row], nodes.size), int(self._room.devices[row])
            blocks = self._blocks([nodes.names[row]])
            is_enough = sum([block.devices for block in blocks]) >= devices
            if not (self._reclaims or self._guarantees.protect) or (blocks and is_enough):
                yield Place(place, bound, devices, blocks)
            elif (passed := passed + 1) == _PASSED_BY:
                self._victims.is_cut = True
                return

    def _domains(self) -> Iterator[Place]:
        """Yield the domains where victims may make room for the gang, with victims on as many of their
        nodes as it needs, those with the least important pods first.
        """
        candidates = [row for row, _ in self._candidates()]
        names = self._inventory.nodes.names
        for mask in self._masks(candidates):
            rows = [row for row in candidates if mask[row]]
            self._within = AllowedNodes(mask)
            lacking = self._lacking(mask)
            for many in doubled(len(rows)):
                blocks = self._blocks([names[row] for row in rows[:many]])
                if sum([block.devices for block in blocks]) < lacking:
                    continue
                try:
                    fits = self._victims.without(blocks) is not None
                except OutOfSteps:
                    self._victims.is_cut = True
                    return
                if fits:
                    yield Place(self._within, _ANY, lacking, blocks)
                    if self._has_found:
                        break

    @cached_property
    def _room(self) -> Room:
        """What the devices of one member cost at least, of any kind, without all that terminates. Not
        enough where victims help no kind.

        Two kinds, one of which may only run on the first node: the highest priority of the victims is

            [50, not enough] and [90, 5]: [50, 5]
        """
        held = self._tenants.held()
        requests = [replace(request, preferred_node="") for request in self._unit.members]
        samples = {member.kind: member.request for member in members_of(self._inventory, requests)}
        rooms = [room_for(self._inventory, request, self._options, held) for request in samples.values()]
        helped = [
            np.where(self._may_help(request), room.highest, NOT_ENOUGH)
            for request, room in zip(samples.values(), rooms, strict=True)
        ]
        return Room(
            np.minimum.reduce(helped),
            np.minimum.reduce([room.devices for room in rooms]),
            np.add.reduce([room.free for room in rooms]),
        )

    @property
    def roomy(self) -> list[int]:
        """The nodes where room can be made, those that lack the fewest devices first."""
        rows = np.flatnonzero(self._room.highest < NOT_ENOUGH)
        order: list[int] = rows[np.lexsort((self._inventory.nodes.rank[rows], self._room.devices[rows]))].tolist()
        return order

    @property
    def _may_be_owed(self) -> bool:
        """Return whether what the unit takes at least is owed to it, which is not known of claims that members share."""
        if shared_claims(self._unit.members):
            return True
        samples = {member.kind: member.request for member in members_of(self._inventory, self._unit.members)}
        charges = [least_charge(self._inventory, request, self._options) for request in samples.values()]
        shared = set(charges[0]).intersection(*charges)
        number = max(self._unit.least, 1)
        return self._guarantees.allows({each: number * min(charge[each] for charge in charges) for each in shared})

    def _lacking(self, domain: Bools) -> int:
        """Return how many devices of a domain must become free at least: known for members that all
        ask for the same number of whole devices, each in a claim of its own.
        """
        claims = [entry.claim for member in self._unit.members for entry in member.claims]
        asked = {_number_asked(claim) for claim in claims}
        own = {claim.metadata.uid for claim in claims if claim.status.allocation is None}
        if not len(claims) == len(own) == len(self._unit.members) or len(asked) != 1:
            return 0
        free = float(self._room.free[domain].sum())
        return 0 if free == UNKNOWN else max(self._unit.least * asked.pop() - int(free), 0)

    def _masks(self, candidates: Sequence[int]) -> list[Bools]:
        """Return the nodes of each domain, the one with the first candidate first."""
        inventory = self._inventory
        size = inventory.nodes.size
        keys = dict.fromkeys(each.key for each in self._unit.topology if each.required)
        if not keys:
            return [np.ones(size, dtype=np.bool_)]
        labels = np.stack([inventory.labels.domains(key)[:size] for key in keys])
        known: Bools = (labels != NO_DOMAIN).all(axis=0)
        settled = inventory.nodes.rows_of(self._unit.settled_nodes)
        firsts: dict[tuple[int, ...], int] = {}
        for row in settled or candidates:
            if known[row]:
                firsts.setdefault(tuple(labels[:, row].tolist()), row)
        return [known & (labels == labels[:, row, None]).all(axis=0) for row in firsts.values()]

    def _candidates(self) -> Iterator[tuple[int, Rank]]:
        """Yield the rows of the nodes where victims may make room for one member, and the least rank that
        its plan there can have, lowest first.
        """
        names, rank = self._inventory.nodes.names, self._inventory.nodes.rank
        room = self._room
        rows = np.flatnonzero(room.highest < self._below)
        known = np.array([self._tenants.summary(names[row]) for row in rows.tolist()]).reshape(-1, 3)
        lower = known[:, 0] < self._below
        rows, (lowest, latest, devices) = rows[lower], known[lower].T
        highest = np.maximum(room.highest[rows], lowest)
        number = np.maximum(np.ceil(room.devices[rows] / np.maximum(devices, 1)), 1)
        total = highest + (number - 1) * lowest + number * OFFSET
        for at in np.lexsort((rank[rows], -latest, number, total, highest)).tolist():
            yield int(rows[at]), Rank(0, int(highest[at]), 0, int(total[at]), int(number[at]), -float(latest[at]))

    def _may_help(self, request: SchedulingRequest) -> Bools:
        """Return the nodes that others keep from the pod, devices apart, or nobody does."""
        verdicts = NodeFilter(self._inventory, request)
        helped = verdicts.mask.copy()
        if verdicts.refusal is None:
            for number, code in enumerate(CODES):
                if code and meaning_of(code).helps & _LEAVING_HELPS:
                    helped |= verdicts.codes == number
        for _, refused in verdicts.reasons:
            helped &= ~refused
        return helped

    @property
    def _reclaims(self) -> bool:
        return self._below == math.inf

    def _blocks(self, nodes: Iterable[str]) -> list[Block]:
        """Return what may be evicted, each by itself: of pods that only go because they are reclaimed, what gives
        something that the unit is owed.
        """
        return [
            block
            for block in self._tenants.blocks(nodes, self._may_go, self._condemned)
            if self._guarantees.most([block])
            and (all(map(self._is_lower, block.pods)) or self._guarantees.gives(block))
        ]

    def _is_lower(self, pod: Pod) -> bool:
        return self._tenants.priority(pod) < self._priority

    def _may_go(self, pod: Pod) -> bool:
        known = self._may.get(pod.metadata.uid)
        if known is None:
            known = self._may[pod.metadata.uid] = self._is_free_to_go(pod)
        return known

    def _is_free_to_go(self, pod: Pod) -> bool:
        if pod.metadata.uid in self._condemned or self._tenants.is_arriving(pod):
            return False
        if self._unit.key is not None and self._tenants.gang_of(pod) == self._unit.key:
            return False
        least = 0.0
        if not self._is_lower(pod):
            if not self._reclaims or pod.metadata.namespace == self._namespace:
                return False
            least = _RECLAIM_AFTER
        if self._guarantees.keeps(pod):
            return False
        now = self._rules.now
        if now < (until := must_run_until(pod, now, least)):
            self._until = min(self._until, until)
        if why_it_stays(pod, self._budgets, now, least):
            return False
        return self._budgets.best_effort or not self._budgets.exceeded_by([pod])

    # -- answers -----------------------------------------------------------------------------------

    def decide(self) -> UnitDecision | None:
        unit = self._unit if self._within is None else self._unit.within(self._within)
        answer = decide_unit(self._inventory, unit, self._options)
        if not isinstance(answer, UnitDecision) or len(answer.placed) < max(unit.least, 1):
            return None
        if not self._reclaims:
            return answer
        for number in range(len(answer.placed), max(unit.least, 1) - 1, -1):
            if self._guarantees.covers(placed := answer.placed[:number]):
                return replace(answer, placed=placed)
        return None

    def _harm(self, found: Found) -> tuple[float, ...]:
        """Return what tells plans of one rank apart, less is better: links that are not whole."""
        return (-sum(decision.score.topology for _, decision in found.answer.placed),)

    def plan_of(self, decision: UnitDecision, victims: tuple[Pod, ...]) -> PreemptionPlan:
        placed = self._unit.as_asked(decision.placed)
        return PreemptionPlan(placed, victims, is_owed=self._guarantees.covers(placed))


def _number_asked(claim: ResourceClaim) -> int:
    """Return how many devices a claim with one request asks for; 0: not known."""
    requests = claim.spec.devices.requests
    return requests[0].exactly.count if len(requests) == 1 and requests[0].exactly is not None else 0


def doubled(most: int) -> Iterator[int]:
    """Yield 1, 2, 4, ... and the most."""
    number = 1
    while number < most:
        yield number
        number *= 2
    if most:
        yield most
