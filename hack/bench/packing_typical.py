"""Which requests are typical of the cluster, learnt from the pods that it has.

Called by `hack.bench.packing_fgd`. In: `PodShapes`. Out: for each typical request what it would
take of every card, as a table. Refreshed now and then, not with every pod: the frequencies of
thousands of pods hardly move with one. Pure.
"""

from collections.abc import Hashable
from typing import Final

import numpy as np
import numpy.typing as npt

from controller.allocation.errors import AllocatorError
from controller.allocation.ownership import Scope
from controller.allocation.prefilter import RequestColumns
from controller.allocation.request import ResolvedRequest, prepare
from controller.inventory.card_grid import CardGrid
from controller.inventory.inventory import Inventory
from controller.inventory.roles import WHOLE_CARD, asked_shares
from hack.bench.packing_shapes import PodShapes, Shape
from hami_dra.api import names
from hami_dra.api.arrays import Floats, Ints
from hami_dra.vendors.preference_keys import NO_PREFERENCES

Narrow = npt.NDArray[np.int32]
_Request = tuple[ResolvedRequest, float, int]
"""(request, frequency, millicores)"""
NEVER: Final = 2 * WHOLE_CARD
"""What a request takes of a card that it cannot have: more than there is."""
_COVERED: Final = 0.98
"""Part of the pods whose shapes are typical (pkg/simulator, typical pods)."""
_MOST_BARE: Final = 0.2
"""Pods without devices count for no more than this part: a cluster may run thousands of them beside its cards."""
_PART: Final = 8
_FEWEST: Final = 200
"""Pods. What fewer of them ask for says too little."""
_MOST_SHAPES: Final = 64


