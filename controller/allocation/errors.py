"""Errors that end an allocation without an answer. "No solution" is none of them: then `solve` returns None."""

from typing import Final

from controller.inventory.selector_budget import Overrun


class AllocatorError(Exception):
    """The allocator cannot search for this pod at all: an object, named in the message, must be
    fixed first.

    Raised by `prepare`, and by `solve` for errors that depend on devices (a selector that fails on
    one). Ends the decision.
    """


class NotAllowedByClass(AllocatorError):
    """The claim asks for something that its DeviceClass does not allow (a final field, less than the minimum)."""


class SelectorOverBudget(Exception):
    """A selector, named in the message, exceeds its time limit: refuse the claim, and retry much
    later.

    Not an `AllocatorError`: it says nothing about a device, so no search may continue after it.
    """

    def __init__(self, origin: str, overrun: Overrun) -> None:
        super().__init__(f"{origin}: {overrun.what}")
        self.origin: Final = origin
        self.overrun: Final = overrun


class InvalidPools(AllocatorError):
    """This node offers no solution and has a pool that breaks the rules. Other nodes may be tried.

    To be shown only if no node fits, as upstream does.
    """


class BudgetExceeded(Exception):
    """The search on this node took more steps than its budget. Treat the node as unfit, and report
    why.

    Corresponds to kube-scheduler's filter timeout, but in steps, so that a decision is the same on
    every machine.
    """

    def __init__(self, budget: int) -> None:
        super().__init__(
            f"the search for devices was given up after {budget} steps; "
            "simplify the claim: fewer requests, or constraints that fewer devices can meet"
        )
        self.budget = budget
