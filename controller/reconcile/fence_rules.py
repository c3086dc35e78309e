"""What a fence looks like: the DeviceTaintRule of a driver, or the taint in its slices. Pure.

A rule that was proven carries the annotation hami.io/fence-proven with its own uid and generation, so that a new leader need
not prove it again; a rule that was made anew or changed has other ones.
"""

from typing import Any, Final

from hami_dra.api import names
from hami_dra.api.resource import DeviceTaint, DeviceTaintRule, ResourceSlice

NO_SCHEDULE: Final = "NoSchedule"
_NAME_PREFIX: Final = "hami-dra-fence-"


def rule_name(driver: str) -> str:
    return f"{_NAME_PREFIX}{driver}"


def rule_body(driver: str) -> dict[str, Any]:
    return {
        "metadata": {"name": rule_name(driver), "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY}},
        "spec": rule_spec(driver),
    }


def rule_spec(driver: str) -> dict[str, Any]:
    """A merge patch of it also takes away what would narrow the selector."""
    return {
        "deviceSelector": {"driver": driver, "pool": None, "device": None},
        "taint": {"key": names.FENCE_TAINT, "value": None, "effect": NO_SCHEDULE},
    }


def is_fence_taint(taint: DeviceTaint) -> bool:
    return taint.key == names.FENCE_TAINT and taint.effect == NO_SCHEDULE


def is_intact(rule: DeviceTaintRule, driver: str) -> bool:
    selector = rule.spec.device_selector
    return (
        rule.metadata.deletion_timestamp is None
        and is_fence_taint(rule.spec.taint)
        and selector is not None
        and selector.driver == driver
        and selector.pool is None
        and selector.device is None
    )


def is_fence_rule(rule: DeviceTaintRule) -> bool:
    """One of ours, whatever state it is in."""
    return rule.metadata.name.startswith(_NAME_PREFIX) or rule.spec.taint.key == names.FENCE_TAINT


def proof(rule: DeviceTaintRule) -> str:
    return f"{rule.metadata.uid}/{rule.metadata.generation}"


def is_proven(rule: DeviceTaintRule) -> bool:
    return rule.metadata.annotations.get(names.FENCE_PROVEN) == proof(rule)


def is_fenced_slice(published: ResourceSlice) -> bool:
    """Every device of the slice carries the taint itself."""
    return all(any(is_fence_taint(taint) for taint in device.taints) for device in published.spec.devices)
