"""Assesses a pod: the input of `decide`, or why there is nothing to decide.

Called by the scheduling cycle, once per evaluation of a pod. Reads the informers, changes nothing,
and makes no calls: the answer says what to report or do.

- `Schedulable`: decide now.
- `Pending`: not now. It ends by an event about the pod, its claims, template or classes, or at
  `until`.
- `Ignored`: nothing to allocate here, now or ever: our gate is removed at once.
- `Foreign`: like NotOurs, until managed devices appear.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from controller.reconcile.queueing.joinable_claims import joined_in_a_container
from controller.reconcile.queueing.waiting_pods import WaitingPods
from controller.reconcile.runtime import Context, messages
from controller.scheduling.allocation import ClaimOwnership, Owner
from controller.scheduling.decide import Companions, PodClaim, SchedulingRequest, pod_shape
from controller.scheduling.incremental import digest_of
from controller.scheduling.scoring import InvalidPolicy, Policies, resolve_policies
from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD_GROUP
from hami_dra.api.podclaims import ClaimRef, claim_refs, is_created_by_us, missing_object
from hami_dra.api.podstate import is_live, is_probe, other_gates
from hami_dra.api.resource import ResourceClaim, ResourceClaimTemplate
from hami_dra.vendors.registry import plugin_resources


class Conversion(Protocol):
    """Facts about pods that were converted from legacy resources."""

    def plugin_resources(self, pod: Pod) -> tuple[str, ...]:
        """Return the extended resources it requested originally. Raises ValueError for a foreign annotation."""

    def claim_or_template(self, pod: Pod) -> Mapping[str, Any] | None:
        """Return the ResourceClaim, or ResourceClaimTemplate, that the pod was converted to, or None for
        other pods. Raises ValueError.
        """

    def is_same_request(self, body: Mapping[str, Any], stored: ResourceClaim | ResourceClaimTemplate) -> bool:
        """Return whether a stored one requests the same as `body`, a result of `claim_or_template`."""

    def bypassed(self, pod: Pod, offered: Collection[str]) -> str | None:
        """Return what to do about a pod that should have been converted but was not, or None.

        `offered`: extended resources that device plugins offer on some node.
        """


class Schedulable(Struct, frozen=True):
    request: SchedulingRequest
    signature: bytes
    """Equal for pods with equal requests."""


class Pending(Struct, frozen=True):
    why: str
    until: float | None = None
    passing: bool = True
    """It ends without the user's help."""
    preemption_may_help: bool = False
    """The gate is lifted after its patience, as for a pod without room."""
    event: messages.Message | None = None
    behind: str = ""
    """UID of an object that is being written: the pod is evaluated when that has ended."""


class Ignored(Struct, frozen=True):
    why: str


class Foreign(Struct, frozen=True):
    """All matching devices are at present of unmanaged drivers: kube-scheduler allocates them."""

    why: str
    signature: bytes
    """Equal for pods with equal requests."""


Answer = Schedulable | Pending | Ignored | Foreign


