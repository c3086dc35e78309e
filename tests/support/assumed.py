"""Allocations that count as about to be written."""

from controller.inventory.ledger import holdings_of
from controller.inventory.model import DeviceId
from hami_dra.api.resource import AllocationResult


def assume(inventory, claim_uid, allocation):
    """Count an allocation: JSON as `decide` returns it, or an object, whose shared devices are those
    published as such.
    """
    if isinstance(allocation, AllocationResult):
        holdings = holdings_of(allocation, lambda device: _is_shared(inventory, device))
    else:
        holdings = held_by(allocation)
    inventory.usage.assume({claim_uid: holdings or None})


def held_by(allocation):
    """Holdings of JSON as `decide` returns it: results of devices that others may be given have `consumedCapacity`."""
    results = [each for each in allocation["devices"].get("results") or () if "consumedCapacity" in each]
    shared = {DeviceId(each["driver"], each["pool"], each["device"]) for each in results}
    return holdings_of(AllocationResult.from_json(allocation), shared.__contains__)


def _is_shared(inventory, device):
    row = inventory.devices.row_of(device)
    return row >= 0 and inventory.devices.device(row).shared
