"""The cards of all nodes as tables: one row per node, one column per device, for arithmetic over
all nodes at once.

Created by the inventory, read by the node policy `fair-share` (`controller.scoring`).
Updated incrementally: only nodes whose devices changed since the last read are laid out again. A
part of a card (MIG) has its own column, but its usage is counted on the card that it is cut from.
"""

from typing import Final

import numpy as np

from controller.cluster.incremental.changes import ChangeLog
from controller.cluster.incremental.derived_column import LogReader
from controller.cluster.incremental.growth import Interned, grown
from controller.cluster.nodes.nodes import NodeColumns
from controller.inventory.columns import DeviceColumns
from controller.inventory.model import Device
from controller.inventory.roles import free_shares, free_totals
from controller.inventory.rows_of_nodes import RowsOfNodes
from hami_dra.api.arrays import Ints, Positions
from hami_dra.vendors.protocol import Cards

NO_DEVICE: Final = -1
_NARROW: Final = 8
"""Initial number of columns."""


class CardGrid:
    """Tables of shape (nodes, width), int64; columns in order of NUMA node, index and name, the
    order that breaks ties.

    `rows`: device row, or NO_DEVICE. `home`: column of the card that a part is cut from; for a card
    its own. `free`: free part of a card in millionths (`roles.free_shares`); 0 for parts and empty
    places. `island`: number of the fast-interconnect island on the node; a card without one is its
    own island. `type`: number of the driver, product and memory, -1 for parts and empty places. Per
    node, shape (nodes,): `cards`, the number of cards; `node_free` and `node_partial`, the sums of
    the free parts of all cards, and of those that are neither idle nor full.

    A node with card a (half used by its part a1) and the idle cards b and c, linked to each other,
    in a grid of width 5:

        columns  a        a1  b          c          -
        home     0        0   2          3          4
        free     500000   0   1000000    1000000    0
        island   0        1   2          2          -1
        cards    3
    """

    def __init__(self, devices: DeviceColumns, nodes: NodeColumns) -> None:
        self._devices = devices
        self._nodes = nodes
        self._structure = LogReader(devices.structure)
        self._usage = LogReader(devices.changes)
        self.layouts = 0
        """Increases whenever the devices of a node change."""
        self._rows_of_nodes = RowsOfNodes(devices)
        self.types = Interned[tuple[str, str, int]]()
        """Driver, product, and memory in bytes."""
        self.changes = ChangeLog()
        """Node rows where something in the tables changed."""
        nothing: Ints = np.zeros((0, 0), dtype=np.int64)
        self.rows = self.home = self.free = self.island = self.type = nothing
        self.cards = self.node_free = self.node_partial = nothing.ravel()
        self._allocate(0, _NARROW)

    def _allocate(self, nodes: int, width: int) -> None:
        def enlarged(table: Ints, fill: int | Ints) -> Ints:
            fresh: Ints = np.empty((nodes, width), dtype=np.int64)
            fresh[:] = fill
            fresh[: table.shape[0], : table.shape[1]] = table
            return fresh

        self.rows = enlarged(self.rows, NO_DEVICE)
        self.home = enlarged(self.home, np.arange(width))
        self.free = enlarged(self.free, 0)
        self.island = enlarged(self.island, NO_DEVICE)
        self.type = enlarged(self.type, NO_DEVICE)
        self.cards, self.node_free = grown(self.cards, nodes), grown(self.node_free, nodes)
        self.node_partial = grown(self.node_partial, nodes)

    @property
    def width(self) -> int:
        return int(self.rows.shape[1])

    def refresh(self) -> "CardGrid":
        """Bring the tables up to date; to be called before they are read."""
        devices = self._devices
        if self.rows.shape[0] < self._nodes.size:
            self._allocate(len(self._nodes.present), self.width)
        if self._usage.is_current and self._structure.is_current:
            return self
        rebuilt, used = self._structure.take(), self._usage.take()
        touched = self._rows_of_nodes.moved(np.arange(devices.size) if rebuilt is None else rebuilt)
        for node in sorted(touched):
            self._lay_out(node)
        if used is None or rebuilt is None:
            touched |= self._rows_of_nodes.nodes()
        else:
            owners = devices.node[used]
            touched.update(owners[owners >= 0].tolist())
        self._count(np.array(sorted(touched), dtype=np.intp))
        return self

    def places(self, node: int, rows: Positions) -> Positions:
        """Return the columns of some devices on a node; devices that no node owns come after the last column."""
        order = {row: column for column, row in enumerate(self.rows[node].tolist()) if row >= 0}
        return np.array([order.get(row, self.width + place) for place, row in enumerate(rows.tolist())], dtype=np.intp)

    def _lay_out(self, node: int) -> None:
        members = [self._devices.device(row) for row in self._rows_of_nodes.of(node)]
        members.sort(key=lambda each: (self._devices.numa[each.row], each.index, each.id))
        if len(members) > self.width:
            self._allocate(self.rows.shape[0], max(len(members), 2 * self.width))
        whole = {_card_key(each): column for column, each in enumerate(members) if not each.is_part}
        islands: dict[tuple[str, int], int] = {}
        self.rows[node] = NO_DEVICE
        self.home[node] = np.arange(self.width)
        self.island[node] = NO_DEVICE
        self.type[node] = NO_DEVICE
        for column, each in enumerate(members):
            self.rows[node, column] = each.row
            self.home[node, column] = whole.get(_card_key(each), column) if each.is_part else column
            if self.home[node, column] == column:
                self.type[node, column] = self._type_of(each)
            group = each.int_attribute(each.profile.link_group, 0)
            self.island[node, column] = islands.setdefault((each.id.driver, group), column) if group > 0 else column
        self.layouts += 1
        self.cards[node] = int((self.home[node, : len(members)] == np.arange(len(members))).sum())

    def _type_of(self, device: Device) -> int:
        product, memory = device.string_attribute(device.profile.product), int(self._devices.memory_total[device.row])
        return self.types.number((device.id.driver, product, memory))

    def _count(self, nodes: Positions) -> None:
        """Compute the free parts of the cards of some nodes from the device columns."""
        if not nodes.size:
            return
        there = self.rows[nodes] >= 0
        self.free[nodes] = self._free(nodes, self._devices.cards(np.where(there, self.rows[nodes], 0)))
        self.node_free[nodes], self.node_partial[nodes] = free_totals(self.free[nodes])
        for node in nodes.tolist():
            self.changes.add(node)

    def _free(self, nodes: Positions, cards: Cards) -> Ints:
        """Return the free parts. The usage of parts is added to that of their cards.

        `cards`: by node and column, shape (len(nodes), width). A card of 40 GiB with two parts, of
        which 10 and 5 GiB are used (`np.add.at` adds twice where an index comes twice):

            home                  [0, 0, 0]
            memory used, before   [0, 10, 5]
            memory used, then     [15, 10, 5]
            free                  [625000, 0, 0]
        """
        there, home = self.rows[nodes] >= 0, self.home[nodes]
        parts = there & (home != np.arange(self.width))
        if parts.any():
            line, column = np.nonzero(parts)
            for used in (cards.slots_used, cards.cores_used, cards.memory_used):
                np.add.at(used, (line, home[line, column]), used[line, column])
        free: Ints = np.where(there & ~parts, free_shares(cards), 0)
        return free


def _card_key(device: Device) -> tuple[str, str, int]:
    return device.id.driver, device.id.pool, device.index
