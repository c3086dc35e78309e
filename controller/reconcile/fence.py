"""Keeps kube-scheduler's own allocator off the managed devices, and says when that is certain.

Run by the leader. For each managed driver one DeviceTaintRule; where the cluster has no such kind (1.36 by default), our
drivers put the same taint into their slices, and this only watches that they all do. `ready` is True from the moment the
fence is known to hold: every rule in place, quiet time over, probe claim refused, claims listed afresh. It is False at once
when a rule is deleted or changed or a slice without the taint appears; rules are put back right then, and all begins anew.
"""

import asyncio
import logging
from collections.abc import Callable

from controller.reconcile import messages
from controller.reconcile.context import Context
from controller.reconcile.fence_rules import (
    is_fenced_slice,
    is_intact,
    is_proven,
    proof,
    rule_body,
    rule_name,
    rule_spec,
)
from controller.reconcile.probe import Outcome, Prober
from controller.reconcile.settings import Settings
from hami_dra.api import names
from hami_dra.api.kinds import Kind
from hami_dra.api.resource import DeviceTaintRule, ResourceSlice
from hami_dra.cluster.backoff import Backoff
from hami_dra.cluster.protocol import AlreadyExists, ClusterError, ConfigError

log = logging.getLogger(__name__)

_PROBE_AGAIN = 2.0
_RETRY_MOST = 0.8
"""Seconds: a fence that is down is put back within a second."""


def require_fenceable(settings: Settings, taint_rule_kind: Kind[DeviceTaintRule] | None) -> None:
    """Raises ConfigError when a managed driver can be fenced neither by a rule nor by its own slices."""
    if taint_rule_kind is not None:
        return
    foreign = sorted(settings.managed - settings.own_drivers)
    if foreign:
        raise ConfigError(
            f"{', '.join(foreign)} cannot be managed on this cluster: it serves no DeviceTaintRule to keep kube-scheduler off "
            "its devices. Use Kubernetes 1.37, or on 1.36 switch on the feature gate DRADeviceTaintRules and the API "
            "resource.k8s.io/v1beta2, or run with --mode native"
        )


