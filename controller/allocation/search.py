"""The search for devices on one node: upstream's depth-first search, with the order of devices left
to a chooser.

Called by `decide` for every node it tries. In: an `AllocationInput`, the node and its pools, the
ledger. Out: a `Solution` or None. Pure; steps are counted, never seconds.

Claims are met in order, and the requests of each in order; the first complete solution counts.
`allocation_modes` holds the decision points, this module the state they share: the devices taken,
and how to release them.
"""

from collections.abc import Hashable, Sequence
from typing import Final

from msgspec import Struct

from controller.allocation.allocating import AllocatingDevices, Taken
from controller.allocation.allocation_modes import AllDevices, Alternatives, ExactCount, Frame
from controller.allocation.bounds import any_unjudged, counts, parts
from controller.allocation.candidates import Candidate, Candidates
from controller.allocation.chooser import Chooser, FirstFit
from controller.allocation.counters import declared_groups, drawn_counters
from controller.allocation.errors import AllocatorError, BudgetExceeded, InvalidPools
from controller.allocation.quota_use import QuotaUse
from controller.allocation.request import MAX_RESULTS, require_space
from controller.allocation.resolved import AllocationInput, ResolvedRequest
from controller.allocation.result import Solution
from controller.allocation.tentative import Undivided
from controller.inventory.model import Device, Pool, Usage
from controller.inventory.quota_headroom import QuotaHeadroom
from hami_dra.api.core import Node

DEFAULT_BUDGET: Final = 100_000
"""Steps before the search is given up; a step takes some microseconds. One step is a device tried,
a request entered, or ORDERED_PER_STEP of its devices ordered.
"""
ORDERED_PER_STEP: Final = 16
SKIPPED_PER_STEP: Final = 4
"""Devices that are passed over because one like them failed: each takes about a microsecond."""
LOOK_UP_AFTER: Final = 256
"""The step at which a search tests whether it can succeed at all; most end long before."""
MOST_EFFORT: Final = 4 * DEFAULT_BUDGET
"""Steps of all searches of one decision together, on any number of nodes."""
_PART_BUDGET: Final = 4_096
"""Steps for each test whether a part can be met alone."""
_PARTS: Final = 4
"""All of these tests together get this part of the steps of the search: a quarter."""


class Effort(Struct):
    """The cost of the searches of one decision. Short ones are free, as there may be many."""

    spent: int = 0
    steps: int = 0
    """All steps, also those of short searches."""

    @property
    def left(self) -> int:
        return max(MOST_EFFORT - self.spent, LOOK_UP_AFTER)

    def spend(self, steps: int) -> None:
        self.steps += steps
        self.spent += max(0, steps - LOOK_UP_AFTER)


def solve(
    problem: AllocationInput,
    node: Node,
    pools: Sequence[Pool],
    usage: Usage,
    chooser: Chooser,
    *,
    budget: int = DEFAULT_BUDGET,
    effort: Effort | None = None,
    headroom: QuotaHeadroom | None = None,
) -> Solution | None:
    """Return the first complete solution in the chooser's order, or None.

    `effort`: shared with the other searches of the decision. `headroom`: headroom of the
    namespace's quota. Raises AllocatorError, InvalidPools, BudgetExceeded.
    """
    effort = effort or Effort()
    budget = min(budget, effort.left)
    search = Search(problem, node, pools, usage, chooser, budget=budget, headroom=headroom)
    try:
        found = search.run()
    except BudgetExceeded as error:
        raise BudgetExceeded(effort.spent + budget) from error
    finally:
        effort.spend(search.steps + search.steps_for_parts)
    if found:
        return Solution(node.metadata.name, problem, tuple(tuple(picks) for picks in search.held.picks), search.steps)
    invalid = [f"{pool.driver}/{pool.name}: {pool.invalid}" for pool in pools if pool.invalid]
    if invalid:
        raise InvalidPools(f"node {node.metadata.name} has invalid resource pools: {'; '.join(invalid)}")
    return None


class _Infeasible(Exception):
    """There is no solution, regardless of further steps."""


