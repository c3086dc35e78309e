"""The form of a fence: the DeviceTaintRules of a driver, or the taint in its slices. Pure.

A driver has one rule, under one of two names. Every rule carries a finalizer: a rule that is being
deleted stays in force, because kube-scheduler respects such rules, until another one under the
other name is known to hold. So there is never a moment without a rule, even if one is deleted. What
the finalizer does not prevent (removal of the finalizer by hand, a changed spec) ends the fence at
once.

A proven rule carries the annotation hami.io/fence-proven with its own UID and generation, so that a
new leader need not prove it again; a recreated or changed rule has other ones.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from controller.reconcile.runtime import patches
from hami_dra.api import names
from hami_dra.api.resource import DeviceTaint, DeviceTaintRule, ResourceSlice

NO_SCHEDULE: Final = "NoSchedule"
_NAME_PREFIXES: Final = ("hami-dra-fence-", "hami-dra-fence2-")
"""Neither is a prefix of the other, so no two drivers share a name."""


def rule_names(driver: str) -> tuple[str, str]:
    """Return the usual name, and the one that takes over; they swap with each replacement."""
    first, second = (f"{prefix}{driver}" for prefix in _NAME_PREFIXES)
    return first, second


def rules_of(driver: str, find: Callable[[str], DeviceTaintRule | None]) -> list[DeviceTaintRule]:
    """Return the existing rules: intact and proven, intact, in force though being deleted, the rest."""
    present = [rule for name in rule_names(driver) if (rule := find(name)) is not None]
    return sorted(
        present,
        key=lambda rule: (
            not (is_intact(rule, driver) and is_proven(rule)),
            not is_intact(rule, driver),
            not is_in_force(rule, driver),
        ),
    )


def driver_of(name: str, drivers: Iterable[str]) -> str | None:
    return next((driver for driver in drivers if name in rule_names(driver)), None)


def rule_body(driver: str, name: str = "") -> dict[str, Any]:
    return {
        "metadata": {
            "name": name or rule_names(driver)[0],
            "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY},
            "finalizers": [names.FENCE_FINALIZER],
        },
        "spec": rule_spec(driver),
    }


def rule_spec(driver: str) -> dict[str, Any]:
    """Return the spec; as a merge patch it also removes everything that would narrow the selector."""
    return {
        "deviceSelector": {"driver": driver, "pool": None, "device": None},
        "taint": {"key": names.FENCE_TAINT, "value": None, "effect": NO_SCHEDULE},
    }


def restored(rule: DeviceTaintRule, driver: str) -> dict[str, Any]:
    return {**_with_finalizers(rule, {*rule.metadata.finalizers, names.FENCE_FINALIZER}), "spec": rule_spec(driver)}


def released(rule: DeviceTaintRule) -> dict[str, Any]:
    return _with_finalizers(rule, {*rule.metadata.finalizers} - {names.FENCE_FINALIZER})


def _with_finalizers(rule: DeviceTaintRule, finalizers: set[str]) -> dict[str, Any]:
    """Return a guarded patch: it replaces the list, and other clients may write to it."""
    return {"metadata": {**patches.guard(rule), "finalizers": sorted(finalizers)}}


def is_fence_taint(taint: DeviceTaint) -> bool:
    return taint.key == names.FENCE_TAINT and taint.effect == NO_SCHEDULE


def is_intact(rule: DeviceTaintRule, driver: str) -> bool:
    """Return whether the rule fences the driver and is not being deleted."""
    return rule.metadata.deletion_timestamp is None and _fences(rule, driver)


def is_in_force(rule: DeviceTaintRule, driver: str) -> bool:
    """Return whether the rule fences the driver, and stays until we release it."""
    return _fences(rule, driver) and (rule.metadata.deletion_timestamp is None or has_finalizer(rule))


def is_kept(rule: DeviceTaintRule, driver: str) -> bool:
    return is_intact(rule, driver) and has_finalizer(rule)


def has_finalizer(rule: DeviceTaintRule) -> bool:
    return names.FENCE_FINALIZER in rule.metadata.finalizers


def waits_for_release(rule: DeviceTaintRule) -> bool:
    """Return whether the rule is being deleted, and our finalizer keeps it."""
    return rule.metadata.deletion_timestamp is not None and has_finalizer(rule)


def _fences(rule: DeviceTaintRule, driver: str) -> bool:
    selector = rule.spec.device_selector
    return (
        is_fence_taint(rule.spec.taint)
        and selector is not None
        and selector.driver == driver
        and selector.pool is None
        and selector.device is None
    )


def is_fence_rule(rule: DeviceTaintRule) -> bool:
    """Return whether the rule is one of our own, in any state."""
    return is_fence_name(rule.metadata.name) or rule.spec.taint.key == names.FENCE_TAINT


def is_fence_name(name: str) -> bool:
    """Return whether only our own rules have such names."""
    return name.startswith(_NAME_PREFIXES)


def proof(rule: DeviceTaintRule) -> str:
    return f"{rule.metadata.uid}/{rule.metadata.generation}"


def is_proven(rule: DeviceTaintRule) -> bool:
    return rule.metadata.annotations.get(names.FENCE_PROVEN) == proof(rule)


def carries_fence(published: ResourceSlice) -> bool:
    """Return whether any device of the slice carries the taint itself."""
    return any(is_fence_taint(taint) for device in published.spec.devices for taint in device.taints)


def is_fenced_slice(published: ResourceSlice) -> bool:
    """Return whether every device of the slice carries the taint itself."""
    return all(any(is_fence_taint(taint) for taint in device.taints) for device in published.spec.devices)
