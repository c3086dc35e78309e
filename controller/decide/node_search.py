"""Searches of one decision: devices on one node after the other, within the decision's budgets.

Used by `decide.decision`, which says which node is worth a search. A search takes the fast path
where there is one. Pure.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from controller.allocation.attempt import Attempt, AttemptSpent
from controller.allocation.chooser import FirstFit
from controller.allocation.errors import BudgetExceeded, InvalidPools
from controller.allocation.ownership import Scope
from controller.allocation.request import AllocationInput
from controller.allocation.result import Solution
from controller.allocation.search import Effort, solve
from controller.decide.fast_path import FastPath
from controller.decide.scheduling_request import Options, SchedulingRequest
from controller.decide.searched_nodes import FruitlessSearchCache
from controller.decide.trace import Quality
from controller.inventory.inventory import Inventory
from controller.inventory.model import DeviceId, Pool
from controller.inventory.quota_headroom import QuotaHeadroom
from controller.scoring.chooser import PolicyChooser
from hami_dra.api.arrays import Ints

STEPS_PER_NODE: Final = 32
"""What beginning a search costs, in steps."""


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

    def again(self, headroom: QuotaHeadroom | None) -> None:
        """Search for another pod like the first one."""
        if headroom is not None:
            self._headroom = headroom
            self.__dict__.pop("_fruitless", None)  # which depends on it

    @cached_property
    def _fruitless(self) -> FruitlessSearchCache:  # the fast path needs none
        options, masked = self._options, self._request.masked_devices
        how = options.managed, options.first_fit, options.gates, self._headroom, masked
        return FruitlessSearchCache(self._inventory, self._request, (self._managed, self._foreign), how)

    # -- searching ---------------------------------------------------------------------------------

    def without_fruitless(self, candidates: Ints) -> Ints:
        """Return the candidates on which neither an earlier attempt nor an equal decision searched without success."""
        known = self._fruitless.known() if self._options.attempt is not None else None
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

        Raises AllocatorError, AttemptSpent.
        """
        found = self.fast_path.solve(row, self.chooser, self._headroom) if self.fast_path is not None else None
        if found is None:
            found = self._within_budget(row)
            if found is not None and self.fast_path is not None and self.fast_path.arranged:
                self.fast_path.learn(row, found, self.chooser)
        if found is None:
            self.tried[row] = None
            return None
        self.tried[row] = quality = found.rank, self.chooser.topology(found)
        return found, quality

    def _spent(self, attempt: Attempt) -> None:
        """Note that the attempt is spent. Raises AttemptSpent, unless it is the last one and found something: the
        best so far counts then.
        """
        if not attempt.is_last or not any(quality is not None for quality in self.tried.values()):
            raise AttemptSpent
        self.exhausted += 1

    def _within_budget(self, row: int) -> Solution | None:
        attempt, most, given_up = self._options.attempt, self._options.search_steps, ""
        if attempt is not None:
            if attempt.left <= 0:
                self._spent(attempt)
                return None
            most = min(most, attempt.left)
        before = self._effort.steps
        try:
            found = self._solve(row, most)
        except InvalidPools as error:
            self.pool_error = self.pool_error or str(error)
            return None
        except BudgetExceeded as error:
            if attempt is not None and most < self._options.search_steps:
                self._spent(attempt)
                return None
            self.budget_error = given_up = str(error)
            self.exhausted += 1
            found = None
        finally:
            if attempt is not None:
                attempt.spent += STEPS_PER_NODE + self._effort.steps - before
        if found is None and attempt is not None:
            self._fruitless.get().add(row, given_up=given_up)
        return found

    def _solve(self, row: int, budget: int) -> Solution | None:
        """Search the node: foreign claims, then managed ones."""
        node = self._inventory.nodes.node(row)
        pools: Sequence[Pool] = self._inventory.pools_on(node.metadata.name)
        if masked := self._request.masked_devices:
            pools = [_without(pool, masked) for pool in pools]
        usage, effort, foreign = self._inventory.usage, self._effort, self._foreign
        # Devices that other drivers allocate are not allocated here: any solution shows that
        # kube-scheduler can find one on this node. Its result is thrown away.
        if foreign.claims:
            theirs = self.foreign_scope.pools(pools)
            if solve(foreign, node, theirs, usage, FirstFit(), budget=budget, effort=effort) is None:
                return None
        chooser = FirstFit() if self._options.first_fit else self.chooser
        ours = self.managed_scope.pools(pools)
        return solve(self._managed, node, ours, usage, chooser, budget=budget, effort=effort, headroom=self._headroom)


def _without(pool: Pool, masked: AbstractSet[DeviceId]) -> Pool:
    """Return the pool as if some of its devices were on other nodes: they are not allocated here,
    and what is allocated of them draws on the shared counters as before.
    """
    hidden = tuple([device for device in pool.devices if device.id in masked])
    if not hidden:
        return pool
    seen = tuple([device for device in pool.devices if device.id not in masked])
    return replace(pool, devices=seen, elsewhere=(*pool.elsewhere, *hidden))
