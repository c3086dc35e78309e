"""The device axis: in which order the search tries the cards of a node, by HAMi's policies and the vendors' rules.

Made by `decide` for one decision; called by `allocation.search`. In: the cards that Kubernetes' own rules allow. Out: those
that the vendor's rules allow too, best first. Works on the few cards of one node, with what the search has already chosen
for earlier requests of the pod added, so that the second container sees the first.
"""

from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from controller.allocation.chooser import RequestView, Trial
from controller.allocation.search import Solution
from controller.inventory.columns import DeviceColumns
from controller.inventory.model import Device, DeviceId
from controller.inventory.roles import ask_of, used_of
from controller.scoring.formulas import device_order, device_scores
from controller.scoring.policies import Policies
from hami_dra.vendors.protocol import Ask, Cards, Codes
from hami_dra.vendors.registry import vendor_of


class PolicyChooser:
    """Implements `controller.allocation.chooser.Chooser`."""

    def __init__(self, columns: DeviceColumns, policies: Policies) -> None:
        self._columns = columns
        self._policies = policies
        self._scores: dict[tuple[str, str, DeviceId], float] = {}

    def order(self, request: RequestView, devices: Sequence[Device], trial: Trial) -> Sequence[Device]:
        if not devices:
            return devices
        cards, ask = self._picture(request, devices, trial)
        positions = np.flatnonzero(refusals(devices, cards, ask) == 0)
        allowed = [devices[position] for position in positions.tolist()]
        if request.all_devices:
            return allowed
        policy = self._policies.for_claim(request.claim_key)
        if len(allowed) < len(devices):
            cards, ask = cards.take(positions), ask.take(positions)
        scores = device_scores(cards, ask, policy.weights)
        for device, score in zip(allowed, scores.tolist(), strict=True):
            self._scores[request.claim_key, request.name, device.id] = score
        return [allowed[position] for position in device_order(cards, scores, policy).tolist()]

    def sets(
        self,
        request: RequestView,  # noqa: ARG002 (the protocol's signature; topology chooses whole sets)
        devices: Sequence[Device],  # noqa: ARG002 (as above)
        count: int,  # noqa: ARG002 (as above)
        trial: Trial,  # noqa: ARG002 (as above)
    ) -> Iterable[Sequence[Device]] | None:
        return None

    def kind(self, device: Device) -> Hashable:
        """Vendor rules look at the driver and at the card's totals, which the search compares itself."""
        return device.id.driver

    def reported(self, solution: Solution) -> tuple[tuple[str, float], ...]:
        """`driver/pool/device` and its score at the moment it was chosen, in order of the results."""
        return tuple(
            (str(pick.device.id), self._scores.get((pick.request.claim_key, pick.request.name, pick.device.id), 0.0))
            for picks in solution.picks
            for pick in picks
        )

    def _picture(self, request: RequestView, devices: Sequence[Device], trial: Trial) -> tuple[Cards, Ask]:
        rows = np.fromiter((device.row for device in devices), dtype=np.intp, count=len(devices))
        cards = self._columns.cards(rows)
        if trial.added:
            _add(cards, devices, trial)
        return cards, ask_of(request.demand, devices)


def refusals(devices: Sequence[Device], cards: Cards, ask: Ask) -> Codes:
    """Vendor reasons per card; cards of drivers without a vendor have none. Shape (n,)."""
    codes = np.zeros(len(devices), dtype=np.uint8)
    for driver in {device.id.driver for device in devices}:
        vendor = vendor_of(driver)
        if vendor is not None:
            mine = np.flatnonzero([device.id.driver == driver for device in devices])
            codes[mine] = vendor.refuse(cards.take(mine), ask.take(mine))
    return codes


def _add(cards: Cards, devices: Sequence[Device], trial: Trial) -> None:
    """Count what the search has chosen so far for this pod. `cards` are copies, so they may be changed."""
    for position, device in enumerate(devices):
        delta = trial.added.get(device.id)
        if delta is None:
            continue
        slots, cores, memory = used_of(device, delta.shares, delta.consumed, exclusive=bool(delta.exclusive))
        cards.slots_used[position] += slots
        cards.cores_used[position] += cores
        cards.memory_used[position] += memory
