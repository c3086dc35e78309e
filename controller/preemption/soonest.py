"""The place that is free soonest for a unit if nobody is evicted for it, and nobody else comes. Pure.

Pods leave in the order of their ends; those that state none (`activeDeadlineSeconds`) come last, who
has run longest first. A node with three tenants of one device each, for a unit that needs two:

    ends at 12:00, at 12:30, not known       it is free at 12:30, once the first two are gone
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from msgspec import Struct

from controller.decide.allowed_nodes import AllowedNodes
from controller.decide.answers import Decision
from controller.decide.scheduling_request import SchedulingRequest
from controller.gangs import Unit, UnitDecision
from controller.preemption.preempt import Preemption, Search, doubled
from controller.preemption.tenants import Block, expected_end, started
from controller.preemption.victims import OutOfSteps
from hami_dra.api.core import Pod
from hami_dra.api.meta import belongs_to_node
from hami_dra.api.podclaims import claim_keys

_LOOKED_AT: Final = 1_000
"""Nodes whose pods' ends are read: those that lack the fewest devices."""


class Vacancy(Struct, frozen=True):
    """A place, and the pods that leave before it is free."""

    placed: tuple[tuple[SchedulingRequest, Decision], ...]
    leaving: tuple[Pod, ...]
    """Those that terminate already, then the first to end first."""
    ends: float
    """When the last of them ends at the latest, in seconds since 1970; infinite: one does not say."""


class _Wait(NamedTuple):
    """How long a place takes; less is better."""

    unknown: int
    """Pods whose end is not known."""
    until: float
    """When the last of the others ends."""
    number: int


class _Home(NamedTuple):
    nodes: AllowedNodes
    rows: Sequence[int]
    """The nodes of it whose pods may make room, the one that is free soonest first."""
    least: _Wait


def soonest(preemption: Preemption, unit: Unit) -> Vacancy | None:
    """Return the place that is free soonest for a unit that finds no room; None: there is none, even
    without all pods that may end. Raises SliceSpent as `decide`.
    """
    return _Soonest(preemption, unit).vacancy()


class _Soonest(Search):
    def __init__(self, preemption: Preemption, unit: Unit) -> None:
        super().__init__(preemption, unit)
        # a decision on a node of its own takes longer than one that chooses among victims; a large gang has one
        self._victims.steps = max(self._victims.steps // 2, self._victims.cost)

    def vacancy(self) -> Vacancy | None:
        best: tuple[_Wait, UnitDecision, Sequence[Block]] | None = None
        with self._inventory.trial() as trial:
            self.remove(trial, self.releasing)
            try:
                for home in self._homes():
                    if best is not None and best[0] <= home.least:
                        break
                    found = self._at(home)
                    if found is not None and (best is None or found[0] < best[0]):
                        best = found
            except OutOfSteps:
                pass
        if best is None:
            return None
        wait, answer, blocks = best
        now = self._rules.now
        in_order = [sorted(block.pods, key=lambda pod: (expected_end(pod, now), pod.key)) for block in blocks]
        leaving = {pod.metadata.uid: pod for pods in (self._releasing_for(answer, blocks), *in_order) for pod in pods}
        ends = math.inf if wait.unknown else max(wait.until, now)
        return Vacancy(self._unit.as_asked(answer.placed), tuple(leaving.values()), ends)

    def _releasing_for(self, answer: UnitDecision, blocks: Sequence[Block]) -> Sequence[Pod]:
        """Return those that leave in any case and that the place needs gone: on its nodes, or all of them."""
        releasing, nodes = self.releasing, {decision.node for _, decision in answer.placed}
        near = [pod for pod in releasing if pod.spec.node_name in nodes]
        self._within = AllowedNodes.of_rows(self._inventory.nodes.rows_of(nodes), self._inventory.nodes.size)
        with self._inventory.trial() as trial:
            self.remove(trial, [*near, *(pod for block in blocks for pod in block.pods)])
            return near if self.decide() is not None else releasing

    def _homes(self) -> Iterator[_Home]:
        """Yield the nodes, or for a gang the topology domains, that may be free soonest."""
        room, size = self._room, self._inventory.nodes.size
        waits = {row: self._least(row, room.devices[row]) for row in self.roomy[:_LOOKED_AT]}
        ordered = sorted(waits, key=waits.__getitem__)
        if self._unit.key is None:
            for row in ordered[: self._rules.nodes]:
                yield _Home(AllowedNodes.of_rows([row], size), [row], waits[row])
        else:
            for mask in self._masks(ordered)[: self._rules.nodes]:
                yield _Home(AllowedNodes(mask), [row for row in ordered if mask[row]], _Wait(0, -math.inf, 0))

    def _least(self, row: int, lacking: float) -> _Wait:
        """Return after which of its pods a node may have the devices that it lacks."""
        held = self._tenants.held()
        pods = [pod for pod in self._tenants.on(self._inventory.nodes.names[row]) if self._may_end(pod)]
        ends = sorted((expected_end(pod, self._rules.now), held.number(claim_keys(pod))) for pod in pods)
        number, unknown, until = 0, 0, -math.inf
        while lacking > 0 and number < len(ends):
            end, devices = ends[number]
            number, lacking = number + 1, lacking - devices
            unknown, until = (unknown + 1, until) if end == math.inf else (unknown, end)
        return _Wait(unknown, until, number)

    def _at(self, home: _Home) -> tuple[_Wait, UnitDecision, Sequence[Block]] | None:
        """Return after which pods of a place the unit fits there; None: it does not. Raises OutOfSteps."""
        self._within = home.nodes
        names = self._inventory.nodes.names
        lacking = self._lacking(home.nodes.mask)
        for many in doubled(len(home.rows)):
            blocks = self._tenants.blocks([names[row] for row in home.rows[:many]], self._may_end)
            if sum([block.devices for block in blocks]) < lacking:
                continue
            blocks.sort(key=self._end)
            answer = self._victims.without(blocks)
            if answer is None:
                continue
            low, high = 0, len(blocks)
            with suppress(OutOfSteps):
                while low < high:
                    middle = (low + high) // 2
                    if (fewer := self._victims.without(blocks[:middle])) is not None:
                        answer, high = fewer, middle
                    else:
                        low = middle + 1
            gone = blocks[:high]
            ends = [self._end(block)[0] for block in gone]
            known = [end for end in ends if end < math.inf]
            return _Wait(len(ends) - len(known), max(known, default=-math.inf), len(gone)), answer, gone
        return None

    def _may_end(self, pod: Pod) -> bool:
        uid, is_leaving = pod.metadata.uid, pod.metadata.deletion_timestamp is not None
        return not is_leaving and uid not in self._condemned and not belongs_to_node(pod)

    def _end(self, block: Block) -> tuple[float, float]:
        now = self._rules.now
        return max(expected_end(pod, now) for pod in block.pods), min(started(pod) for pod in block.pods)
