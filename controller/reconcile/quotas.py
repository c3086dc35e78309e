"""What users see on their ResourceQuotas: the annotation `hami.io/quota-used`, and an event where a quota cannot be enforced.

Run by the term while this process leads. In: the inventory's account, quotas as the world has them. Written: one guarded
merge patch for each quota whose text is no longer true, all quotas at most once in `Settings.quota_interval`. Nothing reads the
annotation back: whatever stands there, a decision goes by the claims.

    hami.io/quota-used: '{"limits.nvidia.com/gpumem":"12288"}'
"""

import json
import logging
from collections import defaultdict

from controller.quota.model import QuotaLine, lines
from controller.reconcile import messages
from controller.reconcile.context import Context
from hami_dra.api import kinds, names
from hami_dra.api.core import ResourceQuota
from hami_dra.cluster.protocol import ClusterError, Conflict, Forbidden, NotFound

log = logging.getLogger(__name__)


class QuotaNotes:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._guard = context.guard("quota notes")
        self._written = (-1, -1)
        self._forbidden: set[str] = set()
        self._changes = 0
        self._told: dict[str, str] = {}

    def quota_changed(self, _old: ResourceQuota | None, _new: ResourceQuota | None) -> None:
        """Subscribed by the term: somebody may have changed the annotation."""
        self._changes += 1

    async def run(self) -> None:
        """Until cancelled. Raises LeadershipLost."""
        while True:
            state = (self._context.inventory.quotas.version, self._changes)
            if state != self._written:
                self._tell_problems()
                if await self._write_all():
                    self._written = state
            await self._context.clock.sleep(self._context.settings.quota_interval)

    def _tell_problems(self) -> None:
        """Each once, on the quota that it is about."""
        problems: dict[str, str] = {}
        for each in self._context.world.quotas.store:
            with self._guard.each(each.key):
                if found := self._context.inventory.quotas.problem(each):
                    problems[each.key] = found
        for key, problem in problems.items():
            quota = self._context.world.quotas.store.get(key)
            if quota is not None and self._told.get(key) != problem:
                log.warning("ResourceQuota %s: %s", key, problem)
                self._context.events.tell(
                    kinds.RESOURCE_QUOTA, quota, messages.warning(messages.QUOTA_NOT_ENFORCED, problem)
                )
        self._told = problems

    async def _write_all(self) -> bool:
        """Whether nothing is left to be tried again."""
        by_quota: defaultdict[str, list[QuotaLine]] = defaultdict(list)
        for line in lines(self._context.inventory):
            by_quota[f"{line.namespace}/{line.quota}"].append(line)
        done = True
        self._forbidden.intersection_update(self._context.world.quotas.store.keys())
        for quota in sorted(self._context.world.quotas.store, key=lambda each: each.key):
            with self._guard.each(quota.key):
                text = text_of(by_quota[quota.key]) if quota.key in by_quota else None
                if quota.metadata.annotations.get(names.QUOTA_USED) != text:
                    done &= await self._write(quota, text)
        return done

    async def _write(self, quota: ResourceQuota, text: str | None) -> bool:
        meta = quota.metadata
        try:
            written = await self._context.writer.patch(
                kinds.RESOURCE_QUOTA, meta.name, patch_of(quota, text), namespace=meta.namespace
            )
        except NotFound:
            return True
        except Forbidden as error:
            if quota.key not in self._forbidden:
                self._forbidden.add(quota.key)
                log.warning("ResourceQuota %s: its usage cannot be written: %s", quota.key, error)
            return True
        except ClusterError as error:
            level = logging.DEBUG if isinstance(error, Conflict) else logging.INFO
            log.log(level, "ResourceQuota %s: its usage is not written yet: %s", quota.key, error)
            return False
        self._context.world.quotas.reflector.observe(written)
        return True


def text_of(found: list[QuotaLine]) -> str:
    """As a quota writes amounts: numbers in the unit of the key, as strings."""
    return json.dumps({line.resource: str(line.used) for line in found}, sort_keys=True, separators=(",", ":"))


def patch_of(quota: ResourceQuota, text: str | None) -> dict[str, object]:
    """Guarded merge patch; None takes the annotation away."""
    meta = quota.metadata
    guard = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    return {"metadata": {**guard, "annotations": {names.QUOTA_USED: text}}}
