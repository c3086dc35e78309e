"""Results of CEL selectors on devices, as columns that are filled on demand.

Read by the prefilter (rows of devices), by the search (one device) and for the drivers of the
devices that a claim may get. A verdict is evaluated once per expression and published device: a
device that a slice republishes is evaluated again, the others are not; devices that agree in
everything that the expression reads share one verdict. An expression that fails on a device counts
as "may match": the search visits the device and reports the error as Kubernetes would.

Evaluation may take long, and users write the expressions. So it happens under a `Budget`
(`within`), to which all time is reported and which may end it with an exception. Everything
evaluated by then is cached: the next call continues from there.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from controller.cluster.incremental.changes import Shared
from controller.cluster.incremental.derived_column import DerivedColumns
from controller.cluster.incremental.digests import digest_of_text
from controller.cluster.incremental.growth import grown
from controller.inventory.columns import DeviceColumns
from controller.inventory.model import Device
from controller.inventory.selector_budget import Budget, Payer, TimeMeter
from hami_dra.api.arrays import Bools, Codes, Positions
from hami_dra.cel import (
    KUBERNETES,
    CompileError,
    CostLimitExceeded,
    DeviceInput,
    EvaluationError,
    Limits,
    Selector,
    compile_selector,
)

KEPT: Final = 512
"""Expressions whose columns are cached, long ones counted several times, and sets of expressions
whose drivers are. When it is full, the namespace with the most loses its least recently used one.
"""
_LENGTH: Final = 256
"""Characters. An expression counts once more for each further multiple of this: compiled it takes
100 bytes per character.
"""
_READ_KEPT: Final = 1 << 13
"""Combinations of attributes and capacities cached for one expression, so that devices that agree
in them share a verdict.
"""
_MESSAGE_LENGTH: Final = 1_024
_LONG_KEY: Final = 1 << 10
"""Characters; longer combinations of expressions are stored as a digest."""

_UNKNOWN: Final = 0
_NO: Final = 1
_YES: Final = 2
_FIRST_ERROR: Final = 3
_OTHER_ERROR: Final = 255
"""An error beyond those whose messages are stored."""

_NO_ROWS: Final = np.zeros(0, dtype=np.intp)

_QUICK: Final = 0.001
_SLOW: Final = 0.004
"""Seconds between two readings of the clock: the number of devices that are evaluated in between
grows below the first and shrinks above the second.
"""


class Verdicts:
    def __init__(self, columns: DeviceColumns) -> None:
        self._columns = columns
        self._cache: Shared[Any] = Shared(KEPT)
        self._budget: Budget | None = None

    # -- who pays ----------------------------------------------------------------------------------

    @contextmanager
    def within(self, budget: Budget | None) -> Iterator[None]:
        """Put a budget in force. None: only Kubernetes' limit of a single evaluation."""
        before, self._budget = self._budget, budget
        try:
            yield
        finally:
            self._budget = before

    @property
    def budget(self) -> Budget | None:
        return self._budget

    def meter(self) -> TimeMeter | None:
        """Return a meter that starts now, of the budget in force."""
        return TimeMeter(self._budget) if self._budget is not None else None

    @property
    def account(self) -> str:
        """The account of the current budget; empty if there is none."""
        return self._budget.account if self._budget is not None else ""

    # -- reading -----------------------------------------------------------------------------------

    def matching(self, expression: str, rows: Positions | None = None, *, payer: Payer = Payer.CLAIM) -> Bools:
        """Return the expression's verdict on the devices in some rows, shape (len(rows),); free
        rows are False.

        None: all rows. Raises OverBudget, SliceSpent.
        """
        columns = self._columns
        if rows is None:
            rows = np.arange(columns.size)
        column = self._column(expression, payer)
        if isinstance(self._compiled(column, payer), CompileError):
            return columns.active[rows]
        codes = column.codes[rows]
        unknown = rows[(codes == _UNKNOWN) & columns.active[rows]]
        if unknown.size:
            self._learn(column, unknown, payer)
            codes = column.codes[rows]
        found: Bools = codes > _NO
        return found

    def failing(self, expression: str, *, payer: Payer = Payer.CLAIM) -> Positions:
        """Return the rows on which the expression was evaluated and failed."""
        column = self._column(expression, payer)
        return np.flatnonzero(column.codes >= _FIRST_ERROR) if column.has_failed else _NO_ROWS

    def selected(self, rows: Positions, expressions: Sequence[str], *, payer: Payer = Payer.CLAIM) -> Positions:
        """Return the rows that all expressions select. A row that one expression rejects is not
        tested by the next.

        Raises OverBudget, SliceSpent.
        """
        for expression in expressions:
            rows = rows[self.matching(expression, rows, payer=payer)]
        return rows

    def drivers(self, expressions: tuple[str, ...], of_class: tuple[str, ...] = ()) -> frozenset[str]:
        """Return the drivers of the devices that all expressions select, in use or not. `of_class`
        are evaluated first.

        Raises OverBudget, SliceSpent.
        """
        columns = self._columns
        cached: _Drivers = self._cache.get((_key(of_class), _key(expressions)), self.account, _Drivers)
        if cached.version != columns.structure.version:
            rows = np.flatnonzero(columns.active[: columns.size])
            rows = self.selected(rows, of_class, payer=Payer.CLASS)
            rows = self.selected(rows, expressions)
            # the driver is part of the kind, so one sample of each will do
            kinds = np.flatnonzero(np.bincount(columns.kind[rows], minlength=1))
            cached.names = frozenset(columns.kind_samples[kind].id.driver for kind in kinds)
            cached.version = columns.structure.version
        return cached.names

    # -- `allocation.selectors.Judge` --------------------------------------------------------------

    def compiled(self, expression: str, payer: Payer) -> Selector | CompileError:
        """Raises OverBudget, SliceSpent."""
        return self._compiled(self._column(expression, payer), payer)

    def test(self, expression: str, payer: Payer) -> Callable[[Device], bool]:
        """Return a function that tests whether a device matches. Valid until a device is published.

        Both may raise CompileError, EvaluationError, OverBudget, SliceSpent.
        """
        column = self._column(expression, payer)
        selector = self._compiled(column, payer)
        if isinstance(selector, CompileError):
            raise selector.with_traceback(None)
        devices, code_of = self._columns.devices, column.codes.item

        def matches(device: Device) -> bool:
            row = device.row
            code = code_of(row) if row >= 0 and devices[row] is device else _UNKNOWN
            return code == _YES or (code != _NO and self._matches(column, device, payer))

        return matches

    def _matches(self, column: "_Column", device: Device, payer: Payer) -> bool:
        """Evaluate where the column has no verdict. Raises EvaluationError, OverBudget, SliceSpent."""
        row = device.row
        if row < 0 or self._columns.devices[row] is not device:
            code = self._alone(column, device, payer)
        else:
            if column.codes[row] == _UNKNOWN:
                self._learn(column, np.array([row], dtype=np.intp), payer)
            code = int(column.codes[row])
        if code >= _FIRST_ERROR:
            in_haste = self._budget is not None and self._budget.limits is not KUBERNETES
            raise EvaluationError(column.message(code, None if in_haste else device))
        return code == _YES

    # -- evaluating --------------------------------------------------------------------------------

    def _column(self, expression: str, payer: Payer) -> "_Column":
        """Return the column, up to date: rows of new devices are unknown."""
        budget = self._budget
        mine = budget is not None and payer is Payer.CLAIM
        account = budget.account if budget is not None and mine else ""
        column: _Column = self._cache.get(
            expression, account, lambda: _Column(self._columns, expression), weight=1 + len(expression) // _LENGTH
        )
        column.refresh()
        return column

    def _compiled(self, column: "_Column", payer: Payer) -> Selector | CompileError:
        if column.selector is None:
            budget = self._budget
            if budget is None:
                return column.compile()
            budget.admit(column.expression, payer)
            before = budget.clock()
            column.compile()
            budget.charge(column.expression, payer, budget.clock() - before, done=0, left=0)
        assert column.selector is not None
        return column.selector

    def _learn(self, column: "_Column", rows: Positions, payer: Payer) -> None:
        """Evaluate unknown rows. Raises OverBudget, SliceSpent, after at least one row."""
        budget = self._budget
        device, codes = self._columns.device, column.codes
        pending = rows.tolist()
        if budget is None:
            for row in pending:
                codes[row] = column.code(device(row), KUBERNETES)
            return
        budget.admit(column.expression, payer)
        done, batch = 0, 1
        before = budget.clock()
        while done < len(pending):
            try:
                for row in pending[done : done + batch]:
                    codes[row] = column.code(device(row), budget.limits)
            except CostLimitExceeded as error:
                raise budget.too_expensive(column.expression, payer, budget.clock() - before) from error
            done = min(done + batch, len(pending))
            now = budget.clock()
            budget.charge(column.expression, payer, now - before, done=done, left=len(pending) - done)
            if now - before < _QUICK:
                batch *= 2
            elif now - before > _SLOW:
                batch = max(batch // 2, 1)
            before = now

    def _alone(self, column: "_Column", device: Device, payer: Payer) -> int:
        """Evaluate a device that is in no row."""
        budget = self._budget
        if budget is None:
            return column.code(device, KUBERNETES)
        budget.admit(column.expression, payer)
        before = budget.clock()
        try:
            code = column.code(device, budget.limits)
        except CostLimitExceeded as error:
            raise budget.too_expensive(column.expression, payer, budget.clock() - before) from error
        budget.charge(column.expression, payer, budget.clock() - before, done=1, left=0)
        return code


class _Drivers:
    def __init__(self) -> None:
        self.version = -1
        self.names: frozenset[str] = frozenset()


def _key(expressions: tuple[str, ...]) -> Hashable:
    if sum(map(len, expressions)) <= _LONG_KEY:
        return expressions
    return digest_of_text("\0".join(expressions))


class _Column(DerivedColumns):
    """One expression. `codes`, uint8 per device row: unknown, no, yes, or the number of an error message."""

    __slots__ = ("_columns", "_errors", "_known", "_names_read", "codes", "expression", "selector")

    def __init__(self, columns: DeviceColumns, expression: str) -> None:
        super().__init__(columns.structure)
        self._columns = columns
        self.expression = expression
        self.selector: Selector | CompileError | None = None
        """None until it is needed."""
        self.codes: Codes = np.zeros(0, dtype=np.uint8)
        self._errors: list[str] = []
        self._known: dict[Hashable, int] = {}
        """Values of the device that the expression reads → code."""
        self._names_read: dict[str, frozenset[str]] = {}

    def compile(self) -> Selector | CompileError:
        try:
            self.selector = compile_selector(self.expression)
        except CompileError as error:  # an error only once it is evaluated, as upstream
            self.selector = error
        return self.selector

    def _grow(self) -> int:
        if len(self.codes) < self._columns.size:
            self.codes = grown(self.codes, len(self._columns.active))
        return self._columns.size

    def _update(self, rows: Positions, /) -> None:
        """Forget the verdicts on rows whose device changed."""
        self.codes[rows] = _UNKNOWN

    def code(self, device: Device, limits: Limits) -> int:
        """Evaluate the expression. Raises CostLimitExceeded where `limits` are lower than those of Kubernetes."""
        selector = self.selector
        assert isinstance(selector, Selector)
        if not (selector.references.complete and device.readable):
            return self._evaluated(device.selector_input, limits)
        driver, spec = device.id.driver, device.spec
        names = self._names_read.get(driver)
        if names is None:
            names = self._names_read[driver] = _names_read(selector, driver)
        read = (driver, device.shared, *map(spec.attributes.get, names), *map(spec.capacity.get, names))
        code = self._known.get(read)
        if code is None:
            code = self._evaluated(device.selected_input(names), limits)
            if len(self._known) * (2 * len(names) + 4) >= _READ_KEPT:
                self._known.clear()
            self._known[read] = code
        return code

    @property
    def has_failed(self) -> bool:
        """Whether it failed on a device, which may be gone."""
        return bool(self._errors)

    def message(self, code: int, device: Device | None) -> str:
        """Return the error message. `device`: to evaluate it again if the message was not stored;
        None: there is no time.
        """
        if code != _OTHER_ERROR:
            return self._errors[code - _FIRST_ERROR]
        if device is None:
            return "the expression fails with a different error on each of many devices"
        assert isinstance(self.selector, Selector)
        try:
            self.selector.evaluate(device.selector_input)
        except EvaluationError as error:
            return str(error)
        raise AssertionError(f"{self.expression} failed on {device.id} before")

    def _evaluated(self, device: DeviceInput, limits: Limits) -> int:
        assert isinstance(self.selector, Selector)
        try:
            return _YES if self.selector.evaluate(device, limits) else _NO
        except CostLimitExceeded as error:
            if limits is not KUBERNETES:
                raise
            return self._error(str(error))
        except EvaluationError as error:
            return self._error(str(error))

    def _error(self, message: str) -> int:
        message = message[:_MESSAGE_LENGTH]
        if message not in self._errors:
            if len(self._errors) == _OTHER_ERROR - _FIRST_ERROR:
                return _OTHER_ERROR
            self._errors.append(message)
        return _FIRST_ERROR + self._errors.index(message)


def _names_read(selector: Selector, driver: str) -> frozenset[str]:
    """Return the names under which a device of that driver may publish what is read: names without
    a domain are the driver's.
    """
    named = selector.references.names
    return frozenset(
        [f"{domain}/{name}" for domain, name in named] + [name for domain, name in named if domain == driver]
    )
