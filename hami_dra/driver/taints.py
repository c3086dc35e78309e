"""Taints of published devices: which is which, when each was added, and whether the fence is among them.

Used by everything that writes slices. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hami_dra.api import names
from hami_dra.api.resource import Device, ResourceSlice

Json = dict[str, Any]


class TaintKey(NamedTuple):
    """The identity of a taint."""

    device: str
    key: str
    value: str
    effect: str


TaintTimes = Mapping[TaintKey, str]
"""When each taint was added, as the API writes it."""


def is_fenced(slices: Iterable[ResourceSlice]) -> bool:
    return any(
        taint.key == names.FENCE_TAINT for item in slices for device in item.spec.devices for taint in device.taints
    )


def taint_key(device: Json, taint: Json) -> TaintKey:
    return TaintKey(device["name"], taint["key"], taint.get("value", ""), taint["effect"])


def times_of(devices: Iterable[Device]) -> dict[TaintKey, str]:
    return {
        TaintKey(device.name, taint.key, taint.value, taint.effect): taint.time_added
        for device in devices
        for taint in device.taints
        if taint.time_added
    }


def timed(device: Json, times: TaintTimes) -> Json:
    """Return the device with the time of each taint in `times`; one that has a time keeps it."""
    taints = [
        taint | {"timeAdded": taint.get("timeAdded") or times[key]}
        if (key := taint_key(device, taint)) in times
        else taint
        for taint in device.get("taints", ())
    ]
    return device | {"taints": taints} if taints else device
