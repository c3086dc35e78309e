"""Assesses a pod: the input of `decide`, or why there is nothing to decide. Pure.

Called by `reconcile.queueing`, which adds what only a running controller knows (its writes, earlier
refusals), and by `insight.simulation`. Both describe their cluster by a `ClusterView`, so
`explain --from` a snapshot says what the controller says.

| answer | meaning | ends by |
|---|---|---|
| SchedulingRequest | decide now | |
| Waiting | not now | an event about the pod, its claims, template, classes or volumes |
| Ignored | nothing to allocate here, now or ever: our gate is removed at once | |
| Foreign | as Ignored, for now | managed devices that its claims match |
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from controller.allocation import ClaimOwnership, Owner
from controller.cluster.incremental import digest_of
from controller.decide import PodClaim, SchedulingRequest, pod_shape
from controller.inventory import Inventory
from controller.scoring import InvalidPolicy, Policies, resolve_policies
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD_GROUP, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE
from hami_dra.api.podclaims import ClaimRef, claim_refs, is_created_by_us, missing_object
from hami_dra.api.podstate import is_live, is_probe, other_gates
from hami_dra.api.resource import DeviceClass, ResourceClaim, ResourceClaimTemplate
from hami_dra.api.served_pods import unserved_scheduler
from hami_dra.vendors.registry import plugin_resources


def joined_in_a_container(pod: Pod, joinable: Mapping[str, bool], driver_of: Mapping[str, str]) -> str:
    """Return the fix if a container uses a claim that other pods may join together with another one.

    hami-dra's node drivers refuse such a container (`hami_dra.driver.prepare.container_views`): a pod
    that joins one of the claims later would be given the devices of the others too.

    Empty if nothing has to change. `joinable`: name in the pod -> whether the claim may be used by
    other pods. `driver_of`: name in the pod -> the driver of hami-dra that all of its devices
    belong to; other claims are left out.
    """
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        used = list(dict.fromkeys(entry.name for entry in container.resources.claims if entry.name in driver_of))
        for name in used:
            others = [other for other in used if other != name and driver_of[other] == driver_of[name]]
            if joinable[name] and others:
                return (
                    f"spec.containers[{container.name}].resources.claims: uses claim {name}, which other pods may join, together with "
                    f"{', '.join(others)}, and such a pod would be given the devices of both: put the requests of this container into one "
                    "claim, or use ResourceClaimTemplates"
                )
    return ""


class ClusterView(Protocol):
    """What an assessment reads of a cluster."""

    @property
    def inventory(self) -> Inventory: ...

    @property
    def classes(self) -> Mapping[str, DeviceClass]:
        """By name."""

    def claim(self, pod: Pod, ref: ClaimRef, /) -> ResourceClaim | None:
        """Return the claim of an entry of the pod, or None."""

    def template(self, key: str) -> ResourceClaimTemplate | None: ...

    def ownership_of(self, claim: ResourceClaim) -> ClaimOwnership:
        """Return the owner of a claim without an allocation. Raises SliceSpent."""

    def converted_from(self, pod: Pod) -> tuple[str, ...]:
        """Return the extended resources that the pod's claims replace. Raises ValueError for a foreign annotation."""


class AssessmentSettings(Struct, frozen=True):
    scheduler_names: frozenset[str]
    """Pods of other schedulers are ignored."""
    policies: Policies
    """Apply where no annotation says otherwise."""
    own_drivers: frozenset[str]
    """Drivers of hami-dra, which refuse containers with claims that could not be kept apart."""
    every_pod: bool = False
    """Also decide pods without claims, or with allocated ones: no kube-scheduler does it (simulations)."""


class Fault(StrEnum):
    """What must be corrected before a pod can be decided; the values are reasons of events."""

    NONE = ""
    CLAIM = "InvalidClaim"
    POLICY = "InvalidPolicy"
    VOLUME = "VolumeNotReady"


class Waiting(Struct, frozen=True):
    why: str
    """Field, object and fix, without the pod's name."""
    fault: Fault = Fault.NONE
    is_missing: bool = False
    """It names an object that does not exist, and that may be created right after the pod."""
    code: str = ""
    """Reason code, where no node can have the pod whatever is free."""

    def sentence(self, pod_key: str) -> str:
        """Return why, with the pod's name. A wrong policy may be another object's, which `why` names."""
        return self.why if self.fault is Fault.POLICY else f"Pod {pod_key}: {self.why}"


class Ignored(Struct, frozen=True):
    why: str


class Foreign(Struct, frozen=True):
    """All matching devices are at present of unmanaged drivers: kube-scheduler allocates them."""

    why: str
    signature: bytes
    """Equal for pods with equal requests."""


