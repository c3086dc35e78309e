"""Keeps kube-scheduler's allocator off the managed devices, and says for which drivers that is
certain.

Run by the leader. Each managed driver has a fence of its own (`driver_fence`), in a task of its
own: a fence that cannot be set up, or is damaged repeatedly, stops the pods of its driver and of no
other. This module passes events to them, and holds what they share: the probe, of which there is
one at a time, and the fresh list of claims.
"""

import asyncio
from collections.abc import Callable, Collection

from controller.reconcile.fence.driver_fence import DriverFence, Shared
from controller.reconcile.fence.keeper import FenceKeeper
from controller.reconcile.fence.probe import Outcome, Prober
from controller.reconcile.fence.rules import driver_of, released, waits_for_release
from controller.reconcile.runtime import Context, DriverSettings, Writer
from hami_dra.api.errors import ConfigError
from hami_dra.api.kinds import Kind
from hami_dra.api.resource import DeviceTaintRule, ResourceSlice
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.protocol import Cluster, ClusterError, NotFound


def require_fenceable(drivers: DriverSettings, taint_rule_kind: Kind[DeviceTaintRule] | None) -> None:
    """Raise ConfigError if a managed driver can be fenced neither by a rule nor by its own slices."""
    if taint_rule_kind is not None:
        return
    foreign = sorted(drivers.managed - drivers.own_drivers)
    if foreign:
        raise ConfigError(
            f"{', '.join(foreign)} cannot be managed on this cluster: it serves no DeviceTaintRule to keep kube-scheduler off "
            "its devices. Use Kubernetes 1.37, or on 1.36 switch on the feature gate DRADeviceTaintRules and the API "
            "resource.k8s.io/v1beta2, or run with --mode native"
        )


class Fence:
    def __init__(self, context: Context, prober: Prober) -> None:
        self._informers = context.informers
        self._clock = context.clock
        self._metrics = context.metrics
        self._guard = context.guard("fence")
        self._prober = prober
        taint_rules = context.informers.taint_rules
        self._rules = FenceKeeper(context, taint_rules) if taint_rules is not None else None
        shared = Shared(self._rules, self._probe, prober.target, _SharedListing(context).fresh, self._changed)
        self._fences = {
            driver: DriverFence(context, driver, shared) for driver in sorted(context.settings.drivers.managed)
        }
        self._probing = asyncio.Lock()
        self._others = asyncio.Event()
        """Set when a rule of an unmanaged driver may be released."""
        self._ready: frozenset[str] = frozenset()
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_down(self) -> bool:
        """Return whether no fence holds, so that nothing can be committed."""
        return not self._ready

    def holds(self, drivers: Collection[str]) -> bool:
        """Return whether the fences of all these drivers are known to hold. Unmanaged drivers have none."""
        return all(driver in self._ready for driver in drivers if driver in self._fences)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` when a fence starts or stops to be known to hold."""
        self._listeners.append(listener)

    # --- handlers, subscribed by the term ----------------------------------------------------------

    def rule_changed(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        rule = new or old
        assert rule is not None
        assert self._rules is not None
        driver = driver_of(rule.metadata.name, self._fences)
        if driver is not None:
            self._fences[driver].rule_changed(old, new)
        elif self._rules.may_let_go(new):
            self._others.set()

    def slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        published = new or old
        assert published is not None
        if self._rules is None and (fence := self._fences.get(published.spec.driver)) is not None:
            fence.slice_changed(published.metadata.name, new)

    # --- keeping them up --------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled. Raises LeadershipLost, in an exception group."""
        for published in list(self._informers.slices.store):
            with self._guard.each(published.key):
                self.slice_changed(None, published)
        async with asyncio.TaskGroup() as group:
            for driver, fence in self._fences.items():
                group.create_task(fence.run(), name=f"fence of {driver}")
            if self._rules is not None:
                group.create_task(self._let_go_of_others(self._rules), name="fences of unmanaged drivers")

    async def _let_go_of_others(self, rules: FenceKeeper) -> None:
        backoff = Backoff()
        while True:
            self._others.clear()
            try:
                await rules.let_go("")
                backoff.reset()
                await self._others.wait()
            except Exception as error:
                if not isinstance(error, ClusterError) and not self._guard.contains(
                    "rules of unmanaged drivers", error
                ):
                    raise
                await self._clock.sleep(backoff.next())

    async def _probe(self, driver: str) -> Outcome:
        """Run a probe. Raises ClusterError, LeadershipLost."""
        async with self._probing:
            return await self._prober.probe(driver)

    def _changed(self) -> None:
        self._metrics.untested({driver for driver, fence in self._fences.items() if fence.is_untested})
        ready = frozenset(driver for driver, fence in self._fences.items() if fence.ready)
        if ready != self._ready:
            self._ready = ready
            self._metrics.fence_ready.set(int(len(ready) == len(self._fences)))
            for listener in self._listeners:
                listener()


class _SharedListing:
    """A fresh list of all claims: calls during a listing share the next one."""

    def __init__(self, context: Context) -> None:
        self._informers = context.informers
        self._turn = asyncio.Lock()
        self._begun = 0
        self._listed = 0
        """Number of the last list that succeeded."""

    async def fresh(self) -> None:
        """Wait until the claims were listed by a request made after this call. Raises ClusterError."""
        asked = self._begun
        async with self._turn:
            if self._listed > asked:
                return
            self._begun += 1
            number = self._begun
            await self._informers.relist_claims()
            self._listed = number


async def remove_rule(cluster: Cluster, writer: Writer, kind: Kind[DeviceTaintRule], name: str) -> bool:
    """Delete a fence rule, and our finalizer, which no controller removes any more. Idempotent: whatever
    a crash left half done is finished. Returns whether the rule existed.

    Raises ClusterError (Conflict after repeated writes), LeadershipLost.
    """
    try:
        await writer.delete(kind, name)
    except NotFound:
        return False
    try:
        left = await cluster.get(kind, name)
        if waits_for_release(left):
            await writer.patch(kind, name, released(left))
    except NotFound:
        return True  # it carried no finalizer, or another client was faster
    return True
