"""The metrics of the node driver for Prometheus, and the timing of kubelet's calls.

One object per process, with its own registry. The labels here have few values: drivers, kinds of
failure, results; never a pod, claim or device. Readings of cards, and the shares of their tenants,
are collected by `hardware_metrics`.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from hami_dra.api.legacy_metrics import NameSet
from hami_dra.driver.kubelet.protocol import ClaimRef, Preparation, PreparedDevice
from hami_dra.driver.node.hardware_metrics import HardwareCollector, MonitoredVendor

_BUCKETS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 45.0)


class DriverMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"hami_dra_driver_{name}", text, ["driver", *labels], registry=self.registry)

        self.cards = gauge("cards", "Cards found, including those lost since.")
        self.faulty = gauge("faulty_cards", "Cards with a fault, by kind of failure.", "kind")
        self.cordoned = gauge("cordoned_cards", "Cards taken out of service by an operator.")
        self.devices = gauge("devices", "Devices offered in the node's slices.")
        self.registered = gauge("registered", "1 while the driver is registered with kubelet.")
        self.readings_failed = gauge("readings_failed", "Failed readings of the hardware since the start.")
        self.internal_errors = Counter(
            "hami_dra_driver_internal_errors",
            "Unexpected errors on single objects, by loop: the object was logged and skipped, the loop continued.",
            ["loop"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "hami_dra_driver_claim_seconds", "Duration of kubelet's calls, by call: prepare, unprepare.",
            ["driver", "call"], buckets=_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.claims = Counter(
            "hami_dra_driver_claims", "Claims of kubelet's calls, by call and result: done, refused.",
            ["driver", "call", "result"], registry=self.registry,
        )  # fmt: skip
        self.leftovers = Counter(
            "hami_dra_driver_leftover_partitions",
            "Partitions that a container runtime left behind, by result: removed, failed.",
            ["driver", "result"],
            registry=self.registry,
        )

    def begin(self) -> None:
        """Initialise counters at 0; called by the driver at start. Otherwise the first increment would go unnoticed."""
        for loop in ("events", "offers", "watch claims", "watch node", "watch own slices", "writes"):
            self.internal_errors.labels(loop)

    def internal_error(self, loop: str) -> None:
        self.internal_errors.labels(loop).inc()

    def watch(
        self, node: str, watched: Callable[[], Iterable[MonitoredVendor]], also: Collection[NameSet] = ()
    ) -> None:
        """Export the readings of cards and containers; `watched` is called at each scrape. Call once."""
        self.registry.register(HardwareCollector(node, watched, also))


class Metered:
    """A `Preparation` with metrics. `now`: monotonic seconds."""

    def __init__(
        self, inner: Preparation, metrics: DriverMetrics, driver: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._inner = inner
        self._metrics = metrics
        self._driver = driver
        self._now = now
        for call in ("prepare", "unprepare"):
            for result in ("done", "refused"):
                metrics.claims.labels(driver, call, result)

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        begun = self._now()
        answers = await self._inner.prepare(claims)
        self._count("prepare", begun, [isinstance(answer, str) for answer in answers.values()])
        return answers

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        begun = self._now()
        answers = await self._inner.unprepare(claims)
        self._count("unprepare", begun, [bool(answer) for answer in answers.values()])
        return answers

    def _count(self, call: str, begun: float, refused: Sequence[bool]) -> None:
        self._metrics.seconds.labels(self._driver, call).observe(self._now() - begun)
        for each in refused:
            self._metrics.claims.labels(self._driver, call, "refused" if each else "done").inc()
