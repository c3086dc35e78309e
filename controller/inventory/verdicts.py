"""Which devices a CEL selector selects, as a column; evaluated once per expression and published device.

Asked by the prefilter. A device that a slice republishes is evaluated again, the others are not. An expression that fails
on a device counts as "may match": the search visits the device and reports the error as Kubernetes would.
"""

from collections import OrderedDict
from typing import Final

import numpy as np

from controller.inventory.columns import Bools, DeviceColumns
from hami_dra.cel import CompileError, EvaluationError, Features, Selector, compile_selector

KEPT: Final = 256
"""Expressions whose columns are kept, least recently used out first."""


class Verdicts:
    def __init__(self, columns: DeviceColumns) -> None:
        self._columns = columns
        self._kept: OrderedDict[tuple[str, bool], _Column] = OrderedDict()
        self._drivers: OrderedDict[tuple[tuple[str, ...], bool], tuple[int, frozenset[str]]] = OrderedDict()

    def matching(self, expression: str, *, list_attributes: bool = False) -> Bools:
        """Shape (size,): what the expression says of each active row; rows that are free are False. Do not change it."""
        key = (expression, list_attributes)
        column = self._kept.get(key)
        if column is None:
            column = self._kept[key] = _Column(_compiled(expression, list_attributes=list_attributes))
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return column.refreshed(self._columns)

    def drivers(self, expressions: tuple[str, ...], *, list_attributes: bool = False) -> frozenset[str]:
        """Drivers of the devices that all expressions select, in use or not."""
        columns = self._columns
        key = (expressions, list_attributes)
        version, found = self._drivers.get(key, (-1, frozenset[str]()))
        if version != columns.structure.version:
            chosen = columns.active[: columns.size].copy()
            for expression in expressions:
                chosen &= self.matching(expression, list_attributes=list_attributes)
            # the driver is part of the kind, so one sample of each will do
            kinds = np.flatnonzero(np.bincount(columns.kind[: columns.size][chosen], minlength=1))
            found = frozenset(columns.kind_samples[kind].id.driver for kind in kinds)
            self._drivers[key] = (columns.structure.version, found)
            if len(self._drivers) > KEPT:
                self._drivers.popitem(last=False)
        return found


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

    def refreshed(self, columns: DeviceColumns) -> Bools:
        if self._version != columns.structure.version:
            changed = None if self._version < 0 else columns.structure.since(self._version)
            if len(self._values) < columns.size:
                fresh = np.zeros(len(columns.active), dtype=np.bool_)
                fresh[: len(self._values)] = self._values
                self._values = fresh
            for row in np.arange(columns.size) if changed is None else changed:
                self._values[row] = columns.active[row] and self._verdict(columns, int(row))
            self._version = columns.structure.version
        return self._values[: columns.size]

    def _verdict(self, columns: DeviceColumns, row: int) -> bool:
        if self._selector is None:
            return True
        try:
            return self._selector.evaluate(columns.device(row).selector_input)
        except EvaluationError:
            return True