class Search:
    """The state that the frames of one search share."""

    def __init__(
        self,
        problem: AllocationInput,
        node: Node,
        pools: Sequence[Pool],
        usage: Usage,
        chooser: Chooser,
        *,
        budget: int,
        look_up: bool = True,
        headroom: QuotaHeadroom | None = None,
    ) -> None:
        self.problem = problem
        self.chooser = chooser
        self.prunes = True
        """Skip what must fail. Not in upstream's order if a constraint may end the search with an
        error (a request for all devices, a derived attribute): whether upstream meets such an error
        depends on the devices tried before.
        """
        self._node = node
        self._pools = pools
        self._look_up = look_up
        self._in_upstream_order = type(chooser) is FirstFit  # subclasses reorder
        self._deferred_error: AllocatorError | None = None
        self.usage = usage if problem.features.consumable_capacity else Undivided(usage)
        self.candidates = Candidates(problem, node, pools, self.usage)
        self.quota_use = QuotaUse(headroom, problem, self.candidates) if headroom is not None else None
        self.held = AllocatingDevices(problem, self.candidates, self.usage, self.quota_use)
        self.steps = 0
        self._skipped = 0
        self.steps_for_parts = 0
        self._budget = budget
        self._kinds: dict[Device, Hashable] = {}

    def run(self) -> bool:
        """Return whether there is a solution: `held.picks`. Raises AllocatorError."""
        # As upstream: a claim that needs more than 32 devices fails before any device is tried.
        for claim in self.problem.claims:
            require_space(
                claim.claim,
                [(group.name, min(self.count(view) for view in group.alternatives)) for group in claim.requests],
            )
        self.prunes = not (self._in_upstream_order and any(map(self._may_fail, self.problem.views)))
        try:
            found = self._affords_any() and self._run()
        except _Infeasible:
            found = False
        if not found and self._deferred_error is not None:
            raise self._deferred_error
        return found

    def _run(self) -> bool:
        """Walk depth first. `stack`: the decisions before `frame`, each with a choice."""
        stack: list[Frame] = []
        frame = self.enter(0, 0)
        while frame is not None:
            # A choice was made: go on to the next decision; after the last one all claims are met.
            if frame.advance():
                stack.append(frame)
                frame = frame.next()
                continue
            # No choice is left here. Without an earlier decision there is no solution; else that
            # one must choose again.
            if not stack:
                return False
            failed, frame = frame, stack.pop()
            # "Too many results" concerns one claim: it says nothing about the claims before it.
            frame.retract(exceeded=failed.exceeded and failed.claim_index == frame.claim_index)
        return True

    # -- for frames --------------------------------------------------------------------------------

    def enter(self, claim_index: int, request_index: int, before: "ExactCount | None" = None) -> Frame | None:
        """Return the decision for this request, None past the last. `before`: the previous one."""
        claims = self.problem.claims
        while claim_index < len(claims) and request_index >= len(claims[claim_index].requests):
            claim_index, request_index, before = claim_index + 1, 0, None
        if claim_index == len(claims):
            return None
        group = claims[claim_index].requests[request_index]
        return Alternatives(self, group) if group.prioritized else self.open(group.alternatives[0], before)

    def open(self, view: ResolvedRequest, before: "ExactCount | None" = None) -> Frame:
        if view.all_devices:
            self.step()
            return AllDevices(self, view)
        self.step(1 + len(self.candidates.of(view)) // ORDERED_PER_STEP)
        return ExactCount(self, view, before)

    def count(self, view: ResolvedRequest) -> int:
        return len(self.candidates.all_of(view)) if view.all_devices else view.count

    def room_for_results(self, view: ResolvedRequest) -> bool:
        return self.count(view) <= MAX_RESULTS - len(self.held.picks[view.claim_index])

    def step(self, cost: int = 1) -> None:
        """Count steps. Once, it tests whether there is hope. Raises BudgetExceeded."""
        self.steps += cost
        if self.steps > self._budget:
            raise BudgetExceeded(self._budget)
        if self._look_up and self.steps >= LOOK_UP_AFTER:
            self._look_up = False
            if self.prunes and self._is_infeasible():
                raise _Infeasible

    def skip(self, cost: int = 1) -> None:
        """Count what is skipped without being tried: `SKIPPED_PER_STEP` of these are a step."""
        self._skipped += cost
        if self._skipped >= SKIPPED_PER_STEP:
            self.step(self._skipped // SKIPPED_PER_STEP)
            self._skipped %= SKIPPED_PER_STEP

    def take(self, view: ResolvedRequest, candidate: Candidate) -> Taken | None:
        self.step()
        try:
            return self.held.take(view, candidate)
        except AllocatorError as error:
            self.defer_error(error)
            return None

    def take_all(self, view: ResolvedRequest, candidate: Candidate) -> Taken | None:
        self.step()
        try:
            return self.held.take_all(view, candidate)
        except AllocatorError as error:
            self.defer_error(error)
            return None

    def defer_error(self, error: AllocatorError) -> None:
        """Record an error at which upstream ends the search. In an order other than upstream's,
        when it is met is chance: so the search only ends with it if nothing is found.
        """
        if self._in_upstream_order:
            raise error
        self._deferred_error = self._deferred_error or error

    def kind(self, candidate: Candidate) -> Hashable:
        """Return the kind of a device: devices of one kind are interchangeable for the rest of this
        search.

        The static part (capacity, selectors, constraints, usage in the ledger) is computed once per
        device, the rest is what this search has done to it. If a fails at some depth, b of the same
        kind fails there too and is skipped.
        """
        device = candidate.device
        if not self.prunes:
            return device.id
        static = self._kinds.get(device)
        if static is None:
            try:
                static = self._static_kind(candidate)
            except AllocatorError:
                static = device.id
            self._kinds[device] = static
        return static, self.held.tentative.state(device.id)

    def _may_fail(self, view: ResolvedRequest) -> bool:
        """Return whether a constraint may end the search with an error here."""
        derives = not view.derived.keys().isdisjoint((*view.match_attributes, *view.distinct_attributes))
        return derives or bool(view.all_devices and view.constraints and self.candidates.all_of(view))

    def affords_set(
        self, view: ResolvedRequest, candidate: Candidate, others: Sequence[Candidate], missing: int
    ) -> bool:
        """Return whether the quota allows the candidate and `missing` of the others."""
        if self.quota_use is None:
            return True
        self.skip(len(others))
        return self.quota_use.allows(view, candidate, others, missing)

    # -- feasibility -------------------------------------------------------------------------------

    def _affords_any(self) -> bool:
        """Return whether the quota leaves a solution, or a device that cannot be judged and its error."""
        return self.quota_use is None or not self.quota_use.infeasible or any_unjudged(self.problem, self.candidates)

    def _is_infeasible(self) -> bool:
        """Return whether there is no solution: by counting, or because a part of the problem alone has none."""
        # A device that cannot be judged may still end the search with an error.
        if any_unjudged(self.problem, self.candidates):
            return False
        if any(counts(self.problem, self.candidates, self.held.constraints, self.usage)):
            return True
        # Each claim and each request alone, in any order: a failure there is a failure of the
        # whole. The whole itself only if the chooser's order is not the one already being searched.
        for part in parts(self.problem):
            is_tested = part is not self.problem or not self._in_upstream_order
            if is_tested and self.steps_for_parts <= self._budget // _PARTS and self._unsolvable(part):
                return True
        return False

    def _unsolvable(self, problem: AllocationInput) -> bool:
        """Return whether the part has no solution with any chooser: this one refuses nothing."""
        chooser = FirstFit()
        search = Search(problem, self._node, self._pools, self.usage, chooser, budget=_PART_BUDGET, look_up=False)
        try:
            return not search.run()
        except (AllocatorError, BudgetExceeded):
            return False
        finally:
            self.steps_for_parts += search.steps

    def _static_kind(self, candidate: Candidate) -> Hashable:
        device, pool = candidate.device, candidate.pool
        known: list[Hashable] = [
            self.chooser.kind(device),
            device.shared,
            self.usage.in_use(device.id),
            self.usage.shares(device.id) > 0,
            tuple(sorted(self.usage.consumed(device.id).items())),
        ]
        if device.spec.consumes_counters:
            known.append(
                (pool.driver, pool.name, frozenset(drawn_counters(device)), frozenset(declared_groups(device)))
            )
        for view in self.problem.views:
            known += [self.candidates.equivalence_key(view, device), self.held.values(view, device)]
            if self.quota_use is not None:
                known.append(self.quota_use.cost(view, device))
        return tuple(known)
