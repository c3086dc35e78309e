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
        self._kept: set[int] | None = set()
        """What `keep` found."""
        self.mark()

    def mark(self) -> None:
        """Take the present state as read: the caller made the changes since `touched` or `keep`."""
        self._versions = self._state()
        for reader in (self._nodes, self._loads, self._devices):
            reader.done()

    def touched(self) -> set[int] | None:
        """Return the rows of the nodes that changed, in themselves, their loads or their devices,
        since `mark`, with what was kept; None where everything must be decided again: nodes came or
        went, a quota of the namespaces is used differently, or the logs do not know any more.
        """
        self.keep()
        touched, self._kept = self._kept, set()
        return touched

    def keep(self) -> None:
        """Keep what changed since `mark` for the next `touched`, before the caller changes more."""
        nodes, loads, devices = self._nodes.entries(), self._loads.entries(), self._devices.entries()
        if self._state() != self._versions or nodes is None or loads is None or devices is None:
            self._kept = None
        if self._kept is not None and nodes is not None and loads is not None and devices is not None:
            self._kept.update(nodes, loads, (self._inventory.devices.node.item(row) for row in {*devices}))

    def _state(self) -> tuple[object, ...]:
        inventory = self._inventory
        quotas = [
            (inventory.quotas.limits(each), dict(inventory.quotas.used(each))) for each in sorted(self._namespaces)
        ]
        return inventory.nodes.arrivals, quotas
