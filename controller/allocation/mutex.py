"""Parts of cards under the policy `mutex`, for reports: the reason that their card gives them.

Called by `prefilter` when a refusal is reported or explained. The search sees a part with the usage
of its whole card, and refuses it; a part's own row knows nothing of the card's other parts. Pure.
"""

import numpy as np

from controller.inventory.inventory import Inventory
from hami_dra.api.arrays import Codes, Positions
from hami_dra.vendors.device_codes import CODES, MUTEX_CONFLICT


def of_parts(inventory: Inventory, rows: Positions, codes: Codes) -> Codes:
    """Return the codes with MUTEX_CONFLICT for parts of cards in use, and for such cards
    themselves, where the reason comes after that of `mutex`.

    `codes`: of the rows, both of shape (n,).
    """
    devices = inventory.devices
    divided = devices.divided[rows] & (devices.node[rows] >= 0)
    if not divided.any():
        return codes
    used = {
        _card_of(inventory, row)
        for node in np.unique(devices.node[rows[divided]]).tolist()
        for row in inventory.rows_of(node)[devices.slots_used[inventory.rows_of(node)] > 0].tolist()
    }
    later = (codes == 0) | ((codes > MUTEX_CONFLICT) & (codes < len(CODES)))
    found = codes.copy()
    for position in np.flatnonzero(divided & later).tolist():
        if _card_of(inventory, int(rows[position])) in used:
            found[position] = MUTEX_CONFLICT
    return found


def _card_of(inventory: Inventory, row: int) -> tuple[str, str, int]:
    device = inventory.devices.device(row)
    return device.id.driver, device.id.pool, device.index
