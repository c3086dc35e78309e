"""The edits of a container with Kunlunxin XPUs: device nodes, and the memory of its slices.

Called through the vendor registry. In: tenancies. Out: edits. Pure. The variables are those of
Kunlunxin's container toolkit (`CXPU_...`: cards by number, memory in bytes; doc/UserGuide.md and
README.md of xpu-container-toolkit, src/cli/cxpu.c of libxpu-container).

`XPU_VISIBLE_DEVICES` is not set. Programs read it to choose among the visible cards, by numbers
that begin at 0 (FastDeploy, docs/usage/kunlunxin_xpu_deployment.md), and no public source says how
cards are counted in a container that has only some of them: a number of the host could hide its own
card.
"""

from collections.abc import Sequence
from typing import Final

from hami_dra.api import names
from hami_dra.api.containers import ContainerPlace, Edits, Host, Tenancy
from hami_dra.vendors.grants import ByAmount, card_numbers, grants, numbered_nodes, tightest, without_doubles
from hami_dra.vendors.kunlunxin.publish import KunlunxinPublishing

VISIBLE: Final = "CXPU_VISIBLE_DEVICES"
MEMORY_LIMIT: Final = "CXPU_CONTAINER_MEMORY_LIMIT"
CONTROL_NODE: Final = "/dev/xpuctrl"


class KunlunxinContainers(ByAmount, of=KunlunxinPublishing):
    """Implements `hami_dra.api.containers.ContainerVendor`."""

    def edits(self, tenancies: Sequence[Tenancy], place: ContainerPlace, host: Host) -> Edits:  # noqa: ARG002
        held = grants(tenancies)
        memory = tightest(held, names.CAP_MEMORY)
        limit = {} if memory.amount is None else {MEMORY_LIMIT: str(memory.amount)}
        nodes = without_doubles(numbered_nodes(host, held, "/dev/xpu", CONTROL_NODE))
        return Edits(env={VISIBLE: card_numbers(held), **limit}, device_nodes=nodes, notes=memory.notes(MEMORY_LIMIT))
