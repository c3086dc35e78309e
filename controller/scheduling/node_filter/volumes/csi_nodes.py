"""The CSINodes of a cluster as columns over the rows of the nodes. Pure."""

from typing import Final

import numpy as np

from controller.scheduling.incremental.saturation import MOST
from controller.scheduling.node_filter.nodes import NodeColumns
from controller.scheduling.node_filter.volumes.storage_objects import StorageObjects
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.storage import CSINode

_NO_LIMIT: Final = MOST


class CsiNodeColumns:
    """By driver its limit and whether it is there; by in-tree plugin whether it is replaced."""

    def __init__(self, nodes: NodeColumns, objects: StorageObjects) -> None:
        self._nodes = nodes
        self._objects = objects
        self._arrivals = -1
        self._limits: dict[str, Ints] = {}
        self._installed: dict[str, Bools] = {}
        self._migrated: dict[str, Bools] = {}
        self._present: Bools = np.zeros(0, dtype=np.bool_)
        self._limited: Bools = np.zeros(0, dtype=np.bool_)

    def changed(self, name: str) -> None:
        """The CSINode of this name is another one, or gone."""
        row = self._nodes.index_of(name)
        if row >= 0 and self._arrivals == self._nodes.arrivals:
            self._read(row, self._objects.csi_nodes.get(name))

    @property
    def present(self) -> Bools:
        """Nodes with a CSINode. Shape (size,). Not to be changed by the caller."""
        self._refresh()
        return self._present

    @property
    def limited(self) -> Bools:
        """Nodes with a limit for any driver. Shape (size,). Not to be changed by the caller."""
        self._refresh()
        return self._limited

    def limit(self, driver: str) -> Ints | None:
        """Return the limit by row, `MOST` where there is none; None: no node limits the driver."""
        self._refresh()
        return self._limits.get(driver)

    def installed(self, driver: str) -> Bools:
        self._refresh()
        found = self._installed.get(driver)
        return found if found is not None else np.zeros(self._nodes.size, dtype=np.bool_)

    def migrated(self, plugin: str) -> Bools | None:
        """Return the nodes where a CSI driver serves an in-tree plugin; None: there is none."""
        self._refresh()
        return self._migrated.get(plugin)

    def _refresh(self) -> None:
        if self._arrivals == self._nodes.arrivals:
            return
        self._arrivals = self._nodes.arrivals
        self._limits.clear()
        self._installed.clear()
        self._migrated.clear()
        self._present = np.zeros(self._nodes.size, dtype=np.bool_)
        self._limited = np.zeros(self._nodes.size, dtype=np.bool_)
        for name, node in self._objects.csi_nodes.items():
            if (row := self._nodes.index_of(name)) >= 0:
                self._read(row, node)

    def _read(self, row: int, node: CSINode | None) -> None:
        size = self._nodes.size
        for limits in self._limits.values():
            limits[row] = _NO_LIMIT
        for masks in (self._installed, self._migrated):
            for mask in masks.values():
                mask[row] = False
        drivers = node.spec.drivers if node is not None else ()
        self._present[row] = node is not None
        self._limited[row] = any(each.limit is not None for each in drivers)
        for plugin in node.migrated_plugins.split(",") if node is not None and node.migrated_plugins else ():
            self._migrated.setdefault(plugin, np.zeros(size, dtype=np.bool_))[row] = True
        for each in drivers:
            self._installed.setdefault(each.name, np.zeros(size, dtype=np.bool_))[row] = True
            if each.limit is not None:
                self._limits.setdefault(each.name, np.full(size, _NO_LIMIT, dtype=np.int64))[row] = each.limit
