"""What can end an allocation without an answer. "No solution" is not among them: then `solve` returns None."""

from typing import Final

from controller.scheduling.inventory.selector_budget import Overrun


class AllocatorError(Exception):
    """The allocator cannot search for this pod at all: an object must be fixed first. The message names it.

    Raised by `prepare`, and by `solve` for what depends on devices (a selector that fails on one). Ends the decision.
    """


class NotAllowedByClass(AllocatorError):
    """The claim asks for what its DeviceClass does not allow (a field that is final, less than the minimum)."""


class SelectorOverBudget(Exception):
    """A selector takes more time than it may: refuse the claim, and look at it again much later. The message names the selector.

    Not an `AllocatorError`: it says nothing about a device, so no search may go on after it.
    """

    def __init__(self, origin: str, overrun: Overrun) -> None:
        super().__init__(f"{origin}: {overrun.what}")
        self.origin: Final = origin
        self.overrun: Final = overrun


class InvalidPools(AllocatorError):
    """This node offers no solution and has a pool that breaks the rules. Other nodes may be tried.

    To be shown only when no node fits, as upstream does.
    """


class BudgetExceeded(Exception):
    """The search on this node took more steps than its budget. Treat the node as unfit, and say why.

    The counterpart of kube-scheduler's filter timeout, in steps, so that a decision is the same on every machine.
    """

    def __init__(self, budget: int) -> None:
        super().__init__(
            f"the search for devices was given up after {budget} steps; "
            "simplify the claim: fewer requests, or constraints that fewer devices can meet"
        )
        self.budget = budget
