"""Assembles the computed part of /metrics: registers the collectors, renders cards and pods.

Created by the controller once it is in sync. Only the leader reports figures of the cluster, so
that sums over all replicas are right. Without a leader nothing reports them.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from controller.inventory import Inventory
from controller.reconcile.observability.collectors.cards import CardGauges
from controller.reconcile.observability.collectors.figures import PackingFigures, QuotaFigures, VanishedFigures
from controller.reconcile.observability.collectors.pods import PodGauges
from controller.reconcile.observability.collectors.running import QueueFigures, WatchFigures
from controller.reconcile.observability.usage import UsageCollector
from controller.reconcile.runtime import Informers, Metrics
from controller.views.overview import CardTable
from hami_dra.api.legacy_metrics import NameSet


class Scrape:
    """The computed metrics. `cards`: whether cards and pods have series of their own."""

    def __init__(
        self,
        metrics: Metrics,
        inventory: Inventory,
        informers: Informers,
        now: Callable[[], datetime],
        leads: Callable[[], bool],
        *,
        cards: bool = True,
        also: Iterable[NameSet] = (),
    ) -> None:
        self._leads = leads
        names = frozenset(also)
        table = CardTable(inventory)
        self._cards = CardGauges(table, names) if cards else None
        self._pods = PodGauges(table, informers.claims.store, informers.pod, names) if cards else None
        if self._pods is not None:
            informers.claims.subscribe(self._pods.claim_changed)
        metrics.registry.register(WatchFigures(informers))
        metrics.registry.register(QueueFigures(lambda: metrics.queue, now))
        for collector in (
            PackingFigures(table),
            VanishedFigures(table),
            UsageCollector(inventory.usage.uses),
            QuotaFigures(inventory, names),
        ):
            metrics.registry.register(_OfLeader(collector, leads))

    def blocks(self) -> Iterator[str]:
        """Yield the text after the registry's, in pieces of a few milliseconds."""
        if self._leads():
            for gauges in (self._cards, self._pods):
                if gauges is not None:
                    yield from gauges.blocks()


class _OfLeader(Collector):
    def __init__(self, inner: Collector, leads: Callable[[], bool]) -> None:
        self._inner = inner
        self._leads = leads

    def collect(self) -> Iterable[Metric]:
        return self._inner.collect() if self._leads() else ()
