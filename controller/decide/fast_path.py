"""Fast path for the most frequent kinds of pods: requests by count, without rules that relate the
cards of a node.

There the columns already say which cards of a node are eligible, so the best of them are chosen
without testing every card. The search rules then check the chosen cards alone; if they object, all
cards of the node are searched as usual. Used by `decide.decision` for every node that it tries.
Pure.

Saves 0.10 of 0.40 ms of deciding and assuming a pod at 1,000 nodes, and 0.23 of 0.53 ms together
with `decide.ranked_nodes` (a shared card; `hack/bench/decide.py`, CPython 3.11, a busy machine).
Gangs, preemption and move plans make thousands of decisions in a row.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from controller.allocation.candidates import Candidates
from controller.allocation.prefilter import RequestColumns
from controller.allocation.resolved import AllocationInput, Consumption, ResolvedRequest
from controller.allocation.result import Pick, Solution
from controller.allocation.tentative import TentativeUsage
from controller.decide.pre_score import Wanted
from controller.inventory.inventory import Inventory
from controller.inventory.model import Device, Pool
from controller.inventory.quota_headroom import Cost, QuotaHeadroom
from controller.scoring.chooser import PolicyChooser
from hami_dra.api.arrays import Bools, Positions
from hami_dra.api.core import Node

_Choice = tuple[list[int], list[float], float]
"""The devices of one request, best first: positions on the node, scores, and the vendor's score of the set."""


