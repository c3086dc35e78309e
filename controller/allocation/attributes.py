"""Attributes of devices as constraints see them.

Called by `constraints`. In: a request, a device, a fully qualified attribute name. Out: the attribute or None.
"""

from controller.allocation.request import RequestView
from controller.inventory.model import Device
from hami_dra.api import resource as api


def lookup(view: RequestView, device: Device, name: str) -> api.DeviceAttribute | None:
    """Derived by the request under that name, else published by the device.

    Raises AllocatorError where a derived attribute does not compile or fails on the device.
    """
    derived = view.derived.get(name)
    return device.attribute(name) if derived is None else derived.of(device)
