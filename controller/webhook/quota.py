"""Immediate refusal of pods that can never fit a quota of their namespace, as HAMi's webhook does.

Called by `controller.webhook.admission` for pods that it converted. HAMi's rule
(pkg/scheduler/webhook.go, fitResourceQuota): compare the pod's request with the limit itself,
regardless of usage. Amounts that are known only once a card is chosen count as 0. Here the amounts
are those of the converted request, which is what the pod's claim will take: the larger of init and
app containers, plus sidecars. If quotas cannot be read, the pod is admitted: the controller checks
every card against them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from controller.inventory import is_guarantee, limits_of
from controller.webhook.request import ConvertedRequest
from hami_dra.api import kinds
from hami_dra.api.core import ResourceQuota
from hami_dra.kube.protocol import Cluster, ClusterError
from hami_dra.vendors.registry import plugin_of

log = logging.getLogger(__name__)

FRESH: Final = 1.0
"""Seconds for which the quotas of a namespace are cached."""
_PAUSE: Final = 30.0
"""Seconds to wait before reading quotas again after a failure."""
_PATIENCE: Final = 2.0
_NAMESPACES_KEPT: Final = 1024


def excesses(request: ConvertedRequest, quotas: Iterable[ResourceQuota]) -> tuple[str, ...]:
    """Return a text for each key of the quotas that the request alone exceeds: it can never be met."""
    asked = least_of(request)
    found = []
    for quota in sorted(quotas, key=lambda each: each.metadata.name):
        for limit in () if is_guarantee(quota) else limits_of(quota)[0]:
            name = limit.name
            wanted = asked[name.resource]
            if wanted > limit.grains:
                found.append(
                    f"exceeding resource quota: ResourceQuota {limit.quota} allows {name.figure(limit.grains // name.per_unit)} "
                    f"of {name.key} in this namespace, and the pod asks for {name.in_units(wanted)}; it would never run: "
                    "ask for less, or have the quota raised"
                )
    return tuple(found)


def least_of(request: ConvertedRequest) -> Counter[str]:
    """Return resource → grains that the request takes at least, for any choice of alternatives and cards."""
    total: Counter[str] = Counter()
    for named in request.requests:
        quotas = plugin_of(named.vendor).legacy.quotas
        choices = [
            quotas.at_least(each.count, each.capacity, each.memory_percent, exact=each.exact, model=each.model)
            for each in named.choices
        ]
        shared = set(choices[0]).intersection(*choices)
        total.update({resource: min(choice[resource] for choice in choices) for resource in shared})
    return total


@dataclass(slots=True)
class QuotaReader:
    """Read quotas, at most `FRESH` seconds old. Never raises: those that cannot be read limit nothing here."""

    cluster: Cluster
    clock: Callable[[], float]
    _kept: dict[str, tuple[float, Sequence[ResourceQuota]]] = field(default_factory=dict, init=False)

    async def read(self, namespace: str) -> Sequence[ResourceQuota]:
        now = self.clock()
        until, quotas = self._kept.get(namespace, (float("-inf"), ()))
        if now < until:
            return quotas
        until = now + FRESH
        try:
            async with asyncio.timeout(_PATIENCE):
                quotas = (await self.cluster.list(kinds.RESOURCE_QUOTA, namespace=namespace)).items
        except (ClusterError, TimeoutError) as error:
            log.warning(
                "namespace %s: quotas are not checked at admission: %s", namespace, error or "no answer in time"
            )
            until, quotas = now + _PAUSE, ()
        while len(self._kept) >= _NAMESPACES_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept.pop(namespace, None)
        self._kept[namespace] = until, quotas
        return quotas