class FastPath:
    """The fast path of decisions about one problem, for as long as no device is published.

    `requests`: in order, each with its columns, which the caller keeps up to date. `arranged`: vendors
    score the sets, so that only the search finds a set, and `learn` keeps it for nodes that are alike.
    """

    def __init__(
        self,
        inventory: Inventory,
        problem: AllocationInput,
        requests: Sequence[tuple[ResolvedRequest, RequestColumns]],
        *,
        arranged: bool,
    ) -> None:
        self._inventory = inventory
        self.arranged = arranged
        self._problem = problem
        self._requests = requests
        self._last = requests[-1][0]
        """The request that need not be charged: none comes after it."""
        self._choices: dict[object, Sequence[_Choice] | None] = {}
        """By the states of a node's devices: nodes whose devices are alike have equal choices, unless
        the policy reads more of a node.
        """
        self._admitted: dict[int, dict[Device, Consumption | None]] = {}
        """By shape of the request: devices that passed the rules that do not depend on usage."""

    def solve(self, row: int, chooser: PolicyChooser, headroom: QuotaHeadroom | None = None) -> Solution | None:
        """Return the solution on the node, or None where only the search over all its cards can tell."""
        inventory = self._inventory
        rows, node = inventory.rows_of(row), inventory.nodes.node(row)
        # Devices that are cut from a card depend on each other through shared counters, which columns
        # do not cover.
        choices = None if np.count_nonzero(inventory.devices.divided[rows]) else self._choices_on(rows, node, chooser)
        if choices is None:
            return None
        # The full rules have the last word about the chosen cards. Any objection means that other
        # cards may do, so the search decides.
        tentative = TentativeUsage(inventory.usage)
        spent: list[Cost] = []
        picks: list[list[Pick]] = [[] for _ in self._problem.claims]
        for (view, _), (positions, scores, score_of_set) in zip(self._requests, choices, strict=True):
            devices = [inventory.devices.device(each) for each in rows[positions].tolist()]
            admitted = self._admit(view, devices, node)
            for device, score in zip(devices, scores, strict=True):
                consumption = admitted.get(device)
                if consumption is None or not _is_available(tentative, device, consumption):
                    return None
                if view is not self._last:
                    tentative.take(view, device, consumption)
                chooser.scores[view.claim_key, view.name, device.id] = score
                picks[view.claim_index].append(Pick(view, device, consumption))
                if headroom is not None:
                    spent.append(headroom.cost(device, consumption.consumed, shared=view.shared(device)))
            if self.arranged:
                chooser.note_set(view, devices, score_of_set)
        # The search takes these devices too, one by one, where all of them are within the quota.
        if headroom is not None and not headroom.allows(
            headroom.nothing, [*map(sum, zip(*spent, strict=True))], headroom.nothing
        ):
            return None
        return Solution(node.metadata.name, self._problem, tuple(map(tuple, picks)), sum(map(len, picks)))

    def _choices_on(self, rows: Positions, node: Node, chooser: PolicyChooser) -> Sequence[_Choice] | None:
        """Return the choices, by columns alone. `rows`: of the devices of the node."""
        eligible = [column.codes[rows] == 0 for _, column in self._requests]
        key = self._key(rows, node, eligible, chooser)
        if key not in self._choices and not self.arranged:
            self._choices[key] = self._choose(rows, eligible, chooser)
        return self._choices.get(key)

    def learn(self, row: int, solution: Solution, chooser: PolicyChooser) -> None:
        """Note what the search found on a node, for nodes whose devices are alike."""
        rows, node = self._inventory.rows_of(row), self._inventory.nodes.node(row)
        position_of = {row: position for position, row in enumerate(rows.tolist())}
        choices = []
        for view, _ in self._requests:
            chosen = [pick.device for pick in solution.picks[view.claim_index] if pick.request is view]
            if len(chosen) < view.count or any(each.row not in position_of or each.is_part for each in chosen):
                return
            scores = [chooser.scores[view.claim_key, view.name, each.id] for each in chosen]
            choices.append(([position_of[each.row] for each in chosen], scores, chooser.score_of_set(view, chosen)))
        eligible = [column.codes[rows] == 0 for _, column in self._requests]
        self._choices[self._key(rows, node, eligible, chooser)] = choices

    def _key(self, rows: Positions, node: Node, eligible: Sequence[Bools], chooser: PolicyChooser) -> object:
        """Return what the choices on a node depend on."""
        key: object = self._inventory.devices.states(rows).tobytes(), *[each.tobytes() for each in eligible]
        if any(chooser.reads_more_than_states(view) for view, _ in self._requests):
            key = key, node.metadata.name
        if len(eligible) > 1:  # the room that one request leaves to the next is not rounded
            consumed, device = self._inventory.usage.consumed, self._inventory.devices.device
            key = key, tuple([tuple(sorted(consumed(device(each).id).items())) for each in rows.tolist()])
        if self.arranged:
            layouts, row = self._inventory.layouts, self._inventory.nodes.index_of(node.metadata.name)
            numbers = [int(layouts.numbers(each)[row]) for each in sorted(layouts.drivers())]
            key = key, *numbers, layouts.position[rows].tobytes()
        return key

    def _choose(self, rows: Positions, eligible: Sequence[Bools], chooser: PolicyChooser) -> Sequence[_Choice] | None:
        tentative = TentativeUsage(self._inventory.usage)
        position_of = {row: position for position, row in enumerate(rows.tolist())}
        choices = []
        for (view, column), mask in zip(self._requests, eligible, strict=True):
            if not tentative.added:
                ordered = chooser.best(view, rows[mask], column.ask) if mask.any() else ()
            else:
                open_to_it = []
                for device in map(self._inventory.devices.device, rows[mask].tolist()):
                    consumption = view.consumption(device)
                    if consumption is None:
                        return None
                    if device.id not in tentative.added or _is_available(tentative, device, consumption):
                        open_to_it.append(device)
                ordered = chooser.order(view, open_to_it, tentative)
            chosen = ordered[: view.count]
            if len(chosen) < view.count:
                return None
            for device in chosen if view is not self._last else ():
                consumption = view.consumption(device)
                if consumption is None:
                    return None
                tentative.take(view, device, consumption)
            scores = [chooser.scores[view.claim_key, view.name, each.id] for each in chosen]
            choices.append(([position_of[each.row] for each in chosen], scores, 0.0))
        return choices

    def _admit(
        self, view: ResolvedRequest, devices: Sequence[Device], node: Node
    ) -> Mapping[Device, Consumption | None]:
        """Test what does not depend on usage; return what the request takes of the devices that pass."""
        admitted = self._admitted.setdefault(view.shape_index, {})
        if unknown := tuple([each for each in devices if each not in admitted]):
            pool = Pool("", "", 0, unknown)
            candidates = Candidates(self._problem, node, [pool], self._inventory.usage).of(view)
            admitted.update({each.device: each.consumption for each in candidates})
        return admitted


def _is_available(tentative: TentativeUsage, device: Device, consumption: Consumption) -> bool:
    return not tentative.held(device.id) and tentative.has_room(device.id, consumption)


def fast_path_of(
    inventory: Inventory, problem: AllocationInput, wanted: Wanted, *, arranged: bool = False
) -> FastPath | None:
    """Return the fast path, or None where cards depend on each other or on more than the columns
    hold.

    `wanted`: the requests of `problem`, and no others.
    """
    if not wanted or not problem.features.consumable_capacity:
        return None
    requests = []
    for group, columns in wanted:
        view, column = group.alternatives[0], columns[0]
        if len(columns) > 1 or view.constraints or view.all_devices or view.admin_access or column.network_attached:
            return None
        requests.append((view, column))
    return FastPath(inventory, problem, requests, arranged=arranged)
