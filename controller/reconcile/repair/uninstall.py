"""Removes hami-dra from a cluster, in an order in which nothing gets stuck.

Called by `hami-dra uninstall`. Order: controllers stop acting; what would gate and convert new pods
(gate policy, webhook and its Secret); gates; fence; probes; our annotations and finalizers on
claims; unused templates; gates once more, because a policy stays in force for some seconds after
its deletion; last the policies that protect the cluster, so that they do so until there is nothing
to protect. Idempotent: missing objects are no error. Running pods, their claims and allocations
stay. Each step is reported through `say`.

Everything is listed before anything is written, and again once the controllers stand down: a
cluster that cannot be listed is left unchanged, and its controllers go on. From then on no single object stops the rest: failed writes are retried, reported, and
make the whole fail at the end; unreadable objects are handled by their metadata (`present`), and
named.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

from msgspec import Struct

from controller.reconcile.binding import take_off
from controller.reconcile.fence import remove_rule
from controller.reconcile.repair.installed_objects import (
    CHANGES_OBJECTS,
    PROTECTS,
    InstalledObjects,
    gated_pods,
    summary,
    take_stock,
    take_stock_of_gates,
    webhook_templates,
)
from controller.reconcile.runtime import Clock, Writer, uninstalling_until
from hami_dra.api import kinds, names
from hami_dra.api.core import Lease, Pod
from hami_dra.api.errors import InputError
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.api.podclaims import claim_refs
from hami_dra.api.podstate import is_live
from hami_dra.api.printable import counted
from hami_dra.api.resource import DeviceTaintRule
from hami_dra.api.times import timestamp
from hami_dra.kube.protocol import AlreadyExists, Cluster, ClusterError, Forbidden, Invalid, NotFound

log = logging.getLogger(__name__)

Say = Callable[[str], None]

LEAVING_TIME: Final = timedelta(minutes=10)
_POLL: Final = 0.5
_POLICY_LAG: Final = 5.0
_ATTEMPTS: Final = 10


class Plan(Struct, frozen=True):
    namespace: str = names.SYSTEM_NAMESPACE
    lease_name: str = names.CONTROLLER
    lease_duration: float = 15.0
    write_timeout: float = 5.0
    gates_only: bool = False
    """Remove the gate policy and the gates of pods, and nothing else."""


class StillActing(InputError):
    """A controller continues although it should have stopped: stop it, then run this again."""


class RunsElsewhere(InputError):
    """hami-dra runs in another namespace: uninstall it there."""


class LeftBehind(InputError):
    """Some objects could not be removed; all others were. There is a message for each: fix it, then run this again."""


async def to_remove(cluster: Cluster, plan: Plan) -> list[str]:
    """Return what an uninstall would remove now, a line each. Raises ClusterError, RunsElsewhere."""
    if plan.gates_only:
        return summary(await take_stock_of_gates(cluster))
    await _require_only_here(cluster, plan)
    lines = summary(await take_stock(cluster))
    own: tuple[tuple[Kind[Any], str], ...] = ((kinds.SECRET, names.WEBHOOK_SECRET), (kinds.LEASE, plan.lease_name))
    for kind, name in own:
        line = f"{kind.name} {plan.namespace}/{name}"
        try:
            await cluster.get(kind, name, plan.namespace)
        except NotFound:
            continue
        except Forbidden:  # the account of uninstall may delete the Secret, but not read it
            line += ", if it is there"
        lines.append(line)
    templates = await webhook_templates(cluster)
    if templates:
        lines.append(f"{counted(len(templates), 'ResourceClaimTemplate')} of converted pods, where no pod waits for it")
    return lines


async def _require_only_here(cluster: Cluster, plan: Plan) -> None:
    """Raise RunsElsewhere if a controller has a lease in another namespace that no uninstall left behind."""
    leases = await cluster.list(kinds.LEASE, field_selector=f"metadata.name={plan.lease_name}")
    elsewhere = [
        lease.metadata.namespace
        for lease in leases.items
        if lease.metadata.namespace != plan.namespace
        and (lease.spec.holder_identity or names.LEAVING_UNTIL not in lease.metadata.annotations)
    ]
    if elsewhere:
        first = min(elsewhere)
        raise RunsElsewhere(
            f"hami-dra runs in namespace {first}: --install-namespace {first} (the namespace given is {plan.namespace}; "
            f"nothing was changed). If none runs there any more: kubectl -n {first} delete lease {plan.lease_name}"
        )


class Uninstaller:
    def __init__(self, cluster: Cluster, plan: Plan, clock: Clock, say: Say) -> None:
        self._cluster = cluster
        self._plan = plan
        self._clock = clock
        self._say = say
        self._writer = Writer(cluster, lambda: True, plan.write_timeout)
        self._left: dict[str, str] = {}
        """Objects that could not be removed → why."""

    async def run(self) -> None:
        """Raises ClusterError, RunsElsewhere or StillActing with nothing changed, LeftBehind."""
        if self._plan.gates_only:
            await self._remove_gates()
            return
        await _require_only_here(self._cluster, self._plan)
        keep_lease, present = await self._stand_down(await take_stock(self._cluster))
        await self._remove_admission(present, CHANGES_OBJECTS)
        # a webhook that still runs cannot create it again
        await self._delete(kinds.SECRET, names.WEBHOOK_SECRET, self._plan.namespace)
        await self._lift_gates(present.gated)
        await self._remove_fence(present)
        for kind, probe in present.probes:
            await self._delete(kind, probe.metadata.name, probe.metadata.namespace)
        await self._unmark_quotas(present.quotas)
        await self._try("ResourceClaimTemplates", self._remove_templates)
        await self._clock.sleep(_POLICY_LAG)
        await self._try("pods", self._lift_new_gates)
        await self._remove_admission(present, PROTECTS)
        if not keep_lease:
            await self._delete(kinds.LEASE, self._plan.lease_name, self._plan.namespace)
        for problem in present.unreadable:
            self._say(f"could not be read, and was treated by its metadata: {problem}")
        self._end("done: running pods keep their devices, pending claims are kube-scheduler's now")

    async def _remove_gates(self) -> None:
        """Stop gating and release the pods; fence, policies and controllers stay."""
        present = await take_stock_of_gates(self._cluster)
        await self._remove_admission(present, CHANGES_OBJECTS)
        await self._lift_gates(present.gated)
        await self._clock.sleep(_POLICY_LAG)
        await self._try("pods", self._lift_new_gates)
        self._end(
            "done: the fence and all other policies stay. The webhook still gates the pods that it converts: run it with "
            "--gate off (chart: gate=false), which also keeps the next upgrade from restoring the policy"
        )

    def _end(self, sentence: str) -> None:
        if self._left:
            raise LeftBehind(*(f"{what}: {why}" for what, why in self._left.items()))
        self._say(sentence)

    async def _try(self, what: str, step: Callable[[], Awaitable[object]]) -> None:
        """Run one step on one object; a failure is reported at the end."""
        try:
            await step()
        except Exception as error:
            log.debug("%s", what, exc_info=error)
            self._left[what] = str(error) or repr(error)
            self._say(f"{what} is left: {error}")

    # --- controllers ------------------------------------------------------------------------------

    async def _stand_down(self, present: InstalledObjects) -> tuple[bool, InstalledObjects]:
        """Return whether the lease must stay, because a running controller reads the marker on it,
        and what there is once the controllers stand down. They go on if this fails.
        """
        lease = await self._read_lease()
        if lease is None and not summary(present):
            return False, present
        try:
            keep_lease = await self._mark(lease)
            return keep_lease, await take_stock(self._cluster)
        except BaseException:
            await self._restore_mark(lease)
            raise

    async def _mark(self, lease: Lease | None) -> bool:
        """Mark the lease, or make one for controllers without election, and wait until its holder releases it."""
        if lease is None:
            name = {"name": self._plan.lease_name, "namespace": self._plan.namespace}
            with suppress(AlreadyExists):
                await self._cluster.create(kinds.LEASE, {"metadata": name, "spec": {}}, namespace=self._plan.namespace)
        mark = uninstalling_until(lease)
        # A running controller would have taken the lease since the marker expired.
        marked_before = mark is not None and mark > self._clock.wall()
        until = timestamp(self._clock.wall() + LEAVING_TIME)
        lease = await self._annotate_lease(until)
        holder = lease.spec.holder_identity
        if not holder:
            await self._clock.sleep(_POLICY_LAG)  # a controller without election sees the mark, and ends its writes
            return marked_before
        self._say(f"waiting for the controller {holder} to stand down")
        released = await self._wait_released(lease)
        if released:
            self._say(f"the controller stood down; none acts before {until}")
        return released

    async def _restore_mark(self, before: Lease | None) -> None:
        """Let the controllers go on, because nothing was removed."""
        try:
            if before is None:
                await self._cluster.delete(kinds.LEASE, self._plan.lease_name, namespace=self._plan.namespace)
            else:
                await self._annotate_lease(before.metadata.annotations.get(names.LEAVING_UNTIL))
        except NotFound:
            pass
        except ClusterError as error:
            self._say(
                f"the controllers stay paused for {LEAVING_TIME.total_seconds() / 60:.0f} minutes ({error}); to let them go on: "
                f"kubectl -n {self._plan.namespace} annotate lease {self._plan.lease_name} {names.LEAVING_UNTIL}-"
            )

    async def _annotate_lease(self, until: str | None) -> Lease:
        return await self._cluster.patch(
            kinds.LEASE,
            self._plan.lease_name,
            {"metadata": {"annotations": {names.LEAVING_UNTIL: until}}},
            namespace=self._plan.namespace,
        )

    async def _wait_released(self, lease: Lease) -> bool:
        """Return True if the leader released the lease, False if it stopped renewing it."""
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

    # --- what stands in the way of others ---------------------------------------------------------

    async def _remove_admission(self, present: InstalledObjects, of: tuple[Kind[Any], ...]) -> None:
        for kind, found in present.admission:
            if kind in of:
                await self._delete(kind, found.metadata.name)

    async def _lift_new_gates(self) -> None:
        await self._lift_gates(await gated_pods(self._cluster))

    async def _lift_gates(self, pods: Sequence[Pod]) -> None:
        slots = asyncio.Semaphore(16)

        async def lift(pod: Pod) -> None:
            async with slots:
                step = partial(take_off, self._cluster, self._writer, self._clock, pod, attempts=_ATTEMPTS)
                await self._try(f"gate of Pod {pod.key}", step)

        await asyncio.gather(*map(lift, pods))
        if pods:
            self._say(f"gate {names.GATE} lifted from {counted(len(pods), 'pod')}")

    async def _remove_fence(self, present: InstalledObjects) -> None:
        for kind, rule in present.rules:
            await self._remove_rule(kind, rule.metadata.name)
        for driver in present.fenced_drivers:
            self._say(
                f"slices of {driver} still carry the taint {names.FENCE_TAINT}: run its drivers with --mode native, "
                "or remove them"
            )

    # --- what is written on objects of others -----------------------------------------------------

    async def _unmark_quotas(self, quotas: Sequence[Object]) -> None:
        for quota in quotas:
            await self._try(
                f"annotation {names.QUOTA_USED} of ResourceQuota {quota.key}", partial(self._unmark_quota, quota)
            )
        if quotas:
            self._say(f"annotation {names.QUOTA_USED} removed from {counted(len(quotas), 'quota')}")

    async def _unmark_quota(self, quota: Object) -> None:
        meta = quota.metadata
        patch = {"metadata": {"annotations": {names.QUOTA_USED: None}}}
        with suppress(NotFound):
            await self._writer.patch(kinds.RESOURCE_QUOTA, meta.name, patch, namespace=meta.namespace)

    async def _remove_templates(self) -> None:
        """Remove the templates that no pod waits for at present: pods may have been created meanwhile."""
        pods = await self._cluster.list(kinds.POD)
        needed = {ref.template for pod in pods.items if is_live(pod) for ref in claim_refs(pod) if not ref.key}
        if any(broken.object.key not in {pod.key for pod in pods.items} for broken in pods.broken):
            self._say("templates stay: there are pods that cannot be read, and may need them")
            return
        for template in await webhook_templates(self._cluster):
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
        """Delete with retries. `delete`: returns whether the object existed."""
        await self._try(what, partial(self._delete_again, what, delete))

    async def _delete_again(self, what: str, delete: Callable[[], Awaitable[bool]]) -> None:
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
