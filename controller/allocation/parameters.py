"""Opaque parameters of our own drivers: those of class and claim that apply to a request, and the
minimums of its class.

Called by `prepare`, and by `scoring.policy_resolution` for the values that vendors read there. In:
the configuration entries of a class and a claim. Out: `DeviceConfig` by driver. Other drivers'
parameters are only tested for whether they can be passed on (`require_readable`).
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from controller.allocation.errors import AllocatorError, NotAllowedByClass
from hami_dra.api import names
from hami_dra.api import resource as api
from hami_dra.api.opaque import problem_of
from hami_dra.api.quantity import Quantity

if TYPE_CHECKING:
    from hami_dra.api.config import DeviceConfig  # pydantic takes longer to import than a command may

Minimums = Mapping[str, Mapping[str, Quantity]]
"""Driver → capacity → the least that a request may take of a device."""


def device_configs(
    device_class: api.DeviceClass, claim: api.ResourceClaim, request_names: frozenset[str]
) -> "dict[str, DeviceConfig]":
    """Return, for each of our drivers, the parameters of class and claim that apply to one request
    (`config.merge`).

    `request_names`: the request's names (`request`, and `request/subrequest`); an entry without
    requests applies to all. Raises AllocatorError, and NotAllowedByClass for a claim that sets a
    field marked final by its class.
    """
    of_class: defaultdict[str, list[DeviceConfig]] = defaultdict(list)
    of_claim: defaultdict[str, list[DeviceConfig]] = defaultdict(list)
    for index, entry in enumerate(device_class.spec.config):
        if entry.opaque is not None and _ours(entry.opaque.driver):
            origin = f"DeviceClass {device_class.key}: spec.config[{index}].opaque.parameters"
            of_class[entry.opaque.driver].append(_parse(entry.opaque.parameters, origin))
    for index, claimed in enumerate(claim.spec.devices.config):
        applies = not claimed.requests or not request_names.isdisjoint(claimed.requests)
        if claimed.opaque is not None and applies and _ours(claimed.opaque.driver):
            origin = f"ResourceClaim {claim.key}: spec.devices.config[{index}].opaque.parameters"
            of_claim[claimed.opaque.driver].append(_parse(claimed.opaque.parameters, origin))
    if not of_class and not of_claim:
        return {}
    from hami_dra.api.config import NotForClaims, merge

    found = {}
    for driver in (*of_class, *(driver for driver in of_claim if driver not in of_class)):
        try:
            found[driver] = merge(of_class[driver], of_claim[driver], f"DeviceClass {device_class.key}")
        except NotForClaims as error:
            raise NotAllowedByClass(f"ResourceClaim {claim.key}: spec.devices.config: {error}") from error
    return found


def minimums_of(configs: "Mapping[str, DeviceConfig]") -> Minimums:
    return {
        driver: {name: Quantity.parse(least) for name, least in config.minimum.items()}
        for driver, config in configs.items()
        if config.minimum
    }


def check_minimums(where: str, class_name: str, requested: Mapping[str, str], minimums: Minimums) -> None:
    """Raise NotAllowedByClass for a named amount below the class's minimum.

    `requested`: capacity → quantity as the claim spells it.
    """
    for least_of in minimums.values():
        for name, least in least_of.items():
            if name in requested and Quantity.parse(requested[name]) < least:
                raise NotAllowedByClass(
                    f"{where}: asks for {name}: {requested[name]}, less than the minimum of {least} that DeviceClass {class_name} "
                    f"sets; ask for at least {least}, or leave {name} out for all of the device"
                )


def require_readable(claim: api.ResourceClaim) -> None:
    """Raise AllocatorError for a claim with an unreadable part; see `hami_dra.api.opaque`."""
    if claim.spec.unreadable:
        raise AllocatorError(f"ResourceClaim {claim.key}: cannot be read: {claim.spec.unreadable}")
    for index, entry in enumerate(claim.spec.devices.config):
        _require(entry.opaque, f"ResourceClaim {claim.key}: spec.devices.config[{index}].opaque.parameters")


def require_readable_class(device_class: api.DeviceClass) -> None:
    """Raise AllocatorError for a class with an unreadable part."""
    for index, entry in enumerate(device_class.spec.config):
        _require(entry.opaque, f"DeviceClass {device_class.key}: spec.config[{index}].opaque.parameters")


def _require(opaque: api.OpaqueDeviceConfiguration | None, origin: str) -> None:
    if opaque is not None and (problem := problem_of(opaque.parameters)):
        raise AllocatorError(f"{origin}: {problem}")


def _ours(driver: str) -> bool:
    return driver.endswith(f".{names.DOMAIN}")


def _parse(parameters: msgspec.Raw, origin: str) -> "DeviceConfig":
    from hami_dra.api.config import read_device_config

    parsed = read_device_config(bytes(parameters))
    if isinstance(parsed, str):
        raise AllocatorError(f"{origin}: {parsed}")
    return parsed
