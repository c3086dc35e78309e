"""Whether a device plugin on the node still hands out the same cards: then both would promise them, each to its own pods.

Used by `service`. In: a Node. Out: what is still on offer. Pure. A plugin that is gone leaves its resource behind with 0.
"""

from hami_dra.api.core import Node
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.vendors.registry import plugin_resources


def offered_by_plugin(node: Node, driver: str) -> dict[str, str]:
    """Resource name → amount in `status.allocatable`, of the names that device plugins give this driver's cards."""
    allocatable = node.status.allocatable
    return {
        name: str(allocatable[name])
        for name in plugin_resources([driver])
        if name in allocatable and _is_more_than_none(allocatable[name])
    }


def _is_more_than_none(text: str | float) -> bool:
    try:
        return Quantity.parse(str(text) if isinstance(text, float) else text) > Quantity.from_int(0)
    except InvalidQuantity:
        return True  # it is not for us to call it nothing
