"""The number of pods sharing a claim that each node could run in addition to the pod being decided.
Pure.

The claim is allocated on one node, and all pods that share it must run there. So nodes that fit
more of them are preferred. No node is refused because of them: as under kube-scheduler, those that
fit run, and the others wait until there is room on that node. An example with two nodes of 8 CPU
each, and three pods of 4 CPU that share a claim::

    node  left after the first pod  seats for the other two
    n0    4 CPU                     1
    n1    3 CPU (1 is used)         0                        -> n0: two run, one waits

Pods get their seats in order of `SchedulingRequest.companions`, so that each leaves less to those
after it.
"""

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from controller.cluster.pod_resources import pod_requests
from controller.decide.companions import Companions, with_few_terms
from controller.decide.scheduling_request import SchedulingRequest
from controller.inventory.inventory import Inventory
from controller.reasons import catalogue
from controller.reasons.catalogue import CODES as NODE_CODES
from hami_dra.api.arrays import Codes, Ints


class LeftOut(Struct, frozen=True):
    """Pods of one shape that share a claim and do not fit on the chosen node."""

    companions: Companions
    """`count`: the number of pods left out."""
    code: str
    """Reason code of nodes."""


class _Seats(Struct, frozen=True):
    companions: Companions
    codes: Codes
    """Node codes of one such pod alone. Shape (nodes.size,)."""
    seats: Ints
    """Number of these pods that fit on each node. Shape (nodes.size,)."""


class Company:
    """The companions of one decision."""

    def __init__(self, inventory: Inventory, request: SchedulingRequest) -> None:
        self._inventory = inventory
        self._request = request
        self._seats = list(self._seated()) if request.companions else []

    def tiers(self, nodes: Ints) -> Iterator[Ints]:
        """Yield the nodes in groups, those that take the most companions first. `nodes`: rows."""
        if not self._seats:
            yield nodes
            return
        taken = self._taken()[nodes]
        for count in sorted(set(taken.tolist()), reverse=True):
            yield nodes[taken == count]

    def left_out(self, row: int) -> tuple[LeftOut, ...]:
        """Return the companions that do not fit on this node together with the pod."""
        found = []
        for each in self._seats:
            missing = each.companions.count - int(each.seats[row])
            if missing > 0:
                code = NODE_CODES[each.codes[row]] or catalogue.NODE_RESOURCES
                found.append(LeftOut(Companions(each.companions.pod, missing), code))
        return tuple(found)

    def _taken(self) -> Ints:
        """Return the number of companions that fit on each node, less those that kube-scheduler
        refused there. Shape (nodes.size,).
        """
        taken: Ints = np.zeros(self._inventory.nodes.size, dtype=np.int64)
        for each in self._seats:
            taken += each.seats
        for name, count in self._request.refused_for_companions.items():
            if (row := self._inventory.nodes.index_of(name)) >= 0:
                taken[row] = max(taken[row] - count, 0)
        return taken

    def _seated(self) -> Iterator[_Seats]:
        """Yield the seats of each shape. Raises what the meter raises; the next call finds the fits
        in their cache.

        `left_of` holds what remains on every node after the pod itself and the companions before.
        With 8 CPU on n0, the pod at 4, and companions that ask for 1 CPU and 2 GiB:

            seats by CPU     (8 - 4) // 1 = 4
            seats by memory  6 GiB are left: 6 // 2 = 3
            seats            min(count, 4, 3) = 3; 1 CPU and 0 GiB are left
        """
        inventory, pod = self._inventory, self._request.pod
        left: dict[str, Ints] = {}

        def left_of(resource: str) -> Ints:
            if resource not in left:
                left[resource] = inventory.rules.left(pod, resource) - own[resource]
            return left[resource]

        own, meter = pod_requests(pod), inventory.verdicts.meter()
        for companions in with_few_terms(self._request.companions):
            fit = inventory.rules.node_fit(companions.pod, uses_spares=self._request.uses_spares)
            requested = {resource: amount for resource, amount in pod_requests(companions.pod).items() if amount > 0}
            counted = inventory.nodes.index_of(inventory.assumed_node(companions.pod.metadata.uid))
            if counted >= 0:  # it is counted there already: its own usage does not stand in its way
                for resource, amount in requested.items():
                    left_of(resource)[counted] += amount
            seats = np.where(fit.mask, companions.count, 0)
            if fit.mask.any():  # else a tenant could name hundreds of resources that no node has
                for resource, amount in requested.items():
                    seats = np.minimum(seats, np.maximum(left_of(resource), 0) // amount)
                for resource, amount in requested.items():
                    left_of(resource)[:] -= seats * amount
            if meter is not None:
                meter.spend()
            yield _Seats(companions, fit.codes, seats)
