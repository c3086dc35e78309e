"""One run of `decide`: filter the nodes over columns, then search the best of them. Pure."""

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from itertools import islice
from typing import Final

import numpy as np

from controller.scheduling.allocation.chooser import FirstFit
from controller.scheduling.allocation.errors import (
    AllocatorError,
    BudgetExceeded,
    InvalidPools,
    NotAllowedByClass,
    SelectorOverBudget,
)
from controller.scheduling.allocation.ownership import Scope
from controller.scheduling.allocation.result import Solution
from controller.scheduling.allocation.search import ENDLESS, PORTION, Effort, Searching, completed, searching
from controller.scheduling.decide.allocation_config import with_allocation_config
from controller.scheduling.decide.answers import Answer, ClaimAllocation, Decision, Score, Unfinished, Unschedulable
from controller.scheduling.decide.company import Company
from controller.scheduling.decide.fast_path import FastPath, fast_path_of
from controller.scheduling.decide.node_filter import NodeFilter
from controller.scheduling.decide.pre_score import (
    NodeEstimates,
    Wanted,
    estimate_if_uniform,
    estimate_nodes,
    most_promising,
)
from controller.scheduling.decide.problems import inputs_of, requested_devices_of
from controller.scheduling.decide.quotas import QuotaVerdicts
from controller.scheduling.decide.ranked_nodes import ranked_nodes_of
from controller.scheduling.decide.scheduling_request import Options, SchedulingRequest
from controller.scheduling.decide.searched_nodes import FruitlessSearchCache
from controller.scheduling.decide.suspended_searches import Interrupted, Suspended
from controller.scheduling.decide.trace import Trace, Worth, enough
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.selector_budget import SliceSpent, TimeMeter
from controller.scheduling.quota.headroom import headroom_of
from controller.scheduling.scoring.chooser import PolicyChooser
from controller.scheduling.scoring.formulas import best_node, ranked_nodes, sort_sign
from controller.scheduling.scoring.ranking import Plain, Ranking, reads_kept_score
from hami_dra.api import names
from hami_dra.api.arrays import Bools, Ints

_POOLS_NAMED: Final = 3
_BUDGETS: Final = 4
"""Searches that may run out of steps before the whole decision is given up."""
_DISAPPOINTMENTS: Final = 16
"""Nodes whose search may find less than estimated before the best of them is taken."""


def decide(inventory: Inventory, request: SchedulingRequest, options: Options) -> Decision | Unschedulable:
    """Return the node and the devices of the pod, or why there are none, without a time limit.

    Never raises because of the contents of the request.
    """
    answer = decide_slice(inventory, request, options)
    assert not isinstance(answer, Unfinished), "a selector budget is in force: use decide_slice"
    return answer


def decide_slice(inventory: Inventory, request: SchedulingRequest, options: Options) -> Answer:
    """Run `decide` under a selector budget (`inventory.verdicts.within`); may return `Unfinished`.

    Call it again then: each call continues where the previous one stopped.
    """
    try:
        return _Decision(inventory, request, options).run()
    except AllocatorError as error:
        return Unschedulable(str(error), error=str(error), invalid_claim=isinstance(error, NotAllowedByClass))
    except SelectorOverBudget as error:
        return Unschedulable(str(error), error=str(error), overrun=error.overrun)
    except SliceSpent as cause:
        return Unfinished(cause)


