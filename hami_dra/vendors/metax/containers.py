"""The edits of a container with MetaX cards: their device nodes, and nothing else.

Called through the vendor registry. In: tenancies. Out: edits. Pure.

Nodes are those of MetaX' own instructions for containers (`docker run --device=/dev/mxcd
--device=/dev/dri`, images of cr.metax-tech.com), here of the container's cards alone. There are no
variables: no public source names one that a container runtime of MetaX reads. Those that programs
read to choose among the visible cards (`MACA_VISIBLE_DEVICES`; `CUDA_VISIBLE_DEVICES` in Ray's
MetaxGPUAcceleratorManager) are left to the program. A container is limited to a part of a card by
the sGPU that MetaX' kernel driver creates: docs/design/metax.md describes its requirements.
"""

import re
from collections.abc import Sequence
from typing import Final

from hami_dra.api.containers import ContainerPlace, DeviceNode, Edits, Host, Tenancy, Unpreparable
from hami_dra.vendors.grants import ByAmount, Grant, grants, needed_nodes, optional_nodes, without_doubles
from hami_dra.vendors.metax.publish import MetaxPublishing

CONTROL_NODE: Final = "/dev/mxcd"
UNLIMITED: Final = (
    "nothing keeps the container to its share of memory and cores: MetaX' kernel driver limits only "
    "sGPUs that are made on the host"
)
_DRM_NODE: Final = re.compile(r"card[0-9]+|renderD[0-9]+")


class MetaxContainers(ByAmount, of=MetaxPublishing):
    """Implements `hami_dra.api.containers.ContainerVendor`."""

    def edits(self, tenancies: Sequence[Tenancy], place: ContainerPlace, host: Host) -> Edits:  # noqa: ARG002
        held = grants(tenancies)
        shared = any(not holding.whole for holding in held)
        return Edits(device_nodes=_nodes(held, host), notes=(UNLIMITED,) if shared else ())


def _nodes(held: Sequence[Grant], host: Host) -> tuple[DeviceNode, ...]:
    """Return the control node, and the DRM nodes that the kernel names for each card's place on PCI."""
    nodes: list[DeviceNode] = []
    for holding in held:
        card = holding.card
        nodes += needed_nodes(host, card, (CONTROL_NODE,))
        folder = f"/sys/bus/pci/devices/{card.pci_bus_id}/drm"
        drm = optional_nodes(host, [f"/dev/dri/{name}" for name in host.names(folder) if _DRM_NODE.fullmatch(name)])
        if not drm and host.settings.nodes_required:
            raise Unpreparable(
                f"card {card.index} ({card.uuid}): {folder} names no device node below /dev/dri that the host has; is MetaX' "
                "kernel driver loaded, and are the host's /dev and /sys what the driver's container sees?"
            )
        nodes += drm
    return without_doubles(nodes)
