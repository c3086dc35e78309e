"""A pod for preparation: which container refers to which claims, and its environment.

Called by `preparation` (reading) and `container_views` (meaning). In: the pod as JSON. Out: frozen
Structs. Pure. The Pod of `hami_dra.api.core` is the scheduler's, of which clusters hold very many;
it lacks the environment.

For kubelet's mapping of pods to claims: k8s.io/dynamic-resource-allocation/resourceclaim (Name),
pkg/kubelet/cm/dra/manager.go (GetResources), v1.37.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from hami_dra.api.core import ContainerClaim, PodResourceClaim, PodResourceClaimStatus
from hami_dra.api.meta import Object, Struct
from hami_dra.driver.prepare.errors import Refused


class EnvVar(Struct, frozen=True):
    name: str = ""
    value: str | None = None
    value_from: msgspec.Raw | dict[str, Any] | None = None


class ClaimsOfContainer(Struct, frozen=True):
    claims: tuple[ContainerClaim, ...] = ()


class Container(Struct, frozen=True):
    name: str = ""
    env: tuple[EnvVar, ...] = ()
    resources: ClaimsOfContainer = ClaimsOfContainer()
    restart_policy: str | None = None


class RequestMapping(Struct, frozen=True):
    """An extended resource of a container, and its request in the generated claim."""

    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class ExtendedResourceClaim(Struct, frozen=True):
    resource_claim_name: str = ""
    request_mappings: tuple[RequestMapping, ...] = ()


class SchedulingGroup(Struct, frozen=True):
    """The group of a pod (`scheduling.k8s.io`, KEP-4671)."""

    pod_group_name: str = ""


class Spec(Struct, frozen=True):
    node_name: str = ""
    runtime_class_name: str | None = None
    scheduling_group: SchedulingGroup = SchedulingGroup()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[Container, ...] = ()


class Status(Struct, frozen=True):
    phase: str = ""
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: ExtendedResourceClaim | None = None


class Pod(Object, frozen=True):
    spec: Spec = Spec()
    status: Status = Status()

    @property
    def is_over(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


def read_pod(raw: Mapping[str, Any]) -> Pod:
    """Read a pod. Raises Refused."""
    try:
        return msgspec.convert(raw, Pod, strict=False)
    except msgspec.ValidationError as error:
        name = raw.get("metadata", {}).get("name", "")
        raise Refused(f"Pod {name}: {error}: the driver does not understand this pod") from error


def containers(pod: Pod) -> tuple[Container, ...]:
    """Return all containers that may ever run in the pod."""
    return (*pod.spec.init_containers, *pod.spec.containers, *pod.spec.ephemeral_containers)


def most_at_once(pod: Pod, names: Collection[str]) -> int:
    """Return how many of these containers may run at the same time. An init container ends before the
    next container starts, unless it is a sidecar (`restartPolicy: Always`).
    """
    most = sidecars = 0
    for each in pod.spec.init_containers:
        if each.name in names:
            most = max(most, sidecars + 1)
            sidecars += each.restart_policy == "Always"
    return max(most, sidecars + sum(each.name in names for each in containers(pod)[len(pod.spec.init_containers) :]))


def references(pod: Pod, container: Container) -> list[tuple[str, str]]:
    """Return (name of the ResourceClaim, request; empty = all its requests), claim by claim in kubelet's order."""
    found = []
    for pod_claim in pod.spec.resource_claims:
        name = _claim_name(pod, pod_claim)
        if name:
            found += [(name, claim.request) for claim in container.resources.claims if claim.name == pod_claim.name]
    extended = pod.status.extended_resource_claim_status
    if extended is not None:
        found += [
            (extended.resource_claim_name, mapping.request_name)
            for mapping in extended.request_mappings
            if mapping.container_name == container.name
        ]
    return found


def claim_names(pod: Pod) -> set[str]:
    """Return the names of the pod's ResourceClaims, whether or not a container refers to them."""
    extended = pod.status.extended_resource_claim_status
    names = {_claim_name(pod, pod_claim) for pod_claim in pod.spec.resource_claims}
    return (names | {extended.resource_claim_name if extended else ""}) - {""}


def common_env(of: Iterable[Container]) -> dict[str, str]:
    """Return the variables that all of them set to the same value; a `valueFrom` is not known here."""
    common: dict[str, str] | None = None
    for container in of:
        own = {variable.name: variable.value or "" for variable in container.env if variable.value_from is None}
        common = own if common is None else dict(common.items() & own.items())
    return dict(sorted((common or {}).items()))


def _claim_name(pod: Pod, pod_claim: PodResourceClaim) -> str:
    """Return the name of the claim; empty without one (a template whose claim was not needed)."""
    if pod_claim.resource_claim_name:
        return pod_claim.resource_claim_name
    generated = (status for status in pod.status.resource_claim_statuses if status.name == pod_claim.name)
    return next((status.resource_claim_name or "" for status in generated), "")
