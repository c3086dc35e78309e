"""The cost of an evaluation, as Kubernetes counts it, and a bound on the memory that it may take.

Costs are those of cel-go (interpreter/runtimecost.go, common/cost.go) with Kubernetes' prices for
its own functions (apiserver pkg/cel/library/cost.go). Kubernetes stops an evaluation that costs
more than a million; so does this module, with the same error. Two bounds of our own are added, both
far above what legitimate expressions reach within the cost limit. `Meter.allocate` bounds what one
evaluation may build, because Kubernetes prices some functions (replace, format, join, list
concatenation) regardless of the size of their results. `Meter.work` bounds steps that cost next to
nothing there but take time here. All three bounds are in `Limits`: callers with less time than
Kubernetes allows pass smaller ones.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from hami_dra.cel.errors import CostExceeded
from hami_dra.cel.values import MISSING, Optional

COST_LIMIT: Final = 1_000_000
ALLOCATION_LIMIT: Final = 8_000_000  # list elements and characters
WORK_LIMIT: Final = 200_000  # steps through lists, maps and patterns

LIST: Final = 10
_PER_CHARACTER: Final = 0.1
_PER_PATTERN_CHARACTER: Final = 0.25

CostFunction = Callable[[Sequence[Any]], int]
"""Returns the price of a call for its arguments; paid before the code runs."""


class Limits(Struct, frozen=True):
    """Limits of one evaluation, which ends with `CostExceeded` beyond them.

    They are counts, so results are equal on every machine.
    """

    cost: int = COST_LIMIT
    allocation: int = ALLOCATION_LIMIT
    work: int = WORK_LIMIT


KUBERNETES: Final = Limits()
"""The limits of kube-scheduler. The most expensive evaluation takes about 0.15 s of CPU here."""
SHORT: Final = Limits(cost=120_000, allocation=960_000, work=24_000)
"""About an eighth of `KUBERNETES`, 20 ms or less an evaluation: for callers that must stay responsive."""


class Meter(Struct, eq=False):
    """Counts the cost of one evaluation."""

    limits: Limits = KUBERNETES
    cost: int = 0
    allocated: int = 0
    worked: int = 0

    def spend(self, cost: int) -> None:
        """Add a cost. Raises CostExceeded."""
        self.cost += cost
        if self.cost > self.limits.cost:
            raise CostExceeded

    def allocate(self, amount: int) -> None:
        """Announce the size of what is about to be built. Raises CostExceeded."""
        self.allocated += amount
        if self.allocated > self.limits.allocation:
            raise CostExceeded

    def work(self, steps: int) -> None:
        """Announce the number of steps about to be taken. Raises CostExceeded."""
        self.worked += steps
        if self.worked > self.limits.work:
            raise CostExceeded


def size(value: Any) -> int:
    """Return the number of elements, characters or bytes; 1 for values without a size."""
    if isinstance(value, (str, list, dict, bytes)):
        return len(value)
    if type(value) is Optional and value.value is not MISSING:
        return size(value.value)
    return int(getattr(value, "cost_size", 1))


def scan(length: int, factor: float = 1) -> int:
    """Return the price of reading a text once."""
    return math.ceil(length * factor * _PER_CHARACTER)


def pattern(text: Any, expression: Any) -> int:
    return scan(1 + size(text)) * math.ceil(size(expression) * _PER_PATTERN_CHARACTER)


def traversal(value: Any, counter: Meter | None = None) -> int:
    """Return the price of a walk through a value with all its parts.

    Nested lists cost nothing in Kubernetes, however many there are, so the parts below the first
    level also count as work. Raises CostExceeded for a value that exceeds the remaining work.
    """
    price = steps = 0
    most = WORK_LIMIT if counter is None else counter.limits.work - counter.worked
    pending = [value]
    while pending:
        part = pending.pop()
        steps += 1
        if steps > most:
            raise CostExceeded
        if isinstance(part, str):
            price += int(len(part.encode()) * _PER_CHARACTER)
        elif isinstance(part, bytes):
            price += int(len(part) * _PER_CHARACTER)
        elif isinstance(part, list):
            pending.extend(part)
        elif isinstance(part, dict):
            pending.extend(part)
            pending.extend(part.values())
        else:
            price += 1
    if counter is not None:
        counter.work(steps - 1 - (len(value) if isinstance(value, list | dict) else 0))
    return price


def equality(left: Any, right: Any) -> int:
    return scan(min(size(left), size(right)))


def scan_first(args: Sequence[Any]) -> int:
    return scan(size(args[0]))


def scan_second(args: Sequence[Any]) -> int:
    return scan(size(args[1]))


def scan_twice(args: Sequence[Any]) -> int:
    return scan(size(args[0]), 2)


def scan_both(args: Sequence[Any]) -> int:
    return scan(size(args[0]) + size(args[1]))


def scan_shorter(args: Sequence[Any]) -> int:
    return equality(args[0], args[1])


def search(args: Sequence[Any]) -> int:
    return scan(size(args[0])) * scan(size(args[1]))


def pattern_in_first(args: Sequence[Any]) -> int:
    return pattern(args[0], args[1])


def traverse_first(args: Sequence[Any]) -> int:
    """Return the price of a walk through the first argument.

    Calls with this price are counted by `calls`, which has the meter: the walk itself is work.
    """
    return traversal(args[0])


def size_of_second(args: Sequence[Any]) -> int:
    return size(args[1])


def build_list(length: int) -> int:
    return length + 1 + LIST


def compare_all_pairs(values: Any) -> int:
    """Return the price of sorting a list, or of finding duplicates, as an all-pairs comparison."""
    of_texts = type(values) is list and bool(values) and isinstance(values[0], (str, bytes))
    return int(size(values) ** 2 * (2 + (_PER_CHARACTER if of_texts else 0))) + 1 + LIST


def cross_product(factor: int) -> CostFunction:
    return lambda args: 1 + size(args[0]) * size(args[1]) * factor
