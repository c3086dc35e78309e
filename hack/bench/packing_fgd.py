"""Fragmentation gradient descent, on arrays, and the ranking of nodes that goes with it.

The fragment of a node is what is left of its cards and of no use to a typical request, on average
over `Typical`. A pod goes where it makes this grow least:

    F = sum over typical requests of frequency x (all that is left, where the node has too few fitting cards or too little CPU;
        else what is left of cards that do not fit)          pods without devices count all that is left
    d = F before - F after, in cards;  score = trunc(100 / (1 + exp(-d)))

Equal scores, of which there are many: the best fit, by what is left of CPU and cards. `FgdRanker`
takes the place of `scoring.ranking.rank_nodes` (`Options.rank_nodes`). Docs: docs/design/packing.md. Pure.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from controller.allocation.request import ResolvedRequest
from controller.cluster.incremental.changes import ChangeLog, LruCache
from controller.cluster.incremental.derived_column import LogReader
from controller.cluster.pod_resources import pod_requests
from controller.inventory.card_grid import CardGrid
from controller.inventory.inventory import Inventory
from controller.inventory.roles import WHOLE_CARD
from controller.scoring.device_selection import first_of, fit_keys
from controller.scoring.free_capacity import (
    AfterPlacement,
    NodeDevices,
    NodeTable,
    Wanted,
    card_grid_of,
    shape_key,
)
from controller.scoring.policies import Packing, Policies
from controller.scoring.ranking import Ranking, rank_nodes
from hack.bench.packing_shapes import PodShapes
from hack.bench.packing_typical import Narrow, Typical
from hami_dra.api.arrays import Bools, Floats, Ints, Positions
from hami_dra.api.core import Pod

_CHUNK: Final = 1024
"""Nodes that are judged at a time: tables of (groups, nodes, cards) stay in the processor's caches."""
_CPU_UNIT: Final = 128_000
_CARDS_UNIT: Final = 8
"""Best fit: the CPU and cards of a large node (the paper's)."""
_SCARCITY_UNIT: Final = 25.0
"""Points that a card's worth of scarcity counts: the score rises by as much for a card, where it is steepest."""
_SHAPES_KEPT: Final = 256


class Fragments:
    """Some nodes as the typical requests see them, group by group. `shares`: int32, shape (groups, nodes, cards)."""

    def __init__(self, typical: Typical, shares: Narrow) -> None:
        self._typical = typical
        self._shares = shares

    def of(self, free: Ints, cpu: Ints) -> Floats:
        """F in cards. `free`: shape (nodes, cards); `cpu`: millicores that are left, shape (nodes,)."""
        fits = self._shares <= free
        useful = np.where(fits, free.astype(np.int32), 0).sum(axis=2)
        return self._mean(fits.sum(axis=2), useful, free.sum(axis=1), cpu)

    def after(self, free: Ints, home: Ints, share: Ints, cpu: Ints) -> Floats:
        """F with `share` taken of one card, for each card by itself. Shape (nodes, cards)."""
        narrow = free.astype(np.int32)
        shares = self._shares
        fits = shares <= narrow
        useful = np.where(fits, narrow, 0)
        count, sums = fits.sum(axis=2, dtype=np.int32), useful.sum(axis=2, dtype=np.int32)
        if not np.array_equal(home, np.broadcast_to(np.arange(home.shape[1]), home.shape)):  # parts of cards
            at_home = np.broadcast_to(home, shares.shape)
            narrow = np.take_along_axis(narrow, home, axis=1)
            shares, fits, useful = (np.take_along_axis(each, at_home, axis=2) for each in (shares, fits, useful))
        held = narrow - share.astype(np.int32)
        fits_then = shares <= held
        counts = count[:, :, None] - fits + fits_then
        useful_then = sums[:, :, None] - useful + np.where(fits_then, held, 0)
        return self._mean(counts, useful_then, free.sum(axis=1)[:, None] - share, cpu[:, None])

    def _mean(self, count: Narrow, useful: Narrow, total: Ints, cpu: Ints) -> Floats:
        """All that is left, less what each typical request could use of it. Frequencies add up to 1."""
        typical = self._typical
        served = count >= typical.cards_wanted.reshape(-1, *(1 for _ in total.shape))
        used = (np.where(served, useful, 0) * typical.weight(cpu)).sum(axis=0)
        mean: Floats = (total * (typical.bare + typical.frequency.sum()) - used) / WHOLE_CARD
        return mean


