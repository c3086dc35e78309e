"""The edits of a container with Enflame GCUs: device nodes, and the share of its slices.

Called through the vendor registry. In: tenancies. Out: edits. Pure. The variables are those of
Enflame's device plugin for shared cards (EnflameTechnology/gcushare, setEnvForIsolation): cards by
minor number, memory in GB, the card's processors in proportion.
"""

from collections.abc import Sequence
from typing import Final

from hami_dra.api import names
from hami_dra.api.containers import ContainerPlace, Edits, Host, Tenancy, Unpreparable
from hami_dra.vendors.enflame.publish import EnflamePublishing
from hami_dra.vendors.grants import (
    ByAmount,
    Grant,
    card_numbers,
    grants,
    numbered_nodes,
    optional_nodes,
    tightest,
    without_doubles,
)
from hami_dra.vendors.publishing import CORES

GIB: Final = 1 << 30
VISIBLE: Final = "ENFLAME_VISIBLE_DEVICES"
PART: Final = "ENFLAME_CONTAINER_SUB_CARD"
PROCESSORS: Final = "ENFLAME_CONTAINER_USABLE_PROCESSOR"
MEMORY: Final = "ENFLAME_CONTAINER_USABLE_GLOBAL_MEM"
CONTROL_NODE: Final = "/dev/gcuctl"
SIPS: Final = {"S60": 24}
"""Word of the product → processors (SIPs) of the whole card, for the products in Enflame's own plugin."""


class EnflameContainers(ByAmount, of=EnflamePublishing):
    """Implements `hami_dra.api.containers.ContainerVendor`."""

    def edits(self, tenancies: Sequence[Tenancy], place: ContainerPlace, host: Host) -> Edits:  # noqa: ARG002
        held = grants(tenancies)
        env = {VISIBLE: card_numbers(held)}
        memory, cores = tightest(held, names.CAP_MEMORY), tightest(held, names.CAP_CORES)
        if memory.amount is not None and cores.amount is not None:
            env |= {PART: "true", MEMORY: _gigabytes(memory.amount, held)}
            if (sips := _processors(held)) is not None:
                env[PROCESSORS] = str(max(sips * cores.amount // CORES, 1))
        nodes = [*numbered_nodes(host, held, "/dev/gcu"), *optional_nodes(host, (CONTROL_NODE,))]
        return Edits(env=env, device_nodes=without_doubles(nodes), notes=memory.notes(MEMORY))


def _gigabytes(amount: int, held: Sequence[Grant]) -> str:
    if amount < GIB:
        card = held[0].card
        raise Unpreparable(
            f"card {card.index} ({card.uuid}): a slice of {amount} bytes of memory cannot be expressed, as Enflame counts whole "
            "GB; publish the node's cards with fewer slices"
        )
    return str(amount // GIB)


def _processors(held: Sequence[Grant]) -> int | None:
    """Return the processors of the smallest card; None if one is not known."""
    known = [next((count for word, count in SIPS.items() if word in holding.card.product), None) for holding in held]
    counts = [count for count in known if count is not None]
    return min(counts) if len(counts) == len(known) else None
