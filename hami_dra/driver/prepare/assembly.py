"""Assemble the parts of preparation for one driver of a node, up to what `NodePreparation` works
with. Called by the node driver and by tests.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from hami_dra.api.containers import ContainerVendor, Host, Partitioner
from hami_dra.driver.prepare.artifacts import ArtifactWriter
from hami_dra.driver.prepare.checkpoint import Checkpoint
from hami_dra.driver.prepare.files import FileLock, Files
from hami_dra.driver.prepare.inventory import Inventory
from hami_dra.driver.prepare.partitions import Partitions
from hami_dra.driver.prepare.transaction import PrepareTransactions

CHECKPOINT: Final = "checkpoint.json"
LOCK: Final = "checkpoint.lock"


def transactions_of(
    inventory: Callable[[], Inventory | None],
    *,
    vendor: ContainerVendor,
    host: Host,
    partitioner: Partitioner | None,
    state_folder: Path,
    cdi_folder: Path,
    files: Files | None = None,
) -> PrepareTransactions:
    """Return the transactions of one driver.

    `inventory`: the devices published now; called in a thread; None while they are not known.
    `partitioner`: None if cards are not partitioned. `state_folder`: the driver's own,
    `<plugins_dir>/<driver>`; created if it is missing.
    """
    files = files or Files()
    maker = ArtifactWriter(vendor, host, Partitions(partitioner), cdi_folder, files)
    checkpoint = Checkpoint(vendor.driver, state_folder / CHECKPOINT, cdi_folder, files)
    return PrepareTransactions(inventory, maker, checkpoint, FileLock(state_folder / LOCK))
