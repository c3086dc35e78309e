"""The plain case, and most pods are one: a single request by count, where nothing ties the cards of a node together.

There the columns know already which cards of a node will do, so the best of them are named without looking at the others one
by one. The rules of the search have the last word, about the named cards alone; where they object, all cards are searched as
ever. Used by `decide.decision` for every node that it tries. Pure.

Saves 0.16 of 0.36 ms of a decision at 1,000 nodes, with what `decide.ranked_nodes` saves, which needs it (a shared card;
`hack/bench/decide.py`, CPython 3.11). Gangs, preemption and move plans make thousands of decisions in a row.
"""

from collections.abc import Sequence

from controller.scheduling.allocation.allocating import AllocatingDevices
from controller.scheduling.allocation.candidates import Candidates
from controller.scheduling.allocation.prefilter import RequestColumns
from controller.scheduling.allocation.resolved import AllocationInput, ResolvedRequest
from controller.scheduling.allocation.search import Solution
from controller.scheduling.decide.pre_score import Wanted
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.model import Device, Pool
from controller.scheduling.scoring.chooser import PolicyChooser


class FastPath:
    """For one decision."""

    def __init__(
        self, inventory: Inventory, problem: AllocationInput, view: ResolvedRequest, column: RequestColumns
    ) -> None:
        self._inventory = inventory
        self._problem = problem
        self._view = view
        self._column = column

    def solve(self, row: int, chooser: PolicyChooser) -> Solution | None:
        """None: for the search over all cards of the node to say."""
        inventory, view = self._inventory, self._view
        rows = inventory.rows_of(row)
        rows = rows[self._column.codes[rows] == 0]
        if len(rows) < view.count or inventory.devices.divided[rows].any():
            return None
        chosen = chooser.best(view, rows, self._column.ask)[: view.count]
        if len(chosen) < view.count:
            return None
        node = inventory.nodes.node(row)
        pool = _pool(inventory.pools_on(node.metadata.name), chosen)
        if pool is None:
            return None
        candidates = Candidates(self._problem, node, [pool], inventory.usage)
        held = AllocatingDevices(self._problem, candidates, inventory.usage)
        for candidate in candidates.of(view):
            if candidate.error is not None or held.take(view, candidate) is None:
                return None
        [picks] = held.picks
        return (
            Solution(node.metadata.name, self._problem, (tuple(picks),), len(picks))
            if len(picks) == view.count
            else None
        )


def fast_path_of(inventory: Inventory, problem: AllocationInput, wanted: Wanted) -> FastPath | None:
    """None where cards depend on each other, or on more than columns tell. `wanted`: nothing but the problem's requests."""
    if len(wanted) != 1 or not problem.features.consumable_capacity:
        return None
    [(group, [column, *others])] = wanted
    view = group.alternatives[0]
    tied = view.constraints or view.all_devices or view.admin_access
    return None if others or tied or column.network_attached else FastPath(inventory, problem, view, column)


def _pool(pools: Sequence[Pool], chosen: Sequence[Device]) -> Pool | None:
    """The one pool that they are of, with them and no others, in their order."""
    driver, name, _ = chosen[0].id
    if any(device.id.driver != driver or device.id.pool != name for device in chosen):
        return None
    for pool in pools:
        if pool.name == name and pool.driver == driver:
            return Pool(driver, name, pool.generation, tuple(chosen))
    return None
