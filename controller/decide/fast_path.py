"""Fast path for the most frequent kind of pod: one request by count, without rules that relate the
cards of a node.

There the columns already say which cards of a node are eligible, so the best of them are chosen
without testing every card. The search rules then check the chosen cards alone; if they object, all
cards of the node are searched as usual. Used by `decide.decision` for every node that it tries.
Pure.

Saves 0.16 of 0.36 ms of a decision at 1,000 nodes, together with `decide.ranked_nodes`, which needs
it (a shared card; `hack/bench/decide.py`, CPython 3.11). Gangs, preemption and move plans make
thousands of decisions in a row.
"""

from collections.abc import Sequence

import numpy as np

from controller.allocation.allocating import AllocatingDevices
from controller.allocation.candidates import Candidates
from controller.allocation.prefilter import RequestColumns
from controller.allocation.resolved import AllocationInput, ResolvedRequest
from controller.allocation.result import Solution
from controller.decide.pre_score import Wanted
from controller.inventory.inventory import Inventory
from controller.inventory.model import Device, Pool
from controller.scoring.chooser import PolicyChooser


class FastPath:
    """The fast path of one decision."""

    def __init__(
        self, inventory: Inventory, problem: AllocationInput, view: ResolvedRequest, column: RequestColumns
    ) -> None:
        self._inventory = inventory
        self._problem = problem
        self._view = view
        self._column = column

    def solve(self, row: int, chooser: PolicyChooser) -> Solution | None:
        """Return the solution on the node, or None where only the search over all its cards can tell."""
        inventory, view = self._inventory, self._view
        rows = inventory.rows_of(row)
        rows = rows[self._column.codes[rows] == 0]
        # Devices cut from a card depend on each other through shared counters, which columns do not
        # cover.
        if len(rows) < view.count or np.count_nonzero(inventory.devices.divided[rows]):
            return None
        chosen = chooser.best(view, rows, self._column.ask)[: view.count]
        if len(chosen) < view.count:
            return None
        node = inventory.nodes.node(row)
        pool = _pool(inventory.pools_on(node.metadata.name), chosen)
        if pool is None:
            return None
        # The full rules have the last word: a pool of nothing but the chosen cards makes them the
        # only candidates. Any objection means that other cards may do, so the search decides.
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
    """Return the fast path, or None where cards depend on each other or on more than the columns
    hold.

    `wanted`: the requests of `problem`, and no others.
    """
    if len(wanted) != 1 or not problem.features.consumable_capacity:
        return None
    [(group, [column, *others])] = wanted
    view = group.alternatives[0]
    tied = view.constraints or view.all_devices or view.admin_access
    return None if others or tied or column.network_attached else FastPath(inventory, problem, view, column)


def _pool(pools: Sequence[Pool], chosen: Sequence[Device]) -> Pool | None:
    """Return the pool of all chosen devices, reduced to them in their order; None where they come
    from several pools.
    """
    driver, name, _ = chosen[0].id
    if any(device.id.driver != driver or device.id.pool != name for device in chosen):
        return None
    for pool in pools:
        if pool.name == name and pool.driver == driver:
            return Pool(driver, name, pool.generation, tuple(chosen))
    return None
