"""Use and nouse lists of users (`nvidia.com/use-gpuuuid`): whether they let a card be taken.

Called by the prefilter (a column of rows) and the chooser (the cards of one node). Names are looked at one by one, so only
where there is a list.
"""

from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.layouts import is_part
from hami_dra.vendors.preferences import Preferences
from hami_dra.vendors.protocol import Vendor
from hami_dra.vendors.reasons import NUMBER


def refused_by_lists(inventory: Inventory, vendor: Vendor, preferences: Preferences, row: int) -> int:
    """Number of the reason why the lists of a wish keep the device of this row away; 0 where they do not."""
    if not preferences.lists:
        return 0
    device = inventory.devices.device(row)
    node = int(inventory.devices.node[row])
    node_name = inventory.nodes.names[node] if node >= 0 else ""
    return NUMBER[
        preferences.lists.refusal(
            (device.string_attribute(device.profile.uuid), *vendor.ids(node_name, device.index)),
            vendor.type_name(device.string_attribute(device.profile.product)),
            part=is_part(device),
        )
    ]
