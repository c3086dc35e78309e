"""The search for devices on one node: upstream's depth-first search, with the order of devices left to a chooser.

Called by `decide` for every node it tries. In: a `AllocationInput`, the node and its pools, the ledger. Out: a `Solution` or None.
Pure; steps are counted, never seconds.

A search is a generator: whoever has others to serve runs it in portions (`searching`), and may put it aside between two of them
as long as nothing changes of what it reads. What it finds does not depend on the portions.

Claims are met in order, and the requests of each in order; the first complete solution counts. `allocation_modes` holds the points of
decision, this module the state they share: what has been taken, and how to give it back.
"""

import sys
from collections.abc import Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from controller.scheduling.allocation.allocating import AllocatingDevices, Taken
from controller.scheduling.allocation.allocation_modes import AllDevices, Alternatives, ExactCount, Frame
from controller.scheduling.allocation.bounds import any_unjudged, counts, parts
from controller.scheduling.allocation.candidates import Candidate, Candidates
from controller.scheduling.allocation.chooser import Chooser, FirstFit
from controller.scheduling.allocation.counters import consumption, declared_groups
from controller.scheduling.allocation.errors import AllocatorError, BudgetExceeded, InvalidPools
from controller.scheduling.allocation.quota_use import QuotaUse
from controller.scheduling.allocation.request import MAX_RESULTS, require_space
from controller.scheduling.allocation.resolved import AllocationInput, ResolvedRequest
from controller.scheduling.allocation.result import Pick, allocation_result
from controller.scheduling.allocation.tentative import Undivided
from controller.scheduling.inventory.model import Device, Pool, Usage
from controller.scheduling.quota.headroom import QuotaHeadroom
from hami_dra.api.core import Node

DEFAULT_BUDGET: Final = 100_000
"""Steps before the search is given up; a step takes some microseconds. It is a device tried, a request entered, or that
request's devices ordered, so many of them a step."""
ORDERED_PER_STEP: Final = 16
LOOK_UP_AFTER: Final = 256
"""The step at which a search asks whether it can succeed at all; most have long ended."""
MOST_EFFORT: Final = 4 * DEFAULT_BUDGET
"""Steps of all searches of one decision, on however many nodes."""
PORTION: Final = 256
"""Steps of one portion, one or two milliseconds. What is passed over without a step counts as well."""
ENDLESS: Final = sys.maxsize
"""A portion that never ends."""
_PART_BUDGET: Final = 4_096
"""Steps for each question whether a part can be met alone."""
_PRIORITIZED_LIST_SIZE: Final = 8

Result = TypeVar("Result")


@dataclass(slots=True)
class Effort:
    """What the searches of one decision have cost. Those that end soon are free: there may be one for each of many nodes."""

    spent: int = 0

    @property
    def left(self) -> int:
        return max(MOST_EFFORT - self.spent, LOOK_UP_AFTER)

    def spend(self, steps: int) -> None:
        self.spent += max(0, steps - LOOK_UP_AFTER)


@dataclass(frozen=True, slots=True)
class Solution:
    """Devices for every claim of the problem."""

    node: str
    problem: AllocationInput
    picks: tuple[tuple[Pick, ...], ...]
    """By claim of the problem, in the order they were chosen."""
    steps: int

    @property
    def rank(self) -> int:
        """Upstream's score of prioritized lists: 8 - alternative, summed over `firstAvailable` requests. Higher is better."""
        chosen = {
            (pick.request.claim_index, pick.request.request_index): pick.request.alternative
            for picks in self.picks
            for pick in picks
            if pick.request.name != pick.request.parent_name
        }
        return sum(_PRIORITIZED_LIST_SIZE - alternative for alternative in chosen.values())

    def allocations(self) -> tuple[dict[str, Any], ...]:
        """AllocationResult of each claim as plain JSON, without shareID and allocationTimestamp. Raises AllocatorError."""
        return tuple(
            allocation_result(claim, picks, self.node)
            for claim, picks in zip(self.problem.claims, self.picks, strict=True)
        )


Searching = Generator[None, None, Solution | None]
"""A search on one node. It stops after each portion, and returns the solution."""


