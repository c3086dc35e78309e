"""What learns of the objects of a cluster: the controller's informers and simulations feed the same. Pure."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from controller.gangs import SOURCES, Gangs
from controller.inventory import Inventory
from controller.preemption import Tenants
from hami_dra.api import kinds
from hami_dra.api.kinds import Kind
from hami_dra.api.resource import ResourceClaim


def cluster_feeds(
    inventory: Inventory, gangs: Gangs, tenants: Tenants
) -> Mapping[Kind[Any], tuple[Callable[[Any, Any], None], ...]]:
    """Return by kind what is to be called with each change of an object, (old, new), in this order."""

    def claim_changed(old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if (claim := new or old) is not None:
            tenants.claim_changed(claim.key)

    of_gangs: dict[Kind[Any], tuple[Callable[[Any, Any], None], ...]] = {
        kind: (partial(gangs.group_changed, SOURCES[kind.group]),) for kind in kinds.POD_GROUPS
    }
    return (
        {kind: (feed,) for kind, feed in inventory.feeds.items()}
        | of_gangs
        | {
            kinds.RESOURCE_CLAIM: (inventory.claim_changed, claim_changed),
            kinds.POD: (inventory.pod_changed, gangs.pod_changed, tenants.pod_changed),
        }
    )
