"""How large a volume a StorageClass can still make for each node: its CSIStorageCapacity objects.

A driver with a pool on each node publishes one object for each; they are found by the label value
that they name. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from controller.cluster.incremental.saturation import MOST, saturated
from controller.cluster.nodes.node_labels import NodeLabels, pinned, selector_key
from controller.cluster.nodes.nodes import NodeColumns
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.quantity import Quantity
from hami_dra.api.storage import CSIStorageCapacity

_NOWHERE: Final = -1
_MOST_CHANGED: Final = 256
_MOST_WIDE: Final = 1_024
"""Selectors of one class that are more than a value of a label. Where there are more, which no
driver has, its capacity is left to kube-scheduler.
"""


class _Pin(Struct, frozen=True):
    """A value of a label."""

    key: str
    value: str


_Place = object
"""A pin, or the key of a selector."""


class _Largest(Struct):
    """The largest volume by row, as it was at one version of the nodes."""

    version: tuple[int, int]
    column: Ints
    changed: dict[_Pin, None] | None = {}
    """Values of labels whose capacity changed since; None: more did."""


class StorageCapacities:
    """The capacities of all classes."""

    def __init__(self, nodes: NodeColumns, labels: NodeLabels) -> None:
        self._nodes = nodes
        self._labels = labels
        self._objects: dict[str, CSIStorageCapacity] = {}
        self._places: dict[str, dict[_Place, dict[str, int]]] = {}
        """By class and place: the size of the largest volume, in bytes, by object."""
        self._largest: dict[str, _Largest] = {}
        """By class, as last asked for."""

    def put(self, key: str, capacity: CSIStorageCapacity | None) -> None:
        """Update the object of this key; None: it is gone."""
        if (known := self._objects.pop(key, None)) is not None:
            self._forget(key, known)
        if capacity is None:
            return
        self._objects[key] = capacity
        if capacity.limit is not None:
            limit = saturated(Quantity.or_zero(capacity.limit).value())
            for place in _places(capacity):
                self._places.setdefault(capacity.storage_class_name, {}).setdefault(place, {})[key] = limit
                self._note(capacity.storage_class_name, place)

    def largest(self, storage_class: str) -> Ints:
        """Return the size of the largest volume that can be made for each node, in bytes; -1 where
        none can. Shape (size,). Not to be changed by the caller.
        """
        found = self._largest.get(storage_class)
        version = self._nodes.changes.version, self._nodes.size
        if found is None or found.version != version or found.changed is None:
            if storage_class not in self._places:
                self._largest.pop(storage_class, None)
                return np.full(self._nodes.size, _NOWHERE, dtype=np.int64)
            found = self._largest[storage_class] = _Largest(version, self._compute(storage_class))
        if found.changed:
            places = self._places.get(storage_class, {})
            wide = [each for each in places if not isinstance(each, _Pin)]
            for pin in found.changed:
                for row in self._labels.column(pin.key).rows_with((pin.value,)).nonzero()[0].tolist():
                    found.column[row] = self._on(row, places, wide)
            found.changed = {}
        return found.column

    def _on(self, row: int, places: Mapping[_Place, dict[str, int]], wide: Sequence[_Place]) -> int:
        """Return `largest` of one node. `wide`: the places that are no value of a label."""
        node = self._nodes.nodes[row]
        labels = node.metadata.labels if node is not None else {}
        found = [_NOWHERE]
        for key, value in labels.items():
            found += places.get(_Pin(key, value), {}).values()
        for place in wide:
            if self._mask(places[place])[row]:
                found += places[place].values()
        return max(found)

    def _mask(self, limits: dict[str, int]) -> Bools:
        """Return the nodes of a place that is no value of a label."""
        topology = self._objects[next(iter(limits))].node_topology
        assert topology is not None, "an object without one has no place"
        return self._labels.matching(topology)

    def _note(self, storage_class: str, place: _Place) -> None:
        """Let the column of the class follow a change: by value of a label, else as a whole."""
        if (found := self._largest.get(storage_class)) is None or found.changed is None:
            return
        if isinstance(place, _Pin) and len(found.changed) < _MOST_CHANGED:
            found.changed[place] = None
        else:
            found.changed = None

    def _compute(self, storage_class: str) -> Ints:
        largest: Ints = np.full(self._nodes.size, _NOWHERE, dtype=np.int64)
        by_key: dict[str, list[tuple[str, int]]] = {}
        if sum(not isinstance(place, _Pin) for place in self._places[storage_class]) > _MOST_WIDE:
            largest[:] = MOST
            return largest
        for place, limits in self._places.get(storage_class, {}).items():
            limit = max(limits.values())
            if isinstance(place, _Pin):
                by_key.setdefault(place.key, []).append((place.value, limit))
            else:
                mask = self._mask(limits)
                largest[mask] = np.maximum(largest[mask], limit)
        for key, values in by_key.items():
            column = self._labels.column(key)
            numbers = column.current()
            table = np.full(len(column.numbers) + 1, _NOWHERE, dtype=np.int64)
            for value, limit in values:
                if (number := column.numbers.get(value)) is not None:
                    table[number] = max(int(table[number]), limit)
            largest = np.maximum(largest, table[numbers])
        return largest

    def sufficient(self, storage_class: str, size: int) -> Bools:
        """Return the nodes for which a volume of this many bytes can be made. Shape (size,)."""
        return self.largest(storage_class) >= saturated(size)

    def _forget(self, key: str, known: CSIStorageCapacity) -> None:
        by_place = self._places.get(known.storage_class_name, {})
        for place in _places(known):
            if (limits := by_place.get(place)) is not None:
                limits.pop(key, None)
                self._note(known.storage_class_name, place)
                if not limits:
                    del by_place[place]
        if not by_place:
            self._places.pop(known.storage_class_name, None)


def _places(capacity: CSIStorageCapacity) -> list[_Place]:
    """Return where the capacity is; an object without a topology is nowhere."""
    topology = capacity.node_topology
    if topology is None:
        return []
    if (found := pinned(topology)) is not None:
        key, values = found
        return [_Pin(key, value) for value in dict.fromkeys(values)]
    return [selector_key(topology)]
