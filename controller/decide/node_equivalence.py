"""Equivalence classes of nodes for a request: nodes whose cards agree in everything a vendor sees
share a number.

Used by `decide.pre_score`. One `NodeClasses` is cached for each recent pair of request shape and
vendor, and updated for the nodes whose devices changed, so a decision costs little more than the
number of different nodes, regardless of how many nodes there are. Pure.
"""

from typing import Final

import numpy as np
from msgspec import Struct

from controller.allocation.prefilter import RequestColumns
from controller.cluster.incremental.derived_column import LogReader
from controller.cluster.incremental.growth import grown
from controller.inventory.inventory import Inventory
from controller.inventory.layouts import NO_POSITION
from controller.scoring.node_views import card_states_of
from hami_dra.api.arrays import Codes, Ints, Positions
from hami_dra.vendors.protocol import Layout, Vendor

NO_SAY: Final = -1
"""The vendor has no layout of the node, or devices of other vendors are eligible too."""
_FEW: Final = 512
"""Up to this many changed devices, update their nodes individually."""
_MOST: Final = 1 << 14
"""Numbers in use; beyond this many, all nodes are numbered again from 0."""


class NodeClass(Struct, frozen=True):
    """The common properties of the nodes of one number; `card_states` and `states` by position in the layout."""

    layout: Layout
    card_states: Codes
    states: Codes
    parts: bool
    """Parts of cards may be taken instead."""


