"""Whether places chosen a moment ago still hold, after the cluster changed under a paused search.
Pure.
"""

from collections.abc import Sequence

from controller.scheduling.decide.answers import Decision
from controller.scheduling.gangs.exhaustive_search import devices_of
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.model import DeviceId
from hami_dra.api.core import Pod


def still_hold(inventory: Inventory, places: Sequence[tuple[Pod, Decision]], touched: Sequence[int] | slice) -> bool:
    """Return whether the nodes still fit their pods, and the devices can bear what counts on them.

    `places`: assumed in the inventory. `touched`: rows of the nodes to look at; a slice: all.
    """
    rows = None if isinstance(touched, slice) else set(touched)
    for pod, decision in places:
        if not inventory.assumed_node(pod.metadata.uid):
            return False  # it went, or was bound elsewhere
        row = inventory.nodes.index_of(decision.node)
        if row < 0:
            return False
        if rows is not None and row not in rows:
            continue
        if not inventory.node_fit(pod).mask[row]:
            return False
        if not all(_bears(inventory, device) for device in devices_of(decision)):
            return False
    return True


def _bears(inventory: Inventory, device: DeviceId) -> bool:
    """Return whether the device is published without a taint that came meanwhile, and is not given away
    twice.
    """
    devices = inventory.devices
    row, use = devices.row_of(device), inventory.usage.use_of(device)
    if row < 0 or use is None or use.exclusive > 1 or (use.exclusive and use.shares):
        return False
    (slots, cores, memory), total = devices.used(row), devices.totals(row)
    return not use.shares or all(
        used <= most or not most for used, most in zip((slots, cores, memory), total, strict=True)
    )
