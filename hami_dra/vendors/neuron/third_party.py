"""Neuron devices as AWS' own DRA driver publishes them, for `--manage`.

Called by the simulated fleet. In: a machine and its Neuron devices. Out: devices as plain JSON.
Pure. Names and values are from slices captured on trn1 and trn2.
"""

from collections.abc import Sequence

from hami_dra.api import names
from hami_dra.api.hardware import Card, Machine
from hami_dra.vendors.neuron.instances import ROW, Wiring, instance_of
from hami_dra.vendors.neuron.publish import device_groups
from hami_dra.vendors.publishing import Json, integer, string


def neuron_devices(machine: Machine, cards: Sequence[Card]) -> list[Json]:
    """Whole devices."""
    groups = device_groups(cards)
    devices = []
    for card in cards:
        attributes = {
            "deviceId": integer(card.index),
            "instanceType": string(machine.instance_type),
            "resourceType": string("neuron_device"),
            "neuronDriverVersion": string("2.25.4.0"),
            "draDriverVersion": string("1.0.0"),
            **groups[card.index],
            names.ATTR_PCIE_ROOT: string(card.pcie_root),
        }
        instance = instance_of(machine.instance_type)
        if instance is not None and instance.wiring is Wiring.TORUS:
            attributes["topology_x"] = integer(card.index // ROW)
            attributes["topology_y"] = integer(card.index % ROW)
        devices.append({"name": f"neuron-device-{card.index}", "attributes": attributes})
    return devices
