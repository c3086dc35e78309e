"""Families of samples for Prometheus, from tables. Used by the collectors of the node driver.

A value that is not reported (None) has no sample.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Subject = TypeVar("Subject")

Sample = tuple[Sequence[str], float | None]
"""Values of the labels, and the value."""


class Column(Struct, Generic[Subject], frozen=True):
    """A metric of which each subject has one sample."""

    name: str
    text: str
    value: Callable[[Subject], float | None]


def gauge(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), samples)


def counter(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), samples)


def gauges(
    columns: Iterable[Column[Subject]], labels: Sequence[str], subjects: Sequence[tuple[Sequence[str], Subject]]
) -> Iterable[Metric]:
    """Yield a family for each column. `subjects`: with the values of their labels."""
    for column in columns:
        yield gauge(column.name, column.text, labels, ((values, column.value(each)) for values, each in subjects))


def _filled(family: GaugeMetricFamily | CounterMetricFamily, samples: Iterable[Sample]) -> Metric:
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    return family
