"""AWS instance types with Neuron devices, as data.

Called by `publish`, by the rules and by tests of the reference machines. Pure data and look-ups.
Figures: AWS' pages of the EC2 instance types. Wiring: neuron-ls, "connected devices". Devices of a
ring are joined to their two neighbours, those of a torus (4 x 4) to four.
"""

from enum import StrEnum
from typing import Final, NamedTuple

ROW: Final = 4
"""Devices in a row of the torus; blocks of 4, 8 and 16 are whole rows."""


class Wiring(StrEnum):
    NONE = "none"
    RING = "ring"
    TORUS = "torus"


class DeviceModel(NamedTuple):
    """One kind of Neuron device."""

    family: str
    """Start of product names."""
    cores: int
    """NeuronCores as the runtime numbers them by default: Trainium2 joins its eight physical ones to four (LNC=2)."""
    physical_cores: int
    memory: int
    """GiB."""


class Instance(NamedTuple):
    name: str
    device: DeviceModel
    devices: int
    wiring: Wiring


INFERENTIA: Final = DeviceModel("Inferentia", 4, 4, 8)
INFERENTIA2: Final = DeviceModel("Inferentia2", 2, 2, 32)
TRAINIUM: Final = DeviceModel("Trainium", 2, 2, 32)
TRAINIUM2: Final = DeviceModel("Trainium2", 4, 8, 96)

DEVICES: Final = (INFERENTIA2, TRAINIUM2, INFERENTIA, TRAINIUM)
"""Longer names come before their prefixes."""

INSTANCES: Final = (
    Instance("inf1.xlarge", INFERENTIA, 1, Wiring.NONE),
    Instance("inf1.2xlarge", INFERENTIA, 1, Wiring.NONE),
    Instance("inf1.6xlarge", INFERENTIA, 4, Wiring.RING),
    Instance("inf1.24xlarge", INFERENTIA, 16, Wiring.RING),
    Instance("inf2.xlarge", INFERENTIA2, 1, Wiring.NONE),
    Instance("inf2.8xlarge", INFERENTIA2, 1, Wiring.NONE),
    Instance("inf2.24xlarge", INFERENTIA2, 6, Wiring.RING),
    Instance("inf2.48xlarge", INFERENTIA2, 12, Wiring.RING),
    Instance("trn1.2xlarge", TRAINIUM, 1, Wiring.NONE),
    Instance("trn1.32xlarge", TRAINIUM, 16, Wiring.TORUS),
    Instance("trn1n.32xlarge", TRAINIUM, 16, Wiring.TORUS),
    Instance("trn2.3xlarge", TRAINIUM2, 1, Wiring.NONE),
    Instance("trn2.48xlarge", TRAINIUM2, 16, Wiring.TORUS),
    Instance("trn2u.48xlarge", TRAINIUM2, 16, Wiring.TORUS),
)
_BY_NAME: Final = {instance.name: instance for instance in INSTANCES}


def instance_of(name: str) -> Instance | None:
    return _BY_NAME.get(name)


def device_of(product: str) -> DeviceModel | None:
    """Return the model by the product name: `Trainium1`, `Inferentia2`."""
    return next((device for device in DEVICES if product.startswith(device.family)), None)


def neighbours(instance: Instance, index: int) -> frozenset[int]:
    """Return the devices that are joined to one."""
    if instance.wiring is Wiring.RING:
        found = {(index - 1) % instance.devices, (index + 1) % instance.devices}
    elif instance.wiring is Wiring.TORUS:
        row, column = divmod(index, ROW)
        rows = instance.devices // ROW
        found = {(row + step) % rows * ROW + column for step in (-1, 1)}
        found |= {row * ROW + (column + step) % ROW for step in (-1, 1)}
    else:
        found = set()
    return frozenset(found - {index})
