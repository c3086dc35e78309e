"""AWS Neuron devices as published devices, and the DeviceClasses that select them.

Called through the vendor registry. In: card records. Out: JSON for ResourceSlices and
DeviceClasses. Pure. A device is shared by its NeuronCores: a request without them takes all. Memory
belongs to the cores, one share each, so a request need not name it, nor `cores`: the default of
each is that of one core.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from hami_dra.api import names
from hami_dra.api.hardware import Card
from hami_dra.api.options import VendorSettings
from hami_dra.vendors.neuron.instances import device_of
from hami_dra.vendors.neuron.records import NeuronRecord
from hami_dra.vendors.neuron.rules import DRIVER
from hami_dra.vendors.publishing import (
    CORES,
    MIB,
    Json,
    Unpublishable,
    in_bytes,
    parts_capacity,
    shares_capacity,
    string,
)
from hami_dra.vendors.unpartitioned import UnpartitionedVendor

NEURON_CORES: Final = "neuroncores"
"""Capacity: NeuronCores of the device, as the runtime numbers them."""
GROUP: Final = "resource.aws.com/devicegroup{}_id"
GROUP_SIZES: Final = (4, 8, 16)


class NeuronPublishing(UnpartitionedVendor):
    """Implements `hami_dra.vendors.publishing.PublishingVendor`."""

    name = "neuron"
    driver = DRIVER
    device_name = "neuron"
    whole_class = "neuron-device.hami.io"
    shared_class = "neuron-core.hami.io"
    extended_resource = "aws.amazon.com/neuron"

    def attributes(self, cards: Sequence[Card]) -> dict[int, dict[str, Json]]:
        groups = device_groups(cards)
        return {card.index: groups[card.index] | _instance_type(card) for card in cards}

    def capacity(self, card: Card, settings: VendorSettings) -> dict[str, Json]:  # noqa: ARG002 (the hardware decides)
        cores = core_count(card)
        return {
            NEURON_CORES: parts_capacity(cores, default=cores),
            names.CAP_MEMORY: _memory(card.memory, cores),
            names.CAP_CORES: _percent(cores),
            names.CAP_SHARES: shares_capacity(cores),
        }


def core_count(card: Card) -> int:
    """Return the number in the record, or that of the product. Raises Unpublishable."""
    known = device_of(card.product)
    cores = card.logical_cores if isinstance(card, NeuronRecord) else known.cores if known else 0
    if cores < 1:
        raise Unpublishable(f"card {card.index}: it is not known how many NeuronCores a {card.product!r} has")
    return cores


def device_groups(cards: Iterable[Card]) -> dict[int, dict[str, Json]]:
    """Return card index → the attributes by which AWS' own driver joins devices to blocks, for `matchAttribute`.

    Blocks of 4, 8 and 16 are rows of Trainium's grid, so they begin at multiples of their size; one
    that lacks a device does not exist. Inferentia has only blocks of one.
    """
    by_index = {card.index: card for card in cards}
    groups: dict[int, dict[str, Json]] = {}
    for index, card in by_index.items():
        groups[index] = {GROUP.format(1): string(card.pci_bus_id or card.uuid)}
        if card.product.startswith("Inferentia"):
            continue
        for size in GROUP_SIZES:
            block = range(index // size * size, index // size * size + size)
            if by_index.keys() >= set(block):
                name = f"{size}/{by_index[block.start].uuid}"
                groups[index][GROUP.format(size)] = string(hashlib.sha256(name.encode()).hexdigest()[:16])
    return groups


def _instance_type(card: Card) -> dict[str, Json]:
    known = card.instance_type if isinstance(card, NeuronRecord) else ""
    return {"instanceType": string(known)} if known else {}


def _memory(size: int, cores: int) -> Json:
    """Return memory in shares of one core, rounded down to whole MiB."""
    share = size // MIB // cores * MIB
    if share < MIB:
        raise Unpublishable(f"{size} bytes of memory are not enough for {cores} NeuronCores")
    one, total = in_bytes(share), in_bytes(share * cores)
    offer: Json = {"validRange": {"min": one, "max": total, "step": one}} if cores > 1 else {"validValues": [one]}
    return {"value": total, "requestPolicy": {"default": one, **offer}}


def _percent(cores: int) -> Json:
    one = str(CORES // cores)
    offer = {"min": "0", "max": str(CORES), "step": "1"}
    return {"value": str(CORES), "requestPolicy": {"default": one, "validRange": offer}}
