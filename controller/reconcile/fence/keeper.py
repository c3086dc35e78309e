"""The fence's DeviceTaintRules in the cluster: found, repaired, created, and released when
replaced.

Called by `fence`, which decides what holds; this module makes no such decision and knows no quiet
time. For each managed driver `chosen` is the rule that is to stay, proven or not yet; `holding` is
the one that is known to hold, written by `fence`. They differ while the holding rule is being
deleted and its successor is being proven.
"""

import logging
from dataclasses import dataclass, field

from controller.reconcile.fence import rules
from controller.reconcile.runtime import Context, Informer, messages, patches
from hami_dra.api import names
from hami_dra.api.resource import DeviceTaintRule
from hami_dra.kube.protocol import AlreadyExists, NotFound

log = logging.getLogger(__name__)


@dataclass(eq=False)
class FenceKeeper:
    context: Context
    feed: Informer[DeviceTaintRule]
    chosen: dict[str, DeviceTaintRule] = field(default_factory=dict)
    holding: dict[str, DeviceTaintRule] = field(default_factory=dict)

    def lost(self, driver: str, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> bool:
        """Return whether this change took the driver's rule out of force; it is then removed from `holding`."""
        rule = new or old
        assert rule is not None
        held = self.holding.get(driver)
        if held is None or held.key != rule.key or _still_holds(held, new, driver):
            return False
        del self.holding[driver]
        return True

    def asks_for_work(self, driver: str, new: DeviceTaintRule | None) -> bool:
        """Return whether `put` or `let_go` has something to do after this change of a driver's rule."""
        return new is None or not rules.is_kept(new, driver)

    def may_let_go(self, rule: DeviceTaintRule | None) -> bool:
        """Return whether the rule is a fence being deleted that only waits for our release."""
        return rule is not None and rules.is_fence_rule(rule) and rules.waits_for_release(rule)

    # --- the rule that is to stay -----------------------------------------------------------------

    def is_proven(self, driver: str) -> bool:
        return rules.is_proven(self.chosen[driver])

    def hold(self, driver: str) -> None:
        self.holding[driver] = self.chosen[driver]

    async def note_proof(self, driver: str) -> None:
        rule = self.chosen[driver]
        patch = {"metadata": {"uid": rule.metadata.uid, "annotations": {names.FENCE_PROVEN: rules.proof(rule)}}}
        await self._patch(driver, rule, patch)

    def report(self, driver: str, message: messages.Message) -> None:
        self.context.events.report(self.feed.kind, self.chosen[driver], message, "Fence")

    async def put(self, driver: str) -> None:
        """Create or repair the driver's rule. Raises ClusterError, LeadershipLost."""
        present = rules.rules_of(driver, self.feed.store.get)
        stays = [rule for rule in present if rule.metadata.deletion_timestamp is None]
        if not stays:
            await self._make(driver, present)
            return
        # Of two intact rules, the one that holds already; else the best.
        found = next(
            (rule for rule in stays if rules.is_intact(rule, driver) and self._is_holding(rule, driver)), stays[0]
        )
        if rules.is_kept(found, driver):
            self.chosen[driver] = found
            return
        await self._patch(driver, found, rules.restored(found, driver))
        if not rules.is_intact(found, driver):
            self._report_restored(driver, self.chosen[driver], "was changed and was put right")

    async def _make(self, driver: str, leaving: list[DeviceTaintRule]) -> None:
        """Create a rule under a free name. `leaving`: rules that are being deleted."""
        known = driver in self.chosen
        taken = {rule.metadata.name for rule in leaving}
        name = next((name for name in rules.rule_names(driver) if name not in taken), "")
        if not name:
            # The successor is being deleted, too: release it, and the other one stays in force
            # meanwhile.
            name = self._to_give_up(driver, leaving).metadata.name
            await self._release(name)
        try:
            rule = await self.context.writer.create(self.feed.kind, rules.rule_body(driver, name))
        except AlreadyExists:
            await self.feed.reflector.relist()
            raise
        self._know(driver, rule)
        kept = next((each for each in leaving if each.metadata.name != name and rules.is_in_force(each, driver)), None)
        if kept is not None:
            what = f"is being deleted: it stays in force until {name}, which takes its place, is proven"
            self._report_restored(driver, kept, what)
        elif known or leaving:
            self._report_restored(driver, rule, "was gone and was put back")
        else:
            log.info("fence rule for %s made", driver)

    def _to_give_up(self, driver: str, leaving: list[DeviceTaintRule]) -> DeviceTaintRule:
        """Return the rule to release: not the one that holds; else the younger, known for a shorter time."""
        return max(
            leaving, key=lambda rule: (not self._is_holding(rule, driver), rule.metadata.creation_timestamp or "")
        )

    # --- the rules that go ------------------------------------------------------------------------

    async def let_go(self, driver: str) -> None:
        """Release deleted rules of the driver, empty: of unmanaged ones. Raises ClusterError, LeadershipLost."""
        held = self.holding.get(driver)
        for rule in list(self.feed.store):
            is_its = (rules.driver_of(rule.metadata.name, self.context.settings.drivers.managed) or "") == driver
            if is_its and self.may_let_go(rule) and (held is None or held.metadata.uid != rule.metadata.uid):
                await self._release(rule.metadata.name)
                log.info("fence rule %s let go", rule.metadata.name)

    async def _release(self, name: str) -> None:
        rule = self.feed.store.get(name)
        if rule is None or not rules.waits_for_release(rule):
            return
        try:
            await self.context.writer.patch(self.feed.kind, name, rules.released(rule))
        except NotFound:
            return

    # --- both -------------------------------------------------------------------------------------

    def _is_holding(self, rule: DeviceTaintRule, driver: str) -> bool:
        return driver in self.holding and self.holding[driver].metadata.uid == rule.metadata.uid

    async def _patch(self, driver: str, rule: DeviceTaintRule, patch: patches.Json) -> None:
        self._know(driver, await self.context.writer.patch(self.feed.kind, rule.metadata.name, patch))

    def _know(self, driver: str, rule: DeviceTaintRule) -> None:
        self.chosen[driver] = rule
        self.feed.reflector.observe(rule)

    def _report_restored(self, driver: str, rule: DeviceTaintRule, what: str) -> None:
        self.context.metrics.fence_restored.labels(driver).inc()
        note = f"the rule that keeps kube-scheduler off the devices of {driver} {what}"
        log.warning("%s", note)
        self.context.events.report(self.feed.kind, rule, messages.warning(messages.FENCE_RESTORED, note), "Fence")


def _still_holds(holding: DeviceTaintRule, now: DeviceTaintRule | None, driver: str) -> bool:
    """Return whether the rule is the proven one. A deletion request changes its generation, not its effect."""
    if now is None or now.metadata.uid != holding.metadata.uid or not rules.is_in_force(now, driver):
        return False
    return now.metadata.deletion_timestamp is not None or now.metadata.generation == holding.metadata.generation