def solve(
    problem: AllocationInput,
    node: Node,
    pools: Sequence[Pool],
    usage: Usage,
    chooser: Chooser,
    *,
    budget: int = DEFAULT_BUDGET,
    effort: Effort | None = None,
    room: QuotaHeadroom | None = None,
) -> Solution | None:
    """Return the first complete solution in the chooser's order, or None.

    `effort` is what this search shares with others of the same decision. `room`: what the quota of the namespace leaves.
    Raises AllocatorError, InvalidPools, BudgetExceeded.
    """
    return completed(searching(problem, node, pools, usage, chooser, budget=budget, effort=effort, room=room))


def searching(
    problem: AllocationInput,
    node: Node,
    pools: Sequence[Pool],
    usage: Usage,
    chooser: Chooser,
    *,
    budget: int = DEFAULT_BUDGET,
    effort: Effort | None = None,
    room: QuotaHeadroom | None = None,
    portion: int = ENDLESS,
) -> Searching:
    """Do as `solve` does, `portion` steps at a time."""
    effort = effort or Effort()
    budget = min(budget, effort.left)
    search = Search(problem, node, pools, usage, chooser, budget=budget, room=room, portion=portion)
    try:
        found = yield from search.run()
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


def completed(generator: Generator[None, None, Result]) -> Result:
    """Run a generator to its end and return what it returns."""
    while True:
        try:
            next(generator)
        except StopIteration as end:
            result: Result = end.value
            return result


class _Infeasible(Exception):
    """There is no solution, however long one searches."""


