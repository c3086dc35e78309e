"""Leaving a cluster: everything of ours goes, in the order in which nothing gets stuck. Called by `hami-dra uninstall`.

Order: controllers stand down; admission (policies, bindings, webhook and its Secret); gates; fence; probes; our marks on
claims; templates of the webhook that nothing needs; gates once more, for a policy is in force for some seconds after its
end. Idempotent: what is gone already is no error. Running pods, their claims and allocations stay. Each step is told
through `say`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from controller.reconcile import bodies
from controller.reconcile.clock import Clock
from controller.reconcile.fence_removal import remove_rule
from controller.reconcile.fence_rules import is_fence_rule, is_fence_taint
from controller.reconcile.gate import take_off
from controller.reconcile.leaving import leaving_until
from controller.reconcile.pods import claim_refs, has_our_gate, is_live
from controller.reconcile.world import TAINT_RULE_KINDS
from controller.reconcile.writer import Writer
from hami_dra.api import kinds, names
from hami_dra.api.core import Lease
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.api.resource import DeviceTaintRule, ResourceClaim
from hami_dra.api.times import timestamp
from hami_dra.cluster.protocol import Cluster, ClusterError, Conflict, Invalid, NotFound

log = logging.getLogger(__name__)

Say = Callable[[str], None]

LEAVING_TIME: Final = timedelta(minutes=10)
ADMISSION: Final[tuple[Kind[Any], ...]] = (
    kinds.MUTATING_POLICY_BINDING,
    kinds.MUTATING_POLICY,
    kinds.MUTATING_WEBHOOK,
    kinds.VALIDATING_POLICY_BINDING,
    kinds.VALIDATING_POLICY,
)
_POLL: Final = 0.5
_POLICY_LAG: Final = 5.0
_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class Plan:
    installation: str = "hami-dra"
    namespace: str = names.SYSTEM_NAMESPACE
    lease_name: str = names.CONTROLLER
    lease_duration: float = 15.0
    write_timeout: float = 5.0


class StillActing(Exception):
    """A controller goes on although it was told to leave: stop it, then run this again."""


class Uninstaller:
    def __init__(self, cluster: Cluster, plan: Plan, clock: Clock, say: Say) -> None:
        self._cluster = cluster
        self._plan = plan
        self._clock = clock
        self._say = say
        self._writer = Writer(cluster, lambda: True, plan.write_timeout)

    async def run(self) -> None:
        """Raises ClusterError and StillActing; to run it again is always right."""
        keep_lease = await self._stand_down()
        await self._remove_admission()
        await self._lift_gates()
        await self._remove_fence()
        await self._remove_probes()
        await self._unmark_claims()
        await self._unmark_quotas()
        await self._remove_templates()
        await self._clock.sleep(_POLICY_LAG)
        await self._lift_gates()
        if not keep_lease:
            await self._delete(kinds.LEASE, self._plan.lease_name, self._plan.namespace)
        self._say("done: running pods keep their devices, pending claims are kube-scheduler's now")

    # --- controllers -----------------------------------------------------------------------------------------------

    async def _stand_down(self) -> bool:
        """Whether the lease must stay, because a controller runs and reads the mark on it."""
        lease = await self._read_lease()
        if lease is None:
            return False
        mark = leaving_until(lease)
        # a controller would have taken the lease since the mark was over
        marked_before = mark is not None and mark > self._clock.wall()
        until = timestamp(self._clock.wall() + LEAVING_TIME)
        lease = await self._cluster.patch(
            kinds.LEASE,
            self._plan.lease_name,
            {"metadata": {"annotations": {names.LEAVING_UNTIL: until}}},
            namespace=self._plan.namespace,
        )
        holder = lease.spec.holder_identity
        if not holder:
            return marked_before
        self._say(f"waiting for the controller {holder} to stand down")
        released = await self._wait_released(lease)
        if released:
            self._say(f"the controller stood down; none acts before {until}")
        return released

    async def _wait_released(self, lease: Lease) -> bool:
        """True: it gave the lease back. False: it has not renewed for a lease duration, so nobody is there."""
        seen, since = lease.spec, self._clock.monotonic()
        started = since
        duration = max(self._plan.lease_duration, lease.spec.lease_duration_seconds or 0)
        while True:
            await self._clock.sleep(_POLL)
            current = await self._read_lease()
            now = self._clock.monotonic()
            if current is None or not current.spec.holder_identity:
                return True
            if current.spec != seen:
                seen, since = current.spec, now
            if now - since > duration:
                return False
            if now - started > 3 * duration:
                raise StillActing(
                    f"the controller {current.spec.holder_identity} goes on although the lease "
                    f"{self._plan.namespace}/{self._plan.lease_name} is marked {names.LEAVING_UNTIL}: stop it first"
                )

    async def _read_lease(self) -> Lease | None:
        try:
            return await self._cluster.get(kinds.LEASE, self._plan.lease_name, self._plan.namespace)
        except NotFound:
            return None

    # --- what stands in the way of others ----------------------------------------------------------------------------

    async def _remove_admission(self) -> None:
        for kind in ADMISSION:
            if not await self._cluster.serves(kind):
                continue
            for found in (await self._cluster.list(kind)).items:
                if _is_ours(found):
                    await self._delete(kind, found.metadata.name)
        # a webhook that still runs makes none again without its configuration
        await self._delete(kinds.SECRET, names.WEBHOOK_SECRET, self._plan.namespace)

    async def _lift_gates(self) -> None:
        pods = [pod for pod in (await self._cluster.list(kinds.POD)).items if has_our_gate(pod)]
        if not pods:
            return
        slots = asyncio.Semaphore(16)

        async def lift(position: int) -> None:
            async with slots:
                await take_off(self._cluster, self._writer, self._clock, pods[position])

        await asyncio.gather(*(lift(position) for position in range(len(pods))))
        self._say(f"gate {names.GATE} lifted from {_counted(len(pods), 'pod')}")

    async def _remove_fence(self) -> None:
        for kind in TAINT_RULE_KINDS:
            if await self._cluster.serves(kind):
                for rule in (await self._cluster.list(kind)).items:
                    if is_fence_rule(rule):
                        await self._remove_rule(kind, rule.metadata.name)
        drivers = {
            published.spec.driver
            for published in (await self._cluster.list(kinds.RESOURCE_SLICE)).items
            for device in published.spec.devices
            if any(is_fence_taint(taint) for taint in device.taints)
        }
        for driver in sorted(drivers):
            self._say(
                f"slices of {driver} still carry the taint {names.FENCE_TAINT}: run its drivers with --mode native, "
                "or remove them"
            )

    async def _remove_probes(self) -> None:
        probes: tuple[Kind[Any], ...] = (kinds.POD, kinds.RESOURCE_CLAIM, kinds.DEVICE_CLASS)
        for kind in probes:
            for found in (await self._cluster.list(kind, label_selector=names.PROBE_LABEL)).items:
                await self._delete(kind, found.metadata.name, found.metadata.namespace)

    # --- what is written on objects of others --------------------------------------------------------------------------

    async def _unmark_claims(self) -> None:
        claims = (await self._cluster.list(kinds.RESOURCE_CLAIM)).items
        ours = [claim for claim in claims if bodies.is_ours(claim, self._plan.installation)]
        for claim in ours:
            await self._unmark(claim)
        if ours:
            self._say(f"annotation {names.ALLOCATED_BY} removed from {_counted(len(ours), 'claim')}")

    async def _unmark(self, claim: ResourceClaim) -> None:
        """An allocated claim keeps its finalizer: the claim controller takes it away with the allocation."""
        current = claim
        for _ in range(_ATTEMPTS):
            allocated = current.status.allocation is not None
            patch = bodies.disown(current) if allocated else bodies.unmark(current)
            meta = current.metadata
            try:
                await self._writer.patch(kinds.RESOURCE_CLAIM, meta.name, patch, namespace=meta.namespace)
            except NotFound:
                return
            except Conflict:
                try:
                    current = await self._cluster.get(kinds.RESOURCE_CLAIM, meta.name, meta.namespace)
                except NotFound:
                    return
            else:
                return

    async def _unmark_quotas(self) -> None:
        quotas = (await self._cluster.list(kinds.RESOURCE_QUOTA)).items
        ours = [quota for quota in quotas if names.QUOTA_USED in quota.metadata.annotations]
        patch = {"metadata": {"annotations": {names.QUOTA_USED: None}}}
        for quota in ours:
            meta = quota.metadata
            with suppress(NotFound):
                await self._writer.patch(kinds.RESOURCE_QUOTA, meta.name, patch, namespace=meta.namespace)
        if ours:
            self._say(f"annotation {names.QUOTA_USED} removed from {_counted(len(ours), 'quota')}")

    async def _remove_templates(self) -> None:
        selector = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY},{names.TEMPLATE_HASH_LABEL}"
        templates = (await self._cluster.list(kinds.RESOURCE_CLAIM_TEMPLATE, label_selector=selector)).items
        needed = {
            ref.template
            for pod in (await self._cluster.list(kinds.POD)).items
            if is_live(pod)
            for ref in claim_refs(pod)
            if not ref.key
        }
        for template in templates:
            if template.key not in needed:
                await self._delete(kinds.RESOURCE_CLAIM_TEMPLATE, template.metadata.name, template.metadata.namespace)

    async def _remove_rule(self, kind: Kind[DeviceTaintRule], name: str) -> None:
        async def remove() -> bool:
            return await remove_rule(self._cluster, self._writer, kind, name)

        await self._persist(f"{kind.name} {name}", remove)

    async def _delete(self, kind: Kind[Any], name: str, namespace: str = "") -> None:
        async def delete() -> bool:
            try:
                await self._writer.delete(kind, name, namespace=namespace)
            except NotFound:
                return False
            return True

        await self._persist(f"{kind.name} {namespace}/{name}" if namespace else f"{kind.name} {name}", delete)

    async def _persist(self, what: str, delete: Callable[[], Awaitable[bool]]) -> None:
        """`delete`: whether it was there."""
        for attempt in range(_ATTEMPTS):
            try:
                was_there = await delete()
            except Invalid:
                raise
            except ClusterError:
                if attempt == _ATTEMPTS - 1:
                    raise
                await self._clock.sleep(_POLL)
            else:
                if was_there:
                    self._say(f"{what} deleted")
                return


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _is_ours(found: Object) -> bool:
    """By name, or by label where a chart was installed under other names."""
    labels = found.metadata.labels
    ours = (names.GATE_POLICY, names.FENCE_POLICY, names.CLAIM_POLICY, names.SLICE_POLICY, names.WEBHOOK)
    return found.metadata.name in ours or names.MANAGED_BY in (
        labels.get(names.MANAGED_BY_LABEL),
        labels.get(names.PART_OF_LABEL),
    )