class _Decision:
    """One run of `decide`: sorts claims by owner, filters nodes, searches the best of them."""

    def __init__(self, inventory: Inventory, request: SchedulingRequest, options: Options) -> None:
        self._inventory = inventory
        self._request = request
        self._options = options
        self._scope = Scope(options.managed, vendor_rules=not options.first_fit)
        self._elsewhere = Scope(options.managed, foreign=True, vendor_rules=False)
        self._ours, self._foreign = inputs_of(inventory, request, options)
        self._chooser = PolicyChooser(inventory, request.policies)
        self._only_quota = False
        self._room = None if options.first_fit else headroom_of(inventory, request.pod.metadata.namespace)
        self._ranking: Ranking = Plain(inventory)
        self._effort = Effort()
        self._pool_error = ""
        self._budget_error = ""
        self._exhausted = 0
        """Searches that ran out of steps."""
        self._tried: dict[int, Worth | None] = {}
        self._found: dict[int, Solution] = {}
        """By row of the node: solutions of this turn and of earlier ones."""
        self._searches: dict[int, Searching] = {}
        """By row of the node: the search that the previous turn could not finish."""
        self._fast_path: FastPath | None = None
        self._company = Company(inventory, request)

    @cached_property
    def _in_vain(self) -> FruitlessSearchCache:  # the fast path needs none
        how = self._options.managed, self._options.first_fit, self._options.gates, self._room
        return FruitlessSearchCache(self._inventory, self._request, (self._ours, self._foreign), how)

    def run(self) -> Decision | Unschedulable:
        """Raises AllocatorError, SelectorOverBudget, SliceSpent; the last saves all progress."""
        self._resume()
        try:
            return self._run()
        except SliceSpent:
            if self._searches or self._found or self._effort.spent:
                left = Interrupted(self._in_vain.problem, self._chooser, self._searches, self._found, self._effort)
                Suspended(self._inventory, self._request).save(left)
            raise

    def _resume(self) -> None:
        """Resume the searches that the previous turn could not finish."""
        if self._inventory.verdicts.budget is None:
            return
        left = Suspended(self._inventory, self._request).take(lambda: self._in_vain.problem)
        if left is not None:
            self._chooser, self._effort = left.chooser, left.effort
            self._searches, self._found = left.searches, left.found

    def _run(self) -> Decision | Unschedulable:
        wanted = [
            *requested_devices_of(self._inventory, self._request, self._ours, self._scope),
            *requested_devices_of(self._inventory, self._request, self._foreign, self._elsewhere),
        ]
        flat = estimate_if_uniform(
            self._inventory, self._request.policies, wanted[: self._ours_wanted], rules=self._scope.vendor_rules
        )
        # Columns alone cannot tell for `first-fit` (another order), foreign claims (another search)
        # and quotas (charged card by card): these take the full path.
        if flat is not None and not (self._options.first_fit or self._foreign.claims or self._room):
            self._fast_path = fast_path_of(self._inventory, self._ours, wanted)
            if self._fast_path is not None and (found := self._decide_fast(wanted, self._fast_path, flat)) is not None:
                return found
        return self._decide_full(wanted, flat)

    def _decide_fast(self, wanted: Wanted, fast_path: FastPath, estimates: NodeEstimates) -> Decision | None:
        """Fast path for a simple pod of a recent shape. None when every node must be evaluated."""
        request, inventory, policies = self._request, self._inventory, self._request.policies
        if not reads_kept_score(policies) or request.needs_full_path or inventory.troubled_nodes():
            return None
        [(group, [column])] = wanted
        ranked_nodes = ranked_nodes_of(inventory).of(
            request.pod,
            column,
            group.alternatives[0].count,
            sign=sort_sign(policies.node),
            offered=request.plugin_resources,
        )
        if not ranked_nodes:
            return None
        ranked = ranked_nodes.first(max(self._options.report_nodes, 1))
        best, ranked = int(ranked[0]), ranked[: self._options.report_nodes]
        found = fast_path.solve(best, self._chooser)
        if found is None:
            return None
        self._tried[best] = found.rank, self._chooser.topology(found)

        def look() -> tuple[NodeFilter, Ints]:
            verdicts, candidates = self._candidates(wanted)
            return verdicts, candidates.nonzero()[0]

        trace = self._trace(look, wanted, None, estimates)
        return self._decision(best, found, trace, ranked, len(ranked_nodes))

    def _decide_full(self, wanted: Wanted, flat: NodeEstimates | None) -> Decision | Unschedulable:
        """Evaluate all nodes. `flat`: the estimates where no vendor ranks the nodes."""
        verdicts, candidates = self._candidates(wanted)
        quota = None
        if self._room is not None:  # else no quota of the namespace limits devices
            quota = QuotaVerdicts(self._inventory, self._room, wanted[: self._ours_wanted])
            affordable = quota.affordable()
            self._only_quota = bool((candidates & ~affordable).any())
            candidates = candidates & affordable
        estimates = flat or estimate_nodes(
            self._inventory,
            self._request.policies,
            wanted[: self._ours_wanted],
            candidates,
            rules=self._scope.vendor_rules,
        )
        for refused in estimates.refused.values():
            candidates = candidates & ~refused
        if troubled := self._inventory.troubled_nodes():
            candidates = candidates | (verdicts.mask & self._rows(troubled))
        fitting = candidates.nonzero()[0]
        self._ranking = self._options.rank_nodes(
            self._inventory, self._request.policies, self._request.pod, wanted[: self._ours_wanted]
        )
        self._chooser.ranking = self._ranking
        trace = self._trace(lambda: (verdicts, fitting), wanted, quota, estimates)
        found = self._search(fitting, estimates)
        if found is None:
            return self._refusal(trace)
        node, solution = found
        ranked = ranked_nodes(
            self._ranking.values,
            self._inventory.nodes.rank,
            fitting,
            self._request.policies.node,
            self._options.report_nodes,
        )
        return self._decision(node, solution, trace, ranked, int(fitting.size))

    def _candidates(self, wanted: Wanted) -> tuple[NodeFilter, Bools]:
        """Return the nodes worth a search, by columns alone; see also `RankedNodes`."""
        verdicts = NodeFilter(self._inventory, self._request)
        candidates = verdicts.mask
        for group, columns in wanted:
            candidates = candidates & enough(self._inventory, group, columns)
        return verdicts, candidates

    def _trace(
        self,
        look: Callable[[], tuple[NodeFilter, Ints]],
        wanted: Wanted,
        quota: QuotaVerdicts | None,
        estimates: NodeEstimates,
    ) -> Trace:
        chooser = None if self._options.first_fit else self._chooser
        return Trace(
            look=look,
            wanted=wanted,
            ours=self._ours_wanted,
            quota=quota,
            estimates=estimates,
            ranking=self._ranking,
            chooser=chooser,
            tried=self._tried,
        )

    # -- requests ----------------------------------------------------------------------------------

    @property
    def _ours_wanted(self) -> int:
        """Return the number of entries of `wanted` whose devices hami-dra allocates."""
        return sum(len(claim.requests) for claim in self._ours.claims)

    def _rows(self, troubled: Iterable[str]) -> Bools:
        """Return the nodes whose pools cannot be used: the search there names the pool."""
        mask = np.zeros(self._inventory.nodes.size, dtype=np.bool_)
        for name in troubled:
            row = self._inventory.nodes.index_of(name)
            if row >= 0:
                mask[row] = True
        return mask

    # -- searching ---------------------------------------------------------------------------------

    def _search(self, candidates: Ints, estimates: NodeEstimates) -> tuple[int, Solution] | None:
        """Return the best node for every claim. Raises AllocatorError, as upstream ends there.

        The nominated node comes first, then the nodes that fit the most pods sharing a claim.
        """
        nodes = self._inventory.nodes
        preferred = nodes.index_of(self._request.preferred_node)
        candidates = self._without_searched(candidates)
        if preferred >= 0 and preferred in candidates:
            found = self._solve_within_budget(preferred)
            self._tried[preferred] = (found.rank, self._chooser.topology(found)) if found is not None else None
            if found is not None:
                return preferred, found
            candidates = candidates[candidates != preferred]
        for tier in self._company.tiers(candidates):
            if (best := self._best_of(tier, estimates)) is not None:
                return best
        return None

    def _best_of(self, candidates: Ints, estimates: NodeEstimates) -> tuple[int, Solution] | None:
        """Return the best candidate, searching as few as possible. Raises AllocatorError.

        An estimate is an upper bound. If the search finds less on a node, its solution waits until
        no other node has a higher estimate:

            node  estimate  found
            a     9         7      second best: b may still have 8
            b     8         6      a stays second best; c cannot beat a's 7
            c     7         -      not searched: a is the answer
        """
        nodes = self._inventory.nodes
        tie = None if estimates.flat else estimates.tie
        second_best: tuple[Worth, int, Solution] | None = None
        disappointments = 0
        while candidates.size and self._exhausted < _BUDGETS:
            promise, most = most_promising(candidates, estimates)
            # No estimate beats the best solution so far, or too many estimates were wrong.
            if second_best is not None and (second_best[0] >= promise or disappointments == _DISAPPOINTMENTS):
                break
            best = best_node(self._ranking.values, nodes.rank, most, self._request.policies.node, tie)
            found = self._solve_within_budget(best)
            self._tried[best] = None
            if found is not None:
                self._tried[best] = worth = found.rank, self._chooser.topology(found)
                # The node keeps its promise, so no other node can be better.
                if worth >= promise:
                    return best, found
                disappointments += 1
                if second_best is None or worth > second_best[0]:
                    second_best = worth, best, found
            candidates = candidates[candidates != best]
        return second_best[1:] if second_best is not None else None

    def _solve_within_budget(self, row: int) -> Solution | None:
        """Search the node; out of steps means "does not fit". Raises AllocatorError, SliceSpent."""
        budget, given_up = self._inventory.verdicts.budget, ""
        if (found := self._found.get(row)) is not None:
            return found
        meter = TimeMeter(budget) if budget is not None else None
        try:
            found = completed(self._solve(row, ENDLESS)) if meter is None else self._solve_in_portions(row, meter)
        except InvalidPools as error:
            self._pool_error = self._pool_error or str(error)
            return None
        except BudgetExceeded as error:
            self._budget_error = given_up = str(error)
            self._exhausted += 1
            found = None
        if found is not None:
            self._found[row] = found
        elif meter is not None:
            self._in_vain.get().add(row, given_up=given_up)
            meter.spend()
        return found

    def _solve_in_portions(self, row: int, meter: TimeMeter) -> Solution | None:
        """Search in portions. Raises as `_solve`; after SliceSpent it continues next turn."""
        search = self._searches.pop(row, None) or self._solve(row, PORTION)
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

    def _without_searched(self, candidates: Ints) -> Ints:
        """Return the candidates that no earlier turn or equal decision searched in vain."""
        known = self._in_vain.known() if self._inventory.verdicts.budget is not None else None
        if known is None:
            return candidates
        in_vain = known.among(candidates)
        self._tried.update(dict.fromkeys(candidates[in_vain].tolist()))
        self._exhausted = known.given_up(candidates)
        self._budget_error = known.note if self._exhausted else ""
        return candidates[~in_vain]

    def _solve(self, row: int, portion: int) -> Searching:
        """Search the node: the fast path, then foreign claims, then managed ones. In portions."""
        node = self._inventory.nodes.node(row)
        pools = self._inventory.pools_on(node.metadata.name)
        usage = self._inventory.usage
        if self._fast_path is not None and (found := self._fast_path.solve(row, self._chooser)) is not None:
            return found
        # Devices that other drivers allocate are not allocated here: any solution shows that
        # kube-scheduler can find one on this node. Its result is thrown away.
        if self._foreign.claims:
            theirs = yield from searching(
                self._foreign,
                node,
                self._elsewhere.pools(pools),
                usage,
                FirstFit(),
                budget=self._options.search_steps,
                effort=self._effort,
                portion=portion,
            )
            if theirs is None:
                return None
        chooser = FirstFit() if self._options.first_fit else self._chooser
        return (
            yield from searching(
                self._ours,
                node,
                self._scope.pools(pools),
                usage,
                chooser,
                budget=self._options.search_steps,
                effort=self._effort,
                room=self._room,
                portion=portion,
            )
        )

    # -- answers -----------------------------------------------------------------------------------

    def _decision(self, row: int, solution: Solution, trace: Trace, ranked: Ints, fitting: int) -> Decision:
        """Build the answer. `ranked`: rows of the best nodes; `fitting`: how many fit."""
        trace.solution = solution
        nodes, chooser, values = self._inventory.nodes, self._chooser, self._ranking.values
        by_key = {claim.claim.key: json for claim, json in zip(self._ours.claims, solution.allocations(), strict=True)}
        if self._scope.vendor_rules:
            by_key = {
                key: with_allocation_config(json, partial(self._request.policies.preferences_of, key))
                for key, json in by_key.items()
            }
        return Decision(
            node=nodes.names[row],
            allocations=tuple(
                ClaimAllocation(entry.pod_claim_name, entry.claim, by_key[entry.claim.key])
                for entry in self._request.claims
                if entry.claim.key in by_key
            ),
            score=Score(float(values[row]), chooser.reported(solution), chooser.topology(solution)),
            fitting=tuple(zip(map(nodes.names.__getitem__, ranked.tolist()), values[ranked].tolist(), strict=True)),
            fitting_count=fitting,
            unfit_count=nodes.count - fitting,
            left_out=self._company.left_out(row),
            trace=trace,
        )

    def _refusal(self, trace: Trace) -> Unschedulable:
        selector_errors = (*self._ours.selector_errors, *self._foreign.selector_errors)
        error = str(selector_errors[0]) if selector_errors else self._pool_error
        report = trace.report(self._inventory, self._options.report_nodes)
        message = self._budget_error or f"no available node, {self._inventory.nodes.count} nodes do not meet"
        shortage = trace.shortage()
        quotas = shortage.notes if shortage is not None and names.RESOURCE_QUOTA_NOT_FIT in report.reasons else ()
        return Unschedulable(
            error or message,
            reasons=dict(report.reasons),
            nodes=report.nodes,
            pools=self._unusable(trace.verdicts.mask),
            error=error,
            quotas=quotas,
            only_quota=self._only_quota,
            node_counts=report.node_counts,
            trace=trace,
        )

    def _unusable(self, mask: Bools) -> tuple[str, ...]:
        """Return the managed pools on these nodes that cannot be used as published, and why."""
        nodes = self._inventory.nodes
        found = (
            f"pool {'/'.join(pool)} of node {node} cannot be used, {problem}; its driver must publish it again"
            for node, pool, problem in self._inventory.troubled_pools()
            if problem and self._scope.covers(pool[0]) and (row := nodes.index_of(node)) >= 0 and mask[row]
        )
        return tuple(islice(found, _POOLS_NAMED))
