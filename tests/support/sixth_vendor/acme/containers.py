"""What a container gets of Acme's cards: their device nodes and the limit of its memory."""

from collections.abc import Sequence

from acme.rules import DRIVER
from hami_dra.api import names
from hami_dra.api.containers import ContainerPlace, Edits, Host, Tenancy
from hami_dra.vendors.grants import ByAmount, grants, listed, needed_nodes, node_number, tightest


class AcmeContainers(ByAmount):
    """Implements `hami_dra.api.containers.ContainerVendor`."""

    name = "acme"
    driver = DRIVER
    device_name = "card"

    def edits(self, tenancies: Sequence[Tenancy], place: ContainerPlace, host: Host) -> Edits:
        held = grants(tenancies)
        env = {"ACME_VISIBLE_DEVICES": listed(str(node_number(holding.card)) for holding in held)}
        if (memory := tightest(held, names.CAP_MEMORY)).amount is not None:
            env["ACME_MEMORY_LIMIT"] = str(memory.amount)
        nodes = [
            node
            for holding in held
            for node in needed_nodes(host, holding.card, (f"/dev/acme{node_number(holding.card)}",))
        ]
        return Edits(env=env, device_nodes=tuple(nodes))
