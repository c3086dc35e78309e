"""Resources that a node has left, against what a pod requests (kube-scheduler's NodeResourcesFit)."""

from collections.abc import Callable
from typing import Final

import numpy as np

from controller.cluster.nodes.nodes import NodeColumns, Placed
from controller.cluster.pod_resources import pod_requests
from controller.reasons.catalogue import NODE_RESOURCES, NUMBERS
from controller.rules.plugin import NodePlugin
from hami_dra.api.arrays import Bools, Codes, Ints, Positions
from hami_dra.api.core import Pod
from hami_dra.api.printable import counted, mebibytes

Wanted = tuple[tuple[str, int], ...]
"""(resource, amount) of what a pod requests, above 0."""
WantedWhere = tuple[Wanted, tuple[str, ...]]
"""The same, and those of its resources that a DeviceClass serves."""
_MIB: Final = 1 << 20


def wanted_by(pod: Pod) -> Wanted:
    return tuple([(resource, amount) for resource, amount in pod_requests(pod).items() if amount > 0])


class NodeResources(NodePlugin[WantedWhere]):
    """`delegated`: extended resources that a DeviceClass serves. Nodes that do not offer them get
    them through claims.
    """

    reasons = (NODE_RESOURCES,)

    def __init__(self, nodes: NodeColumns, delegated: Callable[[str], bool]) -> None:
        super().__init__(nodes)
        self._delegated = delegated

    def asked(self, pod: Pod) -> WantedWhere:
        wanted = wanted_by(pod)
        return wanted, tuple([resource for resource, _ in wanted if self._delegated(resource)])

    def codes(self, pod: Pod, asked: WantedWhere, rows: Positions, own: Placed | None) -> Codes:  # noqa: ARG002 (of the contract)
        return np.where(self._lacking(asked[0], rows, own), NUMBERS[NODE_RESOURCES], 0)

    def judge(self, pod: Pod, asked: WantedWhere) -> Callable[[int], int]:  # noqa: ARG002 (of the contract)
        wanted, number = asked[0], NUMBERS[NODE_RESOURCES]
        # without numpy, whose overhead is ten times the work
        return lambda row: number if self._lacks(wanted, row) else 0

    def _lacking(self, wanted: Wanted, rows: Positions, own: Placed | None) -> Bools:
        """Return whether a resource is lacking on each of `rows`. `own`: subtracted from the usage."""
        lacking: Bools = np.zeros(len(rows), dtype=np.bool_)
        offered = tuple([each for each in wanted if self._nodes.is_offered(each[0])])
        if len(offered) < len(wanted) and any(
            not self._nodes.is_offered(resource) and not self._delegated(resource) for resource, _ in wanted
        ):  # a tenant may name any number of resources
            lacking[:] = True
            return lacking
        for each in self._lacking_each(offered, rows, own):
            lacking |= each
        return lacking

    def _lacks(self, wanted: Wanted, row: int) -> bool:
        for resource, amount in wanted:
            offered, used = self._nodes.load_of(resource, row)
            if offered - used < amount and (offered > 0 or not self._delegated(resource)):
                return True
        return False

    def left(self, resource: str, own: Placed | None = None) -> Ints:
        """Return the amount of a resource left on the nodes, without the usage of `own`. Shape (nodes.size,)."""
        nodes = self._nodes
        left = nodes.offers(resource) - nodes.used(resource)
        own_row = nodes.index_of(own.node) if own is not None else -1
        if own is not None and own_row >= 0:
            left[own_row] += own.requests[resource]
        return left

    def sentence(self, pod: Pod, row: int, own: Placed | None) -> str:
        wanted, rows = wanted_by(pod), np.array([row], dtype=np.intp)
        lacking = self._lacking_each(wanted, rows, own)[:, 0]
        for (resource, amount), lacks in zip(wanted, lacking.tolist(), strict=True):
            if lacks:
                offered = int(self._nodes.offers(resource)[row])
                free = max(int(self.left(resource, own)[row]), 0)
                if resource == "pods":
                    return f"NodeResourcesFit: the node runs {counted(offered, 'pod')} already, as many as it may"
                return (
                    f"NodeResourcesFit: asks {figure(resource, amount)} of {resource}, "
                    f"{figure(resource, free)} of {figure(resource, offered)} are free"
                )
        return "NodeResourcesFit: a resource is lacking"

    def _lacking_each(self, wanted: Wanted, rows: Positions, own: Placed | None) -> Bools:
        """Shape (len(wanted), len(rows))."""
        offers, used = self._nodes.loads_of([resource for resource, _ in wanted], rows)
        if own is not None:
            # of what no node offers nothing is counted as used, the pod's own part neither
            used = np.maximum(used - np.array([[own.requests[resource]] for resource, _ in wanted], dtype=np.int64), 0)
        lacking: Bools = offers - used < np.array([[amount] for _, amount in wanted], dtype=np.int64)
        elsewhere = [number for number, (resource, _) in enumerate(wanted) if self._delegated(resource)]
        if elsewhere:
            lacking[elsewhere] &= offers[elsewhere] > 0
        return lacking


def figure(resource: str, amount: int) -> str:
    """Return an amount as people write it.

    >>> figure("cpu", 1500), figure("memory", 3 << 20), figure("nvidia.com/gpu", 2)
    ('1.5', '3 MiB', '2')
    """
    if resource == "cpu":
        return f"{amount / 1000:g}"
    if amount >= _MIB and (resource in {"memory", "ephemeral-storage"} or resource.startswith("hugepages-")):
        return mebibytes(amount)
    return str(amount)
