"""How large a volume a StorageClass can still make for each node: its CSIStorageCapacity objects.

A driver with a pool on each node publishes one object for each; they are found by the label value
that they name. Pure.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.scheduling.incremental.saturation import saturated
from controller.scheduling.node_filter.node_labels import NodeLabels, pinned, selector_key
from controller.scheduling.node_filter.nodes import NodeColumns
from controller.scheduling.node_filter.volumes.amounts import whole_bytes
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.storage import CSIStorageCapacity

_NOWHERE: Final = -1


@dataclass(frozen=True, slots=True)
class _Pin:
    """A value of a label."""

    key: str
    value: str


_Place = object
"""A pin, or the key of a selector."""


class StorageCapacities:
    """The capacities of all classes."""

    def __init__(self, nodes: NodeColumns, labels: NodeLabels) -> None:
        self._nodes = nodes
        self._labels = labels
        self._objects: dict[str, CSIStorageCapacity] = {}
        self._places: dict[str, dict[_Place, dict[str, int]]] = {}
        """By class and place: the size of the largest volume, in bytes, by object."""

    def put(self, key: str, capacity: CSIStorageCapacity | None) -> None:
        """Update the object of this key; None: it is gone."""
        if (known := self._objects.pop(key, None)) is not None:
            self._forget(key, known)
        if capacity is None:
            return
        self._objects[key] = capacity
        if capacity.limit is not None:
            limit = saturated(whole_bytes(capacity.limit))
            for place in _places(capacity):
                self._places.setdefault(capacity.storage_class_name, {}).setdefault(place, {})[key] = limit

    def largest(self, storage_class: str) -> Ints:
        """Return the size of the largest volume that can be made for each node, in bytes; -1 where
        none can. Shape (size,).
        """
        largest = np.full(self._nodes.size, _NOWHERE, dtype=np.int64)
        by_key: dict[str, list[tuple[str, int]]] = {}
        for place, limits in self._places.get(storage_class, {}).items():
            limit = max(limits.values())
            if isinstance(place, _Pin):
                by_key.setdefault(place.key, []).append((place.value, limit))
            else:
                mask = self._labels.matching(self._objects[next(iter(limits))].node_topology)  # type: ignore[arg-type]
                largest[mask] = np.maximum(largest[mask], limit)
        for key, values in by_key.items():
            column = self._labels.column(key)
            numbers = column.current()
            table = np.full(len(column.numbers) + 1, _NOWHERE, dtype=np.int64)
            for value, limit in values:
                if number := column.numbers.get(value):
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
