"""Reports on ResourceQuotas: the annotation `hami.io/quota-used`, and events on unenforceable
quotas.

Run by the term while this process leads. In: the inventory's account, quotas as the informers have
them. Written: one guarded merge patch for each quota whose text has changed, all quotas at most
once in `Settings.quota_interval`, namespaces concurrently; a quota that could not be written is
left alone for a while. The annotation is never read: decisions depend only on the claims.

    hami.io/quota-used: '{"limits.nvidia.com/gpumem":"12288"}'
"""

import json
import logging
from collections import defaultdict
from functools import partial
from typing import Final

from controller.inventory import QuotaLine
from controller.reconcile.runtime import Context, messages, patches
from hami_dra.api import kinds, names
from hami_dra.api.core import ResourceQuota
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.lanes import Lanes
from hami_dra.kube.protocol import ClusterError, Conflict, Forbidden, NotFound

log = logging.getLogger(__name__)

_AT_ONCE: Final = 16
_PER_NAMESPACE: Final = 2
"""Concurrent writes of quotas, and those in one namespace."""
_RETRY_FIRST: Final = 5.0
_RETRY_MOST: Final = 300.0
"""Seconds for which an unwritable quota is left alone; doubles from the first to the second value."""


class QuotaNotes:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._guard = context.guard("quota notes")
        self._lanes = Lanes(_PER_NAMESPACE, _AT_ONCE)
        self._seen = (-1, -1)
        """Versions of the account and of the quotas for which all texts were last compared."""
        self._changes = 0
        self._forbidden: set[str] = set()
        self._retries: dict[str, Backoff] = {}
        """Quotas that could not be written. They are compared again at each check."""
        self._not_before: dict[str, float] = {}
        self._reported: dict[str, str] = {}

    def quota_changed(self, _old: ResourceQuota | None, _new: ResourceQuota | None) -> None:
        """Note that the annotation may have changed. Subscribed by the term."""
        self._changes += 1

    async def run(self) -> None:
        """Run until cancelled. Raises LeadershipLost, in an exception group."""
        async with self._lanes:
            while True:
                state = (self._context.inventory.quotas.version, self._changes)
                if state != self._seen or self._retries:
                    self._seen = state
                    self._report_problems()
                    self._write_all()
                await self._context.clock.sleep(self._context.settings.observability.quota_interval)

    def _report_problems(self) -> None:
        """Report each problem once, on its quota."""
        problems: dict[str, str] = {}
        for each in self._context.informers.quotas.store:
            with self._guard.each(each.key):
                if found := self._context.inventory.quotas.problem(each):
                    problems[each.key] = found
        for key, problem in problems.items():
            quota = self._context.informers.quotas.store.get(key)
            if quota is not None and self._reported.get(key) != problem:
                log.warning("ResourceQuota %s: %s", key, problem)
                self._context.events.report(
                    kinds.RESOURCE_QUOTA, quota, messages.warning(messages.QUOTA_NOT_ENFORCED, problem)
                )
        self._reported = problems

    def _write_all(self) -> None:
        """Write the quotas whose text has changed."""
        by_quota: defaultdict[str, list[QuotaLine]] = defaultdict(list)
        for line in self._context.inventory.quotas.lines():
            by_quota[f"{line.namespace}/{line.quota}"].append(line)
        quotas = self._context.informers.quotas.store
        self._forbidden.intersection_update(quotas.keys())
        for key in self._retries.keys() - quotas.keys():
            self._settled(key)
        now = self._context.clock.monotonic()
        for quota in sorted(quotas, key=lambda each: each.key):
            with self._guard.each(quota.key):
                text = text_of(by_quota[quota.key]) if quota.key in by_quota else None
                if quota.metadata.annotations.get(names.QUOTA_USED) == text:
                    self._settled(quota.key)
                elif now >= self._not_before.get(quota.key, now):
                    self._lanes.add(quota.metadata.namespace, quota.key, partial(self._try, quota.key, text))

    async def _try(self, key: str, text: str | None) -> None:
        settled = False
        with self._guard.each(key):
            quota = self._context.informers.quotas.store.get(key)
            if quota is None or quota.metadata.annotations.get(names.QUOTA_USED) == text:
                settled = True
            else:
                settled = await self._write(quota, text)
        if settled:
            self._settled(key)
        else:
            pause = self._retries.setdefault(key, Backoff(_RETRY_FIRST, _RETRY_MOST)).next()
            self._not_before[key] = self._context.clock.monotonic() + pause

    def _settled(self, key: str) -> None:
        self._retries.pop(key, None)
        self._not_before.pop(key, None)

    async def _write(self, quota: ResourceQuota, text: str | None) -> bool:
        """Return whether no retry is needed. Raises LeadershipLost."""
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
        self._context.informers.quotas.reflector.observe(written)
        return True


def text_of(found: list[QuotaLine]) -> str:
    """Return amounts as a quota writes them: numbers in the unit of the key, as strings."""
    return json.dumps({line.resource: str(line.used) for line in found}, sort_keys=True, separators=(",", ":"))


def patch_of(quota: ResourceQuota, text: str | None) -> dict[str, object]:
    """Return a guarded merge patch; None removes the annotation."""
    return {"metadata": {**patches.guard(quota), "annotations": {names.QUOTA_USED: text}}}
