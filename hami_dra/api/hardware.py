"""Discovery results of a machine: plain records, before any vendor decides how to publish them.

Written by `hami_dra.discovery` (NVML, vendor tools, the simulated fleet), read by the vendors'
`published` modules and by the fleet. All amounts are integers: bytes, lanes, cores. Nothing here
knows Kubernetes.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field


class PcieDistance(StrEnum):
    """PCIe distance of two cards, nearest first; the letters are those of the attribute `hami.io/distance`."""

    BOARD = "B"
    """On one board (nvidia-smi topo: `PIX` inside a dual-GPU board)."""
    SINGLE_SWITCH = "S"
    """Below one PCIe switch (`PIX`)."""
    MULTIPLE_SWITCHES = "M"
    """Below several switches of one host bridge (`PXB`)."""
    HOST_BRIDGE = "H"
    """Through the host bridge that both are attached to (`PHB`)."""
    SAME_CPU = "C"
    """Through different host bridges of one NUMA node (`NODE`)."""
    CROSS_CPU = "X"
    """Through the interconnect between NUMA nodes (`SYS`)."""


class Fault(Struct, frozen=True, kw_only=True):
    """Why a card must not be used."""

    code: str
    """Stable and short: lower case letters, digits and `-`, valid as a taint's value: `xid-79`,
    `lost`, `unavailable`.
    """
    message: str
    """For people: the observation, in the words of the tool that reported it."""


class IdentitySource(StrEnum):
    """Source of `Card.uuid` when the card was first found."""

    UUID = "uuid"
    """Reported by the vendor's tool."""
    SERIAL = "serial"
    """The serial number: the listing that was read contains no UUID."""
    PLACE = "place"
    """The PCI address or the number: unique on this machine only."""


class Provenance(Struct, frozen=True, kw_only=True):
    """Origin of a record."""

    identified_by: IdentitySource = IdentitySource.UUID
    rank: int = 0
    """Rank of the listing: 0 is the most detailed one."""
    listed_by: tuple[str, ...] = ()
    """Names of the listings that showed the card: while one of them does not answer, the card may still be present."""


class Card(Struct, frozen=True, kw_only=True):
    """One accelerator. Peers are identified by their `index` on the machine, so missing cards shift nothing."""

    vendor: str
    """`Vendor.name` of the module that publishes it."""
    index: int
    """The number that the vendor's own tool shows now. It can change when another card is added or
    removed. A card that is not present keeps its last number, or has one that no present card has.
    """
    number: int | None = None
    """The number in the name of its published device. Assigned once and bound to the UUID; None: the index."""
    present: bool = True
    """False: it was found earlier, but no listing shows it now."""
    uuid: str
    provenance: Provenance = Provenance()
    product: str
    memory: int
    """Bytes."""
    pci_bus_id: str = ""
    """Extended BDF, lower case: `0000:1b:00.0`."""
    pcie_root: str = ""
    """The root complex: `pci0000:15`."""
    numa_node: int | None = None
    """None if the kernel reports no affinity (-1)."""
    links: Mapping[int, int] = field(default_factory=dict)
    """Index of the peer → lanes of the fast interconnect (NVLink, MetaXLink, XPULink) to it, as
    this card reports them; absent = none. If a tool reports only that a link exists, it counts as
    one lane.
    """
    distances: Mapping[int, PcieDistance] = field(default_factory=dict)
    """Index of the peer → PCIe distance; absent = not known."""
    minor: int | None = None
    """The number in the name of its device node (`/dev/nvidia3`, `/dev/xpu3`); None = not known."""
    serial: str = ""
    faults: tuple[Fault, ...] = ()
    """Empty = no known fault, or its tool does not report health."""

    @property
    def name_number(self) -> int:
        """Return the number in the name of its published device."""
        return self.index if self.number is None else self.number


class DrivenCard(Card, frozen=True, kw_only=True):
    """A card whose software is known.

    Versions are those that the tools print: `550.90.07`, `12.4`; empty = not known.
    """

    driver_version: str = ""
    runtime_version: str = ""
    """The newest CUDA, MACA or XPU-RT that the driver supports."""


class PartitionPlacement(Struct, frozen=True, kw_only=True, order=True):
    """A run of slices of a card."""

    start: int
    size: int


class PartitionInstance(Struct, frozen=True, kw_only=True):
    """A partition of a card that exists: the part of its record that the driver needs."""

    id: int
    """Its number on the card."""
    placement: PartitionPlacement
    uuid: str = ""
    """Name by which programs find it; empty while it is created in part only."""
    compute_instance_id: int | None = None
    """The number in it of what computes, where the vendor tells them apart (MIG); None while that is missing."""


class Machine(Struct, frozen=True, kw_only=True):
    """One node: its cards and the contents of the Node object."""

    name: str
    """Name of the node."""
    instance_type: str
    """Label `node.kubernetes.io/instance-type`."""
    cpu: int
    """Cores that pods may use."""
    memory: int
    """Bytes that pods may use."""
    cards: tuple[Card, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
