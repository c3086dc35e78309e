"""Nodes that were searched without success, remembered from one turn of a decision to the next, and
to the next attempt.

Used by `decide.decision` where a selector budget is in force: a claim that many nodes cannot meet
is searched on some of them in each turn, and no node is searched again before something about its
devices changes. A cache only: results are the same without it. Pure.
"""

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from controller.allocation.request import AllocationInput
from controller.cluster.incremental.derived_column import LogReader
from controller.cluster.incremental.digests import digest_of
from controller.cluster.incremental.growth import grown
from controller.decide.scheduling_request import SchedulingRequest
from controller.inventory.inventory import Inventory
from hami_dra.api.arrays import Bools, Ints


class NodeChanges:
    """The nodes that changed, themselves or in a device, since the previous call."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._versions = (-1, -1)
        self._used = LogReader(inventory.devices.changes)
        self._changed = LogReader(inventory.nodes.changes)

    def touched(self) -> list[int] | slice:
        """Return their rows; all (`slice(None)`) where they are not known, and the first time."""
        devices, nodes = self._inventory.devices, self._inventory.nodes
        versions = nodes.arrivals, devices.structure.version
        used, changed = self._used.entries(), self._changed.entries()
        touched: list[int] | slice = slice(None)
        if self._versions == versions and used is not None and changed is not None:
            rows = [*{*changed, *(int(devices.node[row]) for row in {*used})}]
            if min(rows, default=0) >= 0:  # else a device that several nodes may reach
                touched = rows
        self._versions = versions
        self._used.done()
        self._changed.done()
        return touched


class FruitlessSearches:
    """The unsuccessful searches of one problem, by row of the node."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._changes = NodeChanges(inventory)
        self._ended: Bools = np.zeros(0, dtype=np.bool_)
        self._given_up: Bools = np.zeros(0, dtype=np.bool_)
        self.note = ""
        """Message of the last search that was given up."""

    def refresh(self) -> None:
        """Forget the nodes that changed."""
        size = self._inventory.nodes.size
        self._ended, self._given_up = (grown(column, size) for column in (self._ended, self._given_up))
        touched = self._changes.touched()
        self._ended[touched] = self._given_up[touched] = False

    def add(self, row: int, *, given_up: str = "") -> None:
        """Record an unsuccessful search. `given_up`: the message, if it ended before its result was known."""
        (self._given_up if given_up else self._ended)[row] = True
        self.note = given_up or self.note

    def among(self, rows: Ints) -> Bools:
        """Return which of the rows need no search. Shape (len(rows),)."""
        found: Bools = self._ended[rows] | self._given_up[rows]
        return found

    def given_up(self, rows: Ints) -> int:
        """Return the number of rows on which the search was given up."""
        return int(np.count_nonzero(self._given_up[rows]))


class _Any:
    """Whether any search was unsuccessful so far: until then no decision looks for its own."""

    def __init__(self, _inventory: Inventory) -> None:
        self.exist = False


class FruitlessSearchCache:
    """The unsuccessful searches of one decision.

    `problems`: the inputs that are solved on each node; `how`: everything else that a search
    depends on.
    """

    def __init__(
        self,
        inventory: Inventory,
        scheduling_request: SchedulingRequest,
        problems: Sequence[AllocationInput],
        how: Hashable,
    ) -> None:
        self._inventory = inventory
        self._any = inventory.derived(_Any, _Any)
        self._key_of: Callable[[], Hashable] = lambda: (digest_of_problem(scheduling_request, problems), how)
        self._found: FruitlessSearches | None = None

    def known(self) -> FruitlessSearches | None:
        """Return the searches, up to date; None where no search of any problem was unsuccessful so far."""
        return self.get() if self._any.exist else None

    def get(self) -> FruitlessSearches:
        """Return the searches, up to date."""
        if self._found is None:
            self._any.exist = True
            self._found = self._inventory.of_request(
                FruitlessSearches, self._key_of(), lambda: FruitlessSearches(self._inventory)
            )
            self._found.refresh()
        return self._found


def digest_of_problem(scheduling_request: SchedulingRequest, problems: Sequence[AllocationInput]) -> bytes:
    """Return a digest; problems with equal digests have equal solutions on a node."""
    claims = [claim.claim for problem in problems for claim in problem.claims]
    policies = scheduling_request.policies
    contents = (
        [len(problem.claims) for problem in problems],
        [claim.spec for claim in claims],
        [repr(view.shape) for problem in problems for view in problem.views],
        repr([(policies.for_claim(claim.key), policies.request_preferences.get(claim.key)) for claim in claims]),
        repr((policies.node_policy, policies.packing)),
    )
    return digest_of(contents)
