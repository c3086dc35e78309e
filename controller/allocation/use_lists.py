"""Use and nouse lists of users (`nvidia.com/use-gpuuuid`): whether they allow a card.

Called by the prefilter (a column of rows) and the chooser (the cards of one node). Names are
compared one by one, so only if there is a list.
"""

from controller.inventory.inventory import Inventory
from hami_dra.vendors.device_codes import NUMBER
from hami_dra.vendors.preferences import Preferences
from hami_dra.vendors.protocol import Vendor


def refused_by_lists(inventory: Inventory, vendor: Vendor, preferences: Preferences, row: int) -> int:
    """Return the number of the reason why the lists refuse the device of this row; 0 if they do not."""
    if not preferences.lists:
        return 0
    device = inventory.devices.device(row)
    node = int(inventory.devices.node[row])
    node_name = inventory.nodes.names[node] if node >= 0 else ""
    published = (device.profile.uuid, *device.profile.ids)
    return NUMBER[
        preferences.lists.refusal(
            (*map(device.string_attribute, published), *vendor.ids(node_name, device.index)),
            vendor.type_name(device.string_attribute(device.profile.product)),
            part=device.is_part,
        )
    ]
