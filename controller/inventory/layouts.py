"""Interconnect layouts of the cards of each node for vendors: one `Layout` per node and driver,
equal ones shared.

Created by the inventory, read by `decide.pre_score` (all nodes at once) and `scoring.chooser` (one
node). Updated incrementally: only nodes whose devices changed since the last read are laid out
again. Drivers without vendor rules have no layouts, parts of a card (MIG) no position.
"""

from collections.abc import KeysView
from functools import lru_cache
from operator import attrgetter
from typing import Final

import numpy as np

from controller.cluster.incremental.derived_column import LogReader
from controller.cluster.incremental.growth import Interned, grown
from controller.cluster.nodes.nodes import NodeColumns
from controller.inventory.card_traits import CardWiring
from controller.inventory.columns import DeviceColumns, rows_of
from controller.inventory.model import UNNUMBERED, Device
from controller.inventory.rows_of_nodes import RowsOfNodes
from hami_dra.api.arrays import Ints, Positions
from hami_dra.vendors.protocol import Layout
from hami_dra.vendors.registry import VENDORS

NO_POSITION: Final = -1
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_MOST_CARDS: Final = 128
"""Cards of one node and driver (ResourceSliceMaxDevices); beyond that no rule about sets applies."""

_CARDS_KEPT: Final = 1024
_DRIVERS: Final = dict.fromkeys([vendor.profile.driver for vendor in VENDORS])
_ORDER: Final = attrgetter("index", "id")
_NOTHING: Final[Ints] = np.zeros(0, dtype=np.int64)

Place = tuple[int, str]
"""(row of the node, driver)"""


class Layouts:
    """The layouts of all nodes. `position`: int64 per device row, its position in the layout of its
    node, or NO_POSITION.
    """

    def __init__(self, devices: DeviceColumns, nodes: NodeColumns) -> None:
        self._devices = devices
        self._nodes = nodes
        self._structure = LogReader(devices.structure)
        self._labelled = LogReader(nodes.changes)
        self._rows_of_nodes = RowsOfNodes(devices, _is_laid_out)
        self._labels: dict[int, str] = {}
        self._layouts: dict[Place, tuple[Layout, Positions]] = {}
        self._numbers: dict[str, Ints] = {}
        self._known = Interned[Layout]()
        """Machines of one model are wired alike."""
        self.position: Ints = _NOTHING

    def of(self, node: int, driver: str) -> tuple[Layout, Positions] | None:
        """Return the layout, and the device row of each position. None: no vendor, no cards, or too many."""
        self._refresh()
        return self._layouts.get((node, driver))

    def drivers(self) -> KeysView[str]:
        """Return the drivers of which a node has, or recently had, a layout."""
        self._refresh()
        return self._numbers.keys()

    def numbers(self, driver: str) -> Ints:
        """Return per node row the number of its layout, for `numbered`; NO_POSITION if `of` returns
        None. Shape (nodes.size,).
        """
        self._refresh()
        numbers = self._numbers.get(driver)
        if numbers is None:
            return np.full(self._nodes.size, NO_POSITION, dtype=np.int64)
        if len(numbers) < self._nodes.size:
            numbers = self._numbers[driver] = grown(numbers, self._nodes.size, NO_POSITION)
        return numbers[: self._nodes.size]

    def numbered(self, number: int) -> Layout:
        return self._known.values[number]

    def _refresh(self) -> None:
        devices = self._devices
        if self._structure.is_current and self._labelled.is_current:
            return
        changed, relabelled = self._structure.take(), self._labelled.take()
        if len(self.position) < devices.size:
            self.position = grown(self.position, len(devices.active), NO_POSITION)
        rows = np.arange(devices.size) if changed is None else changed
        self.position[rows] = NO_POSITION
        touched = self._rows_of_nodes.moved(rows)
        for node in self._rows_of_nodes.nodes() if relabelled is None else relabelled.tolist():
            if self._labels.get(node, "") != self._instance_type(node):
                touched.add(node)
        for node in touched:
            self._lay_out(node)

    def _lay_out(self, node: int) -> None:
        by_driver: dict[str, list[Device]] = {driver: [] for driver in _DRIVERS}
        for row in self._rows_of_nodes.of(node):
            device = self._devices.device(row)
            by_driver[device.id.driver].append(device)
        label = self._labels[node] = self._instance_type(node)
        for driver, cards in by_driver.items():
            if not cards or len(cards) > _MOST_CARDS:
                self.position[[card.row for card in cards]] = NO_POSITION
                if self._layouts.pop((node, driver), None) is not None:
                    self._numbers[driver][node] = NO_POSITION
                continue
            cards.sort(key=_ORDER)
            rows = rows_of(cards)
            self.position[rows] = np.arange(len(cards))
            number = self._known.number(layout_of(cards, label))
            self._layouts[node, driver] = self._known.values[number], rows
            numbers = self._numbers.get(driver, _NOTHING)
            if len(numbers) <= node:
                numbers = self._numbers[driver] = grown(numbers, 2 * (node + 1), NO_POSITION)
            numbers[node] = number

    def _instance_type(self, node: int) -> str:
        found = self._nodes.nodes[node] if node < len(self._nodes.nodes) else None
        return found.metadata.labels.get(INSTANCE_TYPE, "") if found is not None else ""


_Cards = tuple[tuple[int, CardWiring], ...]
"""Index and wiring: all that a layout knows of its cards."""


def layout_of(cards: list[Device], instance_type: str = "") -> Layout:
    """Return the layout. `cards`: in order of their index. Invalid values (a row of another length)
    count as unknown.
    """
    return _layout(tuple([(card.index, card.traits.wiring) for card in cards]), instance_type)


@lru_cache(maxsize=_CARDS_KEPT)
def _layout(cards: _Cards, instance_type: str) -> Layout:
    numbers = tuple([index for index, _ in cards])
    groups, numas, products, links, distances = zip(*(wiring for _, wiring in cards), strict=True)
    known = [number for number in numbers if number != UNNUMBERED]
    unique = len(set(known)) == len(numbers)

    def table(text: str, self_index: int) -> str:
        """Return the characters of a row for the cards that exist, by position; the row itself is by index."""
        if not unique:
            return "0" * len(cards)
        return "".join(
            "-" if number == self_index else text[number] if 0 <= number < len(text) else "0" for number in numbers
        )

    return Layout(
        index=numbers,
        group=groups,
        numa=numas,
        product=products,
        lanes=tuple(
            tuple(max(_DIGITS.find(letter), 0) for letter in table(text, number))
            for text, number in zip(links, numbers, strict=True)
        ),
        distance=tuple(table(text, number) for text, number in zip(distances, numbers, strict=True)),
        instance_type=instance_type,
    )


def _is_laid_out(device: Device) -> bool:
    return device.id.driver in _DRIVERS and not device.is_part