class NodeClasses:
    """The node classes of one request shape and one vendor. `classes[number]` is a NodeClass.

    `idle`: as if all devices were idle and healthy.
    """

    def __init__(self, inventory: Inventory, vendor: Vendor, column: RequestColumns, *, idle: bool = False) -> None:
        self._inventory = inventory
        self._vendor = vendor
        self._column = column
        self._idle = idle
        self._usage = LogReader(inventory.devices.structure if idle else inventory.devices.changes)
        self._layout: Ints = np.zeros(0, dtype=np.int64)
        self._node: Ints = np.zeros(0, dtype=np.int64)
        self._known: dict[bytes, int] = {}
        self._classes: list[NodeClass] = []
        self.number: Ints = np.zeros(0, dtype=np.int64)
        """Number of the class by node row, or NO_SAY. Shape (nodes.size,)."""

    def __len__(self) -> int:
        return len(self._classes)

    def __getitem__(self, number: int) -> NodeClass:
        return self._classes[number]

    # -- incremental update ------------------------------------------------------------------------

    def refresh(self) -> None:
        """Update the numbers. The column must be up to date."""
        devices = self._inventory.devices
        layout = self._inventory.layouts.numbers(self._vendor.profile.driver)
        moved = self._relaid(layout)
        if self._usage.is_current and not moved.size:
            return
        changed = self._usage.take()
        if len(self._classes) > _MOST:
            changed = None
        self._layout = layout.copy()
        if changed is None or len(changed) > _FEW:
            self._known.clear()
            self._classes.clear()
            self.number = np.full(len(layout), NO_SAY, dtype=np.int64)
            self._node = devices.node[: devices.size].copy()
            self._judge(np.flatnonzero(layout >= 0), np.flatnonzero(devices.active[: devices.size]))
            return
        # Incremental: a changed device concerns the node it was on (`_node`) and the node it is on
        # now.
        self.number = grown(self.number, len(layout), NO_POSITION)
        self._node = grown(self._node, devices.size, NO_POSITION)
        touched = np.unique(np.concatenate((moved, self._node[changed], devices.node[changed])))
        self._node[changed] = devices.node[changed]
        touched = touched[touched >= 0]
        self.number[touched] = NO_SAY
        touched = touched[layout[touched] >= 0]
        if touched.size:
            names = self._inventory.nodes.names
            rows = [row for node in touched.tolist() for row in self._inventory.rows_on(names[node])]
            self._judge(touched, np.array(rows, dtype=np.intp))

    def _relaid(self, layout: Ints) -> Positions:
        """Return the nodes whose layout differs from the one they were numbered with."""
        known = min(len(layout), len(self._layout))
        return np.concatenate(
            (np.flatnonzero(layout[:known] != self._layout[:known]), np.arange(known, len(layout), dtype=np.intp))
        )

    def _judge(self, nodes: Positions, rows: Positions) -> None:
        """Number these nodes. `rows`: at least all devices that only they have.

        All nodes are handled at once: the cards become a table with a line for each node and a
        column for each position of its layout, and equal lines get equal numbers. For nodes 4 and 9
        with two cards each, the first card of node 9 in use::

            place     row 4 -> 0, row 9 -> 1, others -1 (`nodes` reversed)
            where     ([0, 0, 1, 1], [0, 1, 0, 1])       line and column of each card
            states    [[idle, idle], [used, idle]]       so the nodes get the numbers 0 and 1
        """
        inventory, vendor = self._inventory, self._vendor
        devices, position = inventory.devices, inventory.layouts.position
        place = np.full(inventory.nodes.size, -1, dtype=np.int64)
        place[nodes] = np.arange(len(nodes))
        rows = rows[devices.node[rows] >= 0]
        rows = rows[place[devices.node[rows]] >= 0]
        codes = self._column.idle().codes if self._idle else self._column.codes
        eligible = codes[rows] == 0
        kinds = [sample.id.driver == vendor.profile.driver for sample in devices.kind_samples]
        of_vendor = np.array(kinds, dtype=np.bool_)[devices.kind[rows]]
        known = of_vendor & (position[rows] >= 0)
        # If devices of other vendors are eligible too, the vendor cannot tell which cards will be
        # chosen.
        says = np.bincount(place[devices.node[rows[eligible & ~of_vendor]]], minlength=len(nodes)) == 0
        # Parts of cards are not cards, but may be taken instead.
        parts = np.bincount(place[devices.node[rows[eligible & of_vendor & ~known]]], minlength=len(nodes)) > 0
        rows, eligible = rows[known], eligible[known]
        where = place[devices.node[rows]], position[rows]
        shape = len(nodes), int(position[rows].max(initial=0)) + 1
        card_states: Codes = np.zeros(shape, dtype=np.uint8)
        states: Codes = np.zeros(shape, dtype=np.uint8)
        cards, nothing = devices.cards(rows), np.zeros(len(rows), dtype=np.int64)
        if self._idle:
            cards.slots_used = cards.cores_used = cards.memory_used = cards.mark = nothing
        card_states[where] = card_states_of(eligible, cards.slots_used == 0, nothing != 0)
        ask = self._column.ask(rows)
        for amounts in (ask.slots, ask.cores, ask.memory):
            amounts[~eligible] = 0
        states[where] = vendor.states(cards, ask)
        for each in np.flatnonzero(says).tolist():
            node = int(nodes[each])
            self.number[node] = self._number(
                int(self._layout[node]), card_states[each], states[each], parts=bool(parts[each])
            )

    def _number(self, layout: int, card_states: Codes, states: Codes, *, parts: bool) -> int:
        """Return the number of the class with these contents, a new one if there is none yet.

        The key holds all contents, so that equal keys mean equal classes; lines are cut to the size
        of the layout first.
        """
        found = self._inventory.layouts.numbered(layout)
        card_states, states = card_states[: found.size], states[: found.size]
        key = b"%d %d " % (layout, parts) + card_states.tobytes() + states.tobytes()
        number = self._known.setdefault(key, len(self._classes))
        if number == len(self._classes):
            self._classes.append(NodeClass(found, card_states.copy(), states.copy(), parts))
        return number


def node_classes_of(inventory: Inventory, vendor: Vendor, column: RequestColumns, *, idle: bool = False) -> NodeClasses:
    """Return the classes, up to date if the column is."""
    classes = inventory.of_request(
        NodeClasses, (vendor.name, column, idle), lambda: NodeClasses(inventory, vendor, column, idle=idle)
    )
    classes.refresh()
    return classes
