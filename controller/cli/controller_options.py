"""What the options of `hami-dra controller` mean: drivers, policies, feature gates, the lease.

Errors name the option.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from controller.cli.durations import seconds
from controller.cli.errors import CommandError

if TYPE_CHECKING:
    from controller.scheduling.decide import Options
    from controller.scheduling.scoring import Policies
    from hami_dra.kube.lease import Timings

_LONGEST_DRIVER: Final = 63
_DRIVER_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def managed_drivers(more: Iterable[str]) -> frozenset[str]:
    """Return hami-dra's own drivers and these. Raises CommandError."""
    from hami_dra.vendors.registry import OWN_DRIVERS

    named = frozenset(more)
    for driver in named:
        if len(driver) > _LONGEST_DRIVER or not _DRIVER_NAME.fullmatch(driver):
            raise CommandError(
                f"--manage: {driver!r} is not a driver name; write it as in ResourceSlices: gpu.nvidia.com"
            )
    return OWN_DRIVERS | named


def default_policies(node: str, device: str, defaults: Sequence[str], weights: str) -> "Policies":
    """Return what counts below annotations. Raises CommandError."""
    from controller.cli.policy_options import default_annotations, default_packing
    from controller.scheduling.scoring import (
        DevicePolicy,
        InvalidPolicy,
        Policies,
        parse_device_policy,
        parse_node_policy,
    )

    try:
        keys = parse_device_policy(device, "--device-policy")
        return Policies(
            node_policy=parse_node_policy(node, "--node-policy"),
            device_policy=DevicePolicy(keys),
            annotations=default_annotations(defaults),
            packing=default_packing(weights),
        )
    except InvalidPolicy as error:
        raise CommandError(str(error)) from error


def decide_options(feature_gates: str, *, first_fit: bool, honor_preferences: bool) -> "Options":
    """Raises CommandError."""
    from controller.scheduling.allocation import FeatureGates, UnknownGate
    from controller.scheduling.decide import Options

    try:
        return Options(
            first_fit=first_fit, honor_preferences=honor_preferences, gates=FeatureGates.parse(feature_gates)
        )
    except UnknownGate as error:
        raise CommandError(f"--feature-gates: {error}") from error


def lease_timings(duration: str, renew_deadline: str, retry_period: str, write_timeout: str) -> "Timings":
    """Raises CommandError, and ConfigError where the durations contradict each other."""
    from hami_dra.kube.lease import Timings

    whole = seconds(duration, "--lease-duration")
    if whole != int(whole):
        raise CommandError(f"--lease-duration: {duration!r}: the lease duration must be whole seconds")
    return Timings(
        duration=int(whole),
        renew_deadline=seconds(renew_deadline, "--renew-deadline"),
        retry=seconds(retry_period, "--retry-period"),
        write_timeout=seconds(write_timeout, "--write-timeout"),
    )
