"""State of a decision between two of its turns: the search that had to be interrupted, and the
solutions found so far.

Used by `decide.decision` where a selector budget is in force. A search takes up to
`Options.search_steps` steps; if the turn's time ends in the middle of one, the search is stored
here and continues in the next turn of the same pod. Between two turns the inventory may change. A
search or a solution is only reused if nothing about its node changed, because a search reads the
node's devices and their usage as it runs. Otherwise the node is searched from the beginning.

    turn 1: search node a (4,000 steps) ... time is over -> kept: the search on a
    turn 2: a continues (4,000 more), is found, is worse than estimated; search b ... time is over
                                                         -> kept: the solution on a, search on b
    a device of b is taken by another pod
    turn 3: the solution on a is reused; b from the beginning

A cache only: results are the same without it. Pure.
"""

from collections.abc import Callable, Hashable
from typing import Final

from msgspec import Struct

from controller.scheduling.allocation.result import Solution
from controller.scheduling.allocation.search import Effort, Searching
from controller.scheduling.decide.scheduling_request import SchedulingRequest
from controller.scheduling.decide.searched_nodes import NodeChanges
from controller.scheduling.incremental.changes import Shared
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.scoring.chooser import PolicyChooser

_KEPT: Final = 64
"""Decisions."""


class Interrupted(Struct):
    """One decision between two of its turns."""

    problem: Hashable
    """The key of the problem (`FruitlessSearchCache.problem`)."""
    chooser: PolicyChooser
    """The chooser of the searches: it holds the scores of the devices in the solutions."""
    searches: dict[int, Searching]
    """By row of the node."""
    found: dict[int, Solution]
    """By row of the node."""
    effort: Effort
    """The cost of all searches of the decision so far."""


class _Slot(Struct):
    changes: NodeChanges
    interrupted: Interrupted | None = None


class _SuspendedSearches:
    def __init__(self, _inventory: Inventory) -> None:
        self.by_request: Shared[_Slot] = Shared(_KEPT)


class Suspended:
    """The suspended state of one decision."""

    def __init__(self, inventory: Inventory, request: SchedulingRequest) -> None:
        self._inventory = inventory
        self._request = request
        self._cache = inventory.derived(_SuspendedSearches, _SuspendedSearches).by_request

    def save(self, interrupted: Interrupted) -> None:
        """Store the state at the end of a turn."""
        account = self._request.pod.metadata.namespace
        slot = self._cache.get(self._key, account, lambda: _Slot(NodeChanges(self._inventory)))
        slot.changes.touched()
        slot.interrupted = interrupted

    def take(self, problem: Callable[[], Hashable]) -> Interrupted | None:
        """Return the state of the previous turn that is still valid, and forget it.

        `problem`: the key of the current problem. It takes time to compute, so it is only called if
        something was stored.
        """
        slot = self._cache.find(self._key) if len(self._cache) else None
        if slot is None or slot.interrupted is None:
            return None
        left, slot.interrupted = slot.interrupted, None
        touched = slot.changes.touched()
        if isinstance(touched, slice) or left.problem != problem():
            return None
        for row in touched:
            left.searches.pop(row, None)
            left.found.pop(row, None)
        return left

    @property
    def _key(self) -> Hashable:
        return self._request.pod.metadata.uid, tuple([entry.claim.key for entry in self._request.claims])
