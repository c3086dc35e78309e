"""NVIDIA cards and MIG partitions as published devices, and the DeviceClasses that select them.

Called through the vendor registry. In: GPU records. Out: JSON for ResourceSlices and DeviceClasses.
Pure. In addition to the attributes of all vendors a card carries, in the driver's own domain, those
of NVIDIA's own driver.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from hami_dra.api import names
from hami_dra.api.containers import PartitionPlace, Site
from hami_dra.api.hardware import Card, PartitionPlacement
from hami_dra.api.options import VendorSettings
from hami_dra.vendors import publishing
from hami_dra.vendors.nvidia import mig
from hami_dra.vendors.nvidia.options import CORE_SCALING, MEMORY_SCALING
from hami_dra.vendors.nvidia.records import GpuRecord, MigProfile
from hami_dra.vendors.nvidia.rules import CARD_MEMORY, DRIVER, PARENT, PLACEMENT, PROFILE
from hami_dra.vendors.options import SLOTS

WHOLE_CLASS: Final = "nvidia-gpu.hami.io"
SHARED_CLASS: Final = "nvidia-vgpu.hami.io"
MIG_CLASS: Final = "nvidia-mig.hami.io"
EXTENDED_RESOURCE: Final = "nvidia.com/gpu"

IS_PARTITION: Final = f'has(device.attributes["{DRIVER}"].{PROFILE})'
"""`has`: a card has no such attribute, and reading its value would be an error."""


class NvidiaPublishing:
    """Implements `hami_dra.vendors.publishing.PublishingVendor`."""

    name = "nvidia"
    driver = DRIVER

    def devices(self, cards: Sequence[Card], settings: VendorSettings) -> list[publishing.Json]:
        """Return the devices: cards, then partitions, smallest first, so that a search without scores wastes least."""
        common = publishing.common_attributes(cards)
        ordered = sorted(cards, key=lambda card: card.index)
        whole = [_card(card, common[card.index], settings) for card in ordered]
        return whole + [partition for card in ordered for partition in _partitions(card, common[card.index])]

    def counter_sets(self, cards: Sequence[Card]) -> list[publishing.Json]:
        ordered = sorted(cards, key=lambda card: card.index)
        return [mig.counter_set(card) for card in ordered if mig.profiles(card)]

    def device_classes(self) -> list[publishing.Json]:
        ours = publishing.of_driver(DRIVER)
        return [
            publishing.device_class(WHOLE_CLASS, f"{ours} && !{IS_PARTITION}", EXTENDED_RESOURCE),
            publishing.device_class(SHARED_CLASS, ours),
            publishing.device_class(MIG_CLASS, f"{ours} && {IS_PARTITION}"),
        ]


def card_name(card: Card) -> str:
    return f"gpu-{card.name_number}"


def partition_name(card: Card, profile: MigProfile, placement: PartitionPlacement) -> str:
    return f"{card_name(card)}-mig-{profile.name.replace('.', '-')}-{placement.start}"


def sites(cards: Sequence[Card]) -> dict[str, Site]:
    found = {card_name(card): Site(card=card, cuttable=bool(mig.profiles(card))) for card in cards}
    for card in cards:
        for profile, placement in mig.placements(card):
            place = PartitionPlace(card_uuid=card.uuid, profile=profile.name, start=placement.start)
            found[partition_name(card, profile, placement)] = Site(card=card, partition=place)
    return found


def _card(card: Card, common: dict[str, publishing.Json], settings: VendorSettings) -> publishing.Json:
    may_be_cut = bool(mig.profiles(card))
    # an instance cannot be oversubscribed, so its card offers its real memory (as HAMi)
    memory_scaling = Fraction(1) if may_be_cut else settings[MEMORY_SCALING]
    core_scaling = Fraction(1) if may_be_cut else settings[CORE_SCALING]
    device = publishing.shared_device(
        card_name(card),
        card,
        common | {"type": publishing.string("gpu")} | software_attributes(card) | _fabric_attributes(card),
        {
            names.CAP_MEMORY: publishing.memory_capacity(card.memory, memory_scaling),
            names.CAP_CORES: publishing.cores_capacity(core_scaling),
            names.CAP_SHARES: publishing.shares_capacity(settings[SLOTS]),
        },
    )
    return device | {"consumesCounters": mig.consumed_by_card(card)} if may_be_cut else device


def _partitions(card: Card, common: dict[str, publishing.Json]) -> list[publishing.Json]:
    """Return the partitions. Each is for one claim: no request policy."""
    attributes = {name: value for name, value in common.items() if name not in publishing.OF_WHOLE_CARDS} | {
        "type": publishing.string("mig")
    }
    return [
        {
            "name": partition_name(card, profile, placement),
            "attributes": attributes
            | {
                PARENT: publishing.string(card.uuid),
                PROFILE: publishing.string(profile.name),
                PLACEMENT: publishing.integer(placement.start),
                CARD_MEMORY: publishing.integer(card.memory),
            }
            | software_attributes(card),
            "capacity": {
                names.CAP_MEMORY: {"value": publishing.in_bytes(profile.memory)},
                names.CAP_CORES: {"value": str(publishing.CORES * profile.slices // mig.compute_slices(card))},
            },
            "consumesCounters": mig.consumed_by_instance(card, profile, placement),
        }
        | publishing.fault_taints(card)
        for profile, placement in mig.placements(card)
    ]


def _fabric_attributes(card: Card) -> dict[str, publishing.Json]:
    """Return the place in an NVLink fabric that spans machines; empty if the card is in none."""
    if not isinstance(card, GpuRecord) or card.fabric is None or not card.fabric.cluster_uuid:
        return {}
    return {
        names.ATTR_CLUSTER: publishing.string(card.fabric.cluster_uuid),
        names.ATTR_CLIQUE: publishing.integer(card.fabric.clique_id),
    }


def software_attributes(card: Card) -> dict[str, publishing.Json]:
    """Return attributes under the names that NVIDIA's own driver uses; unknown ones are left out."""
    if not isinstance(card, GpuRecord):
        return {}
    attributes = {
        "brand": publishing.string(card.brand) if card.brand else None,
        "architecture": publishing.string(card.architecture) if card.architecture else None,
        "cudaComputeCapability": publishing.version(card.compute_capability),
        "driverVersion": publishing.version(card.driver_version),
        "cudaDriverVersion": publishing.version(card.runtime_version),
    }
    return {name: value for name, value in attributes.items() if value is not None}
