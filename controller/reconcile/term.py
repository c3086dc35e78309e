"""One term of leadership: all acting parts, created each time this process starts to lead.

Called by `controller`. Nothing survives a term but the state of the cluster, so a takeover and a
restart are equivalent. `run` first waits one write timeout (a write of the former leader may still
be in progress) and lists all claims again.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from controller.reconcile.binding.binding_cycle import BindingCycle
from controller.reconcile.binding.claim_commit import ClaimCommitter
from controller.reconcile.binding.claim_writer import ClaimWriter
from controller.reconcile.binding.gate import GateKeeper
from controller.reconcile.binding.templates import TemplateMaker
from controller.reconcile.fence.fence import Fence
from controller.reconcile.fence.probe import Prober
from controller.reconcile.fence.removal import remove_rule
from controller.reconcile.fence.rules import is_fence_rule
from controller.reconcile.observability.quotas import QuotaNotes
from controller.reconcile.observability.unreadable import UnreadableObjects
from controller.reconcile.observability.vanished import VanishedWatch
from controller.reconcile.queueing.node_backoff import NodeBackoff
from controller.reconcile.queueing.pod_assessment import Bridge, PodAssessor
from controller.reconcile.queueing.queue import Queue
from controller.reconcile.queueing.selector_budgets import SelectorBudgets
from controller.reconcile.queueing.timeouts import Timeouts
from controller.reconcile.queueing.triggers import Triggers
from controller.reconcile.repair.deallocate import Deallocator
from controller.reconcile.repair.external_allocations import ExternalAllocationWatch
from controller.reconcile.repair.leaked_claims import LeakedClaims
from controller.reconcile.repair.unconverted_pods import UnconvertedPodWatch
from controller.reconcile.runtime.context import Context
from controller.reconcile.runtime.in_flight import InFlight
from controller.reconcile.runtime.informers import Informers
from controller.reconcile.runtime.settings import Mode
from controller.reconcile.scheduling_cycle import Acting, Decide, Deciding, SchedulingCycle, Waiting
from controller.scheduling.allocation.ownership import ownership_of
from controller.scheduling.decide.companions import SharedClaims
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.model import DeviceId
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.protocol import ClusterError

log = logging.getLogger(__name__)

Helper = Callable[[Informers, Callable[[], bool]], Coroutine[Any, Any, None]]
"""Runs while this process leads; calls the argument before each write."""


class Term:
    def __init__(
        self,
        context: Context,
        decide: Decide,
        bridge: Bridge | None,
        helpers: tuple[Helper, ...],
        may_write: Callable[[], bool],
    ) -> None:
        settings = context.settings
        self._context = context
        self._helpers = helpers
        self._may_write = may_write
        self._gate = GateKeeper(context)
        self._templates = TemplateMaker(context, bridge) if bridge else None
        self._bypass = UnconvertedPodWatch(bridge, context.events) if bridge else None
        claims = ClaimWriter(context)
        self._orphans = LeakedClaims(context, claims)
        self._foreign = ExternalAllocationWatch(context, claims, lambda device: _totals(context.inventory, device))
        self._fence = Fence(context, Prober(context))
        refusals = NodeBackoff(settings.refusal_time, settings.refusal_time_most)
        in_flight, shared = InFlight(), SharedClaims()
        self._undoer = Deallocator(context, claims, refusals, in_flight)
        self._wake = asyncio.Event()
        queue = Queue(
            turn_cost=settings.turn_cost, pause_first=settings.room_retry_first, pause_most=settings.room_retry_most
        )
        context.metrics.queue = queue
        patience = Timeouts({"room": settings.gate_patience, "nomination": settings.nomination_patience})
        self._triggers = Triggers(
            context,
            queue=queue,
            refusals=refusals,
            patience=patience,
            in_flight=in_flight,
            shared=shared,
            wake=self._wake.set,
        )
        self._undoer.on_done(self._triggers.look_at)
        self._aftermath = BindingCycle(
            context,
            committer=ClaimCommitter(context, claims, self._fence.holds),
            gate=self._gate,
            queue=queue,
            in_flight=in_flight,
            triggers=self._triggers,
            wake=self._wake.set,
        )
        self._quota_notes = QuotaNotes(context)
        self._vanished = VanishedWatch(context)
        self._unreadable = UnreadableObjects(context)
        deciding = Deciding(
            decide,
            replace(settings.options, managed=settings.managed, search_steps=settings.search_steps),
            PodAssessor(
                context,
                refusals=refusals,
                in_flight=in_flight,
                ownership_of=lambda claim: ownership_of(
                    context.inventory, claim, settings.managed, settings.options.gates
                ),
                shared=shared,
                bridge=bridge,
            ),
            SelectorBudgets(settings.selectors, context.clock.cpu, context.metrics),
        )
        self._placer = SchedulingCycle(
            context,
            deciding,
            Waiting(queue, self._triggers, patience, refusals, self._wake),
            Acting(in_flight, self._aftermath, self._gate, self._undoer, claims, self._fence),
        )

    async def run(self) -> None:
        """Run until cancelled. Raises an exception group with LeadershipLost if that was noticed
        first.
        """
        settings, world = self._context.settings, self._context.world
        if settings.leader_election:
            await self._context.clock.sleep(settings.write_timeout)
        await world.wait_synced()
        await self._list_claims()
        with ExitStack() as ends:
            ends.enter_context(self._unreadable.told())
            self._subscribe_bridge(ends)
            async with asyncio.TaskGroup() as group:
                if settings.mode is Mode.NATIVE:
                    ends.callback(self._gate.lift_all("native mode has no gate"))
                    group.create_task(self._drop_fence(), name="fence")
                else:
                    self._subscribe(ends)
                    group.create_task(self._fence.run(), name="fence")
                    group.create_task(self._placer.run(), name="placer")
                    group.create_task(self._context.held_back.run(self._triggers.look_at_namespace), name="held back")
                    group.create_task(self._undoer.run(), name="undo")
                    group.create_task(self._foreign.run(), name="foreign")
                ends.callback(world.pods.subscribe(self._gate.pod_changed))
                group.create_task(self._gate.run(), name="gates")
                group.create_task(self._orphans.run(), name="orphans")
                for feed in (world.claims, world.pods, world.slices):
                    ends.callback(feed.subscribe(self._vanished.changed))
                self._vanished.look()
                ends.callback(world.quotas.subscribe(self._quota_notes.quota_changed))
                group.create_task(self._quota_notes.run(), name="quota notes")
                if self._templates is not None:
                    group.create_task(self._templates.run(), name="templates")
                for helper in self._helpers:
                    group.create_task(helper(world, self._may_write))

    async def _list_claims(self) -> None:
        """List all claims by a quorum read, which misses no write of the former leader."""
        backoff = Backoff()
        while True:
            try:
                await self._context.world.relist_claims()
            except ClusterError as error:
                log.warning("claims cannot be listed yet: %s", error)
                await self._context.clock.sleep(backoff.next())
            else:
                return

    async def _drop_fence(self) -> None:
        """Remove the rules of exclusive mode after a switch of modes, however long it takes; then
        return.
        """
        feed = self._context.world.taint_rules
        backoff = Backoff()
        rules = [rule for rule in feed.store if is_fence_rule(rule)] if feed is not None else []
        while feed is not None and rules:
            name = rules[-1].metadata.name
            try:
                await remove_rule(self._context.cluster, self._context.writer, feed.kind, name)
            except ClusterError as error:
                log.warning("fence rule %s not deleted yet: %s", name, error)
                rules.insert(0, rules.pop())  # it must not delay the others
                await self._context.clock.sleep(backoff.next())
            else:
                rules.pop()
                log.info("fence rule %s deleted: native mode has none", name)

    def _subscribe(self, ends: ExitStack) -> None:
        """Subscribe all parts. Order matters within a kind: the queue must see what undo
        remembers.
        """
        world, triggers, undoer = self._context.world, self._triggers, self._undoer
        ends.callback(self._aftermath.abandon)
        ends.callback(undoer.stop)
        ends.callback(world.nodes.subscribe(undoer.node_changed))
        ends.callback(world.nodes.subscribe(triggers.node_changed))
        ends.callback(world.namespaces.subscribe(triggers.namespace_changed))
        ends.callback(world.quotas.subscribe(triggers.quota_changed))
        ends.callback(world.classes.subscribe(triggers.class_changed))
        ends.callback(world.slices.subscribe(self._fence.slice_changed))
        ends.callback(world.slices.subscribe(triggers.devices_changed))
        ends.callback(world.templates.subscribe(triggers.template_changed))
        ends.callback(world.claims.subscribe(self._foreign.claim_changed))
        ends.callback(world.claims.subscribe(undoer.claim_changed))
        ends.callback(world.claims.subscribe(triggers.claim_changed))
        ends.callback(world.claims.subscribe(self._aftermath.claim_changed))
        ends.callback(world.pods.subscribe(self._aftermath.pod_changed))
        ends.callback(world.pods.subscribe(undoer.pod_changed))
        ends.callback(world.pods.subscribe(triggers.pod_changed))
        if world.taint_rules is not None:
            ends.callback(world.taint_rules.subscribe(self._fence.rule_changed))
            ends.callback(world.taint_rules.subscribe(triggers.devices_changed))
        self._fence.on_change(self._placer.fence_changed)
        undoer.start()

    def _subscribe_bridge(self, ends: ExitStack) -> None:
        world = self._context.world
        if self._templates is not None:
            ends.callback(world.pods.subscribe(self._templates.pod_changed))
            ends.callback(world.templates.subscribe(self._templates.template_changed))
        if self._bypass is not None:
            guard = self._context.guard("bypass")
            for node in world.nodes.store:
                with guard.each(node.key):
                    self._bypass.node_changed(None, node)
            for pod in world.pods.store:
                with guard.each(pod.key):
                    self._bypass.pod_changed(None, pod)
            ends.callback(world.nodes.subscribe(self._bypass.node_changed))
            ends.callback(world.pods.subscribe(self._bypass.pod_changed))


def _totals(inventory: Inventory, device: str) -> Mapping[str, int] | None:
    driver, _, rest = device.partition("/")
    pool, _, name = rest.rpartition("/")
    row = inventory.devices.row_of(DeviceId(driver, pool, name))
    return inventory.devices.device(row).totals if row >= 0 else None
