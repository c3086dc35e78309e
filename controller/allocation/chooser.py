"""The interface between what may be allocated and what should be: the order in which the search
tries devices.

`controller.scoring` implements `Chooser`; `FirstFit` is upstream's own order. The search
calls it once for each request that it reaches (again after backtracking), and checks constraints,
counters and capacity itself.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

from controller.allocation.resolved import ResolvedRequest
from controller.allocation.tentative import TentativeUsage
from controller.inventory.model import Device

__all__ = ["Chooser", "FirstFit", "ResolvedRequest", "TentativeUsage"]


class Chooser(Protocol):
    """Ranks devices for one request. Must be a pure function of its arguments."""

    def order(self, request: ResolvedRequest, devices: Sequence[Device], tentative: TentativeUsage) -> Sequence[Device]:
        """Return the devices to try, best first.

        `devices`: the eligible ones (selectors, taints, capacity and in-use checked, in upstream's
        order). Leaving one out refuses it. For a request for all devices there is no choice but to
        refuse: if one is left out, the request is not met on this node.
        """

    def sets(
        self, request: ResolvedRequest, devices: Sequence[Device], count: int, tentative: TentativeUsage
    ) -> Iterable[Sequence[Device]] | None:
        """Return whole sets of `count` devices to try, best first, or None for ascending
        combinations of `order`.

        `devices`: the result of `order`. An exhausted iterable means that no set is acceptable.
        """

    def kind(self, device: Device) -> Hashable:
        """Return a value that is equal for devices that this chooser treats alike in everything but
        order.

        It never refuses one of them if it would not refuse the other in the same state of use. Lets
        the search skip what must fail again.
        """


class FirstFit:
    """Upstream's order: pools, slices and devices as they are listed."""

    def order(self, request: ResolvedRequest, devices: Sequence[Device], tentative: TentativeUsage) -> Sequence[Device]:  # noqa: ARG002 (the protocol's signature)
        return devices

    def sets(
        self,
        request: ResolvedRequest,  # noqa: ARG002 (as above)
        devices: Sequence[Device],  # noqa: ARG002
        count: int,  # noqa: ARG002
        tentative: TentativeUsage,  # noqa: ARG002
    ) -> None:
        return None

    def kind(self, device: Device) -> Hashable:  # noqa: ARG002 (as above)
        return None
