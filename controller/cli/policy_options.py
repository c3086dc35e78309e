"""What the options of `controller.settings.placing` mean. Errors name the option."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from controller.allocation import FeatureGates, UnknownGate
from controller.cli.errors import CommandError
from controller.cli.profile_options import driver_profiles
from controller.insight.simulation import SimulationSettings
from controller.scoring import (
    DevicePolicy,
    Packing,
    Policies,
    check_preferences,
    parse_device_policy,
    parse_node_policy,
    parse_packing_weights,
)
from controller.settings.placing import PolicyOptions, SimulatedScheduler
from hami_dra.api import names
from hami_dra.kube.requirements import MINIMUM
from hami_dra.vendors.registry import PREFERENCE_ANNOTATIONS

if TYPE_CHECKING:
    from controller.cli.state import VersionedState


def default_policies(options: PolicyOptions, prefix: str = "--") -> Policies:
    """Return what counts below annotations. Raises InputError. `prefix`: of the options' names."""
    device = names.SPREAD if options.device_policy == names.FIRST_FIT else options.device_policy
    return Policies(
        node_policy=parse_node_policy(options.node_policy, f"{prefix}node-policy"),
        device_policy=DevicePolicy(parse_device_policy(device, f"{prefix}device-policy")),
        annotations=_default_annotations(options.default),
        packing=parse_packing_weights(options.packing_weights, f"{prefix}packing-weights", Packing())
        if options.packing_weights
        else Packing(),
    )


def _default_annotations(options: Iterable[str]) -> dict[str, str]:
    """Parse `--default NAME=VALUE`. Raises CommandError and InvalidPolicy."""
    found: dict[str, str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or name not in PREFERENCE_ANNOTATIONS:
            known = ", ".join(sorted(PREFERENCE_ANNOTATIONS))
            raise CommandError(f"--default: {option!r} is not NAME=VALUE with one of the annotations {known}")
        found[name] = value
    check_preferences(found, "--default")
    return found


def feature_gates(text: str) -> FeatureGates:
    """Raises CommandError."""
    try:
        return FeatureGates.parse(text)
    except UnknownGate as error:
        raise CommandError(f"--feature-gates: {error}") from error


def simulation_settings(
    policies: PolicyOptions, scheduler: SimulatedScheduler, prefix: str = "--"
) -> SimulationSettings:
    """Return the settings of a simulation. Raises InputError. `prefix`: of the policy options' names."""
    return SimulationSettings(
        policies=default_policies(policies, prefix),
        first_fit=policies.device_policy == names.FIRST_FIT,
        honor_preferences=scheduler.preferences,
        scheduler_names=scheduler.scheduler_name,
        gates=feature_gates(scheduler.feature_gates),
        kubernetes=_version(scheduler.kubernetes_version) if scheduler.kubernetes_version else None,
        profiles=driver_profiles(scheduler.manage_profile),
        gang_sources=scheduler.gangs_of,
    )


def of_cluster(settings: SimulationSettings, state: "VersionedState") -> SimulationSettings:
    """Return the settings with the live cluster's version and kinds of gangs, unless options name them."""
    return replace(
        settings,
        kubernetes=settings.kubernetes or state.kubernetes,
        gang_sources=state.gang_sources if settings.gang_sources is None else settings.gang_sources,
    )


def _version(text: str) -> tuple[int, int]:
    """Return (major, minor) of a version such as 1.36 or v1.36.4. Raises CommandError."""
    match = re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})(\..*)?", text)
    if match is None:
        raise CommandError(f"--kubernetes-version: {text!r} is not a version of Kubernetes; write 1.36, for example")
    version = int(match[1]), int(match[2])
    if version < MINIMUM:
        raise CommandError(
            f"--kubernetes-version: {text}: hami-dra needs Kubernetes {MINIMUM[0]}.{MINIMUM[1]} or newer"
        )
    return version