class Fence:
    def __init__(self, context: Context, prober: Prober) -> None:
        self._world = context.world
        self._writer = context.writer
        self._settings = context.settings
        self._clock = context.clock
        self._events = context.events
        self._metrics = context.metrics
        self._prober = prober
        self._in_force: dict[str, DeviceTaintRule] = {}
        self._open_slices: dict[str, str] = {}
        """Slices of managed drivers without the taint -> driver; only where the cluster has no rules."""
        self._ready = False
        self._broken = asyncio.Event()
        self._closed = asyncio.Event()
        """No slice is open any more."""
        self._listeners: list[Callable[[], None]] = []

    @property
    def ready(self) -> bool:
        return self._ready

    def on_change(self, listener: Callable[[], None]) -> None:
        """Called when `ready` changes."""
        self._listeners.append(listener)

    # --- what the world says (subscribed by the controller) ------------------------------------------------------------

    def rule_changed(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        rule = new or old
        assert rule is not None
        for driver in self._settings.managed:
            if rule.metadata.name == rule_name(driver):
                in_force = self._in_force.get(driver)
                if (
                    new is None
                    or not is_intact(new, driver)
                    or (in_force and in_force.metadata.uid != new.metadata.uid)
                ):
                    self._fall(f"the fence rule of {driver} is gone or changed")

    def slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        published = new or old
        assert published is not None
        if self._world.taint_rules is not None or published.spec.driver not in self._settings.managed:
            return
        if new is None or is_fenced_slice(new):
            self._open_slices.pop(published.metadata.name, None)
            if not self._open_slices:
                self._closed.set()
        else:
            self._open_slices[published.metadata.name] = published.spec.driver
            self._closed.clear()
            self._fall(f"slice {published.metadata.name} of {published.spec.driver} does not carry the fence taint")

    # --- keeping it up -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(first=0.2, most=_RETRY_MOST, uniform=lambda: 0.5)
        for published in list(self._world.slices.store):
            self.slice_changed(None, published)
        while True:
            self._broken.clear()
            try:
                if not await self._raise_up():
                    continue
            except ClusterError as error:
                log.warning("fence not in force yet: %s", error)
                await self._clock.sleep(backoff.next())
                continue
            backoff.reset()
            self._set_ready(True)
            await self._broken.wait()

    async def _raise_up(self) -> bool:
        """Whether the fence holds now; False: something fell meanwhile. Raises ClusterError, LeadershipLost."""
        if self._world.taint_rules is not None:
            for driver in sorted(self._settings.managed):
                await self._put(driver, self._world.taint_rules.kind)
            unproven = [driver for driver, rule in sorted(self._in_force.items()) if not is_proven(rule)]
        else:
            if self._open_slices:
                log.info("waiting for the fence taint in %d slices", len(self._open_slices))
                await self._closed.wait()
                self._broken.clear()
            unproven = sorted(self._settings.managed)
        if unproven and not await self._prove(unproven):
            return False
        await self._world.relist_claims()
        return not self._broken.is_set()

    async def _prove(self, drivers: list[str]) -> bool:
        """Quiet time, then a probe of each driver that has devices. Whether all held and nothing fell meanwhile."""
        await self._quiet()
        if self._broken.is_set():
            return False
        published = {item.spec.driver for item in self._world.slices.store if item.spec.devices}
        for driver in drivers:
            if self._settings.probe and driver in published:
                outcome = await self._prober.probe(driver)
                if outcome is not Outcome.HOLDS:
                    self._report_failed_probe(driver, outcome)
                    await self._clock.sleep(_PROBE_AGAIN)
                    return False
            if driver in self._in_force:
                await self._note_proof(driver)
        return not self._broken.is_set()

    async def _put(self, driver: str, kind: Kind[DeviceTaintRule]) -> None:
        """Make or mend the rule."""
        assert self._world.taint_rules is not None
        feed, name = self._world.taint_rules, rule_name(driver)
        found = feed.store.get(name)
        if found is not None and is_intact(found, driver):
            self._in_force[driver] = found
            return
        lost = driver in self._in_force
        if found is not None and found.metadata.deletion_timestamp is None:
            patch = {"metadata": {"uid": found.metadata.uid}, "spec": rule_spec(driver)}
            rule = await self._writer.patch(kind, name, patch)
            lost = True
        else:
            try:
                rule = await self._writer.create(kind, rule_body(driver))
            except AlreadyExists:
                await feed.reflector.relist()
                raise
        self._in_force[driver] = rule
        feed.reflector.observe(rule)
        if lost:
            self._metrics.fence_restored.labels(driver).inc()
            note = (
                f"the rule that keeps kube-scheduler off the devices of {driver} was gone or changed and was put back"
            )
            log.warning("%s", note)
            self._events.tell(kind, rule, messages.warning(messages.FENCE_RESTORED, note), "Fence")
        else:
            log.info("fence rule for %s made", driver)

    async def _note_proof(self, driver: str) -> None:
        assert self._world.taint_rules is not None
        feed, rule = self._world.taint_rules, self._in_force[driver]
        patch = {"metadata": {"uid": rule.metadata.uid, "annotations": {names.FENCE_PROVEN: proof(rule)}}}
        rule = await self._writer.patch(feed.kind, rule.metadata.name, patch)
        self._in_force[driver] = rule
        feed.reflector.observe(rule)

    async def _quiet(self) -> None:
        """The quiet time, or until something falls."""
        try:
            async with asyncio.timeout(self._settings.quiet_time):
                await self._broken.wait()
        except TimeoutError:
            return

    def _report_failed_probe(self, driver: str, outcome: Outcome) -> None:
        if outcome is Outcome.BROKEN:
            note = (
                f"kube-scheduler allocated a device of {driver} although it is fenced: nothing is committed. Check that "
                "kube-scheduler is of the API server's version and has the feature gates DRADeviceTaints and "
                "DRADeviceTaintRules on"
            )
        else:
            note = f"kube-scheduler has not looked at the probe pod of {driver}: nothing is committed until it does"
        log.warning("%s", note)
        rule = self._in_force.get(driver)
        if rule is not None and self._world.taint_rules is not None:
            self._events.tell(
                self._world.taint_rules.kind, rule, messages.warning(messages.FENCE_BROKEN, note), "Fence"
            )

    def _fall(self, why: str) -> None:
        if self._ready:
            log.warning("nothing is committed: %s", why)
        self._set_ready(False)
        self._broken.set()

    def _set_ready(self, ready: bool) -> None:
        if ready and self._broken.is_set():
            return
        if ready != self._ready:
            self._ready = ready
            self._metrics.fence_ready.set(int(ready))
            log.info("fence %s", "in force" if ready else "not in force")
            for listener in self._listeners:
                listener()
