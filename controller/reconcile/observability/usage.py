"""Amounts of devices in use, regardless of who allocated them, from the ledger at scrape time.

Registered by `collectors.scrape`, in either mode.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controller.cluster.incremental import MOST
from controller.inventory import Amount, DeviceId, DeviceUsage


class UsageCollector(Collector):
    def __init__(self, uses: Callable[[], Mapping[DeviceId, DeviceUsage]]) -> None:
        self._uses = uses

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Describe the metrics. Labels are drivers and their capacities: few, and none before the first allocation."""
        yield GaugeMetricFamily(
            "hami_dra_devices_in_use",
            "Number of devices with at least one allocation, regardless of who made it.",
            labels=["driver"],
        )
        yield GaugeMetricFamily(
            "hami_dra_allocated_capacity",
            "Capacity consumed by shares of devices, in the capacity's unit (memory: bytes).",
            labels=["driver", "capacity"],
        )

    def collect(self) -> Iterator[GaugeMetricFamily]:
        devices: Counter[str] = Counter()
        amounts: defaultdict[tuple[str, str], Amount] = defaultdict(int)
        for device, use in self._uses().items():
            devices[device.driver] += 1
            for capacity, amount in use.consumed.items():
                amounts[device.driver, capacity] += amount
        in_use, allocated = self.describe()
        for driver, count in sorted(devices.items()):
            in_use.add_metric([driver], count)
        for (driver, capacity), amount in sorted(amounts.items()):
            allocated.add_metric([driver, capacity], float(min(amount, MOST)))
        yield in_use
        yield allocated
