"""The free capacity of every node with a pod placed on it: columns per shape of request, updated
incrementally.

Called by `scoring.ranking` and, for the node that is searched, by `scoring.chooser`.
`scoring.device_selection` says which cards are taken. A decision computes only nodes whose cards
changed since the last pod of the same shape. Pure.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from msgspec import Struct

from controller.allocation.prefilter import RequestColumns
from controller.allocation.request import RequestGroup, ResolvedRequest
from controller.cluster.incremental.derived_column import DerivedColumns
from controller.cluster.incremental.growth import grown
from controller.inventory.card_grid import CardGrid
from controller.inventory.inventory import Inventory
from controller.inventory.roles import WHOLE_CARD, asked_shares, free_totals
from controller.scoring.device_selection import first_of, fit_keys, left_after
from controller.scoring.policies import Packing
from controller.scoring.scarcity import Scarcity
from hami_dra.api.arrays import Bools, Floats, Ints, Positions

Wanted = Sequence[tuple[RequestGroup, list[RequestColumns]]]
"""Every managed request with the columns of its alternatives."""


def card_grid_of(inventory: Inventory) -> CardGrid:
    """Return the grid of cards of the inventory, up to date."""
    return inventory.derived(CardGrid, lambda each: CardGrid(each.devices, each.nodes)).refresh()


def after_placement(inventory: Inventory, weights: Packing, wanted: Wanted) -> "AfterPlacement":
    """Return the columns, up to date if those of `wanted` are."""
    grid = card_grid_of(inventory)
    after = inventory.of_request(
        AfterPlacement, (grid, shape_key(wanted, weights)), lambda: AfterPlacement(inventory, grid, weights, wanted)
    )
    after.refresh()
    return after


def shape_key(wanted: Wanted, weights: Packing) -> Hashable:
    """Return everything that the columns of `AfterPlacement` depend on."""
    requests = tuple(
        (column, view.count, view.all_devices)
        for group, columns in wanted
        for view, column in zip(group.alternatives, columns, strict=True)
    )
    return requests, tuple(len(columns) for _, columns in wanted), weights.rare, weights.large


class AfterPlacement(DerivedColumns):
    """The cards' capacity on every node once one pod's requests are met, with the card choice of
    `device_selection`.

    Columns of shape (nodes.size,): `free` and `partial` as in `fair_share.CardTotals`; `scarce`:
    scarcity of the cards that it would take, in cards, on average. Nodes that cannot meet a request
    keep what they have. For a pod of 0.5 card, nodes with the free cards [1, 0.5] and [1, 1]:

        free     1.5 -> [1, 0] = 1      2 -> [0.5, 1] = 1.5
        partial  0.5 -> 0               0 -> 0.5
    """

    def __init__(self, inventory: Inventory, grid: CardGrid, weights: Packing, wanted: Wanted) -> None:
        super().__init__(grid.changes)
        self._inventory = inventory
        self._grid = grid
        self._wanted = [(group.alternatives, columns) for group, columns in wanted]
        self._scarcity = [[Scarcity(grid, column, weights) for column in columns] for _, columns in wanted]
        self._layouts = -1
        self._free: Ints = np.zeros(0, dtype=np.int64)
        self._partial: Ints = np.zeros(0, dtype=np.int64)
        self._scarce: Floats = np.zeros(0, dtype=np.float64)

    @property
    def free(self) -> Ints:
        return self._free[: self._inventory.nodes.size]

    @property
    def partial(self) -> Ints:
        return self._partial[: self._inventory.nodes.size]

    @property
    def scarce(self) -> Floats:
        return self._scarce[: self._inventory.nodes.size]

    def refresh_all(self) -> None:
        """Bring the columns up to date, and the grid that they follow. Those of the requests are."""
        self._grid.refresh()
        self.refresh()

    def scarcity_of(self, request: ResolvedRequest, types: Ints) -> Ints:
        for (alternatives, _), scarcities in zip(self._wanted, self._scarcity, strict=True):
            for view, scarcity in zip(alternatives, scarcities, strict=True):
                if view.shape == request.shape:
                    return scarcity.of(types)
        return np.zeros(types.shape, dtype=np.int64)

    def refresh(self) -> None:
        grid = self._grid
        moved = False
        if self._layouts != grid.layouts:
            for each in (scarcity for line in self._scarcity for scarcity in line):
                moved |= each.refresh()
        self._layouts = grid.layouts
        if moved:  # Other cards are scarce now: the choice on any node may differ.
            self._reader.restart()
        super().refresh()

    def _grow(self) -> int:
        size = len(self._grid.rows)
        self._free, self._partial = grown(self._free, size), grown(self._partial, size)
        self._scarce = grown(self._scarce, size)
        return size

    def _update(self, nodes: Positions, /) -> None:
        """Place the requests one after the other on each of the nodes, and store what is left.

        Each request takes its cards of what the ones before left. With two cards, 1,000,000 and
        600,000 free, and requests for half a card and for a whole one:

            free                  [1000000, 600000]
            half a card           [1000000, 100000]   the used card has room
            a whole card          [      0, 100000]
        """
        table = NodeTable(self._inventory, self._grid, nodes)
        free = table.free
        scarce = np.zeros(len(nodes), dtype=np.int64)
        taken = np.zeros(len(nodes), dtype=np.int64)
        for (alternatives, columns), scarcities in zip(self._wanted, self._scarcity, strict=True):
            number_of = first_alternative(alternatives, columns, nodes)
            for number, (view, column) in enumerate(zip(alternatives, columns, strict=True)):
                if view.admin_access:
                    continue
                share, may = table.request(column, free)
                may &= (number_of == number)[:, None]
                scarcity = scarcities[number].of(table.type)
                chosen = (
                    may
                    if view.all_devices
                    else self._choose(table, free, share, may, count=view.count, scarcity=scarcity)
                )
                free = left_after(free, table.home, share, chosen)
                scarce += np.where(chosen, scarcity, 0).sum(axis=1)
                taken += chosen.sum(axis=1)
        self._finish(table, free)
        self._scarce[nodes] = scarce / np.maximum(taken, 1) / WHOLE_CARD

    def _choose(self, table: "NodeTable", free: Ints, share: Ints, may: Bools, *, count: int, scarcity: Ints) -> Bools:
        """Return the cards that one request takes, on every node. Arrays of shape (nodes, cards)."""
        return first_of(
            fit_keys(table.of_home(free), share, table.island, may, scarcity=scarcity, count=count), may, count
        )

    def _finish(self, table: "NodeTable", free: Ints) -> None:
        """Store the totals of `free`, in which all requests are met."""
        self._free[table.nodes], self._partial[table.nodes] = free_totals(free)


class NodeTable:
    """The cards of some nodes, as tables of shape (nodes, cards)."""

    def __init__(self, inventory: Inventory, grid: CardGrid, nodes: Positions) -> None:
        rows = grid.rows[nodes]
        self.nodes = nodes
        self.there: Bools = rows >= 0
        self.rows = np.where(self.there, rows, 0)
        self.home = grid.home[nodes]
        self.free = grid.free[nodes]
        self.island = grid.island[nodes]
        self.type = self.of_home(grid.type[nodes])
        self._cards = inventory.devices.cards(self.of_home(self.rows))

    def of_home(self, values: Ints) -> Ints:
        """Return the values of the cards that parts are cut from: `home` [[0, 0, 2]] of [[a, b, c]]
        gives [[a, a, c]].
        """
        found: Ints = np.take_along_axis(values, self.home, axis=1)
        return found

    def request(self, column: RequestColumns, free: Ints) -> tuple[Ints, Bools]:
        """Return the millionths that a request would take of each card, and whether it may. `free`:
        what is left of them.
        """
        if not self.there.any():  # a cluster without devices has no kinds of devices either
            return np.zeros_like(free), np.zeros_like(self.there)
        left = self.of_home(free)
        share = asked_shares(self._cards, column.ask(self.rows))
        may = self.there & (column.codes[self.rows] == 0) & (share <= left + 2)
        return np.minimum(share, left), may


def first_alternative(alternatives: Sequence[ResolvedRequest], columns: list[RequestColumns], nodes: Positions) -> Ints:
    """Return per node the first alternative that it may meet; the last if it can meet none.

    Written from the last alternative to the first, so that the first overwrites the others. Two
    nodes, of which the first meets both alternatives and the second only the last:

        from the last     [1, 1]
        alternative 0     [0, 1]
    """
    found = np.full(len(nodes), len(columns) - 1, dtype=np.int64)
    for number in reversed(range(len(columns) - 1)):
        view, column = alternatives[number], columns[number]
        enough = np.True_ if view.all_devices else column.fitting[nodes] + column.network_attached >= view.count
        found[np.broadcast_to(enough, found.shape)] = number
    return found


class NodeDevices(Struct, frozen=True):
    """The cards of one node as the search sees them, with its choices so far.

    Shape (grid.width,), or longer for devices that no node owns. `left`: the free part of the card
    that a device is, or is cut from; `share`: the part that the current request would take of it;
    `may`: whether it may.
    """

    node: int
    left: Ints
    share: Ints
    island: Ints
    may: Bools
    type: Ints


def node_devices_of(
    inventory: Inventory, node: int, rows: Positions, left: Ints, share: Ints
) -> tuple[NodeDevices, Positions]:
    """Return the line of a node, and the place of each of the devices in it.

    `rows`, `left` and `share`: of the devices that the request may take.
    """
    grid = card_grid_of(inventory)
    places = grid.places(node, rows)
    width = max(grid.width, int(places.max(initial=0)) + 1)

    def wide(values: Ints | None, empty: int) -> Ints:
        fresh = np.full(width, empty, dtype=np.int64)
        if values is not None:
            fresh[: grid.width] = values
        return fresh

    island = wide(grid.island[node], -1)
    island[grid.width :] = np.arange(grid.width, width)
    line = NodeDevices(
        node,
        left=wide(None, 0),
        share=wide(None, 0),
        island=island,
        may=np.zeros(width, dtype=np.bool_),
        type=wide(grid.type[node][grid.home[node]], -1),
    )
    line.left[places], line.share[places], line.may[places] = left, np.minimum(share, left), True
    return line, places
