"""Detect a device plugin on the node that still advertises the same cards: both would allocate
them, each to its own pods.

Used by `service`. In: a Node. Out: the resources that are still advertised. Pure. A removed plugin
leaves its resource behind with 0.
"""

from hami_dra.api.core import Node
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.vendors.registry import plugin_resources


def offered_by_plugin(node: Node, driver: str) -> dict[str, str]:
    """Return resource name → amount in `status.allocatable`, for what device plugins offer of this driver's cards."""
    allocatable = node.status.allocatable
    return {
        name: str(allocatable[name])
        for name in plugin_resources([driver])
        if name in allocatable and _is_more_than_none(allocatable[name])
    }


def has_resources_of_plugins(node: Node, driver: str) -> bool:
    """Return whether the node has any resource in the domains of this driver's cards, so that
    something else may hand them out: `huawei.com/Ascend910` of MindCluster.
    """
    domains = {name.partition("/")[0] for name in plugin_resources([driver])}
    return any(
        name.partition("/")[0] in domains and _is_more_than_none(amount)
        for name, amount in node.status.allocatable.items()
    )


def _is_more_than_none(text: str | float) -> bool:
    try:
        return Quantity.parse(str(text) if isinstance(text, float) else text) > Quantity.from_int(0)
    except InvalidQuantity:
        return True  # an unreadable amount does not count as none
