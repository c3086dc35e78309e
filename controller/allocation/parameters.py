"""Opaque parameters of our own drivers, as far as the allocator acts on them: memory by percentage of the card.

Called by `prepare`, and by `scoring.policies` for what vendors read there. In: the configuration entries of a class and a
claim. Out: percent by driver. Of other drivers' parameters only this is asked: can they be passed on (`require_readable`)?
"""

from collections.abc import Iterator, Mapping

import msgspec

from controller.allocation.errors import AllocatorError
from hami_dra.api import names
from hami_dra.api import resource as api
from hami_dra.api.config import DeviceConfig, read_device_config
from hami_dra.api.opaque import problem_of


def memory_percent(
    device_class: api.DeviceClass, claim: api.ResourceClaim, request_names: frozenset[str]
) -> Mapping[str, int]:
    """Driver → percent of the card's memory that the request takes there.

    The class comes before the claim, and later entries win, field by field. `request_names`: the request's names
    (`request`, and `request/subrequest`); an entry without requests is for all. Raises AllocatorError.
    """
    found: dict[str, int] = {}
    for driver, config in device_configs(device_class, claim, request_names):
        if config.memory_percent is not None:
            found[driver] = config.memory_percent
    return found


def device_configs(
    device_class: api.DeviceClass, claim: api.ResourceClaim, request_names: frozenset[str]
) -> Iterator[tuple[str, DeviceConfig]]:
    """(driver of ours, its parameters) for one request, those of the class first. Raises AllocatorError."""
    for index, entry in enumerate(device_class.spec.config):
        if entry.opaque is not None and _ours(entry.opaque.driver):
            origin = f"DeviceClass {device_class.key}: spec.config[{index}].opaque.parameters"
            yield entry.opaque.driver, _parse(entry.opaque.parameters, origin)
    for index, claimed in enumerate(claim.spec.devices.config):
        applies = not claimed.requests or not request_names.isdisjoint(claimed.requests)
        if claimed.opaque is not None and applies and _ours(claimed.opaque.driver):
            origin = f"ResourceClaim {claim.key}: spec.devices.config[{index}].opaque.parameters"
            yield claimed.opaque.driver, _parse(claimed.opaque.parameters, origin)


def require_readable(claim: api.ResourceClaim) -> None:
    """Raises AllocatorError for a claim of which a part could not be read; see `hami_dra.api.opaque`."""
    if claim.spec.unreadable:
        raise AllocatorError(f"ResourceClaim {claim.key}: cannot be read: {claim.spec.unreadable}")
    for index, entry in enumerate(claim.spec.devices.config):
        _require(entry.opaque, f"ResourceClaim {claim.key}: spec.devices.config[{index}].opaque.parameters")


def require_readable_class(device_class: api.DeviceClass) -> None:
    """Raises AllocatorError. As `require_readable`."""
    for index, entry in enumerate(device_class.spec.config):
        _require(entry.opaque, f"DeviceClass {device_class.key}: spec.config[{index}].opaque.parameters")


def _require(opaque: api.OpaqueDeviceConfiguration | None, origin: str) -> None:
    if opaque is not None and (problem := problem_of(opaque.parameters)):
        raise AllocatorError(f"{origin}: {problem}")


def _ours(driver: str) -> bool:
    return driver.endswith(f".{names.DOMAIN}")


def _parse(parameters: msgspec.Raw, origin: str) -> DeviceConfig:
    parsed = read_device_config(bytes(parameters))
    if isinstance(parsed, str):
        raise AllocatorError(f"{origin}: {parsed}")
    return parsed
