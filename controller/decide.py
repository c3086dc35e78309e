"""`decide`: which node and which devices a pod gets, or why it gets none.

Called by `reconcile` for every pending pod and by `simulate`. Pure: no clock, no randomness, no I/O; the same inventory
and demand give the same answer. What it returns is not stamped: shareIDs and the allocation timestamp are the caller's.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from controller.allocation.chooser import FirstFit
from controller.allocation.errors import AllocatorError, BudgetExceeded, InvalidPools
from controller.allocation.features import FeatureGates
from controller.allocation.prefilter import NOT_OF_CLASS, RequestColumns, prefilter_of
from controller.allocation.request import Problem, RequestGroup, prepare
from controller.allocation.scope import Owner, Scope, owners
from controller.allocation.search import Solution, solve
from controller.inventory.columns import Bools
from controller.inventory.inventory import Inventory
from controller.inventory.nodefit import CODES as NODE_CODES
from controller.inventory.selectors import node_selector_matches
from controller.scoring.chooser import PolicyChooser
from controller.scoring.formulas import best_node, ranked_nodes
from controller.scoring.policies import Policies
from hami_dra.api import names
from hami_dra.api.core import NodeSelector, Pod
from hami_dra.api.resource import ResourceClaim
from hami_dra.vendors.protocol import Ints
from hami_dra.vendors.reasons import CODES


@dataclass(frozen=True, slots=True)
class PodClaim:
    pod_claim_name: str
    claim: ResourceClaim


@dataclass(frozen=True, slots=True)
class Demand:
    """A pod and everything about it that decides its place."""

    pod: Pod
    claims: tuple[PodClaim, ...]
    """All claims of the pod in the pod's order, allocated ones included. A claim all of whose devices are foreign is
    not allocated by us: the node is chosen where it looks satisfiable."""
    policies: Policies = Policies()
    refused_nodes: Mapping[str, str] = field(default_factory=dict)
    """Node → why; remembered refusals of kube-scheduler."""
    preferred_node: str = ""
    """`status.nominatedNodeName`: taken if it fits, whatever the scores say."""
    required_node: str = ""
    """`spec.nodeName` of a pod that skipped the scheduler."""
    companions: tuple[Pod, ...] = ()
    """Other pending pods that share a claim with this one: the node must fit them all."""
    plugin_resources: tuple[str, ...] = ()
    """Extended resources the pod asked for before conversion: nodes whose device plugin still offers one are refused."""


@dataclass(frozen=True, slots=True)
class ClaimAllocation:
    pod_claim_name: str
    claim: ResourceClaim
    allocation: dict[str, Any]
    """JSON of AllocationResult, without shareID and allocationTimestamp."""


@dataclass(frozen=True, slots=True)
class Score:
    node: float
    devices: tuple[tuple[str, float], ...] = ()
    """`driver/pool/device` → device score, in order of the results."""


@dataclass(frozen=True, slots=True)
class Decision:
    node: str
    allocations: tuple[ClaimAllocation, ...]
    """Only the claims that were not allocated before and are ours."""
    score: Score
    fitting: tuple[tuple[str, float], ...]
    """The fitting nodes with their scores, best first, at most `Options.report_nodes`."""
    fitting_count: int
    unfit_count: int


@dataclass(frozen=True, slots=True)
class Refusal:
    message: str
    """HAMi's `no available node, <k> nodes do not meet`, or the error."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Reason code → how many cards (or nodes) have it as their first failing one."""
    nodes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Node → reason code → count, at most `Options.report_nodes`."""
    error: str = ""
    """Not empty: the allocator could not even search (bad selector, missing class, mixed drivers)."""


@dataclass(frozen=True, slots=True)
class Options:
    managed: frozenset[str] | None = None
    """Drivers that are ours to allocate; None = every driver (`simulate`)."""
    first_fit: bool = False
    """Upstream's own order, vendor rules off."""
    gates: FeatureGates = FeatureGates()
    fence_key: str = names.FENCE_TAINT
    report_nodes: int = 20


