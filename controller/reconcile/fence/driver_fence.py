"""The fence of one driver: keeps kube-scheduler's allocator off its devices, and verifies that.

Created and run by `fence`. The fence is a DeviceTaintRule. If the cluster has no such kind (1.36 by
default), our drivers put the same taint into their slices, and this only checks that all of them
do. `ready` is True from the moment the fence is known to hold: rule in place, quiet time over,
probe claim refused, claims listed again. If no device is free for a probe, the fence holds
untested: nothing could be allocated natively, and the probe follows when a device is free.

A rule that is being deleted stays in force by its finalizer. Another one is created at once, under
the driver's other name; when that is proven, the first is released. `ready` stays True meanwhile,
because kube-scheduler never sees a moment without a rule. `ready` becomes False immediately if a
rule is changed, disappears without our release, or a slice without the taint appears; the rules are
then restored, and verification starts again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec import Struct, field

from controller.reconcile.fence.keeper import FenceKeeper
from controller.reconcile.fence.probe import Outcome
from controller.reconcile.fence.probe_target import Target
from controller.reconcile.fence.rules import is_fenced_slice
from controller.reconcile.runtime import Context, messages
from hami_dra.api.resource import DeviceTaintRule, ResourceSlice
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.protocol import ClusterError
from hami_dra.kube.waiting import wait_at_most

log = logging.getLogger(__name__)

_PROBE_AGAIN = 2.0
_TEST_AGAIN = 10.0
_TEST_AGAIN_MOST = 600.0
"""Seconds between two probes of an untested fence; doubles from the first to the second value."""
_RETRY_MOST = 0.8
"""Seconds: a broken fence is restored within a second."""


class Shared(Struct, frozen=True):
    """Shared by the fences of all drivers. `rules` None: the cluster serves no DeviceTaintRule."""

    rules: FenceKeeper | None
    probe: Callable[[str], Awaitable[Outcome]]
    """Runs a probe. Raises ClusterError, LeadershipLost."""
    target: Callable[[str], Target | None]
    """Returns where a probe of the driver would prove something now."""
    list_claims: Callable[[], Awaitable[None]]
    """Lists all claims again. Raises ClusterError."""
    changed: Callable[[], None]
    """Called when `ready` or `is_untested` of a fence changes."""


class _Test(Struct):
    """Time of the next probe of an untested fence."""

    pauses: Backoff = field(default_factory=lambda: Backoff(_TEST_AGAIN, _TEST_AGAIN_MOST))
    not_before: float = float("-inf")


class DriverFence:
    def __init__(self, context: Context, driver: str, shared: Shared) -> None:
        self._driver = driver
        self._context = context
        self._guard = context.guard("fence")
        self._shared = shared
        self._rules = shared.rules
        self._untested: _Test | None = None
        self._open_slices: set[str] = set()
        """Slices without the taint; used only if the cluster has no rules."""
        self._ready = False
        self._again = asyncio.Event()
        """Set when something must be repaired, whether or not the fence holds."""
        self._closed = asyncio.Event()
        """Set when no slice lacks the taint."""

    @property
    def ready(self) -> bool:
        return self._ready

    @property
    def is_untested(self) -> bool:
        """Return whether the fence holds, but without a probe that verified it."""
        return self._untested is not None

    # --- handlers ----------------------------------------------------------------------------------

    def rule_changed(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        assert self._rules is not None
        if self._rules.lost(self._driver, old, new):
            self._fall(f"the fence rule of {self._driver} is gone or changed")
        elif self._rules.asks_for_work(self._driver, new):
            self._again.set()

    def slice_changed(self, name: str, new: ResourceSlice | None) -> None:
        if new is None or is_fenced_slice(new):
            self._open_slices.discard(name)
            if not self._open_slices:
                self._closed.set()
        else:
            self._open_slices.add(name)
            self._closed.clear()
            self._fall(f"slice {name} of {self._driver} does not carry the fence taint")

    # --- keeping it up ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled. Raises LeadershipLost."""
        backoff = Backoff(first=0.2, most=_RETRY_MOST, uniform=lambda: 0.5)
        while True:
            self._again.clear()
            try:
                if not await self._raise_up():
                    continue
                self._set_ready(True)
                if self._rules is not None:
                    await self._rules.let_go(self._driver)
                backoff.reset()
                await self._rest()
            except Exception as error:
                if isinstance(error, ClusterError):
                    log.warning("fence of %s not as it should be yet: %s", self._driver, error)
                elif not self._guard.contains(self._driver, error):
                    raise
                await self._context.clock.sleep(backoff.next())

    async def _rest(self) -> None:
        """Wait until something must be repaired; test an untested fence. Raises ClusterError, LeadershipLost."""
        while self._untested is not None and not self._again.is_set():
            await wait_at_most(self._again, _TEST_AGAIN)
            if not self._again.is_set():
                await self._test(self._untested)
        await self._again.wait()

    async def _raise_up(self) -> bool:
        """Set up the fence. Returns whether it holds unchanged. Raises ClusterError, LeadershipLost."""
        self._set_untested(None)
        proven = False
        if self._rules is not None:
            await self._rules.put(self._driver)
            if self._again.is_set():
                return False
            if proven := self._rules.is_proven(self._driver):
                self._rules.hold(self._driver)
        elif self._open_slices:
            log.info("waiting for the fence taint in %d slices of %s", len(self._open_slices), self._driver)
            await self._closed.wait()
            self._again.clear()
        if not proven and not await self._prove():
            return False
        if not self._ready:
            await self._shared.list_claims()
        return not self._again.is_set()

    async def _prove(self) -> bool:
        """Wait for the quiet time, then probe. Returns whether it held and nothing changed meanwhile."""
        await wait_at_most(self._again, self._context.settings.fence.quiet_time)
        if self._again.is_set():
            return False
        outcome = await self._probe()
        if outcome in (Outcome.BROKEN, Outcome.UNSEEN):
            self._probe_failed(outcome)
            await self._context.clock.sleep(_PROBE_AGAIN)
            return False
        if self._again.is_set():
            return False
        if outcome is Outcome.HOLDS:
            await self._is_proven()
        else:
            log.info("the fence of %s holds untested: no device is free for a probe", self._driver)
            self._set_untested(_Test())
            if self._rules is not None:
                # A replaced rule may be released: kube-scheduler receives its deletion after the
                # new rule.
                self._rules.hold(self._driver)
        return not self._again.is_set()

    async def _probe(self) -> Outcome:
        if not self._context.settings.fence.probe:
            return Outcome.HOLDS
        slices = self._context.informers.slices.store
        if not any(item.spec.driver == self._driver and item.spec.devices for item in slices):
            return Outcome.UNTESTED
        return await self._shared.probe(self._driver)

    async def _is_proven(self) -> None:
        self._set_untested(None)
        if self._rules is not None:
            self._rules.hold(self._driver)
            await self._rules.note_proof(self._driver)

    async def _test(self, test: _Test) -> None:
        """Probe an untested fence, if a probe can prove something now."""
        if self._context.clock.monotonic() < test.not_before or self._shared.target(self._driver) is None:
            return
        outcome = await self._shared.probe(self._driver)
        if outcome is Outcome.HOLDS:
            await self._is_proven()
            if self._rules is not None:
                await self._rules.let_go(self._driver)
        elif outcome is Outcome.BROKEN:
            self._probe_failed(outcome)
        else:
            test.not_before = self._context.clock.monotonic() + test.pauses.next()

    def _probe_failed(self, outcome: Outcome) -> None:
        nothing = f"no device of {self._driver} is given out"
        if outcome is Outcome.BROKEN:
            note = (
                f"kube-scheduler allocated a device of {self._driver} although it is fenced: {nothing}. Check that "
                "kube-scheduler is of the API server's version and has the feature gates DRADeviceTaints and "
                "DRADeviceTaintRules on"
            )
        else:
            until = "the rule that is being deleted stays" if self._ready else nothing
            note = f"kube-scheduler has not looked at the probe pod of {self._driver}: {until} until it does"
        log.warning("%s", note)
        if self._rules is not None:
            self._rules.report(self._driver, messages.warning(messages.FENCE_BROKEN, note))
        if outcome is Outcome.BROKEN:
            self._fall(f"kube-scheduler does not heed the fence of {self._driver}")

    def _fall(self, why: str) -> None:
        if self._ready:
            log.warning("no device of %s is given out: %s", self._driver, why)
        self._set_ready(False)
        self._again.set()

    def _set_ready(self, ready: bool) -> None:
        if ready and self._again.is_set():
            return
        if ready != self._ready:
            self._ready = ready
            log.info("fence of %s %s", self._driver, "in force" if ready else "not in force")
            self._shared.changed()

    def _set_untested(self, test: _Test | None) -> None:
        self._untested = test
        self._shared.changed()
