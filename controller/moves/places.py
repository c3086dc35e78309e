"""The places where a unit that waits fits once some pods have moved. Pure.

In difference to preemption, a pod of any priority may have to go, and goes only where it has a place.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import combinations, islice
from math import comb
from typing import Final

import numpy as np

from controller.decide import AllowedNodes
from controller.gangs import Unit, UnitDecision
from controller.inventory import DeviceId
from controller.moves.movable import Movable
from controller.moves.search import Mover, Moves, MoveTarget, memory_of
from controller.preemption import OutOfSteps, Preemption, Search, doubled
from hami_dra.api.arrays import Bools, Positions
from hami_dra.api.core import Pod

_REGIONS: Final = 16
"""Nodes, or parts of topology domains, that are tried for a first plan."""
_OF_MEMBER: Final = 4
"""Decisions that cost as much as that on one member of a gang, whose place is no longer as it was."""
_PODS_OF_A_STEP: Final = 16
"""Pods whose removal costs as much as a decision."""
_CHOICES: Final = 500
"""Choices of pods of one node, up to which all are tried."""


class Places(Search):
    """`movable_of`: returns a pod as one that may be moved, or None. `most_nodes`: those on which such pods are looked for."""

    def __init__(
        self,
        preemption: Preemption,
        unit: Unit,
        mover: Mover,
        movable_of: Callable[[Pod], Movable | None],
        most_nodes: int | None = None,
    ) -> None:
        super().__init__(preemption, unit)
        self._mover = mover
        self._movable_of = movable_of
        self._most_nodes = most_nodes
        self._tried: set[int] = set()
        self._placed: UnitDecision | None = None
        """Where the unit has fitted last."""

    def fits(self) -> bool:
        """Return whether the unit fits as the inventory is now."""
        self._within = None
        self._placed = self.decide()
        return self._placed is not None

    def best(self, most: int) -> tuple[UnitDecision, Moves] | None:
        """Return where the unit fits, after the fewest moves of those to `first` places, up to `most`."""
        best: tuple[UnitDecision, Moves] | None = None
        try:
            for target in self.first():
                if len(target.tenants) > most or (best is not None and target.cost >= best[1].cost):
                    continue
                moves = self._mover.in_order(target, self.fits)
                if moves is not None and self._placed is not None:
                    best = self._placed, moves
        except OutOfSteps:
            self._mover.is_cut = True
        return best

    def first(self) -> Iterator[MoveTarget]:
        """Yield places that need few moves: of all pods of a region, those without whom the unit fits
        are given back, the largest first. Regions in which it fits grow further once all others were tried.
        """
        regions = deque(self._regions())
        while regions:
            nodes, growing = regions.popleft()
            for rows in growing:
                pods = self._on(rows)
                if _number(pods) < self._lacking(nodes.mask) or (answer := self._without(nodes, pods)) is None:
                    continue
                yield from self._targets(nodes, self._needed(nodes, pods, answer))
                regions.append((nodes, growing))
                break

    def _needed(self, nodes: AllowedNodes, pods: list[Movable], answer: UnitDecision) -> list[Movable]:
        """Return those of the pods that must go for the unit to fit, as they are on the nodes of an answer."""
        there = {decision.node for _, decision in answer.placed}
        kept = [each for each in pods if each.pod.spec.node_name in there]
        if len(kept) < len(pods) and self._without(nodes, kept) is None:
            kept = pods
        lacking = self._lacking(AllowedNodes.of_rows(self._inventory.nodes.rows_of(there), nodes.mask.size).mask)
        for each in sorted(kept, key=lambda each: -each.memory):
            fewer = [other for other in kept if other is not each]
            if _number(fewer) >= lacking and self._without(nodes, fewer) is not None:
                kept = fewer
        return kept

    def all(self, fewer: int) -> Iterator[MoveTarget]:
        """Yield all places that fewer pods than this must leave, the fewest pods first. Of a gang those on
        single nodes. Raises OutOfSteps.
        """
        on_node = {row: self._on([row]) for row in self._rows()}
        for number in range(1, fewer):
            for row, pods in on_node.items():
                if comb(len(pods), number) > _CHOICES:
                    self._mover.is_cut = True
                    continue
                lacking = self._room.devices[row] if self._unit.key is None else 0
                nodes = AllowedNodes.of_rows([row], self._inventory.nodes.size)
                for chosen in sorted(combinations(pods, number), key=memory_of):
                    if sum(len(each.devices) for each in chosen) >= lacking:
                        self._mover.spend()
                        yield from self._targets(nodes, chosen)

    def _may_go(self, pod: Pod) -> bool:
        return self._movable_of(pod) is not None

    def _rows(self, among: Iterable[int] | None = None) -> Iterator[int]:
        """Yield the nodes where moves may make room, those that lack the fewest devices first."""
        for row in self.roomy if among is None else among:
            if row not in self._tried and self._most_nodes is not None and len(self._tried) >= self._most_nodes:
                return
            if (pods := self._on([row])) and _number(pods) >= self._room.devices[row]:
                self._tried.add(row)
                yield row

    def _regions(self) -> Iterator[tuple[AllowedNodes, Iterator[Sequence[int]]]]:
        """Yield the nodes that the unit may use, and more and more of them from which all pods go. Domains in which
        the nodes for a gang lack the fewest devices come first.
        """
        if self._unit.key is None:
            for row in islice(self._rows(), _REGIONS):
                yield AllowedNodes.of_rows([row], self._inventory.nodes.size), iter([[row]])
            return
        roomy, least = np.array(self.roomy, dtype=np.intp), max(self._unit.least, 1)
        domains: list[tuple[bool, float, int, Bools, Positions]] = []
        for number, mask in enumerate(self._masks(roomy.tolist())):
            rows = roomy[mask[roomy]]
            lacking = float(self._room.devices[rows[:least]].sum())
            domains.append((len(rows) < least, lacking, number, mask, rows))
        for *_, mask, rows in nsmallest(_REGIONS, domains):
            yield AllowedNodes(mask), self._growing(rows.tolist())

    def _growing(self, rows: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield 1, 2, 4, ... and the most of the nodes where moves may make room."""
        taken: list[int] = []
        following = self._rows(rows)
        for many in doubled(len(rows)):
            before = len(taken)
            taken += islice(following, many - before)
            if len(taken) == before:
                return
            yield [*taken]

    def _on(self, rows: Collection[int]) -> list[Movable]:
        names = self._inventory.nodes.names
        pods = [pod for row in rows for pod in self._tenants.on(names[row])]
        return [movable for pod in pods if (movable := self._movable_of(pod)) is not None]

    def _without(self, nodes: AllowedNodes, pods: Sequence[Movable]) -> UnitDecision | None:
        self._within = nodes
        members = _OF_MEMBER * len(self._unit.members) if self._unit.key is not None else 1
        self._mover.charge(members + len(pods) // _PODS_OF_A_STEP)
        with self._inventory.trial() as trial:
            trial.remove_all([each.uid for each in pods], {uid for each in pods for uid in each.claims})
            return self.decide()

    def _targets(self, nodes: AllowedNodes, pods: Sequence[Movable]) -> Iterator[MoveTarget]:
        """Yield how the pods can leave room for the unit: its nodes are held, or only its devices."""
        answer = self._without(nodes, pods)
        if answer is not None:
            placed = [decision for _, decision in answer.placed]
            rows = {self._inventory.nodes.index_of(decision.node) for decision in placed}
            devices = frozenset[DeviceId]().union(*(each.devices for each in placed))
            yield MoveTarget(self._inventory, tuple(pods), nodes=rows)
            yield MoveTarget(self._inventory, tuple(pods), devices=devices)


def _number(pods: Iterable[Movable]) -> int:
    """Return how many devices pods have."""
    return len(frozenset[DeviceId]().union(*(each.devices for each in pods)))