class Ground:
    """Every node as it is, kept by difference: F, the CPU that is left, and where something changed."""

    def __init__(self, inventory: Inventory, grid: CardGrid, shapes: PodShapes) -> None:
        self._inventory = inventory
        self._grid = grid
        self._read = LogReader(grid.changes)
        self._learnt = -1
        self.typical = Typical(inventory, grid, shapes)
        self.changes = ChangeLog()
        """Node rows whose cards or CPU changed."""
        self.cpu: Ints = np.zeros(0, dtype=np.int64)
        self.fragment: Floats = np.zeros(0, dtype=np.float64)

    def refresh(self) -> "Ground":
        """Needs the grid to be up to date."""
        nodes, grid = self._inventory.nodes, self._grid
        size = grid.rows.shape[0]
        self.typical.refresh()
        before = self.cpu
        self.cpu = np.zeros(size, dtype=np.int64)
        self.cpu[: nodes.size] = nodes.offers("cpu") - nodes.used("cpu")
        moved = self._read.take()
        if moved is None or len(before) != size or self._learnt != self.typical.version:
            changed = np.arange(size)
            self._learnt = self.typical.version
        else:
            changed = np.union1d(moved, np.flatnonzero(before != self.cpu))
        if len(self.fragment) < size:
            self.fragment = np.concatenate((self.fragment, np.zeros(size - len(self.fragment))))
        for some in _chunks(changed):
            seen = Fragments(self.typical, self.typical.shares(grid.rows[some]))
            self.fragment[some] = seen.of(grid.free[some], self.cpu[some])
            for node in some.tolist():
                self.changes.add(node)
        return self


def score(gain: Floats) -> Ints:
    """The paper's integer of d, 0 to 100."""
    points: Ints = np.trunc(100.0 / (1.0 + np.exp(-gain))).astype(np.int64)
    return points


class FgdAfter(AfterPlacement):
    """`score`: shape (nodes.size,), for a pod of one shape that asks for `cpu` millicores."""

    def __init__(
        self, inventory: Inventory, grid: CardGrid, weights: Packing, wanted: Wanted, *, ground: Ground, cpu: int
    ) -> None:
        super().__init__(inventory, grid, weights, wanted)
        self._reader = LogReader(ground.changes)
        self._ground = ground
        self._cpu = cpu
        self._score: Ints = np.zeros(0, dtype=np.int64)

    @property
    def score(self) -> Ints:
        return self._score[: self._inventory.nodes.size]

    def _update(self, nodes: Positions, /) -> None:
        if len(self._score) < self._grid.rows.shape[0]:
            fresh = np.zeros(self._grid.rows.shape[0], dtype=np.int64)
            fresh[: len(self._score)] = self._score
            self._score = fresh
        for some in _chunks(nodes):
            super()._update(some)

    def _choose(self, picture: NodeTable, free: Ints, share: Ints, may: Bools, *, count: int, scarcity: Ints) -> Bools:
        keys = fit_keys(picture.of_home(free), share, picture.island, may, scarcity=scarcity, count=count)
        if count == 1:
            before, left = self._ground.fragment[picture.nodes], self._ground.cpu[picture.nodes] - self._cpu
            gain = before[:, None] - self._seen(picture).after(free, picture.home, share, left)
            keys.insert(0, np.where(may, -score(gain), 1))
        return first_of(keys, may, count)

    def _finish(self, picture: NodeTable, free: Ints) -> None:
        super()._finish(picture, free)
        nodes = picture.nodes
        then = self._seen(picture).of(free, self._ground.cpu[nodes] - self._cpu)
        self._score[nodes] = score(self._ground.fragment[nodes] - then)

    def _seen(self, picture: NodeTable) -> Fragments:
        return Fragments(self._ground.typical, self._ground.typical.shares(np.where(picture.there, picture.rows, -1)))

    def card_keys(self, request: ResolvedRequest, line: NodeDevices) -> list[Ints]:
        """Cards of one node, best first. Jobs of a trace have one request: nothing on the node is
        taken yet for the same pod.
        """
        keys = fit_keys(
            line.left,
            line.share,
            line.island,
            line.may,
            scarcity=self.scarcity_of(request, line.type),
            count=max(request.count, 1),
        )
        if request.count != 1:
            return keys
        grid, node = self._grid, line.node
        ground, here = self._ground, slice(node, node + 1)
        seen = Fragments(ground.typical, ground.typical.shares(grid.rows[here]))
        share = np.minimum(line.share[None, : grid.width], line.left[None, : grid.width])
        gain = ground.fragment[here, None] - seen.after(
            grid.free[here], grid.home[here], share, ground.cpu[here] - self._cpu
        )
        points = np.zeros(line.may.shape, dtype=np.int64)
        points[: grid.width] = score(gain)[0]
        return [np.where(line.may, -points, 1), *keys]


