"""Which devices a CEL selector selects, as a column; evaluated once per expression and published device.

Asked by the prefilter. A device that a slice republishes is evaluated again, the others are not; devices that agree in all
that the expression reads share one verdict. An expression that fails on a device counts as "may match": the search visits
the device and reports the error as Kubernetes would.
"""

from collections.abc import Hashable
from typing import Final

import numpy as np

from controller.inventory.changes import Recent
from controller.inventory.columns import Bools, DeviceColumns, grown
from controller.inventory.model import Device
from hami_dra.cel import CompileError, DeviceInput, EvaluationError, Features, Selector, compile_selector

KEPT: Final = 256
"""Expressions whose columns are kept, least recently used out first."""
_VERDICTS_KEPT: Final = 1 << 14
"""Of one expression, on devices that differ in what it reads."""


class Verdicts:
    def __init__(self, columns: DeviceColumns) -> None:
        self._columns = columns
        self._kept: Recent[_Column] = Recent(KEPT)
        self._drivers: Recent[_Drivers] = Recent(KEPT)

    def matching(self, expression: str, *, list_attributes: bool = False) -> Bools:
        """Shape (size,): what the expression says of each active row; rows that are free are False. Do not change it."""
        column = self._kept.get(
            (expression, list_attributes), lambda: _Column(_compiled(expression, list_attributes=list_attributes))
        )
        return column.refreshed(self._columns)

    def drivers(self, expressions: tuple[str, ...], *, list_attributes: bool = False) -> frozenset[str]:
        """Drivers of the devices that all expressions select, in use or not."""
        columns = self._columns
        kept = self._drivers.get((expressions, list_attributes), _Drivers)
        if kept.version != columns.structure.version:
            chosen = columns.active[: columns.size].copy()
            for expression in expressions:
                chosen &= self.matching(expression, list_attributes=list_attributes)
            # the driver is part of the kind, so one sample of each will do
            kinds = np.flatnonzero(np.bincount(columns.kind[: columns.size][chosen], minlength=1))
            kept.names = frozenset(columns.kind_samples[kind].id.driver for kind in kinds)
            kept.version = columns.structure.version
        return kept.names


class _Drivers:
    def __init__(self) -> None:
        self.version = -1
        self.names: frozenset[str] = frozenset()


def _compiled(expression: str, *, list_attributes: bool) -> Selector | None:
    """None where it does not compile: that is an error only once it is evaluated, as upstream."""
    try:
        return compile_selector(expression, features=Features(list_type_attributes=list_attributes))
    except CompileError:
        return None


class _Column:
    def __init__(self, selector: Selector | None) -> None:
        self._selector = selector
        self._version = -1
        self._values: Bools = np.zeros(0, dtype=np.bool_)
        self._known: dict[Hashable, bool] = {}
        self._names_read: dict[str, frozenset[str]] = {}

    def refreshed(self, columns: DeviceColumns) -> Bools:
        if self._version != columns.structure.version:
            changed = None if self._version < 0 else columns.structure.since(self._version)
            if len(self._values) < columns.size:
                self._values = grown(self._values, len(columns.active))
            for row in range(columns.size) if changed is None else changed.tolist():
                self._values[row] = columns.active[row] and self._verdict(columns.device(row))
            self._version = columns.structure.version
        return self._values[: columns.size]

    def _verdict(self, device: Device) -> bool:
        selector = self._selector
        if selector is None:
            return True
        if not (selector.references.complete and device.readable):
            return _evaluated(selector, device.selector_input)
        driver, spec = device.id.driver, device.spec
        names = self._names_read.get(driver)
        if names is None:
            names = self._names_read[driver] = _names_read(selector, driver)
        read = (driver, device.shared, *map(spec.attributes.get, names), *map(spec.capacity.get, names))
        verdict = self._known.get(read)
        if verdict is None:
            if len(self._known) >= _VERDICTS_KEPT:
                self._known.clear()
            verdict = self._known[read] = _evaluated(selector, device.selected_input(names))
        return verdict


def _evaluated(selector: Selector, device: DeviceInput) -> bool:
    try:
        return selector.evaluate(device)
    except EvaluationError:
        return True


def _names_read(selector: Selector, driver: str) -> frozenset[str]:
    """Attributes and capacities as a device of that driver may publish them: without a domain they are the driver's."""
    named = selector.references.names
    return frozenset(
        [f"{domain}/{name}" for domain, name in named] + [name for domain, name in named if domain == driver]
    )
