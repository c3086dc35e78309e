"""Attributes that a request derives from those of a device by CEL (alpha gate DRADerivedAttributes).

Made by `prepare`, evaluated by constraints. In: an expression and a device. Out: an attribute as if it were published.
"""

from dataclasses import dataclass

from controller.inventory.model import Device
from hami_dra.api import resource as api


@dataclass(frozen=True, slots=True)
class DerivedAttribute:
    expression: str
    origin: str

    def of(self, device: Device) -> api.DeviceAttribute:
        """Raises AllocatorError: it does not compile, or it fails on this device."""
        raise NotImplementedError