_BUDGETS: Final = 4
"""Searches that may run out of steps before the whole decision is given up."""


def decide(inventory: Inventory, demand: Demand, options: Options) -> Decision | Refusal:
    """Never raises for what the demand contains."""
    try:
        return _Decision(inventory, demand, options).run()
    except AllocatorError as error:
        return Refusal(str(error), error=str(error))


class _Decision:
    """One run of `decide`: claims sorted by owner, nodes filtered, the best of them searched."""

    def __init__(self, inventory: Inventory, demand: Demand, options: Options) -> None:
        self._inventory = inventory
        self._demand = demand
        self._options = options
        self._scope = Scope(options.managed, vendor_rules=not options.first_fit)
        self._elsewhere = Scope(options.managed, foreign=True, vendor_rules=False)
        self._ours, self._foreign = self._problems()
        self._chooser = PolicyChooser(inventory.devices, demand.policies)
        self._pool_error = ""
        self._budget_error = ""

    def run(self) -> Decision | Refusal:
        verdicts = _NodeVerdicts(self._inventory, self._demand)
        wanted = self._wanted()
        candidates = verdicts.mask.copy()
        for group, columns in wanted:
            candidates &= self._enough(group, columns)
        candidates |= verdicts.mask & self._troubled()
        fitting = np.flatnonzero(candidates)
        found = self._search(fitting)
        if found is None:
            return self._refusal(verdicts, wanted)
        node, solution = found
        return self._decision(node, solution, fitting)

    # -- what is asked -----------------------------------------------------------------------------------------------

    def _problems(self) -> tuple[Problem, Problem]:
        """What we allocate, and what kube-scheduler will. Raises AllocatorError."""
        waiting = [entry.claim for entry in self._demand.claims if entry.claim.status.allocation is None]
        everything = self._prepare(waiting)
        if self._options.managed is None:
            return everything, self._prepare([])
        found = owners(self._inventory, everything, self._options.managed)
        for claim, owner in zip(waiting, found, strict=True):
            if owner is Owner.MIXED:
                raise AllocatorError(
                    f"ResourceClaim {claim.key}: spec.devices.requests: some can only be met by devices that hami-dra manages, "
                    "others only by devices that it does not; split them into two claims"
                )
        foreign = [claim for claim, owner in zip(waiting, found, strict=True) if owner is Owner.FOREIGN]
        if not foreign:
            return everything, self._prepare([])
        ours = [claim for claim, owner in zip(waiting, found, strict=True) if owner is not Owner.FOREIGN]
        return self._prepare(ours), self._prepare(foreign)

    def _prepare(self, claims: list[ResourceClaim]) -> Problem:
        return prepare(
            claims,
            self._inventory.classes,
            features=self._options.gates,
            admin_namespaces=self._inventory.admin_namespaces() if _asks_admin_access(claims) else frozenset(),
            ignored_taints={self._options.fence_key},
        )

    def _wanted(self) -> list[tuple[RequestGroup, list[RequestColumns]]]:
        """Every request with the columns of its alternatives."""
        prefilter = prefilter_of(self._inventory)
        return [
            (group, [prefilter.columns(view, scope, problem.ignored_taints) for view in group.alternatives])
            for problem, scope in ((self._ours, self._scope), (self._foreign, self._elsewhere))
            for claim in problem.claims
            for group in claim.requests
        ]

    def _enough(self, group: RequestGroup, columns: list[RequestColumns]) -> Bools:
        """Nodes where some alternative may be met. A request for all devices is for the search to judge."""
        some = np.zeros(self._inventory.nodes.size, dtype=np.bool_)
        for view, column in zip(group.alternatives, columns, strict=True):
            some |= np.True_ if view.all_devices else column.enough(view.count)
        return some

    def _troubled(self) -> Bools:
        """Nodes whose pools cannot be used as published: the search goes there to say so."""
        mask = np.zeros(self._inventory.nodes.size, dtype=np.bool_)
        for name in self._inventory.troubled_nodes():
            row = self._inventory.nodes.index_of(name)
            if row >= 0:
                mask[row] = True
        return mask

    # -- searching ---------------------------------------------------------------------------------------------------

    def _search(self, candidates: Ints) -> tuple[int, Solution] | None:
        """The best node where everything can be had. Raises AllocatorError, as upstream ends the pod's attempt there."""
        nodes = self._inventory.nodes
        preferred = nodes.index_of(self._demand.preferred_node)
        if preferred >= 0 and preferred in candidates:
            found = self._solve(preferred)
            if found is not None:
                return preferred, found
            candidates = candidates[candidates != preferred]
        exhausted = 0
        while candidates.size:
            best = best_node(nodes.score, nodes.rank, candidates, self._demand.policies.node)
            try:
                found = self._solve(best)
            except BudgetExceeded as error:
                self._budget_error = str(error)
                found, exhausted = None, exhausted + 1
                if exhausted == _BUDGETS:
                    return None
            if found is not None:
                return best, found
            candidates = candidates[candidates != best]
        return None

    def _solve(self, row: int) -> Solution | None:
        node = self._inventory.nodes.node(row)
        pools = self._inventory.pools_on(node.metadata.name)
        usage = self._inventory.usage
        try:
            if self._foreign.claims:
                theirs = solve(self._foreign, node, self._elsewhere.pools(pools), usage, FirstFit())
                if theirs is None:
                    return None
            chooser = FirstFit() if self._options.first_fit else self._chooser
            return solve(self._ours, node, self._scope.pools(pools), usage, chooser)
        except InvalidPools as error:
            self._pool_error = self._pool_error or str(error)
            return None

    # -- answers -----------------------------------------------------------------------------------------------------

    def _decision(self, row: int, solution: Solution, fitting: Ints) -> Decision:
        nodes = self._inventory.nodes
        by_key = {
            claim.claim.key: (claim, json)
            for claim, json in zip(self._ours.claims, solution.allocations(), strict=True)
        }
        ranked = ranked_nodes(nodes.score, nodes.rank, fitting, self._demand.policies.node, self._options.report_nodes)
        return Decision(
            node=nodes.names[row],
            allocations=tuple(
                ClaimAllocation(entry.pod_claim_name, entry.claim, by_key[entry.claim.key][1])
                for entry in self._demand.claims
                if entry.claim.key in by_key
            ),
            score=Score(float(nodes.score[row]), self._chooser.reported(solution)),
            fitting=tuple((nodes.names[each], float(nodes.score[each])) for each in ranked),
            fitting_count=int(fitting.size),
            unfit_count=nodes.count - int(fitting.size),
        )

    def _refusal(self, verdicts: "_NodeVerdicts", wanted: list[tuple[RequestGroup, list[RequestColumns]]]) -> Refusal:
        selector_errors = (*self._ours.selector_errors, *self._foreign.selector_errors)
        error = str(selector_errors[0]) if selector_errors else self._pool_error
        report = _Report(self._inventory, self._options.report_nodes)
        report.nodes_refused(verdicts)
        left = verdicts.mask.copy()
        for group, columns in wanted:
            short = left & ~self._enough(group, columns)
            report.cards_refused(group, columns, short)
            left &= ~short
        if wanted and left.any():
            report.cards_refused(*wanted[0], left)
        message = self._budget_error or f"no available node, {self._inventory.nodes.count} nodes do not meet"
        return Refusal(error or message, dict(report.reasons), report.nodes, error)


