"""The budget for evaluating selectors: the contract between `verdicts`, which evaluates, and the
accounting.

`verdicts` calls the budget before it evaluates a selector on devices that are new to it, and
reports the time afterwards. The accounting (`queueing.selector_budgets`), or a watchdog
(`Heartbeat`), puts a `Budget` in force with `Verdicts.within`. Without one only the single
evaluation is limited, as in Kubernetes. No clock is read here: it comes with the budget.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

from msgspec import Struct

from hami_dra.cel import KUBERNETES, Limits


class Payer(StrEnum):
    """The account that pays for evaluating a selector."""

    CLAIM = "claim"
    """It is written in a claim: its namespace pays."""
    CLASS = "class"
    """It is written in a DeviceClass, so an administrator wrote it."""


class SliceSpent(Exception):
    """The time slice is over: let other pods have theirs, then call again. All evaluations so far are cached."""


class Overrun(Struct, frozen=True):
    """The reason why an expression is not evaluated any further."""

    expression: str
    payer: Payer
    what: str
    """The figure and the limit, such as `took 1.2 s of CPU and 40 devices are left; a selector may take 1 s`."""
    until: float = 0.0
    """The time from which it may be evaluated again, by the clock of the accounting."""


class OverBudget(Exception):
    """A limit was reached: refuse the claim. `overrun` says which expression, and which limit."""

    def __init__(self, overrun: Overrun) -> None:
        super().__init__(overrun.what)
        self.overrun: Final = overrun


class Budget(Protocol):
    """In force for one decision or less. All times are seconds of its own clock."""

    @property
    def account(self) -> str:
        """The owner of new columns: each account has its share of the cache."""

    @property
    def limits(self) -> Limits:
        """The limits of a single evaluation."""

    def clock(self) -> float: ...

    def admit(self, expression: str, payer: Payer) -> None:
        """Called before the expression is compiled or evaluated on new devices. Raises OverBudget, SliceSpent."""

    def charge(self, expression: str, payer: Payer, seconds: float, *, done: int, left: int) -> None:
        """`done` devices took `seconds`, `left` are still to come. Raises OverBudget, SliceSpent."""

    def too_expensive(self, expression: str, payer: Payer, seconds: float) -> OverBudget:
        """A single evaluation exceeded `limits`."""

    def spend(self, seconds: float, owner: str = "") -> None:
        """Charge time of other work, whose result is cached, to `owner`, a namespace; empty: to the
        account. Raises SliceSpent.
        """


class TimeMeter:
    """Reports the time that has passed since the previous report to a budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._since = budget.clock()

    @property
    def account(self) -> str:
        return self._budget.account

    def spend(self, owner: str = "") -> None:
        """`owner`: as for `Budget.spend`. Raises SliceSpent."""
        before, self._since = self._since, self._budget.clock()
        self._budget.spend(self._since - before, owner)


class Heartbeat:
    """A budget without limits beyond those of Kubernetes; `beat` is called often during evaluation, and may raise."""

    account: Final = ""
    limits: Final = KUBERNETES

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat

    def clock(self) -> float:
        return 0.0

    def admit(self, _expression: str, _payer: Payer) -> None:
        self._beat()

    def charge(self, _expression: str, _payer: Payer, _seconds: float, *, done: int, left: int) -> None:  # noqa: ARG002 (as `Budget` has it)
        self._beat()

    def spend(self, _seconds: float, _owner: str = "") -> None:
        self._beat()

    def too_expensive(self, _expression: str, _payer: Payer, _seconds: float) -> OverBudget:
        raise AssertionError("what exceeds the limits of Kubernetes is a selector that fails")
