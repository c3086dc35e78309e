"""Moves, one after the other: each pod leaves its place and gets the one that `decide` chooses then. Pure.

Moves are tried on trials of the inventory, which is as before at the end. What is to become free is
held: no pod that moves gets it, as if it were cordoned. No pod moves twice.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from controller.decide import AllowedNodes, Decision, Options, decide
from controller.inventory import DeviceId, Inventory
from controller.moves.movable import Movable
from controller.preemption import OutOfSteps

_FRUITLESS: Final = 200
"""Cells in a row that could not be emptied."""


class Cell(NamedTuple):
    """A device, with its parts, or all devices of a node."""

    name: str
    """Of the node, or `driver/pool/device`."""
    node: int
    """Row of its node."""
    is_node: bool
    devices: frozenset[DeviceId]
    tenants: tuple[Movable, ...] = ()
    """The pods that must leave; none: it is free."""

    @property
    def cost(self) -> tuple[int, int, int, str]:
        """Pods to move, bytes of device memory that they hold, devices that become free; less is better."""
        return len(self.tenants), sum(each.memory for each in self.tenants), -len(self.devices), self.name


@dataclass(eq=False)
class MoveTarget:
    """What is held, and the pods that must leave it."""

    inventory: Inventory
    tenants: tuple[Movable, ...]
    nodes: Collection[int] = ()
    """Rows of nodes that are held as a whole."""
    devices: frozenset[DeviceId] = frozenset()
    """Devices that are held on other nodes."""
    cells: tuple[Cell, ...] = ()
    """What is free at the end, and was not."""

    @classmethod
    def of_cells(cls, inventory: Inventory, free: Sequence[Cell], chosen: Sequence[Cell]) -> "MoveTarget":
        """Return how cells become free while others stay free."""
        cells = [*free, *chosen]
        tenants = {each.uid: each for cell in chosen for each in cell.tenants}
        nodes = {cell.node for cell in cells if cell.is_node}
        devices = frozenset(device for cell in cells if not cell.is_node for device in cell.devices)
        return cls(inventory, tuple(sorted(tenants.values(), key=largest_first)), nodes, devices, tuple(chosen))

    @property
    def cost(self) -> tuple[int, int]:
        """Pods that must move, and bytes of device memory."""
        return len(self.tenants), memory_of(self.tenants)

    @cached_property
    def allowed(self) -> AllowedNodes | None:
        """The nodes that are not held; also not those all of whose devices are, which saves time."""
        mask = np.ones(self.inventory.nodes.size, dtype=np.bool_)
        mask[[*self.nodes]] = False
        on_node: Counter[int] = Counter(
            int(self.inventory.devices.node[self.inventory.devices.row_of(device)]) for device in self.devices
        )
        for node, count in on_node.items():
            mask[node] &= node < 0 or count < len(self.inventory.rows_of(node))
        return None if mask.all() else AllowedNodes(mask)


class Moved(Struct, frozen=True, eq=False):
    movable: Movable
    decision: Decision


class Moves(Struct, frozen=True, eq=False):
    """Moves in an order in which each has a place when its turn comes."""

    target: MoveTarget
    moved: tuple[Moved, ...]

    @property
    def cost(self) -> tuple[int, int]:
        return len(self.moved), memory_of(each.movable for each in self.moved)


def memory_of(movables: Iterable[Movable]) -> int:
    return sum(each.memory for each in movables)


def largest_first(movable: Movable) -> tuple[int, int, str]:
    return -len(movable.devices), -movable.memory, movable.pod.key


@dataclass(eq=False)
class Mover:
    inventory: Inventory
    movables: Sequence[Movable]
    options: Options
    steps: int
    """Decisions that are left."""
    beat: Callable[[int], None] = lambda _moves: None
    """Called with the number of pods that have a new place, after each."""
    charge: Callable[[int], None] = lambda _decisions: None
    """Called before decisions on all nodes; may raise OutOfSteps."""
    is_cut: bool = field(default=False, init=False)
    """Whether choices were left out."""

    def move(self, movable: Movable, target: MoveTarget) -> Moved | None:
        """Return the new place of a pod that counts nowhere now; None: it has none, or stays where it is."""
        self.charge(1)
        request = replace(movable.request, allowed_nodes=target.allowed, masked_devices=target.devices)
        answer = decide(self.inventory, request, self.options)
        if not isinstance(answer, Decision):
            return None
        stays = answer.node == movable.pod.spec.node_name and answer.devices == movable.devices
        return None if stays else Moved(movable, answer)

    def spend(self) -> None:
        """Count a decision of the search. Raises OutOfSteps."""
        self.steps -= 1
        if self.steps < 0:
            raise OutOfSteps

    def fewest(self, targets: Sequence[MoveTarget], most: int, reached: Callable[[], bool]) -> Moves | None:
        """Return the fewest moves, up to `most`, after which one of the targets is reached. Tries all
        orders, and other pods that make room. `targets`: the cheapest first. Raises OutOfSteps.

        Two pods must leave their node. One fits nowhere else, unless a third one moves first:

            2 moves, each order: not reached     3 moves: third, first, second
        """
        for total in range(most + 1):
            for target in targets:
                if len(target.tenants) > total:
                    break
                moved: dict[str, Moved] = {}
                if self._extend(target, total, moved, set(), reached):
                    return Moves(target, tuple(moved.values()))
        return None

    def _extend(
        self,
        target: MoveTarget,
        total: int,
        moved: dict[str, Moved],
        seen: set[frozenset[tuple[str, str, frozenset[DeviceId]]]],
        reached: Callable[[], bool],
    ) -> bool:
        left = [each for each in target.tenants if each.uid not in moved]
        if not left and reached():
            return True
        if len(moved) == total:
            return False
        must = {each.uid for each in target.tenants}
        spare = total - len(moved) - len(left)
        others = [each for each in self.movables if each.uid not in must and each.uid not in moved] if spare else []
        for movable in (*left, *others):
            self.spend()
            with self.inventory.trial() as trial:
                trial.remove(movable.uid, movable.claims)
                step = self.move(movable, target)
                if step is None:
                    continue
                moved[movable.uid] = step
                state = frozenset((uid, each.decision.node, each.decision.devices) for uid, each in moved.items())
                if state not in seen:
                    seen.add(state)
                    trial.place(movable.request.pod, step.decision.node, step.decision.holdings)
                    if self._extend(target, total, moved, seen, reached):
                        return True
                del moved[movable.uid]
        return False

    def in_order(self, target: MoveTarget, reached: Callable[[], bool]) -> Moves | None:
        """Return the moves of the tenants, the largest first; None: one has no place, or nothing is reached."""
        with ExitStack() as stack:
            moved = self._left(target.tenants, target, stack)
            return Moves(target, tuple(moved)) if moved is not None and reached() else None

    def _left(self, pods: Sequence[Movable], target: MoveTarget, stack: ExitStack) -> list[Moved] | None:
        """Let pods move, on trials that end with the stack; None: one has no place, and nothing changed."""
        moved: list[Moved] = []
        with ExitStack() as inner:
            for movable in pods:
                trial = inner.enter_context(self.inventory.trial())
                trial.remove(movable.uid, movable.claims)
                step = self.move(movable, target)
                if step is None:
                    return None
                trial.place(movable.request.pod, step.decision.node, step.decision.holdings)
                moved.append(step)
            stack.push(inner.pop_all())
        return moved

    def emptied(self, free: Sequence[Cell], candidates: Sequence[Cell], number: int, most: int) -> Moves:
        """Return moves that free as many cells as they can, up to `number`, the first candidates first, with
        at most `most` moves. `free`: what stays free.

        Cells are emptied one after the other; one whose pods find no place, or that gets a pod before
        its turn, is left out. Then all that are emptied are held from the start, which changes no move
        unless a policy compares nodes with each other. After `_FRUITLESS` in a row the others are not
        tried.
        """
        groups: list[tuple[Cell, list[Movable]]] = []
        gone: set[str] = set()
        taken: set[DeviceId] = set()
        fruitless = 0
        with ExitStack() as stack:
            for cell in candidates:
                if fruitless > _FRUITLESS:
                    self.is_cut = True
                    break
                pods = [each for each in sorted(cell.tenants, key=largest_first) if each.uid not in gone]
                if len(groups) == number or len(gone) + len(pods) > most or not taken.isdisjoint(cell.devices):
                    continue
                target = MoveTarget.of_cells(self.inventory, free, [*(each for each, _ in groups), cell])
                moved = self._left(pods, target, stack)
                fruitless += 1
                if moved is not None:
                    fruitless = 0
                    groups.append((cell, pods))
                    gone.update(each.uid for each in pods)
                    taken.update(device for each in moved for device in each.decision.devices)
                    self.beat(len(gone))
        while True:
            target = MoveTarget.of_cells(self.inventory, free, [cell for cell, _ in groups])
            done: list[Moved] = []
            with ExitStack() as stack:
                for group in groups:
                    moved = self._left(group[1], target, stack)
                    if moved is None:
                        groups.remove(group)
                        break
                    done += moved
                else:
                    return Moves(target, tuple(done))

    def holding_less(self, moves: Moves) -> Moves:
        """Return the moves with only that held which becomes free, if each pod has the same place then."""
        target = MoveTarget.of_cells(self.inventory, (), moves.target.cells)
        with ExitStack() as stack:
            again = self._left([each.movable for each in moves.moved], target, stack) or ()
        places = [[(each.decision.node, each.decision.devices) for each in moved] for moved in (moves.moved, again)]
        return Moves(target, moves.moved) if places[0] == places[1] else moves
