"""Policy options that several commands share. Errors name the option."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from controller.cli.errors import CommandError
from controller.cli.service_options import GangSource
from controller.insight.simulation import SimulationSettings
from controller.scheduling.allocation import FeatureGates, UnknownGate
from controller.scheduling.scoring import (
    DevicePolicy,
    InvalidPolicy,
    Packing,
    Policies,
    check_preferences,
    parse_device_policy,
    parse_node_policy,
    parse_packing_weights,
)
from hami_dra.api import names
from hami_dra.kube.requirements import MINIMUM
from hami_dra.vendors.profiles import BUILT_IN_PROFILES, DriverProfiles
from hami_dra.vendors.registry import PREFERENCE_ANNOTATIONS

if TYPE_CHECKING:
    from controller.cli.state import VersionedState


def default_annotations(options: Iterable[str]) -> dict[str, str]:
    """Parse `--default NAME=VALUE`: annotations for pods without any of their own. Raises
    CommandError.

    An annotation of pod, claim, template or class takes precedence.
    """
    found: dict[str, str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or name not in PREFERENCE_ANNOTATIONS:
            known = ", ".join(sorted(PREFERENCE_ANNOTATIONS))
            raise CommandError(f"--default: {option!r} is not NAME=VALUE with one of the annotations {known}")
        found[name] = value
    try:
        check_preferences(found, "--default")
    except InvalidPolicy as error:
        raise CommandError(str(error)) from error
    return found


def default_packing(weights: str, option: str = "--packing-weights") -> Packing:
    """Parse packing weights; empty: the defaults. Raises CommandError, which names `option`."""
    if not weights:
        return Packing()
    try:
        return parse_packing_weights(weights, option, Packing())
    except InvalidPolicy as error:
        raise CommandError(str(error)) from error


def simulation_settings(
    node_policy: str | None,
    device_policy: str | None,
    default: Iterable[str] = (),
    feature_gates: str = "",
    *,
    honor_preferences: bool = True,
    scheduler_names: Iterable[str] | None = None,
    packing_weights: str = "",
    prefix: str = "--",
    profiles: DriverProfiles = BUILT_IN_PROFILES,
    kubernetes_version: str = "",
    gangs_of: Iterable[GangSource] | None = None,
) -> SimulationSettings:
    """Return settings from the policy options of a command. Raises CommandError.

    The options: `--node-policy`, `--device-policy`, `--default`, `--feature-gates`,
    `--preferences`, `--scheduler-name`, `--packing-weights`, `--kubernetes-version`, `--gangs-of`.
    `prefix`: the prefix of the policy options' names.
    """
    first_fit = device_policy == names.FIRST_FIT
    node, keys = names.BINPACK, DevicePolicy().keys
    try:
        if node_policy is not None:
            node = parse_node_policy(node_policy, f"{prefix}node-policy")
        if device_policy is not None and not first_fit:
            keys = parse_device_policy(device_policy, f"{prefix}device-policy")
    except InvalidPolicy as error:
        raise CommandError(str(error)) from error
    try:
        gates = FeatureGates.parse(feature_gates)
    except UnknownGate as error:
        raise CommandError(f"--feature-gates: {error}") from error
    defaults = Policies(
        node_policy=node,
        device_policy=DevicePolicy(keys),
        annotations=default_annotations(default),
        packing=default_packing(packing_weights, f"{prefix}packing-weights"),
    )
    return SimulationSettings(
        policies=defaults,
        first_fit=first_fit,
        honor_preferences=honor_preferences,
        scheduler_names=frozenset(scheduler_names or ["default-scheduler"]),
        gates=gates,
        kubernetes=_version(kubernetes_version) if kubernetes_version else None,
        profiles=profiles,
        gang_sources=frozenset(each.value for each in gangs_of) if gangs_of else None,
    )


def of_cluster(settings: SimulationSettings, state: "VersionedState") -> SimulationSettings:
    """Return the settings with the version of the live cluster and the kinds of gangs that its
    controller reads, unless options name them.
    """
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
