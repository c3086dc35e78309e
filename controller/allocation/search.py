"""The search for devices on one node: upstream's depth-first search, with the order of devices left to a chooser.

Called by `decide` for every node it tries. In: a `Problem`, the node and its pools, the ledger. Out: a `Solution` or None.
Pure; steps are counted, never seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from controller.allocation.chooser import Chooser
from controller.allocation.request import Problem, RequestView
from controller.inventory.model import Device, Pool, Usage
from hami_dra.api.core import Node

DEFAULT_BUDGET: Final = 20_000
"""Steps (devices tried, requests entered) before the search is given up."""


@dataclass(frozen=True, slots=True)
class Pick:
    """One device for one request."""

    request: RequestView
    device: Device


@dataclass(frozen=True, slots=True)
class Solution:
    """Devices for every claim of the problem."""

    node: str
    picks: tuple[tuple[Pick, ...], ...]
    """By claim of the problem, in the order they were chosen."""
    steps: int

    @property
    def rank(self) -> int:
        """Upstream's score of prioritized lists: 8 - alternative, summed over `firstAvailable` requests. Higher is better."""
        raise NotImplementedError

    def allocations(self) -> tuple[dict[str, Any], ...]:
        """AllocationResult of each claim as plain JSON, without shareID and allocationTimestamp."""
        raise NotImplementedError


def solve(
    problem: Problem,
    node: Node,
    pools: Sequence[Pool],
    usage: Usage,
    chooser: Chooser,
    *,
    budget: int = DEFAULT_BUDGET,
) -> Solution | None:
    """The first complete solution in the chooser's order, or None. Raises AllocatorError, InvalidPools, BudgetExceeded."""
    raise NotImplementedError
