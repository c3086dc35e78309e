"""One term of leadership: all acting parts, created each time this process starts to lead.

Called by `controller`. Nothing survives a term but the state of the cluster, so a takeover and a
restart are equivalent. `run` first waits one write timeout (a write of the former leader may still
be in progress) and lists all claims again.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from controller.decide import Options
from controller.gangs import Decide, GangKey
from controller.inventory import DeviceId, Inventory
from controller.reconcile.binding import (
    AssumedPods,
    BindingCycle,
    ClaimCommitter,
    ClaimWriter,
    ConvertedClaims,
    GateKeeper,
)
from controller.reconcile.fence import Fence, Prober, is_fence_rule, remove_rule
from controller.reconcile.observability import BindTimes, QuotaNotes, UnreadableObjects, VanishedWatch
from controller.reconcile.preemption import DeletionCosts, Preemptor
from controller.reconcile.queueing import PodAssessor, SelectorBudgets, Triggers, VolumeTriggers, WaitingPods
from controller.reconcile.repair import (
    Deallocator,
    ExternalAllocationWatch,
    LeakedClaims,
    UnconvertedPodWatch,
    UnservedPodWatch,
)
from controller.reconcile.runtime import Context, DecisionLog, HeldBack, Informers, Mode, Settings
from controller.reconcile.scheduling_cycle import Acting, Deciding, SchedulingCycle
from controller.views.overview import Held, Reservation, encoded, reservations
from controller.webhook import LegacyConversion
from hami_dra.api import names
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.lease import Election
from hami_dra.kube.protocol import ClusterError

log = logging.getLogger(__name__)

_PUBLISH_SECONDS: Final = 1.0

Helper = Callable[[Informers, Callable[[], bool]], Coroutine[Any, Any, None]]
"""Runs while this process leads; calls the argument before each write."""


@dataclass(eq=False)
class Term:
    """One term. `election`: `helpers` ask it before each write whether this process leads still."""

    context: Context
    _: KW_ONLY
    decide: Decide
    decision_log: DecisionLog
    held_back: HeldBack
    conversion: LegacyConversion | None
    helpers: tuple[Helper, ...]
    election: Election

    def __post_init__(self) -> None:
        context, conversion = self.context, self.conversion
        self._quota_notes = QuotaNotes(context)
        self._vanished = VanishedWatch(context)
        self._unreadable = UnreadableObjects(context)
        self._converted_claims = ConvertedClaims(context, conversion) if conversion else None
        self._unconverted_pods = UnconvertedPodWatch(conversion, context.events) if conversion else None
        self._unserved_pods = UnservedPodWatch(context.settings.scheduling, context.events)
        claims = ClaimWriter(context)
        self._leaked_claims = LeakedClaims(context, claims)
        self._external_allocations = ExternalAllocationWatch(context, claims, partial(_totals, context.inventory))
        self._gate = GateKeeper(context)
        self._fence = Fence(context, Prober(context))
        waiting = WaitingPods.of(context.settings.queueing)
        self._triggers = Triggers(context, waiting)
        self._assumed_pods = AssumedPods(context, claims)
        self._deallocator = Deallocator(context, claims, self._assumed_pods, waiting, self._triggers)
        committer = ClaimCommitter(context, claims, self._fence.holds)
        self._binding_cycle = BindingCycle(context, committer, self._gate, waiting, self._triggers, self._assumed_pods)
        options = _options(context.settings)
        assessor = PodAssessor(context, waiting, conversion)
        self._preemptor = (
            Preemptor(context, options, assessor, waiting, self._assumed_pods, self._triggers)
            if context.settings.preempts or context.settings.save_after
            else None
        )
        self._bind_times = BindTimes(context)
        self._scheduling_cycle = SchedulingCycle(
            context,
            Deciding(
                self.decide,
                options,
                assessor,
                SelectorBudgets(context.settings.scheduling.selectors, context.clock.cpu, context.metrics),
                self.held_back,
                self.decision_log,
            ),
            waiting,
            self._triggers,
            Acting(
                self._binding_cycle,
                self._gate,
                self._deallocator,
                claims,
                self._fence,
                self._bind_times,
                self._preemptor,
            ),
        )

    def held_for(self, key: GangKey | str) -> Held | None:
        """Return what is kept for a gang, or for the pod with a UID."""
        clock = self.context.clock

        def at(moment: float) -> datetime | None:
            return None if moment == math.inf else clock.wall() + timedelta(seconds=moment - clock.monotonic())

        if self._preemptor is not None and (hold := self._preemptor.hold_of(key)) is not None:
            return Held(hold.kind, at(hold.began), at(hold.until), at(hold.moves_begin))
        until = self._scheduling_cycle.gangs.held_until(key) if isinstance(key, GangKey) else None
        return Held("gang", None, at(until)) if until is not None else None

    async def _publish_places(self) -> None:
        """Keep what is held for units in an annotation of the Lease, written with its renewals."""
        guard = self.context.guard("held places")
        try:
            while True:
                with guard.each("lease"):
                    self._publish(encoded(self._places()))
                await self.context.clock.sleep(_PUBLISH_SECONDS)
        finally:
            self._publish("")

    def _publish(self, text: str) -> None:
        if self.election.annotations.get(names.HELD_PLACES, "") != text:
            self.election.edit_annotation(names.HELD_PLACES, lambda _: text)

    def _places(self) -> tuple[Reservation, ...]:
        informers, gangs = self.context.informers, self._scheduling_cycle.gangs
        placed = self._preemptor.waiting_pods() if self._preemptor is not None else []
        members = [pod for key in gangs.held() for pod in informers.gangs.members(key)]
        pods = {pod.key: present for pod in (*placed, *members) if (present := informers.present(pod)) is not None}
        return reservations(
            self.context.inventory,
            pods.values(),
            informers.claim,
            informers.pods_of,
            informers.gangs.of,
            held_for=self.held_for,
        )

    async def run(self) -> None:
        """Run until cancelled. Raises an exception group with LeadershipLost if that was noticed first."""
        settings, informers = self.context.settings, self.context.informers
        self._publish("")
        if settings.leadership.leader_election:
            await self.context.clock.sleep(settings.leadership.write_timeout)
        await informers.wait_synced()
        await self._list_claims()
        with ExitStack() as ends:
            ends.enter_context(self._unreadable.reporting())
            self._subscribe_conversion(ends)
            async with asyncio.TaskGroup() as group:
                if settings.drivers.mode is Mode.NATIVE:
                    ends.callback(self._gate.lift_all("native mode has no gate"))
                    group.create_task(self._drop_fence(), name="fence")
                else:
                    self._subscribe(ends)
                    group.create_task(self._fence.run(), name="fence")
                    group.create_task(self._scheduling_cycle.run(), name="scheduling cycle")
                    group.create_task(self.held_back.run(self._triggers.evaluate_namespace), name="held back")
                    group.create_task(self._deallocator.run(), name="deallocator")
                    group.create_task(self._publish_places(), name="held places")
                    group.create_task(self._external_allocations.run(), name="external allocations")
                    if self._preemptor is not None:
                        group.create_task(self._preemptor.evictor.run(), name="evictions")
                ends.callback(informers.pods.subscribe(self._gate.pod_changed))
                group.create_task(self._gate.run(), name="gates")
                group.create_task(self._leaked_claims.run(), name="leaked claims")
                for feed in (informers.claims, informers.pods, informers.slices):
                    ends.callback(feed.subscribe(self._vanished.report_all))
                self._vanished.report_all()
                ends.callback(informers.quotas.subscribe(self._quota_notes.quota_changed))
                group.create_task(self._quota_notes.run(), name="quota notes")
                if settings.preemption.deletion_cost:
                    costs = DeletionCosts(self.context)
                    ends.callback(informers.pods.subscribe(costs.pod_changed))
                    group.create_task(costs.run(), name="deletion costs")
                if self._converted_claims is not None:
                    group.create_task(self._converted_claims.run(), name="converted claims")
                for helper in self.helpers:
                    group.create_task(helper(informers, self.election.holds))

    async def _list_claims(self) -> None:
        """List all claims by a quorum read, which misses no write of the former leader."""
        backoff = Backoff()
        while True:
            try:
                await self.context.informers.relist_claims()
            except ClusterError as error:
                log.warning("claims cannot be listed yet: %s", error)
                await self.context.clock.sleep(backoff.next())
            else:
                return

    async def _drop_fence(self) -> None:
        """Remove the rules of exclusive mode after a switch of modes, however long it takes; then return."""
        feed = self.context.informers.taint_rules
        backoff = Backoff()
        rules = [rule for rule in feed.store if is_fence_rule(rule)] if feed is not None else []
        while feed is not None and rules:
            name = rules[-1].metadata.name
            try:
                await remove_rule(self.context.cluster, self.context.writer, feed.kind, name)
            except ClusterError as error:
                log.warning("fence rule %s not deleted yet: %s", name, error)
                rules.insert(0, rules.pop())  # it must not delay the others
                await self.context.clock.sleep(backoff.next())
            else:
                rules.pop()
                log.info("fence rule %s deleted: native mode has none", name)

    def _subscribe(self, ends: ExitStack) -> None:
        """Subscribe all parts. Order matters within a kind: the queue must see what undo remembers."""
        informers, triggers, deallocator = self.context.informers, self._triggers, self._deallocator
        ends.callback(self._binding_cycle.abandon)
        ends.callback(self._assumed_pods.stop)
        ends.callback(informers.nodes.subscribe(deallocator.node_changed))
        ends.callback(informers.nodes.subscribe(triggers.node_changed))
        ends.callback(informers.namespaces.subscribe(triggers.namespace_changed))
        ends.callback(informers.quotas.subscribe(triggers.quota_changed))
        ends.callback(informers.classes.subscribe(triggers.class_changed))
        ends.callback(informers.slices.subscribe(self._fence.slice_changed))
        ends.callback(informers.slices.subscribe(triggers.devices_changed))
        ends.callback(informers.templates.subscribe(triggers.template_changed))
        ends.callback(informers.claims.subscribe(self._external_allocations.claim_changed))
        ends.callback(informers.claims.subscribe(deallocator.claim_changed))
        ends.callback(informers.claims.subscribe(triggers.claim_changed))
        ends.callback(informers.claims.subscribe(self._binding_cycle.claim_changed))
        ends.callback(informers.pods.subscribe(self._binding_cycle.pod_changed))
        ends.callback(informers.pods.subscribe(deallocator.pod_changed))
        ends.callback(informers.pods.subscribe(self._scheduling_cycle.gangs.pod_changed))
        ends.callback(informers.pods.subscribe(triggers.pod_changed))
        ends.callback(informers.pods.subscribe(self._unserved_pods.pod_changed))
        ends.callback(informers.pods.subscribe(self._bind_times.pod_changed))
        guard = self.context.guard("unserved pods")
        for pod in informers.pods.store:
            with guard.each(pod.key):
                self._unserved_pods.pod_changed(None, pod)
        for source_informer in informers.pod_groups.values():
            ends.callback(source_informer.subscribe(self._scheduling_cycle.gangs.group_changed))
        if informers.taint_rules is not None:
            ends.callback(informers.taint_rules.subscribe(self._fence.rule_changed))
            ends.callback(informers.taint_rules.subscribe(triggers.devices_changed))
        VolumeTriggers(self.context, triggers).subscribe(ends)
        if (preemptor := self._preemptor) is not None:
            ends.callback(preemptor.stop)
            ends.callback(informers.nodes.subscribe(preemptor.node_changed))
            ends.callback(informers.claims.subscribe(preemptor.claim_changed))
            ends.callback(informers.pods.subscribe(preemptor.pod_changed))
            ends.callback(informers.quotas.subscribe(preemptor.quota_changed))
            if informers.budgets is not None:
                ends.callback(informers.budgets.subscribe(preemptor.budget_changed))
            preemptor.start()
        self._fence.on_change(self._scheduling_cycle.fence_changed)
        deallocator.start()

    def _subscribe_conversion(self, ends: ExitStack) -> None:
        informers = self.context.informers
        if self._converted_claims is not None:
            ends.callback(informers.pods.subscribe(self._converted_claims.pod_changed))
            ends.callback(informers.claims.subscribe(self._converted_claims.claim_changed))
            ends.callback(informers.templates.subscribe(self._converted_claims.template_changed))
        if self._unconverted_pods is not None:
            guard = self.context.guard("bypass")
            for node in informers.nodes.store:
                with guard.each(node.key):
                    self._unconverted_pods.node_changed(None, node)
            for pod in informers.pods.store:
                with guard.each(pod.key):
                    self._unconverted_pods.pod_changed(None, pod)
            ends.callback(informers.nodes.subscribe(self._unconverted_pods.node_changed))
            ends.callback(informers.pods.subscribe(self._unconverted_pods.pod_changed))


def _totals(inventory: Inventory, device: str) -> Mapping[str, int] | None:
    driver, _, rest = device.partition("/")
    pool, _, name = rest.rpartition("/")
    row = inventory.devices.row_of(DeviceId(driver, pool, name))
    return inventory.devices.device(row).totals if row >= 0 else None


def _options(settings: Settings) -> Options:
    scheduling = settings.scheduling
    return replace(scheduling.options, managed=settings.drivers.managed, search_steps=scheduling.search_steps)
