"""A plan of moves for a goal, proven by carrying it out on a second copy of the state. Pure.

The search decides where the pods go; the replay lets them go, one by one, with the engine of `hami-dra
simulate`: what is held is cordoned, a pod leaves, the one that replaces it is placed, the next one
leaves. The figures of the plan are those of the replay.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Final

from msgspec.structs import replace

from controller.gangs import Unit
from controller.insight.defrag.cells import Cells, cells_of
from controller.insight.defrag.goal import Goal, Movables, movables_of
from controller.insight.manifests import Item, gather
from controller.insight.simulation import Placing, SimulationSettings, devices_of, load, question
from controller.inventory import DeviceId, Heartbeat
from controller.moves import Mover, Moves, MoveTarget, Places, as_waiting
from controller.preemption import Budgets, OutOfSteps
from controller.views.moves import BudgetUse, MovePlan, PlannedMove
from controller.views.overview import CardTable, packing
from hami_dra.api import kinds, names
from hami_dra.api.core import Pod
from hami_dra.api.errors import InputError
from hami_dra.api.printable import counted
from hami_dra.api.resource import DeviceTaint, ResourceSlice
from hami_dra.kube.documents import Document

OnProgress = Callable[[str, int, int], None]
"""(current step, moves done, moves in total; 0: not known)"""
MOST_CHOICES: Final = 500
"""Choices of cells, or pods that may move, up to which all of them are tried."""
EXACT_PODS: Final = 10
STEPS: Final = 2_000
"""Decisions of the search for fewer moves than the first plan has."""
GIB: Final = 1 << 30
_CORDONED: Final = DeviceTaint(key=names.CORDON_TAINT, effect="NoSchedule")


class BadGoal(InputError):
    """The goal cannot be planned for; the message names the option and the object."""


def _quiet(what: str, done: int, total: int) -> None:
    pass


def plan_moves(
    documents: Iterable[Document], settings: SimulationSettings, goal: Goal, progress: OnProgress = _quiet
) -> MovePlan:
    """Return the moves that reach the goal, or come closest. Raises BadManifest, NoSuchPod, BadGoal."""
    planner = _Planner([*documents], settings, goal, progress)
    state = planner.state
    with state.view.inventory.verdicts.within(Heartbeat(lambda: progress("planning", 0, 0))):
        moves = planner.moves()
    return _Replay(planner, moves).plan()


def best_of_few(
    documents: Iterable[Document], settings: SimulationSettings, moves: int, least: int, progress: OnProgress = _quiet
) -> MovePlan:
    """Return what a few moves free at most: nodes, or else devices. Raises BadManifest."""
    documents = [*documents]
    most = sum(document.raw.get("kind") == kinds.NODE.name for document in documents)
    found = plan_moves(documents, settings, Goal(nodes=max(most, 1), least=least, moves=moves), progress)
    if not found.gained:
        found = plan_moves(documents, settings, Goal(devices=moves, moves=moves), progress)
    shares = [f"{each.fragmentation:.0%} of the free {each.vendor} capacity" for each in found.before]
    lead = f"{', '.join(shares) or 'Nothing'} is on partly used devices."
    said = (
        found.conclusion.partition(", of ")[0].rstrip(".")
        if found.gained
        else f"No {moves} moves free a node or device"
    )
    return replace(found, asked=found.gained, conclusion=f"{lead} {said}.")


class _Copy:
    """The cluster of the documents, with the pod or gang that waits, if the goal names one."""

    def __init__(
        self, documents: Sequence[Document], items: Sequence[Item], settings: SimulationSettings, goal: Goal
    ) -> None:
        self.unit: Unit | None = None
        self.waiting: Sequence[Pod] = ()
        """The pods of the unit."""
        if not goal.pod:
            self.view, _ = load(items, settings)
        else:
            asked = question(documents, "pod", goal.pod, settings)
            if asked.problem:
                raise BadGoal(f"--for {goal.pod}: {asked.problem}")
            self.view, self.unit, self.waiting = asked.view, asked.unit.unit, asked.unit.pods
            for request in self.unit.members:  # the others of a gang that fits count at their places
                self.view.inventory.forget_pod(request.pod.metadata.uid)
                for entry in request.claims:
                    self.view.inventory.forget(entry.claim.metadata.uid)
        self.placing = Placing(self.view)
        self.report = self.placing.report


class _Planner:
    def __init__(
        self, documents: Sequence[Document], settings: SimulationSettings, goal: Goal, progress: OnProgress
    ) -> None:
        gathered = gather(documents)
        self.documents, self.items, self.settings, self.goal = documents, gathered.items, settings, goal
        self.progress = progress
        pods = {item.key: item for item in self.items if item.kind is kinds.POD}
        if goal.pod in pods and (node := pods[goal.pod].object.spec.node_name):
            raise BadGoal(f"--for {goal.pod}: the pod waits for no node (it is on {node})")
        self.state = _Copy(documents, self.items, settings, goal)
        self.notes = (*gathered.notes, *self.state.view.notes)
        self.preemption = self.state.view.preemption()
        self.movables: Movables = movables_of(self.state.view, goal, self.preemption)
        self.mover = Mover(
            self.state.view.inventory,
            self.movables.pods,
            replace(settings.options, says_why=False, report_nodes=1),
            STEPS,
            lambda moves: progress("planning", moves, 0),
        )
        self.most = len(self.movables.pods) if goal.moves is None else min(goal.moves, len(self.movables.pods))
        self.why = ""
        """What keeps the plan from the goal."""

    def moves(self) -> Moves:
        return self._for_unit() if self.goal.pod else self._for_cells()

    # -- devices and nodes -------------------------------------------------------------------------

    def _for_cells(self) -> Moves:
        goal, number = self.goal, self.goal.nodes or self.goal.devices
        cells = cells_of(
            self.state.view.inventory, self.movables.pods, nodes=bool(goal.nodes), least=goal.least if goal.nodes else 1
        )
        by_memory = sorted(cells.candidates, key=lambda cell: cell.cost[1:])
        best = self.mover.emptied(cells.free, cells.candidates, number, self.most)
        if len(best.target.cells) < number and by_memory != cells.candidates:
            other = self.mover.emptied(cells.free, by_memory, number, self.most)
            best = min(best, other, key=lambda each: (-len(each.target.cells), each.cost))
        reached = len(best.target.cells) == number
        if not (reached and self._is_least(cells, number, best)):
            best = self._fewer(cells, number, best if reached else None) or best
        if len(best.target.cells) < number:
            what = f"other {'node' if goal.nodes else 'device'}"
            within = "" if goal.moves is None else f" within {counted(goal.moves, 'move')}"
            stuck = len(cells.candidates) - len(best.target.cells)
            parts = [f"no place was found{within} for the pods on {counted(stuck, what)}"] if stuck else []
            parts += [f"moves cannot free {counted(cells.others, what)}"] if cells.others else []
            self.why = " and ".join(parts) or f"no {what} is in use"
        return self.mover.holding_less(best)

    def _is_least(self, cells: Cells, number: int, moves: Moves) -> bool:
        """Return whether no other choice of cells has fewer tenants: each pod is on one cell, and the
        cells are the cheapest.
        """
        cheapest = [len(cell.tenants) for cell in cells.candidates[:number]]
        uids = [each.uid for cell in cells.candidates for each in cell.tenants]
        return len(uids) == len({*uids}) and len(moves.moved) == sum(cheapest)

    def _fewer(self, cells: Cells, number: int, known: Moves | None) -> Moves | None:
        """Return a plan with fewer moves than the one that is known, out of all choices of cells, where these are few."""
        every = [*cells.free, *cells.candidates]
        size = len(cells.free) + number
        if math.comb(len(every), min(size, len(every) // 2)) > MOST_CHOICES:
            self.mover.is_cut = True
        if self.mover.is_cut or size > len(every):
            return None
        inventory = self.state.view.inventory
        targets = [
            MoveTarget.of_cells(
                inventory, [cell for cell in chosen if not cell.tenants], [cell for cell in chosen if cell.tenants]
            )
            for chosen in combinations(every, size)
        ]
        targets.sort(key=lambda each: each.cost)
        most = len(known.moved) - 1 if known is not None else self.most
        return self._tried(partial(self.mover.fewest, targets, most, lambda: True))

    def _tried(self, search: Callable[[], Moves | None]) -> Moves | None:
        try:
            return search()
        except OutOfSteps:
            self.mover.is_cut = True
            return None

    # -- a pod or gang -----------------------------------------------------------------------------

    def _for_unit(self) -> Moves:
        inventory = self.state.view.inventory
        unit = self.state.unit
        assert unit is not None
        by_uid = {each.uid: each for each in self.movables.pods}
        places = Places(self.preemption, unit, self.mover, lambda pod: by_uid.get(pod.metadata.uid))
        nothing = Moves(MoveTarget(inventory, ()), ())
        if places.fits():
            return nothing
        found = places.best(self.most)
        best = found[1] if found is not None else None
        most = self.most if best is None else len(best.moved) - 1
        best = self._tried(partial(self._of_all, places, most)) or best
        self.mover.is_cut = self.mover.is_cut or unit.key is not None
        if best is None:
            self.why = "wherever pods that may move make room for it, they find no place themselves"
        return best or nothing

    def _of_all(self, places: Places, most: int) -> Moves | None:
        """Return the fewest moves out of all places. With more than a few pods each is tried in one order only."""
        if len(self.movables.pods) <= EXACT_PODS:
            return self.mover.fewest([*places.all(most + 1)], most, places.fits)
        tried = (self.mover.in_order(target, places.fits) for target in places.all(most + 1))
        return next(filter(None, tried), None)


class _Replay:
    """Carries a plan out, on a copy of the state that no search has touched."""

    def __init__(self, planner: _Planner, moves: Moves) -> None:
        self._planner, self._moves = planner, moves
        self._state = _Copy(planner.documents, planner.items, planner.settings, planner.goal)
        self._inventory = self._state.view.inventory
        self._table = CardTable(self._inventory)

    def plan(self) -> MovePlan:
        planner, goal, target = self._planner, self._planner.goal, self._moves.target
        before, free = packing(self._table), self._free()
        names_of = planner.state.view.inventory.nodes.names
        nodes = sorted(names_of[row] for row in target.nodes) if self._moves.moved else []
        devices = target.devices if self._moves.moved else frozenset[DeviceId]()
        uncordon = [*self._cordon_nodes(nodes), *self._cordon_devices(devices)]
        moves, failed = self._carried_out()
        for undo in uncordon:
            undo()
        gained = self._free() - free
        frees = tuple(cell.name for cell in target.cells)
        unit = self._state.unit
        if unit is not None:
            known = len(self._state.report.placements)
            self._state.placing.place(self._state.waiting)
            placed = self._state.report.placements[known:]
            gained, frees = len(placed), tuple(dict.fromkeys(entry["node"] for entry in placed))
        found = MovePlan(
            goal=str(goal),
            asked=max(goal.devices, goal.nodes) if unit is None else max(unit.least, 1),
            gained=gained,
            moves=tuple(moves),
            memory=sum(each.memory for each in moves),
            frees=frees,
            held_nodes=tuple(nodes),
            held_devices=tuple(sorted(map(str, devices))),
            budgets=_budgets(moves, planner.preemption.budgets, self._moves),
            is_cut=planner.mover.is_cut,
            pods=len(planner.movables.pods) + len(planner.movables.refused),
            stays=planner.movables.refused,
            before=before,
            after=packing(self._table),
            conclusion="",
            notes=planner.notes,
        )
        return replace(found, conclusion=_conclusion(found, goal, failed or planner.why))

    def _free(self) -> int:
        goal = self._planner.goal
        cells = cells_of(self._inventory, (), nodes=bool(goal.nodes), least=goal.least if goal.nodes else 1)
        return len(cells.free)

    def _cordon_nodes(self, nodes: Iterable[str]) -> Iterator[Callable[[], None]]:
        """Cordon nodes as kubectl does. Yields what takes it back."""
        objects = {node.metadata.name: node for node in self._state.view.nodes}
        for name in nodes:
            node = objects[name]
            cordoned = replace(node, spec=replace(node.spec, unschedulable=True))
            self._inventory.node_changed(node, cordoned)
            yield partial(self._inventory.node_changed, cordoned, node)

    def _cordon_devices(self, devices: Iterable[DeviceId]) -> Iterator[Callable[[], None]]:
        """Cordon devices as the node driver publishes it. Yields what takes it back."""
        columns = self._inventory.devices
        of_slice: dict[str, tuple[ResourceSlice, set[str]]] = {}
        for device in devices:
            published = columns.device(columns.row_of(device)).slice
            of_slice.setdefault(published.metadata.name, (published, set()))[1].add(device.device)
        for published, held in of_slice.values():
            entries = [
                replace(each, taints=(*each.taints, _CORDONED)) if each.name in held else each
                for each in published.spec.devices
            ]
            cordoned = replace(published, spec=replace(published.spec, devices=tuple(entries)))
            self._inventory.slice_changed(published, cordoned)
            yield partial(self._inventory.slice_changed, cordoned, published)

    def _carried_out(self) -> tuple[list[PlannedMove], str]:
        """Return the moves with the places that the replay gives them; the second text says where it had to stop."""
        state, budgets = self._state, self._planner.preemption.budgets
        done: list[PlannedMove] = []
        held = self._held()
        for each in self._moves.moved:
            pod = state.view.pods[each.movable.pod.key]
            state.view.leave((pod,))
            refused = len(state.report.unplaced)
            state.placing.place((as_waiting(pod),))
            if len(state.report.unplaced) > refused:
                return done, f"pod {pod.key} finds no place: {state.report.unplaced[-1]['message']}"
            entry = state.report.placements[-1]
            before, held = held, self._held()
            done.append(
                PlannedMove(
                    pod=pod.key,
                    from_node=pod.spec.node_name,
                    from_devices=tuple(sorted(map(str, each.movable.devices))),
                    to_node=entry["node"],
                    to_devices=devices_of(entry),
                    memory=each.movable.memory,
                    frees=before - held,
                    budgets=tuple(budget.key for budget in budgets.of(pod)),
                )
            )
            self._planner.progress("replaying the moves", len(done), len(self._moves.moved))
        return done, ""

    def _held(self) -> int:
        self._table.refresh()
        return int(self._table.held[self._table.cards].sum())


def _budgets(moves: Sequence[PlannedMove], budgets: Budgets, planned: Moves) -> tuple[BudgetUse, ...]:
    counts = Counter(key for each in moves for key in each.budgets)
    allowed = {
        budget.key: budget.status.disruptions_allowed
        for each in planned.moved
        for budget in budgets.of(each.movable.pod)
    }
    return tuple(BudgetUse(budget=key, allowed=allowed[key], moves=count) for key, count in sorted(counts.items()))


def _conclusion(found: MovePlan, goal: Goal, why: str) -> str:
    """Return what the plan brings, and why it does not bring more.

    `Moving 3 pods (24 GiB of device memory) frees 2 nodes.`
    """
    moving = f"Moving {counted(len(found.moves), 'pod')} ({found.memory / GIB:.0f} GiB of device memory)"
    more = f": {why}" if why else ""
    if goal.pod and found.is_reached:
        places = ", ".join(found.frees)
        return (
            f"{moving} makes room for pod {goal.pod} on {places}."
            if found.moves
            else f"Pod {goal.pod} fits on {places} now."
        )
    what = "pod" if goal.pod else "node" if goal.nodes else "device"
    if not found.gained:
        return f"No moves bring {goal}{more}."
    gain = f"{moving} frees {counted(found.gained, what)}"
    return f"{gain}." if found.is_reached else f"{gain}, of {found.asked} asked for{more}."
