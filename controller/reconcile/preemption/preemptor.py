"""Decides for which units pods are evicted, and what becomes of the places that are held for them.

Called by the scheduling cycle, in its synchronous steps, with a unit that found no room (`consider`)
or that is evaluated while it has a place (`resume`).

| while it waits | then |
|---|---|
| it fits on its nodes, without those that terminate | it is placed there |
| pods or claims of its place are still there | it waits, at most a minute longer than their grace |
| a victim is not evicted, or does not end, or the place is no longer fit | the hold is given up, and the unit is decided again |
"""

import logging
import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from functools import partial
from typing import Final

from msgspec.structs import replace

from controller.cluster.incremental import LruCache
from controller.decide import AllowedNodes, Options, Unschedulable
from controller.gangs import GangKey, Unit, UnitDecision
from controller.inventory import is_guarantee
from controller.preemption import PATIENCE, Budgets, NoPlan, Preemption, PreemptionPlan, PreemptionRules, grace_ends
from controller.reasons import RELEASED, Change
from controller.reconcile.binding import AssumedPods
from controller.reconcile.preemption.defragmenter import Defragmenter
from controller.reconcile.preemption.evictor import Evictor
from controller.reconcile.preemption.holds import Hold, Holds, Transfer
from controller.reconcile.preemption.left_claims import LeftClaims
from controller.reconcile.preemption.notes import moving, place_given_up, preempting
from controller.reconcile.preemption.reservations import Reservations
from controller.reconcile.preemption.waits import Waits, both, delayed, refused_since
from controller.reconcile.queueing import PodAssessor, QueuedUnit, Triggers, WaitingPods
from controller.reconcile.runtime import Context
from hami_dra.api import kinds
from hami_dra.api.core import Node, Pod, ResourceQuota
from hami_dra.api.podstate import is_bound, is_pending
from hami_dra.api.policy import PodDisruptionBudget
from hami_dra.api.printable import counted
from hami_dra.api.resource import ResourceClaim

log = logging.getLogger(__name__)

_SOON: Final = 1.0
"""Seconds until a unit that has a place is evaluated again if nothing is known to end its wait."""
_OVER_LIMIT: Final = "it waits to preempt: the limit of evictions in a minute is reached"
_UNFIT: Final = "the unit does not fit there any more"
_HOPELESS: Final = 5.0
"""Seconds for which equal units are not planned for after one without a plan."""
_HOPELESS_KEPT: Final = 1_000
_GUARANTEES_REST: Final = 10.0
"""Seconds after a change of guarantees in which others wait: a tenant may change one every second."""


