"""Assesses a pod for the scheduling cycle: `scheduling.assessment`, and what only the controller
knows: its own writes, what kube-scheduler refused, and how long an object may be missing.

Called once per evaluation of a pod. Reads the informers, changes nothing, and makes no calls: the
answer says what to report or do.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from controller.allocation import ClaimOwnership, ownership_of
from controller.assessment import (
    AssessedUnit,
    AssessmentSettings,
    Fault,
    Foreign,
    Ignored,
    Waiting,
    assess,
    shared_claims,
)
from controller.decide import Companions, SchedulingRequest
from controller.inventory import Inventory
from controller.reconcile.queueing.waiting_pods import WaitingPods
from controller.reconcile.runtime import Context, messages
from controller.webhook import LegacyConversion
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import ClaimRef
from hami_dra.api.resource import DeviceClass, ResourceClaim, ResourceClaimTemplate


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


Answer = SchedulingRequest | Pending | Ignored | Foreign
QueuedUnit = AssessedUnit[Pending]


@dataclass(frozen=True, slots=True)
class _InformerView:
    """The cluster as the informers know it."""

    context: Context
    conversion: LegacyConversion | None

    @property
    def inventory(self) -> Inventory:
        return self.context.inventory

    @property
    def classes(self) -> Mapping[str, DeviceClass]:
        return {device_class.metadata.name: device_class for device_class in self.context.informers.classes.store}

    def claim(self, _pod: Pod, ref: ClaimRef) -> ResourceClaim | None:
        return self.context.informers.claim(ref.key) if ref.key else None

    def template(self, key: str) -> ResourceClaimTemplate | None:
        return self.context.informers.template(key)

    def ownership_of(self, claim: ResourceClaim) -> ClaimOwnership:
        settings = self.context.settings
        return ownership_of(self.context.inventory, claim, settings.drivers.managed, settings.scheduling.options.gates)

    def converted_from(self, pod: Pod) -> tuple[str, ...]:
        return self.conversion.plugin_resources(pod) if self.conversion else ()


class PodAssessor:
    def __init__(self, context: Context, waiting: WaitingPods, conversion: LegacyConversion | None) -> None:
        scheduling = context.settings.scheduling
        self.view = _InformerView(context, conversion)
        self.settings = AssessmentSettings(
            scheduling.scheduler_names, scheduling.policies, context.settings.drivers.own_drivers
        )
        self._informers = context.informers
        self._inventory = context.inventory
        self._waiting = waiting

    def assess(self, pod: Pod, now: float) -> Answer:
        """Assess the pod.

        Raises SliceSpent if a selector budget is in force: assess it again, evaluated results are
        kept.
        """
        answer = assess(pod, self.view, self.settings)
        if isinstance(answer, Ignored):
            return answer
        if (writing := self._being_written(pod)) is not None:
            return writing
        match answer:
            case Waiting():
                return self._pending(pod, answer, now)
            case Foreign():
                return answer
            case SchedulingRequest():
                return self._ready(answer, now)

    def _being_written(self, pod: Pod) -> Pending | None:
        uid = pod.metadata.uid
        if uid in self._waiting.in_flight:
            return Pending("its claims are being written", behind=uid)
        for claim in self._informers.claims_of(pod):
            if claim.status.allocation is None and claim.metadata.uid in self._waiting.in_flight:
                return Pending(f"its claim {claim.key} is being written", behind=claim.metadata.uid)
        return None

    def _pending(self, pod: Pod, wait: Waiting, now: float) -> Pending:
        """Report what must be corrected; a missing object not at once: people create it after the pod."""
        if wait.is_missing:
            since = self._waiting.timeouts.runs_out(pod.metadata.uid, "object", now)
            if now < since:
                return Pending(wait.why, until=since, passing=False)
        return Pending(
            wait.why,
            passing=not wait.fault,
            preemption_may_help=wait.fault is Fault.VOLUME,
            event=messages.warning(wait.fault.value, wait.why) if wait.fault else None,
        )

    def _ready(self, request: SchedulingRequest, now: float) -> Answer:
        pod, refusals = request.pod, self._waiting.refusals
        uid = pod.metadata.uid
        if (until := refusals.settling(uid, now)) is not None:
            return Pending("kube-scheduler is deciding what to do about it", until=until)
        companions, refused_for_companions = self._companions(request, now)
        return replace(
            request,
            refused_nodes=refusals.nodes(uid, now),
            earlier_refusals=refusals.times(uid),
            companions=companions,
            refused_for_companions=refused_for_companions,
        )

    def _companions(self, request: SchedulingRequest, now: float) -> tuple[tuple[Companions, ...], Counter[str]]:
        """Return the other pods that wait for one of these claims.

        Also returns by node how many of them kube-scheduler refused there.
        """
        pod, shared, keys = request.pod, self._waiting.shared, shared_claims(request)
        companions = shared.companions(pod, keys, lambda uid: bool(self._inventory.assumed_node(uid)))
        sharers = {uid for uids in shared.uids(keys) for uid in uids} if companions else set()
        return companions, self._waiting.refusals.counts(sharers - {pod.metadata.uid}, now)
