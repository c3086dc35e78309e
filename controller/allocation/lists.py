"""Use and nouse lists of users (`nvidia.com/use-gpuuuid`): whether they let a card be taken.

Called by the prefilter (a column of rows) and the chooser (the cards of one node). Names are looked at one by one, so only
where there is a list.
"""

from controller.inventory.inventory import Inventory
from hami_dra.vendors.protocol import Vendor
from hami_dra.vendors.wishes import Wish


def admitted(inventory: Inventory, vendor: Vendor, wish: Wish, row: int) -> bool:
    """Whether the lists of a wish let the device of this row be taken."""
    if not wish.lists:
        return True
    device = inventory.devices.device(row)
    node = int(inventory.devices.node[row])
    node_name = inventory.nodes.names[node] if node >= 0 else ""
    return wish.lists.admit((device.string_attribute(device.profile.uuid), *vendor.ids(node_name, device.index)))