def best_fit(free: Ints, cpu: Ints) -> Floats:
    """Between 0 and 1, higher where less is left: half of it CPU, half cards. `free` in millionths,
    `cpu` in millicores.
    """
    left = 0.5 * np.maximum(cpu, 0) / _CPU_UNIT + 0.5 * free / (_CARDS_UNIT * WHOLE_CARD)
    return 1.0 / (1.0 + left) - 1e-9


def _chunks(nodes: Positions) -> Iterator[Positions]:
    for start in range(0, len(nodes), _CHUNK):
        yield nodes[start : start + _CHUNK]


class FgdRanker:
    """Ranks the nodes of one inventory. `shapes`: to be told of every pod that comes and leaves."""

    def __init__(self, inventory: Inventory) -> None:
        self.shapes = PodShapes()
        self._grid = card_grid_of(inventory)
        self.ground = Ground(inventory, self._grid, self.shapes)
        self._afters: LruCache[FgdAfter] = LruCache(_SHAPES_KEPT)

    def __call__(self, inventory: Inventory, policies: Policies, pod: Pod, wanted: Wanted) -> Ranking:
        """As `rank_nodes`. While nothing is typical yet: `fair-share`, which needs no history."""
        card_grid_of(inventory)
        if not self.ground.refresh().typical.known:
            return rank_nodes(inventory, policies, pod, wanted)
        cpu = pod_requests(pod)["cpu"]
        after = self._afters.get(
            (shape_key(wanted, policies.packing), cpu),
            lambda: FgdAfter(inventory, self._grid, policies.packing, wanted, ground=self.ground, cpu=cpu),
        )
        after.refresh()
        return _Fgd(after, best_fit(after.free, inventory.rules.left(pod, "cpu") - cpu))


class _Fgd:
    def __init__(self, after: FgdAfter, fit: Floats) -> None:
        self._after = after
        self._fit = fit
        self._scarce = _SCARCITY_UNIT * after.scarce
        self.values: Floats = after.score + self._fit - self._scarce

    def update(self, nodes: Positions) -> None:
        raise NotImplementedError("for members of gangs")

    def terms(self, node: int) -> list[tuple[str, float]]:
        parts = [("gradient", self._after.score), ("fit", self._fit), ("scarce", self._scarce)]
        return [(name, float(column[node])) for name, column in parts]

    def card_keys(self, request: ResolvedRequest, line: NodeDevices) -> list[Ints] | None:
        return self._after.card_keys(request, line)
