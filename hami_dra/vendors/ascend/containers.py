"""The edits of a container with Ascend NPUs: device nodes, or the template of its vNPU.

Called through the vendor registry. In: tenancies. Out: edits. Pure. The variables are those that
Ascend Docker Runtime reads (component/ascend-docker-runtime of mind-cluster): cards by physical id,
and for a vNPU the template. It then creates the vNPU when the container starts, gives the container
its device nodes, and removes it when the container ends. The card's own device node would be all of
the card, so a container with a vNPU does not get it.

`ASCEND_RT_VISIBLE_DEVICES` is not set. Programs read it to choose among the NPUs of their
container, which are numbered from 0 there: numbers of the host would hide the container's own
cards.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from hami_dra.api.containers import ContainerPlace, Edits, Host, Site, Tenancy, Unpreparable
from hami_dra.api.hardware import Card
from hami_dra.vendors.ascend.publish import AscendPublishing, sites
from hami_dra.vendors.ascend.rules import DRIVER
from hami_dra.vendors.grants import (
    ByAmount,
    card_numbers,
    grants,
    node_number,
    numbered_nodes,
    optional_nodes,
    without_doubles,
)

VISIBLE: Final = "ASCEND_VISIBLE_DEVICES"
SPECS: Final = "ASCEND_VNPU_SPECS"
CONTROL_NODES: Final = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")


class AscendContainers(ByAmount):
    """Implements `hami_dra.api.containers.ContainerVendor`."""

    name = AscendPublishing.name
    driver = DRIVER

    def sites(self, cards: Sequence[Card]) -> Mapping[str, Site]:
        return sites(cards)

    def edits(self, tenancies: Sequence[Tenancy], place: ContainerPlace, host: Host) -> Edits:
        vnpus = [tenancy for tenancy in tenancies if tenancy.profile and not tenancy.admin]
        if vnpus:
            return _with_vnpu(vnpus[0], tenancies, place)
        held = grants(tenancies)
        nodes = [*numbered_nodes(host, held, "/dev/davinci"), *optional_nodes(host, CONTROL_NODES)]
        return Edits(env={VISIBLE: card_numbers(held)}, device_nodes=without_doubles(nodes))


def _with_vnpu(vnpu: Tenancy, tenancies: Sequence[Tenancy], place: ContainerPlace) -> Edits:
    """Return the edits with a vNPU. Raises Unpreparable for anything else: the runtime has no variable for it."""
    others = sorted(tenancy.device for tenancy in tenancies if tenancy is not vnpu)
    if others:
        raise Unpreparable(
            f"a container can have one vNPU and no other NPU, as Ascend Docker Runtime creates only one, and this one has "
            f"{vnpu.device} and {', '.join(others)}: give each container a request of its own"
        )
    note = (
        f"{SPECS}: {place.at_once} containers that run at the same time refer to one vNPU, and Ascend Docker Runtime creates one for each: "
        "only one is counted, so give each a request of its own"
    )
    return Edits(
        env={VISIBLE: str(node_number(vnpu.card)), SPECS: vnpu.profile}, notes=(note,) if place.at_once > 1 else ()
    )
