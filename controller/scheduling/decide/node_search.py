"""Searches of one decision: devices on one node after the other, within the decision's budgets.

Used by `decide.decision`, which says which node is worth a search. A search takes the fast path
where there is one. Without a selector budget it runs to its end; with one it runs in portions, and
what a turn could not finish continues in the next turn (`decide.suspended_searches`). Pure.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property

from msgspec.structs import replace

from controller.scheduling.allocation.chooser import FirstFit
from controller.scheduling.allocation.errors import BudgetExceeded, InvalidPools
from controller.scheduling.allocation.ownership import Scope
from controller.scheduling.allocation.request import AllocationInput
from controller.scheduling.allocation.result import Solution
from controller.scheduling.allocation.search import ENDLESS, PORTION, Effort, Searching, completed, searching
from controller.scheduling.decide.fast_path import FastPath
from controller.scheduling.decide.scheduling_request import Options, SchedulingRequest
from controller.scheduling.decide.searched_nodes import FruitlessSearchCache
from controller.scheduling.decide.suspended_searches import Interrupted, Suspended
from controller.scheduling.decide.trace import Quality
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.model import DeviceId, Pool
from controller.scheduling.inventory.quota_headroom import QuotaHeadroom
from controller.scheduling.inventory.selector_budget import SliceSpent, TimeMeter
from controller.scheduling.scoring.chooser import PolicyChooser
from hami_dra.api.arrays import Ints


class NodeSearch:
    """The searches of one decision.

    `managed`: claims that hami-dra allocates; `foreign`: claims left to kube-scheduler.
    """

    def __init__(
        self,
        inventory: Inventory,
        request: SchedulingRequest,
        options: Options,
        *,
        managed: AllocationInput,
        foreign: AllocationInput,
        headroom: QuotaHeadroom | None,
    ) -> None:
        self._inventory = inventory
        self._request = request
        self._options = options
        self._managed, self._foreign = managed, foreign
        self._headroom = headroom
        self.managed_scope = Scope(options.managed, vendor_rules=not options.first_fit)
        self.foreign_scope = Scope(options.managed, foreign=True, vendor_rules=False)
        self.chooser = PolicyChooser(inventory, request.policies)
        self.fast_path: FastPath | None = None
        self.tried: dict[int, Quality | None] = {}
        """By row of the node: the quality of its solution; None: it has none."""
        self.exhausted = 0
        """Searches that ran out of steps."""
        self.pool_error = ""
        """The first pool that could not be used."""
        self.budget_error = ""
        """Message of the last search that ran out of steps."""
        self._effort = Effort()
        self._found: dict[int, Solution] = {}
        """By row of the node: solutions of this turn and of earlier ones."""
        self._searches: dict[int, Searching] = {}
        """By row of the node: the search that the previous turn could not finish."""

    @cached_property
    def _fruitless(self) -> FruitlessSearchCache:  # the fast path needs none
        options, masked = self._options, self._request.masked_devices
        how = options.managed, options.first_fit, options.gates, self._headroom, masked
        return FruitlessSearchCache(self._inventory, self._request, (self._managed, self._foreign), how)

    # -- turns -------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Take over the searches that the previous turn could not finish."""
        if self._inventory.verdicts.budget is None:
            return
        left = Suspended(self._inventory, self._request).take(lambda: self._fruitless.problem)
        if left is not None:
            self.chooser, self._effort = left.chooser, left.effort
            self._searches, self._found = left.searches, left.found

    def suspend(self) -> None:
        """Save all progress for the next turn."""
        if self._searches or self._found or self._effort.spent:
            left = Interrupted(self._fruitless.problem, self.chooser, self._searches, self._found, self._effort)
            Suspended(self._inventory, self._request).save(left)

    # -- searching ---------------------------------------------------------------------------------

    def without_fruitless(self, candidates: Ints) -> Ints:
        """Return the candidates on which neither an earlier turn nor an equal decision searched without success."""
        known = self._fruitless.known() if self._inventory.verdicts.budget is not None else None
        if known is None:
            return candidates
        fruitless = known.among(candidates)
        self.tried.update(dict.fromkeys(candidates[fruitless].tolist()))
        self.exhausted = known.given_up(candidates)
        self.budget_error = known.note if self.exhausted else ""
        return candidates[~fruitless]

    def on(self, row: int) -> tuple[Solution, Quality] | None:
        """Return the solution on a node; None: the pod does not fit, or the search ran out of
        steps.

        Raises AllocatorError, SliceSpent.
        """
        found = self._within_budget(row)
        if found is None:
            self.tried[row] = None
            return None
        self.tried[row] = quality = found.rank, self.chooser.topology(found)
        return found, quality

    def fast(self, row: int) -> Solution | None:
        """Return the solution of the fast path alone."""
        found = self.fast_path.solve(row, self.chooser) if self.fast_path is not None else None
        if found is not None:
            self.tried[row] = found.rank, self.chooser.topology(found)
        return found

    def _within_budget(self, row: int) -> Solution | None:
        if (found := self._found.get(row)) is not None:
            return found
        budget, given_up = self._inventory.verdicts.budget, ""
        meter = TimeMeter(budget) if budget is not None else None
        try:
            found = completed(self._start(row, ENDLESS)) if meter is None else self._in_portions(row, meter)
        except InvalidPools as error:
            self.pool_error = self.pool_error or str(error)
            return None
        except BudgetExceeded as error:
            self.budget_error = given_up = str(error)
            self.exhausted += 1
            found = None
        if found is not None:
            self._found[row] = found
        elif meter is not None:
            self._fruitless.get().add(row, given_up=given_up)
            meter.spend()
        return found

    def _in_portions(self, row: int, meter: TimeMeter) -> Solution | None:
        """Search in portions; after SliceSpent the search continues in the next turn."""
        search = self._searches.pop(row, None) or self._start(row, PORTION)
        while True:
            try:
                next(search)
            except StopIteration as end:
                found: Solution | None = end.value
                return found
            try:
                meter.spend()
            except SliceSpent:
                self._searches[row] = search
                raise

    def _start(self, row: int, portion: int) -> Searching:
        """Search the node: the fast path, then foreign claims, then managed ones. In portions."""
        node = self._inventory.nodes.node(row)
        pools: Sequence[Pool] = self._inventory.pools_on(node.metadata.name)
        if masked := self._request.masked_devices:
            pools = [_without(pool, masked) for pool in pools]
        usage = self._inventory.usage
        if self.fast_path is not None and (found := self.fast_path.solve(row, self.chooser)) is not None:
            return found
        # Devices that other drivers allocate are not allocated here: any solution shows that
        # kube-scheduler can find one on this node. Its result is thrown away.
        if self._foreign.claims:
            theirs = yield from searching(
                self._foreign,
                node,
                self.foreign_scope.pools(pools),
                usage,
                FirstFit(),
                budget=self._options.search_steps,
                effort=self._effort,
                portion=portion,
            )
            if theirs is None:
                return None
        chooser = FirstFit() if self._options.first_fit else self.chooser
        return (
            yield from searching(
                self._managed,
                node,
                self.managed_scope.pools(pools),
                usage,
                chooser,
                budget=self._options.search_steps,
                effort=self._effort,
                headroom=self._headroom,
                portion=portion,
            )
        )


def _without(pool: Pool, masked: AbstractSet[DeviceId]) -> Pool:
    """Return the pool as if some of its devices were on other nodes: they are not allocated here,
    and what is allocated of them draws on the shared counters as before.
    """
    hidden = tuple([device for device in pool.devices if device.id in masked])
    if not hidden:
        return pool
    seen = tuple([device for device in pool.devices if device.id not in masked])
    return replace(pool, devices=seen, elsewhere=(*pool.elsewhere, *hidden))
