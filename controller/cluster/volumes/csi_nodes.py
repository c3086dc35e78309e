"""The CSINodes of a cluster as columns over the rows of the nodes. Pure."""

from typing import Final

import numpy as np

from controller.cluster.incremental.derived_column import DerivedColumns
from controller.cluster.incremental.growth import grown
from controller.cluster.incremental.saturation import MOST
from controller.cluster.nodes.nodes import NodeColumns
from controller.cluster.volumes.storage_objects import StorageObjects
from hami_dra.api.arrays import Bools, Ints, Positions
from hami_dra.api.storage import CSINode

_NO_LIMIT: Final = MOST
_MOST_READ: Final = 64
"""Drivers and in-tree plugins of one CSINode. The token of a node may write it, and each takes a
column over all nodes.
"""


class CsiNodeColumns(DerivedColumns):
    """By driver its limit and whether it is there; by in-tree plugin whether it is replaced."""

    __slots__ = ("_installed", "_limited", "_limits", "_migrated", "_nodes", "_objects", "_present")

    def __init__(self, nodes: NodeColumns, objects: StorageObjects) -> None:
        super().__init__(nodes.changes)
        self._nodes = nodes
        self._objects = objects
        self._limits: dict[str, Ints] = {}
        self._installed: dict[str, Bools] = {}
        self._migrated: dict[str, Bools] = {}
        self._present: Bools = np.zeros(0, dtype=np.bool_)
        self._limited: Bools = np.zeros(0, dtype=np.bool_)

    def changed(self, name: str) -> None:
        """The CSINode of this name is another one, or gone."""
        row = self._nodes.index_of(name)
        if 0 <= row < len(self._present):  # else its node is news, too
            self._read(row, self._objects.csi_nodes.get(name))

    @property
    def present(self) -> Bools:
        """Nodes with a CSINode. Shape (size,). Not to be changed by the caller."""
        self.refresh()
        return self._present[: self._nodes.size]

    @property
    def limited(self) -> Bools:
        """Nodes with a limit for any driver. Shape (size,). Not to be changed by the caller."""
        self.refresh()
        return self._limited[: self._nodes.size]

    def limit(self, driver: str) -> Ints | None:
        """Return the limit by row, `MOST` where there is none; None: no node limits the driver."""
        self.refresh()
        found = self._limits.get(driver)
        return found[: self._nodes.size] if found is not None else None

    def installed(self, driver: str) -> Bools:
        self.refresh()
        found = self._installed.get(driver)
        return found[: self._nodes.size] if found is not None else np.zeros(self._nodes.size, dtype=np.bool_)

    def migrated(self, plugin: str) -> Bools | None:
        """Return the nodes where a CSI driver serves an in-tree plugin; None: there is none."""
        self.refresh()
        found = self._migrated.get(plugin)
        return found[: self._nodes.size] if found is not None else None

    def _grow(self) -> int:
        capacity = len(self._nodes.present)
        if len(self._present) < capacity:
            self._present, self._limited = grown(self._present, capacity), grown(self._limited, capacity)
            for masks in (self._installed, self._migrated):
                masks.update({key: grown(mask, capacity) for key, mask in masks.items()})
            self._limits.update({key: grown(limits, capacity, _NO_LIMIT) for key, limits in self._limits.items()})
        return self._nodes.size

    def _update(self, rows: Positions, /) -> None:
        for row in rows.tolist():
            self._read(row, self._objects.csi_nodes.get(self._nodes.names[row]))

    def _read(self, row: int, node: CSINode | None) -> None:
        capacity = len(self._present)
        for limits in self._limits.values():
            limits[row] = _NO_LIMIT
        for masks in (self._installed, self._migrated):
            for mask in masks.values():
                mask[row] = False
        drivers = node.spec.drivers[:_MOST_READ] if node is not None else ()
        self._present[row] = node is not None
        self._limited[row] = any(each.limit is not None for each in drivers)
        plugins = node.migrated_plugins.split(",", _MOST_READ)[:_MOST_READ] if node is not None else []
        for plugin in filter(None, plugins):
            self._column(self._migrated, plugin, capacity)[row] = True
        for each in drivers:
            self._column(self._installed, each.name, capacity)[row] = True
            if each.limit is not None:
                if each.name not in self._limits:
                    self._limits[each.name] = np.full(capacity, _NO_LIMIT, dtype=np.int64)
                self._limits[each.name][row] = each.limit

    @staticmethod
    def _column(where: dict[str, Bools], key: str, capacity: int) -> Bools:
        found = where.get(key)
        if found is None:
            found = where[key] = np.zeros(capacity, dtype=np.bool_)
        return found
