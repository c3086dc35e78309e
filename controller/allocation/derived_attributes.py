"""Attributes that a request derives from those of a device by CEL (alpha gate
DRADerivedAttributes).

Created by `prepare`, evaluated by constraints. In: an expression and a device. Out: an attribute as
if it were published.
"""

from msgspec import Struct

from controller.allocation.errors import AllocatorError
from controller.allocation.selectors import Origin
from controller.inventory.model import Device
from hami_dra.api import resource as api
from hami_dra.cel import CompileError, EvaluationError, compile_attribute


class DerivedAttribute(Struct, frozen=True):
    expression: str
    origin: Origin

    def of_claim(self, key: str) -> "DerivedAttribute":
        """Return the equal attribute of another ResourceClaim."""
        return DerivedAttribute(self.expression, self.origin.of_claim(key))

    def of(self, device: Device) -> api.DeviceAttribute:
        """Evaluate on a device. Raises AllocatorError: the expression does not compile, or fails on this device."""
        try:
            return compile_attribute(self.expression).evaluate(device.selector_input)
        except CompileError as error:
            raise AllocatorError(f"{self.origin} does not compile: {error}") from error
        except EvaluationError as error:
            raise AllocatorError(f"{self.origin} fails on device {device.id}: {error}") from error