Assessment = SchedulingRequest | Waiting | Ignored | Foreign


def assess(pod: Pod, view: ClusterView, settings: AssessmentSettings) -> Assessment:
    """Assess the pod.

    Raises SliceSpent if a selector budget is in force: assess it again, evaluated results are kept.
    The request is without companions and refusals, which the caller knows.
    """
    if why := _not_ours(pod, settings):
        return Ignored(why)
    if gates := other_gates(pod):
        return Waiting(f"spec.schedulingGates: waits for {', '.join(gates)}")
    refs = claim_refs(pod)
    claims: list[PodClaim] = []
    for ref in refs:
        claim = _claim_of(pod, ref, view)
        if isinstance(claim, Waiting):
            return claim
        claims.append(PodClaim(ref.pod_claim_name, claim))
    if not settings.every_pod and all(entry.claim.status.allocation is not None for entry in claims):
        return Ignored("all its claims are allocated" if claims else "needs no claim")
    if not pod.spec.node_name and (held := view.inventory.rules.held(pod)) is not None:
        return Waiting(held.sentence, Fault.VOLUME, code=held.code)
    return _request_of(pod, refs, claims, view, settings)


def _not_ours(pod: Pod, settings: AssessmentSettings) -> str:
    if not is_live(pod):
        return "finished or being deleted"
    if not pod.spec.resource_claims and not settings.every_pod:
        return "has no claim"
    if is_probe(pod):
        return "tests the fence"
    return unserved_scheduler(pod.spec.scheduler_name, settings.scheduler_names)


def _claim_of(pod: Pod, ref: ClaimRef, view: ClusterView) -> ResourceClaim | Waiting:
    where = f"spec.resourceClaims[{ref.pod_claim_name}]"
    claim = view.claim(pod, ref)
    if claim is None:
        if not ref.template or view.template(ref.template) is None:
            return _missing(pod, ref)
        again = f"ResourceClaim {ref.key} does not exist; it is generated again"
        return Waiting(f"{where}: {again if ref.key else 'its claim is not generated yet'}")
    if ref.template and not _is_made_for(claim, pod):
        why = f"{where}: ResourceClaim {ref.key} was not made for this pod; delete it and let it be generated"
        return Waiting(why, Fault.CLAIM)
    if claim.metadata.deletion_timestamp is not None:
        return Waiting(f"{where}: ResourceClaim {ref.key} is being deleted")
    return claim


def _missing(pod: Pod, ref: ClaimRef) -> Waiting:
    kind, key = (RESOURCE_CLAIM_TEMPLATE, ref.template) if ref.template else (RESOURCE_CLAIM, ref.key)
    if is_created_by_us(pod, ref):
        return Waiting(
            f"spec.resourceClaims[{ref.pod_claim_name}]: {kind.name} {key} is not created yet; the controller creates it. "
            "Run: hami-dra doctor"
        )
    return Waiting(missing_object(ref.pod_claim_name, kind.name, key), Fault.CLAIM, is_missing=True)


def _request_of(
    pod: Pod, refs: Sequence[ClaimRef], claims: Sequence[PodClaim], view: ClusterView, settings: AssessmentSettings
) -> SchedulingRequest | Waiting | Foreign:
    open_claims = [entry.claim for entry in claims if entry.claim.status.allocation is None]
    ownerships = {claim.key: view.ownership_of(claim) for claim in open_claims}
    if ownerships and all(ownership.owner is Owner.FOREIGN for ownership in ownerships.values()):
        asked = [pod.metadata.namespace, *(_asked(claim, pod) for claim in open_claims)]
        return Foreign("its claims match only devices of drivers that are not managed", digest_of(asked))
    drivers = {key: ownership.drivers for key, ownership in ownerships.items()}
    joinable = {entry.pod_claim_name: not _is_own(entry.claim, pod) for entry in claims}
    if why := joined_in_a_container(pod, joinable, _own_driver_of(claims, drivers, settings.own_drivers)):
        return Waiting(why, Fault.CLAIM)
    templates = {
        entry.claim.key: template
        for ref, entry in zip(refs, claims, strict=True)
        if ref.template and (template := view.template(ref.template)) is not None
    }
    try:
        policies = resolve_policies(pod, [entry.claim for entry in claims], templates, view.classes, settings.policies)
    except InvalidPolicy as error:
        return Waiting(str(error), Fault.POLICY)
    try:
        converted_from = view.converted_from(pod)
    except ValueError as error:
        return Waiting(str(error), Fault.CLAIM)
    by_driver = plugin_resources(frozenset[str]().union(*drivers.values()))
    return SchedulingRequest(
        pod=pod,
        claims=tuple(claims),
        policies=policies,
        preferred_node=pod.status.nominated_node_name,
        required_node=pod.spec.node_name,
        plugin_resources=tuple(dict.fromkeys((*converted_from, *by_driver))),
        uses_spares=states_preemptible(pod),
    )