class _NodeVerdicts:
    """Which nodes may take the pod, devices apart, and why the others may not."""

    def __init__(self, inventory: Inventory, demand: Demand) -> None:
        nodes = inventory.nodes
        fit = inventory.node_fit(demand.pod)
        self.codes = fit.codes
        self.mask = fit.mask.copy()
        self.reasons: list[tuple[str, Bools]] = []
        """What is not in `codes`: reason code and the nodes it refuses, each node once."""
        for companion in demand.companions:
            other = inventory.node_fit(companion)
            for number, code in enumerate(NODE_CODES):
                if code:
                    self._refuse(code, other.codes == number)
        rows = {name: nodes.index_of(name) for name in (*demand.refused_nodes, demand.required_node)}
        if demand.required_node:
            self._refuse(names.NODE_AFFINITY, np.arange(nodes.size) != rows[demand.required_node])
        for entry in demand.claims:
            allocation = entry.claim.status.allocation
            if allocation is not None and allocation.node_selector is not None:
                self._refuse(names.NODE_CLAIM_ELSEWHERE, ~_selected(inventory, allocation.node_selector))
        for resource in demand.plugin_resources:
            self._refuse(names.NODE_DEVICE_PLUGIN, nodes.offers(resource) > 0)
        if demand.refused_nodes:
            refused = np.zeros(nodes.size, dtype=np.bool_)
            refused[[rows[name] for name in demand.refused_nodes if rows[name] >= 0]] = True
            self._refuse(names.NODE_REFUSED, refused)

    def _refuse(self, code: str, refused: Bools) -> None:
        mine = self.mask & refused
        if mine.any():
            self.reasons.append((code, mine))
            self.mask &= ~mine