class PodAssessor:
    def __init__(
        self,
        context: Context,
        waiting: WaitingPods,
        ownership_of: Callable[[ResourceClaim], ClaimOwnership],
        conversion: Conversion | None,
    ) -> None:
        self._informers = context.informers
        self._inventory = context.inventory
        self._shared = waiting.shared
        self._settings = context.settings
        self._refusals = waiting.refusals
        self._in_flight = waiting.in_flight
        self._timeouts = waiting.timeouts
        self._ownership_of = ownership_of
        self._conversion = conversion

    def assess(self, pod: Pod, now: float) -> Answer:
        """Assess the pod.

        Raises SliceSpent if a selector budget is in force: assess it again, evaluated results are
        kept.
        """
        if (not_ours := self._not_ours(pod)) is not None:
            return not_ours
        if gates := other_gates(pod):
            return Pending(f"waits for the scheduling gate {', '.join(gates)}")
        refs = claim_refs(pod)
        if not refs:
            return Ignored("needs no claim")
        claims: list[PodClaim] = []
        for ref in refs:
            found = self._claim(pod, ref, now)
            if not isinstance(found, ResourceClaim):
                return found
            claims.append(PodClaim(ref.pod_claim_name, found))
        open_claims = [entry.claim for entry in claims if entry.claim.status.allocation is None]
        if not open_claims:
            return Ignored("all its claims are allocated")
        return self._not_now(pod, open_claims) or self._ready(pod, refs, claims, open_claims, now)

    def _not_now(self, pod: Pod, open_claims: list[ResourceClaim]) -> Pending | None:
        uid = pod.metadata.uid
        if uid in self._in_flight:
            return Pending("its claims are being written", behind=uid)
        for claim in open_claims:
            if claim.metadata.uid in self._in_flight:
                return Pending(f"its claim {claim.key} is being written", behind=claim.metadata.uid)
        if not pod.spec.node_name and (held := self._inventory.held(pod)) is not None:
            event = messages.warning(messages.VOLUME_NOT_READY, held.sentence)
            return Pending(held.sentence, passing=False, preemption_may_help=True, event=event)
        return None

    def _not_ours(self, pod: Pod) -> Ignored | None:
        if not is_live(pod):
            return Ignored("finished or being deleted")
        if not pod.spec.resource_claims:
            return Ignored("has no claim")
        if is_probe(pod):
            return Ignored("tests the fence")
        if pod.spec.scheduler_name not in self._settings.scheduling.scheduler_names:
            return Ignored(f"belongs to the scheduler {pod.spec.scheduler_name}")
        return None

    def _claim(self, pod: Pod, ref: ClaimRef, now: float) -> ResourceClaim | Pending:
        where = f"spec.resourceClaims[{ref.pod_claim_name}]"
        if not ref.key:
            if self._informers.template(ref.template) is not None:
                return Pending(f"{where}: its claim is not generated yet")
            return self._missing(pod, ref, "ResourceClaimTemplate", now)
        claim = self._informers.claim(ref.key)
        if claim is None:
            if ref.template:
                return Pending(f"{where}: ResourceClaim {ref.key} does not exist; it is generated again")
            return self._missing(pod, ref, "ResourceClaim", now)
        if ref.template and not _is_made_for(claim, pod):
            note = f"{where}: ResourceClaim {ref.key} was not made for this pod; delete it and let it be generated"
            return Pending(note, passing=False, event=messages.warning(messages.INVALID_CLAIM, note))
        if claim.metadata.deletion_timestamp is not None:
            return Pending(f"{where}: ResourceClaim {ref.key} is being deleted")
        return claim

    def _missing(self, pod: Pod, ref: ClaimRef, kind: str, now: float) -> Pending:
        """Report an object that does not exist, but not at once: people create it after the pod, and
        the controller (`converted_claims`).
        """
        if is_created_by_us(pod, ref):
            return Pending(
                f"spec.resourceClaims[{ref.pod_claim_name}]: {kind} {ref.key or ref.template} is not created yet"
            )
        note = missing_object(ref.pod_claim_name, kind, ref.key or ref.template)
        since = self._timeouts.runs_out(pod.metadata.uid, "object", now)
        if now < since:
            return Pending(note, until=since, passing=False)
        return Pending(note, passing=False, event=messages.warning(messages.INVALID_CLAIM, note))

    def _ready(
        self,
        pod: Pod,
        refs: Sequence[ClaimRef],
        claims: list[PodClaim],
        open_claims: list[ResourceClaim],
        now: float,
    ) -> Answer:
        ownerships = [self._ownership_of(claim) for claim in open_claims]
        if all(ownership.owner is Owner.FOREIGN for ownership in ownerships):
            asked = [pod.metadata.namespace, *(_claim(claim, pod) for claim in open_claims)]
            return Foreign("its claims match only devices of drivers that are not managed", digest_of(asked))
        drivers = {claim.key: ownership.drivers for claim, ownership in zip(open_claims, ownerships, strict=True)}
        joinable = {entry.pod_claim_name: not _is_own(entry.claim, pod) for entry in claims}
        if note := joined_in_a_container(
            pod, joinable, _own_driver_of(claims, drivers, self._settings.drivers.own_drivers)
        ):
            return Pending(note, passing=False, event=messages.warning(messages.INVALID_CLAIM, note))
        if (until := self._refusals.settling(pod.metadata.uid, now)) is not None:
            return Pending("kube-scheduler is deciding what to do about it", until=until)
        templates: dict[str, ResourceClaimTemplate] = {}
        for ref in refs:
            template = self._informers.template(ref.template) if ref.template else None
            if template is not None:
                templates[ref.key] = template
        classes = {device_class.metadata.name: device_class for device_class in self._informers.classes.store}
        try:
            policies = resolve_policies(
                pod, [entry.claim for entry in claims], templates, classes, self._settings.scheduling.policies
            )
        except InvalidPolicy as error:
            return Pending(str(error), passing=False, event=messages.warning(messages.INVALID_POLICY, str(error)))
        try:
            converted_from = self._conversion.plugin_resources(pod) if self._conversion else ()
        except ValueError as error:
            return Pending(str(error), passing=False, event=messages.warning(messages.INVALID_CLAIM, str(error)))
        by_driver = plugin_resources(frozenset[str]().union(*(ownership.drivers for ownership in ownerships)))
        companions, refused_for_companions = self._companions(pod, open_claims, now)
        request = SchedulingRequest(
            pod=pod,
            claims=tuple(claims),
            policies=policies,
            refused_nodes=self._refusals.nodes(pod.metadata.uid, now),
            earlier_refusals=self._refusals.times(pod.metadata.uid),
            preferred_node=pod.status.nominated_node_name,
            required_node=pod.spec.node_name,
            companions=companions,
            refused_for_companions=refused_for_companions,
            plugin_resources=tuple(dict.fromkeys((*converted_from, *by_driver))),
        )
        return Schedulable(request, signature(request, by_labels=self._inventory.refuses_by_labels(pod)))

    def _companions(
        self, pod: Pod, open_claims: list[ResourceClaim], now: float
    ) -> tuple[tuple[Companions, ...], Counter[str]]:
        """Return the other pods that wait for one of these claims.

        Also returns by node how many of them kube-scheduler refused there.
        """
        keys = [claim.key for claim in open_claims if not _is_own(claim, pod)]
        companions = self._shared.companions(pod, keys, lambda uid: bool(self._inventory.assumed_node(uid)))
        sharers = {uid for uids in self._shared.uids(keys) for uid in uids} if companions else set()
        return companions, self._refusals.counts(sharers - {pod.metadata.uid}, now)