class Typical:
    """`frequency`, `cpu` (millicores), `count` (cards): shape (requests,). `bare`: frequency of
    pods without devices. Frequencies add up to 1, or to 0 while no pods are known.

    Requests that want the same cards and differ in CPU alone are one group, for what is left of the
    cards is the same to all of them: `shares`, `weight` and `cards_wanted` go by group.
    """

    def __init__(self, inventory: Inventory, grid: CardGrid, shapes: PodShapes) -> None:
        self._inventory = inventory
        self._pod_shapes = shapes
        self._grid = grid
        self._news = 0
        self._pods = 0
        self._layouts = -1
        self._requests: list[_Request] = []
        self.version = 0
        """Grows whenever something is different."""
        self.bare = 0.0
        self.frequency: Floats = np.zeros(0, dtype=np.float64)
        self.cpu: Ints = np.zeros(0, dtype=np.int64)
        self.count: Ints = np.zeros(0, dtype=np.int64)
        self.cards_wanted: Ints = np.zeros(0, dtype=np.int64)
        """Shape (groups,): how many."""
        self._starts: Ints = np.zeros(0, dtype=np.int64)
        """The first request of each group; requests stand group by group."""
        self._shares: Narrow = np.zeros((0, 1), dtype=np.int32)

    @property
    def known(self) -> bool:
        """Enough pods were seen to say what is typical."""
        return bool(self.frequency.size)

    def shares(self, rows: Ints) -> Narrow:
        """What requests of each group take of the devices in some rows, in millionths; NEVER where
        they cannot have them, and for row -1. Shape (groups, *rows.shape).
        """
        found: Narrow = self._shares[:, rows]
        return found

    def weight(self, cpu: Ints) -> Floats:
        """How frequent those of each group are whose CPU is there. `cpu`: millicores. Shape (groups, *cpu.shape)."""
        shape = (-1, *(1 for _ in cpu.shape))
        served = np.where(cpu >= self.cpu.reshape(shape), self.frequency.reshape(shape), 0.0)
        found: Floats = np.add.reduceat(served, self._starts, axis=0) if len(self._starts) else served
        return found

    def refresh(self) -> "Typical":
        """Learn again once an eighth of the pods came or went, or nodes have other devices."""
        shapes = self._pod_shapes
        counts = shapes.counts
        due = counts.total() >= _FEWEST and shapes.news - self._news >= self._pods // _PART
        if not due and self._layouts == self._grid.layouts:
            return self
        bare, requests = self._learnt(typical_shapes(counts)) if due else (self.bare, self._requests)
        self._tabulate(requests)
        if due:
            self._news, self._pods = shapes.news, counts.total()
        self._layouts = self._grid.layouts
        self.bare = bare
        self.version += 1
        return self

    def _learnt(self, shapes: list[tuple[Shape, float]]) -> tuple[float, list[_Request]]:
        """(`bare`, requests)"""
        requests: list[_Request] = []
        for shape, frequency in shapes:
            views = [view for spec in shape.claims for view in self._requests_of(spec)]
            requests += [(view, frequency / len(views), shape.cpu) for view in views]
        return sum(frequency for shape, frequency in shapes if not shape.claims), requests

    def _requests_of(self, spec: bytes) -> tuple[ResolvedRequest, ...]:
        """Those of a claim that take devices; of a prioritized list the first alternative."""
        try:
            sample = self._pod_shapes.sample(spec)
            problem = prepare([sample], self._inventory.classes, judge=self._inventory.verdicts)
        except AllocatorError:
            return ()
        views = [group.alternatives[0] for claim in problem.claims for group in claim.requests]
        return tuple(view for view in views if not view.admin_access)

    def _tabulate(self, requests: list[_Request]) -> None:
        groups: dict[tuple[Hashable, int], list[_Request]] = {}
        for request in requests:
            groups.setdefault((request[0].shape, max(request[0].count, 1)), []).append(request)
        shares = self._shares_of([(shape, group[0][0]) for (shape, _), group in groups.items()])
        self._shares = shares
        self._requests = requests = [request for group in groups.values() for request in group]
        self._starts = np.cumsum([0, *(len(group) for group in groups.values())], dtype=np.int64)[:-1]
        self.frequency = np.array([frequency for _, frequency, _ in requests], dtype=np.float64)
        self.cpu = np.array([cpu for _, _, cpu in requests], dtype=np.int64)
        self.count = np.array([max(view.count, 1) for view, _, _ in requests], dtype=np.int64)
        self.cards_wanted = np.array([count for _, count in groups], dtype=np.int64)

    def _shares_of(self, groups: list[tuple[Hashable, ResolvedRequest]]) -> Narrow:
        """Return `_shares`, for one request of each group."""
        devices = self._inventory.devices
        shares = np.full((len(groups), devices.size + 1), NEVER, dtype=np.int32)
        rows = np.flatnonzero(devices.active[: devices.size])
        cards = devices.cards(rows)
        tables: dict[Hashable, Ints] = {}
        for number, (shape, view) in enumerate(groups):
            table = tables.get(shape)
            if table is None:
                column = RequestColumns(self._inventory, view, Scope(), frozenset({names.FENCE_TAINT}), NO_PREFERENCES)
                column.refresh()
                table = np.where(column.could(rows), asked_shares(cards, column.ask(rows)), NEVER)
                tables[shape] = table
            shares[number, rows] = table
        return shares


def typical_shapes(counts: dict[Shape, int]) -> list[tuple[Shape, float]]:
    """The most frequent shapes that together are 95 % of the pods, with their frequencies among
    themselves.

    Equal counts: the larger CPU first. Pods without devices are no more than a fifth of what is
    counted.
    """
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], -entry[0].cpu, entry[0].claims))
    bare = sum(count for shape, count in ranked if not shape.claims)
    with_devices = sum(count for shape, count in ranked if shape.claims)
    scale = min(1.0, _MOST_BARE / (1 - _MOST_BARE) * with_devices / bare) if bare and with_devices else 1.0
    weighted = [(shape, count if shape.claims else count * scale) for shape, count in ranked]
    weighted.sort(key=lambda entry: -entry[1])
    total = sum(weight for _, weight in weighted)
    chosen: list[tuple[Shape, float]] = []
    covered = 0.0
    for shape, weight in weighted[:_MOST_SHAPES]:
        if covered >= _COVERED * total:
            break
        covered += weight
        chosen.append((shape, weight))
    return [(shape, weight / covered) for shape, weight in chosen]
