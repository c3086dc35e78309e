"""Why a node does not fit: one HAMi reason code per card.

Called by `decide` for the statistics of a refusal. In: as `solve`. Out: codes by device. Must not search.
"""

from collections.abc import Mapping, Sequence

from controller.allocation.request import Problem
from controller.inventory.model import DeviceId, Pool, Usage
from hami_dra.api.core import Node


def explain(problem: Problem, node: Node, pools: Sequence[Pool], usage: Usage) -> Mapping[DeviceId, str]:
    """The first failing HAMi code of every device of the node that belongs to the class of a request."""
    raise NotImplementedError
