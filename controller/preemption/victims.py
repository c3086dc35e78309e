"""The victims that cost least in one place: on a node, or in a topology domain. Pure.

The order of plans is kube-scheduler's (pickOneNodeForPreemption, Kubernetes 1.37.1), with the gangs
that are broken after the highest priority:

    exceeded budgets < highest priority < gangs broken < sum of (priority + 2^31) < number < latest start

2^31 is more than any priority, so in practice fewer victims come before a lower sum. Up to `EXACT`
blocks all choices are tried in this order; of more, kube-scheduler's greedy way leads to a first
plan, and smaller ones are tried after it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final, NamedTuple

from controller.gangs import UnitDecision
from controller.inventory.inventory import Inventory
from controller.preemption.budgets import Budgets
from controller.preemption.guarantees import Guarantees
from controller.preemption.tenants import Block, Tenants, started
from hami_dra.api.core import Pod

EXACT: Final = 8
"""Blocks of which all choices are tried: 255."""
_SMALL: Final = 2
"""Victims of the plans that are tried after the greedy one."""
_PODS_OF_A_STEP: Final = 32
"""Pods that are taken away and put back in the time of a decision."""
OFFSET: Final = 1 << 31
"""What kube-scheduler adds to each priority before it sums them up."""


class Rank(NamedTuple):
    """Less is better."""

    violations: int
    highest: int
    broken: int
    total: int
    """Sum of (priority + 2^31)."""
    number: int
    since: float
    """Minus the earliest start of a victim with the highest priority: who has run longest is spared."""


class Found(NamedTuple):
    rank: Rank
    victims: tuple[Pod, ...]
    """The most important one first."""
    answer: UnitDecision
    """What was decided without them."""
    blocks: tuple[Block, ...]


class OutOfSteps(Exception):
    """The budget of decisions is spent."""


@dataclass(eq=False)
class Victims:
    """The choice of victims; its steps are spent over all places."""

    inventory: Inventory
    tenants: Tenants
    budgets: Budgets
    guarantees: Guarantees
    decide: Callable[[], UnitDecision | None]
    """The decision on the unit as the inventory is now, or None where it does not fit."""
    steps: int
    """Decisions on single pods that are left."""
    cost: int
    """Of one decision on the unit, in steps."""
    is_cut: bool = False
    """Whether choices were left out."""
    _enough: tuple[Sequence[Block], UnitDecision] = field(init=False)
    """The fewest blocks known to be enough, and what was decided without them."""

    def without(self, blocks: Sequence[Block]) -> UnitDecision | None:
        """Decide as if the blocks were gone. Raises OutOfSteps."""
        pods = [pod.metadata.uid for block in blocks for pod in block.pods]
        cost = self.cost + len(pods) // _PODS_OF_A_STEP
        if self.steps < cost:
            self.steps = 0
            raise OutOfSteps
        self.steps -= cost
        with self.inventory.trial() as trial:
            trial.remove_all(pods, {uid for block in blocks for uid in block.claims})
            return self.decide()

    def rank(self, blocks: Iterable[Block]) -> tuple[Rank, tuple[Pod, ...]]:
        """Return the rank of a plan and its victims, the most important one first."""
        blocks = tuple(blocks)
        victims = self._ordered(blocks)
        priorities = [self.tenants.priority(pod) for pod in victims]
        earliest = min(started(pod) for pod, each in zip(victims, priorities, strict=True) if each == priorities[0])
        rank = Rank(
            len(self.budgets.exceeded_by(victims)),
            priorities[0],
            len({block.breaks for block in blocks if block.breaks is not None}),
            sum(priorities) + OFFSET * len(priorities),
            len(victims),
            -earliest,
        )
        return rank, tuple(victims)

    def cheapest(self, blocks: Sequence[Block], best: Rank | None, devices: int) -> Iterator[Found]:
        """Yield ever better plans that are as good as `best`; several of one rank. Ends when the
        steps are spent (`is_cut`).

        `devices`: how many must become free at least.
        """
        if not blocks:
            return
        choose = self._exactly if len(blocks) <= EXACT else self._greedily
        try:
            yield from choose(blocks, best, devices)
        except OutOfSteps:
            self.is_cut = True

    # -- inside ------------------------------------------------------------------------------------

    def _exactly(self, blocks: Sequence[Block], best: Rank | None, devices: int) -> Iterator[Found]:
        every = (chosen for size in range(1, len(blocks) + 1) for chosen in combinations(blocks, size))
        yield from self._in_order(every, best, devices)

    def _in_order(self, choices: Iterable[Sequence[Block]], best: Rank | None, devices: int) -> Iterator[Found]:
        enough = (chosen for chosen in choices if sum([block.devices for block in chosen]) >= devices)
        ranked = [(*self.rank(chosen), chosen) for chosen in enough]
        ranked.sort(key=lambda each: each[0])
        for rank, victims, chosen in ranked:
            if best is not None and rank > best:
                return
            if (rank.violations and not self.budgets.best_effort) or len(self.guarantees.most(chosen)) < len(chosen):
                continue
            if (answer := self.without(chosen)) is not None:
                best = rank
                yield Found(rank, victims, answer, tuple(chosen))

    def _greedily(self, blocks: Sequence[Block], best: Rank | None, devices: int) -> Iterator[Found]:
        """Yield a plan by kube-scheduler's way, then plans of few victims that are better."""
        self.is_cut = True
        found, is_all = None, False
        with suppress(OutOfSteps):
            for pool in self._pools(blocks):
                is_all = len(pool) == len(blocks)
                if (reprieved := self._reprieved(pool)) is None:
                    continue
                chosen, answer = reprieved
                rank, victims = self.rank(chosen)
                if rank.violations and not self.budgets.best_effort:
                    continue
                if found is None or rank < found.rank:
                    found = Found(rank, victims, answer, tuple(chosen))
        if found is None and is_all:
            return  # even without all of them the unit does not fit
        if found is not None and (best is None or found.rank <= best):
            yield found
            best = found.rank
        small = [each for each in blocks if found is None or self._priority(each) <= found.rank.highest]
        choices = [(each,) for each in small]
        if len(small) <= 2 * EXACT and (found is None or len(found.blocks) > _SMALL - 1):
            choices += combinations(small, _SMALL)  # type: ignore[arg-type]
        yield from (each for each in self._in_order(choices, best, devices) if found is None or each.rank < found.rank)

    def _pools(self, blocks: Sequence[Block]) -> Iterator[Sequence[Block]]:
        """Yield blocks that exceed no budget even if all of them go, then, for best effort, all; of those
        as many as leave namespaces their guarantees.

        Of the pods under one budget, or of one namespace, the most important ones count first, as for
        kube-scheduler, or the least important ones, which are better victims. Of one namespace also each
        of the least important ones with those of its device and node.
        """
        victims, blocks = self._ordered(blocks), sorted(blocks, key=lambda each: self._importance(each, set()))
        for step in (1, -1):
            exceeded = {pod.metadata.uid for pod in self.budgets.exceeded_by(victims[::step])}
            kept = [each for each in blocks[::step] if not any(pod.metadata.uid in exceeded for pod in each.pods)]
            yield (pool := self.guarantees.most(kept))
            if len(pool) == len(blocks):
                return
            for first in kept[:EXACT] if len(pool) < len(kept) and step < 0 else ():
                yield self.guarantees.most(sorted(kept, key=lambda each: self._distance(first, each)))
        if self.budgets.best_effort:
            yield self.guarantees.most(blocks[::-1])

    def _distance(self, one: Block, other: Block) -> int:
        """Return 0 if they have parts of one device, 1 if they are on one node, else 2."""
        devices = [
            {each.device for uid in block.claims for each in self.inventory.usage.counted(uid)}
            for block in (one, other)
        ]
        nodes = [{pod.spec.node_name for pod in block.pods} for block in (one, other)]
        return 0 if devices[0] & devices[1] else 1 if nodes[0] & nodes[1] else 2

    def _reprieved(self, blocks: Sequence[Block]) -> tuple[Sequence[Block], UnitDecision] | None:
        """Return what is left of the blocks after all were given back that need not go, the most
        important ones first and before them those that exceed a budget (SelectVictimsOnNode), and what
        was decided without it. When the steps are spent, the others are not given back.
        """
        if not blocks or (answer := self.without(blocks)) is None:
            return None
        self._enough = blocks, answer
        exceeded = {pod.metadata.uid for pod in self.budgets.exceeded_by(self._ordered(blocks))}
        ordered = sorted(blocks, key=lambda each: self._importance(each, exceeded))
        with suppress(OutOfSteps):
            self._kept(ordered, (), is_enough=False)
        return self._enough

    def _kept(self, segment: Sequence[Block], others: Sequence[Block], *, is_enough: bool | None = None) -> list[Block]:
        """Return those of the segment that must go together with the others: none if the others are
        enough (`is_enough`, None: not known), else those of its first half, then of the second. It is
        what giving back one after the other comes to, in fewer decisions.
        """
        if is_enough is None:
            answer = self.without(others)
            is_enough = answer is not None
            if answer is not None:
                self._enough = others, answer
        if is_enough or len(segment) == 1:
            return [] if is_enough else [*segment]
        half = len(segment) // 2
        first = self._kept(segment[:half], (*segment[half:], *others))
        return [*first, *self._kept(segment[half:], (*first, *others), is_enough=None if first else False)]

    def _importance(self, block: Block, exceeded: set[str]) -> tuple[bool, int, bool, int, float]:
        """Return a key by which blocks are given back: MoreImportantVictim of Kubernetes 1.37."""
        first = self._first(block)
        return (
            not any(pod.metadata.uid in exceeded for pod in block.pods),
            -self._priority(block),
            block.breaks is None,
            -len(block.pods),
            started(first),
        )

    def _priority(self, block: Block) -> int:
        return self.tenants.priority(self._first(block))

    def _first(self, block: Block) -> Pod:
        return self._by_importance(block.pods)[0]

    def _ordered(self, blocks: Iterable[Block]) -> list[Pod]:
        return self._by_importance({pod.metadata.uid: pod for block in blocks for pod in block.pods}.values())

    def _by_importance(self, pods: Iterable[Pod]) -> list[Pod]:
        return sorted(pods, key=lambda pod: (-self.tenants.priority(pod), started(pod), pod.key))
