"""The pods that may be moved, and why the others may not. Pure.

A pod is moved by its eviction: the controller that owns it creates another one, which is placed like
any new pod. So a pod moves only if it loses nothing but time by that.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from controller.assessment import assess
from controller.decide import SchedulingRequest
from controller.insight.simulation import SimulatedCluster
from controller.inventory import DeviceId, used_of
from controller.preemption import Preemption, why_it_stays
from controller.rules import UNSCHEDULABLE_TAINT
from hami_dra.api import names
from hami_dra.api.core import Pod, PodStatus, Taint
from hami_dra.api.meta import controller_of
from hami_dra.api.podclaims import ClaimRef, claim_keys
from hami_dra.api.resource import ResourceClaim, ResourceClaimStatus
from hami_dra.api.selectors import tolerates


class Goal(Struct, frozen=True):
    """What is to be reached: a place for a pod, or more free devices or nodes."""

    pod: str = ""
    """Key of a pod that waits."""
    devices: int = 0
    """Devices, each entirely free."""
    nodes: int = 0
    """Nodes, all of whose devices are free."""
    least: int = 1
    """Nodes with fewer devices do not count."""
    moves: int | None = None
    """The most pods that may move; None: all."""
    labelled: bool = False
    """Only pods move that have the label `hami.io/movable`, or whose namespace has it."""

    def __str__(self) -> str:
        if self.pod:
            return f"a place for pod {self.pod}"
        if self.devices:
            return f"{self.devices} more free {'device' if self.devices == 1 else 'devices'}"
        size = f" with {self.least} devices or more" if self.least > 1 else ""
        return f"{self.nodes} more free {'node' if self.nodes == 1 else 'nodes'}{size}"


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


class Movables(Struct, frozen=True):
    pods: list[Movable] = field(default_factory=list)
    """In order of their keys."""
    refused: dict[str, str] = field(default_factory=dict)
    """Key of each other pod that holds devices → why it stays."""


def movables_of(
    view: SimulatedCluster, goal: Goal, local_volumes: Mapping[str, str], preemption: Preemption
) -> Movables:
    """Return the running pods with devices. `local_volumes`: by key of a pod with one, why it stays."""
    found, unallocated = Movables(), _Unallocated(view)
    for pod in sorted(view.pods.values(), key=lambda each: each.key):
        claims = view.tenants.freed_by((pod,))
        holdings = [holding for uid in claims for holding in view.inventory.usage.counted(uid)]
        if not holdings and not any(_is_allocated(view.claims.get(key)) for key in claim_keys(pod)):
            continue
        why = _why_it_stays(pod, view, claims, preemption) or local_volumes.get(pod.key) or _comes_back(pod, view, goal)
        request = why or assess(as_waiting(pod), unallocated, view.settings.assessment)
        if isinstance(request, SchedulingRequest):
            devices = frozenset(holding.device for holding in holdings)
            memory = sum(
                used_of(device, 1, holding.consumed or {}, exclusive=holding.consumed is None)[2]
                for holding in holdings
                if (device := _published(view, holding.device)) is not None
            )
            found.pods.append(Movable(pod, request, claims, devices, memory))
        else:
            found.refused[pod.key] = request if isinstance(request, str) else request.why
    return found


def as_waiting(pod: Pod) -> Pod:
    """Return the pod that replaces it: as it is, without a node and a state."""
    status = PodStatus(
        resource_claim_statuses=pod.status.resource_claim_statuses,
        extended_resource_claim_status=pod.status.extended_resource_claim_status,
    )
    return replace(pod, spec=replace(pod.spec, node_name=""), status=status)


def _why_it_stays(pod: Pod, view: SimulatedCluster, freed: Iterable[str], preemption: Preemption) -> str:
    """Return why the pod cannot be moved, or empty."""
    if not controller_of(pod):
        return "no controller would create it again"
    if why := why_it_stays(pod, preemption.budgets, preemption.rules.now):
        return why
    if preemption.budgets.exceeded_by((pod,)):
        listed = ", ".join(budget.metadata.name for budget in preemption.budgets.of(pod))
        return f"PodDisruptionBudget {listed} allows no eviction"
    if pod.status.extended_resource_claim_status is not None:
        return "kube-scheduler gave it its devices"
    if (gang := view.gangs.of(pod)) is not None:
        return f"it is a member of {gang}"
    for key in claim_keys(pod):
        claim = view.claims.get(key)
        if claim is not None and _is_allocated(claim) and claim.metadata.uid not in freed:
            return f"other pods use its ResourceClaim {key}"
    return ""


def _is_labelled(pod: Pod, view: SimulatedCluster) -> bool:
    namespace = view.inventory.namespaces.get(pod.metadata.namespace)
    items = (pod, namespace) if namespace is not None else (pod,)
    return any(item.metadata.labels.get(names.MOVABLE) == "true" for item in items)


def _comes_back(pod: Pod, view: SimulatedCluster, goal: Goal) -> str:
    """Return why the pod may come back to what is cordoned meanwhile, or may not go at all; or empty."""
    cordon = Taint(key=names.CORDON_TAINT, effect="NoSchedule")
    claims = [claim for key in claim_keys(pod) if (claim := view.claims.get(key)) is not None]
    choices = [each for claim in claims for asked in claim.spec.devices.requests for each in asked.choices]
    if (not goal.devices and any(tolerates(each, UNSCHEDULABLE_TAINT) for each in pod.spec.tolerations)) or (
        not goal.nodes and any(tolerates(each, cordon) for choice in choices for each in choice.tolerations)
    ):
        return "it tolerates what is cordoned, and may come back to it"
    if goal.labelled and not _is_labelled(pod, view):
        return f'neither it nor its namespace has the label {names.MOVABLE}: "true"'
    return ""


def _is_allocated(claim: ResourceClaim | None) -> bool:
    return claim is not None and claim.status.allocation is not None


def _published(view: SimulatedCluster, device: DeviceId) -> Any:
    row = view.inventory.devices.row_of(device)
    return view.inventory.devices.devices[row] if row >= 0 else None


class _Unallocated:
    """A cluster none of whose claims is allocated, to assess the pod that replaces one that runs."""

    def __init__(self, view: SimulatedCluster) -> None:
        self._view = view
        self.inventory = view.inventory
        self.classes = view.classes
        self.template = view.template
        self.ownership_of = view.ownership_of
        self.converted_from = view.converted_from

    def claim(self, pod: Pod, ref: ClaimRef, /) -> ResourceClaim | None:
        claim = self._view.claim(pod, ref)
        return replace(claim, status=ResourceClaimStatus()) if claim is not None else None
