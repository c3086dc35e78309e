"""Keeps kube-scheduler's own allocator off the managed devices, and says when that is certain.

Run by the leader. For each managed driver one DeviceTaintRule; where the cluster has no such kind (1.36 by default), our
drivers put the same taint into their slices, and this only watches that they all do. `ready` is True from the moment the
fence is known to hold: every rule in place, quiet time over, probe claim refused, claims listed afresh. Where no device is free
for a probe, the fence holds untested: nothing could be allocated natively, and the probe follows when a device is free.

A rule that somebody deletes stays in force by its finalizer. Another one is made at once, under the driver's other name; when that
is proven, the first is let go. `ready` stays True all the while, for kube-scheduler never sees a moment without a rule.
`ready` is False at once when a rule is changed, or goes although we did not let it go, or a slice without the taint appears;
rules are put back right then, and all begins anew.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from controller.reconcile import messages
from controller.reconcile.clock import wait_at_most
from controller.reconcile.context import Context
from controller.reconcile.fence_keeper import FenceKeeper
from controller.reconcile.fence_rules import is_fenced_slice
from controller.reconcile.probe import Outcome, Prober
from controller.reconcile.settings import Settings
from hami_dra.api.kinds import Kind
from hami_dra.api.resource import DeviceTaintRule, ResourceSlice
from hami_dra.cluster.backoff import Backoff
from hami_dra.cluster.protocol import ClusterError, ConfigError

log = logging.getLogger(__name__)

_PROBE_AGAIN = 2.0
_TEST_AGAIN = 10.0
_TEST_AGAIN_MOST = 600.0
"""Seconds, doubling from the one to the other, between two probes of a fence that holds untested."""
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


@dataclass(slots=True)
class _Test:
    """When a fence that holds untested is to be tested next."""

    pauses: Backoff = field(default_factory=lambda: Backoff(_TEST_AGAIN, _TEST_AGAIN_MOST))
    not_before: float = float("-inf")


class Fence:
    def __init__(self, context: Context, prober: Prober) -> None:
        self._world = context.world
        self._settings = context.settings
        self._clock = context.clock
        self._metrics = context.metrics
        self._guard = context.guard("fence")
        self._prober = prober
        taint_rules = context.world.taint_rules
        self._rules = FenceKeeper(context, taint_rules) if taint_rules is not None else None
        self._untested: dict[str, _Test] = {}
        """Drivers whose fence holds as far as can be told."""
        self._open_slices: dict[str, str] = {}
        """Slices of managed drivers without the taint -> driver; only where the cluster has no rules."""
        self._ready = False
        self._again = asyncio.Event()
        """Something is not as it should be, whether or not the fence holds."""
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
        assert self._rules is not None
        if driver := self._rules.lost(old, new):
            self._fall(f"the fence rule of {driver} is gone or changed")
        elif self._rules.asks_for_work(old, new):
            self._again.set()

    def slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        published = new or old
        assert published is not None
        if self._rules is not None or published.spec.driver not in self._settings.managed:
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
            with self._guard.each(published.key):
                self.slice_changed(None, published)
        while True:
            self._again.clear()
            try:
                if not await self._raise_up():
                    continue
                self._set_ready(True)
                if self._rules is not None:
                    await self._rules.let_go()
                backoff.reset()
                await self._rest()
            except ClusterError as error:
                log.warning("fence not as it should be yet: %s", error)
                await self._clock.sleep(backoff.next())
            except Exception as error:
                if not self._guard.contains("rules and slices", error):
                    raise
                await self._clock.sleep(backoff.next())

    async def _rest(self) -> None:
        """Until something is not as it should be; what holds untested is tested meanwhile. Raises ClusterError, LeadershipLost."""
        while self._untested and not self._again.is_set():
            await self._quiet(_TEST_AGAIN)
            for driver in sorted(self._untested):
                if not self._again.is_set():
                    await self._test(driver)
        await self._again.wait()

    async def _raise_up(self) -> bool:
        """Whether the fence holds now; False: something changed meanwhile. Raises ClusterError, LeadershipLost."""
        self._untested.clear()
        self._metrics.untested(self._untested)
        if self._rules is not None:
            await self._rules.put()
            if self._again.is_set():
                return False
            unproven = self._rules.unproven()
            self._rules.holding |= {
                driver: rule for driver, rule in self._rules.chosen.items() if driver not in unproven
            }
        else:
            if self._open_slices:
                log.info("waiting for the fence taint in %d slices", len(self._open_slices))
                await self._closed.wait()
                self._again.clear()
            unproven = sorted(self._settings.managed)
        if unproven and not await self._prove(unproven):
            return False
        if not self._ready:
            await self._world.relist_claims()
        return not self._again.is_set()

    async def _prove(self, drivers: list[str]) -> bool:
        """Quiet time, then a probe of each driver. Whether all held and nothing changed meanwhile."""
        await self._quiet(self._settings.quiet_time)
        if self._again.is_set():
            return False
        for driver in drivers:
            outcome = await self._probe(driver)
            if outcome in (Outcome.BROKEN, Outcome.UNSEEN):
                self._report_failed_probe(driver, outcome)
                if outcome is Outcome.BROKEN:
                    self._fall(f"kube-scheduler does not heed the fence of {driver}")
                await self._clock.sleep(_PROBE_AGAIN)
                return False
            if self._again.is_set():
                return False
            if outcome is Outcome.HOLDS:
                await self._is_proven(driver)
            else:
                log.info("the fence of %s holds untested: no device is free for a probe", driver)
                self._untested[driver] = _Test()
                self._metrics.untested(self._untested)
                if self._rules is not None:
                    # one that it takes the place of may go: kube-scheduler hears of that after it heard of this one
                    self._rules.holding[driver] = self._rules.chosen[driver]
        return not self._again.is_set()

    async def _probe(self, driver: str) -> Outcome:
        if not self._settings.probe:
            return Outcome.HOLDS
        if not any(item.spec.driver == driver and item.spec.devices for item in self._world.slices.store):
            return Outcome.UNTESTED
        return await self._prober.probe(driver)

    async def _is_proven(self, driver: str) -> None:
        self._untested.pop(driver, None)
        self._metrics.untested(self._untested)
        if self._rules is not None:
            self._rules.holding[driver] = self._rules.chosen[driver]
            await self._rules.note_proof(driver)

    async def _test(self, driver: str) -> None:
        """Probe a fence that holds untested, where a probe can prove something now."""
        test = self._untested[driver]
        if self._clock.monotonic() < test.not_before or self._prober.target(driver) is None:
            return
        outcome = await self._prober.probe(driver)
        if outcome is Outcome.HOLDS:
            await self._is_proven(driver)
            if self._rules is not None:
                await self._rules.let_go()
        elif outcome is Outcome.BROKEN:
            self._report_failed_probe(driver, outcome)
            self._fall(f"kube-scheduler does not heed the fence of {driver}")
        else:
            test.not_before = self._clock.monotonic() + test.pauses.next()

    async def _quiet(self, seconds: float) -> None:
        """So long, or until something falls."""
        await wait_at_most(self._again, seconds)

    def _report_failed_probe(self, driver: str, outcome: Outcome) -> None:
        if outcome is Outcome.BROKEN:
            note = (
                f"kube-scheduler allocated a device of {driver} although it is fenced: nothing is committed. Check that "
                "kube-scheduler is of the API server's version and has the feature gates DRADeviceTaints and "
                "DRADeviceTaintRules on"
            )
        else:
            until = "the rule that is being deleted stays" if self._ready else "nothing is committed"
            note = f"kube-scheduler has not looked at the probe pod of {driver}: {until} until it does"
        log.warning("%s", note)
        if self._rules is not None:
            self._rules.tell(driver, messages.warning(messages.FENCE_BROKEN, note))

    def _fall(self, why: str) -> None:
        if self._ready:
            log.warning("nothing is committed: %s", why)
        self._set_ready(False)
        self._again.set()

    def _set_ready(self, ready: bool) -> None:
        if ready and self._again.is_set():
            return
        if ready != self._ready:
            self._ready = ready
            self._metrics.fence_ready.set(int(ready))
            log.info("fence %s", "in force" if ready else "not in force")
            for listener in self._listeners:
                listener()
