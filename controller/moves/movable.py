"""The pods that may be moved, and why the others may not. Pure.

A pod is moved by its eviction: the controller that owns it creates another one, which is placed like
any new pod. So a pod moves only if it loses nothing but time by that.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from controller.assessment import AssessmentSettings, ClusterView, assess
from controller.decide import SchedulingRequest
from controller.inventory import DeviceId, used_of
from controller.preemption import Preemption, why_it_stays
from hami_dra.api import names
from hami_dra.api.core import Pod, PodStatus
from hami_dra.api.meta import controller_of
from hami_dra.api.podclaims import ClaimRef, claim_keys
from hami_dra.api.resource import ResourceClaim, ResourceClaimStatus


class Movable(Struct, frozen=True, eq=False):
    """A pod that holds devices and may be moved."""

    pod: Pod
    request: SchedulingRequest
    """Of the pod that replaces it, which has no node and no devices yet."""
    claims: tuple[str, ...]
    """UIDs of the claims that are free without the pod."""
    devices: frozenset[DeviceId]
    memory: int
    """Bytes that it holds of them."""

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid


@dataclass(frozen=True, slots=True)
class Movability:
    """Which pods may be moved in a cluster at one moment."""

    view: ClusterView
    settings: AssessmentSettings
    preemption: Preemption
    labelled: bool = False
    """Only pods with the label `hami.io/movable`, or whose namespace has it."""
    least: float = 0.0
    """Seconds that a pod has run at least that does not say how long it must."""

    def of(self, pod: Pod) -> Movable | str | None:
        """Return the pod as one that may be moved, or why it stays; None: it holds no devices."""
        inventory, tenants = self.view.inventory, self.preemption.tenants
        claims = tenants.freed_by((pod,))
        holdings = [holding for uid in claims for holding in inventory.usage.counted(uid)]
        if not holdings and not any(_is_allocated(tenants.claim(key)) for key in claim_keys(pod)):
            return None
        if why := self._why_it_stays(pod, claims):
            return why
        request = assess(as_waiting(pod), _Unallocated(self.view), self.settings)
        if not isinstance(request, SchedulingRequest):
            return request.why
        memory = sum(
            used_of(device, 1, holding.consumed or {}, exclusive=holding.consumed is None)[2]
            for holding in holdings
            if (device := self._published(holding.device)) is not None
        )
        return Movable(pod, request, claims, frozenset(holding.device for holding in holdings), memory)

    def _why_it_stays(self, pod: Pod, freed: Iterable[str]) -> str:
        if not controller_of(pod):
            return "no controller would create it again"
        preemption = self.preemption
        if why := why_it_stays(pod, preemption.budgets, preemption.rules.now, self.least):
            return why
        if preemption.budgets.exceeded_by((pod,)):
            listed = ", ".join(budget.metadata.name for budget in preemption.budgets.of(pod))
            return f"PodDisruptionBudget {listed} allows no eviction"
        if pod.status.extended_resource_claim_status is not None:
            return "kube-scheduler gave it its devices"
        if (gang := preemption.tenants.gang_of(pod)) is not None:
            return f"it is a member of {gang}"
        for key in claim_keys(pod):
            claim = preemption.tenants.claim(key)
            if claim is not None and _is_allocated(claim) and claim.metadata.uid not in freed:
                return f"other pods use its ResourceClaim {key}"
        if volume := pod.spec.local_volume or next((each.name for each in pod.spec.volumes if each.is_local), ""):
            return f"the data of its volume {volume} would be lost"
        if self.labelled and not self.is_labelled(pod):
            return f'neither it nor its namespace has the label {names.MOVABLE}: "true"'
        return ""

    def is_labelled(self, pod: Pod) -> bool:
        namespace = self.view.inventory.namespaces.get(pod.metadata.namespace)
        items = (pod, namespace) if namespace is not None else (pod,)
        return any(item.metadata.labels.get(names.MOVABLE) == "true" for item in items)

    def _published(self, device: DeviceId) -> Any:
        columns = self.view.inventory.devices
        row = columns.row_of(device)
        return columns.devices[row] if row >= 0 else None


def as_waiting(pod: Pod) -> Pod:
    """Return the pod that replaces it: as it is, without a node and a state."""
    status = PodStatus(
        resource_claim_statuses=pod.status.resource_claim_statuses,
        extended_resource_claim_status=pod.status.extended_resource_claim_status,
    )
    return replace(pod, spec=replace(pod.spec, node_name=""), status=status)


def _is_allocated(claim: ResourceClaim | None) -> bool:
    return claim is not None and claim.status.allocation is not None


class _Unallocated:
    """A cluster none of whose claims is allocated, to assess the pod that replaces one that runs."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self.inventory = view.inventory
        self.classes = view.classes
        self.template = view.template
        self.ownership_of = view.ownership_of
        self.converted_from = view.converted_from

    def claim(self, pod: Pod, ref: ClaimRef, /) -> ResourceClaim | None:
        claim = self._view.claim(pod, ref)
        return replace(claim, status=ResourceClaimStatus()) if claim is not None else None