class _Report:
    """Counts every node or card once, by its first failing reason."""

    def __init__(self, inventory: Inventory, most: int) -> None:
        self._inventory = inventory
        self._most = most
        self.reasons: Counter[str] = Counter()
        self.nodes: dict[str, dict[str, int]] = {}

    def nodes_refused(self, verdicts: _NodeVerdicts) -> None:
        for number, code in enumerate(NODE_CODES):
            if code:
                self._add(code, np.flatnonzero(verdicts.codes == number))
        for code, mask in verdicts.reasons:
            self._add(code, np.flatnonzero(mask))

    def cards_refused(self, group: RequestGroup, columns: list[RequestColumns], nodes: Bools) -> None:
        """`nodes` cannot meet the request: with too few cards at all, else by what is wrong with each card."""
        if not nodes.any():
            return
        view, column = group.alternatives[0], columns[0]
        few = nodes & (column.cards() + column.roaming < max(view.count, 1))
        self._add(names.NODE_INSUFFICIENT_DEVICE, np.flatnonzero(few))
        rows = column.rows_on(nodes & ~few)
        codes = column.codes[rows]
        owners_ = self._inventory.devices.node[rows]
        for number in np.unique(codes):
            if number != NOT_OF_CLASS:
                code = CODES[number] if number else names.ALLOCATED_CARDS_INSUFFICIENT
                self._add(code, owners_[codes == number])

    def _add(self, code: str, node_rows: Iterable[int]) -> None:
        """One count for each entry, which is the row of a node."""
        counts = Counter(int(row) for row in node_rows)
        if counts:
            self.reasons[code] += counts.total()
        for row, count in counts.items():
            name = self._inventory.nodes.names[row]
            if name in self.nodes or len(self.nodes) < self._most:
                self.nodes.setdefault(name, {})[code] = count


def _selected(inventory: Inventory, selector: NodeSelector) -> Bools:
    """Nodes that the node selector of an allocation admits."""
    nodes = inventory.nodes
    mask = np.zeros(nodes.size, dtype=np.bool_)
    pinned = _pinned(selector)
    rows = range(nodes.size) if pinned is None else [row for name in pinned if (row := nodes.index_of(name)) >= 0]
    for row in rows:
        node = nodes.nodes[row]
        mask[row] = node is not None and node_selector_matches(selector, node.metadata.name, node.metadata.labels)
    return mask


def _pinned(selector: NodeSelector) -> tuple[str, ...] | None:
    """The names that the selector allows, or None where labels decide."""
    (term, *others) = selector.node_selector_terms or (None,)
    if others or term is None:
        return None
    for requirement in term.match_fields:
        if requirement.key == "metadata.name" and requirement.operator == "In":
            return requirement.values
    return None


def _asks_admin_access(claims: Iterable[ResourceClaim]) -> bool:
    return any(
        request.exactly and request.exactly.admin_access for claim in claims for request in claim.spec.devices.requests
    )
