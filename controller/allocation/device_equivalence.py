"""The amounts that one request takes of each kind of device, and the reasons why it can never have
a device of some kinds.

Called by `controller.allocation.prefilter`. In: a request, and one device of each kind,
which represents all of them. Out: columns by number of the kind. Must not read what is in use: that
differs between devices of one kind.
"""

from typing import Final

import numpy as np

from controller.allocation.errors import AllocatorError
from controller.allocation.ownership import Scope
from controller.allocation.request import ResolvedRequest
from controller.inventory.model import Device, value_of
from controller.inventory.roles import consumed_of
from hami_dra.api import names
from hami_dra.api.arrays import Bools, Codes, Ints
from hami_dra.api.core import QuantityText
from hami_dra.vendors import device_codes
from hami_dra.vendors.device_codes import NUMBER
from hami_dra.vendors.registry import VENDORS

NOT_OF_CLASS: Final = 255
"""The row is free, or its device is not of the request's class: no card for this request."""
UNJUDGED: Final = 254
"""The device cannot be judged (negative amounts): the search must reach it to report the error."""
_NUMBER_OF_VENDOR: Final = {vendor.profile.driver: number for number, vendor in enumerate(VENDORS)}


class DeviceEquivalence:
    """The amounts that the request takes of each kind of device; one entry per number of
    `DeviceColumns.kinds`.

    A column by device is then one indexing operation: with kinds 0 = A100 and 1 = L4, `slots = [1,
    0]`, `memory = [40960, 0]` and `code = [0, CARD_INSUFFICIENT_MEMORY]`, four devices of the kinds
    [0, 1, 1, 0] have `code[kind] = [0, code, code, 0]`.
    """

    def __init__(self, view: ResolvedRequest, scope: Scope) -> None:
        self._view = view
        self._scope = scope
        self._known = 0
        self.code: Codes = np.zeros(0, dtype=np.uint8)
        self.slots: Ints = np.zeros(0, dtype=np.int64)
        self.cores: Ints = np.zeros(0, dtype=np.int64)
        self.memory: Ints = np.zeros(0, dtype=np.int64)
        self.limited: Bools = np.zeros(0, dtype=np.bool_)
        self.slots_limited: Bools = np.zeros(0, dtype=np.bool_)
        self.vendor: Ints = np.zeros(0, dtype=np.int64)

    def learn(self, samples: list[Device]) -> None:
        if self._known == len(samples):
            return
        self._known = len(samples)
        codes = [self._code(sample) for sample in samples]
        amounts = np.array(
            [
                consumed_of(sample, self._view.consumed(sample) or {}) if code == 0 else (0, 0, 0)
                for sample, code in zip(samples, codes, strict=True)
            ],
            dtype=np.int64,
        ).reshape(-1, 3)
        self.code = np.array(codes, dtype=np.uint8)
        self.slots, self.cores, self.memory = (np.ascontiguousarray(amounts[:, role]) for role in range(3))
        self.limited = np.array([self._view.shared(sample) for sample in samples], dtype=np.bool_)
        # Slots that are not published only count for scores.
        self.slots_limited = self.limited & np.array(
            [sample.profile.shares in sample.totals for sample in samples], dtype=np.bool_
        )
        self.vendor = np.array([_NUMBER_OF_VENDOR.get(sample.id.driver, -1) for sample in samples], dtype=np.int64)

    def _code(self, sample: Device) -> int:
        if not self._scope.covers(sample.id.driver):
            return NOT_OF_CLASS
        try:
            if self._view.consumption(sample) is not None:
                return 0
        except AllocatorError:
            return UNJUDGED
        return NUMBER[_impossible(self._view, sample)]


def _impossible(view: ResolvedRequest, device: Device) -> str:
    """Return why a device could never meet the requested capacity, even if it were idle."""
    profile = device.profile
    percent = view.memory_percent(device)
    if percent is not None and device.is_part and not _holds(device, percent):
        return device_codes.CARD_INSUFFICIENT_MEMORY
    for role, reason in (
        (profile.parts, device_codes.MODE_NOT_FIT),
        (profile.memory, device_codes.CARD_INSUFFICIENT_MEMORY),
        (profile.cores, device_codes.CARD_INSUFFICIENT_CORE),
        (profile.shares, device_codes.CARD_TIME_SLICING_EXHAUSTED),
    ):
        if role is not None and _alone_fails(view, device, role):
            return reason
    return device_codes.CUSTOM_FILTER_RULE if percent is None else device_codes.CARD_INSUFFICIENT_MEMORY


def _holds(part: Device, percent: int) -> bool:
    """Return whether a part has this percentage of its card's memory."""
    return 0 < part.card_memory * percent // 100 <= part.totals.get(names.CAP_MEMORY, 0)


def _alone_fails(view: ResolvedRequest, device: Device, role: str) -> bool:
    """Return whether the request, or else the policy's default, is more than the device has, or it
    has no such capacity.
    """
    published = device.spec.capacity.get(role)
    wanted: QuantityText | None = view.capacity_requests.get(role)
    if published is None:
        return wanted is not None
    if wanted is None and published.request_policy is not None:
        wanted = published.request_policy.default
    return wanted is not None and value_of(wanted) > device.totals[role]