@dataclass(eq=False)
class Preemptor:
    context: Context
    options: Options
    assessor: PodAssessor
    waiting: WaitingPods
    assumed_pods: AssumedPods
    triggers: Triggers
    evictor: Evictor = field(init=False)
    _holds: Holds = field(init=False)
    _left_claims: LeftClaims = field(init=False)
    _reservations: Reservations = field(init=False)
    _defragmenter: Defragmenter = field(init=False)
    _began: float = 0.0
    """When this term began, in seconds of the monotonic clock."""
    _budgets: Budgets | None = None
    """As they are now; None: not read since one changed."""
    _hopeless: LruCache[tuple[int, float]] = field(default_factory=lambda: LruCache(_HOPELESS_KEPT))
    """Signature → the priority for which there was no plan, and until when that is believed."""
    _changed: set[str] = field(default_factory=set)
    """Namespaces whose guarantees have changed since units were planned for again."""
    _plan_again_at: float = -math.inf

    def __post_init__(self) -> None:
        self._holds = Holds(self.assumed_pods)
        self._left_claims = LeftClaims(self.context)
        self._reservations = Reservations(self.context, self._holds, give_up=self._give_up)
        self._defragmenter = Defragmenter(
            self.context,
            self.options,
            self.assessor,
            self._holds,
            self.assumed_pods,
            self.triggers,
            preemption=self._preemption,
            give_up=self._give_up,
            go_on=lambda hold: self.evictor.carry_out(hold),  # noqa: PLW0108 (each needs the other)
        )
        self.evictor = Evictor(
            self.context,
            self._holds,
            give_up=self._give_up,
            again=self._more_may_go,
            set_out=self._defragmenter.set_out,
            late=self._defragmenter.late,
        )

    def start(self) -> None:
        self._began = self.context.clock.monotonic()
        self._left_claims.start()

    def stop(self) -> None:
        """End the term: nothing is held any more."""
        self._defragmenter.stop()
        self._holds.stop()

    def hold_of(self, key: GangKey | str) -> Hold | None:
        """Return the place that is held for a gang, or for the pod with a UID."""
        return self._holds.of(key)

    def waiting_pods(self) -> list[Pod]:
        """Return the pods for which a place is held."""
        return [pod for hold in self._holds for pod in hold.pods]

    # --- for the scheduling cycle -----------------------------------------------------------------

    def consider(self, unit: QueuedUnit, digest: bytes, refusal: Unschedulable) -> UnitDecision | Waits | None:
        """Return where a refused unit fits after all, or hold a place for it. None: there is none.

        `digest`: of the unit's signature. Raises SliceSpent.
        """
        if not refusal.lacks_room or not self._may_hold(unit):
            return None
        if not self.context.informers.tenants.is_read(self.context.inventory.devices):
            return Waits(self.context.clock.monotonic() + _SOON, keeps_gate=False)
        preemption = self._preemption(unit.pod.metadata.namespace)
        priority = min(preemption.tenants.priority(request.pod) for request in unit.ready)
        hold = self._holds.of(unit.key)
        if hold is None and (answer := self._reservations.meanwhile(unit, preemption)) is not None:
            return answer
        with self._without(hold):
            waits = self._make_room(unit, digest, preemption, priority)
            if not unit.has_minimum and (waits is None or waits.until == math.inf):
                waits = both(waits, self._move_others(unit, digest, preemption, priority))
        if waits is not None and waits.until < math.inf:
            return waits
        reserved: Waits | None
        if hold is not None:
            reserved = self._still_held(hold, unit, preemption)
            if self._holds.of(unit.key) is None:
                self._reservations.lost(digest)
        elif unit.has_minimum:
            return waits
        else:
            preemption = replace_fields(preemption, condemned=self._victims(self._holds))
            now = self.context.clock.monotonic()
            reserved = self._reservations.reserve(unit, digest, preemption, priority, self._refused_since(unit, now))
            if (hold := self._holds.of(unit.key)) is not None:
                self.evictor.begin(hold)
        self._defragmenter.note(hold, digest)
        return both(waits, reserved)

    def _refused_since(self, unit: QueuedUnit, now: float) -> float:
        return refused_since(self.context, self.waiting, unit, self._began, now)

    def _may_hold(self, unit: QueuedUnit) -> bool:
        """Return whether a place may be held for the unit."""
        if unit.may_be_released:
            return False
        claims = [entry.claim.key for request in unit.ready for entry in request.claims]
        return all(hold.key == unit.key for claim in claims for hold in self._holds.concerned(claim))

    @contextmanager
    def _without(self, hold: Hold | None) -> Iterator[None]:
        """Give up what is reserved for a unit, unless that is still needed afterwards."""
        if hold is not None:
            self._holds.end(hold)
        try:
            yield
        finally:
            if hold is not None and self._holds.of(hold.key) is None:
                self._holds.begin(hold)

    def _still_held(self, hold: Hold, unit: QueuedUnit, preemption: Preemption) -> Waits:
        """Keep the place of a unit, or give it up if it cannot come true."""
        kept = self._later(hold, unit, preemption)
        problem = self._overdue(hold)
        if kept is not None and not problem:
            self._move(hold, kept)
            return self._waits(hold)
        if problem and hold.slot is not None:
            self.waiting.timeouts.forget(unit.key)  # the next place is reserved for it after as long a wait
        self._give_up(hold, problem := problem or _UNFIT)
        # the unit was assessed before its node was refused
        now = self.context.clock.monotonic()
        return Waits(now, f"its place is given up: {problem}", keeps_gate=hold.slot is None)

    def _make_room(self, unit: QueuedUnit, digest: bytes, preemption: Preemption, priority: int) -> Waits | None:
        """Hold a place that is free once pods are gone: those that terminate, victims, or units with a lower claim to it."""
        preempts, namespace = self.context.settings.preempts, unit.pod.metadata.namespace
        below = [
            hold
            for hold in self._holds
            if hold.priority < priority and not (hold.is_owed and hold.namespace != namespace)
        ]
        if not (preempts and self._budgets_known) and not below:
            return None
        now = self.context.clock.monotonic()
        if preempts and (wait := delayed(self.context, self.waiting, unit, now)) is not None:
            return wait
        hopeless = self._hopeless.find(digest)
        if hopeless is not None and priority <= hopeless[0] and now < hopeless[1]:
            # what happened since may help one of them
            return Waits(review=hopeless[1], keeps_gate=False)
        plan, below = self._displacing(below, unit, preemption)
        if isinstance(plan, NoPlan) or (most := self._most_victims(unit, plan.devices)) < len(plan.victims):
            why = plan.sentence if isinstance(plan, NoPlan) else f"it takes {len(plan.victims)} victims, at most {most}"
            log.debug("pod %s: no preemption: %s", unit.pod.key, why)
            if any(request.pod.spec.preemption_policy == "Never" for request in unit.ready):
                return None
            later = self._another_plan_at(plan, now)
            self._hopeless.put(digest, (priority, min(now + _HOPELESS, later)))
            return Waits(review=later, keeps_gate=False)
        if plan.victims and (at := self.evictor.free_at(len(plan.victims))) is not None:
            return Waits(at, _OVER_LIMIT, keeps_gate=False)  # room that others make is its own
        for hold in below:
            if not {*hold.nodes}.isdisjoint(plan.nodes):
                who = "of higher priority" if hold.priority < priority else "whose namespace is owed it"
                self._give_up(hold, f"a unit {who} takes its place")
        return self._begin(unit, preemption, plan, priority)

    def _move_others(self, unit: QueuedUnit, digest: bytes, preemption: Preemption, priority: int) -> Waits | None:
        """Hold a place for a unit that has waited for long, and move the pods that have it."""
        settings, now = self.context.settings, self.context.clock.monotonic()
        if not (settings.defragments and self._budgets_known):
            return None
        if now < self._refused_since(unit, now) + settings.save_after:
            return None  # it is evaluated then, by `Reservations`
        claims = [entry.claim.spec.devices for request in unit.ready for entry in request.claims]
        most = self._most_victims(unit, sum([each.choices[0].count for claim in claims for each in claim.requests]))
        found = self._defragmenter.plan(unit, digest, preemption, most)
        if found is None:
            return self._defragmenter.again(digest)
        answer, moves = found
        pods = tuple([each.movable.pod for each in moves.moved])
        if (at := self.evictor.free_at(len(pods))) is not None:
            return Waits(at, _OVER_LIMIT, keeps_gate=False)
        plan = PreemptionPlan(unit.unit.as_asked(answer.placed), pods, together=tuple([(pod,) for pod in pods]))
        return self._begin(unit, preemption, plan, priority, self._defragmenter.transfers(moves))

    def _another_plan_at(self, plan: PreemptionPlan | NoPlan, now: float) -> float:
        """Return when there may be another plan although nothing becomes free: another pod may be a victim then."""
        until = now + plan.until - self.context.clock.wall().timestamp() if isinstance(plan, NoPlan) else math.inf
        return min(until, now + _HOPELESS) if self.context.informers.tenants.are_arriving else until

    def resume(self, unit: QueuedUnit) -> UnitDecision | Waits | None:
        """Return where a unit that has a place is to be bound, or that it waits; None: it has no place.
        The place is held until `placed`. Raises SliceSpent.
        """
        plan = partial(self._preemption, unit.pod.metadata.namespace)
        if (hold := self._holds.of(unit.key)) is None:
            return self._defragmenter.resume(unit, plan)
        preemption = plan()
        if (answer := self._on_place(hold, unit, preemption)) is not None:
            return answer
        if hold.slot is not None:
            return None  # it may fit elsewhere
        return self._still_held(hold, unit, preemption)

    def _later(self, hold: Hold, unit: QueuedUnit, preemption: Preemption) -> UnitDecision | None:
        """Return where the unit fits on the nodes of its place once all that it waits for is gone."""
        # another hold counts on top of its own victims
        neighbours = [each for each in self._holds if not {*each.nodes}.isdisjoint(hold.nodes)]
        freed = frozenset[str]().union(*(self._freed(preemption, each) for each in neighbours))
        return self._on_place(hold, unit, preemption, self._leaving(neighbours), freed)

    def _on_place(
        self,
        hold: Hold,
        unit: QueuedUnit,
        preemption: Preemption,
        leaving: Iterable[Pod] = (),
        freed: Collection[str] = (),
    ) -> UnitDecision | None:
        """Return where the unit fits on the nodes of its place, without these pods and claims: each pod stays where it
        is to go if it can, whatever earlier nominations say that are on their way.
        """
        nodes = {request.pod.metadata.uid: decision.node for request, decision in hold.placed}
        # beyond the minimum, members that came later have no share in the place
        asked = [each for each in unit.unit.members if unit.least or each.pod.metadata.uid in nodes]
        members = [replace(each, preferred_node=nodes.get(each.pod.metadata.uid, "")) for each in asked]
        within = self._within(replace(unit.unit, members=tuple(members)), hold.nodes)
        with self.context.inventory.trial() as trial:
            hold.lift(trial)
            answer = preemption.without(within, leaving, freed)
        return None if answer is None else replace(answer, placed=unit.unit.as_asked(answer.placed))

    def placed(self, unit: QueuedUnit) -> None:
        """End the hold of a unit whose decision is carried out now."""
        self._defragmenter.placed(unit.pod)
        if (hold := self._holds.of(unit.key)) is not None:
            self._end_hold(hold, is_placed=True)
            self.context.metrics.preemptions.labels("placed").inc()
            self.context.metrics.preemption_seconds.observe(self.context.clock.monotonic() - hold.began)

    # --- handlers, subscribed by the term ---------------------------------------------------------

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self._left_claims.pod_changed(old, new)
        self._defragmenter.pod_changed(old, new)
        if not len(self._holds):
            return
        for uid in dict.fromkeys(pod.metadata.uid for pod in (old, new) if pod is not None):
            now = new if new is not None and new.metadata.uid == uid else None
            for hold in self._holds.concerned(uid):
                if all(pod.metadata.uid != uid for pod in hold.pods):
                    self._evaluate(hold)
                elif now is None or not is_pending(now):
                    self._give_up(hold, f"pod {(new or old or Pod()).key} needs none any more")

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        key = (new or old or ResourceClaim()).key
        self._left_claims.claim_changed(key, new)
        for hold in self._holds.concerned(key):
            if new is None or old is None or old.status.allocation != new.status.allocation:
                self._evaluate(hold)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        for hold in self._holds.concerned((new or old or Node()).metadata.name):
            if old is None or new is None or old.spec != new.spec or old.metadata.labels != new.metadata.labels:
                self._evaluate(hold)

    def budget_changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        """Let refused units try again when more evictions are allowed."""
        self._budgets = None
        if new is not None and (old is None or new.status.disruptions_allowed <= old.status.disruptions_allowed):
            return
        self._more_may_go()

    def quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        """Let all units be planned for again when a guarantee changes: at once, then after a rest for all that do."""
        before, after = (None if each is None or not is_guarantee(each) else each.spec for each in (old, new))
        if before != after:
            self._changed.add((new or old or ResourceQuota()).metadata.namespace)
            rest = self._plan_again_at - self.context.clock.monotonic()
            self._guarantees_changed() if rest <= 0 else self.evictor.later(rest, self._guarantees_changed)

    def _guarantees_changed(self) -> None:
        """Let all units be planned for again; what is not evicted yet may stay if it concerns these namespaces."""
        changed, self._changed = self._changed, set()
        self._plan_again_at = self.context.clock.monotonic() + _GUARANTEES_REST
        for hold in self._holds:
            left = [pod for pod in hold.victims if pod.metadata.uid not in hold.evicted]
            if left and not changed.isdisjoint([hold.namespace, *(pod.metadata.namespace for pod in left)]):
                self._give_up(hold, "a guarantee has changed")
        self._more_may_go()

    def _more_may_go(self) -> None:
        """Let refused units try again: pods may be evicted that were protected."""
        self._hopeless.clear()
        self.triggers.made_room(RELEASED | Change.PODS_LEFT | Change.PODS_MOVED)

    # --- plans ------------------------------------------------------------------------------------

    @property
    def _budgets_known(self) -> bool:
        budgets = self.context.informers.budgets
        return budgets is not None and budgets.is_readable

    def _preemption(self, namespace: str) -> Preemption:
        """Return preemption as it is now for a unit of this namespace."""
        context = self.context
        if self._budgets is None:
            budgets = context.informers.budgets
            best_effort = context.settings.preemption.preemption_pdb
            self._budgets = Budgets(budgets.store if budgets is not None else (), best_effort=best_effort)
        return Preemption(
            context.inventory,
            context.informers.tenants,
            self._budgets.refusing(self.evictor.refused()),
            self.options,
            PreemptionRules(context.clock.wall().timestamp()),
            self._left_claims.uids(),
            taken=self._taken(namespace) if namespace in context.inventory.quotas.owed else None,
            promised=[uid for hold in self._holds for uid in hold.promised],
        )

    def _taken(self, namespace: str) -> dict[str, int]:
        """Return what a namespace uses, but what is reserved for its units."""
        with self.context.inventory.trial() as trial:
            for hold in self._holds:
                if hold.slot is not None:
                    hold.lift(trial)
            return dict(self.context.inventory.quotas.used(namespace))

    def _displacing(
        self, below: list[Hold], unit: QueuedUnit, preemption: Preemption
    ) -> tuple[PreemptionPlan | NoPlan, list[Hold]]:
        """Return the plan without the places of lower priority, and these. If there is none, and the unit's namespace is
        owed what it takes: also without what is reserved for units of others that are not owed it.
        """
        plan, namespace = self._plan_without(below, preemption, unit.unit), unit.pod.metadata.namespace
        owed = self.context.inventory.quotas.owed if self.context.settings.preempts else {}
        if isinstance(plan, NoPlan) and namespace in owed:
            others = [hold for hold in self._holds if hold.slot is not None and hold not in below]
            more = [*below, *(hold for hold in others if hold.namespace != namespace and not self._is_owed(hold))]
            instead = self._plan_without(more, preemption, unit.unit) if more != below else plan
            if isinstance(instead, PreemptionPlan) and instead.is_owed:
                return instead, more
        return plan, below

    def _is_owed(self, hold: Hold) -> bool:
        """Return whether its namespace is owed the place, as it is now."""
        return self._preemption(hold.namespace).guarantees(hold.namespace).covers(hold.placed)

    def _plan_without(self, holds: Collection[Hold], preemption: Preemption, unit: Unit) -> PreemptionPlan | NoPlan:
        """Return the plan as if these places were not held: no pod is evicted for them any more."""
        with self.context.inventory.trial() as trial:
            for hold in holds:
                hold.lift(trial)
            kept = [hold for hold in self._holds if hold not in holds]
            preemption = replace_fields(preemption, condemned=self._victims(kept))
            return self._plan(preemption, unit, displaces=bool(holds))

    def _plan(self, preemption: Preemption, unit: Unit, *, displaces: bool) -> PreemptionPlan | NoPlan:
        """Return the plan. Where pods terminate on the nominated nodes another leader had a plan, and may
        have carried out half of it: then it is these nodes again.
        """
        if displaces and (at_once := preemption.at_once(unit)) is not None:
            return at_once
        if not self.context.settings.preempts or not self._budgets_known:
            return NoPlan("no pod may be evicted")
        nominated = {request.pod.status.nominated_node_name for request in unit.members} - {""}
        if nominated:
            plan = preemption.plan(self._within(unit, nominated))
            if isinstance(plan, PreemptionPlan) and (plan.releasing or not plan.victims):
                return replace(plan, placed=unit.as_asked(plan.placed))
        return preemption.plan(unit)

    def _most_victims(self, unit: QueuedUnit, devices: int) -> int:
        """Return how many pods may be evicted for the unit: for a gang as many as it has devices, if that is more."""
        most = self.context.settings.preemption.preemption_victims_most
        return most if unit.gang is None else max(most, devices)

    def _within(self, unit: Unit, among: Iterable[str]) -> Unit:
        nodes = self.context.inventory.nodes
        return unit.within(AllowedNodes.of_rows(nodes.rows_of(among), nodes.size))

    def _begin(
        self,
        unit: QueuedUnit,
        preemption: Preemption,
        plan: PreemptionPlan,
        priority: int,
        transfers: tuple[Transfer, ...] = (),
    ) -> Waits:
        budgets = preemption.budgets
        # those under a budget first: if it allows no eviction, no other pod is evicted for nothing
        together = sorted(
            [tuple(sorted(pods, key=lambda pod: not budgets.of(pod))) for pods in plan.together],
            key=lambda pods: not transfers and not budgets.of(pods[0]),
        )
        claims = {*preemption.tenants.freed_by((*plan.victims, *plan.releasing)), *preemption.left_claims}
        hold = Hold(
            unit.key,
            plan.placed,
            tuple(together),
            plan.releasing,
            frozenset(claims),
            priority,
            self.context.clock.monotonic(),
            plan.is_owed,
            plan.reclaims,
            transfers=transfers,
        )
        self._holds.begin(hold)
        self.context.metrics.preemptions.labels("moving" if transfers else "begun" if plan.victims else "awaited").inc()
        gone = f"{counted(len(plan.victims), 'pod')} evicted and {counted(len(plan.releasing), 'pod')} terminated"
        log.info("pod %s: is to run on %s once %s", unit.pod.key, ", ".join(hold.nodes), gone)
        waits = self._waits(hold)
        self.evictor.begin(hold)
        if not hold.leaving and not preemption.left_claims:
            self._evaluate(hold)
        about = unit.pod, hold.nodes, hold.victims
        said = moving(*about) if transfers else preempting(*about, plan.reclaims)
        return replace(waits, said=said) if plan.victims else waits

    # --- holds ------------------------------------------------------------------------------------

    def _give_up(self, hold: Hold, why: str) -> None:
        """End a hold whose place is lost, and evaluate its unit."""
        if self._holds.of(hold.key) is not hold:
            self._defragmenter.end(hold, is_placed=False)
            return
        log.info("pod %s: its place on %s is given up: %s", hold.pods[0].key, ", ".join(hold.nodes), why)
        self.context.metrics.preemptions.labels("given_up").inc()
        self._end_hold(hold, is_placed=False)
        if hold.slot is None:
            self.evictor.withdraw(hold)
        elif (pod := self.context.informers.present(hold.pods[0])) is not None:
            self.context.events.report(kinds.POD, pod, place_given_up(hold.nodes, why), "Preempt")
        self._evaluate(hold)

    def _end_hold(self, hold: Hold, *, is_placed: bool) -> None:
        """End it. Refused units may fit where it was, even if its unit is placed: on other devices."""
        self._holds.end(hold)
        self._defragmenter.end(hold, is_placed=is_placed)
        for pod in hold.pods:
            self.triggers.released(pod)
        for victim in hold.victims:
            for other in self._holds.concerned(victim.metadata.uid):
                self._evaluate(other)  # it may be that nobody evicts the victim now

    def _move(self, hold: Hold, decision: UnitDecision) -> None:
        """Hold other devices, or other nodes, for the unit, if so it was decided."""
        before, after = (
            [(request.pod.metadata.uid, each.node, each.holdings) for request, each in placed]
            for placed in (hold.placed, decision.placed)
        )
        if before == after:
            return
        self._holds.end(hold)
        hold.placed = decision.placed
        self._holds.begin(hold)
        for pod in hold.pods:
            self.triggers.released(pod)
        self.evictor.carry_out(hold)

    def _evaluate(self, hold: Hold) -> None:
        for pod in hold.pods[:1]:
            if (present := self.context.informers.present(pod)) is not None:
                self.triggers.evaluate(present)

    def _waits(self, hold: Hold) -> Waits:
        """Return until when the unit waits at most without an event."""
        if hold.slot is not None:
            return self._reservations.waits(hold)
        wall, now = self.context.clock.wall().timestamp(), self.context.clock.monotonic()
        remaining = self._remaining(hold)
        if remaining:
            hold.empty_since = None
            until = now + min(self._end(hold, pod) for pod in remaining) - wall
        else:
            hold.empty_since = now if hold.empty_since is None else hold.empty_since
            until = hold.empty_since + PATIENCE
        left = counted(len(remaining), "pod") if remaining else "the devices of pods that have ended"
        why = f"{hold.kind}: its place on {', '.join(hold.nodes)} is held until {left} there {'are' if len(remaining) != 1 else 'is'} gone"
        hold.until = max(until, now) + _SOON
        return Waits(hold.until, why)

    def _remaining(self, hold: Hold) -> list[Pod]:
        """Return the pods that are still there, as they are now."""
        present = map(self.context.informers.present, hold.leaving)
        return [pod for pod in present if pod is not None and (is_bound(pod) or is_pending(pod))]

    def _victims(self, holds: Iterable[Hold]) -> list[Pod]:
        """Return the pods that these holds evict, or have evicted, and that are still there."""
        victims = {pod.metadata.uid for hold in holds for pod in hold.victims}
        return [pod for pod in self._leaving(holds) if pod.metadata.uid in victims]

    def _leaving(self, holds: Iterable[Hold]) -> list[Pod]:
        """Return the pods whose end these holds wait for."""
        return [*{pod.metadata.uid: pod for hold in holds for pod in self._remaining(hold)}.values()]

    def _end(self, hold: Hold, pod: Pod) -> float:
        """Return until when the pod is waited for, in seconds since 1970."""
        if pod.metadata.deletion_timestamp is not None:
            return grace_ends(pod) + PATIENCE
        wall = self.context.clock.wall().timestamp()
        if (transfer := hold.transfer(pod)) is not None and pod.metadata.uid not in hold.evicted:
            return wall + min(transfer.until - self.context.clock.monotonic(), PATIENCE)
        began = wall - (self.context.clock.monotonic() - hold.began)
        return hold.evicted.get(pod.metadata.uid, began + PATIENCE) + PATIENCE

    def _overdue(self, hold: Hold) -> str:
        """Return why the unit waits no longer, or empty. A node whose pods do not end is refused for a while."""
        wall, now = self.context.clock.wall().timestamp(), self.context.clock.monotonic()
        if hold.slot is not None:
            return "it was not free in time" if now >= hold.until else ""
        remaining = self._remaining(hold)
        leaving = {pod.metadata.uid for pod in self._victims(self._holds)}
        stays = [
            pod for pod in remaining if pod.metadata.deletion_timestamp is None and pod.metadata.uid not in leaving
        ]
        if stays:
            return f"{counted(len(stays), 'pod')} of another preemption will not be evicted now"
        late = [pod for pod in remaining if wall > self._end(hold, pod)]
        if not late:
            is_over = hold.empty_since is not None and now > hold.empty_since + PATIENCE
            return "its devices are not free although all pods have ended" if is_over else ""
        why = f"{counted(len(late), 'pod')} did not end"
        for node in {pod.spec.node_name for pod in late}:
            for pod in hold.pods:
                self.waiting.refusals.add(pod.metadata.uid, node, why, now)
        return why

    def _freed(self, preemption: Preemption, hold: Hold) -> frozenset[str]:
        """Return the UIDs of the claims that are free once all have ended: another pod may use one by now."""
        freed = hold.claims & {*preemption.tenants.freed_by(hold.leaving), *preemption.left_claims}
        return freed.union(*hold.guests.values())