def states_preemptible(pod: Pod) -> bool:
    return pod.metadata.annotations.get(names.PREEMPTIBLE) == "true"


def shared_claims(request: SchedulingRequest) -> list[str]:
    """Return the keys of the claims to be allocated that other pods may use too."""
    claims = (entry.claim for entry in request.claims)
    return [claim.key for claim in claims if claim.status.allocation is None and not _is_own(claim, request.pod)]


def signature(request: SchedulingRequest, *, by_labels: bool = False) -> bytes:
    """Return a digest of everything that `decide` reads, except the pod's identity, and of whether it may preempt.

    Pods with equal digests either all fit or all do not. Companions and earlier refusals are left
    out: they affect which node is best, and never whether one fits.
    """
    pod = request.pod
    asked = (
        pod.metadata.namespace,
        pod_shape(pod, by_labels=by_labels),
        [_asked(entry.claim, pod) for entry in request.claims],
        _policies(request.policies, [entry.claim.key for entry in request.claims]),
        sorted(request.refused_nodes),
        (request.preferred_node, request.required_node, request.plugin_resources, request.uses_spares),
        pod.spec.preemption_policy,
    )
    return digest_of(asked)


def _asked(claim: ResourceClaim, pod: Pod) -> object:
    """Return what matters of a claim. A claim of one pod alone equals that of another with its spec."""
    if claim.status.allocation is None and _is_own(claim, pod):
        return claim.spec
    return claim.key, claim.metadata.uid, claim.spec, claim.status.allocation


def _policies(policies: Policies, claim_keys: list[str]) -> object:
    """Return the effective policies of each claim, wherever they were set."""
    per_claim = [policies.for_claim(key) for key in claim_keys]
    request_preferences = [
        repr(policies.request_preferences[key]) for key in claim_keys if key in policies.request_preferences
    ]
    return (
        policies.node_policy,
        policies.packing,
        [(device.keys, device.weights) for device in per_claim],
        request_preferences,
    )


def _own_driver_of(
    claims: Sequence[PodClaim], drivers: Mapping[str, Collection[str]], ours: frozenset[str]
) -> dict[str, str]:
    """Return each claim's own driver, by the claim's name in the pod. Claims that may get devices
    of other drivers are left out.

    `drivers`: key of a claim without an allocation -> the drivers whose devices it may get.
    """
    own_drivers = {}
    for entry in claims:
        allocation = entry.claim.status.allocation
        given = allocation and {result.driver for result in allocation.devices.results}
        possible = given or drivers.get(entry.claim.key, ())
        if len(possible) == 1 and ours.issuperset(possible):
            (own_drivers[entry.pod_claim_name],) = possible
    return own_drivers


def has_devices(pod: Pod, claim_of: Callable[[str], ResourceClaim | None]) -> bool:
    """Return whether the pod uses claims, and each of them is there, made for it, and allocated:
    `assess` of such a pod without gates is `Ignored`. `claim_of`: returns a claim by its key.
    """
    refs = claim_refs(pod)
    return bool(refs) and all(_is_usable(pod, ref, claim_of(ref.key)) for ref in refs)


def _is_usable(pod: Pod, ref: ClaimRef, claim: ResourceClaim | None) -> bool:
    return (
        claim is not None
        and claim.status.allocation is not None
        and claim.metadata.deletion_timestamp is None
        and not (ref.template and not _is_made_for(claim, pod))
    )


def _is_made_for(claim: ResourceClaim, pod: Pod) -> bool:
    """Return whether it was generated for this pod, or for its PodGroup."""
    return _is_own(claim, pod) or _is_of_group(claim, pod)


def _is_own(claim: ResourceClaim, pod: Pod) -> bool:
    """Return whether it was generated for this pod, so that no other pod may use it."""
    return any(owner.controller and owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references)


def _is_of_group(claim: ResourceClaim, pod: Pod) -> bool:
    """Return whether it was generated for the pod's PodGroup, so that all its members use it."""
    group = pod.spec.scheduling_group
    return group is not None and any(
        owner.controller
        and (owner.kind, owner.name) == (POD_GROUP.name, group.pod_group_name)
        and owner.api_version.partition("/")[0] == POD_GROUP.group
        for owner in claim.metadata.owner_references
    )
