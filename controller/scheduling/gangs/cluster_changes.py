"""What changed in the cluster between two portions of a search. Pure."""

from collections.abc import Collection

from controller.scheduling.incremental.derived_column import LogReader
from controller.scheduling.inventory.inventory import Inventory


class ClusterChanges:
    """`namespaces`: those whose quotas matter."""

    def __init__(self, inventory: Inventory, namespaces: Collection[str]) -> None:
        self._inventory = inventory
        self._namespaces = namespaces
        self._nodes = LogReader(inventory.nodes.changes)
        self._loads = LogReader(inventory.nodes.loads)
        self._devices = LogReader(inventory.devices.changes)
        self._versions: tuple[object, ...] = ()
        self.mark()

    def mark(self) -> None:
        """Remember the present state."""
        self._versions = self._state()
        for reader in (self._nodes, self._loads, self._devices):
            reader.done()

    def touched(self) -> set[int] | None:
        """Return the rows of the nodes that changed, in themselves, their loads or their devices, since
        `mark`; None where everything must be decided again: nodes came or went, a quota of the
        namespaces is used differently, or the logs do not know any more.
        """
        nodes, loads, devices = self._nodes.entries(), self._loads.entries(), self._devices.entries()
        if self._state() != self._versions or nodes is None or loads is None or devices is None:
            return None
        return {*nodes, *loads, *(self._inventory.devices.node.item(row) for row in {*devices})}

    def _state(self) -> tuple[object, ...]:
        inventory = self._inventory
        quotas = [
            (inventory.quotas.limits(each), dict(inventory.quotas.used(each))) for each in sorted(self._namespaces)
        ]
        return inventory.nodes.arrivals, quotas
