"""Fast path for the most frequent kinds of pods: requests by count, without rules that relate the
cards of a node.

There the columns already say which cards of a node are eligible, so the best of them are chosen
without testing every card. The search rules then check the chosen cards alone; if they object, all
cards of the node are searched as usual. Used by `decide.decision` for every node that it tries.
Pure.

Saves 0.16 of 0.36 ms of a decision at 1,000 nodes, together with `decide.ranked_nodes`, which needs
it (a shared card; `hack/bench/decide.py`, CPython 3.11). Gangs, preemption and move plans make
thousands of decisions in a row.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from controller.allocation.candidates import Candidates
from controller.allocation.prefilter import RequestColumns
from controller.allocation.resolved import AllocationInput, Consumption, ResolvedRequest
from controller.allocation.result import Pick, Solution
from controller.allocation.tentative import TentativeUsage
from controller.decide.pre_score import Wanted
from controller.inventory.inventory import Inventory
from controller.inventory.model import Device, Pool
from controller.scoring.chooser import PolicyChooser
from hami_dra.api.arrays import Bools, Positions
from hami_dra.api.core import Node

_Choice = tuple[tuple[int, float], ...]
"""The devices of one request, best first: (position on the node, score)."""


class _Place(Struct, frozen=True):
    """A node whose devices do not depend on each other."""

    node: Node
    rows: Positions
    devices: tuple[Device, ...]


class FastPath:
    """The fast path of decisions about one problem, for as long as no device is published.

    `requests`: in order, each with its columns, which the caller keeps up to date.
    """

    def __init__(
        self,
        inventory: Inventory,
        problem: AllocationInput,
        requests: Sequence[tuple[ResolvedRequest, RequestColumns]],
    ) -> None:
        self._inventory = inventory
        self._problem = problem
        self._requests = requests
        self._places: dict[int, _Place | None] = {}
        """By row of the node; None: only the search can tell."""
        self._choices: dict[object, Sequence[_Choice] | None] = {}
        """By the states of a node's devices: nodes whose devices are alike have equal choices, unless
        the policy reads more of a node.
        """
        self._admitted: dict[tuple[int, Device], Consumption] = {}
        """By shape of the request: devices that passed the rules that do not depend on usage."""

    def solve(self, row: int, chooser: PolicyChooser) -> Solution | None:
        """Return the solution on the node, or None where only the search over all its cards can tell."""
        place = self._places[row] if row in self._places else self._places.setdefault(row, self._place(row))
        choices = self._choices_on(place, chooser) if place is not None else None
        if place is None or choices is None:
            return None
        # The full rules have the last word about the chosen cards. Any objection means that other
        # cards may do, so the search decides.
        tentative = TentativeUsage(self._inventory.usage)
        picks: list[list[Pick]] = [[] for _ in self._problem.claims]
        for (view, _), choice in zip(self._requests, choices, strict=True):
            for position, score in choice:
                device = place.devices[position]
                consumption = self._admitted.get((view.shape_index, device)) or self._admit(view, device, place)
                if consumption is None or not _is_available(tentative, device, consumption):
                    return None
                tentative.take(view, device, consumption)
                chooser.scores[view.claim_key, view.name, device.id] = score
                picks[view.claim_index].append(Pick(view, device, consumption))
        return Solution(place.node.metadata.name, self._problem, tuple(map(tuple, picks)), sum(map(len, picks)))

    def _place(self, row: int) -> _Place | None:
        """Return the node; None where a device is cut from a card (such devices depend on each other
        through shared counters, which columns do not cover), or its pool cannot be used.
        """
        inventory = self._inventory
        rows, node = inventory.rows_of(row), inventory.nodes.node(row)
        if np.count_nonzero(inventory.devices.divided[rows]):
            return None
        devices = tuple([inventory.devices.device(each) for each in rows.tolist()])
        pools = {(pool.driver, pool.name) for pool in inventory.pools_on(node.metadata.name)}
        return _Place(node, rows, devices) if pools.issuperset([each.id[:2] for each in devices]) else None

    def _choices_on(self, place: _Place, chooser: PolicyChooser) -> Sequence[_Choice] | None:
        """Return the choices, by columns alone."""
        eligible = [column.codes[place.rows] == 0 for _, column in self._requests]
        key: object = self._inventory.devices.states(place.rows).tobytes(), *[each.tobytes() for each in eligible]
        if any(chooser.reads_more_than_states(view) for view, _ in self._requests):
            key = key, place.node.metadata.name
        if len(eligible) > 1:  # the room that one request leaves to the next is not rounded
            consumed = self._inventory.usage.consumed
            key = key, tuple([tuple(sorted(consumed(device.id).items())) for device in place.devices])
        if key not in self._choices:
            self._choices[key] = self._choose(place, eligible, chooser)
        return self._choices[key]

    def _choose(self, place: _Place, eligible: Sequence[Bools], chooser: PolicyChooser) -> Sequence[_Choice] | None:
        tentative = TentativeUsage(self._inventory.usage)
        positions = {device: position for position, device in enumerate(place.devices)}
        choices = []
        for (view, column), mask in zip(self._requests, eligible, strict=True):
            if not tentative.added:
                ordered = chooser.best(view, place.rows[mask], column.ask) if mask.any() else ()
            else:
                open_to_it = []
                for position in mask.nonzero()[0].tolist():
                    device = place.devices[position]
                    consumption = view.consumption(device)
                    if consumption is None:
                        return None
                    if device.id not in tentative.added or _is_available(tentative, device, consumption):
                        open_to_it.append(device)
                ordered = chooser.order(view, open_to_it, tentative)
            chosen = ordered[: view.count]
            if len(chosen) < view.count:
                return None
            for device in chosen:
                consumption = view.consumption(device)
                if consumption is None:
                    return None
                tentative.take(view, device, consumption)
            scores = chooser.scores
            choices.append(tuple([(positions[each], scores[view.claim_key, view.name, each.id]) for each in chosen]))
        return choices

    def _admit(self, view: ResolvedRequest, device: Device, place: _Place) -> Consumption | None:
        """Test what does not depend on usage; return what the request takes of the device."""
        driver, name, _ = device.id
        pool = Pool(driver, name, device.slice.spec.pool.generation, (device,))
        for candidate in Candidates(self._problem, place.node, [pool], self._inventory.usage).of(view):
            if candidate.error is None and candidate.consumption is not None:
                self._admitted[view.shape_index, device] = candidate.consumption
                return candidate.consumption
        return None


def _is_available(tentative: TentativeUsage, device: Device, consumption: Consumption) -> bool:
    return not tentative.held(device.id) and tentative.has_room(device.id, consumption)


def fast_path_of(inventory: Inventory, problem: AllocationInput, wanted: Wanted) -> FastPath | None:
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
    return FastPath(inventory, problem, requests)