def signature(request: SchedulingRequest, *, by_labels: bool = False) -> bytes:
    """Return a digest of everything that `decide` reads, except the pod's identity.

    Pods with equal digests either all fit or all do not. Companions and earlier refusals are left
    out: they affect which node is best, and never whether one fits.
    """
    pod = request.pod
    asked = (
        pod.metadata.namespace,
        pod_shape(pod, by_labels=by_labels),
        [_claim(entry.claim, pod) for entry in request.claims],
        _policies(request.policies, [entry.claim.key for entry in request.claims]),
        sorted(request.refused_nodes),
        (request.preferred_node, request.required_node, request.plugin_resources),
    )
    return digest_of(asked)


def _claim(claim: ResourceClaim, pod: Pod) -> object:
    """Return what matters of a claim. A claim of one pod alone equals that of another with its spec."""
    if claim.status.allocation is None and _is_own(claim, pod):
        return claim.spec
    return claim.key, claim.metadata.uid, claim.spec, claim.status.allocation


def _own_driver_of(
    claims: list[PodClaim], drivers: Mapping[str, Collection[str]], ours: frozenset[str]
) -> dict[str, str]:
    """Return each claim's own driver, by the claim's name in the pod. Claims that may get devices
    of other drivers are left out.

    `drivers`: key of a claim without an allocation -> the drivers whose devices it may get.
    """
    found = {}
    for entry in claims:
        allocation = entry.claim.status.allocation
        given = allocation and {result.driver for result in allocation.devices.results}
        possible = given or drivers.get(entry.claim.key, ())
        if len(possible) == 1 and ours.issuperset(possible):
            (found[entry.pod_claim_name],) = possible
    return found


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
