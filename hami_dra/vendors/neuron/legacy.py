"""HAMi's Neuron resource names (HAMi D/awsneuron/device.go, GenerateResourceRequests).

Called by `controller.webhook` through `hami_dra.vendors.legacy.LegacyVendor`. The number of cores
of a device is not known before a node is chosen, so cores beyond one device become alternatives:
some cores of one device, or else whole devices of 8, 4 or 2.
"""

from typing import Final

from hami_dra.vendors import legacy
from hami_dra.vendors.neuron.publish import NEURON_CORES, NeuronPublishing
from hami_dra.vendors.quotas import Counted, QuotaName, Quotas, cards

DEVICES: Final = NeuronPublishing.extended_resource
CORES: Final = "aws.amazon.com/neuroncore"
_CORES_OF_A_DEVICE: Final = (8, 4, 2)
"""Core counts of all existing devices, largest first: few devices before many."""
_MOST_CORES: Final = legacy.MAX_CARDS * _CORES_OF_A_DEVICE[0]


class NeuronLegacy(legacy.WholeByCount, of=NeuronPublishing):
    """Implements `hami_dra.vendors.legacy.LegacyVendor`."""

    resources: tuple[str, ...] = (DEVICES, CORES)
    plugin_resources: tuple[str, ...] = (DEVICES, CORES)
    quotas = Quotas(
        (cards(DEVICES, Counted.WHOLE), QuotaName(CORES, NEURON_CORES, "NeuronCores")), whole_by=(NEURON_CORES,)
    )

    def read(self, resources: legacy.ContainerResources) -> legacy.LegacyReading:
        devices = resources.whole(DEVICES, "counts devices", legacy.MAX_CARDS)
        cores = resources.whole(CORES, "counts NeuronCores", _MOST_CORES)
        if devices and cores:
            raise resources.both(DEVICES, CORES, "whole devices or for cores")
        if devices:
            return legacy.LegacyReading(legacy.LegacyRequest(devices))
        if not cores:
            return legacy.LegacyReading(None)
        return legacy.LegacyReading(_of_cores(cores, resources.field(CORES)))

    def device_class(self, request: legacy.CardChoice) -> str:
        return self.shared_class if NEURON_CORES in request.capacity and not request.exact else self.whole_class


def _of_cores(cores: int, field: str) -> legacy.LegacyRequest:
    """Return a request for cores of one device if it has as many, or else whole devices. Raises InvalidLegacy."""
    choices = [legacy.CardChoice(1, {NEURON_CORES: cores})] if cores <= _CORES_OF_A_DEVICE[0] else []
    choices += [
        legacy.CardChoice(cores // each, {NEURON_CORES: each}, exact=True)
        for each in _CORES_OF_A_DEVICE
        if cores > each and cores % each == 0 and cores // each <= legacy.MAX_CARDS
    ]
    if not choices:
        raise legacy.InvalidLegacy(
            f"{field} is {cores}, which is neither a part of a device nor whole devices: "
            "aws.amazon.com/neuroncore must be 1 or a multiple of 2"
        )
    return legacy.LegacyRequest(
        choices[0].count, choices[0].capacity, exact=choices[0].exact, alternatives=tuple(choices[1:])
    )
