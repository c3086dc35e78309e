"""What a container gets of MetaX cards: device nodes, and what its part of each card is.

Called through the vendor registry. In: tenancies. Out: edits. Pure.
The amounts are told in the form in which HAMi hands them to MetaX' device plugin (annotations `metax-tech.com/gpu-devices-allocated`
and `metax-tech.com/sgpu-qos-policy`; HAMi D/metax/protocol.go), one environment variable for each. What keeps a container to them
is the sGPU that MetaX' kernel driver makes: docs/vendors/metax.md says what that needs.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

from hami_dra.api import names
from hami_dra.vendors.containers import DeviceNode, Edits, Host, Place, Tenancy, Unpreparable
from hami_dra.vendors.holdings import (
    ByAmount,
    Holding,
    holdings,
    listed,
    needed_nodes,
    optional_nodes,
    without_doubles,
)
from hami_dra.vendors.metax import DRIVER
from hami_dra.vendors.metax.published import Published
from hami_dra.vendors.metax.wish import BEST_EFFORT
from hami_dra.vendors.publishing import CORES, MIB

VISIBLE: Final = "METAX_VISIBLE_DEVICES"
ALLOCATED: Final = "METAX_TECH_COM_GPU_DEVICES_ALLOCATED"
QOS: Final = "METAX_TECH_COM_SGPU_QOS_POLICY"
CONTROL_NODE: Final = "/dev/mxcd"
_DRM_NODE: Final = re.compile(r"card[0-9]+|renderD[0-9]+")


class Containers(ByAmount):
    """Implements `hami_dra.vendors.containers.ContainerVendor`."""

    name = "metax"
    driver = DRIVER
    device_name = Published.device_name

    def edits(self, tenancies: Sequence[Tenancy], place: Place, host: Host) -> Edits:  # noqa: ARG002
        held = holdings(tenancies)
        env = {VISIBLE: listed(holding.card.uuid for holding in held)}
        parts = [holding for holding in held if not holding.whole]
        notes: tuple[str, ...] = ()
        if parts:
            env[ALLOCATED] = json.dumps([[_part(holding) for holding in held]], separators=(",", ":"))
            env[QOS] = ",".join(_qos(parts))
            notes = (
                "an sGPU's limits are told to the container; MetaX' kernel driver keeps them only for sGPUs made on the host",
            )
        return Edits(env=env, device_nodes=_nodes(held, host), notes=notes)


def _part(holding: Holding) -> dict[str, str | int]:
    """`compute` in percent, `vRam` in MiB, as in HAMi's annotation."""
    whole = holding.whole
    return {
        "uuid": holding.card.uuid,
        "compute": CORES if whole else min(holding.amount(names.CAP_CORES), CORES),
        "vRam": (holding.card.memory if whole else holding.amount(names.CAP_MEMORY)) // MIB,
    }


def _qos(parts: Iterable[Holding]) -> list[str]:
    """Each once. A tenant that says nothing is best-effort, as the rules of the card have it."""
    said = {tenancy.parameters.qos or BEST_EFFORT for holding in parts for tenancy in holding.tenancies}
    return sorted(said)


def _nodes(held: Sequence[Holding], host: Host) -> tuple[DeviceNode, ...]:
    """The control node, and the DRM nodes that the kernel names for each card's place on PCI."""
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