class Search:
    """What the frames of one search share."""

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
        room: QuotaHeadroom | None = None,
        portion: int = ENDLESS,
    ) -> None:
        self.problem = problem
        self.chooser = chooser
        self.prunes = True
        """Skip what must fail. Not in upstream's order where a constraint may end the search with an error (a request for all
        devices, a derived attribute): whether upstream meets such an error depends on which devices were tried before."""
        self._node = node
        self._pools = pools
        self._look_up = look_up
        self._in_upstream_order = type(chooser) is FirstFit  # what extends it reorders
        self._stumbled: AllocatorError | None = None
        self.usage = usage if problem.features.consumable_capacity else Undivided(usage)
        self.candidates = Candidates(problem, node, pools, self.usage)
        self.spending = QuotaUse(room, problem, self.candidates) if room is not None else None
        self.held = AllocatingDevices(problem, self.candidates, self.usage, self.spending)
        self.steps = 0
        self.steps_for_parts = 0
        self.pause_at = 0
        """When `steps` has come so far, frames return to `_run`. Lowered for work that is no step."""
        self._portion = portion
        self._portion_ends = portion
        self._set_pause()
        self._budget = budget
        self._kinds: dict[Device, Hashable] = {}

    def run(self) -> Generator[None, None, bool]:
        """Search, and stop after each portion. Returns whether there is a solution: `held.picks`. Raises AllocatorError."""
        for claim in self.problem.claims:
            require_space(
                claim.claim,
                [(group.name, min(self.count(view) for view in group.alternatives)) for group in claim.requests],
            )
        self.prunes = not (self._in_upstream_order and any(map(self._may_fail, self.problem.views)))
        try:
            found = self._affords_any() and (yield from self._run())
        except _Infeasible:
            found = False
        if not found and self._stumbled is not None:
            raise self._stumbled
        return found

    def _run(self) -> Generator[None, None, bool]:
        stack: list[Frame] = []
        frame = self.enter(0, 0)
        while frame is not None:
            if self.steps >= self.pause_at:
                yield from self._pause()
            advanced = frame.advance()
            if advanced:
                stack.append(frame)
                frame = frame.next()
                continue
            if advanced is None:
                continue
            if not stack:
                return False
            failed, frame = frame, stack.pop()
            # that a claim cannot hold more results says nothing about the claims before it
            frame.retract(exceeded=failed.exceeded and failed.claim_index == frame.claim_index)
        return True

    def _pause(self) -> Iterator[None]:
        """Stop where the portion has ended. Before the step `LOOK_UP_AFTER`: look whether there is hope. Raises _NoHope."""
        passed_over = self._next_pause - self.pause_at
        self._portion_ends -= passed_over
        if self._look_up and self.steps >= LOOK_UP_AFTER - 1:
            self._look_up = False
            if self.prunes and (yield from self._hopeless()):
                raise _Infeasible
        if self.steps >= self._portion_ends:
            yield
            self._portion_ends = self.steps + self._portion
        self._set_pause()

    def _set_pause(self) -> None:
        self._next_pause = min(self._portion_ends, LOOK_UP_AFTER - 1) if self._look_up else self._portion_ends
        self.pause_at = self._next_pause

    # -- for frames ----------------------------------------------------------------------------------------------------

    def enter(self, claim_index: int, request_index: int, before: "ExactCount | None" = None) -> Frame | None:
        """The decision for the request at this place, or None past the last. `before`: the one for the request before it."""
        claims = self.problem.claims
        while claim_index < len(claims) and request_index >= len(claims[claim_index].requests):
            claim_index, request_index, before = claim_index + 1, 0, None
        if claim_index == len(claims):
            return None
        group = claims[claim_index].requests[request_index]
        return Alternatives(self, group) if group.prioritized else self.open(group.alternatives[0], before)

    def open(self, view: ResolvedRequest, before: "ExactCount | None" = None) -> Frame:
        """The choice of devices for one request."""
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
        self.steps += cost
        if self.steps > self._budget:
            raise BudgetExceeded(self._budget)

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
        """Here upstream ends the search. In an order of our own that would be chance: it ends so only if nothing is found."""
        if self._in_upstream_order:
            raise error
        self._stumbled = self._stumbled or error

    def kind(self, candidate: Candidate) -> Hashable:
        """Devices of one kind are interchangeable for the rest of this search: with one of them it goes as with the other."""
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
            self.pause_at -= len(self.problem.views)
        return static, self.held.trial.state(device.id)

    def _may_fail(self, view: ResolvedRequest) -> bool:
        """A constraint may end the search with an error here."""
        derives = not view.derived.keys().isdisjoint((*view.match_attributes, *view.distinct_attributes))
        return derives or bool(view.all_devices and view.constraints and self.candidates.all_of(view))

    def affords_set(
        self, view: ResolvedRequest, candidate: Candidate, others: Sequence[Candidate], missing: int
    ) -> bool:
        """The quota allows the candidate and so many of the others after it."""
        if self.spending is None:
            return True
        self.pause_at -= len(others)
        return self.spending.allows(view, candidate, others, missing)

    # -- is there hope? ------------------------------------------------------------------------------------------------

    def _affords_any(self) -> bool:
        """The quota does not rule out every solution. Devices that cannot be judged are met all the same, for their error."""
        return self.spending is None or not self.spending.hopeless or any_unjudged(self.problem, self.candidates)

    def _hopeless(self) -> Generator[None, None, bool]:
        """Nothing more to find: by counting, or because a part of the problem, taken alone in any order, has no solution."""
        if any_unjudged(self.problem, self.candidates):
            return False
        for shown in counts(self.problem, self.candidates, self.held.constraints, self.usage):
            if shown:
                return True
            if self._portion < ENDLESS:
                yield
        for part in parts(self.problem):
            is_asked = part is not self.problem or not self._in_upstream_order
            if is_asked and self.steps_for_parts <= self._budget and (yield from self._unsolvable(part)):
                return True
        return False

    def _unsolvable(self, problem: AllocationInput) -> Generator[None, None, bool]:
        """Without the chooser's refusals, so with every chooser."""
        search = Search(
            problem,
            self._node,
            self._pools,
            self.usage,
            FirstFit(),
            budget=_PART_BUDGET,
            look_up=False,
            portion=self._portion,
        )
        try:
            return not (yield from search.run())
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
            known.append((pool.driver, pool.name, frozenset(consumption(device)), frozenset(declared_groups(device))))
        for view in self.problem.views:
            known += [self.candidates.standing(view, device), self.held.values(view, device)]
            if self.spending is not None:
                known.append(self.spending.cost(view, device))
        return tuple(known)
