"""The seam between what may be allocated and what should be: the order in which the search tries devices.

`controller.scheduling.scoring` implements `Chooser`; `FirstFit` is upstream's own order. The search asks once for each request it
comes to (again after turning round), and checks constraints, counters and capacity itself.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

from controller.scheduling.allocation.resolved import ResolvedRequest
from controller.scheduling.allocation.tentative import TentativeUsage
from controller.scheduling.inventory.model import Device

__all__ = ["Chooser", "FirstFit", "ResolvedRequest", "TentativeUsage"]


class Chooser(Protocol):
    """Ranks devices for one request. Must be a pure function of its arguments."""

    def order(self, request: ResolvedRequest, devices: Sequence[Device], trial: TentativeUsage) -> Sequence[Device]:
        """Eligible devices (selectors, taints, capacity and in-use checked, in upstream's order) → those to try, best first.

        Leaving one out refuses it. Not asked for requests for all devices, where there is no choice, except to refuse:
        if one is left out, the request is not met on this node.
        """

    def sets(
        self, request: ResolvedRequest, devices: Sequence[Device], count: int, trial: TentativeUsage
    ) -> Iterable[Sequence[Device]] | None:
        """Whole sets of `count` devices to try, best first, or None: then ascending combinations of `order`.

        `devices` is what `order` returned. An exhausted iterable means that no set will do.
        """

    def kind(self, device: Device) -> Hashable:
        """Devices of one kind are the same to this chooser in everything but order: it never refuses one of them where it
        would not refuse the other in the same state of use. Lets the search skip what must fail again.
        """


class FirstFit:
    """Upstream's order: pools, slices and devices as they are listed."""

    def order(self, request: ResolvedRequest, devices: Sequence[Device], trial: TentativeUsage) -> Sequence[Device]:  # noqa: ARG002 (the protocol's signature)
        return devices

    def sets(
        self,
        request: ResolvedRequest,  # noqa: ARG002 (as above)
        devices: Sequence[Device],  # noqa: ARG002
        count: int,  # noqa: ARG002
        trial: TentativeUsage,  # noqa: ARG002
    ) -> None:
        return None

    def kind(self, device: Device) -> Hashable:  # noqa: ARG002 (as above)
        return None
