"""Health of the controller itself: waiting pods, and the freshness of its copies of the cluster.

Registered by `scrape`. Labels: states of the queue, kinds of objects.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.reconcile.runtime import Informers, QueueStats, State
from hami_dra.api.times import elapsed

_STATES: Final[tuple[State, ...]] = ("ready", "no_room", "waiting")


class QueueFigures(Collector):
    """`queue`: of the present term, None while another replica leads. `now`: with a time zone."""

    def __init__(self, queue: Callable[[], QueueStats | None], now: Callable[[], datetime]) -> None:
        self._queue = queue
        self._now = now

    def collect(self) -> Iterator[Metric]:
        pods = GaugeMetricFamily(
            "hami_dra_pending_pods", f"Pods in the queue, by state: {', '.join(_STATES)}.", labels=["state"]
        )
        ages = GaugeMetricFamily(
            "hami_dra_pending_pod_oldest_seconds",
            "Age of the oldest pod in the queue in seconds, by state; 0 if there is none.",
            labels=["state"],
        )
        queue = self._queue()
        if queue is not None:
            now = self._now()
            counts, oldest = queue.waiting()
            for state in _STATES:
                pods.add_metric([state], counts.get(state, 0))
                ages.add_metric([state], (elapsed(oldest.get(state), now) or timedelta()).total_seconds())
        yield from (pods, ages)


class WatchFigures(Collector):
    def __init__(self, informers: Informers) -> None:
        self._informers = informers

    def collect(self) -> Iterator[Metric]:
        labels = ["resource"]
        age = GaugeMetricFamily(
            "hami_dra_watch_age_seconds",
            "Seconds since the API server last sent anything about a kind, including bookmarks (about once a minute).",
            labels=labels,
        )
        objects = GaugeMetricFamily("hami_dra_watched_objects", "Objects in the local copy.", labels=labels)
        unreadable = GaugeMetricFamily(
            "hami_dra_unreadable_objects",
            "Objects that cannot be read completely: the log names them, and all others count as usual.",
            labels=labels,
        )
        lists = CounterMetricFamily("hami_dra_watch_lists", "Complete lists of a kind.", labels=labels)
        failures = CounterMetricFamily("hami_dra_watch_failures", "Lists and watches that failed.", labels=labels)
        for feed in self._informers.feeds():
            name = [feed.kind.resource]
            age.add_metric(name, feed.reflector.silence)
            objects.add_metric(name, len(feed.store))
            unreadable.add_metric(name, len(feed.reflector.unreadable))
            lists.add_metric(name, feed.reflector.lists)
            failures.add_metric(name, feed.reflector.failures)
        yield from (age, objects, unreadable, lists, failures)
