"""Where the members of a gang must or should run, according to the group and its claims. Pure."""

import re
from collections.abc import Iterable
from typing import Final

from controller.decide.scheduling_request import SchedulingRequest
from controller.gangs.membership import GangState
from controller.gangs.unit import TopologyConstraint
from hami_dra.api import names
from hami_dra.api.resource import ResourceClaim

_COMPUTE_DOMAIN: Final = re.compile(r"compute-domain[a-z0-9-]*\.nvidia\.com")
"""DeviceClasses of NVIDIA's driver for ComputeDomains: their pods talk to each other by NVLink."""


def constraints_of(state: GangState, members: Iterable[SchedulingRequest]) -> tuple[TopologyConstraint, ...]:
    """Return the constraints of the gang, required ones first.

    Pods with a claim of a ComputeDomain run on nodes of one NVLink clique.
    """
    if any(each.required and each.key == names.NVLINK_CLIQUE for each in state.topology):
        return state.topology
    for member in members:
        for entry in member.claims:
            if device_class := compute_domain_class(entry.claim):
                source = f"DeviceClass {device_class} of ResourceClaim {entry.claim.key}"
                return TopologyConstraint(names.NVLINK_CLIQUE, required=True, source=source), *state.topology
    return state.topology


def compute_domain_class(claim: ResourceClaim) -> str:
    """Return the DeviceClass by which the claim asks for a ComputeDomain, or empty."""
    for request in claim.spec.devices.requests:
        for asked in request.choices:
            if _COMPUTE_DOMAIN.fullmatch(asked.device_class_name):
                return asked.device_class_name
    return ""
