"""What may be spent on evaluating selectors: the contract between those who evaluate and those who keep the accounts.

`verdicts` asks before it evaluates a selector on devices that are new to it, and reports the time afterwards. Who keeps
accounts (`queueing.selector_budgets`), or merely wants to hear that work goes on (`Heartbeat`), puts a `Budget` in force with
`Verdicts.within`. Without one nothing is limited but the single evaluation, as in Kubernetes. No clock is read here: it comes
with the budget.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from hami_dra.cel import KUBERNETES, Limits


class Payer(StrEnum):
    """On whose account a selector is evaluated."""

    CLAIM = "claim"
    """It stands in a claim: its namespace pays."""
    CLASS = "class"
    """It stands in a DeviceClass: an administrator wrote it."""


class SliceSpent(Exception):
    """Enough time was spent in one go: let others have their turn, then ask again. What was evaluated is kept."""


@dataclass(frozen=True, slots=True)
class Overrun:
    """Why an expression is not evaluated any further."""

    expression: str
    payer: Payer
    what: str
    """The figure and the limit, such as `took 1.2 s of CPU and 40 devices are left; a selector may take 1 s`."""
    until: float = 0.0
    """When it may be evaluated again, by the clock of those who keep the accounts."""


class OverBudget(Exception):
    """A limit was reached: refuse the claim. `overrun` says which expression, and which limit."""

    def __init__(self, overrun: Overrun) -> None:
        super().__init__(overrun.what)
        self.overrun: Final = overrun


class Budget(Protocol):
    """In force for one decision or less. All times are seconds of its own clock."""

    @property
    def account(self) -> str:
        """Whose columns are made: each account has its share of what is kept."""

    @property
    def limits(self) -> Limits:
        """Of a single evaluation."""

    def clock(self) -> float: ...

    def admit(self, expression: str, payer: Payer) -> None:
        """Called before the expression is compiled or evaluated on new devices. Raises OverBudget, SliceSpent."""

    def charge(self, expression: str, payer: Payer, seconds: float, *, done: int, left: int) -> None:
        """`done` devices took `seconds`, `left` are still to come. Raises OverBudget, SliceSpent."""

    def too_expensive(self, expression: str, payer: Payer, seconds: float) -> OverBudget:
        """A single evaluation exceeded `limits`."""

    def spend(self, seconds: float) -> None:
        """Other work took so long, and its result is kept. Raises SliceSpent."""


class TimeMeter:
    """Reports the time that has passed since the previous report to a budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._since = budget.clock()

    def spend(self) -> None:
        """Raises SliceSpent."""
        before, self._since = self._since, self._budget.clock()
        self._budget.spend(self._since - before)


class Heartbeat:
    """Limits nothing beyond what Kubernetes does; `beat` is called often while selectors are evaluated, and may raise."""

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

    def spend(self, _seconds: float) -> None:
        self._beat()

    def too_expensive(self, _expression: str, _payer: Payer, _seconds: float) -> OverBudget:
        raise AssertionError("what exceeds the limits of Kubernetes is a selector that fails")
