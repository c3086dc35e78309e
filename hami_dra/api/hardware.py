"""What discovery finds in a machine: plain records, before any vendor decides how to publish them.

Written by `hami_dra.discovery` (NVML, vendor tools, the simulated fleet), read by the vendors' `published` modules and by the
fleet. All amounts are integers: bytes, lanes, cores. Nothing here knows Kubernetes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class PcieDistance(StrEnum):
    """How far two cards are apart on PCIe, nearest first; the letters are those of the attribute `hami.io/distance`."""

    BOARD = "B"
    """On one board (nvidia-smi topo: `PIX` inside a dual-GPU board)."""
    SINGLE_SWITCH = "S"
    """Below one PCIe switch (`PIX`)."""
    MULTIPLE_SWITCHES = "M"
    """Below several switches of one host bridge (`PXB`)."""
    HOST_BRIDGE = "H"
    """Through the host bridge that both hang on (`PHB`)."""
    SAME_CPU = "C"
    """Through different host bridges of one NUMA node (`NODE`)."""
    CROSS_CPU = "X"
    """Through the interconnect between NUMA nodes (`SYS`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One accelerator. Peers are named by their `index` on the machine, so a card that is missing leaves no gap in meaning."""

    vendor: str
    """`Vendor.name` of the module that publishes it."""
    index: int
    """The number that the vendor's own tool shows."""
    uuid: str
    product: str
    memory: int
    """Bytes."""
    pci_bus_id: str = ""
    """Extended BDF, lower case: `0000:1b:00.0`."""
    pcie_root: str = ""
    """The root complex: `pci0000:15`."""
    numa_node: int | None = None
    """None where the kernel reports no affinity (-1)."""
    links: Mapping[int, int] = field(default_factory=dict)
    """Index of the peer → lanes of the fast interconnect (NVLink, MetaXLink, XPULink) to it; absent = none."""
    distances: Mapping[int, PcieDistance] = field(default_factory=dict)
    """Index of the peer → how far on PCIe; absent = not known."""
    parts: int = 0
    """Equal parts that the hardware hands out one by one: NeuronCores of a device, slices of a GCU; 0 = not known."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with it: a word for the kind of failure (`unhealthy`, `xid`) → details (`79`) or an empty text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRecord(Card):
    """A GPU with its software stack. Versions as the tools print them: `550.90.07`, `12.4`, `9.0`; empty = not known."""

    brand: str = ""
    architecture: str = ""
    compute_capability: str = ""
    driver_version: str = ""
    runtime_version: str = ""
    """The newest CUDA (or other runtime) that the driver supports."""
    mig: bool = False
    """MIG mode is on: the GPU may be cut into instances."""
    mig_memory: Mapping[str, int] = field(default_factory=dict)
    """MIG profile (`1g.10gb`) → bytes of an instance, where the driver says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One node: its cards and what the Node object will say."""

    name: str
    """Of the node."""
    instance_type: str
    """Label `node.kubernetes.io/instance-type`."""
    cpu: int
    """Cores that pods may use."""
    memory: int
    """Bytes that pods may use."""
    cards: tuple[Card, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
