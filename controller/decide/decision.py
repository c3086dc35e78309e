"""One run of `decide`: filter the nodes over columns, then search the best of them. Pure."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Final

import numpy as np
from msgspec.structs import replace

from controller.allocation.errors import (
    AllocatorError,
    NotAllowedByClass,
    SelectorOverBudget,
)
from controller.allocation.result import Json, Pick, Solution, holdings_by
from controller.decide.allocation_config import with_allocation_config
from controller.decide.answers import ClaimAllocation, Decision, Score, Unschedulable
from controller.decide.company import Company
from controller.decide.fast_path import FastPath, fast_path_of
from controller.decide.node_filter import NodeFilter
from controller.decide.node_search import NodeSearch
from controller.decide.pre_score import (
    Estimate,
    NodeEstimates,
    Wanted,
    arranging_of,
    estimate_if_uniform,
    estimate_nodes,
    most_promising,
)
from controller.decide.problems import inputs_of, requested_devices_of
from controller.decide.quotas import QuotaVerdicts
from controller.decide.ranked_nodes import Promising, ShapeRanking, ranked_by_shape
from controller.decide.scheduling_request import Options, PodClaim, SchedulingRequest
from controller.decide.trace import Trace, enough
from controller.decide.unlike_refused import unlike_refused
from controller.decide.why_refused import failing_selector, reason_of
from controller.inventory.inventory import Inventory
from controller.rules.node_filters import ShapeFit
from controller.rules.preferences import PodPreferences, PreferenceScores
from controller.scoring.formulas import best_node, ranked_nodes, sort_sign
from controller.scoring.ranking import Plain, Ranking, reads_stored_score
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.core import Pod

_POOLS_NAMED: Final = 3
_BUDGETS: Final = 4
"""Searches that may run out of steps before the whole decision is given up."""
MOST_OVERESTIMATED: Final = 16
"""Nodes whose search may find less than estimated before the best of them is taken."""

_NO_ROWS: Final[Ints] = np.zeros(0, dtype=np.int64)


class Alike:
    """What decisions about pods that differ in names alone share, each placed before the next, for as
    long as nothing else changes the inventory: the members of one kind of a gang. Decisions with it
    have no trace.
    """

    def __init__(self) -> None:
        self.ranking = ShapeRanking(often=0)
        self.first: _Decision | None = None
        """A decision for which columns were enough, about a pod whose own rules concern no other pod."""


def decide(
    inventory: Inventory, request: SchedulingRequest, options: Options, alike: Alike | None = None
) -> Decision | Unschedulable:
    """Return the node and the devices of the pod, or why there are none.

    Under a selector budget (`inventory.verdicts.within`), or with `options.attempt`, it raises
    SliceSpent: decide again, all that was evaluated is cached. Never raises because of the contents
    of the request otherwise.
    """
    try:
        if alike is not None and alike.first is not None and (same := alike.first.again(request)) is not None:
            return same
        decision = _Decision(inventory, request, options, alike.ranking if alike is not None else None)
        answer = decision.run()
    except AllocatorError as error:
        not_allowed = isinstance(error, NotAllowedByClass)
        return Unschedulable(str(error), error=str(error), invalid_claim=not_allowed, invalid=True)
    except SelectorOverBudget as error:
        return Unschedulable(str(error), error=str(error), overrun=error.overrun)
    if alike is not None and decision.has_followers:
        alike.first = decision
    return answer


class _Decision:
    """One run of `decide`: sorts claims by owner, filters nodes, searches the best of them."""

    def __init__(
        self, inventory: Inventory, request: SchedulingRequest, options: Options, shared: ShapeRanking | None
    ) -> None:
        """`shared`: by the decisions on pods like this one; None: there are no others."""
        self._inventory = inventory
        self._request = request
        self._options = options
        self._shared = shared
        self._managed, self._foreign = inputs_of(inventory, request, options)
        self._headroom = None if options.first_fit else inventory.quotas.headroom(request.pod.metadata.namespace)
        numbers = {claim.key: number for number, claim in enumerate(self._managed.claims)}
        keys = [entry.claim.key for entry in request.claims]
        self._ours = [(position, numbers[key]) for position, key in enumerate(keys) if key in numbers]
        """(position in the pod, number in the input) of the claims that hami-dra allocates."""
        self._search = self._new_search()
        self._scope = self._search.managed_scope
        self._managed_count = sum([len(claim.requests) for claim in self._managed.claims])
        """Number of entries of `wanted` whose devices hami-dra allocates."""
        self._arranging = frozenset[str]()
        """Drivers whose vendors score sets of devices."""
        self._only_quota = False
        self._ranking: Ranking = Plain(inventory)
        self._preferences: PodPreferences | None = None
        self._company = Company(inventory, request)
        self._wanted: Wanted = []
        self._flat: NodeEstimates | None = None
        self._follow: Callable[[Pod], ShapeFit | None] | None = None
        """Returns where the next pod like this one fits."""

    def _new_search(self, fast_path: FastPath | None = None) -> NodeSearch:
        search = NodeSearch(
            self._inventory,
            self._request,
            self._options,
            managed=self._managed,
            foreign=self._foreign,
            headroom=self._headroom,
        )
        search.fast_path = fast_path
        return search

    def _preferences_of(self, pod: Pod) -> PodPreferences | None:
        honored = self._options.honor_preferences and not self._options.first_fit
        return self._inventory.rules.preferences(pod) if honored else None

    def run(self) -> Decision | Unschedulable:
        """Raises AllocatorError, SelectorOverBudget, SliceSpent."""
        wanted = [
            *requested_devices_of(self._inventory, self._request, self._managed, self._scope),
            *requested_devices_of(self._inventory, self._request, self._foreign, self._search.foreign_scope),
        ]
        managed = wanted[: self._managed_count]
        if self._scope.vendor_rules:
            self._arranging = arranging_of(self._inventory, self._request.policies, managed)
        flat = estimate_if_uniform(self._inventory, managed, self._arranging)
        self._wanted, self._flat = wanted, flat
        self._preferences = self._preferences_of(self._request.pod)
        # Sorted nodes count those beyond the quota as fitting, which reports of a single pod say.
        if self.has_followers and (flat is not None or self._shared is not None):
            self._search.fast_path = fast_path_of(self._inventory, self._managed, wanted, arranged=flat is None)
            sorted_nodes = flat is not None and reads_stored_score(self._request.policies)
            if sorted_nodes and (self._headroom is None or self._shared is not None):
                found = self._decide_ranked()
                if found is not None:
                    return found
        return self._decide_full(wanted, flat)

    @property
    def has_followers(self) -> bool:
        """Whether columns tell which devices are chosen, and so `again` may answer: not for `first-fit`
        (another order), foreign claims (another search) and masked devices (still in the columns).
        """
        return not (self._options.first_fit or self._foreign.claims or self._request.masked_devices)

    def _decide_ranked(self, fit: ShapeFit | None = None) -> Decision | None:
        """Take the first of the sorted nodes. None when every node must be evaluated. `fit`: as for `ranked_by_shape`."""
        request, inventory, wanted = self._request, self._inventory, self._wanted
        # a preference compares all nodes that fit
        if self._preferences is not None or request.needs_full_path or inventory.nodes_with_unusable_pools():
            return None
        nodes = ranked_by_shape(inventory, request, wanted, self._shared, fit=fit, beyond=self._beyond)
        if not nodes:
            return None
        self._ranking = nodes.ranking or self._ranking
        self._search.chooser.ranking = nodes.ranking
        ranked = nodes.first(max(self._options.report_nodes, 1))
        best, estimate = nodes.most_promising() or (int(ranked[0]), None)
        found = self._search.on(best) if self._search.without_fruitless(np.array([best])).size else None
        if found is None or (estimate is not None and found[1] < estimate):
            return None
        trace = None
        if self._shared is None:

            def look() -> tuple[NodeFilter, Ints]:
                verdicts, candidates = self._candidates(wanted)
                return verdicts, candidates.nonzero()[0]

            assert self._flat is not None  # a single pod
            trace = self._trace(look, wanted, None, self._flat)
        return self._decision(best, found[0], trace, ranked[: self._options.report_nodes], len(nodes))

    def again(self, request: SchedulingRequest) -> Decision | None:
        """Decide on another pod that differs in names alone, by what has changed since. None: it must be
        decided in full. Raises SelectorOverBudget, SliceSpent.
        """
        # the requests are those of the first pod's claims, and the policies go by its claims
        self._request = replace(request, policies=self._request.policies)
        self._headroom = self._inventory.quotas.headroom(request.pod.metadata.namespace)
        for _, columns in self._wanted:
            for column in columns:
                column.refresh()
        self._preferences = self._preferences_of(request.pod)
        if self._follow is None:
            self._follow = self._inventory.rules.follow_fit(request.pod, uses_spares=request.uses_spares)
        self._search.again(self._headroom)
        try:
            has_columns = self._search.fast_path is not None
            ranked = self._decide_ranked(self._follow(request.pod)) if has_columns else None
            return ranked or self._again_full()
        except AllocatorError:  # which names another pod's claim
            return None

    def _beyond(self) -> tuple[Ranking | None, Promising | None]:
        """Return what the nodes are sorted by, beyond the stored score."""
        inventory, policies, managed = self._inventory, self._request.policies, self._wanted[: self._managed_count]
        if reads_stored_score(policies):
            own = None
        else:
            own = self._options.rank_nodes(inventory, policies, self._request.pod, managed)
        if self._flat is not None:
            return own, None
        promising = Promising(
            inventory,
            lambda nodes: estimate_nodes(inventory, policies, managed, nodes, self._arranging),
            lambda: inventory.nodes.score if own is None else own.values,
            sign=sort_sign(policies.node_policy),
        )
        return own, promising

    def _again_full(self) -> Decision | None:
        """Evaluate all nodes, with the columns and the sets that are known."""
        self._company = Company(self._inventory, self._request)
        self._search = self._new_search(self._search.fast_path)
        answer = self._decide_full(self._wanted, self._flat)
        return answer if isinstance(answer, Decision) else None

    def _decide_full(self, wanted: Wanted, flat: NodeEstimates | None) -> Decision | Unschedulable:
        """Evaluate all nodes. `flat`: the estimates where no vendor ranks the nodes."""
        verdicts, candidates = self._candidates(wanted)
        quota = None
        if self._headroom is not None:  # else no quota of the namespace limits devices
            quota = QuotaVerdicts(self._inventory, self._headroom, wanted[: self._managed_count])
            affordable = quota.affordable()
            self._only_quota = bool((candidates & ~affordable).any())
            candidates = candidates & affordable
        estimates = flat or estimate_nodes(
            self._inventory,
            self._request.policies,
            wanted[: self._managed_count],
            candidates,
            self._arranging,
        )
        for refused in estimates.refused.values():
            candidates = candidates & ~refused
        if unusable := self._inventory.nodes_with_unusable_pools():
            candidates = candidates | (verdicts.mask & self._rows(unusable))
        fitting = candidates.nonzero()[0]
        self._ranking = self._options.rank_nodes(
            self._inventory, self._request.policies, self._request.pod, wanted[: self._managed_count]
        )
        self._search.chooser.ranking = self._ranking
        preferences = self._preferences.scores(fitting) if self._preferences is not None else None
        if preferences is not None:
            estimates = replace(estimates, preference=preferences.total)
        trace = self._trace(lambda: (verdicts, fitting), wanted, quota, estimates, preferences)
        found = self._best_node(fitting, estimates)
        if found is None:
            return self._refusal(trace)
        node, solution = found
        ranked = ranked_nodes(
            self._ranking.values,
            self._inventory.nodes.rank,
            fitting,
            self._request.policies.node_policy,
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
        preferences: PreferenceScores | None = None,
    ) -> Trace:
        chooser = None if self._options.first_fit else self._search.chooser
        return Trace(
            look=look,
            wanted=wanted,
            ours=self._managed_count,
            quota=quota,
            estimates=estimates,
            ranking=self._ranking,
            preferences=preferences,
            chooser=chooser,
            tried=self._search.tried,
        )

    # -- requests ----------------------------------------------------------------------------------

    def _rows(self, unusable: Iterable[str]) -> Bools:
        """Return the nodes whose pools cannot be used: the search there names the pool."""
        mask = np.zeros(self._inventory.nodes.size, dtype=np.bool_)
        for name in unusable:
            row = self._inventory.nodes.index_of(name)
            if row >= 0:
                mask[row] = True
        return mask

    # -- searching ---------------------------------------------------------------------------------

    def _best_node(self, candidates: Ints, estimates: NodeEstimates) -> tuple[int, Solution] | None:
        """Return the best node for every claim. Raises AllocatorError, as upstream ends there.

        The nominated node comes first, then the nodes that fit the most pods sharing a claim; of
        those, the nodes that are least like what kube-scheduler refused.
        """
        nodes = self._inventory.nodes
        preferred = nodes.index_of(self._request.preferred_node)
        candidates = self._search.without_fruitless(candidates)
        if self._search.tried:  # by `_decide_ranked`
            candidates = candidates[~np.isin(candidates, [*self._search.tried])]
        if preferred >= 0 and preferred in candidates:
            if (found := self._search.on(preferred)) is not None:
                return preferred, found[0]
            candidates = candidates[candidates != preferred]
        for tier in self._company.tiers(candidates):
            for group in unlike_refused(self._inventory, self._request.earlier_refusals, tier):
                if (best := self._best_of(group, estimates)) is not None:
                    return best
        return None

    def _best_of(self, candidates: Ints, estimates: NodeEstimates) -> tuple[int, Solution] | None:
        """Return the best candidate, searching as few as possible. Raises AllocatorError.

        An estimate is an upper bound. If the search finds less on a node, its solution waits until
        no other node has a higher estimate, or an equal one and precedence by node policy:

            node  estimate  found
            a     9         7      second best: b may still have 8
            b     8         6      a stays second best
            c     7         7      searched if the policy prefers c to a; then c is the answer
            d     6         -      not searched: cannot beat a's 7
        """
        values, rank, policy = self._ranking.values, self._inventory.nodes.rank, self._request.policies.node_policy
        tie = None if estimates.flat else estimates.tie
        preferred = partial(best_node, values, rank, node_policy=policy, tie=tie)
        second_best: tuple[Estimate, int, Solution] | None = None
        overestimated = 0
        while candidates.size and self._search.exhausted < _BUDGETS:
            best_estimate, most = most_promising(candidates, estimates)
            if second_best is not None:
                # No estimate beats the best solution so far, or too many estimates were wrong.
                if second_best[0] > best_estimate or overestimated == MOST_OVERESTIMATED:
                    break
                if second_best[0] == best_estimate:
                    most = np.append(most, second_best[1])
            best = preferred(most)
            if second_best is not None and best == second_best[1]:
                break
            if (found := self._search.on(best)) is not None:
                solution, quality = found[0], (*found[1], estimates.preference_of(best))
                # The estimate was right, so no other node can be better.
                if quality >= best_estimate:
                    return best, solution
                overestimated += 1
                if (
                    second_best is None
                    or quality > second_best[0]
                    or (quality == second_best[0] and preferred(np.array([best, second_best[1]])) == best)
                ):
                    second_best = quality, best, solution
            candidates = candidates[candidates != best]
        return second_best[1:] if second_best is not None else None

    # -- answers -----------------------------------------------------------------------------------

    def _decision(
        self,
        row: int,
        solution: Solution,
        trace: Trace | None,
        ranked: Ints,
        fitting: int,
    ) -> Decision:
        """Build the answer. `ranked`: rows of the best nodes; `fitting`: how many fit."""
        claims = self._request.claims
        if trace is not None:
            trace.solution = solution
        nodes, chooser, values = self._inventory.nodes, self._search.chooser, self._ranking.values
        allocations = solution.allocations()
        return Decision(
            node=nodes.names[row],
            allocations=tuple(
                [
                    self._allocation(claims[position], number, allocations[number], solution.picks[number])
                    for position, number in self._ours
                ]
            ),
            score=Score(float(values[row]), chooser.reported(solution), chooser.topology(solution)),
            fitting=tuple(zip(map(nodes.names.__getitem__, ranked.tolist()), values[ranked].tolist(), strict=True)),
            fitting_count=fitting,
            unfit_count=nodes.count - fitting,
            left_out=self._company.left_out(row),
            trace=trace,
        )

    def _allocation(self, entry: PodClaim, number: int, allocation: Json, picks: Iterable[Pick]) -> ClaimAllocation:
        """Return the allocation of a claim. `number`: of the claim in the input."""
        if self._scope.vendor_rules:
            key = self._managed.claims[number].key
            allocation = with_allocation_config(allocation, partial(self._request.policies.preferences_of, key))
        holdings = holdings_by(picks, allocation["devices"].get("config", ()))
        return ClaimAllocation(entry.pod_claim_name, entry.claim, allocation, holdings)

    def _refusal(self, trace: Trace) -> Unschedulable:
        selector_errors = (*self._managed.selector_errors, *self._foreign.selector_errors)
        error = str(selector_errors[0]) if selector_errors else self._search.pool_error
        if not self._options.says_why:
            return Unschedulable(error or "no node fits", error=error)
        report = trace.report(self._inventory, self._options.report_nodes)
        error = error or failing_selector(self._inventory, trace)
        pools = self._unusable(trace.verdicts.mask)
        given_up = error or self._search.budget_error
        reason = None if given_up else reason_of(self._inventory, self._request, trace, self._arranging)
        if reason is not None and pools:  # what they would offer is not known
            reason = replace(reason, never=False, fix="")
        return Unschedulable(
            given_up if reason is None else reason.also(*pools).sentence,
            reasons=dict(report.reasons),
            nodes=report.nodes,
            error=error,
            invalid=bool(error) and error != self._search.pool_error,
            reason=reason,
            only_quota=self._only_quota,
            node_counts=report.node_counts,
            examples=trace.verdicts.examples(),
            trace=trace,
        )

    def _unusable(self, mask: Bools) -> tuple[str, ...]:
        """Return the managed pools on these nodes that cannot be used as published, and why."""
        nodes = self._inventory.nodes
        found = (
            f"pool {'/'.join(pool)} of node {node} cannot be used, {problem}; its driver must publish it again"
            for node, pool, problem in self._inventory.unusable_pools()
            if problem and self._scope.covers(pool[0]) and (row := nodes.index_of(node)) >= 0 and mask[row]
        )
        return tuple(islice(found, _POOLS_NAMED))
