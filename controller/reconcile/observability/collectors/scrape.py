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
from controller.settings.controller import ObservabilitySettings
from controller.views.overview import CardTable


class Scrape:
    """The computed metrics."""

    def __init__(
        self,
        metrics: Metrics,
        inventory: Inventory,
        informers: Informers,
        settings: ObservabilitySettings,
        *,
        now: Callable[[], datetime],
        leads: Callable[[], bool],
    ) -> None:
        self._leads = leads
        names, table = settings.legacy_metrics, CardTable(inventory)
        self._gauges: tuple[CardGauges | PodGauges, ...] = ()
        if settings.card_metrics:
            pods = PodGauges(table, informers.claims.store, informers.pod, names)
            informers.claims.subscribe(pods.claim_changed)
            self._gauges = CardGauges(table, names), pods
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
            for gauges in self._gauges:
                yield from gauges.blocks()


class _OfLeader(Collector):
    def __init__(self, inner: Collector, leads: Callable[[], bool]) -> None:
        self._inner = inner
        self._leads = leads

    def collect(self) -> Iterable[Metric]:
        return self._inner.collect() if self._leads() else ()
